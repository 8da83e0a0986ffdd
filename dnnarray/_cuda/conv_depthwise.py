"""Convolution of one channel a group: plans for the depthwise kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._problems import checks
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, Spec

_THREADS = 128
_STRIP, _ACROSS = 4, 4  # outputs of a thread, and strips beside each other in a block
_SHARED = 48 << 10  # bytes of weights that a block keeps
_WAVES = 16  # blocks of a multiprocessor, at most; each stays for many tiles, so that it loads its weights once
_SIDES = (3, 5, 7)


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
    threads: int


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
    """The memory that both have: results lie as the first input does."""
    order = x.axis_order() or tuple(range(x.ndim))
    channel = checks.channel_axis(layout, x.ndim)
    present = [i for i in order if (x.shape[i], y.shape[i]) != (1, 1)]
    wanted = [i for i in (0, *(i for i in range(1, x.ndim) if i != channel), channel) if i in present]
    return _Memory(order, y.shape[channel] > 1 and present == wanted, channel)


def _turned(g: Geometry) -> Geometry:
    """The convolution of stride 1 over the output's gradient that gives the input's, its weights turned round."""
    a, b, c = ((w - 1) * d - p for w, d, p in zip(g.window, g.dilation, g.before, strict=True))
    return replace(g, space=g.out, out=g.space, before=(a, b, c))


def _depthwise(problem: ConvProblem, g: Geometry, device: Device, aligned: bool, gradient: bool, flip: bool,
               pointers: tuple[Array, ...], epilogue: int = 0) -> Program:  # fmt: skip
    """One launch; `g` is read as a forward, or backwards as the gradient of one."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    memory = _memory(x, y, problem.layout)
    channels = y.shape[memory.channel]
    plain, fast = g.k == 1, not gradient and g.window[2] in _SIDES and g.stride[2] in (1, 2) and g.dilation[2] == 1
    extents = vector_length(x.dtype, aligned, channels) if memory.last else 1
    vector, lanes = extents, 8 if memory.last else 1
    weights = g.taps * lanes * vector * (8 if x.dtype == FLOAT64 else 4)
    staged = plain and memory.last and weights <= _SHARED
    relu = problem.activation is not None
    side, stride = (g.window[2], g.stride[2]) if fast else (0, 1)
    config = DepthwiseConfig(TYPES[x.dtype], gradient, staged, plain, relu, side, stride, vector, lanes, _THREADS)
    words = [f"conv_depthwise_{SHORT[x.dtype]}x{vector}", *(["gradient"] * gradient), *(["staged"] * staged)]
    words += ["multiplied"] * (not plain) + ["relu"] * relu + [f"s{side}_by_{stride}"] * fast + [f"l{lanes}"]
    outer, planes, vectors = (g.n, 1, channels // vector) if memory.last else (g.n * channels, channels, 1)
    down = _THREADS // lanes // _ACROSS
    into, space = (g.space, g.out) if gradient else (g.out, g.space)
    tiles = -(-outer * into[0] * into[1] // down) * -(-into[2] // (_STRIP * _ACROSS))
    chunks = -(-vectors // lanes)
    grid = (max(min(tiles, -(-device.units * _WAVES // chunks)) if staged else min(tiles, 1 << 30), 1), chunks, 1)
    axes: list[int] = []
    for i in range(3):
        axes += [into[i] << 32 | space[i], g.window[i] << 32 | g.stride[i], g.dilation[i] << 32 | g.before[i] & 0xFFFFFFFF]
    numbers = (outer, planes, vectors, g.k, epilogue | flip, *memory.strides(x.shape), *memory.strides(y.shape), *axes)
    plan = Plan(Kernel("conv/depthwise.cu", "_".join(words), config), grid, _THREADS, (*pointers, *numbers), weights if staged else 0)
    given = [s for s in problem.inputs if s is not None]
    orders = tuple(memory.order if s is x or (i > 1 and s.ndim == x.ndim) else tuple(range(s.ndim)) for i, s in enumerate(given))
    return Program((plan,), orders)


def forward(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """y from x: one launch with its epilogue."""
    y = problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    _, _, bias, residual = problem.inputs
    output = Array(2 + (bias is not None) + (residual is not None))
    extra = (Array(2) if bias is not None else output, Array(2 + (bias is not None)) if residual is not None else output)
    flags = 2 * (bias is not None) | 4 * (residual is not None)
    return _depthwise(problem, problem.geometry, device, aligned, False, problem.flip, (Array(0), Array(1), *extra, output), flags)


def input_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dx from dy: a forward with the weights turned round where the stride is 1, else a gather over the taps that meet."""
    g, dx = problem.geometry, problem.outputs[0]
    assert dx is not None
    if dx.size == 0:
        return Program(())
    pointers = (Array(0), Array(1), Array(2), Array(2), Array(2))
    if g.k == 1 and set(g.stride) == {1}:
        return _depthwise(problem, _turned(g), device, aligned, False, not problem.flip, pointers)
    return _depthwise(problem, g, device, aligned, True, problem.flip, pointers)


def rejects(problem: ConvProblem, device: Device) -> str | None:
    g: Any = problem.geometry
    if g.c != 1:
        return f"groups of {g.c} channels; it takes groups of one"
    if problem.activation is not None and problem.activation.name != "relu":
        return f"the fused activation {problem.activation.name}; it takes relu or none"
    largest = max(g.groups * g.k, g.taps, *g.space, *g.out, *g.stride, *(w * d for w, d in zip(g.window, g.dilation, strict=True)))
    if largest >= 1 << 29 or max(map(abs, g.before)) >= 1 << 29:
        return "an extent of 2^29 or more"
    return None
