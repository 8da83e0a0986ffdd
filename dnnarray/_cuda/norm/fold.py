"""The sum over parts of the gradients of weight and bias: the second half of several gradients."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, InArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.shared import AnyTypeOut, Flag, Pointer, wide
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64, Spec

_WIDE = 2048  # columns for each element of a vector, so that there are blocks enough
_FEW = 16384  # columns from which there are blocks enough for few threads in each


@frozen
class FoldConfig(Config):
    """Compile-time settings of ``kernels/norm/fold.cu``."""

    element: str
    vector: int
    rows: int


@frozen
class FoldArguments(Arguments, restrict=("dweight_parts", "dbias_parts")):
    """What ``kernels/norm/fold.cu`` is called with; the results are absent where they are not wanted, the parts where
    there are none."""

    dweight_parts: InArithmetic
    dbias_parts: InArithmetic
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    parts: Extent
    columns: Extent
    wide_weight: Flag
    wide_bias: Flag


def fold(
    x: Spec, parts: tuple[Pointer, Pointer], results: tuple[Pointer, Pointer], count: int, columns: int,
    parameters: tuple[Spec | None, Spec | None], aligned: bool = False,
) -> Plan:  # fmt: skip
    """The sum of `count` parts of the gradients of weight and bias (`parameters`)."""
    vector = next(
        (n for n in (4, 2) if columns % n == 0 and columns >= n * _WIDE and aligned and x.dtype != FLOAT64), 1
    )
    rows = 8 if columns >= _FEW else 32
    kernel = Kernel(
        "norm/fold.cu", f"norm_fold_{SHORT[x.dtype]}x{vector}x{rows}", FoldConfig(TYPES[x.dtype], vector, rows)
    )
    weight, bias = parameters
    arguments = FoldArguments(*parts, *results, count, columns, wide(weight, x), wide(bias, x))
    return planned(kernel, (blocks_of(columns, 32 * vector), 2, 1), 32 * rows, arguments, early=True)
