"""`depthwise`: plans for convolutions of one channel a group, and their gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from dnnarray._cuda.activation import BiasBackwardConfig, ElementwiseConfig, struct_name
from dnnarray._cuda.channels import PartialSumsConfig, View, order_of, partial_bytes, reorder, sums, too_scattered, view, whole_lines
from dnnarray._cuda.loss_sums import NOTHING, pointers
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._problems import checks
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT64, HALF, Spec

_THREADS = 128
_STRIP, _ROWS, _VECTOR = map(int, os.environ.get("DW", "4,4,4").split(","))
_WSTRIP, _WBLOCKS = map(int, os.environ.get("DWW", "4,8").split(","))
_SHARED = 48 << 10  # bytes of weights that a block keeps
_WAVES = 16  # blocks of a multiprocessor, at most; each stays for many tiles, so that it loads its weights once
_SIDES = (3, 5, 7)
_GROUP, _WARPS = 8, 8  # rows of the window, and warps, of a block that sums the gradient of the weight


@dataclass(frozen=True)
class DepthwiseConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise.cu``."""

    element: str
    gradient: bool
    staged: bool
    plain: bool
    added: bool
    relu: bool
    side: int
    stride: int
    vector: int
    lanes: int
    across: int
    rows: int
    strip: int
    threads: int


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class DepthwiseMmaConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_mma.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    group: int


@dataclass(frozen=True)
class DepthwiseWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight.cu``."""

    element: str
    plain: bool
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@dataclass(frozen=True)
class DepthwiseWeightTileConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_tile.cu``."""

    element: str
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@dataclass(frozen=True)
class _Memory:
    """How the images lie: the axes from the slowest to the fastest, and whether the channels are the fastest."""

    order: tuple[int, ...]
    last: bool
    channel: int

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Along batch, channel and three spatial axes."""
        found, step = [0] * len(shape), 1
        for i in reversed(self.order):
            found[i] = step
            step *= max(shape[i], 1)
        spatial = [found[i] for i in range(1, len(shape)) if i != self.channel]
        return (found[0], found[self.channel], *(0,) * (3 - len(spatial)), *spatial)


def _memory(x: Spec, y: Spec, layout: str) -> _Memory:
    """The memory that both have: that of the first."""
    order = x.axis_order() or tuple(range(x.ndim))
    channel = checks.channel_axis(layout, x.ndim)
    present = [i for i in order if (x.shape[i], y.shape[i]) != (1, 1)]
    wanted = [i for i in (0, *(i for i in range(1, x.ndim) if i != channel), channel) if i in present]
    return _Memory(order, y.shape[channel] > 1 and present == wanted, channel)


@dataclass(frozen=True)
class _Tile:
    """What a thread and a block own: `rows` x `strip` outputs of `vector` channels; `lanes` vectors, `across` tiles beside each other."""

    vector: int
    lanes: int
    across: int
    rows: int
    strip: int


def _tile(x: Spec, memory: _Memory, channels: int, aligned: bool, several_rows: bool, width: int) -> _Tile:
    """The tile for results `width` wide."""
    rows, strips = _ROWS if several_rows else 1, -(-width // _STRIP)
    if memory.last:
        vector = min(vector_length(x.dtype, aligned, channels), _VECTOR)
        return _Tile(vector, 8, _fullest(strips, (4, 2, 1)), rows, _STRIP)
    return _Tile(1, 1, _fullest(strips, (32, 16, 8, 4)), rows, _STRIP)


def _fullest(strips: int, sizes: tuple[int, ...]) -> int:
    """The size whose multiple is least above the number of strips, the first of those where several are."""
    return min(sizes, key=lambda size: -(-strips // size) * size)


def _axes(g: Geometry, into: tuple[int, ...], space: tuple[int, ...]) -> list[int]:
    """The launch arguments for three spatial axes: pairs of 32 bits."""
    found: list[int] = []
    for i in range(3):
        dilation = g.dilation[i] if g.window[i] > 1 else 1
        found += [into[i] << 32 | space[i], g.window[i] << 32 | g.stride[i], dilation << 32 | g.before[i] & 0xFFFFFFFF]
    return found


def _turned(g: Geometry) -> Geometry:
    """The convolution of stride 1 over the output's gradient that gives the input's, its weights turned round."""
    a, b, c = ((w - 1) * d - p for w, d, p in zip(g.window, g.dilation, g.before, strict=True))
    return replace(g, space=g.out, out=g.space, before=(a, b, c))


def _is_fast(g: Geometry) -> bool:
    """Whether the last axis of the window is one that kernels are compiled for."""
    return g.window[2] in _SIDES and g.stride[2] in (1, 2) and g.dilation[2] == 1


_LANES, _USE, _MMA = 8, True, True
_TROWS, _TSTRIP, _TMOST, _TBLOCKS, _TWAVES, _TSHARED = 4, 4, 256, 2, 4, 100 << 10


def _tile_pixel(x: Spec, vector: int) -> int:
    """Bytes from pixel to pixel in shared memory."""
    size = _LANES * vector * x.dtype.itemsize
    return size + (16 if size % 128 and _TSTRIP % 2 == 0 else 0)


def _block_tile(g: Geometry, pixel: int, weights: int) -> tuple[int, int]:
    """Tiles beside and below each other in a block: the least waste of threads, halo and edges."""
    best, found = float("inf"), (1, 1)
    for across in range(1, 33):
        for down in range(1, 33):
            threads = -(-across * down * _LANES // 32) * 32
            wide, high = across * _TSTRIP, down * _TROWS
            columns, rows = (wide - 1) * g.stride[2] + g.window[2], (high - 1) * g.stride[1] + g.window[1]
            if not 96 <= threads <= _TMOST or columns * rows * pixel + weights > _TSHARED:
                continue
            tiles = -(-g.out[2] // wide) * -(-g.out[1] // high)
            cost = tiles * (threads / _LANES * _TSTRIP * _TROWS + 0.25 * columns * rows / g.stride[1] / g.stride[2])
            if cost < best:
                best, found = cost, (across, down)
    return found


def _tiled(problem: ConvProblem, g: Geometry, x: Spec, y: Spec, device: Device, flip: bool, pointers: tuple[Any, ...],
           flags: int, relu: bool) -> Plan:  # fmt: skip
    memory, vector = _memory(x, y, problem.layout), 2 if x.dtype == FLOAT64 else 4
    channels, weights, pixel = y.shape[memory.channel], g.taps * _LANES * vector * (8 if x.dtype == FLOAT64 else 4), _tile_pixel(x, vector)
    across, down = _block_tile(g, pixel, weights)
    wide, high = across * _TSTRIP, down * _TROWS
    config = DepthwiseTileConfig(
        TYPES[x.dtype], flags > 0, relu, g.window[2], g.stride[2], vector, _LANES, _TROWS, _TSTRIP, _TMOST, _TBLOCKS
    )
    name = f"conv_depthwise_tile_{SHORT[x.dtype]}x{vector}{'_added' * (flags > 0)}{'_relu' * relu}_s{g.window[2]}_by_{g.stride[2]}_l{_LANES}_{_TROWS}x{_TSTRIP}_{_TMOST}_{_TBLOCKS}"
    chunks = -(-channels // (_LANES * vector))
    tiles = g.n * g.out[0] * -(-g.out[1] // high) * -(-g.out[2] // wide)
    blocks = min(tiles, -(-device.units * _TWAVES // chunks)) * chunks
    xs, ys = (memory.strides(s.shape) for s in (x, y))
    numbers = (g.n, channels, flags | flip, across, down, xs[0], *xs[2:], ys[0], *ys[2:], *_axes(g, g.out, g.space))
    shared = ((high - 1) * g.stride[1] + g.window[1]) * ((wide - 1) * g.stride[2] + g.window[2]) * pixel + weights
    threads = -(-across * down * _LANES // 32) * 32
    return Plan(Kernel("conv/depthwise_tile.cu", name, config), (blocks, 1, 1), threads, (*pointers, *numbers), shared)


_STRIPS = 16  # rows of the matrix A
_MMA_CHANNELS = 16


@dataclass(frozen=True)
class _Strips:
    """How the tensor cores' tiles lie: strips of 8 columns beside each other, groups of `rows` rows, and the planes in shared memory."""

    across: int
    groups: int
    rows: int
    pitch: int
    plane: int

    @property
    def shared_memory(self) -> int:
        return 2 * _MMA_CHANNELS // 2 * self.plane * 4


def _strips(g: Geometry, side: int) -> tuple[float, _Strips]:
    """The cheapest tile, and its cost: strips computed and inputs brought for each output."""
    options = []
    for rows in (8, 7):
        for across in range(1, _STRIPS + 1):
            groups = min(_STRIPS // across, -(-g.out[1] // rows))
            pitch, high = across * 8 + 8, groups * rows
            plane = (high + side - 1) * pitch
            strips = _Strips(across, groups, rows, pitch, plane + (4 - plane) % 32)
            if strips.shared_memory > 100 << 10:
                continue
            tiles = -(-g.out[2] // (across * 8)) * -(-g.out[1] // high)
            brought = (high + side - 1) * pitch
            options.append((tiles * (_STRIPS * 8 * rows + brought) / (g.out[1] * g.out[2]), strips))
    return min(options, key=lambda option: option[0])


def _can_multiply(problem: ConvProblem, g: Geometry, x: Spec, memory: _Memory, channels: int, aligned: bool, flags: int) -> bool:
    """Whether the tensor cores can do it, and with what."""
    flat = g.window[0] == g.space[0] == g.out[0] == 1
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    if not (x.dtype in HALF and memory.last and g.k == 1 and aligned and channels % 8 == 0 and flat and ones and not flags & 4):
        return False
    return g.window[1] == g.window[2] and g.window[2] in _SIDES and _strips(g, g.window[2])[0] < 4


def _multiplied(problem: ConvProblem, g: Geometry, x: Spec, y: Spec, device: Device, flip: bool, pointers: tuple[Any, ...],
                flags: int, relu: bool) -> Plan:  # fmt: skip
    memory, side, strips = _memory(x, y, problem.layout), g.window[2], _strips(g, g.window[2])[1]
    channels, added = y.shape[memory.channel], flags > 0
    config = DepthwiseMmaConfig(TYPES[x.dtype], added, relu, side, strips.rows)
    name = f"conv_depthwise_mma_{SHORT[x.dtype]}_s{side}_{strips.rows}{'_added' * added}{'_relu' * relu}"
    tiles = g.n * -(-g.out[1] // (strips.groups * strips.rows)) * -(-g.out[2] // (strips.across * 8))
    chunks = -(-channels // _MMA_CHANNELS)
    blocks = min(tiles, max(2 * device.units // chunks, 1)) * chunks
    xs, ys = (memory.strides(s.shape) for s in (x, y))
    image, weight, bias, _, target = pointers
    numbers = (g.n, channels, int(flip), strips.across, strips.groups, xs[0], *xs[3:], ys[0], *ys[3:])
    extents = (*g.space[1:], *g.out[1:], *g.before[1:], strips.pitch, strips.plane)
    kernel = Kernel("conv/depthwise_mma.cu", name, config)
    return Plan(kernel, (blocks, 1, 1), 256, (image, weight, bias, target, *numbers, *extents), strips.shared_memory)


def _can_tile(g: Geometry, x: Spec, memory: _Memory, channels: int, aligned: bool) -> bool:
    weights = g.taps * 32 * 4
    flat = g.dilation[1] == 1 or g.window[1] == 1
    return (
        memory.last
        and g.k == 1
        and _is_fast(g)
        and flat
        and vector_length(x.dtype, aligned, channels) * x.dtype.itemsize == 16
        and weights < 32 << 10
        and g.window[1] <= 16
    )


def _correlate(problem: ConvProblem, g: Geometry, x: Spec, y: Spec, device: Device, aligned: bool, gradient: bool, flip: bool,
               pointers: tuple[Any, ...], epilogue: int = 0, relu: bool = False) -> Plan:  # fmt: skip
    """One launch from x to y; `g` is read as a forward, or backwards as the gradient of one."""
    memory = _memory(x, y, problem.layout)
    channels = y.shape[memory.channel]
    if not gradient and _MMA and _can_multiply(problem, g, x, memory, channels, aligned, epilogue):
        return _multiplied(problem, g, x, y, device, flip, pointers, epilogue, relu)
    if not gradient and _USE and _can_tile(g, x, memory, channels, aligned):
        return _tiled(problem, g, x, y, device, flip, pointers, epilogue, relu)
    plain, fast = g.k == 1, not gradient and _is_fast(g)
    tile = _tile(x, memory, channels, aligned, fast and (g.dilation[1] == 1 or g.window[1] == 1), (g.space if gradient else g.out)[2])
    weights = g.taps * tile.lanes * tile.vector * (8 if x.dtype == FLOAT64 else 4)
    staged = plain and memory.last and weights <= _SHARED
    side, stride = (g.window[2], g.stride[2]) if fast else (0, 1)
    config = DepthwiseConfig(
        TYPES[x.dtype],
        gradient,
        staged,
        plain,
        epilogue > 0,
        relu,
        side,
        stride,
        tile.vector,
        tile.lanes,
        tile.across,
        tile.rows,
        tile.strip,
        _THREADS,
    )
    words = [f"conv_depthwise_{SHORT[x.dtype]}x{tile.vector}", *(["gradient"] * gradient), *(["staged"] * staged)]
    words += ["multiplied"] * (not plain) + ["added"] * (epilogue > 0) + ["relu"] * relu + [f"s{side}_by_{stride}"] * fast
    words += [f"l{tile.lanes}_a{tile.across}_{tile.rows}x{tile.strip}"]
    outer, planes, vectors = (g.n, 1, channels // tile.vector) if memory.last else (g.n * channels, channels, 1)
    down = _THREADS // tile.lanes // tile.across
    into, space = (g.space, g.out) if gradient else (g.out, g.space)
    tiles = -(-outer * into[0] * -(-into[1] // tile.rows) // down) * -(-into[2] // (tile.strip * tile.across))
    chunks = -(-vectors // tile.lanes)
    blocks = min(tiles, -(-device.units * _WAVES // chunks) if staged else (1 << 30) // chunks)
    grid = (max(blocks, 1) * chunks, 1, 1)
    numbers = (outer, planes, vectors, g.k, epilogue | flip, *memory.strides(x.shape), *memory.strides(y.shape), *_axes(g, into, space))
    return Plan(Kernel("conv/depthwise.cu", "_".join(words), config), grid, _THREADS, (*pointers, *numbers), weights if staged else 0)


def _orders(problem: ConvProblem, x: Spec, y: Spec, weight: int = 1) -> tuple[tuple[int, ...], ...]:
    """The memory orders that the launches expect: images as x lies, input number `weight` and the bias in C order."""
    order = _memory(x, y, problem.layout).order
    given = [(i, s) for i, s in enumerate(problem.inputs) if s is not None]
    return tuple(order if s.ndim == x.ndim and i != weight else tuple(range(s.ndim)) for i, s in given)


def _forward_plan(problem: ConvProblem, x: Spec, y: Spec, device: Device, aligned: bool, arrays: tuple[Any, ...], target: Array) -> Plan:
    """y from x, w, bias and residual (`NOTHING` where one is absent): one launch with its epilogue."""
    _, _, bias, residual = arrays
    flags = 2 * (bias != NOTHING) | 4 * (residual != NOTHING)
    relu = problem.activation is not None
    return _correlate(problem, problem.geometry, x, y, device, aligned, False, problem.flip, (*arrays, target), flags, relu)


def forward(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """y from x."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    inputs, outputs, _ = pointers(problem)
    plan = _forward_plan(problem, x, y, device, aligned, tuple(inputs), outputs[0])
    return Program((plan,), _orders(problem, x, y))


def _input_plan(problem: ConvProblem, dy: Spec, dx: Spec, device: Device, aligned: bool, pointers: tuple[Array, Array, Array]) -> Plan:
    """dx from dy and w: a forward with the weights turned round where the stride is 1, else a gather over the taps that meet."""
    g, every = problem.geometry, (*pointers, pointers[2], pointers[2])
    if g.k == 1 and set(g.stride) == {1}:
        return _correlate(problem, _turned(g), dy, dx, device, aligned, False, not problem.flip, every)
    return _correlate(problem, g, dy, dx, device, aligned, True, problem.flip, every)


def input_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dx from dy."""
    dy, dx = problem.inputs[0], problem.outputs[0]
    assert dx is not None
    if dx.size == 0:
        return Program(())
    plan = _input_plan(problem, dy, dx, device, aligned, (Array(0), Array(1), Array(2)))
    return Program((plan,), _orders(problem, dy, dx))


# --- the gradient of the weight ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shares:
    """How the sums over pixels are divided: vectors and lanes of channels, rows of the window and copies of them in a block, splits."""

    vector: int
    lanes: int
    chunks: int
    members: int
    group: int
    copies: int
    splits: int

    @property
    def parts(self) -> int:
        return self.splits * self.copies


def _shares(problem: ConvProblem, x: Spec, dy: Spec, units: int, aligned: bool) -> _Shares:
    g, memory = problem.geometry, _memory(x, dy, problem.layout)
    channels = dy.shape[memory.channel]
    vector, lanes = (min(vector_length(x.dtype, aligned, channels), _VECTOR), 8) if memory.last else (1, 1)
    members = g.taps // (g.window[2] if _is_fast(g) else 1)
    group = min(members, _GROUP)
    copies = max(_WARPS // group, 1)
    chunks = -(-channels // (vector * lanes))
    rows = g.n * g.out[0] * g.out[1]
    splits = max(1, min(-(-rows // copies), -(-units * _WBLOCKS // (chunks * -(-members // group)))))
    return _Shares(vector, lanes, chunks, members, group, copies, splits)


_UNITS = 132
_WUSE, _WTSHARED, _WTBLOCKS, _WTSTRIP = True, 108 << 10, 2, 7


@dataclass(frozen=True)
class _WeightTile:
    """Tiles of dy that a block brings to shared memory, and how many blocks share them."""

    lanes: int
    wide: int
    high: int
    copies: int
    chunks: int
    splits: int
    shared_memory: int


def _weight_tile(problem: ConvProblem, x: Spec, dy: Spec, aligned: bool) -> _WeightTile | None:
    """The tile with the least halo and waste, or None where the kernel that brings none must do it."""
    g, memory = problem.geometry, _memory(x, dy, problem.layout)
    channels, side, stride = dy.shape[memory.channel], g.window[2], g.stride[2]
    flat = g.window[0] == g.space[0] == g.out[0] == 1 and g.window[1] == side and g.stride[1] == stride and g.dilation[1] == 1
    vectors = vector_length(x.dtype, aligned, channels) * x.dtype.itemsize == 16
    if not (_WUSE and memory.last and g.k == 1 and _is_fast(g) and flat and vectors and x.dtype != FLOAT64):
        return None
    lanes = 16 // x.dtype.itemsize
    pixel = lanes * 4 * x.dtype.itemsize
    best, found = float("inf"), (0, 0, 0)
    for strips in range(1, 17):
        for high in range(1, 33):
            wide = strips * _WTSTRIP
            columns, rows = (wide - 1) * stride + side, (high - 1) * stride + side
            size = (columns * rows + wide * high) * pixel
            if size > _WTSHARED:
                continue
            tiles = -(-g.out[2] // wide) * -(-g.out[1] // high)
            idle = -(-strips // (32 // lanes)) * (32 // lanes) / strips
            cost = tiles * (wide * high * idle * side / 3 + 0.5 * (columns * rows + wide * high))
            if cost < best:
                best, found = cost, (wide, high, size)
    wide, high, size = found
    chunks = -(-channels // (lanes * 4))
    copies = max(_WARPS // side, 1)
    tiles = g.n * -(-g.out[2] // wide) * -(-g.out[1] // high)
    return _WeightTile(lanes, wide, high, copies, chunks, max(1, min(tiles, _UNITS * _WTBLOCKS // chunks)), size)


def _weight_tile_plan(problem: ConvProblem, x: Spec, dy: Spec, tile: _WeightTile, pointers: tuple[Any, Any, Any]) -> Plan:
    g, memory, side = problem.geometry, _memory(x, dy, problem.layout), problem.geometry.window[2]
    config = DepthwiseWeightTileConfig(TYPES[x.dtype], side, g.stride[2], 4, tile.lanes, _WTSTRIP, 256)
    name = f"conv_depthwise_weight_tile_{SHORT[x.dtype]}_s{side}_by_{g.stride[2]}_{_WTSTRIP}"
    xs, ys = (memory.strides(s.shape) for s in (x, dy))
    numbers = (g.n, dy.shape[memory.channel], int(problem.flip), tile.splits, tile.wide, tile.high, xs[0], *xs[3:], ys[0], *ys[3:])
    arguments: tuple[Any, ...] = (*pointers, *numbers, *g.space[1:], *g.out[1:], *g.before[1:])
    threads = 32 * side * tile.copies
    kernel = Kernel("conv/depthwise_weight_tile.cu", name, config)
    return Plan(kernel, (tile.chunks * tile.splits, 1, 1), threads, arguments, tile.shared_memory)


def _weight_plans(
    problem: ConvProblem, x: Spec, dy: Spec, dw: Spec, aligned: bool, pointers: tuple[Array, Array, Array, Array]
) -> list[Plan]:
    """dw from dy and x: partial sums, then their sum. `pointers` are of dy, x, dw and the partial sums."""
    g, memory, s = problem.geometry, _memory(x, dy, problem.layout), _shares(problem, x, dy, _UNITS, aligned)
    source, image, target, partial = pointers
    plans, parts = [], s.parts
    tile = _weight_tile(problem, x, dy, aligned) if x.size and dy.size else None
    if tile is not None:
        plans.append(_weight_tile_plan(problem, x, dy, tile, (source, image, partial)))
        parts = tile.splits * tile.copies
    elif x.size and dy.size:
        fast = _is_fast(g)
        side, stride = (g.window[2], g.stride[2]) if fast else (0, 1)
        config = DepthwiseWeightConfig(TYPES[x.dtype], g.k == 1, side, stride, s.vector, s.lanes, _WSTRIP, 32 * _WARPS)
        words = [f"conv_depthwise_weight_{SHORT[x.dtype]}x{s.vector}", *(["multiplied"] * (g.k != 1)), *([f"s{side}_by_{stride}"] * fast)]
        kernel = Kernel("conv/depthwise_weight.cu", "_".join((*words, f"l{s.lanes}_{_WSTRIP}")), config)
        numbers = (g.n, dy.shape[memory.channel], g.k, int(problem.flip), s.splits, s.group)
        arguments: tuple[Any, ...] = (
            source,
            image,
            partial,
            *numbers,
            *memory.strides(x.shape),
            *memory.strides(dy.shape),
            *_axes(g, g.out, g.space),
        )
        grid = (s.chunks * s.splits, -(-s.members // s.group), 1)
        plans.append(Plan(kernel, grid, 32 * s.group * s.copies, arguments))
    else:
        partial, parts = target, 0
    return [*plans, _added_up(partial, target, dw, dw.size, parts)]


def _added_up(partial: Any, target: Array, spec: Spec, count: int, parts: int) -> Plan:
    """The sums of `parts` neighbouring partial sums each."""
    lanes, threads = (32 if parts <= 1024 else 256), 256
    config = PartialSumsConfig(TYPES[spec.dtype], lanes, threads)
    kernel = Kernel("activation/partial_sums.cu", f"partial_sums_{SHORT[spec.dtype]}_{lanes}", config, ("reduce",))
    return Plan(kernel, (-(-count // (threads // lanes)), 1, 1), threads, (partial, target, count, parts))


def weight_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dw from dy and x."""
    dy, x = problem.inputs
    dw = problem.outputs[0]
    assert dw is not None
    if dw.size == 0:
        return Program(())
    order = _memory(x, dy, problem.layout).order
    return Program(tuple(_weight_plans(problem, x, dy, dw, aligned, (Array(0), Array(1), Array(2), Array(3)))), (order, order))


def _weight_bytes(problem: ConvProblem, x: Spec, dy: Spec, dw: Spec) -> int:
    if not (x.size and dy.size):
        return 0
    tile = _weight_tile(problem, x, dy, True)
    parts = max(_shares(problem, x, dy, _UNITS, aligned).parts for aligned in (False, True))
    if tile is not None:
        parts = max(parts, tile.splits * tile.copies)
    return whole_lines(dw.size * parts * problem.itemsize)


def _weight_workspace(problem: ConvProblem) -> int:
    dw = problem.outputs[0]
    assert dw is not None
    return _weight_bytes(problem, problem.inputs[1], problem.inputs[0], dw)


# --- all gradients ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Parts:
    """Scratch memory: partial sums for weight and bias, the output that an activation needs again, the gradient behind it."""

    weight: Array
    bias: Array
    y: Array
    g: Array
    size: int


def _channel_view(problem: ConvProblem, x: Spec, dy: Spec) -> View:
    memory = _memory(x, dy, problem.layout)
    found = view(dy.shape, memory.order, [memory.channel])
    assert found is not None
    return found


def _parts(problem: ConvProblem, index: int) -> _Parts:
    dy, x, weight, bias, _ = problem.inputs
    of_bias = 0 if bias is None or not dy.size else partial_bytes(_channel_view(problem, x, dy), x.dtype)
    image = whole_lines(dy.nbytes) if problem.activation is not None else 0
    places: list[Array] = []
    place = 0
    for size in (_weight_bytes(problem, x, dy, weight), of_bias, image, image):
        places.append(Array(index, place))
        place += size
    return _Parts(places[0], places[1], places[2], places[3], place)


def _through_activation(spec: Spec, aligned: bool, dy: Array, y: Array, target: Array) -> Plan:
    vector = vector_length(spec.dtype, aligned)
    config = ElementwiseConfig(TYPES[spec.dtype], struct_name("relu"), True, vector, _THREADS)
    kernel = Kernel("activation/elementwise.cu", f"relu_elementwise_backward_{SHORT[spec.dtype]}x{vector}", config, ("activation",))
    return Plan(kernel, (-(-spec.size // (_THREADS * vector)), 1, 1), _THREADS, (dy, y, target, spec.size, 0.0, 0.0))


def _bias_plans(problem: ConvProblem, x: Spec, dy: Spec, aligned: bool, g: Array, target: Array, partial: Array) -> list[Plan]:
    """The gradient summed over all but the channel."""
    bias = problem.inputs[3]
    assert bias is not None
    if not dy.size:
        return [_added_up(target, target, bias, bias.size, 0)]
    s = sums(_channel_view(problem, x, dy), x.dtype, aligned)
    config = BiasBackwardConfig(TYPES[x.dtype], "dnnarray::Identity", False, s.columns, s.vector, _THREADS)
    kernel = Kernel("activation/bias_backward.cu", f"channel_sums_{SHORT[x.dtype]}x{s.vector}_{s.name}", config, ("activation",))
    arguments = (g, g, g, g, NOTHING, NOTHING, partial, *s.sizes, 0.0, 0.0)
    return [Plan(kernel, (s.blocks, 1, 1), _THREADS, arguments), _added_up(partial, target, bias, s.view.channels, s.parts)]


def gradients(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dx, dw, dbias and dresidual from the gradient that the activation lets through."""
    dy, x, _, bias, residual = problem.inputs
    dx, dw = problem.outputs[:2]
    assert dx is not None
    assert dw is not None
    (g, *arrays), outputs, last = pointers(problem)
    parts, y = _parts(problem, last), x.like(dy.shape)
    plans: list[Plan] = []
    if problem.activation is not None and dy.size:
        plans.append(_forward_plan(problem, x, y, device, aligned, tuple(arrays), parts.y))
        plans.append(_through_activation(y, aligned, g, parts.y, parts.g))
        g = parts.g
    if dx.size:
        plans.append(_input_plan(problem, y, dx, device, aligned, (g, arrays[1], outputs[0])))
    if dw.size:
        plans += _weight_plans(problem, x, y, dw, aligned, (g, arrays[0], outputs[1], parts.weight))
    if bias is not None and bias.size:
        plans += _bias_plans(problem, x, y, aligned, g, outputs[2], parts.bias)
    if residual is not None and residual.size:
        plans.append(reorder(residual, _memory(x, y, problem.layout).order, g, outputs[3]))
    return Program(tuple(plans), _orders(problem, x, y, weight=2))


def _scattered(problem: ConvProblem, device: Device) -> str | None:
    residual, x = problem.inputs[4], problem.inputs[1]
    reason = _rejects(problem, device)
    return reason if reason or residual is None else too_scattered(residual.shape, order_of(residual), order_of(x))


def _rejects(problem: ConvProblem, device: Device) -> str | None:
    g: Any = problem.geometry
    if g.c != 1:
        return f"groups of {g.c} channels; it takes groups of one"
    if problem.activation is not None and problem.activation.name != "relu":
        return f"the fused activation {problem.activation.name}; it takes relu or none"
    largest = max(g.groups * g.k, g.taps, *g.space, *g.out, *g.stride, *(w * d for w, d in zip(g.window, g.dilation, strict=True)))
    if largest >= 1 << 29 or max(map(abs, g.before)) >= 1 << 29:
        return "an extent of 2^29 or more"
    return None


_SUMS = "each row of the window against all pixels, partial sums added up in a fixed order"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "conv": (Method("depthwise", forward, "one channel a group: windows in registers, no matrix product", _rejects),),
    "conv_backward_input": (Method("depthwise", input_gradient, "the forward turned round, or a gather for strides", _rejects),),
    "conv_backward_weight": (Method("depthwise", weight_gradient, _SUMS, _rejects, _weight_workspace),),
    "conv_backward": (Method("depthwise", gradients, "all gradients one after the other", _scattered, lambda p: _parts(p, 0).size),),
}
