"""`depthwise` by strips on the ordinary units, walking down channels-last images."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, pixel_strides
from dnnarray._cuda.conv.depthwise_common import SIDES, Correlation, DepthwiseArguments, axes, blocks_of_rows, is_flat
from dnnarray._cuda.conv.depthwise_strip_sm90 import DepthwiseStripSm90Arguments
from dnnarray._cuda.core.arguments import Extent, Int
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, TensorMap
from dnnarray._cuda.core.planner import planned
from dnnarray._records import changed, frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64, HALF, INT32

_THREADS = 128
_STRIP = 7  # outputs of a thread: odd, so that the strips of a warp stand in other banks
_LANES = (32, 16, 8)  # vectors of channels of a block
_WIDE = (48, 24)
"""The same in place of 16 or 8 where they leave no more idle: several blocks ask for each line of memory of which they
take parts."""
_SHAPES = {
    (3, 4): (1, 5, 4),
    (5, 4): (1, 4, 4),
    (7, 4): (1, 3, 5),
    (3, 2): (2, 4, 4),
    (5, 2): (2, 3, 4),
    (7, 2): (1, 3, 5),
}
"""By the side of the window and the bytes of an element: channels of a thread, blocks of a multiprocessor, steps in
shared memory."""
_CUBES = {(1, 4): (1, 4, 4), (1, 2): (2, 3, 4), (2, 4): (1, 3, 4), (2, 2): (2, 2, 4)}
"""The same for windows of 3 x 3 x 3, by the planes of outputs of a block and the bytes of an element."""
_MULTIPLIED = {
    3: (1, 4, 4),
    5: (1, 3, 4),
}  # the same where one image has two channels for each of the other, by the side of the window
_WIDE_BLOCK = (96, 4, 4, 10)
"""Of `_WIDE`, windows of 3 and half types: threads, blocks of a multiprocessor, steps in shared memory, the most rows
of a block."""
_BOXED = {
    (7, 4, True): (4, 3),
    (5, 4, True): (2, 4),
    (3, 4, True): (2, 5),
    (3, 4, False): (1, 6),
    (3, 2, True): (2, 4),
    (3, 2, False): (2, 4),
}
"""Rows of a step and steps in shared memory where TMA brings them (sm_90), by side, bytes and whether there
is one channel for each."""
_BOXED_CUBES = ((4, 3), (3, 4), (2, 5))
"""Of those of float32 and two planes of outputs: blocks of a multiprocessor and steps in shared memory; those that end
first."""
_FOLDED = (2, 192, 2, 5, 1)
"""The same for the sums of two channels of half types, of 3 x 3 and where lanes are `_WIDE`: channels of a result,
threads, blocks, steps, rows of a step."""
_ENOUGH_ROWS = 24  # of a tile for each block of the device, for the former to pay
_LINE, _RESERVED = (
    128,
    1 << 10,
)  # bytes that boxes in shared memory begin at multiples of; that each block has besides its own
_BITS = 32  # of a thread's share of a step, some for each row and some more
_FEW_ROWS = {
    True: 8,
    False: 14,
}  # of a block for a window of 3, where the halo is small: neighbours in memory are under way at the same time
_MOST_APART = 1 << 31  # elements of a tile


@frozen
class DepthwiseStripConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_strip.cu``."""

    element: str
    added: bool
    relu: bool
    depth: int
    planes: int
    side: int
    stride: int
    lines: int
    reads: int
    writes: int
    lanes: int
    strip: int
    share: int
    stages: int
    threads: int
    blocks: int


@frozen
class DepthwiseStripArguments(DepthwiseArguments):
    """What ``kernels/conv/depthwise_strip.cu`` is called with: each count has beside it what a division by it takes."""

    batch: Int
    channels: Int
    flip: Int
    rows: Int
    chunks: Int
    parts: Int
    tiles: Int
    depth_groups: Int
    across: Int
    pitch: Int
    by_chunks: Extent
    by_parts: Extent
    by_tiles: Extent
    by_depth_groups: Extent
    by_across: Extent
    by_pitch: Extent
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


@frozen
class _Shape:
    """What a block is: channels that a thread reads and writes, vectors of them, tiles of strips, and the pixels of a
    step."""

    depth: int
    planes: int
    lines: int
    reads: int
    writes: int
    lanes: int
    across: int
    groups: int
    pitch: int
    threads: int
    resident: int
    stages: int
    pixel: int
    most_rows: int

    @property
    def pixels(self) -> int:
        """Of a step."""
        return self.lines * self.groups * (self.depth + self.planes - 1) * self.pitch

    @property
    def boxes(self) -> int:
        """Bytes of shared memory of a block whose steps are boxes."""
        return self.stages * (-(-self.pixels * self.pixel // _LINE) * _LINE + 16)

    @property
    def share(self) -> int:
        """Pieces of 16 bytes of a step for a thread."""
        return -(-self.pixels // (self.threads * 16 // self.pixel))


def _idle(c: Correlation, lanes: int, writes: int) -> int:
    """Vectors of channels of all blocks beside each other, those behind the last channel too."""
    return -(-c.channels // (lanes * writes)) * lanes


def _shape(c: Correlation) -> _Shape:
    """Of a square window."""
    g, side, size = c.g, c.g.window[2], c.x.dtype.itemsize
    depth = 1 if is_flat(g) else g.window[0]
    planes = 2 if depth > 1 and g.stride[0] == 1 and g.out[0] > 1 else 1  # of outputs, which share what they read
    vector, resident, stages = (
        _CUBES[planes, size] if depth > 1 else _SHAPES[side, size] if c.plain else _MULTIPLIED[side]
    )
    reads, writes = (vector * g.k, vector) if c.folded else (vector, vector * g.k)
    lanes = min(_LANES, key=lambda n: (_idle(c, n, writes), -n))  # the most that leave the fewest idle
    threads, most_rows = _THREADS, _FEW_ROWS[c.plain] if side == 3 and depth == 1 else g.out[1]
    wider = [n for n in _WIDE if lanes < _LANES[0] and _idle(c, n, writes) == _idle(c, lanes, writes)]
    if wider and (side, size, depth, c.plain) == (3, 2, 1, True):
        lanes, (threads, resident, stages, most_rows) = wider[0], _WIDE_BLOCK
    across = min(threads // lanes, -(-g.out[2] // _STRIP))
    groups = 1 if depth > 1 else threads // lanes // across  # images beside each other
    pitch = (across * _STRIP - 1) * g.stride[2] + side
    lines, pixel = 1 if depth > 1 else 2, lanes * reads * size
    return _Shape(
        depth, planes, lines, reads, writes, lanes, across, groups, pitch, threads, resident, stages, pixel, most_rows
    )


def _folded(c: Correlation, device: Device, shape: _Shape) -> _Shape | None:
    """For the sums of two channels, where there are whole lanes and enough rows for few large blocks."""
    g, side, size = c.g, c.g.window[2], c.x.dtype.itemsize
    vector, threads, resident, stages, lines = _FOLDED
    lanes = next((n for n in _WIDE if c.channels % (n * vector) == 0), 0)
    if not lanes or side != 3 or c.x.dtype not in HALF:
        return None
    across = min(threads // lanes, -(-g.out[2] // _STRIP))
    groups = threads // lanes // across
    tiles = -(-g.n // groups) * -(-g.out[2] // (across * _STRIP)) * (c.channels // (lanes * vector))
    if tiles * g.out[1] < _ENOUGH_ROWS * device.units * resident:
        return None
    tile = {"across": across, "groups": groups, "pitch": across * _STRIP - 1 + side}
    channels = {"reads": vector * g.k, "writes": vector, "lanes": lanes, "pixel": lanes * vector * g.k * size}
    return changed(
        shape, **tile, **channels, threads=threads, resident=resident, stages=stages, lines=lines, most_rows=g.out[1]
    )


def _boxed(c: Correlation, device: Device) -> _Shape | None:
    """The same where TMA brings the rows; None where the block's own threads do it as fast."""
    g, side, size = c.g, c.g.window[2], c.x.dtype.itemsize
    if device.capability != (9, 0) or g.stride[2] != 1:
        return None
    shape = _shape(c)
    if shape.planes == 2:
        if size != 4:
            return None
        options = [changed(shape, resident=resident, stages=stages) for resident, stages in _BOXED_CUBES]
        shape = min(options, key=lambda s: s.resident * _blocks(c, s, device)[0])
    elif shape.depth > 1:
        return None
    elif c.folded and c.x.dtype in HALF:
        found = _folded(c, device, shape)
        if found is None:
            return None
        shape = found
    elif (side, size, c.plain) in _BOXED:
        lines, stages = _BOXED[side, size, c.plain]
        shape = changed(shape, lines=lines, stages=stages)
    else:
        return None
    weights = shape.lanes * max(shape.reads, shape.writes) * g.taps * size  # pass by way of one step's place
    fits = shape.resident * (shape.boxes + _RESERVED) <= device.shared_memory + _RESERVED
    return shape if fits and weights <= shape.pixels * shape.pixel else None


def _map(c: Correlation, image: Any, s: _Shape) -> TensorMap:
    """Boxes of a step. Bits pass as they are: a map of floats would round them."""
    size = c.x.dtype.itemsize
    n, _, d, h, w = (stride * size for stride in c.memory.strides(c.x.shape))
    dtype = INT32 if c.x.dtype == FLOAT32 else c.x.dtype
    extents = (c.x.shape[c.memory.channel], *c.g.space[::-1], c.g.n)
    return TensorMap(
        image,
        dtype,
        extents,
        (w, h, d or n, n),
        (s.lanes * s.reads, s.pitch, s.lines, s.depth + s.planes - 1, s.groups),
        row=0,
    )


def _tiles(c: Correlation, s: _Shape) -> tuple[int, int, int]:
    """Of a group of images: behind each other, beside each other, and of channels."""
    g, channels = c.g, c.x.shape[c.memory.channel]
    return -(-g.out[0] // s.planes), -(-g.out[2] // (s.across * _STRIP)), -(-channels // (s.lanes * s.reads))


def _blocks(c: Correlation, s: _Shape, device: Device) -> tuple[int, int]:
    """Steps of time until all blocks have ended, and the rows of one."""
    g, stride = c.g, c.g.stride[2]
    tiles = -(-g.n // s.groups) * math.prod(_tiles(c, s))
    return blocks_of_rows(g.out[1], tiles, device.units * s.resident, s.lines // stride, (g.window[2] - 1) // stride)


def can_strip(c: Correlation) -> bool:
    """Whether strips can do it."""
    g = c.g
    square = (
        g.window[1] == g.window[2] and g.window[2] in SIDES and g.stride[1] == g.stride[2] and set(g.dilation) == {1}
    )
    if not square or not c.fast or not c.whole_vectors or c.x.dtype == FLOAT64:
        return False
    cube = g.window == (3, 3, 3) and g.stride[2] == 1 and c.plain
    if not ((is_flat(g) and (c.plain or (g.k == 2 and g.window[2] in _MULTIPLIED))) or cube):
        return False
    near = (
        max(g.space[1] * g.space[2], g.out[1] * g.out[2])
        * max(c.channels, c.x.shape[c.memory.channel])
        * (_THREADS // _LANES[-1])
        < _MOST_APART
    )
    shape = _shape(c)
    busy = shape.depth == 1 or 2 * shape.across * shape.lanes >= _THREADS  # most threads of a block
    return near and busy and (shape.lines + 1) * shape.share <= _BITS


def stripped(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side, stride, boxed = c.g, c.g.window[2], c.g.stride[2], _boxed(c, device)
    s = boxed or _shape(c)
    channels, share = c.x.shape[c.memory.channel], 0 if boxed else s.share
    settings = (
        s.depth,
        s.planes,
        side,
        stride,
        s.lines,
        s.reads,
        s.writes,
        s.lanes,
        _STRIP,
        share,
        s.stages,
        s.threads,
        s.resident,
    )
    config = DepthwiseStripConfig(TYPES[c.x.dtype], c.added, c.relu, *settings)
    stem = f"depthwise_strip{'_sm90' * bool(boxed)}"
    name = (
        f"conv_{stem}_{SHORT[c.x.dtype]}{'_added' * c.added}{'_relu' * c.relu}"
        f"_s{side}{f'x{s.depth}_p{s.planes}' * (s.depth > 1)}_by_{stride}"
    )
    name += (
        f"{f'_from{s.reads}to{s.writes}' * (s.reads != s.writes)}_l{s.lanes}x{share}{f'_b{s.resident}' * (s.depth > 1)}"
    )
    deep, beside, chunks = _tiles(c, s)
    tiles, each = -(-g.n // s.groups) * deep * beside * chunks, s.lines // stride
    rows = _blocks(c, s, device)[1]
    parts = -(-g.out[1] // min(rows, s.most_rows))
    rows = -(-g.out[1] // (parts * each)) * each  # as equal as they can be
    parts = -(-g.out[1] // rows)
    counts = {
        "chunks": chunks,
        "parts": parts,
        "tiles": beside,
        "depth_groups": deep,
        "across": s.across,
        "pitch": s.pitch,
    }
    divisors = {f"by_{name}": divisor(n) for name, n in counts.items()}
    xs, ys = (pixel_strides(c.memory.strides(spec.shape)) for spec in (c.x, c.y))
    kernel = Kernel(f"conv/{stem}.cu", name, config, (*["ptx/tma"] * bool(boxed), "conv/geometry"))
    shared = s.boxes if boxed else s.stages * (s.pixels * s.pixel + 16)
    record: Any = DepthwiseStripSm90Arguments if boxed else DepthwiseStripArguments
    arguments = record(
        _map(c, pointers[0], s) if boxed else pointers[0],
        *pointers[1:],
        batch=g.n,
        channels=channels,
        flip=int(c.flip),
        rows=rows,
        **counts,
        **divisors,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    return planned(kernel, (tiles * parts, 1, 1), s.threads, arguments, shared_memory=shared)
