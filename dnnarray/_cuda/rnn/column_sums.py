"""Sums over the rows of a matrix, or of the products of two, in a fixed order."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.network import MOST_PARTS, THREADS, Block, Launches, Source, Target
from dnnarray._records import frozen

_SUM_ROWS = 64  # that a thread adds up at least


@frozen
class ColumnSumsConfig(Config):
    """Compile-time settings of ``kernels/rnn/column_sums.cu``."""

    source: str
    target: str
    threads: int


@frozen
class ColumnSumsArguments(Arguments, restrict=True):
    """What ``kernels/rnn/column_sums.cu`` is called with; `y` is absent where there is no product."""

    x: Source
    y: Source
    out: Target
    rows: Extent
    columns: Extent
    x_row: Extent
    y_row: Extent
    part: Extent


def column_sums(
    x: Block,
    x_row: int,
    rows: int,
    columns: int,
    partial: Block,
    outs: list[Block],
    y: Block | None = None,
    y_row: int = 0,
) -> Launches:
    """Sums over the rows of x, or of the products of x and y, into each of `outs`."""
    if not columns or not outs:
        return []
    part = max(_SUM_ROWS, -(-rows // MOST_PARTS))
    parts = max(1, -(-rows // part))

    def launch(
        source: Block, other: Array | None, out: Block, count: int, splits: int, length: int, row: int, other_row: int
    ) -> Plan:
        config = ColumnSumsConfig(TYPES[source.dtype], TYPES[out.dtype], THREADS)
        kernel = Kernel("rnn/column_sums.cu", f"rnn_column_sums_{SHORT[source.dtype]}_{SHORT[out.dtype]}", config)
        arguments = ColumnSumsArguments(
            source.array, other, out.array, rows=count, columns=columns, x_row=row, y_row=other_row, part=length
        )
        return planned(kernel, (blocks_of(columns, THREADS), splits, 1), THREADS, arguments)

    first = launch(x, None if y is None else y.array, partial, rows, parts, part, x_row, y_row)
    return [first, *(launch(partial, None, out, parts, 1, parts, columns, 0) for out in outs)]
