"""The directive ``family``: for a family of operations, the algorithms (from its ALGORITHMS table) and every public function."""

from __future__ import annotations

import importlib
import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import dnnarray


class Family(SphinxDirective):
    """``{family} conv``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        public = importlib.import_module(f"dnnarray.{name}").__all__
        tables = [
            line
            for engine, package in (("CPU", "_cpu"), ("CUDA", "_cuda"))
            for line in _algorithm_table(engine, importlib.import_module(f"dnnarray.{package}.{name}").ALGORITHMS)
        ]
        lines = [*tables, ".. currentmodule:: dnnarray", ""]
        for entry in sorted(public, key=lambda n: (n.removesuffix("_backward"), n)):
            kind = "autoclass" if isinstance(getattr(dnnarray, entry), type) else "autofunction"
            lines += [f".. {kind}:: {entry}", ""]
        container = nodes.container()
        self.state.nested_parse(StringList(lines, source=f"family {name}"), self.content_offset, container)
        return container.children


def _algorithm_table(engine: str, table: dict[str, Any]) -> list[str]:
    if not table:
        return []
    lines = [f".. list-table:: Algorithms of the {engine} engine", "   :header-rows: 1", "   :widths: 26 14 40 10 10", ""]
    lines += ["   * - operation", "     - algorithm", "     - what it does", "     - float32 numerics", "     - same bits every run"]
    for method, ops in _operations_by_method(table).items():
        name, summary, precision, deterministic = method
        lines += [f"   * - {', '.join(f'``{op}``' for op in sorted(ops))}", f"     - ``{name}``", f"     - {summary}"]
        lines += [f"     - {precision}", f"     - {'yes' if deterministic else 'no'}"]
    return [*lines, ""]


def _operations_by_method(table: dict[str, Any]) -> dict[tuple, list[str]]:
    """One row for all operations that an algorithm serves in the same words."""
    rows: dict[tuple, list[str]] = {}
    for op, methods in table.items():
        for m in methods:
            rows.setdefault((m.name, m.summary, m.precision, m.deterministic), []).append(op)
    return rows


_STAR = re.compile(r"(``.*?``|`.*?`)|(?<!^)(\*+)")


def escape_stars(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """``*space`` in a docstring is "any number of spatial axes", which reStructuredText would take for the start of emphasis."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", "*")):
            lines[i] = _STAR.sub(lambda m: m[1] or m[2].replace("*", r"\*"), line)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", escape_stars, priority=1)  # before numpydoc
    app.add_directive("family", Family)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
