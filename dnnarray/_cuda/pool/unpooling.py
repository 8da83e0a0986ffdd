"""What unpooling shares: the problem's geometry, preconditions, and how many channels a block has."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnnarray._cuda.core.plan import Plan, Program
from dnnarray._cuda.pool.geometry import Geometry, geometry_of
from dnnarray._problems.base import remembered
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._spec import Spec

_PLACES_LAST, _PLACES_FIRST = 1 << 15, 1 << 17  # places of a plane of which a few blocks hold the marks
_NUMBERED = 0xFFFF  # elements of x that a mark can name
_LINE = 128  # bytes of a block's channels


@remembered
def geometry_at(problem: UnpoolProblem) -> Geometry:
    """The geometry of x and the unpooled array."""
    return geometry_of(problem.inputs[-2], problem.space, problem.layout)


def too_large(problem: UnpoolProblem) -> str | None:
    """Why no kernel does a problem: its numbers are too large for 32 bits."""
    g = geometry_at(problem)
    if max(math.prod(g.space), math.prod(g.out_space), g.channels) >= 1 << 31:
        return "a plane has 2^31 elements or more"
    return None


def unstaged(problem: UnpoolProblem) -> str | None:
    """Why marks are not in shared memory."""
    result = problem.outputs[0]
    if result is None or result.size == 0:
        return "there are no places"
    if found := too_large(problem):
        return found
    g = geometry_at(problem)
    return (
        None
        if staged(g)
        else "memory is neither channels-first nor channels-last, or planes are too large for marks of 16 bits"
    )


def staged(g: Geometry) -> bool:
    """Whether few blocks share a plane, so that each can read all of its indices, and 16 bits number them."""
    return (
        (g.first or g.last)
        and math.prod(g.out_space) <= (_PLACES_LAST if g.last else _PLACES_FIRST)
        and math.prod(g.space) < _NUMBERED
    )


def span_of(g: Geometry, x: Spec) -> int:
    """Channels of a block that looks nearby: whole lines of y."""
    most = max(8, _LINE // x.dtype.itemsize)
    return min(most, max(8, 1 << (g.channels - 1).bit_length())) if g.last else 1


def items_of(g: Geometry, group: int) -> int:
    """Planes, each with as many of its channels."""
    return g.outer * (-(-g.channels // group) if g.last else 1)


def unpooled(problem: UnpoolProblem, plans: Callable[[Geometry], tuple[Plan, ...]]) -> Program:
    """The launches for all but empty results."""
    result, g = problem.outputs[0], geometry_at(problem)
    assert result is not None
    return Program(plans(g), (g.order,) * len(problem.inputs)) if result.size else Program(())
