"""`depthwise` of planes: images whose last spatial axis is innermost in memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides
from dnnarray._cuda.conv.depthwise_common import Correlation, DepthwiseArguments, axes
from dnnarray._cuda.core.arguments import Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_STRIP = 8  # neighbouring outputs of a thread
_MOST_ROWS = 4  # of them below each other
_STAGES = 3  # planes of a tile in shared memory
_MOST_WEIGHTS, _SHARED = 16 << 10, 80 << 10  # bytes of shared memory: of weights; of what tiles read
_MOST_THREADS = {1: 192, 4: 256}  # by the rows of a thread
_PARTS = 16  # ways to divide a row that are looked at
_COPY = 40  # multiplications that the copy of a piece takes as long as
_WAVES = 8  # blocks of a multiprocessor that there should be before one has several tiles


@frozen
class DepthwisePlaneConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_plane.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    stride: int
    vector: int
    shift: int
    rows: int
    most_threads: int
    blocks: int


def _vector(c: Correlation) -> int:
    """Elements of the largest piece that all rows are made of."""
    distances = (s for spec in (c.x, c.y) for s in c.memory.strides(spec.shape)[:-1])
    return vector_length(c.x.dtype, c.aligned, c.g.space[2], c.g.out[2], *distances)


def _bytes_of_a_window(g: Geometry) -> int:
    return g.window[0] * g.window[1] * ((g.window[2] + 3) // 4 * 16)


@frozen
class DepthwisePlaneArguments(DepthwiseArguments):
    """What ``kernels/conv/depthwise_plane.cu`` is called with."""

    planes: Int
    channels: Int
    multiplier: Int
    flip: Int
    across: Int
    down: Int
    together: Int
    run: Int
    x_strides: ImageStrides
    y_strides: ImageStrides
    axes: ConvAxes


@frozen
class _Tile:
    """Strips beside and below each other of a tile, channels of a block, and the bytes of what a tile reads."""

    across: int
    down: int
    together: int
    plane: int

    @property
    def threads(self) -> int:
        return -(-self.across * self.down * self.together // 32) * 32


@lru_cache(maxsize=1024)
def _tile(g: Geometry, count: int, vector: int, itemsize: int, rows: int) -> _Tile | None:
    """The tile that leaves the fewest threads without work; None where no plane fits."""
    most, strips, tall, shift = _MOST_THREADS[rows], -(-g.out[2] // _STRIP), -(-g.out[1] // rows), -g.before[2] % vector
    options = []
    fewest = -(-strips // most)
    for parts in range(fewest, min(fewest + _PARTS, 1 + strips)):
        across = -(-strips // parts)
        for down in range(1, min(tall, most // across) + 1):
            brought = ((down * rows - 1) * g.stride[1] + g.window[1]) * (
                (shift + (across * _STRIP - 1) * g.stride[2] + g.window[2] - 1) // vector + 1
            )
            plane = brought * vector * itemsize
            fit = (_SHARED // _STAGES - 16) // plane, most // (across * down), _MOST_WEIGHTS // _bytes_of_a_window(g)
            tile = _Tile(across, down, min(*fit, count), plane)
            if tile.together:
                work = tile.threads * _STRIP * rows * g.window[1] * g.window[2] + _COPY * tile.together * brought
                options.append((work * parts * -(-tall // down) / tile.together, -tile.threads, tile))
    return min(options, key=lambda option: option[:2])[2] if options else None


def can_plane(c: Correlation) -> bool:
    """Whether planes can do it."""
    undilated = c.g.dilation[1] == 1 or c.g.window[1] == 1
    if not c.fast or not undilated or c.memory.last or c.x.dtype == FLOAT64 or _bytes_of_a_window(c.g) > _MOST_WEIGHTS:
        return False
    innermost = all(c.memory.strides(s.shape)[4] == 1 for s in (c.x, c.y))
    return innermost and _vector(c) > 1 and _tile_of(c) is not None


def _rows(g: Geometry) -> int:
    """Of outputs of a thread."""
    return _MOST_ROWS if g.window[1] > 1 else 1


def _tile_of(c: Correlation) -> _Tile | None:
    return _tile(c.g, c.g.n * c.channels, _vector(c), c.x.dtype.itemsize, _rows(c.g))


def planes(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, vector, rows, tile = c.g, _vector(c), _rows(c.g), _tile_of(c)
    assert tile is not None
    count = g.n * c.channels
    groups = -(-count // tile.together)
    tiles = -(-g.out[2] // (tile.across * _STRIP)) * -(-g.out[1] // (tile.down * rows)) * g.out[0]
    run = max(1, min(groups * tiles // (device.units * _WAVES), tiles))
    # of a multiprocessor: what the registers suffice for
    blocks = 3 if rows == 1 or (g.stride[2] == 1 and g.window[2] < 7) else 2
    settings = (g.window[2], g.stride[2], vector, -g.before[2] % vector, rows, _MOST_THREADS[rows], blocks)
    config = DepthwisePlaneConfig(TYPES[c.x.dtype], c.added, c.relu, *settings)
    name = f"conv_depthwise_plane_{SHORT[c.x.dtype]}x{vector}{'_added' * c.added}{'_relu' * c.relu}"
    name += f"_s{g.window[2]}_by_{g.stride[2]}_from{config.shift}_r{rows}"
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    arguments = DepthwisePlaneArguments(
        pointers[0],
        pointers[1],
        pointers[2],
        pointers[3],
        pointers[4],
        planes=count,
        channels=c.channels,
        multiplier=g.k,
        flip=int(c.flip),
        across=tile.across,
        down=tile.down,
        together=tile.together,
        run=run,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    kernel = Kernel("conv/depthwise_plane.cu", name, config, ("conv/geometry",))
    stages = min(_STAGES, run * g.window[0])
    shared = tile.together * _bytes_of_a_window(g) + stages * (-(-tile.together * tile.plane // 16) * 16)
    return planned(kernel, (groups * -(-tiles // run), 1, 1), tile.threads, arguments, shared_memory=shared)
