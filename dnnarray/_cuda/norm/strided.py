"""Layer and RMS norm over any axes of any memory, and over rows of any length: the general path."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.norm.rows import Operands, fold, operands, pass_on, results, wants_parameters
from dnnarray._cuda.norm.shared import Arguments, memory_order, orders, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_AXES = 4
_THREADS = 256


@frozen
class StridedConfig(Config):
    """Compile-time settings of ``kernels/norm/strided.cu``."""

    element: str
    centred: bool
    gradient: bool
    side: int
    threads: int


@frozen
class StridedParametersConfig(Config):
    """Compile-time settings of ``kernels/norm/strided_parameters.cu``."""

    element: str
    side: int
    threads: int


class Walk(NamedTuple):
    """Some axes of x in C order: extents and strides in its memory, neighbours merged where they are one axis there."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def fastest(self) -> bool:
        """Whether the last of the axes is the fastest in memory."""
        return bool(self.strides) and self.strides[-1] == 1

    def arguments(self) -> tuple[int, ...]:
        """As the kernels take them: three extents and four strides, filled with axes of extent 1 in front."""
        missing = _AXES - len(self.extents)
        extents = (1,) * missing + self.extents
        return (*extents[1:], *(0,) * missing, *self.strides)


def walk(x: Spec, axes: tuple[int, ...]) -> Walk:
    order = memory_order(x)
    strides, step = {}, 1
    for i in reversed(order):
        strides[i] = step
        step *= max(x.shape[i], 1)
    merged: list[tuple[int, int]] = []
    for i in sorted(axes):
        n, stride = x.shape[i], strides[i]
        if n == 1:
            continue
        if merged and merged[-1][1] == n * stride:
            merged[-1] = (merged[-1][0] * n, stride)
        else:
            merged.append((n, stride))
    return Walk(tuple(n for n, _ in merged), tuple(s for _, s in merged))


def _walks(problem: NormProblem, x: Spec) -> tuple[Walk, Walk]:
    axes = problem.geometry.axes
    return walk(x, tuple(i for i in range(x.ndim) if i not in axes)), walk(x, axes)


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the axes are too scattered, or None."""
    if any(len(w.extents) > _AXES for w in _walks(problem, operands(problem, problem.inputs, None).x)):
        return f"the kept or the normalised axes make more than {_AXES} separate axes in memory"
    return None


def cost(problem: NormProblem, device: Device) -> Cost:
    """Three rounds over the data, element by element."""
    return Cost(problem.flops, 6 * problem.bytes, launches=2)


def workspace(problem: NormProblem) -> int:
    """The statistics, for the gradients of the parameters."""
    if not wants_parameters(problem):
        return 0
    x = operands(problem, problem.inputs, None).x
    return 2 * _walks(problem, x)[0].size * statistics_dtype(x).itemsize


def _flags(specs: Operands) -> tuple[int, ...]:
    return tuple(wide(s, specs.x) for s in (specs.weight, specs.bias, specs.mean, specs.rstd))


def _plan(problem: NormProblem, specs: Operands, gradient: bool, pointers: tuple[Any, ...]) -> Plan:
    kept, along = _walks(problem, specs.x)
    side = 32 if kept.fastest and kept.size > 1 else 1
    config = StridedConfig(TYPES[specs.x.dtype], problem.centred, gradient, side, _THREADS)
    name = f"{'layer' if problem.centred else 'rms'}_norm_strided_{'backward_' if gradient else ''}{SHORT[specs.x.dtype]}_{side}"
    numbers = (*_flags(specs), problem.eps, kept.size, along.size, *kept.arguments(), *along.arguments())
    kernel = Kernel("norm/strided.cu", name, config)
    return Plan(kernel, (blocks_of(kept.size, side), 1, 1), _THREADS, (*pointers, *numbers))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given = operands(problem, arguments.inputs, 0)
    if _walks(problem, specs.x)[0].size == 0:
        return Program(())
    y, *rest = arguments.outputs
    total, mean, rstd = (rest[0], 0, 0) if specs.residual is not None else (0, *rest) if problem.centred else (0, 0, *rest)
    pointers = (0, 0, given.x, given.residual, given.weight, given.bias, 0, 0, y, total, mean, rstd)
    return Program((_plan(problem, specs, False, pointers),), orders(problem, specs.x))


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x, then those of the parameters."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    if specs.grad is None:
        return pass_on(problem, aligned)
    kept, along = _walks(problem, x)
    dx, dresidual, dweight, dbias = results(problem, arguments)
    if x.size == 0:
        empty = (
            () if along.size == 0 or not (dweight or dbias) else (fold(x, 0, 0, dweight, dbias, 0, along.size, specs.weight, specs.bias),)
        )
        return Program(empty, orders(problem, x))
    wanted = wants_parameters(problem)
    mean = arguments.scratch() if wanted and problem.centred else 0
    rstd = arguments.scratch(kept.size * statistics_dtype(x).itemsize) if wanted else 0
    pointers = (given.grad, given.grad_sum, given.x, given.residual, given.weight, 0, given.mean, given.rstd, dx, dresidual, mean, rstd)
    plans = [_plan(problem, specs, True, pointers)]
    if wanted:
        side = 32 if along.fastest and along.size > 1 else 1
        config = StridedParametersConfig(TYPES[x.dtype], side, _THREADS)
        kernel = Kernel("norm/strided_parameters.cu", f"norm_strided_parameters_{SHORT[x.dtype]}_{side}", config)
        flags = wide(specs.weight, x), wide(specs.bias, x)
        numbers = (*flags, kept.size, along.size, *kept.arguments(), *along.arguments())
        launch = (given.grad, given.x, given.residual, mean, rstd, dweight, dbias, *numbers)
        plans.append(Plan(kernel, (blocks_of(along.size, side), 1, 1), _THREADS, launch))
    return Program(tuple(plans), orders(problem, x))
