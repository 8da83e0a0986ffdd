"""Group norm, channels first: the values behind a statistic lie one after the other, a row in registers."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Program, vector_length
from dnnarray._cuda.norm.channel_view import View, inputs, view
from dnnarray._cuda.norm.rows import Operands, Rows, launch, spread
from dnnarray._cuda.norm.shared import Arguments, orders
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_VECTOR = 4  # elements: as large as a vector has to be for a block that holds channels in shared memory to walk them as fast
_LANES = 256  # threads of a row up to which one waits for its sums no longer than several rows together do


def _rows(problem: NormProblem, v: View, aligned: bool) -> Rows | None:
    x, columns = inputs(problem, problem.inputs, None).x, v.channels // v.groups * v.inner
    return spread(columns, x, False, vector_length(x.dtype, aligned, columns))


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the values behind a statistic are not such a row, or None."""
    v, x = view(problem), inputs(problem, problem.inputs, None).x
    if v is None or v.last or v.size == 0 or x.dtype == FLOAT64:
        return "only float and half types with batch, channels and space in this order in memory, and not nothing"
    if v.inner % _VECTOR == 0 or v.channels // v.groups * v.inner % _VECTOR:
        return "only groups that are whole vectors, of images that are not"
    how = [_rows(problem, v, aligned) for aligned in (True, False)]
    if any(h is None or h.lanes > _LANES for h in how) or v.instances >= 1 << 31:
        return f"the {v.channels // v.groups * v.inner:,} values of a group are more than {_LANES} threads hold in registers"
    return None


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    v, specs, arguments = view(problem), inputs(problem, problem.inputs, None), Arguments(problem)
    assert v is not None
    how, given = _rows(problem, v, aligned), inputs(problem, arguments.inputs, 0)
    assert how is not None
    borders = 1 if v.inner >= how.vector else 2
    images, extents = (borders, v.groups, v.inner), (v.statistics, v.channels // v.groups * v.inner)
    pointers = (given.x, given.weight, given.bias, *arguments.outputs)
    operands = Operands(x=specs.x, weight=specs.weight, bias=specs.bias)
    return Program((launch(problem, operands, pointers, how, extents, images=images),), orders(problem, specs.x))
