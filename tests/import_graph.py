"""The modules of the package and what each imports at import time; ``python -m tests.import_graph FILE`` draws them by
layers."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

_ROOT = Path(__file__).parents[1] / "dnnarray"
_FAMILIES = {
    "activation",
    "softmax",
    "dropout",
    "linear",
    "conv",
    "pool",
    "norm",
    "rnn",
    "attention",
    "loss",
    "spatial",
}


def modules() -> dict[str, Path]:
    """Dotted name to file, of every module of the package."""
    found = {}
    for path in _ROOT.rglob("*.py"):
        parts = path.relative_to(_ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Module to the modules that it imports when it is imported; imports inside of functions and those for type
    checkers are left out."""
    known = modules()
    return {name: set(_imported(ast.parse(path.read_text()), known)) for name, path in known.items()}


def _imported(node: ast.AST, known: dict[str, Path]):
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=test) if "TYPE_CHECKING" in ast.dump(test):
                continue
            case ast.Import(names=names):
                yield from (a.name for a in names if a.name in known)
            case ast.ImportFrom(module=str(module), names=names):
                both = ((f"{module}.{a.name}", module) for a in names)
                yield from (
                    inner if inner in known else outer for inner, outer in both if inner in known or outer in known
                )
            case _:
                yield from _imported(child, known)


def layer_of(module: str) -> str:
    """What stands for a module in the drawing: the public families together, a package of the engines as a whole, any
    other module itself."""
    parts = module.split(".")[1:] or ["__init__"]
    if parts[0] in _FAMILIES:
        return "public functions"
    if parts[0] == "_cuda" and len(parts) > 1 and parts[1] in ("core", "common"):
        return f"_cuda.{parts[1]}"
    return parts[0]


def layers() -> dict[str, set[str]]:
    """The same between layers, without the package's own `__init__`, which imports what the user sees."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in imports().items():
        found[layer_of(module)] |= {layer_of(other) for other in imported} - {layer_of(module)}
    found.pop("__init__")
    return {name: others - {"__init__"} for name, others in found.items()}


def ranks(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many imports lie one below the other under each; `graphlib.CycleError` where they run in a circle."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        found[name] = max((found[other] + 1 for other in graph.get(name, ())), default=0)
    return found


def draw(path: Path) -> None:
    """One line a rank, what imports nothing at the bottom; every arrow points to what is imported."""
    import matplotlib.pyplot as plt

    graph = layers()
    rows = defaultdict(list)
    for name, rank in sorted(ranks(graph).items()):
        rows[rank].append(name)
    place = {n: ((i + 0.5) / len(row), rank) for rank, row in rows.items() for i, n in enumerate(row)}
    figure, axes = plt.subplots(figsize=(16, 1 + 0.9 * len(rows)), layout="constrained")
    for name, others in graph.items():
        for other in others:
            arrow = {"arrowstyle": "->", "color": "0.6", "lw": 0.6, "shrinkA": 9, "shrinkB": 9}
            axes.annotate("", place[other], place[name], arrowprops=arrow)
    for name, (x, y) in place.items():
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "tab:blue"}
        axes.text(x, y, name, ha="center", va="center", fontsize=8, bbox=box)
    axes.set(xlim=(0, 1), ylim=(-0.5, len(rows) - 0.5), title="dnnarray: imports point downwards")
    axes.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
    print(f"{sys.argv[1]}: {len(layers())} layers")
