"""`grouped` of float32 on the ordinary units: correlations of groups of few channels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.grouped import HALF_SHARED, Sides, Tile, abreast, slab, stacked, steps
from dnnarray._cuda.conv.shared import extents
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._cuda.positional import NOTHING
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

QUAD = 4  # channels in 16 bytes
_PIXELS, _THREADS = 8, 256  # of a thread, of a block
_INPUT, _TERM, _TILE = 1.0, 0.06, 60.0  # time of an input of a tile, of an output's item, of its beginning and end


@frozen
class GroupedFloatConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_float.cu``."""

    activation: str
    residual: bool
    pixels: int
    threads: int


@lru_cache(maxsize=1024)
def float_tile(g: Geometry, units: int) -> Tile | None:
    """The tile that takes the least time, or None where none fits."""
    s = slab(g.c, g.k, QUAD)
    slabs, items = -(-g.groups // s.together), g.taps * s.inputs
    across = abreast(slabs, max(s.inputs, s.outputs))
    quads = across * s.outputs
    chunk = _THREADS // quads * _PIXELS
    fixed = quads * items * 16 * QUAD + 4 * items
    sides = Sides(g)
    pixels, inputs = -(-sides.pixels // chunk) * chunk, sides.inputs
    shared = 2 * inputs * (across * s.inputs | 1) * 16 + fixed + 8 * pixels
    resident = np.where(shared <= HALF_SHARED, 2, 1)
    rounds = -(-sides.tiles * -(-slabs // across) // (units * resident))
    found = sides.fastest(shared, rounds * resident * (_INPUT * inputs + _TERM * items * pixels + _TILE))
    return found and Tile(*found[0], across, *found[2:])


def float_correlation(units: int, given: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> Plan:
    """One launch from x to y; the strides of `weight` are along groups, outputs, inputs and the window."""
    g = stacked(given)
    s, f, found = slab(g.c, g.k, QUAD), formula(e.activation, x.dtype), float_tile(g, units)
    assert found is not None
    residual = e.residual is not None
    name = f"conv_grouped_float_{f.name}{'_residual' * residual}"
    kernel = Kernel("conv/grouped_float.cu", name, GroupedFloatConfig(f.type, residual, _PIXELS, _THREADS), ("activation",))
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    resident = 2 if found.shared_memory <= HALF_SHARED else 1
    each = max(1, min(found.count(g), units * resident // ranges))
    pointers: tuple[Array | None, ...] = (x.array, weight.array, NOTHING if e.bias is None else e.bias, e.residual or x.array, y.array)
    sizes = (g.n, g.groups, g.c, g.k, s.together, found.across, ranges, *found.sides)
    numbers = (*sizes, *steps(given, x.strides), *steps(given, y.strides), *weight.strides, *extents(g))
    return Plan(kernel, (each * ranges, 1, 1), _THREADS, (*pointers, *numbers, f.p, f.q), found.shared_memory)
