"""The page ``development/kernels.md``: every CUDA kernel with its purpose, its bound, its size and its plan.

The page is written from the header comments of the kernels before Sphinx reads the sources, so that it always describes
the kernels as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_ROOT = Path(__file__).parents[2]
_KERNELS, _PLANS = _ROOT / "kernels", _ROOT / "dnnarray" / "_cuda"
_PAGE = "development/kernels.md"
_START = """# The map of kernels

This page is generated from the header comments of the kernels. A kernel `kernels/<family>/<stem>.cu` is planned by
`dnnarray/_cuda/<family>/<stem>.py` where that module exists, and by the module in the last column otherwise. The bound
names the resource that limits the kernel; where the header has a measurement, it says the card and the date.
"""


def headers() -> dict[str, list[Path]]:
    """The kernel files of each family."""
    found: dict[str, list[Path]] = {}
    for path in sorted(_KERNELS.glob("*/*.cu")):
        found.setdefault(path.parent.name, []).append(path)
    return found


def described(path: Path) -> tuple[str, str]:
    """What a kernel is for, and its bound: the first sentence of its header comment, and the text behind ``Bound:``."""
    comment = re.match(r"(?://[^\n]*\n)+", path.read_text())
    text = " ".join(line.removeprefix("//").strip() for line in (comment.group() if comment else "").splitlines())
    purpose, *_ = re.split(r" (?=[A-Z][a-z]+: )", text)
    bound = re.search(r"Bound: +(.*?)(?= [A-Z][a-z]+: |$)", text)
    return _sentence(purpose), bound.group(1) if bound else ""


def _sentence(text: str) -> str:
    """The first sentence; a full stop between digits or behind an abbreviation ends none."""
    return re.split(r"(?<=[^0-9 ].)(?<=\.) (?=[A-Z`])", text)[0]


def planners(family: str, stem: str) -> str:
    """The modules of the CUDA engine that name the kernel."""
    own = _PLANS / family / f"{stem}.py"
    if own.is_file():
        return own.relative_to(_PLANS).as_posix()
    found = (path for path in sorted(_PLANS.rglob("*.py")) if _names(path.read_text(), family, stem))
    return ", ".join(path.relative_to(_PLANS).as_posix() for path in found)


def _names(plan: str, family: str, stem: str) -> bool:
    """Whether a module names the kernel, in one string or with a part of the name between braces."""
    if f'"{family}/{stem}.cu"' in plan or f'"{stem}"' in plan:
        return True
    patterns = re.findall(rf'f"{family}/(\w+\{{\w+\}}\w*)\.cu"', plan)
    return any(re.fullmatch(re.sub(r"\{\w+\}", r"\\w+", pattern), stem) for pattern in patterns)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("$", "\\$")


def page() -> str:
    lines = [_START]
    for family, paths in headers().items():
        lines += [f"\n## {family}\n", "| kernel | purpose | bound | lines | planned by |", "|---|---|---|---:|---|"]
        for path in paths:
            purpose, bound = map(_cell, described(path))
            count = len(path.read_text().splitlines())
            lines.append(f"| `{path.stem}` | {purpose} | {bound} | {count} | `{planners(family, path.stem)}` |")
    return "\n".join(lines) + "\n"


def write_page(app: Sphinx) -> None:
    (Path(app.srcdir) / _PAGE).write_text(page())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
