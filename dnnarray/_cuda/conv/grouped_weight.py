"""`grouped`: the gradient of the weight, several groups together as one product of the matrix units."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, PixelStrides
from dnnarray._cuda.conv.grouped import HALF_SHARED, Shares, Sides, Slab, outputs, shares, slab, stacked, sums_plan
from dnnarray._cuda.conv.tiling import PLANNED
from dnnarray._cuda.core.arguments import Arguments, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_PAIRS = 5  # of items, whose sums a warp has
_WARPS = 8
_INPUT, _OUTPUT, _TILE = 1.0, 1.5, 60.0  # time of an input of a tile, of an output, of its beginning and end


@frozen
class GroupedWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_weight.cu``."""

    element: str
    pairs: int
    n: int
    threads: int


@frozen
class GroupedWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped_weight.cu`` is called with: `Shares` of the sums, `depths` x `rows` x `columns`
    outputs a tile."""

    dy: In
    x: In
    partial: FloatOut
    batch: Int
    groups: Int
    c: Int
    k: Int
    together: Int
    across: Int
    ranges: Int
    tasks: Int
    parts: Int
    item_parts: Int
    depths: Int
    rows: Int
    columns: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


@frozen
class Tasks:
    """How the sums of a slab are divided: chunks of outputs of a warp, parts of the items, and who has which."""

    n: int
    item_parts: int
    shares: Shares


def _tasks(s: Slab, groups: int, taps: int) -> Tasks:
    """At most 80 sums of a thread."""
    n, parts = outputs(s)
    item_parts = -(-taps * s.inputs // (2 * _PAIRS))
    return Tasks(n, item_parts, shares(s, groups, parts * item_parts, _WARPS))


@frozen
class WeightSplit:
    """The tile of a block, the tasks, the partial sums, and the time."""

    sides: tuple[int, int, int]
    tasks: Tasks
    splits: int
    shared_memory: int
    time: float

    @property
    def count(self) -> int:
        """Partial sums."""
        return self.splits * self.tasks.shares.copies


@lru_cache(maxsize=1024)
def weight_split(given: Geometry) -> WeightSplit | None:
    """None where no tile fits. The device does not matter, since the scratch memory must be known without it."""
    g = stacked(given)
    s = slab(g.c, g.k)
    t = _tasks(s, g.groups, g.taps)
    sides, tasks = Sides(g), t.shares.ranges * t.shares.parts
    pixels, inputs = -(-sides.pixels // 32) * 32, sides.inputs
    stage = inputs * (t.shares.across * s.inputs | 1) * 16 + pixels * (t.shares.across * s.outputs | 1) * 16
    shared = 2 * stage + 8 * pixels + 8 * t.item_parts * _PAIRS
    resident = np.where(shared <= HALF_SHARED, 2 if t.n <= 3 else 1, 1)  # four chunks take more registers
    splits = np.maximum(1, np.minimum(sides.tiles, PLANNED * resident // tasks))
    rounds = -(-sides.tiles // splits) * -(-splits * tasks // (PLANNED * resident))
    found = sides.fastest(shared, rounds * resident * (_INPUT * inputs + _OUTPUT * pixels + _TILE))
    return found and WeightSplit(found[0], t, int(splits[found[1]]), *found[2:])


def weight_sums(given: Geometry, dy: Operand, x: Operand, partial: Operand) -> Plan:
    """The first stage: `WeightSplit.count` partial sums."""
    found, g = weight_split(given), stacked(given)
    assert found is not None
    t, s = found.tasks, slab(g.c, g.k)
    config = GroupedWeightConfig(TYPES[x.dtype], _PAIRS, t.n, 32 * _WARPS)
    kernel = Kernel(
        "conv/grouped_weight.cu", f"conv_grouped_weight_{SHORT[x.dtype]}_{_PAIRS}x{t.n}", config, ("conv/geometry",)
    )
    return sums_plan(
        GroupedWeightArguments, kernel, config.threads, given, s, found, t.shares, t.item_parts, (dy, x, partial)
    )
