"""Windows of images as columns and back: plans for the kernels, the operations `unfold` and `fold`, and a step of other
algorithms."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, conv_axes
from dnnarray._cuda.conv.columns import Columns, channels_at_once
from dnnarray._cuda.conv.fold import fold_plan
from dnnarray._cuda.conv.shared import Setting, dense_strides, image, too_large
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Pointer
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import Operand, Planner, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._problems.conv_unfold import UnfoldProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_STEPS = 8  # of a thread of unfold.cu
_LANES = (8, 32, 128)  # units beside each other in a block of it


TargetOut = Annotated[Array | None, Pointer("Config::Target", False)]


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
class UnfoldArguments(Arguments, restrict=True):
    """What ``kernels/conv/unfold.cu`` is called with; a ``to_`` is a step of the columns."""

    x: In
    columns: TargetOut
    units: Extent
    images: Extent
    first: Extent
    pixels: Extent
    groups: Extent
    channels: Extent
    x_strides: ImageStrides
    to_image: Extent
    to_pixel: Extent
    to_group: Extent
    to_channel: Extent
    to_tap: Extent
    axes: ConvAxes


def unfold_plan(
    g: Geometry, columns: Columns, aligned: bool, x: Operand, target: Operand, n: int, first: int, count: int
) -> Plan:
    """The columns of `count` pixels from `first` on of each of `n` images."""
    vector = channels_at_once(x.dtype, aligned, g, columns.last, x.strides)
    units, rows = (
        (g.groups * g.taps * g.c // vector, n * count) if columns.last else (count, n * g.groups * g.c * g.taps)
    )
    lanes = next((k for k in _LANES if units <= 2 * k), _LANES[-1])
    config = UnfoldConfig(TYPES[x.dtype], TYPES[target.dtype], columns.last, vector, lanes, THREADS)
    words = [
        "conv_unfold",
        SHORT[x.dtype],
        "to",
        f"{SHORT[target.dtype]}x{vector}",
        "last" if columns.last else "first",
        f"l{lanes}",
    ]
    kernel = Kernel("conv/unfold.cu", "_".join(words), config, ("conv/geometry",))
    grid = -(-units // lanes) * -(-rows // (THREADS // lanes * _STEPS))
    arguments = UnfoldArguments(
        x.array,
        target.array,
        units=units,
        images=n,
        first=first,
        pixels=count,
        groups=g.groups,
        channels=g.c,
        x_strides=x.strides,
        to_image=columns.image,
        to_pixel=columns.pixel,
        to_group=columns.group,
        to_channel=columns.channel,
        to_tap=columns.tap,
        axes=conv_axes(g),
    )
    return planned(kernel, (grid, 1, 1), THREADS, arguments)


def unfold(setting: Setting, columns: Columns, x: Operand, target: Operand, n: int, first: int, count: int) -> Plan:
    """`unfold_plan` as a step of an algorithm."""
    return unfold_plan(setting.g, columns, setting.steps.aligned, x, target, n, first, count)


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
    plan = unfold_plan(
        g, _columns(g, problem.layout, target), aligned, x, Operand(steps.outputs[0], target.dtype), g.n, 0, g.pixels
    )
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
