"""`depthwise` by strips on the ordinary units, walking down channels-last images."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv_depthwise_common import SIDES, Correlation, is_flat, rows_of_a_block
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_LINES, _THREADS = 2, 128  # rows of inputs in a step
_STRIP = 7  # outputs of a thread: odd, so that the strips of a warp stand in other banks
_LANES = (32, 16, 8)  # vectors of channels of a block
_SHAPES = {(3, 4): (1, 5, 4), (5, 4): (1, 4, 4), (7, 4): (1, 3, 5), (3, 2): (2, 5, 4), (5, 2): (2, 3, 4), (7, 2): (1, 3, 5)}
"""By the side of the window and the bytes of an element: channels of a thread, blocks of a multiprocessor, steps in shared memory."""
_FEW_ROWS = 8  # of a block for a window of 3, where the halo is small: neighbours in memory are under way at the same time
_MOST_APART = 1 << 31  # elements of a tile


@frozen
class DepthwiseStripConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_strip.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    share: int
    stages: int
    threads: int
    blocks: int


def can_strip(c: Correlation) -> bool:
    """Whether strips can do it."""
    g = c.g
    square = g.window[1] == g.window[2] and g.window[2] in SIDES and g.stride[1] == g.stride[2] and set(g.dilation) == {1}
    near = max(g.space[1] * g.space[2], g.out[1] * g.out[2]) * c.channels * (_THREADS // _LANES[-1]) < _MOST_APART
    return c.plain and c.fast and square and near and is_flat(g) and c.whole_vectors and c.x.dtype != FLOAT64


def stripped(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, side, stride, size = c.g, c.g.window[2], c.g.stride[2], c.x.dtype.itemsize
    vector, resident, stages = _SHAPES[side, size]
    lanes = min(_LANES, key=lambda n: (-(-c.channels // (n * vector)) * n, -n))
    strips, channels = _THREADS // lanes, lanes * vector
    across = min(strips, -(-g.out[2] // _STRIP))
    groups = strips // across  # images beside each other
    pitch = (across * _STRIP - 1) * stride + side
    pixels = _LINES * groups * pitch
    share = -(-pixels // (_THREADS * 16 // (channels * size)))
    settings = (side, stride, vector, lanes, _STRIP, share, stages, _THREADS, resident)
    config = DepthwiseStripConfig(TYPES[c.x.dtype], c.added, c.relu, *settings)
    name = f"conv_depthwise_strip_{SHORT[c.x.dtype]}{'_added' * c.added}{'_relu' * c.relu}_s{side}_by_{stride}_l{lanes}x{share}"
    tiles = -(-g.n // groups) * -(-g.out[2] // (across * _STRIP)) * -(-c.channels // channels)
    rows = rows_of_a_block(g.out[1], tiles, device.units * resident, _LINES // stride, (side - 1) // stride)
    rows = min(rows, _FEW_ROWS) if side == 3 else rows
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    numbers = (g.n, c.channels, int(c.flip), across, rows, xs[0], *xs[3:], ys[0], *ys[3:], *g.space[1:], *g.out[1:], *g.before[1:])
    kernel = Kernel("conv/depthwise_strip.cu", name, config)
    shared = stages * (pixels * channels * size + 16)
    return Plan(kernel, (tiles * -(-g.out[1] // rows), 1, 1), _THREADS, (*pointers, *numbers), shared)
