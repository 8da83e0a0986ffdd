"""`depthwise` from tiles of channels-last images in shared memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, pixel_strides
from dnnarray._cuda.conv.depthwise_common import Correlation, DepthwiseArguments, axes
from dnnarray._cuda.core.arguments import Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64

_ROWS, _STRIP = 2, 7  # outputs of a thread; an odd strip puts the next one into other banks
_MOST_THREADS, _BLOCKS = 256, 2
_SHARED = 100 << 10  # bytes of a block, two of which share a multiprocessor
_WAVES = 6  # blocks of a multiprocessor: each stays for many tiles, so that it loads its weights once
_MOST_WEIGHTS, _MOST_HEIGHT = 32 << 10, 16  # bytes of weights in shared memory, rows of the window


@frozen
class DepthwiseTileConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_tile.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    stride: int
    vector: int
    lanes: int
    rows: int
    strip: int
    most_threads: int
    blocks: int


@frozen
class DepthwiseTileArguments(DepthwiseArguments):
    """What ``kernels/conv/depthwise_tile.cu`` is called with."""

    batch: Int
    channels: Int
    flip: Int
    across: Int
    down: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


@frozen
class _Tile:
    """Tiles of threads beside and below each other in a block, and what follows from them."""

    wide: int
    high: int
    threads: int
    shared_memory: int


@lru_cache(maxsize=1024)
def _tile(g: Geometry, lanes: int, pixel: int, weights: int) -> _Tile | None:
    """The tile with the least work: its threads, idle ones and those behind the edge included, and the inputs that it
    brings."""
    best, found = float("inf"), None
    for across in range(1, _MOST_THREADS // lanes + 1):
        for down in range(1, _MOST_THREADS // lanes // across + 1):
            threads = -(-across * down * lanes // 32) * 32
            wide, high = across * _STRIP, down * _ROWS
            brought = ((wide - 1) * g.stride[2] + g.window[2]) * ((high - 1) * g.stride[1] + g.window[1])
            shared = brought * pixel + weights
            tiles = -(-g.out[2] // wide) * -(-g.out[1] // high)
            cost = tiles * (threads / lanes * _STRIP * _ROWS + 0.25 * brought / g.stride[1] / g.stride[2])
            if shared <= _SHARED and cost < best:
                best, found = cost, _Tile(wide, high, threads, shared)
    return found


def _settings(c: Correlation) -> tuple[int, int, int, int]:
    """Channels of a thread, threads over the channels, bytes from pixel to pixel and of the weights."""
    vector, lanes = 2 if c.x.dtype == FLOAT64 else 4, 4 if c.g.window[2] > 3 else 8
    pixel = lanes * vector * c.x.dtype.itemsize
    padded = pixel + (16 if pixel % 128 and _STRIP * c.g.stride[2] % 2 == 0 else 0)
    return vector, lanes, padded, c.g.taps * lanes * vector * c.computed


def can_tile(c: Correlation) -> bool:
    """Whether a tile can do it."""
    _, lanes, pixel, weights = _settings(c)
    flat = c.g.dilation[1] == 1 or c.g.window[1] == 1
    small = weights <= _MOST_WEIGHTS and c.g.window[1] <= _MOST_HEIGHT
    narrow = c.g.stride[2] == 1 and c.x.dtype != FLOAT64  # else a row of inputs needs more registers than there are
    return (
        narrow
        and c.plain
        and c.fast
        and flat
        and small
        and c.whole_vectors
        and _tile(c.g, lanes, pixel, weights) is not None
    )


def tiled(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, (vector, lanes, pixel, weights) = c.g, _settings(c)
    tile = _tile(g, lanes, pixel, weights)
    assert tile is not None
    side, stride, added = g.window[2], g.stride[2], c.added
    crowded = added or (side == 5 and c.x.dtype == FLOAT32)  # more registers than two blocks of a multiprocessor have
    sizes = (vector, lanes, _ROWS, _STRIP, _MOST_THREADS, 1 if crowded else _BLOCKS)
    config = DepthwiseTileConfig(TYPES[c.x.dtype], added, c.relu, side, stride, *sizes)
    name = f"conv_depthwise_tile_{SHORT[c.x.dtype]}{'_added' * added}{'_relu' * c.relu}_s{side}_by_{stride}"
    chunks = -(-c.channels // (lanes * vector))
    tiles = g.n * g.out[0] * -(-g.out[1] // tile.high) * -(-g.out[2] // tile.wide)
    blocks = min(tiles, -(-device.units * _WAVES // chunks)) * chunks
    xs, ys = (pixel_strides(c.memory.strides(s.shape)) for s in (c.x, c.y))
    across, down = tile.wide // _STRIP, tile.high // _ROWS
    arguments = DepthwiseTileArguments(
        pointers[0],
        pointers[1],
        pointers[2],
        pointers[3],
        pointers[4],
        batch=g.n,
        channels=c.channels,
        flip=int(c.flip),
        across=across,
        down=down,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    kernel = Kernel("conv/depthwise_tile.cu", name, config, ("conv/geometry",))
    return planned(kernel, (blocks, 1, 1), tile.threads, arguments, shared_memory=tile.shared_memory)
