"""Plots of the tables in ``development/h200.md``: for each section, speed relative to the faster peer, by operation.

The plots are drawn before Sphinx reads the sources, so that they always show the tables as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from sphinx.application import Sphinx

_TABLES = "development/h200.md"
_FOLDER = "generated_plots"


def ratios(text: str) -> dict[str, dict[str, list[float]]]:
    """Section to operation to the last column of its rows; rows without a peer are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = re.split(r"[ ,]", line[3:])[0].lower()
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and re.fullmatch(r"[\d.]+", cells[-1]):
            found.setdefault(section, {}).setdefault(_operation(cells[0]), []).append(float(cells[-1]))
    return found


def _operation(row: str) -> str:
    name = re.split(r"[ +]", row)[0]
    gradient = next((kind for kind in ("backward", "input", "weight") if f" {kind}" in row), "")
    return f"{name} {gradient}".strip() if "_backward" not in name else name.replace("_", " ")


def draw(operations: dict[str, list[float]], path: Path) -> None:
    """One line for each operation, one dot for each row of the table; a ratio above 1 is faster than the peers."""
    names = sorted(operations, reverse=True)
    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.24 * len(names)), layout="constrained")
    for place, name in enumerate(names):
        values = sorted(operations[name])
        axes.plot(values, [place] * len(values), "o", color="#2f6fb3", alpha=0.35, markersize=4)
        axes.plot(values[len(values) // 2], place, "|", color="black", markersize=11)
    axes.axvline(1, color="#b33", linewidth=1)
    axes.set_xscale("log")
    ticks = [t for t in (0.02, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32) if t >= 0.9 * min(map(min, operations.values()))]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("speed relative to the faster of the peers (bar: median)")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def write_plots(app: Sphinx) -> None:
    source = Path(app.srcdir)
    folder = source / _FOLDER
    folder.mkdir(exist_ok=True)
    for section, operations in ratios((source / _TABLES).read_text()).items():
        draw(operations, folder / f"{section}.svg")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_plots)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
