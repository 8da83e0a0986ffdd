"""`depthwise` of half types on the tensor cores: strips of pixels times rows of the window, walking down the images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv_depthwise_common import SIDES, Correlation, is_flat, rows_of_a_block
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._select import Device
from dnnarray._spec import HALF

_STRIPS, _REACH, _SLOTS = 16, 8, 8  # rows of the matrix A, the pixels of each, and its outputs
_VECTOR, _PASS = 8, 64  # channels of 16 bytes, which are two warps' own; pixels that a block brings at once
_LEAVING = 4  # steps whose outputs are on their way
_SHARES = (3, 6)  # passes for a step, the most that a kernel is compiled for
_SHAPES = {3: (4, 2, 4), 5: (4, 2, 4), 7: (4, 2, 4)}
"""By the side of the window: 16-byte pieces of a pixel in a block, at most; blocks of a multiprocessor; steps in shared memory."""
_KEPT = {3: 4, 5: 6, 7: 5}  # rows of B in registers
_MOST_APART = 1 << 31  # elements


@dataclass(frozen=True)
class DepthwiseMmaConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_mma.cu``."""

    element: str
    relu: bool
    side: int
    share: int
    kept: int
    stages: int
    most_threads: int
    blocks: int


@dataclass(frozen=True)
class _Tile:
    """Strips beside each other, images, the pixels of a row that they read, and a strip's outputs beside and below each other."""

    across: int
    groups: int
    pitch: int
    columns: int

    @property
    def rows(self) -> int:
        return _SLOTS // self.columns

    @property
    def pixels(self) -> int:
        """Of a step."""
        return self.rows * self.groups * self.pitch


@lru_cache(maxsize=1024)
def _tile(n: int, width: int, side: int) -> _Tile | None:
    """The tile with the least work; among equals the one that brings the least."""
    columns = 2 if side > 5 else 4  # outputs of a strip: eight pixels are columns + side - 1 at least
    options = []
    for across in range(1, min(_STRIPS, -(-width // columns)) + 1):
        groups = min(_STRIPS // across, n)
        tile = _Tile(across, groups, across * columns + _REACH - columns, columns)
        tiles = -(-n // groups) * -(-width // (across * columns))
        if tile.pixels <= _SHARES[-1] * _PASS:
            options.append((tiles * (_STRIPS * columns + groups * tile.pitch), tile.pitch, tile))
    return min(options, key=lambda option: option[:2])[2] if options else None


def _pieces(channels: int, most: int) -> int:
    """Pieces of a pixel for a block: the most that leave the fewest idle."""
    pieces = channels // _VECTOR
    return min(range(1, most + 1), key=lambda n: (-(-pieces // n) * n, -n))


def can_multiply(c: Correlation) -> bool:
    """Whether the tensor cores can do it."""
    g = c.g
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    square = g.window[1] == g.window[2] and g.window[2] in SIDES
    near = _STRIPS * max(g.space[1], g.out[1]) * max(g.space[2], g.out[2]) * c.channels < _MOST_APART
    fits = c.x.dtype in HALF and c.plain and not c.gradient and c.whole_vectors and is_flat(g) and ones and square and not c.added
    return fits and near and _tile(g.n, g.out[2], g.window[2]) is not None


def multiplied(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side = c.g, c.g.window[2]
    most, resident, stages = _SHAPES[side]
    pieces, tile = _pieces(c.channels, most), _tile(g.n, g.out[2], side)
    assert tile is not None
    share = next(s for s in _SHARES if s * _PASS >= tile.pixels)
    config = DepthwiseMmaConfig(TYPES[c.x.dtype], c.relu, side, share, _KEPT[side], stages, _PASS * most, resident)
    name = f"conv_depthwise_mma_{SHORT[c.x.dtype]}_s{side}x{share}{'_relu' * c.relu}"
    chunks = -(-c.channels // (_VECTOR * pieces))
    tiles = -(-g.n // tile.groups) * -(-g.out[2] // (tile.across * tile.columns)) * chunks
    rows = rows_of_a_block(g.out[1], tiles, device.units * resident, tile.rows, side - 1)
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    image, weight, bias, _, target = pointers
    numbers = (g.n, c.channels, int(c.flip), tile.across, tile.groups, rows, xs[0], *xs[3:], ys[0], *ys[3:])
    extents = (*g.space[1:], *g.out[1:], *g.before[1:])
    pixel = (pieces | 1) * 16  # bytes from pixel to pixel: neighbours stand in other banks
    bands = max(side + tile.rows - 1 - _KEPT[side], 0) * _PASS * pieces * 16
    shared = (stages * tile.pixels + _LEAVING * _STRIPS * (_SLOTS + 1)) * pixel + bands + 32 * pieces + 16 * stages
    kernel = Kernel("conv/depthwise_mma.cu", name, config)
    return Plan(kernel, (tiles * -(-g.out[1] // rows), 1, 1), _PASS * pieces, (image, weight, bias, target, *numbers, *extents), shared)
