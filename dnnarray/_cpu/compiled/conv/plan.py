"""How a convolution without im2col is cut into tasks, and the numbers that its kernels get. Imports Numba for the
length of a vector alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.memory import ALIGNMENT
from dnnarray._cpu.compiled.tile import BYTES, DOTS, LONG_VECTORS, ROWS, VECTORS, lanes
from dnnarray._cpu.conv.blocks import Shape, block_extents, even_parts
from dnnarray._problems.conv_geometry import Geometry, Triple

_BLOCK_ELEMENTS = 1 << 15  # of a block's image or result: they share the second-level cache with a slice of the weight
_MIN_PIXELS = 192  # of a block: what the weight's trip from memory is shared among
_STEPS = (
    512  # channels times taps of one pass over the pixels: a tile of the weight then stays in the first-level cache
)
# steps that the gradient of an input adds up in a row, to round as little as PyTorch's: 5 to 10% of the time on one
# core
_BACK_CHAIN = 24
# the same forward, where PyTorch's rounds less with AVX-512 alone: 4 to 6% of the time
_FORWARD_CHAIN = 48 if BYTES == 64 else _STEPS
_FEW, _FEW_CHAIN = (
    64,
    9,
)  # steps whose products take so little beside the passes over memory that short chains cost nothing, and those
_WEIGHT_ELEMENTS = 1 << 15  # of the weight between two passes over the pixels
_GATHER = 1.2  # cycles to gather an element, against those of a vector's multiply-add
_TASKS_PER_CORE = 4  # where the extents allow it: the parts are cut beforehand, and cores are not equally fast
_LEAST_ROWS = 4  # tiles of the weight in a task, or its image costs more than its products


# Where the kernel finds its numbers; three entries for the axes D H W where it says so.
(
    N_AT,
    GROUPS_AT,
    C_AT,
    K_AT,
    ITEM_AT,
    LANES_AT,
    WIDTH_AT,
    LONG_AT,
    FLAT_AT,
    STEP_COUNT_AT,
    WEIGHT_ROWS_AT,
    ROWS_AT,
    PARTS_AT,
    SCRATCH_AT,
    TABLE_AT,
) = range(15)
SPACE_AT, OUT_AT, STRIDE_AT, BEFORE_AT, COVERED_AT, PHASE_AT, BLOCK_AT = range(15, 36, 3)  # axes
BLOCK_IMAGES_AT = 36
(
    CHANNEL_TASKS_AT,
    IMAGE_ELEMENTS_AT,
    PACKED_ELEMENTS_AT,
    RESULT_PIXELS_AT,
    CHANNEL_ROWS_AT,
    TASKS_AT,
    TILES_AT,
    DEPTH_AT,
    SLACK_AT,
    CHAIN_AT,
    WINDOW_AT,
) = range(37, 48)
COUNT_AT = 50
XN_AT, XG_AT, XC_AT, XD_AT, XH_AT, XW_AT, YN_AT, YG_AT, YK_AT, YD_AT, YH_AT, YW_AT = range(12)  # byte strides

# --- the plan ---------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a geometry is cut into tasks, for elements of one size."""

    numbers: np.ndarray  # what the kernels call `geo`
    taps: np.ndarray  # byte offset of each channel and tap in the image
    parts: int
    shapes: tuple[Shape, ...]  # of scratch: the packed weight, each part's memory, each part's table of 64-bit integers


def even_extent(extent: int, size: int) -> int:
    """The size nearest to `size` that cuts the extent into nearly equal blocks."""
    return -(-extent // max(round(extent / size), 1))


def _blocking(g: Geometry, flat: bool) -> tuple[int, Triple]:
    """Images and output extents of a block."""
    n, *extents = block_extents(g, max(_BLOCK_ELEMENTS // max(g.c * math.prod(g.stride), g.k), _MIN_PIXELS))
    d, h, w = (even_extent(m, b) for m, b in zip(g.out, extents, strict=True))
    if flat:
        return 1, (d if g.stride[1:] == (1, 1) else 1, h, w)  # else the other phases lie between two planes
    return even_extent(g.n, n), (d, h, w)


@lru_cache(maxsize=1024)
def plan(g: Geometry, itemsize: int, gaps: bool = False, back: bool = False) -> Plan:
    """The plan for a geometry that has no extent of 0; `gaps` asks for a flat one, `back` for that of a gradient."""
    long = g.k == 1
    rows, width = (1, LONG_VECTORS * lanes(itemsize)) if long else (ROWS, VECTORS * lanes(itemsize))
    flat = gaps or _is_flat(g, width)
    n, extents = _blocking(g, flat)
    phases = [-(-m // s) for m, s in zip(g.reach(extents), g.stride, strict=True)]
    line, area = phases[2], phases[1] * phases[2]  # of one phase
    plane = area * g.stride[1] * g.stride[2]
    volume = plane * phases[0] * g.stride[0]
    pixels = (extents[0] - 1) * plane + (extents[1] - 1) * line + extents[2] if flat else n * math.prod(extents)
    tiles, depth = -(-pixels // width), g.c * g.taps
    steps = even_parts(depth, _STEPS)
    blocks = -(-g.n // n) * math.prod(-(-m // b) for m, b in zip(g.out, extents, strict=True))
    shares, channel_rows = channel_shares(g, blocks, rows)
    parts = min(threads.cores(), blocks * shares)
    image, packed, result = (
        lines(m) for m in (n * g.c * volume + width, 0 if flat else tiles * steps * width, channel_rows * tiles * width)
    )
    memory, table = image + packed + result + lines(DOTS * lanes(itemsize)), steps + tiles + (0 if flat else pixels)
    numbers = _numbers(
        {
            N_AT: g.n,
            GROUPS_AT: g.groups,
            C_AT: g.c,
            K_AT: g.k,
            SPACE_AT: g.space,
            OUT_AT: g.out,
            STRIDE_AT: g.stride,
            BEFORE_AT: g.before,
            WINDOW_AT: g.window,
            COVERED_AT: g.reach((1, 1, 1)),
            PHASE_AT: phases,
            BLOCK_AT: extents,
            BLOCK_IMAGES_AT: n,
            ITEM_AT: itemsize,
            LANES_AT: lanes(itemsize),
            WIDTH_AT: width,
            LONG_AT: long,
            FLAT_AT: flat,
            STEP_COUNT_AT: steps,
            CHAIN_AT: _chain(steps, back, long),
            DEPTH_AT: depth,
            ROWS_AT: rows,
            WEIGHT_ROWS_AT: max(_WEIGHT_ELEMENTS // steps // rows, 1) * rows,
            PARTS_AT: parts,
            SCRATCH_AT: memory,
            TABLE_AT: table,
            TASKS_AT: blocks * shares,
            TILES_AT: tiles,
            CHANNEL_TASKS_AT: shares,
            CHANNEL_ROWS_AT: channel_rows,
            PACKED_ELEMENTS_AT: packed,
            RESULT_PIXELS_AT: tiles * width,
            IMAGE_ELEMENTS_AT: image,
            SLACK_AT: image - n * g.c * volume,
        }
    )
    weight = g.groups * -(-g.k // rows) * rows * depth
    return Plan(
        numbers,
        _taps(g, volume, (plane, line, 1), (phases[0] * plane, area * g.stride[2], area)) * itemsize,
        parts,
        ((weight,), (parts * memory + ALIGNMENT,), (2 * parts, table)),
    )


def _chain(steps: int, back: bool, long: bool) -> int:
    """Steps of a pass that are added up in a row, before their sums are."""
    return even_parts(
        steps, _FEW_CHAIN if steps <= _FEW else _BACK_CHAIN if back else _STEPS if long else _FORWARD_CHAIN
    )


def _numbers(values: dict[int, int | Sequence[int]]) -> np.ndarray:
    """A number, or the numbers along the axes, at each of these places."""
    numbers = np.zeros(COUNT_AT, np.int64)
    for at, value in values.items():
        numbers[at : at + np.size(value)] = value
    return numbers


def lines(elements: int) -> int:
    """Whole cache lines, whatever the element."""
    return -(-elements // ALIGNMENT) * ALIGNMENT


def _taps(g: Geometry, volume: int, steps: Sequence[int], phases: Sequence[int]) -> np.ndarray:
    """The offset of each channel and tap in the image, in elements: a tap stands in its phase of the stride. The last
    one again, for `dots`.

    `steps` lead to the next pixel of a phase along each axis, `phases` to the next phase.
    """
    total = np.arange(g.c).reshape(-1, 1, 1, 1) * volume
    for axis, (step, phase, stride, dilation) in enumerate(zip(steps, phases, g.stride, g.dilation, strict=True)):
        position = np.arange(g.window[axis]) * dilation
        offset = position % stride * phase + position // stride * step
        total = total + offset.reshape([-1 if i == axis else 1 for i in range(3)])
    return np.pad(total.reshape(-1).astype(np.int64), (0, DOTS - 1), mode="edge")


def channel_shares(g: Geometry, blocks: int, rows: int) -> tuple[int, int]:
    """Into how many tasks the channels of a block are split, so that the cores have enough of them, and the output
    channels of one."""
    wanted = -(-_TASKS_PER_CORE * threads.cores() // blocks)
    if g.groups > 1:
        return min(wanted, g.groups), g.k
    most = max(g.k // (_LEAST_ROWS * rows), 1)
    channels = -(-g.k // (min(wanted, most) * rows)) * rows
    return -(-g.k // channels), channels


def _is_flat(g: Geometry, width: int) -> bool:
    """Whether to compute the gaps between the rows of the image rather than to gather the tiles that span them."""
    line = -(-g.reach(g.out)[2] // g.stride[2])
    gathered = 0.0 if g.out[2] % width == 0 else min(width / g.out[2], 1.0)
    return (line / g.out[2] - 1) * g.k < gathered * _GATHER * width


@lru_cache(maxsize=1024)
def buffers(g: Geometry, gaps: bool = False) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return tuple(
        max(pair, key=math.prod) for pair in zip(plan(g, 4, gaps).shapes, plan(g, 8, gaps).shapes, strict=True)
    )
