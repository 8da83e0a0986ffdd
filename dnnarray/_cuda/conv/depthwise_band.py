"""`depthwise` of half types by bands on the tensor cores, rows brought and stored by TMA (sm_90)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv.depthwise_common import Correlation, Memory, is_flat
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Structure, TensorMap
from dnnarray._cuda.positional import NOTHING
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF, Spec

_ROWS, _STRIPS, _STRIP = 2, 8, 8  # rows of a step, the strips of each row, neighbouring outputs of each
_THREADS, _CHANNELS = 384, 32  # of a block
_PIXEL = _CHANNELS * 2  # bytes in shared memory
_SIDES = (5, 7)  # windows for which it is the fastest way
_CUBE = (3, 3, 3)  # the window of three axes
_CUBES = (
    (2, _STRIPS),
    (4, _STRIPS // 2),
)  # planes of outputs that a tile of cubes may have, which share what they read, and its strips then
_SHARED_BY = 2  # warps of cubes that have the same channels
_MOST_STAGES = 16  # pairs of rows of inputs under way
_LEAVING = {1: 6, 3: 3}  # pairs of rows of outputs under way, by the depth of the window
_BEYOND = {1: _STRIP, 3: 4}  # columns of inputs behind those of the strips
_SHARED = {1: 160 << 10, 3: 128_000}  # bytes of rows of inputs; with more of them cubes are slower
_START = 8  # steps of time until a block's first row is there


@frozen
class DepthwiseBandConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_band_sm90.cu`` and ``depthwise_cube_sm90.cu``."""

    element: str
    bias: bool
    relu: bool
    depth: int
    planes: int
    side: int
    together: int
    leaving: int


@frozen
class _Tile:
    """Strips beside each other, images, planes of outputs and of inputs, columns behind the strips; how many tiles
    there are for each channel, each of full height."""

    across: int
    groups: int
    planes: int
    seen: int
    beyond: int
    count: int

    @property
    def bytes_in(self) -> int:
        """Of two rows of inputs."""
        return _ROWS * self.seen * self.groups * (self.across * _STRIP + self.beyond) * _PIXEL

    @property
    def bytes_out(self) -> int:
        """Of two rows of outputs."""
        return _ROWS * self.planes * self.groups * self.across * _STRIP * _PIXEL


@lru_cache(maxsize=1024)
def _tile(n: int, width: int, out_depth: int, window: int) -> _Tile:
    """The tiles that move the least, counted with what is outside of the images and without; among equals the
    fewest."""
    strips, reach = -(-width // _STRIP), window - 1
    options = []
    for planes, beside in _CUBES if window > 1 else ((1, _STRIPS),):
        for across in range(1, min(beside, strips) + 1):
            groups, deep, columns = min(beside // across, n), -(-out_depth // planes), -(-strips // across)
            tile = _Tile(across, groups, planes, planes + reach, _BEYOND[window], -(-n // groups) * deep * columns)
            inside = n * ((out_depth + deep * reach) * (width + columns * reach) + out_depth * width) * _ROWS * _PIXEL
            options.append((tile.count * (tile.bytes_in + tile.bytes_out) + inside, tile.count, tile))
    return min(options, key=lambda option: option[:2])[2]


@lru_cache(maxsize=1024)
def _division(height: int, side: int, joint: int, tiles: int, chunks: int, slots: int) -> tuple[int, int]:
    """Rows of a tile, and how many blocks share the tiles of the same channels. Where tiles are whole images, `joint`
    of their steps are the next one's too."""
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
    """How many steps at the end of an image see nothing but zeros, as do as many at the start of the next: they can be
    one and the same."""
    g, reach = c.g, c.g.window[2] - 1
    # rows that the last steps bring from below the image
    below = -(-g.out[1] // _ROWS) * _ROWS + reach - g.before[1] - g.space[1]
    return max(0, min(g.before[1], below, reach)) // _ROWS


def can_band(c: Correlation, device: Device) -> bool:
    """Whether bands can do it."""
    g = c.g
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    square = is_flat(g) and g.window[1] == g.window[2] and g.window[2] in _SIDES
    cube = g.window == _CUBE and g.out[0] > 1
    fits = (
        c.x.dtype in HALF
        and c.plain
        and not c.gradient
        and c.whole_vectors
        and (square or cube)
        and ones
        and not c.added
    )
    return fits and device.capability == (9, 0)


def _map(memory: Memory, spec: Spec, array: Array, tile: _Tile, pixels: int, planes: int) -> TensorMap:
    """Boxes of two rows of a tile."""
    n, _, d, h, w = (s * spec.dtype.itemsize for s in memory.strides(spec.shape))
    *space, channels = (
        spec.shape[i] for i in (*(i for i in range(1, spec.ndim) if i != memory.channel), memory.channel)
    )
    depth, height, width = (1, 1, *space)[-3:]
    extents, box = (channels, width, height, depth, spec.shape[0]), (_CHANNELS, pixels, _ROWS, planes, tile.groups)
    return TensorMap(array, spec.dtype, extents, (w, h, d or n, n), box, row=_PIXEL)


def banded(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side = c.g, c.g.window[2]
    image, weight, bias, _, target = pointers
    depth = g.window[0]
    tile, chunks = _tile(g.n, g.out[2], g.out[0], depth), -(-c.channels // _CHANNELS)
    joint = _joint(c)
    rows, workers = _division(g.out[1], side, joint, tile.count, chunks, device.units)
    parts = -(-g.out[1] // rows)
    stages = min(_MOST_STAGES, _SHARED[depth] // tile.bytes_in)
    together = 2 - chunks % 2  # blocks of a cluster
    biased = bias != NOTHING
    leaving = _LEAVING[depth]
    config = DepthwiseBandConfig(TYPES[c.x.dtype], biased, c.relu, depth, tile.planes, side, together, leaving)
    way, shape = ("cube", f"p{tile.planes}") if depth > 1 else ("band", f"s{side}")
    name = f"conv_depthwise_{way}_{SHORT[c.x.dtype]}_{shape}x{together}{'_bias' * biased}{'_relu' * c.relu}"
    pixels = tile.across * _STRIP
    maps = (
        _map(c.memory, c.x, image, tile, pixels + tile.beyond, tile.seen),
        _map(c.memory, c.y, target, tile, pixels, tile.planes),
    )
    xs = c.memory.strides(c.x.shape)
    walk = (rows, stages, joint if parts == 1 else 0, tile.count * parts)
    told = (g.n, c.channels, int(c.flip), tile.across, tile.groups, *walk)
    numbers = Structure((xs[0], *xs[2:]), (*told, *g.space, *g.out, *g.before))
    barriers = (2 * _MOST_STAGES + leaving) * 8
    weights = _CHANNELS * g.taps * 2 * (_SHARED_BY if depth > 1 else 1)
    shared = stages * tile.bytes_in + leaving * tile.bytes_out + weights + barriers
    kernel = Kernel(f"conv/depthwise_{way}_sm90.cu", name, config)
    return Plan(kernel, (workers * chunks, 1, 1), _THREADS, (*maps, image, weight, bias, numbers), shared)
