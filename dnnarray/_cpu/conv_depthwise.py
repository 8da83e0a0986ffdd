"""`depthwise`: one input channel a group. No matrix product: each tap scales a shifted view and is added up, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.blocks import long_rows
from dnnarray._cpu.conv_blocks import CHANNELS_FIRST, GROUPS_LAST, Shape, Way, box, first_input, load, packed, strided
from dnnarray._problems.conv_geometry import Geometry, Triple
from dnnarray._select import Cost

_BLOCK_ELEMENTS = 1 << 17  # of the input of a block: with its product and its sum, about a second-level cache


class _Plan(NamedTuple):
    images: int
    groups: int
    rows: int  # output extent of a block along the first axis that is longer than 1
    axis: int
    flat: bool  # a tap is an offset into the flat image, garbage between the rows included
    buffers: tuple[Shape, ...]  # padded input, product, sum


@lru_cache(maxsize=1024)
def _plan(g: Geometry) -> _Plan:
    axis = next((i for i in range(3) if g.out[i] > 1), 2)
    flat = g.stride == (1, 1, 1)
    image = max(_volume(_padded(g, g.out)), 1)
    groups = min(g.groups, max(_BLOCK_ELEMENTS // (image * g.k), 8 if g.pixel_major else 1))
    share = _BLOCK_ELEMENTS / (image * groups * g.k)  # of the image that a block can hold
    rows = min(g.out[axis], max(int(g.out[axis] * share), 4 * g.window[axis], 1))
    count = _with(g.out, axis, rows)
    size = _padded(g, count)
    images = min(g.n, max(_BLOCK_ELEMENTS // max(_volume(size) * groups * g.k, 1), 1)) if rows == g.out[axis] else 1
    result = (images, groups, g.k, _length(g, count, size, flat))
    return _Plan(images, groups, rows, axis, flat, ((images, groups, 1, *size), result, result))


def _volume(size: Sequence[int]) -> int:
    return size[0] * size[1] * size[2]


def _with(values: Triple, axis: int, value: int) -> Triple:
    a, b, c = (value if i == axis else v for i, v in enumerate(values))
    return a, b, c


def _padded(g: Geometry, count: Sequence[int]) -> Triple:
    return g.reach(count)


def _length(g: Geometry, count: Triple, size: Triple, flat: bool) -> int:
    """Elements of a tap's view for each image and channel; flat, the gaps behind rows and planes are computed too."""
    return count[0] * size[1] * size[2] if flat else _volume(count)


class _Part(NamedTuple):
    """A block: some images and groups and `extent` outputs from `start` on."""

    images: slice
    groups: slice
    start: Triple
    extent: Triple


def _parts(g: Geometry, plan: _Plan) -> Iterator[_Part]:
    rows = range(0, g.out[plan.axis], plan.rows)
    for c, i, p in product(range(0, g.groups, plan.groups), range(0, g.n, plan.images), rows):
        count = _with(g.out, plan.axis, min(plan.rows, g.out[plan.axis] - p))
        images, groups = slice(i, min(i + plan.images, g.n)), slice(c, min(c + plan.groups, g.groups))
        yield _Part(images, groups, _with((0, 0, 0), plan.axis, p), count)


def _index(part: _Part) -> tuple[slice, ...]:
    return (part.images, part.groups, slice(None), *box(part.start, part.extent))


def _order(g: Geometry) -> tuple[int, ...]:
    return GROUPS_LAST if g.pixel_major else CHANNELS_FIRST


def _taps(g: Geometry, plan: _Plan, padded: np.ndarray, memory: np.ndarray, count: Triple) -> Iterator[tuple[Triple, np.ndarray]]:
    """Each tap with its inputs: (N, G, 1, L) where the image is flat, else (N, G, 1, O, P, Q)."""
    sn, sg, sc, *space = padded.strides
    n, groups = padded.shape[:2]
    steps = [s * d for s, d in zip(space, g.dilation, strict=True)]
    if plan.flat:
        shape: Shape = (n, groups, 1, _used(padded.shape[3:], count))
        strides: Shape = (sn, sg, sc, space[2])
    else:
        shape, strides = (n, groups, 1, *count), (sn, sg, sc, *(s * d for s, d in zip(space, g.stride, strict=True)))
    a, b, c = map(range, g.window)
    for tap in product(a, b, c):
        yield tap, strided(memory, shape, strides, sum(t * s for t, s in zip(tap, steps, strict=True)))


def _used(size: Sequence[int], count: Triple) -> int:
    """Flat elements from the first output to the last."""
    return ((count[0] - 1) * size[1] + count[1] - 1) * size[2] + count[2]


def _result(g: Geometry, plan: _Plan, memory: np.ndarray, part: _Part, size: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A sum's memory twice: in the form of a tap's view, and as the (N, G, K, O, P, Q) part of y."""
    n, groups = part.images.stop - part.images.start, part.groups.stop - part.groups.start
    space = (part.extent[0], size[1], size[2]) if plan.flat else part.extent
    whole = packed(memory, (n, groups, g.k, *space), _order(g) if not g.pixel_major else (0, 3, 4, 5, 1, 2))
    if not plan.flat:
        return whole, whole
    used = strided(memory, (n, groups, g.k, _used(size, part.extent)), (*whole.strides[:3], whole.strides[5]))
    return used, whole[..., : part.extent[1], : part.extent[2]]


def _load(g: Geometry, x: np.ndarray, part: _Part, memory: np.ndarray) -> np.ndarray:
    return load(x[:, part.groups], part.images, first_input(g, part.start), g.reach(part.extent), memory, _order(g))


def _correlate(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    plan = _plan(g)
    padded_memory, product_memory, sum_memory = buffers
    axes = (slice(None), slice(None)) + (None,) * (1 if plan.flat else 3)
    for part in _parts(g, plan):
        padded = _load(g, x, part, padded_memory)
        total, result = _result(g, plan, sum_memory, part, padded.shape[3:])
        scaled, _ = _result(g, plan, product_memory, part, padded.shape[3:])
        weights = w[part.groups, :, 0]
        with long_rows(_row(g, total)):
            for i, (tap, source) in enumerate(_taps(g, plan, padded, padded_memory, part.extent)):
                weight = weights[(..., *tap)][axes]
                if i == 0:
                    np.multiply(source, weight, out=total)
                else:
                    np.add(total, np.multiply(source, weight, out=scaled), out=total)
        y[_index(part)] = result


def _row(g: Geometry, total: np.ndarray) -> int:
    """Neighbours in memory that a tap's arithmetic runs along."""
    return 1 if g.pixel_major else total.shape[-1]


def _weight_gradient(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    plan = _plan(g)
    padded_memory, product_memory, sum_memory = buffers
    w[...] = 0
    for part in _parts(g, plan):
        padded = _load(g, x, part, padded_memory)
        upstream, inner = _result(g, plan, sum_memory, part, padded.shape[3:])
        if plan.flat:
            upstream[...] = 0  # the gaps between the rows
        inner[...] = grad[_index(part)]
        scaled, _ = _result(g, plan, product_memory, part, padded.shape[3:])
        for tap, source in _taps(g, plan, padded, padded_memory, part.extent):
            if plan.flat and not g.pixel_major:
                sums = np.vecdot(source, upstream)  # many times faster than a product and its sum
            else:
                sums = np.multiply(source, upstream, out=scaled).sum(axis=tuple(range(3, upstream.ndim)))
            w[(part.groups, slice(None), 0, *tap)] += sums.sum(axis=0)


def _rejects(g: Geometry) -> str | None:
    return None if g.c == 1 else f"a group has {g.c} input channels, not one"


def _cost(g: Geometry, itemsize: int) -> Cost:
    return _cost_at(g, itemsize, 0.015 if _plan(g).flat else 0.012)


def _weight_cost(g: Geometry, itemsize: int) -> Cost:
    return _cost_at(g, itemsize, 0.04 if _plan(g).flat and not g.pixel_major else 0.012)


def _cost_at(g: Geometry, itemsize: int, efficiency: float) -> Cost:
    plan = _plan(g)
    x, w, y = g.sizes
    count = -(-g.n // plan.images) * -(-g.groups // plan.groups) * -(-g.out[plan.axis] // plan.rows)
    return Cost(2 * g.macs, (2 * x + 2 * y + w) * itemsize, efficiency, count * (12 + 3 * g.taps))


DEPTHWISE = Way(
    name="depthwise",
    summary="each tap scales a shifted view of its channel, added up in blocks that stay in the cache",
    rejects=_rejects,
    buffers=lambda g: _plan(g).buffers,
    correlate=_correlate,
    cost=_cost,
    weight_buffers=lambda g: _plan(g).buffers,
    weight_gradient=_weight_gradient,
    weight_cost=_weight_cost,
    rejects_weight=_rejects,
)
