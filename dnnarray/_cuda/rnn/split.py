"""Numbers as two bfloat16 parts that add up to them."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.network import THREADS, Block, Launches, Source, blocks
from dnnarray._records import frozen

Parts = Annotated[Array, Pointer("dnnarray::bfloat16_t", False)]


@frozen
class SplitConfig(Config):
    """Compile-time settings of ``kernels/rnn/split.cu``."""

    source: str
    vector: int
    threads: int


@frozen
class SplitArguments(Arguments, restrict=True):
    """What ``kernels/rnn/split.cu`` is called with."""

    x: Source
    y: Parts
    rows: Extent
    columns: Extent
    row: Extent
    low: Extent


def split(source: Block, rows: int, columns: int, row: int, target: Block, low: int = 0) -> Launches:
    """A matrix as two bfloat16 parts (rows, 2, columns); `low` is where the second part of the source stands behind the
    first, 0 if none."""
    if not rows * columns:
        return []
    scratch = source.array.index == target.array.index  # what lies there is aligned
    vector = (
        4
        if scratch and not any(n % 4 for n in (columns, row, low, source.array.offset // source.dtype.itemsize))
        else 1
    )
    name = f"rnn_split_{SHORT[source.dtype]}x{vector}"
    kernel = Kernel("rnn/split.cu", name, SplitConfig(TYPES[source.dtype], vector, THREADS))
    grid = blocks(rows * columns // vector)
    return [
        planned(
            kernel,
            grid,
            THREADS,
            SplitArguments(source.array, target.array, rows=rows, columns=columns, row=row, low=low),
        )
    ]
