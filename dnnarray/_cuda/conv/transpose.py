"""Matrices turned round by way of shared memory, a batch of them."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

_TILE, _NARROW, _THREADS = 64, 16, 256  # rows, and columns of tiles where there are more than a few; few columns


@frozen
class TransposeConfig(Config):
    """Compile-time settings of ``kernels/conv/transpose.cu``."""

    element: str
    columns: int
    vector_in: int
    vector_out: int
    threads: int


@frozen
class TransposeArguments(Arguments, restrict=True):
    """What ``kernels/conv/transpose.cu`` is called with; a pitch lies between rows, `tiles_i` and `tiles_j` are tiles
    along and down a result."""

    source: In
    out: Out
    rows: Extent
    columns: Extent
    width: Extent
    in_pitch: Extent
    out_pitch: Extent
    in_batch: Extent
    out_batch: Extent
    tiles_i: Int
    tiles_j: Int


def transpose(
    aligned: bool,
    source: Operand,
    target: Operand,
    shape: tuple[int, int, int],
    width: int,
    in_pitch: int,
    out_pitch: int,
) -> Plan:
    """Matrices of `shape` (batch, rows, columns) turned round; the results are `width` wide."""
    batch, rows, columns = shape
    vector_in = vector_length(source.dtype, aligned, columns, in_pitch)
    vector_out = vector_length(source.dtype, aligned, width, out_pitch)
    across = _NARROW if columns <= _NARROW else _TILE
    name = f"conv_transpose_{SHORT[source.dtype]}x{vector_in}_to_x{vector_out}_{across}"
    kernel = Kernel(
        "conv/transpose.cu", name, TransposeConfig(TYPES[source.dtype], across, vector_in, vector_out, _THREADS)
    )
    tiles_i, tiles_j = -(-width // _TILE), -(-columns // across)
    arguments = TransposeArguments(
        source.array, target.array, rows=rows, columns=columns, width=width, in_pitch=in_pitch, out_pitch=out_pitch,
        in_batch=rows * in_pitch, out_batch=columns * out_pitch, tiles_i=tiles_i, tiles_j=tiles_j,
    )  # fmt: skip
    return planned(kernel, (batch * tiles_i * tiles_j, 1, 1), _THREADS, arguments)
