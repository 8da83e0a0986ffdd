"""`depthwise` of half types on the tensor cores: rows of the window as banded matrices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv_depthwise_common import Correlation, is_flat
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Device
from dnnarray._spec import HALF

_THREADS, _CHANNELS = 256, 16
_STRIPS, _WIDTH = 16, 8  # rows of the matrix A, each a strip of columns
_SHARE = 12  # halves of pixels that a thread brings, at most
_MOST_COST = 4  # work for an output from which on the other kernels are as fast: small images fill a tile badly
_ROWS = {5: (8, 7), 7: (7,)}  # of a group, by the side of the window: what the registers of two blocks hold


@dataclass(frozen=True)
class DepthwiseMmaConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_mma.cu``."""

    element: str
    relu: bool
    side: int
    group: int
    share: int


@dataclass(frozen=True)
class _Strips:
    """How a tile lies: strips beside each other, groups of `rows` rows, and the planes in shared memory, in words."""

    across: int
    groups: int
    rows: int
    pitch: int
    plane: int
    share: int
    cost: float


@lru_cache(maxsize=1024)
def _strips(g: Geometry) -> _Strips | None:
    """The cheapest tile; its cost are strips computed and inputs brought for each output."""
    options = []
    for rows in _ROWS[g.window[1]]:
        for across in range(1, _STRIPS + 1):
            groups = min(_STRIPS // across, -(-g.out[1] // rows))
            pitch, high = (across + 1) * _WIDTH, groups * rows
            brought = (high + g.window[1] - 1) * pitch
            tiles = -(-g.out[2] // (across * _WIDTH)) * -(-g.out[1] // high)
            cost = tiles * (_STRIPS * _WIDTH * rows + brought) / (g.out[1] * g.out[2])
            share = -(-brought * 2 // _THREADS)
            if share <= _SHARE:
                options.append(_Strips(across, groups, rows, pitch, brought + (4 - brought) % 32, share, cost))
    return min(options, key=lambda s: s.cost) if options else None


def can_multiply(c: Correlation) -> bool:
    """Whether the tensor cores can do it, and well."""
    g = c.g
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    square = g.window[1] == g.window[2] and g.window[2] in _ROWS
    if not (c.x.dtype in HALF and c.plain and not c.gradient and c.whole_vectors and is_flat(g) and ones and square and not c.added):
        return False
    strips = _strips(g)
    return strips is not None and strips.cost < _MOST_COST


def multiplied(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, strips = c.g, _strips(c.g)
    assert strips is not None
    side = g.window[2]
    config = DepthwiseMmaConfig(TYPES[c.x.dtype], c.relu, side, strips.rows, strips.share)
    name = f"conv_depthwise_mma_{SHORT[c.x.dtype]}_s{side}_{strips.rows}x{strips.share}{'_relu' * c.relu}"
    tiles = g.n * -(-g.out[1] // (strips.groups * strips.rows)) * -(-g.out[2] // (strips.across * _WIDTH))
    chunks = -(-c.channels // _CHANNELS)
    blocks = min(tiles, max(2 * device.units // chunks, 1)) * chunks
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    image, weight, bias, _, target = pointers
    numbers = (g.n, c.channels, int(c.flip), strips.across, strips.groups, xs[0], *xs[3:], ys[0], *ys[3:])
    extents = (*g.space[1:], *g.out[1:], *g.before[1:], strips.pitch, strips.plane)
    shared = _CHANNELS // 2 * strips.plane * 4 + 2 * side * _THREADS * 8  # planes and bands
    kernel = Kernel("conv/depthwise_mma.cu", name, config)
    return Plan(kernel, (blocks, 1, 1), _THREADS, (image, weight, bias, target, *numbers, *extents), shared)
