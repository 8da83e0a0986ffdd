"""`grouped` of float32 on the ordinary units: correlations of groups of few channels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, FloatIn, FloatOut, PixelStrides, WeightStrides, conv_axes
from dnnarray._cuda.conv.grouped import HALF_SHARED, Sides, Tile, abreast, slab, stacked, steps
from dnnarray._cuda.core.arguments import Arguments, Double, Int
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
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


@frozen
class GroupedFloatArguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped_float.cu`` is called with; the fields are those of `GroupedArguments`."""

    x: FloatIn
    weight: FloatIn
    bias: FloatIn
    residual: FloatIn
    y: FloatOut
    batch: Int
    groups: Int
    c: Int
    k: Int
    together: Int
    across: Int
    ranges: Int
    depths: Int
    rows: Int
    columns: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    w_strides: WeightStrides
    axes: ConvAxes
    p: Double
    q: Double


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
    kernel = Kernel(
        "conv/grouped_float.cu",
        name,
        GroupedFloatConfig(f.type, residual, _PIXELS, _THREADS),
        ("core/activation", "conv/geometry"),
    )
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    resident = 2 if found.shared_memory <= HALF_SHARED else 1
    each = max(1, min(found.count(g), units * resident // ranges))
    arguments = GroupedFloatArguments(
        x.array,
        weight.array,
        e.bias,
        e.residual,
        y.array,
        batch=g.n,
        groups=g.groups,
        c=g.c,
        k=g.k,
        together=s.together,
        across=found.across,
        ranges=ranges,
        depths=found.sides[0],
        rows=found.sides[1],
        columns=found.sides[2],
        x_strides=steps(given, x.strides),
        y_strides=steps(given, y.strides),
        w_strides=weight.strides,
        axes=conv_axes(g),
        p=f.p,
        q=f.q,
    )
    return planned(kernel, (each * ranges, 1, 1), _THREADS, arguments, shared_memory=found.shared_memory)
