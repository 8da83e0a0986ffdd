"""`depthwise` without shared images: any window, stride, dilation, multiplier, memory order; the gather of the strided
gradient."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides
from dnnarray._cuda.conv.depthwise_common import Correlation, DepthwiseArguments, axes
from dnnarray._cuda.core.arguments import Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
_STRIP, _ROWS, _VECTOR, _LANES = 4, 4, 4, 8  # outputs and channels of a thread, threads over the channels
_SHARED = 48 << 10  # bytes of weights that a block keeps
_WAVES = 16  # blocks of a multiprocessor, at most; each stays for many tiles, so that it loads its weights once


@frozen
class DepthwiseDirectConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_direct.cu``."""

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


@frozen
class DepthwiseDirectArguments(DepthwiseArguments):
    """What ``kernels/conv/depthwise_direct.cu`` is called with."""

    outer: Int
    planes: Int
    vectors: Int
    multiplier: Int
    flip: Int
    x_strides: ImageStrides
    y_strides: ImageStrides
    axes: ConvAxes


def _across(strips: int, sizes: tuple[int, ...]) -> int:
    """The size whose multiple is least above the number of strips, the first of those where several are."""
    return min(sizes, key=lambda size: -(-strips // size) * size)


def direct(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, memory = c.g, c.memory
    into, space = (g.space, g.out) if c.gradient else (g.out, g.space)
    strips, rows = -(-into[2] // _STRIP), _ROWS if c.fast and (g.dilation[1] == 1 or g.window[1] == 1) else 1
    if memory.last:
        vector, lanes, across = (
            min(vector_length(c.x.dtype, c.aligned, c.channels), _VECTOR),
            _LANES,
            _across(strips, (4, 2, 1)),
        )
    else:
        vector, lanes, across = 1, 1, _across(strips, (32, 16, 8, 4))
    weights = g.taps * lanes * vector * c.computed
    staged = c.plain and memory.last and weights <= _SHARED
    side, stride = (g.window[2], g.stride[2]) if c.fast else (0, 1)
    flags = (c.gradient, staged, c.plain, c.added, c.relu)
    config = DepthwiseDirectConfig(
        TYPES[c.x.dtype], *flags, side, stride, vector, lanes, across, rows, _STRIP, _THREADS
    )
    words = [f"conv_depthwise_direct_{SHORT[c.x.dtype]}x{vector}", *(["gradient"] * c.gradient), *(["staged"] * staged)]
    words += (
        ["multiplied"] * (not c.plain) + ["added"] * (c.added) + ["relu"] * c.relu + [f"s{side}_by_{stride}"] * c.fast
    )
    words += [f"l{lanes}_a{across}_r{rows}"]
    outer, planes, vectors = (g.n, 1, c.channels // vector) if memory.last else (g.n * c.channels, c.channels, 1)
    tiles = -(-outer * into[0] * -(-into[1] // rows) // (_THREADS // lanes // across)) * -(
        -into[2] // (_STRIP * across)
    )
    chunks = -(-vectors // lanes)
    blocks = min(tiles, -(-device.units * _WAVES // chunks) if staged else (1 << 30) // chunks)
    grid = (max(blocks, 1) * chunks, 1, 1)
    arguments = DepthwiseDirectArguments(
        pointers[0],
        pointers[1],
        pointers[2],
        pointers[3],
        pointers[4],
        outer=outer,
        planes=planes,
        vectors=vectors,
        multiplier=g.k,
        flip=int(c.flip),
        x_strides=memory.strides(c.x.shape),
        y_strides=memory.strides(c.y.shape),
        axes=axes(g, into, space),
    )
    kernel = Kernel("conv/depthwise_direct.cu", "_".join(words), config, ("conv/geometry",))
    return planned(kernel, grid, _THREADS, arguments, shared_memory=weights if staged else 0)
