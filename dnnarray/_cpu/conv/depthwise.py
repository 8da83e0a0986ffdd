"""`depthwise`: one input channel a group. No matrix product: each tap scales a shifted view and is added up, in one
call for all taps.

`einsum` multiplies and adds in one pass over what a tap reads, if its innermost loop runs over pixels (over channels
where those are neighbours in memory). NumPy orders the loops by strides, which the layout of `conv_flat` makes larger
for every tap than for the pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.conv import flat as conv_flat
from dnnarray._cpu.conv.blocks import Shape, Way, box, long_sums, packed, strided
from dnnarray._cpu.sums import dot, total
from dnnarray._problems.conv_geometry import Geometry, Triple
from dnnarray._select import Cost

_BLOCK_ELEMENTS = 1 << 20  # of the image of a block, or of its result: long calls for the sake of threads
_PLANES, _PIXELS = (0, 1, 2, 3, 4, 5), (0, 2, 3, 4, 5, 1)  # memory orders of a result (N, G, K, O, P, Q)


class _Plan(NamedTuple):
    images: int
    groups: int
    rows: int  # output extent of a block along the first axis that is longer than 1
    axis: int
    buffers: tuple[Shape, ...]  # image, sum, product


@lru_cache(maxsize=1024)
def _plan(g: Geometry, products: bool) -> _Plan:
    axis = next((i for i in range(3) if g.out[i] > 1), 2)
    one = _elements(g, g.out)
    groups = min(g.groups, max(_BLOCK_ELEMENTS // one, 8 if g.pixel_major else 1))
    rows = min(g.out[axis], max(int(g.out[axis] * _BLOCK_ELEMENTS / (one * groups)), 4 * g.window[axis], 1))
    extent = _with(g.out, axis, rows)
    images = min(g.n, max(_BLOCK_ELEMENTS // (_elements(g, extent) * groups), 1)) if rows == g.out[axis] else 1
    image = list(conv_flat.shape(g, images, extent))
    image[1] = groups
    result = (images, groups, g.k, *extent)
    return _Plan(images, groups, rows, axis, (tuple(image), result, result if products and not _steady(g) else (0,)))


def _elements(g: Geometry, extent: Sequence[int]) -> int:
    """Of the image of one group, or of its result where that has more."""
    return max(math.prod(conv_flat.shape(g, 1, extent)[2:]), g.k * math.prod(extent), 1)


def _with(values: Triple, axis: int, value: int) -> Triple:
    a, b, c = (value if i == axis else v for i, v in enumerate(values))
    return a, b, c


def _steady(g: Geometry) -> bool:
    """Whether the window's rows stand at even distances in the image."""
    return g.stride[:2] == (1, 1)


class _Part(NamedTuple):
    """A block: some images and groups and `extent` outputs from `start` on."""

    images: slice
    groups: slice
    start: Triple
    extent: Triple

    @property
    def region(self) -> tuple[slice, ...]:
        """Its index in an array (N, G, K, O, P, Q)."""
        return (self.images, self.groups, slice(None), *box(self.start, self.extent))


def _parts(g: Geometry, plan: _Plan) -> Iterator[_Part]:
    rows = range(0, g.out[plan.axis], plan.rows)
    for c, i, p in product(range(0, g.groups, plan.groups), range(0, g.n, plan.images), rows):
        count = _with(g.out, plan.axis, min(plan.rows, g.out[plan.axis] - p))
        images, groups = slice(i, min(i + plan.images, g.n)), slice(c, min(c + plan.groups, g.groups))
        yield _Part(images, groups, _with((0, 0, 0), plan.axis, p), count)


def _image(g: Geometry, x: np.ndarray, part: _Part, memory: np.ndarray, order: Shape) -> np.ndarray:
    return conv_flat.lay_out(g, x[part.images, part.groups], part.start, part.extent, memory, order)


def _taps(
    g: Geometry, image: np.ndarray, memory: np.ndarray, extent: Triple
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Taps of the two outer axes that stand at even distances, with their views (N, G, T, R, S, O, P, Q)."""
    n, groups, s, _, _, _, _, _, q = image.shape
    sn, sg, ss, _, phase_d, sd, phase_h, sh, sq = image.strides
    t, r, _ = g.window
    a, b, _ = g.dilation
    if _steady(g):
        yield (
            slice(t),
            slice(r),
            strided(memory, (n, groups, t, r, s, *extent), (sn, sg, a * sd, b * sh, ss, sd, sh, sq)),
        )
        return
    for i, j in product(range(t), range(r)):
        (up, u), (down, v) = divmod(i * a, g.stride[0]), divmod(j * b, g.stride[1])
        offset = up * sd + u * phase_d + down * sh + v * phase_h
        view = strided(memory, (n, groups, 1, 1, s, *extent[:2], q), (sn, sg, sd, sh, ss, sd, sh, sq), offset)
        yield slice(i, i + 1), slice(j, j + 1), view


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    image_memory, sum_memory, product_memory = buffers
    order, add_up = (conv_flat.GROUPS_LAST, _by_pixels) if g.pixel_major else (conv_flat.PLANES, _by_planes)
    for part in _parts(g, _plan(g, True)):
        image = _image(g, x, part, image_memory, order)
        result = y[part.region]
        dense = _is_dense(result, g.pixel_major)
        total = result if dense else packed(sum_memory, result.shape, _PIXELS if g.pixel_major else _PLANES)
        weights = w[part.groups, :, 0]
        for i, (t, r, view) in enumerate(_taps(g, image, image_memory, part.extent)):
            if i == 0:
                add_up(view, weights[:, :, t, r], total)
            else:
                more = packed(product_memory, total.shape, _PIXELS if g.pixel_major else _PLANES)
                add_up(view, weights[:, :, t, r], more)
                np.add(total, more, out=total)
        if not dense:
            result[...] = total


def _is_dense(y: np.ndarray, pixel_major: bool) -> bool:
    """Whether a part of the result can be written where it lies: long runs in memory."""
    one, other = (1, 5) if pixel_major else (5, 4)
    return (
        y.flags.aligned
        and y.strides[other] == y.strides[one] * y.shape[one]
        and y.strides[one] == y.itemsize * (y.shape[2] if pixel_major else 1)
    )


def _by_planes(view: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """out (N, G, K, O, P, Q) = the sum over taps of view (N, G, T, R, S, O, P, Q) times w (G, K, T, R, S): one weight
    for a whole plane."""
    np.einsum("ngtrsol,gktrs->ngkol", _joined(view, 6, 7), w, out=_joined(out, 4, 5))


def _by_pixels(view: np.ndarray, w: np.ndarray, out: np.ndarray) -> None:
    """The same where the groups are neighbours in memory: a row of weights, repeated, for a row of pixels."""
    row = np.tile(w.transpose(1, 2, 3, 4, 0), view.shape[7])
    np.einsum(
        "ntrsopl,ktrsl->nkopl",
        _joined(view.transpose(0, 2, 3, 4, 5, 6, 7, 1), 6, 7),
        row,
        out=_joined(out.transpose(0, 2, 3, 4, 5, 1), 4, 5),
    )


def _joined(a: np.ndarray, first: int, second: int) -> np.ndarray:
    """A view with two neighbouring axes as one."""
    return a.reshape(*a.shape[:first], a.shape[first] * a.shape[second], *a.shape[second + 1 :], copy=False)


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    image_memory, grad_memory, _ = buffers
    w[...] = 0
    for part in _parts(g, _plan(g, False)):
        image = _image(g, x, part, image_memory, conv_flat.PLANES)
        upstream = grad[part.region]
        if not _is_dense(upstream, False):
            copy = packed(grad_memory, upstream.shape)
            copy[...] = upstream
            upstream = copy
        upstream = _joined(upstream, 4, 5)[:, :, :, None, None, None]
        for t, r, view in _taps(g, image, image_memory, part.extent):
            # Many times faster than a product and its sum.
            sums = dot(_joined(view, 6, 7)[:, :, None], upstream)
            w[part.groups, :, 0, t, r] += total(sums, (0, 6))[0, ..., 0]


def _rejects(g: Geometry) -> str | None:
    return long_sums(g) if g.c == 1 else f"a group has {g.c} input channels, not one"


def _cost(g: Geometry, itemsize: int) -> Cost:
    return _cost_at(g, itemsize, _plan(g, True), 0.06)


def _weight_cost(g: Geometry, itemsize: int) -> Cost:
    return _cost_at(g, itemsize, _plan(g, False), 0.06)


def _cost_at(g: Geometry, itemsize: int, plan: _Plan, efficiency: float) -> Cost:
    x, w, y = g.sizes
    count = -(-g.n // plan.images) * -(-g.groups // plan.groups) * -(-g.out[plan.axis] // plan.rows)
    calls = 12 + 4 * g.window[2] + (0 if _steady(g) else 4 * g.window[0] * g.window[1])
    return Cost(2 * g.macs, (2 * x + 2 * y + w) * itemsize, efficiency, count * calls)


DEPTHWISE = Way(
    name="depthwise",
    summary="each tap scales a shifted view of its channel and is added up, one call for all taps of a block",
    rejects=_rejects,
    buffers=lambda g: _plan(g, True).buffers,
    forward=_forward,
    cost=_cost,
    weight_buffers=lambda g: _plan(g, False).buffers,
    weight_gradient=_weight_gradient,
    weight_cost=_weight_cost,
    rejects_weight=_rejects,
)


# --- channels in the lanes, compiled ----------------------------------------------------------------------------------

SUMMARY_DEPTHWISE_LANES = (
    "single channels that lie side by side: a tap's weights times the pixels it meets, straight from the image"
)
LEAST_LANES = 4  # channels, fewer of which fill no vector


def rejects_lanes(g: Geometry) -> str | None:
    """Why a geometry is not for vectors of channels, or None."""
    if not g.c == g.k == 1:
        return f"a group has {g.c} input and {g.k} output channels, not one of each"
    if not g.pixel_major:
        return "its channels do not lie side by side in memory"
    if long_sums(g):
        return long_sums(g)
    return None if g.groups >= LEAST_LANES else f"there are {g.groups} channels; it takes {LEAST_LANES} or more"


def lanes_cost(g: Geometry, itemsize: int) -> Cost:
    """Products from the image as it lies."""
    x, w, y = g.sizes
    lanes = -(-g.groups // 16) * 16 / g.groups
    return Cost(2 * g.macs * lanes / 0.5 + 40 * y * itemsize / 4, (x + w + y) * itemsize, 1.0, 12)
