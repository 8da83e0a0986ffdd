"""`gemm` and `direct`: matrix products of the weight with columns of input pixels, block by block of outputs.

`gemm` gathers all taps of the window into one column (im2col, Chellapilla et al., 2006) and does one product a block;
`direct` takes one tap after the other and accumulates the products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.conv.blocks import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    START,
    Block,
    Shape,
    Way,
    at,
    block_extents,
    block_matrices,
    blocks,
    box,
    first_input,
    gradient_matrices,
    load,
    matrices,
    never,
    packed,
    scatter,
    store,
    strided,
)
from dnnarray._cpu.products import LONG, multiply_pixels, multiply_stack
from dnnarray._cpu.sums import Cascade
from dnnarray._problems.conv_geometry import Geometry, Triple
from dnnarray._select import Cost

_COLUMN_ELEMENTS = 1 << 19  # elements of the columns of a block: about what the second-level cache holds
_CHAIN = 128  # terms that windows of one pixel add up in a row: PyTorch's rounds as little
_BACK_CHAIN = 64  # the same of the gradient of an input
_BACK_WINDOW_CHAIN = 96  # and with larger windows: their sums are long, and so are those of more parts
_MIN_PIXELS, _MAX_PIXELS = 128, 1 << 14


class _Plan(NamedTuple):
    extents: tuple[int, int, int, int]
    window: Triple  # taps gathered for one product
    chunks: tuple[Triple, ...]  # where in the window each product starts
    buffers: tuple[Shape, ...]  # padded input, columns, product, sum


@lru_cache(maxsize=1024)
def _plan(g: Geometry, one_tap: bool) -> _Plan:
    window = (1, 1, 1) if one_tap else g.window
    depth = g.c * (1 if one_tap else g.taps)
    target = _COLUMN_ELEMENTS // max(g.groups * max(depth, g.k), 1)
    extents = block_extents(g, min(max(target, _MIN_PIXELS), _MAX_PIXELS))
    n, d, h, w = extents
    pixels = n * d * h * w
    a, b, c = map(range, g.window)
    chunks = tuple(product(a, b, c)) if one_tap else ((0, 0, 0),)
    result = (g.groups, g.k, pixels)
    shapes = ((n, g.groups, g.c, *g.reach((d, h, w))), (g.groups, depth, pixels), result, result if one_tap else (0,))
    return _Plan(extents, window, chunks, shapes)


def _columns(
    g: Geometry, padded: np.ndarray, memory: np.ndarray, block: Block, start: Triple, window: Triple, target: np.ndarray
) -> np.ndarray:
    """The inputs of a block's outputs at the taps of `window` from `start` on, as matrices (G, C * taps, pixels)."""
    sn, sg, sc, *space = padded.strides
    along_taps = [s * d for s, d in zip(space, g.dilation, strict=True)]
    along_pixels = [s * d for s, d in zip(space, g.stride, strict=True)]
    offset = sum(t * s for t, s in zip(start, along_taps, strict=True))
    shape = (g.groups, g.c, *window, padded.shape[0], *block.extent)
    view = strided(memory, shape, (sg, sc, *along_taps, sn, *along_pixels), offset)
    order = (0, 5, 6, 7, 8, 2, 3, 4, 1) if g.pixel_major else None
    copy = packed(target, shape, order)
    copy[...] = view
    depth = copy.size // max(g.groups * block.pixels, 1)
    if g.pixel_major:
        return target[: copy.size].reshape(g.groups, block.pixels, depth).transpose(0, 2, 1)
    return target[: copy.size].reshape(g.groups, depth, block.pixels)


def _weight_matrices(g: Geometry, w: np.ndarray, plan: _Plan) -> list[np.ndarray]:
    """The weight of each product as matrices (G, K, C * taps) in the order of the columns."""
    result = []
    for start in plan.chunks:
        part = w[at(box(start, plan.window))]
        part = part.transpose(0, 1, 3, 4, 5, 2) if g.pixel_major else part
        result.append(part.reshape(g.groups, g.k, -1))
    return result


def _forward(
    g: Geometry,
    buffers: Sequence[np.ndarray],
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    one_tap: bool,
    back: bool = False,
) -> None:
    g, x = _without_stride(g, x)
    plan = _plan(g, one_tap)
    weights = _weight_matrices(g, w, plan)
    if _pointwise(g) and _without_copy(g, x, weights[0], y, _BACK_CHAIN if back else _CHAIN):
        return
    padded_memory, columns_memory, product_memory, sum_memory = buffers
    order = (0, 2, 1) if g.pixel_major else None
    for block in blocks(g, plan.extents):
        padded = load(x, block.images, first_input(g, block.start), g.reach(block.extent), padded_memory, _order(g))
        shape = (g.groups, g.k, block.pixels)
        total = block_matrices(y, block)
        in_place = total is not None
        if total is None:
            total = packed(sum_memory if one_tap else product_memory, shape, order)
        sums = Cascade(total, len(plan.chunks)) if len(plan.chunks) > 1 else None
        for start, weight in zip(plan.chunks, weights, strict=True):
            columns = _columns(g, padded, padded_memory, block, start, plan.window, columns_memory)
            part = total if sums is None else packed(product_memory, shape, order)
            multiply_stack(weight, columns, part, _BACK_WINDOW_CHAIN if back else LONG)
            if sums is not None:
                np.add(sums.low, part, out=sums.low)
                sums.step()
        if sums is not None:
            sums.finish()
        if not in_place:
            store(y, block, total)


def _order(g: Geometry) -> tuple[int, ...]:
    return CHANNELS_LAST if g.pixel_major else CHANNELS_FIRST


def _without_stride(g: Geometry, x: np.ndarray) -> tuple[Geometry, np.ndarray]:
    """Windows of one pixel read no others than their own: a strided view of the image will do."""
    if g.taps > 1 or g.stride == (1, 1, 1) or g.before != (0, 0, 0):
        return g, x
    picked = x[at([slice(0, (m - 1) * s + 1, s) for m, s in zip(g.out, g.stride, strict=True)])]
    return replace(g, stride=(1, 1, 1), space=g.out), picked


def _pointwise(g: Geometry) -> bool:
    """The window is one pixel and every input pixel has its output: the input is the columns."""
    return g.taps == 1 and g.stride == (1, 1, 1) and g.before == (0, 0, 0) and g.out == g.space


def _without_copy(g: Geometry, x: np.ndarray, weight: np.ndarray, y: np.ndarray, chain: int) -> bool:
    """One product over all pixels, or one for each image, straight from x into y, if their memory allows it."""
    for axes, lead in (((1, 2, 0, 3, 4, 5), (g.groups,)), (CHANNELS_FIRST, (g.n, g.groups))):
        pixels = g.n * g.pixels // (1 if len(lead) == 1 else g.n)
        source = matrices(x.transpose(axes), (*lead, g.c, pixels))
        target = matrices(y.transpose(axes), (*lead, g.k, pixels))
        if source is not None and target is not None:
            multiply_stack(weight, source, target, chain)
            return True
    return False


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray, one_tap: bool
) -> None:
    plan = _plan(g, one_tap)
    padded_memory, columns_memory, grad_memory, product_memory, sum_memory = buffers
    depth = g.c * plan.window[0] * plan.window[1] * plan.window[2]
    shape = (g.groups, g.k, depth)
    totals = sum_memory.reshape(len(plan.chunks), *shape)
    for number, block in enumerate(blocks(g, plan.extents)):
        padded = load(x, block.images, first_input(g, block.start), g.reach(block.extent), padded_memory, _order(g))
        part = gradient_matrices(grad, block, grad_memory, g.pixel_major)
        for total, start in zip(totals, plan.chunks, strict=True):
            columns = _columns(g, padded, padded_memory, block, start, plan.window, columns_memory).transpose(0, 2, 1)
            product = total if number == 0 else packed(product_memory, shape)
            multiply_pixels(part, columns, product, _CHAIN if g.taps == 1 else LONG)
            if number:
                total += product
    for total, start in zip(totals, plan.chunks, strict=True):
        target = w[at(box(start, plan.window))]
        if g.pixel_major:
            target[...] = total.reshape(g.groups, g.k, *plan.window, g.c).transpose(0, 1, 5, 2, 3, 4)
        else:
            target[...] = total.reshape(target.shape)


def _weight_buffers(g: Geometry, one_tap: bool) -> Sequence[Shape]:
    padded, columns, result, _ = _plan(g, one_tap).buffers
    weight = g.sizes[1]
    return padded, columns, result, (weight // g.taps if one_tap else weight,), (weight,)


def _cost(g: Geometry, itemsize: int, one_tap: bool, wgrad: bool = False) -> Cost:
    plan = _plan(g, one_tap)
    x, w, y = g.sizes
    count = _block_count(g, plan)
    gathered = g.n * g.groups * g.c * g.taps * g.pixels * scatter(g)
    # A product is as fast as the short side of its matrices lets it be; what is gathered or summed up passes through
    # the cache.
    efficiency = _efficiency(min(g.k, g.c if one_tap else g.c * g.taps))
    if _pointwise(g):
        # Many short sums for the weight; channels of one group between those of others are gathered.
        moved = (4 if wgrad else 0) * (x + y) + ((x + y) * scatter(g) if g.groups > 1 else 0)
        return Cost(2 * g.macs / efficiency + 10 * moved * itemsize / 4, (x + w + y) * itemsize, 1.0, START + g.n)
    # Taking single taps out of the weight misses the cache at every element.
    moved = (2 * gathered + 5 * y * (g.taps - 1) + 60 * w if one_tap else _gathering(g) * gathered + w) + 2 * x + 2 * y
    return Cost(
        2 * g.macs / efficiency + 10 * moved * itemsize / 4,
        (x + w + y) * itemsize,
        1.0,
        START + count * (10 + 4 * len(plan.chunks)),
    )


def _gathering(g: Geometry) -> float:
    """What it takes to gather an element: rows of pixels that are short are dear; with the channels innermost there are
    none."""
    return 1.5 if g.pixel_major else 0.7 * (1 + 64 / g.out[2])


def _efficiency(depth: int) -> float:
    """The share of the peak rate of a matrix product whose shortest side is `depth`."""
    return 0.85 * depth / (depth + 16)


def _block_count(g: Geometry, plan: _Plan) -> int:
    count = 1
    for extent, size in zip((g.n, *g.out), plan.extents, strict=True):
        count *= -(-extent // max(size, 1))
    return count


def _way(name: str, summary: str, one_tap: bool) -> Way:
    return Way(
        name=name,
        summary=summary,
        rejects=never,
        buffers=lambda g: _plan(g, one_tap).buffers,
        forward=partial(_forward, one_tap=one_tap),
        forward_flipped=partial(_forward, one_tap=one_tap, back=True),
        cost=lambda g, itemsize: _cost(g, itemsize, one_tap),
        weight_buffers=lambda g: _weight_buffers(g, one_tap),
        weight_gradient=partial(_weight_gradient, one_tap=one_tap),
        weight_cost=lambda g, itemsize: _cost(g, itemsize, one_tap, wgrad=True),
        rejects_weight=never,
    )


GEMM = _way("gemm", "im2col by blocks of output pixels, one matrix product each; 1x1 without a copy", one_tap=False)
DIRECT = _way("direct", "one matrix product for each tap of the window, accumulated", one_tap=True)
