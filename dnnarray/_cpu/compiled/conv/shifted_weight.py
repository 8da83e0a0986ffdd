"""The gradient of a convolution's weight, without im2col. Imports Numba."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.conv.copies import aligned_array, clear, copy, line_of
from dnnarray._cpu.compiled.conv.depthwise_weight import fits_nine, nine_weight, nine_weight_gradient
from dnnarray._cpu.compiled.conv.drivers import weight_by_definition, with_definition
from dnnarray._cpu.compiled.conv.load import load_image, place_pixels, task_box
from dnnarray._cpu.compiled.conv.plan import (
    BEFORE_AT,
    CHANNEL_TASKS_AT,
    DEPTH_AT,
    GROUPS_AT,
    IMAGE_ELEMENTS_AT,
    ITEM_AT,
    LANES_AT,
    PHASE_AT,
    RESULT_PIXELS_AT,
    SCRATCH_AT,
    SLACK_AT,
    STRIDE_AT,
    TASKS_AT,
    XG_AT,
    XN_AT,
    YD_AT,
    YG_AT,
    YH_AT,
    YN_AT,
    YW_AT,
    buffers,
    plan,
)
from dnnarray._cpu.compiled.conv.weight_dense import collect, dense_buffers, dense_weight, weight_gradient
from dnnarray._cpu.compiled.conv.weight_lanes import collect_lanes, lanes_buffers, lanes_weight, lanes_weight_gradient
from dnnarray._cpu.compiled.kernel import Integers1, Out1, driver, kernel
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.tile import DOTS, apart, dots, read, routine, write
from dnnarray._cpu.conv import maps as conv_maps
from dnnarray._cpu.conv.blocks import Shape
from dnnarray._cpu.conv.gemm import DIRECT
from dnnarray._cpu.conv.shifted import outputs_fill_lanes
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry

_MACS = 16  # for an element of a light operation
_CHAIN = 64  # vectors of an image that are added up in a row

# --- the gradient of a depthwise weight -------------------------------------------------------------------------------


@routine
def _load_gradient(like, geo, grad, ys, extents, target, count):
    """The block's gradient as the image's pixels lie, 0 in the gaps and up to a whole vector."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    row = geo[PHASE_AT + 2]
    plane = row * geo[PHASE_AT + 1] * geo[STRIDE_AT + 1] * geo[STRIDE_AT + 2]
    clear(like, target, (count + width - 1) // width * width, item)
    for d in range(extents[0]):
        for h in range(extents[1]):
            source = grad + d * ys[YD_AT] + h * ys[YH_AT]
            copy(like, source, ys[YW_AT], target + (d * plane + h * row) * item, item, extents[2], item, width)


@routine
def _add_dots(like, geo, image, gradient, count, taps, sums, target):
    """Add the inner products of the gradient with the image at each tap to sums in float64; taps beyond the last are
    those of the last."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    for first in range(0, geo[DEPTH_AT], DOTS):
        dots(like, gradient, image, taps + first * 8, (count + width - 1) // width, _CHAIN, sums)
        for i in range(min(DOTS, geo[DEPTH_AT] - first)):
            at = target + (first + i) * 8
            total = read(np.float64(0), at)
            for j in range(width):
                total += read(like, sums + (i * width + j) * item)
            write(np.float64(0), at, total)


@kernel
def depthwise_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    weight: int,
    taps: int,
    geo: Integers1,
    like: Out1,
    scratch: int,
    parts: int,
) -> None:
    """The gradient of the weight, [group][tap], where a group has one channel and one output: block after block, each
    group by one part."""
    item, xs, ys = geo[ITEM_AT], strides, strides
    zero = like.dtype.type(0)
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[SCRATCH_AT] * item
        gradient = image + geo[IMAGE_ELEMENTS_AT] * item
        sums = gradient + geo[RESULT_PIXELS_AT] * item
        for group in range(part, geo[GROUPS_AT], parts):
            target = weight + group * geo[DEPTH_AT] * 8
            clear(np.float64(0), target, geo[DEPTH_AT], 8)
            for task in range(0, geo[TASKS_AT], geo[CHANNEL_TASKS_AT]):
                _, first, images = task_box(task, geo, low, extents)
                source = (
                    grad
                    + group * ys[YG_AT]
                    + first * ys[YN_AT]
                    + low[0] * ys[YD_AT]
                    + low[1] * ys[YH_AT]
                    + low[2] * ys[YW_AT]
                )
                for axis in range(3):
                    low[axis] = low[axis] * geo[STRIDE_AT + axis] - geo[BEFORE_AT + axis]
                count = place_pixels(geo, images, extents, 0)
                load_image(zero, x + group * xs[XG_AT] + first * xs[XN_AT], xs, geo, images, low, extents, image)
                clear(zero, gradient - geo[SLACK_AT] * item, geo[SLACK_AT], item)
                _load_gradient(zero, geo, source, ys, extents, gradient, count)
                _add_dots(zero, geo, image, gradient, count, taps, sums, target)


@lru_cache(maxsize=1024)
def weight_buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch of the gradient of a weight."""
    if _is_depthwise(g):
        return with_definition(buffers(g, gaps=True)[1:2], [g], wgrad=True)
    return lanes_buffers(g) if outputs_fill_lanes(g) else dense_buffers(g)


def _is_depthwise(g: Geometry) -> bool:
    return g.c == g.k == 1


def _any_depthwise(g: Geometry, scratch: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The gradient as (channels, taps) in float64, for any strides, windows and axes."""
    (memory,), p = scratch, plan(g, x.itemsize, gaps=True)
    weight, strides = np.empty((g.groups, g.taps)), np.array(x.strides + grad.strides, np.int64)
    addresses = (
        address(x),
        address(grad),
        strides,
        address(weight),
        address(p.taps),
        p.numbers,
        memory,
        line_of(memory),
    )
    parts = min(p.parts, g.groups)
    depthwise_weight(parts, *addresses, parts, work=g.macs // _MACS)
    return weight


def _depthwise(g: Geometry, scratch: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    x, grad = aligned_array(x), aligned_array(grad)
    weight = nine_weight_gradient(g, x, grad) if fits_nine(g, x, grad) else _any_depthwise(g, scratch, x, grad)
    if np.isfinite(np.sum(weight)):
        w[...] = weight.reshape(w.shape)
    else:  # gaps between the rows times what is no number: the definition says where it belongs
        weight_by_definition(g, scratch[0], x, grad, w)


def _weight_gradient(
    g: Geometry, scratch: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    run = _depthwise if _is_depthwise(g) else lanes_weight_gradient if outputs_fill_lanes(g) else weight_gradient
    run(g, scratch, x, grad, w)


WAY = DIRECT._replace(weight_buffers=weight_buffers, weight_gradient=_weight_gradient)


@driver(depthwise_weight, nine_weight, dense_weight, collect, lanes_weight, collect_lanes)
def conv_backward_weight(
    problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, grad: np.ndarray, x: np.ndarray
) -> None:
    conv_maps.conv_backward_weight(WAY, problem, outputs, scratch, grad, x)
