"""Windows of images as columns and back: plans for the kernels, the operations `unfold` and `fold`, and a step of other algorithms."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, dense_strides, extents, image, too_large
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._problems.conv_unfold import UnfoldProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_STEPS = 8  # of a thread of unfold.cu
_LANES = (8, 32, 128)  # units beside each other in a block of it


@frozen
class Columns:
    """How columns lie: whether their channels run fastest, and the steps, in elements, along their axes."""

    last: bool
    image: int
    pixel: int
    group: int
    channel: int
    tap: int


@frozen
class UnfoldConfig(Config):
    """Compile-time settings of ``kernels/conv/unfold.cu``."""

    element: str
    target: str
    last: bool
    vector: int
    lanes: int
    threads: int


@frozen
class FoldConfig(Config):
    """Compile-time settings of ``kernels/conv/fold.cu``."""

    element: str
    column: str
    activation: str
    bias: bool
    last: bool
    vector: int
    threads: int


def _vector(dtype: np.dtype, aligned: bool, g: Geometry, last: bool, strides: tuple[int, ...]) -> int:
    """Channels that a thread moves at once: neighbours in the image and in the columns."""
    if not last or (strides[1] != 1 and g.c * g.groups > 1):
        return 1
    return vector_length(dtype, aligned, g.c)


def unfold_plan(g: Geometry, columns: Columns, aligned: bool, x: Operand, target: Operand, n: int, first: int, count: int) -> Plan:
    """The columns of `count` pixels from `first` on of each of `n` images."""
    vector = _vector(x.dtype, aligned, g, columns.last, x.strides)
    units, rows = (g.groups * g.taps * g.c // vector, n * count) if columns.last else (count, n * g.groups * g.c * g.taps)
    lanes = next((k for k in _LANES if units <= 2 * k), _LANES[-1])
    config = UnfoldConfig(TYPES[x.dtype], TYPES[target.dtype], columns.last, vector, lanes, THREADS)
    words = ["conv_unfold", SHORT[x.dtype], "to", f"{SHORT[target.dtype]}x{vector}", "last" if columns.last else "first", f"l{lanes}"]
    kernel = Kernel("conv/unfold.cu", "_".join(words), config)
    grid = -(-units // lanes) * -(-rows // (THREADS // lanes * _STEPS))
    steps = (columns.image, columns.pixel, columns.group, columns.channel, columns.tap)
    sizes = (units, n, first, count, g.groups, g.c)
    return Plan(kernel, (grid, 1, 1), THREADS, (x.array, target.array, *sizes, *x.strides, *steps, *extents(g)))


def fold_plan(g: Geometry, columns: Columns, aligned: bool, source: Operand, y: Operand, n: int, e: Epilogue = NO_EPILOGUE) -> Plan:
    """`n` images from their columns."""
    vector = _vector(y.dtype, aligned, g, columns.last, y.strides)
    f = formula(e.activation, y.dtype)
    config = FoldConfig(TYPES[y.dtype], TYPES[source.dtype], f.type, e.bias is not None, columns.last, vector, THREADS)
    words = ["conv_fold", SHORT[source.dtype], "to", f"{SHORT[y.dtype]}x{vector}", "last" if columns.last else "first", e.name]
    kernel = Kernel("conv/fold.cu", "_".join(words), config, ("activation",))
    total = n * g.groups * g.c * math.prod(g.space)
    steps = (columns.image, columns.pixel, columns.group, columns.channel, columns.tap)
    arguments = (total, g.groups, g.c, *y.strides, *steps, *extents(g), f.p, f.q)
    return Plan(kernel, (-(-total // (THREADS * vector)), 1, 1), THREADS, (source.array, e.bias or y.array, y.array, *arguments))


def unfold(setting: Setting, columns: Columns, x: Operand, target: Operand, n: int, first: int, count: int) -> Plan:
    """`unfold_plan` as a step of an algorithm."""
    return unfold_plan(setting.g, columns, setting.steps.aligned, x, target, n, first, count)


def fold(setting: Setting, columns: Columns, source: Operand, y: Operand, n: int, e: Epilogue) -> Plan:
    """`fold_plan` as a step of an algorithm."""
    return fold_plan(setting.g, columns, setting.steps.aligned, source, y, n, e)


# --- the operations ---------------------------------------------------------------------------------------------------


def _columns(g: Geometry, layout: str, spec: Spec) -> Columns:
    """(N, C window, L), or (N, L, window C) in channels_last, in any dense memory."""
    strides = dense_strides(spec.shape, order_of(spec))
    if layout == "channels_last":
        n, pixel, one = strides
        return Columns(one == 1, n, pixel, g.c * g.taps * one, one, g.c * one)
    n, one, pixel = strides
    return Columns(False, n, pixel, g.c * g.taps * one, g.taps * one, one)


def _image(problem: UnfoldProblem, spec: Spec, array: object) -> Operand:
    return image(spec, problem.layout, Operand(array, spec.dtype), order_of(spec))  # type: ignore[arg-type]


def to_columns(problem: UnfoldProblem, device: Device, aligned: bool) -> Program:
    """Image to columns: `unfold`, and the gradient of `fold`."""
    steps, g, (target,) = Planner(problem, aligned), problem.geometry, problem.outputs
    assert target is not None
    if target.size == 0:
        return Program(())
    x = _image(problem, problem.inputs[0], steps.inputs[0])
    plan = unfold_plan(g, _columns(g, problem.layout, target), aligned, x, Operand(steps.outputs[0], target.dtype), g.n, 0, g.pixels)
    return Program((plan,), tuple(order_of(s) for s in problem.inputs))


def to_image(problem: UnfoldProblem, device: Device, aligned: bool) -> Program:
    """Columns to image: `fold`, and the gradient of `unfold`."""
    steps, g, (target,) = Planner(problem, aligned), problem.geometry, problem.outputs
    assert target is not None
    if target.size == 0:
        return Program(())
    y = _image(problem, target, steps.outputs[0])
    source = Operand(steps.inputs[0], target.dtype)
    plan = fold_plan(g, _columns(g, problem.layout, problem.inputs[0]), aligned, source, y, g.n)
    return Program((plan,), tuple(order_of(s) for s in problem.inputs))


def rejects(problem: UnfoldProblem, device: Device) -> str | None:
    return too_large(problem.geometry)
