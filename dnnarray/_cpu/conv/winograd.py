"""`winograd`: F(2x2, 3x3) for 3x3 windows without stride and dilation (Lavin and Gray, 2016), and what the tables say
of the compiled `winograd_4x4`.

An output tile of 2x2 takes 16 products instead of 36. Over blocks of tiles each transform is one matrix product with a
Kronecker matrix, and the products are 16 matrix products over the channels. The transforms hold only 0, 1, 1/2 and
their sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.conv.blocks import CHANNELS_FIRST, CHANNELS_LAST, Shape, Way, load, packed, strided
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

_BLOCK_ELEMENTS = 1 << 18  # of the transformed input of a block of tiles

_INPUT_1D = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_WEIGHT_1D = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_OUTPUT_1D = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])


@lru_cache(maxsize=4)
def _transforms(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The Kronecker matrices of input, weight and output."""
    first, second, third = (np.kron(m, m).astype(dtype) for m in (_INPUT_1D, _WEIGHT_1D, _OUTPUT_1D))
    return first, second, third


class _Plan(NamedTuple):
    images: int
    rows: int  # tiles of a block along the first spatial axis
    tiles: tuple[int, int]
    buffers: tuple[Shape, ...]  # padded input, tiles, transformed tiles, products, results, weight, transformed weight


@lru_cache(maxsize=1024)
def _plan(g: Geometry) -> _Plan:
    tall, wide = -(-g.out[1] // 2), -(-g.out[2] // 2)
    target = max(_BLOCK_ELEMENTS // (16 * g.groups * max(g.c, g.k)), 32)
    rows = min(tall, max(target // wide, 1))
    images = min(g.n, max(target // (rows * wide), 1))
    count = images * rows * wide
    source, result = g.groups * g.c * count, g.groups * g.k * count
    padded = (images, g.groups, g.c, 1, 2 * rows + 2, 2 * wide + 2)
    weight = g.groups * g.k * g.c
    return _Plan(
        images,
        rows,
        (tall, wide),
        (padded, (16, source), (16, source), (16, result), (4, result), (9, weight), (16, weight)),
    )


def _tiles(g: Geometry, padded: np.ndarray, memory: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The overlapping 4x4 tiles of a block, transformed: (16, G, C, tiles), its memory order that of the caller."""
    n, groups, c, _, h, w = padded.shape
    sn, sg, sc, _, sh, sw = padded.strides
    rows, wide = h // 2 - 1, w // 2 - 1
    shape = (4, 4, groups, c, n, rows, wide)
    view = strided(memory, shape, (sh, sw, sg, sc, sn, 2 * sh, 2 * sw))
    copy = packed(target, shape, (0, 1, 2, 4, 5, 6, 3) if g.pixel_major else None)
    copy[...] = view
    return target[: copy.size].reshape(16, -1)


def _matrices(g: Geometry, memory: np.ndarray, channels: int, tiles: int) -> np.ndarray:
    """Flat memory as (16, G, channels, tiles)."""
    return packed(memory, (16, g.groups, channels, tiles), (0, 1, 3, 2) if g.pixel_major else None)


def _transformed_weight(g: Geometry, w: np.ndarray, memory: np.ndarray, target: np.ndarray) -> np.ndarray:
    flat = packed(memory, (3, 3, g.groups, g.k, g.c))
    flat[...] = w[:, :, :, 0].transpose(3, 4, 0, 1, 2)
    out = packed(target, (16, g.groups * g.k * g.c))
    np.matmul(_transforms(w.dtype)[1], flat.reshape(9, -1), out=out)
    return out.reshape(16, g.groups, g.k, g.c)


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    plan = _plan(g)
    padded_memory, tile_memory, source_memory, product_memory, result_memory, weight_memory, transformed_memory = (
        buffers
    )
    weight = _transformed_weight(g, w, weight_memory, transformed_memory)
    into, _, back = _transforms(y.dtype)
    order = CHANNELS_LAST if g.pixel_major else CHANNELS_FIRST
    for i in range(0, g.n, plan.images):
        for row in range(0, plan.tiles[0], plan.rows):
            n, rows = min(plan.images, g.n - i), min(plan.rows, plan.tiles[0] - row)
            low, size = (-g.before[0], 2 * row - g.before[1], -g.before[2]), (1, 2 * rows + 2, 2 * plan.tiles[1] + 2)
            padded = load(x, slice(i, i + n), low, size, padded_memory, order)
            tiles = _tiles(g, padded, padded_memory, tile_memory)
            np.matmul(into, tiles, out=packed(source_memory, tiles.shape))
            count = n * rows * plan.tiles[1]
            product = _matrices(g, product_memory, g.k, count)
            np.matmul(weight, _matrices(g, source_memory, g.c, count), out=product)
            result = packed(result_memory, (4, g.groups * g.k * count))
            np.matmul(back, product_memory[: product.size].reshape(16, -1), out=result)
            _store(g, y[i : i + n, ..., 0, 2 * row : 2 * (row + rows), :], result_memory, rows, plan.tiles[1])


def _store(g: Geometry, y: np.ndarray, memory: np.ndarray, rows: int, wide: int) -> None:
    """Lay the 2x2 tiles beside each other in y (N, G, K, P, Q), cutting off what reaches over its edge."""
    n = y.shape[0]
    result = packed(memory, (2, 2, g.groups, g.k, n, rows, wide), (0, 1, 2, 4, 5, 6, 3) if g.pixel_major else None)
    for a in range(2):
        for b in range(2):
            target = y[..., a::2, b::2]
            target[...] = result[a, b].transpose(2, 0, 1, 3, 4)[..., : target.shape[-2], : target.shape[-1]]


def rejects(g: Geometry) -> str | None:
    if g.window != (1, 3, 3):
        return f"the window is {'x'.join(map(str, g.window))}, not 3x3 over two axes"
    if g.stride[1:] != (1, 1):
        return "it does stride 1 only"
    if g.dilation[1:] != (1, 1):
        return "it does dilation 1 only"
    return None if g.out[0] == g.space[0] == 1 else "it does two spatial axes only"


def _cost(g: Geometry, itemsize: int) -> Cost:
    plan = _plan(g)
    x, w, y = g.sizes
    tiles = g.n * plan.tiles[0] * plan.tiles[1] * g.groups
    products = 2 * 16 * tiles * g.c * g.k
    transforms = 2 * 16 * (16 * tiles * g.c + 4 * tiles * g.k) + 2 * 16 * 9 * g.groups * g.k * g.c
    moved = 3 * (16 * 3 * g.c + (16 + 8) * g.k) * tiles + 2 * x + 2 * y + 1000 * g.groups * g.k * g.c
    shortest = min(g.c, g.k)
    count = -(-g.n // plan.images) * -(-plan.tiles[0] // plan.rows)
    flops = products / (0.85 * shortest / (shortest + 16)) + transforms / 0.4 + 10 * moved * itemsize / 4
    return Cost(flops, (x + w + y) * itemsize, 1.0, count * 50 + 20)


WINOGRAD = Way(
    name="winograd",
    summary="F(2x2, 3x3): 16 products for four outputs instead of 36, transforms as matrix products",
    rejects=rejects,
    buffers=lambda g: _plan(g).buffers,
    forward=_forward,
    cost=_cost,
    mixes=True,
)


# --- F(4x4, 3x3), compiled --------------------------------------------------------------------------------------------

SUMMARY_4X4 = "F(4x4, 3x3): 36 products for sixteen outputs instead of 144, in blocks of tiles that stay in the caches"
SUMMARY_4X4_WEIGHT = (
    "F(4x4, 3x3) read backwards: 36 products for a tile of sixteen outputs instead of 144, added up over the tiles"
)
_TILES = 48  # of a block, for the estimate
_TURNED = 180  # operations that an element is worth whose channels lie side by side, where tiles lie in the lanes
# of a sum, below which its largest error may exceed four times that of adding up one product after the other: that of
# the transforms stays
_CHANNELS = 12
_LANES, _ROWS = 16, 6  # of channels and outputs in a tile of its gradient, for the estimate
_PIXELS = 128  # of a sum of the weight's gradient, the same


def precision_4x4(g: Geometry) -> str:
    """The class of its numerics in float32."""
    return "highest" if g.c >= _CHANNELS else "high"


def cost_4x4(g: Geometry, itemsize: int) -> Cost:
    """Products, transforms of whole vectors of tiles in a row, and the weight's own transform, read again for each
    block of tiles."""
    x, w, y = g.sizes
    wide = -(-g.out[2] // 4)
    tiles = g.n * -(-g.out[1] // 4) * wide
    vectors = tiles * g.groups / wide * (-(-wide // 8) * 8 + 2)
    products = 2 * 36 * tiles * g.groups * g.c * g.k / 0.8
    transforms = vectors * 2000 * (g.c + g.k) * itemsize / 4
    weight = 36 * w / 9 * (24 + 3 * -(-tiles // _TILES)) * itemsize / 4
    turned = _TURNED * (x + y) * itemsize / 4 if g.pixel_major else 0
    return Cost(products + transforms + weight + turned, (x + w + y) * itemsize, 1.0, 14)


def precision_4x4_weight(g: Geometry) -> str:
    """The class of the weight's gradient in float32."""
    return "highest" if g.n * g.pixels >= _PIXELS else "high"


def cost_4x4_weight(g: Geometry, itemsize: int) -> Cost:
    """Products of whole tiles, transforms of both images by whole vectors of channels, and the sums transformed back
    and written window by window."""
    x, w, y = g.sizes
    tiles = g.n * g.groups * -(-g.out[1] // 4) * -(-g.out[2] // 4)
    c, k = (-(-m // _LANES) * _LANES for m in (g.c, g.k))
    products = 2 * 36 * tiles * c * -(-g.k // _ROWS) * _ROWS / 0.85
    flops = products + (900 * tiles * (c + k) + 600 * w) * itemsize / 4
    return Cost(flops, (x + w + y) * itemsize, 1.0, 20)
