"""`depthwise`: plans for convolutions of one channel a group, and their gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from dnnarray._cuda.channels import whole_lines
from dnnarray._cuda.channels import PartialSumsConfig
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._problems import checks
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT64, Spec

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


def _correlate(problem: ConvProblem, g: Geometry, x: Spec, y: Spec, device: Device, aligned: bool, gradient: bool, flip: bool,
               pointers: tuple[Array, ...], epilogue: int = 0) -> Plan:  # fmt: skip
    """One launch from x to y; `g` is read as a forward, or backwards as the gradient of one."""
    memory = _memory(x, y, problem.layout)
    channels = y.shape[memory.channel]
    plain, fast = g.k == 1, not gradient and _is_fast(g)
    tile = _tile(x, memory, channels, aligned, fast and (g.dilation[1] == 1 or g.window[1] == 1), (g.space if gradient else g.out)[2])
    weights = g.taps * tile.lanes * tile.vector * (8 if x.dtype == FLOAT64 else 4)
    staged = plain and memory.last and weights <= _SHARED
    relu = problem.activation is not None and not gradient and problem.inputs[0] is x
    side, stride = (g.window[2], g.stride[2]) if fast else (0, 1)
    config = DepthwiseConfig(
        TYPES[x.dtype], gradient, staged, plain, relu, side, stride, tile.vector, tile.lanes, tile.across, tile.rows, tile.strip, _THREADS
    )
    words = [f"conv_depthwise_{SHORT[x.dtype]}x{tile.vector}", *(["gradient"] * gradient), *(["staged"] * staged)]
    words += ["multiplied"] * (not plain) + ["relu"] * relu + [f"s{side}_by_{stride}"] * fast
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


def _orders(problem: ConvProblem, memory: _Memory) -> tuple[tuple[int, ...], ...]:
    """The memory orders that the launches expect: images as the first of them lies, weights and bias in C order."""
    rank, weight = problem.inputs[0].ndim, problem.inputs[1]
    given = [s for s in problem.inputs if s is not None]
    return tuple(memory.order if s.ndim == rank and s is not weight else tuple(range(s.ndim)) for s in given)


def forward(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """y from x: one launch with its epilogue."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    _, _, bias, residual = problem.inputs
    output = Array(2 + (bias is not None) + (residual is not None))
    extra = (Array(2) if bias is not None else output, Array(2 + (bias is not None)) if residual is not None else output)
    flags = 2 * (bias is not None) | 4 * (residual is not None)
    pointers = (Array(0), Array(1), *extra, output)
    plan = _correlate(problem, problem.geometry, x, y, device, aligned, False, problem.flip, pointers, flags)
    return Program((plan,), _orders(problem, _memory(x, y, problem.layout)))


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
    return Program((plan,), _orders(problem, _memory(dy, dx, problem.layout)))


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


def _weight_plans(
    problem: ConvProblem, x: Spec, dy: Spec, dw: Spec, aligned: bool, pointers: tuple[Array, Array, Array, Array]
) -> list[Plan]:
    """dw from dy and x: partial sums, then their sum. `pointers` are of dy, x, dw and the partial sums."""
    g, memory, s = problem.geometry, _memory(x, dy, problem.layout), _shares(problem, x, dy, _UNITS, aligned)
    source, image, target, partial = pointers
    plans, parts = [], s.parts
    if x.size and dy.size:
        fast = _is_fast(g)
        side, stride = (g.window[2], g.stride[2]) if fast else (0, 1)
        config = DepthwiseWeightConfig(TYPES[x.dtype], g.k == 1, side, stride, s.vector, s.lanes, _WSTRIP, 32 * _WARPS)
        words = [f"conv_depthwise_weight_{SHORT[x.dtype]}x{s.vector}", *(["multiplied"] * (g.k != 1)), *([f"s{side}_by_{stride}"] * fast)]
        kernel = Kernel("conv/depthwise_weight.cu", "_".join((*words, f"l{s.lanes}_{_WSTRIP}")), config)
        numbers = (g.n, dy.shape[memory.channel], g.k, int(problem.flip), s.splits, s.group)
        arguments = (source, image, partial, *numbers, *memory.strides(x.shape), *memory.strides(dy.shape), *_axes(g, g.out, g.space))
        grid = (s.chunks * s.splits, -(-s.members // s.group), 1)
        plans.append(Plan(kernel, grid, 32 * s.group * s.copies, arguments))
    else:
        partial, parts = target, 0
    lanes, threads = (32 if parts <= 1024 else 256), 256
    kernel = Kernel(
        "activation/partial_sums.cu",
        f"partial_sums_{SHORT[dw.dtype]}_{lanes}",
        PartialSumsConfig(TYPES[dw.dtype], lanes, threads),
        ("reduce",),
    )
    plans.append(Plan(kernel, (-(-dw.size // (threads // lanes)), 1, 1), threads, (partial, target, dw.size, parts)))
    return plans


def weight_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dw from dy and x."""
    (dy, x), dw = problem.inputs, problem.outputs[0]
    if dw.size == 0:
        return Program(())
    order = _memory(x, dy, problem.layout).order
    return Program(tuple(_weight_plans(problem, x, dy, dw, aligned, (Array(0), Array(1), Array(2), Array(3)))), (order, order))


def _weight_bytes(problem: ConvProblem, x: Spec, dy: Spec, dw: Spec) -> int:
    if not (x.size and dy.size):
        return 0
    parts = max(_shares(problem, x, dy, _UNITS, aligned).parts for aligned in (False, True))
    return whole_lines(dw.size * parts * problem.itemsize)


def _weight_workspace(problem: ConvProblem) -> int:
    dw = problem.outputs[0]
    assert dw is not None
    return _weight_bytes(problem, problem.inputs[1], problem.inputs[0], dw)


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
}
