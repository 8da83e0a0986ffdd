"""Gradients of weight and bias over any axes of any memory: sums over all statistics for each parameter."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.axes import Axes, walks
from dnnarray._cuda.norm.layer import Operands, specs_of
from dnnarray._cuda.norm.shared import AnyTypeOut, Flag, Pointer, wide
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen

_THREADS = 256


@frozen
class StridedParametersConfig(Config):
    """Compile-time settings of ``kernels/norm/strided_parameters.cu``."""

    element: str
    side: int
    threads: int


@frozen(kw_only=True)
class StridedParametersArguments(Arguments):
    """What ``kernels/norm/strided_parameters.cu`` is called with; `mean` is absent in an RMS norm, the results where
    they are not wanted."""

    grad: In
    x: In
    residual: In
    mean: InArithmetic
    rstd: InArithmetic
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    wide_weight: Flag
    wide_bias: Flag
    statistics: Extent
    count: Extent
    kept: Axes
    along: Axes


def strided_parameters(
    problem: NormProblem, given: Operands, statistics: tuple[Pointer, Pointer], results: tuple[Pointer, Pointer]
) -> Plan:
    """The launch that takes mean and rstd and writes the gradients of weight and bias."""
    specs, (kept, along) = specs_of(problem), walks(problem)
    x, side = specs.x, 32 if along.fastest and along.size > 1 else 1
    config = StridedParametersConfig(TYPES[x.dtype], side, _THREADS)
    kernel = Kernel(
        "norm/strided_parameters.cu", f"norm_strided_parameters_{SHORT[x.dtype]}_{side}", config, ("norm/axes",)
    )
    arguments = StridedParametersArguments(
        grad=given.grad,
        x=given.x,
        residual=given.residual,
        mean=statistics[0],
        rstd=statistics[1],
        dweight=results[0],
        dbias=results[1],
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
        statistics=kept.size,
        count=along.size,
        kept=kept.axes,
        along=along.axes,
    )
    return planned(kernel, (blocks_of(along.size, side), 1, 1), _THREADS, arguments)
