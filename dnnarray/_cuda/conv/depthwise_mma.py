"""`depthwise` of half types on the tensor cores: strips of pixels times rows of the window, walking down the images."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, pixel_strides
from dnnarray._cuda.conv.depthwise_common import Correlation, axes, blocks_of_rows, is_flat
from dnnarray._cuda.core.arguments import Arguments, In, Int, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF

_STRIPS, _REACH = 16, 8  # rows of the matrix A and the pixels of each
_LINES, _PASS = 2, 32  # rows of a step, pixels that a block brings at once
_LEAVING = 4  # steps whose outputs are on their way
_SHARE = 4  # passes for a step
_SIDES, _STAGES = (7,), 4  # windows for which it is the fastest way; steps in shared memory
_MOST_WARPS, _BLOCKS = 6, 2  # of a block, 8 channels each; of a multiprocessor
_MOST_APART = 1 << 31  # elements


@frozen
class DepthwiseMmaConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_mma.cu``."""

    element: str
    relu: bool
    side: int
    share: int
    stages: int
    most_threads: int
    blocks: int


@frozen
class DepthwiseMmaArguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_mma.cu`` is called with."""

    x: In
    weight: In
    bias: In
    y: Out
    batch: Int
    channels: Int
    flip: Int
    across: Int
    groups: Int
    rows: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


@frozen
class _Tile:
    """Strips beside each other, images, and the pixels of a row that they read."""

    across: int
    groups: int
    pitch: int
    columns: int

    @property
    def pixels(self) -> int:
        """Of a step."""
        return _LINES * self.groups * self.pitch


@lru_cache(maxsize=1024)
def _tile(n: int, width: int, side: int) -> _Tile:
    """The tile with the least work; among equals the one that brings the least."""
    columns = 2 if side > 5 else 4  # outputs of a strip: eight pixels are columns + side - 1 at least
    options = []
    for across in range(1, min(_STRIPS, -(-width // columns)) + 1):
        pitch = across * columns + _REACH - columns
        groups = min(_STRIPS // across, n, _SHARE * _PASS // (_LINES * pitch))
        if groups:
            tiles = -(-n // groups) * -(-width // (across * columns))
            options.append((tiles * (_STRIPS * columns + groups * pitch), pitch, _Tile(across, groups, pitch, columns)))
    return min(options, key=lambda option: option[:2])[2]


def _warps(channels: int) -> int:
    """Warps of a block: the most that leave the fewest idle."""
    pieces = channels // 8
    return min(range(1, _MOST_WARPS + 1), key=lambda w: (-(-pieces // w) * w, -w))


def can_multiply(c: Correlation) -> bool:
    """Whether the tensor cores can do it."""
    g = c.g
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    square = g.window[1] == g.window[2] and g.window[2] in _SIDES
    near = _STRIPS * max(g.space[1], g.out[1]) * max(g.space[2], g.out[2]) * c.channels < _MOST_APART
    fits = (
        c.x.dtype in HALF
        and c.plain
        and not c.gradient
        and c.whole_vectors
        and is_flat(g)
        and ones
        and square
        and not c.added
    )
    return fits and near


def multiplied(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side = c.g, c.g.window[2]
    warps, tile = _warps(c.channels), _tile(g.n, g.out[2], side)
    config = DepthwiseMmaConfig(TYPES[c.x.dtype], c.relu, side, _SHARE, _STAGES, 32 * _MOST_WARPS, _BLOCKS)
    name = f"conv_depthwise_mma_{SHORT[c.x.dtype]}_s{side}{'_relu' * c.relu}"
    chunks = -(-c.channels // (8 * warps))
    tiles = -(-g.n // tile.groups) * -(-g.out[2] // (tile.across * tile.columns)) * chunks
    rows = blocks_of_rows(g.out[1], tiles, device.units * _BLOCKS, _LINES, side - 1)[1]
    xs, ys = (pixel_strides(c.memory.strides(s.shape)) for s in (c.x, c.y))
    image, weight, bias, _, target = pointers
    arguments = DepthwiseMmaArguments(
        image,
        weight,
        bias,
        target,
        batch=g.n,
        channels=c.channels,
        flip=int(c.flip),
        across=tile.across,
        groups=tile.groups,
        rows=rows,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    pixel = (warps | 1) * 16  # bytes from pixel to pixel: neighbours stand in other banks
    staged = _LEAVING * (_LINES // (4 // tile.columns)) * _STRIPS * 4 * pixel  # outputs on their way
    shared = _STAGES * tile.pixels * pixel + staged + 32 * warps + 16 * _STAGES
    kernel = Kernel("conv/depthwise_mma.cu", name, config, ("conv/geometry",))
    return planned(kernel, (tiles * -(-g.out[1] // rows), 1, 1), 32 * warps, arguments, shared_memory=shared)
