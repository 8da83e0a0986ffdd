"""`depthwise`: the gradient of the weight, partial sums in a first launch and their sum in a second, always in the same
order."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.common.channels import whole_lines
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides
from dnnarray._cuda.conv.depthwise_common import Correlation, PartialSums, axes
from dnnarray._cuda.conv.depthwise_weight_patch import wgrad_by_patches, wgrad_takes_patches
from dnnarray._cuda.conv.depthwise_weight_rows import wgrad_by_rows, wgrad_takes_rows
from dnnarray._cuda.conv.depthwise_weight_tile import tiled
from dnnarray._cuda.conv.depthwise_weight_walk import walked
from dnnarray._cuda.core.arguments import Arguments, In, Int, OutArithmetic
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, Spec

_UNITS = 132  # multiprocessors that the sums are divided for: the scratch memory must not depend on the device
_WARPS, _VECTOR = 8, 4
_GROUP, _STRIP, _BLOCKS = 8, 4, 4  # rows of the window in a block, columns of a thread, blocks of a multiprocessor
_ROW_START, _PASS = (
    1.2e-6,
    0.5e-6,
)  # seconds of the direct way: until a row's first values are there, of a warp's pass over columns


@frozen
class DepthwiseWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight.cu``."""

    element: str
    plain: bool
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@frozen
class DepthwiseWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_weight.cu`` is called with."""

    dy: In
    x: In
    partial: OutArithmetic
    batch: Int
    channels: Int
    multiplier: Int
    flip: Int
    splits: Int
    groups: Int
    x_strides: ImageStrides
    y_strides: ImageStrides
    axes: ConvAxes


def too_wide(g: Geometry) -> bool:
    """Whether the parts of the window are more than a grid's second axis can count."""
    return -(-g.taps // _GROUP) >= 1 << 16


def _direct(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums:
    """Any window, memory order, multiplier. `pointers` are of dy, x and the partial sums."""
    g, memory, dtype = c.g, c.memory, c.x.dtype
    vector, lanes = (min(vector_length(dtype, c.aligned, c.channels), _VECTOR), 8) if memory.last else (1, 1)
    members = g.taps // (g.window[2] if c.fast else 1)
    group = min(members, _GROUP)
    copies, chunks, rows = max(_WARPS // group, 1), -(-c.channels // (vector * lanes)), g.n * g.out[0] * g.out[1]
    splits = max(1, min(-(-rows // copies), -(-_UNITS * _BLOCKS // (chunks * -(-members // group)))))
    side, stride = (g.window[2], g.stride[2]) if c.fast else (0, 1)
    strip = _STRIP // 2 if dtype == FLOAT64 and side > 5 else _STRIP  # what the registers hold
    config = DepthwiseWeightConfig(TYPES[dtype], c.plain, side, stride, vector, lanes, strip, 32 * _WARPS)
    words = [
        f"conv_depthwise_weight_{SHORT[dtype]}x{vector}",
        *(["multiplied"] * (not c.plain)),
        *([f"s{side}_by_{stride}"] * c.fast),
    ]
    kernel = Kernel("conv/depthwise_weight.cu", "_".join((*words, f"l{lanes}")), config, ("conv/geometry",))
    arguments = DepthwiseWeightArguments(
        *pointers, batch=g.n, channels=c.channels, multiplier=g.k, flip=int(c.flip), splits=splits, groups=group,
        x_strides=memory.strides(c.x.shape), y_strides=memory.strides(c.y.shape), axes=axes(g, g.out, g.space),
    )  # fmt: skip
    grid = (chunks * splits, -(-members // group), 1)
    return PartialSums(planned(kernel, grid, 32 * group * copies, arguments), splits * copies)


def walk_of_rows(c: Correlation) -> float:
    """Seconds in which a warp of the direct way goes over its rows: the start of each, and its passes over the
    columns."""
    if not (c.x.size and c.y.size):
        return 0.0
    g, lanes = c.g, 8 if c.memory.last else 1
    rows = -(-g.n * g.out[0] * g.out[1] // _direct(c, (0, 0, 0)).parts)
    return rows * (_ROW_START + -(-g.out[2] // (32 // lanes * _STRIP)) * _PASS)


def by_rows(c: Correlation, device: Device) -> bool:
    """Whether TMA brings the rows."""
    return device.capability == (9, 0) and wgrad_takes_rows(c)


def _sums(c: Correlation, pointers: tuple[Any, Any, Any], rows: bool) -> PartialSums:
    if rows:
        return wgrad_by_rows(c, pointers)
    if wgrad_takes_patches(c):
        return wgrad_by_patches(c, pointers)
    return walked(c, pointers) or tiled(c, pointers) or _direct(c, pointers)


def weight_plans(c: Correlation, dw: Spec, device: Device, pointers: tuple[Any, Any, Array, Any]) -> list[Plan]:
    """dw from y's gradient and x. `pointers` are of dy, x, dw and the scratch memory."""
    source, image, target, partial = pointers
    if not (c.x.size and c.y.size):
        return [added_up(target, target, dw, 0)]
    sums = _sums(c, (source, image, partial), by_rows(c, device))
    return [sums.plan, added_up(partial, target, dw, sums.parts)]


def weight_bytes(aligned: Correlation, unaligned: Correlation, dw: Spec) -> int:
    """The scratch memory of `weight_plans`, for pointers aligned or not, on any device."""
    if not (aligned.x.size and aligned.y.size):
        return 0
    nowhere = (Array(0), Array(0), Array(0))
    ways = {(aligned, False), (aligned, wgrad_takes_rows(aligned)), (unaligned, False)}
    parts = max(_sums(c, nowhere, bands).parts for c, bands in ways)
    return whole_lines(dw.size * parts * aligned.computed)


def added_up(partial: Any, target: Array, spec: Spec, parts: int) -> Plan:
    """The sums of `parts` neighbouring partial sums for each element of the target."""
    return add_parts(partial or None, target, spec.dtype, spec.size, parts, 8 if parts <= 64 else None)
