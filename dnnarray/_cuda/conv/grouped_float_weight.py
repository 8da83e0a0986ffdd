"""`grouped` of float32 on the ordinary units: the gradient of the weight."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.conv.arguments import FloatIn
from dnnarray._cuda.conv.grouped import HALF_SHARED, Shares, Sides, Slab, shares, slab, stacked, sums_plan
from dnnarray._cuda.conv.grouped_float import QUAD
from dnnarray._cuda.conv.grouped_weight import GroupedWeightArguments
from dnnarray._cuda.conv.tiling import PLANNED
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 256
_ITEMS = (9, 5, 3, 1)  # of a thread, 16 sums each
_MOST_OF_TWO = 5  # items of which two blocks of a multiprocessor have registers
_BYTES, _TILE = 18, 300  # bytes of memory a clock of a multiprocessor; clocks of a tile's beginning and end
_ITEM, _PIXEL = 17.0, 25.0  # issues of an item, of a pixel beside its items


@frozen
class GroupedFloatWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_float_weight.cu``."""

    items: int
    threads: int


@frozen
class GroupedFloatWeightArguments(GroupedWeightArguments, restrict=True):
    """What ``kernels/conv/grouped_float_weight.cu`` is called with: the record of ``grouped_weight.cu`` with float32
    arrays."""

    dy: FloatIn
    x: FloatIn


@frozen
class FloatTasks:
    """How the sums of a slab are divided: items of a thread, parts of the items, and who has which."""

    items: int
    item_parts: int
    shares: Shares


@lru_cache(maxsize=256)
def _tasks(s: Slab, groups: int, taps: int) -> FloatTasks:
    """The fewest loads of shared memory: one for each item of a thread and one for its outputs."""
    all_items = taps * s.inputs
    items = min(_ITEMS, key=lambda n: (-(-all_items // n) * (n + 1), -n))
    item_parts = -(-all_items // items)
    return FloatTasks(items, item_parts, shares(s, groups, item_parts * s.outputs, _THREADS))


@frozen
class FloatSplit:
    """The tile of a block, the tasks, the partial sums, and the time in clocks."""

    sides: tuple[int, int, int]
    tasks: FloatTasks
    splits: int
    shared_memory: int
    time: float


def float_floor(g: Geometry) -> float:
    """Clocks that no division takes less than: the products of pixels that are shared out evenly."""
    t = _tasks(slab(g.c, g.k, QUAD), g.groups, g.taps)
    tasks = t.shares.ranges * t.shares.parts / t.shares.copies
    return g.n * g.pixels * tasks * _products(t) / PLANNED


def _products(t: FloatTasks) -> float:
    """Clocks of a pixel of each copy."""
    return _THREADS / 128 * (_ITEM * t.items + _PIXEL)


@lru_cache(maxsize=1024)
def float_split(given: Geometry) -> FloatSplit | None:
    """None where no tile fits. The device does not matter, since the scratch memory must be known without it."""
    g = stacked(given)
    s = slab(g.c, g.k, QUAD)
    t = _tasks(s, g.groups, g.taps)
    sides, tasks = Sides(g), t.shares.ranges * t.shares.parts
    pixels = sides.pixels
    stage = sides.inputs * (t.shares.across * s.inputs | 1) * 16 + pixels * (t.shares.across * s.outputs | 1) * 16
    lists = 8 * pixels + 4 * t.item_parts * t.items
    shared = np.maximum(
        2 * stage + lists, _THREADS * (16 * t.items + 1) * 4
    )  # copies are added up where the tiles were
    resident = np.where(shared <= HALF_SHARED, 2 if t.items <= _MOST_OF_TWO else 1, 1)
    splits = np.maximum(1, np.minimum(sides.tiles, PLANNED * resident // tasks))
    rounds = -(-sides.tiles // splits) * -(-splits * tasks // (PLANNED * resident))
    products = -(-pixels // t.shares.copies) * _products(t)
    found = sides.fastest(shared, rounds * (resident * np.maximum(products, stage / _BYTES) + _TILE))
    return found and FloatSplit(found[0], t, int(splits[found[1]]), *found[2:])


def float_sums(given: Geometry, dy: Operand, x: Operand, partial: Operand) -> Plan:
    """The first stage: `FloatSplit.splits` partial sums."""
    found, g = float_split(given), stacked(given)
    assert found is not None
    t, s = found.tasks, slab(g.c, g.k, QUAD)
    kernel = Kernel(
        "conv/grouped_float_weight.cu",
        f"conv_grouped_float_weight_{t.items}",
        GroupedFloatWeightConfig(t.items, _THREADS),
        ("conv/geometry",),
    )
    return sums_plan(
        GroupedFloatWeightArguments, kernel, _THREADS, given, s, found, t.shares, t.item_parts, (dy, x, partial)
    )
