"""`depthwise` of half types by bands on the tensor cores, rows brought and stored by the copy engine (sm_90)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv_depthwise_common import Correlation, Memory, is_flat
from dnnarray._cuda.loss_sums import NOTHING
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, TensorMap
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF, Spec

_ROWS, _STRIPS, _STRIP = 2, 8, 8  # rows of a step, the strips of each row, neighbouring outputs of each
_THREADS, _CHANNELS = 384, 32  # of a block
_PIXEL = _CHANNELS * 2  # bytes in shared memory
_SIDES = (5, 7)  # windows for which it is the fastest way
_MOST_STAGES, _LEAVING = 16, 6  # pairs of rows of inputs and of outputs under way
_SHARED = 160 << 10  # bytes of rows of inputs
_BARRIERS = (2 * _MOST_STAGES + _LEAVING) * 8
_START = 8  # steps of time until a block's first row is there


@frozen
class DepthwiseBandConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_band_sm90.cu``."""

    element: str
    bias: bool
    relu: bool
    side: int
    together: int


@frozen
class _Tile:
    """Strips beside each other and images of a tile; how many tiles there are for each channel, each of full height."""

    across: int
    groups: int
    count: int

    @property
    def bytes_in(self) -> int:
        """Of two rows of inputs."""
        return _ROWS * self.groups * (self.across + 1) * _STRIP * _PIXEL

    @property
    def bytes_out(self) -> int:
        """Of two rows of outputs."""
        return _ROWS * self.groups * self.across * _STRIP * _PIXEL


@lru_cache(maxsize=1024)
def _tile(n: int, width: int) -> _Tile:
    """The tiles that move the least; among equals the fewest."""
    strips = -(-width // _STRIP)
    options = []
    for across in range(1, min(_STRIPS, strips) + 1):
        groups = min(_STRIPS // across, n)
        options.append(_Tile(across, groups, -(-n // groups) * -(-strips // across)))
    return min(options, key=lambda t: (t.count * (t.bytes_in + t.bytes_out), t.count))


@lru_cache(maxsize=1024)
def _division(height: int, side: int, joint: int, tiles: int, chunks: int, slots: int) -> tuple[int, int]:
    """Rows of a tile, and how many blocks share the tiles of the same channels. Where tiles are whole images, `joint` of their steps are the next one's too."""
    options = []
    for parts in range(1, min(height, 16) + 1):
        steps = -(-height // (parts * _ROWS))
        rows = steps * _ROWS
        count = tiles * -(-height // rows)
        for waves in range(1, 5):
            workers = max(1, min(waves * slots // chunks, count))
            each = steps + (side - 1) // _ROWS - (joint if parts == 1 else 0)
            time = -(-workers * chunks // slots) * (_START + -(-count // workers) * each)
            options.append((time, parts, rows, workers))
    return min(options)[2:]


def _joint(c: Correlation) -> int:
    """How many steps at the end of an image see nothing but zeros, as do as many at the start of the next: they can be one and the same."""
    g, reach = c.g, c.g.window[2] - 1
    below = -(-g.out[1] // _ROWS) * _ROWS + reach - g.before[1] - g.space[1]  # rows that the last steps bring from below the image
    return max(0, min(g.before[1], below, reach)) // _ROWS


def can_band(c: Correlation, device: Device) -> bool:
    """Whether bands can do it."""
    g = c.g
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    square = g.window[1] == g.window[2] and g.window[2] in _SIDES
    fits = c.x.dtype in HALF and c.plain and not c.gradient and c.whole_vectors and is_flat(g) and ones and square and not c.added
    return fits and device.capability == (9, 0)


def _map(memory: Memory, spec: Spec, array: Array, tile: _Tile, pixels: int) -> TensorMap:
    """Boxes of two rows of a tile."""
    n, _, _, h, w = (s * spec.dtype.itemsize for s in memory.strides(spec.shape))
    *space, channels = (spec.shape[i] for i in (*(i for i in range(1, spec.ndim) if i != memory.channel), memory.channel))
    height, width = (1, *space)[-2:]
    return TensorMap(
        array, spec.dtype, (channels, width, height, 1, spec.shape[0]), (w, h, n, n), (_CHANNELS, pixels, _ROWS, 1, tile.groups), row=_PIXEL
    )


def banded(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side = c.g, c.g.window[2]
    image, weight, bias, _, target = pointers
    tile, chunks = _tile(g.n, g.out[2]), -(-c.channels // _CHANNELS)
    joint = _joint(c)
    rows, workers = _division(g.out[1], side, joint, tile.count, chunks, device.units)
    parts = -(-g.out[1] // rows)
    stages = min(_MOST_STAGES, _SHARED // tile.bytes_in)
    together = 2 - chunks % 2  # blocks of a cluster
    biased = bias != NOTHING
    config = DepthwiseBandConfig(TYPES[c.x.dtype], biased, c.relu, side, together)
    name = f"conv_depthwise_band_{SHORT[c.x.dtype]}_s{side}x{together}{'_bias' * biased}{'_relu' * c.relu}"
    maps = (_map(c.memory, c.x, image, tile, (tile.across + 1) * _STRIP), _map(c.memory, c.y, target, tile, tile.across * _STRIP))
    xs = c.memory.strides(c.x.shape)
    walk = (rows, stages, joint if parts == 1 else 0, tile.count * parts)
    numbers = (g.n, c.channels, int(c.flip), tile.across, tile.groups, *walk, xs[0], *xs[3:])
    extents = (*g.space[1:], *g.out[1:], *g.before[1:])
    shared = stages * tile.bytes_in + _LEAVING * tile.bytes_out + _CHANNELS * side * side * 2 + _BARRIERS
    kernel = Kernel("conv/depthwise_band_sm90.cu", name, config)
    return Plan(kernel, (workers * chunks, 1, 1), _THREADS, (*maps, image, weight, bias, *numbers, *extents), shared)
