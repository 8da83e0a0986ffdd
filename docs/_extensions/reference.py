"""The reference, generated from the registry: one page for each public name, and the directive ``functions``.

The directive lists a family. A page has the function first and its algorithms in a fold at the end.
Pages are written to ``reference/generated`` before Sphinx reads the sources.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import dnnarray
from dnnarray._call.operation import _registry
from dnnarray._names import FAMILIES, FAMILY_OF

# Public names outside of the families of operations, by the page of the reference that lists them.
OTHERS = {
    "training": (
        "value_and_grad grad checkpoint stop_gradient vjp sgd adam adamw lion SGDState AdamState LionState "
        "clip_by_global_norm cosine_schedule warmup_schedule"
    ).split(),
    "general": (
        "infer Spec algorithms Algorithm autotune explain warmup options set_options show_versions check"
    ).split(),
}
_ENGINES = (("CPU", "_cpu"), ("CUDA", "_cuda"))


class Functions(SphinxDirective):
    """``.. functions:: conv``: tables of the functions, gradients and result types of a family, and their toctree."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        names = _names(self.arguments[0])
        lines = []
        for title, members in _sections(names).items():
            if members:
                lines += [f".. rubric:: {title}", "", ".. list-table::", "   :widths: 30 70", ""]
                for name in members:
                    lines += [f"   * - :py:obj:`{name} <dnnarray.{name}>`", f"     - {_summary(name)}"]
                lines += [""]
        lines += [".. toctree::", "   :hidden:", "", *(f"   generated/{name}" for name in names)]
        container = nodes.container()
        source = f"functions {self.arguments[0]}"
        self.state.nested_parse(StringList(lines, source=source), self.content_offset, container)
        return container.children


def _names(page: str) -> list[str]:
    """Functions of a page, each before its gradient."""
    if page in OTHERS:
        return OTHERS[page]
    return sorted(FAMILIES[page], key=lambda name: (name.removesuffix("_backward"), name))


def _sections(names: list[str]) -> dict[str, list[str]]:
    titles = ("Functions", "Gradients", "One number of axes", "Results and arguments")
    sections: dict[str, list[str]] = {title: [] for title in titles}
    for name in names:
        if isinstance(getattr(dnnarray, name), type):
            sections["Results and arguments"].append(name)
        elif name.endswith("_backward"):
            sections["Gradients"].append(name)
        elif name in _registry and _registry[name].base != name:
            sections["One number of axes"].append(name)
        else:
            sections["Functions"].append(name)
    return sections


def _summary(name: str) -> str:
    """First sentence of the docstring, in one line."""
    paragraph = (getattr(dnnarray, name).__doc__ or "").strip().split("\n\n")[0]
    text = re.sub(r" ?\[\w+\]_", "", " ".join(paragraph.split()))  # citations stand on the function's own page
    return _escaped(re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", text))


def _page(name: str) -> str:
    kind = "autoclass" if isinstance(getattr(dnnarray, name), type) else "autofunction"
    lines = [name, "=" * len(name), "", ".. currentmodule:: dnnarray", "", f".. {kind}:: {name}", ""]
    if name in FAMILY_OF and name in _registry:
        lines += _algorithms(FAMILY_OF[name], _registry[name].base)
    return "\n".join(lines)


def _algorithms(family: str, operation: str) -> list[str]:
    """The algorithms of an operation on both engines, in a fold."""
    lines = [".. dropdown:: Algorithms", ""]
    for engine, package in _ENGINES:
        methods = importlib.import_module(f"dnnarray.{package}.{family}").ALGORITHMS.get(operation, ())
        if methods:
            lines += [
                "",
                f"   .. list-table:: {engine} engine",
                "      :header-rows: 1",
                "      :widths: 26 50 12 12",
                "",
            ]
            lines += ["      * - algorithm", "        - what it does"]
            lines += ["        - float32 numerics", "        - same bits every run"]
        for method in methods:
            lines += [f"      * - ``{method.name}``", f"        - {_escaped(method.summary)}"]
            lines += [f"        - {method.precision}", f"        - {'yes' if method.deterministic else 'no'}"]
    return [*lines, "", "   :doc:`/howto/algorithms` tells how one of them is chosen, and how a call names one.", ""]


_STAR = re.compile(r"(``.*?``|`.*?`)|(?<!^)(\*+)")


def _escaped(text: str) -> str:
    return _STAR.sub(lambda m: m[1] or m[2].replace("*", r"\*"), text)


def escape_stars(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape ``*space``, "any number of spatial axes", which reStructuredText would take for the start of emphasis."""
    literal: int | None = None  # the indentation of the paragraph that a literal block belongs to
    for i, line in enumerate(lines):
        indentation = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indentation <= literal:
            literal = None
        if literal is None and not line.lstrip().startswith((">>>", "...", "*")):
            lines[i] = _escaped(line)
        if literal is None and line.rstrip().endswith("::"):
            literal = indentation


def write_pages(app: Sphinx) -> None:
    """Write the pages whose text has changed, and remove those of names that are gone."""
    folder = Path(app.srcdir) / "reference" / "generated"
    folder.mkdir(exist_ok=True)
    pages = {folder / f"{name}.rst": _page(name) for family in (*FAMILIES, *OTHERS) for name in _names(family)}
    for stale in set(folder.glob("*.rst")) - set(pages):
        stale.unlink()
    for path, text in pages.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages, priority=100)
    app.connect("autodoc-process-docstring", escape_stars, priority=1)  # before numpydoc
    app.add_directive("functions", Functions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
