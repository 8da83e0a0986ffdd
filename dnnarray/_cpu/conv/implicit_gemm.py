"""`implicit_gemm`: no columns are gathered along the rows of the window; a tap is a shifted view of a flat, zero-padded
image.

The image is laid out as in `conv_flat`. The taps of the outer window axes are (S * C, P * Q) matrices in it without a
copy, one product each, accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.conv import flat as conv_flat
from dnnarray._cpu.conv.blocks import (
    START,
    Block,
    Shape,
    Way,
    block_extents,
    blocks,
    long_sums,
    matrices,
    packed,
    scatter,
)
from dnnarray._cpu.products import LONG, multiply_pixels, multiply_stack
from dnnarray._cpu.sums import total as sum_of
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

# elements of a block's flat image: products pack what they read, long calls are worth more than the cache
_FLAT_ELEMENTS = 1 << 20


class _Plan(NamedTuple):
    extents: tuple[int, int, int, int]
    buffers: tuple[Shape, ...]  # flat image, product, sum


@lru_cache(maxsize=1024)
def _plan(g: Geometry) -> _Plan:
    channels = g.groups * max(g.c * g.window[2], g.k)
    n, d, h, w = block_extents(g, max(_FLAT_ELEMENTS // max(channels, 1), 64))
    result = (n, g.groups, d, g.k, h * w)
    return _Plan((n, d, h, w), (conv_flat.shape(g, n, (d, h, w)), result, result))


def _tap(g: Geometry, flat: np.ndarray, tap: tuple[int, int], block: Block) -> np.ndarray:
    """The inputs of all taps of one window row as matrices (N, G, D, S * C, P * Q): a view."""
    (i, a), (j, b) = (divmod(t * d, s) for t, d, s in zip(tap, g.dilation, g.stride, strict=False))
    view = flat[:, :, :, a, i : i + block.extent[0], b, j : j + block.extent[1], :]
    n, groups, depth, d, h, w = view.shape
    return view.transpose(0, 1, 3, 2, 4, 5).reshape(n, groups, d, depth, h * w, copy=False)


def _weights(g: Geometry, w: np.ndarray) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Each window row with its weight as matrices (G, 1, K, S * C)."""
    rows = w.transpose(3, 4, 0, 1, 5, 2)
    rows = rows.reshape(*rows.shape[:2], g.groups, 1, g.k, -1)
    return [((t, r), rows[t, r]) for t, r in product(range(g.window[0]), range(g.window[1]))]


def _target(y: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray | None]:
    """The block of y as (N, G, D, K, P, Q) and, if its memory allows it, as matrices (N, G, D, K, P * Q)."""
    part = y[block.region].transpose(0, 1, 3, 2, 4, 5)
    return part, matrices(part, (*part.shape[:4], part.shape[4] * part.shape[5]))


def _image(g: Geometry, x: np.ndarray, block: Block, memory: np.ndarray) -> np.ndarray:
    """The block as (N, G, S * C, stride, D, stride, H, Q)."""
    order = conv_flat.PIXELS if g.pixel_major else conv_flat.PLANES
    image = conv_flat.lay_out(g, x[block.images], block.start, block.extent, memory, order)
    n, groups, s, c, *rest = image.shape
    return image.reshape(n, groups, s * c, *rest, copy=False)


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    flat_memory, product_memory, sum_memory = buffers
    weights = _weights(g, w)
    order = (0, 1, 2, 4, 3) if g.pixel_major else None
    for block in blocks(g, _plan(g).extents):
        flat = _image(g, x, block, flat_memory)
        part, total = _target(y, block)
        in_place = total is not None
        shape = (*part.shape[:4], part.shape[4] * part.shape[5])
        if total is None:
            total = packed(sum_memory, shape, order)
        for i, (tap, weight) in enumerate(weights):
            if i == 0:
                multiply_stack(weight, _tap(g, flat, tap, block), total, LONG)
            else:
                more = packed(product_memory, shape, order)
                multiply_stack(weight, _tap(g, flat, tap, block), more, LONG)
                np.add(total, more, out=total)
        if not in_place:
            part[...] = total.reshape(part.shape)


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    flat_memory, grad_memory, product_memory, sum_memory = buffers
    s = g.window[2]
    totals = packed(sum_memory, (g.window[0], g.window[1], g.groups, g.k, s * g.c))
    totals[...] = 0
    for block in blocks(g, _plan(g).extents):
        flat = _image(g, x, block, flat_memory)
        part, upstream = _target(grad, block)
        if upstream is None:
            copy = packed(grad_memory, part.shape, (0, 1, 2, 4, 5, 3) if g.pixel_major else None)
            copy[...] = part
            upstream = copy.reshape(*part.shape[:4], -1, copy=False)
        shape = (*upstream.shape[:4], s * g.c)
        for t, r in product(range(g.window[0]), range(g.window[1])):
            columns = _tap(g, flat, (t, r), block).transpose(0, 1, 2, 4, 3)
            found = packed(product_memory, shape)
            multiply_pixels(upstream, columns, found, LONG)
            totals[t, r] += sum_of(found, (0, 2))[0, :, 0]
    w[...] = totals.reshape(*g.window[:2], g.groups, g.k, s, g.c).transpose(2, 3, 5, 0, 1, 4)


def _weight_buffers(g: Geometry) -> Sequence[Shape]:
    flat, result, _ = _plan(g).buffers
    n, d, _, _ = _plan(g).extents
    return flat, result, (n * d * g.groups * g.k * g.c * g.window[2],), (g.sizes[1],)


def _rejects(g: Geometry) -> str | None:
    if g.taps == 1:
        return "the window is one pixel, which gemm does without laying out the image"
    return long_sums(g)


def _cost(g: Geometry, itemsize: int) -> Cost:
    n, d, h, w = _plan(g).extents
    x, weight, y = g.sizes
    rows = g.window[0] * g.window[1]
    count = 1
    for extent, size in zip((g.n, *g.out), (n, d, h, w), strict=True):
        count *= -(-extent // size)
    depth, pixels = g.c * g.window[2], h * w
    efficiency = 0.85 * min(g.k, depth) / (min(g.k, depth) + 16) * pixels / (pixels + 24)
    laid_out = x * g.window[2] // g.stride[2] * scatter(g)
    moved = 1.5 * laid_out + 1.5 * y * (rows - 1) + 80 * weight  # its rows are gathered across cache lines
    calls = START + count * (10 + 4 * rows) + count * n * d * g.groups * rows // 4
    return Cost(2 * g.macs / efficiency + 10 * moved * itemsize / 4, (x + weight + y) * itemsize, 1.0, calls)


IMPLICIT_GEMM = Way(
    name="implicit_gemm",
    summary="a flat zero-padded image, each window row a shifted view of it: accumulated matrix products, no im2col",
    rejects=_rejects,
    buffers=lambda g: _plan(g).buffers,
    forward=_forward,
    cost=_cost,
    weight_buffers=_weight_buffers,
    weight_gradient=_weight_gradient,
    weight_cost=_cost,
    rejects_weight=_rejects,
)
