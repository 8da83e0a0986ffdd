"""What the plans of gradients share: what a launch is told of each window, and the launch before it that finds that
out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import Array, Plan, Program
from dnnarray._cuda.pool import direct, global_pool, separable, shared_planes, small_windows, vector_windows
from dnnarray._cuda.pool.geometry import CODES, Geometry, geometry_of
from dnnarray._cuda.pool.indices_to_taps import indices_to_taps
from dnnarray._cuda.pool.shared import NORM, TAP, Reduction, too_large
from dnnarray._problems.base import remembered
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, Spec

# What is known of a window: the number of the tap with its maximum, the place of the maximum in the plane, nothing (of
# a mean), or its norm.
BY_TAP, BY_PLACE, OF_MEAN, OF_NORM = range(4)
RULES = ("max", "max_indices", "mean", "norm")
_CODED = 1 << 20  # windows


# --- the problem ------------------------------------------------------------------------------------------------------


@remembered
def geometry_at(problem: PoolProblem) -> Geometry:
    """The geometry of the forward."""
    return geometry_of(problem.inputs[1], problem.axes, problem.layout)


def is_norm(problem: PoolProblem) -> bool:
    """Whether the gradient is that of a norm other than the largest magnitude."""
    return problem.op.startswith("lp") and not math.isinf(problem.p)


def rule_of(problem: PoolProblem) -> int:
    """What is known of a window where places that are given are not made into taps."""
    if is_norm(problem):
        return OF_NORM
    if "avg" in problem.op:
        return OF_MEAN
    return BY_TAP if problem.inputs[2] is None else BY_PLACE


def of_magnitudes(problem: PoolProblem) -> bool:
    """Whether a forward looks at magnitudes, so that a gradient takes the sign of x."""
    return problem.op.startswith("lp")


def nothing_to_do(problem: PoolProblem) -> bool:
    """Whether no element has a gradient, or there are no windows that have one."""
    return problem.inputs[0].size == 0 or problem.inputs[1].size == 0


def backward_reason(problem: PoolProblem) -> str | None:
    """Why a gradient is left to the algorithm that takes all."""
    return "there are no windows, or no elements" if nothing_to_do(problem) else too_large(problem)


def numbered_by_rows(problem: PoolProblem) -> bool:
    """Whether taps of the problem's windows have numbers of their own, as ``tap_code`` gives them to windows of up to 5
    x 5."""
    g = geometry_at(problem)
    return g.at_once() and not g.whole


def worth_taps(problem: PoolProblem) -> bool:
    """Whether places that are given are made into taps first: of 8 bytes each, they would be read again and again, and
    there are enough for two launches."""
    g, indices = geometry_at(problem), problem.inputs[2]
    return (
        indices is not None
        and g.last
        and numbered_by_rows(problem)
        and g.axes[2].cover() > 2
        and indices.size >= _CODED
    )


# --- launches ---------------------------------------------------------------------------------------------------------


def dx_of(problem: PoolProblem) -> Array:
    """The result."""
    return Array(2 if problem.inputs[2] is None else 3)


def one_launch(problem: PoolProblem, aligned: bool, plan: Callable[[Geometry], Plan]) -> Program:
    """The launch of an algorithm that needs no other before it."""
    g, given = geometry_at(problem), dx_of(problem).index
    if problem.inputs[1].size == 0:
        return Program(())
    if problem.inputs[0].size == 0:  # an output extent of 0: no window has a gradient
        return Program((zero(Array(given), problem.inputs[1].nbytes, aligned),), (g.order,) * given)
    return Program((plan(g),), (g.order,) * given)


@frozen
class Known:
    """What a launch reads of each window: by which rule, in which dtype, and where it lies."""

    rule: int
    dtype: np.dtype
    saved: Array


def launches(
    problem: PoolProblem, device: Device, aligned: bool, plan: Callable[[Geometry, Known], Plan], taps: bool = False
) -> Program:
    """The launch of an algorithm, behind that which finds what it reads of each window; with `taps`, places that are
    given become taps."""
    _, x, indices = problem.inputs
    if nothing_to_do(problem):
        return one_launch(problem, aligned, lambda g: plan(g, Known(OF_MEAN, x.dtype, Array(0))))
    g, dx = geometry_at(problem), dx_of(problem)
    scratch, orders, rule = Array(dx.index + 1), (g.order,) * dx.index, rule_of(problem)
    if rule == OF_MEAN:
        return Program((plan(g, Known(rule, np.dtype(np.uint8), dx)),), orders)  # nothing is read
    if rule == BY_PLACE and not taps:
        return Program((plan(g, Known(rule, indices.dtype, Array(2))),), orders)
    if rule == BY_PLACE:
        first, known = (
            indices_to_taps(g, indices, aligned, (Array(2), scratch)),
            Known(BY_TAP, np.dtype(np.uint8), scratch),
        )
    else:
        known = Known(rule, saved_dtype(problem), scratch)
        kind = NORM if rule == OF_NORM else TAP
        first = _saving(
            Reduction(g, x.dtype, known.dtype, kind, of_magnitudes(problem), p=problem.p),
            device,
            aligned,
            (Array(1), scratch, scratch),
        )
    return Program((first, plan(g, known)), orders)


def _saving(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch that keeps what a gradient reads of each window, by the algorithm that a forward prefers."""
    ways = [small_windows, vector_windows, separable, shared_planes, global_pool, direct]
    if shared_planes.few(r, device):
        ways.remove(shared_planes)
    return next(way for way in ways if way.reason(r, device) is None).plan(r, device, aligned, arrays)


def saved_dtype(problem: PoolProblem) -> np.dtype:
    """What is kept of each window in the dtype of: its norm, or the number of a tap."""
    x = problem.inputs[1]
    if is_norm(problem):
        return FLOAT32 if x.dtype in HALF else x.dtype
    return np.dtype(np.uint8) if math.prod(a.window for a in problem.axes) < CODES else np.dtype(np.int32)


# --- scratch memory ---------------------------------------------------------------------------------------------------


def saved_bytes(problem: PoolProblem) -> int:
    """Scratch memory for what is kept of each window, where the places of maxima are not given.

    Algorithms that take one launch in memory at multiples of 16 bytes need it too, where the one for other memory takes
    two."""
    if rule_of(problem) == OF_MEAN:
        return 0
    if problem.inputs[2] is not None:
        return taps_bytes(problem) if worth_taps(problem) else 0
    return _bytes_of(problem, saved_dtype(problem))


def taps_bytes(problem: PoolProblem) -> int:
    """Scratch memory for a tap of each window."""
    return _bytes_of(problem, np.dtype(np.uint8))


def _bytes_of(problem: PoolProblem, dtype: np.dtype) -> int:
    grad: Spec = problem.inputs[0]
    return -(-grad.size * dtype.itemsize // 16) * 16
