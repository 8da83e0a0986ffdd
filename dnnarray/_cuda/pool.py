"""Pooling: which algorithms there are for each operation."""

from __future__ import annotations

import math

from dnnarray._cuda.pool_common import INTEGERS as INTEGERS  # the table of integer types, which others use too
from dnnarray._cuda.pool_geometry import geometry_of
from dnnarray._cuda.pool_gradient import gather, saved_bytes
from dnnarray._cuda.pool_unpool import marks_bytes, unpool, unpool_backward
from dnnarray._cuda.pool_windows import windows
from dnnarray._problems.pool import PoolProblem, UnpoolProblem
from dnnarray._select import Device, Method


def _too_large(problem: PoolProblem, device: Device) -> str | None:
    x = problem.inputs[1 if problem.op.endswith("_backward") else 0]
    if x.size == 0:
        return None
    g = geometry_of(x, problem.axes, problem.layout)
    if g.channels >= 1 << 31 or any(a.reach >= 1 << 30 for a in g.axes):
        return "a padded extent or a window reaches 2^30 elements"
    if problem.op.endswith("_backward") and math.prod(a.window for a in g.axes) >= 1 << 31:
        return "a window has 2^31 taps or more"
    return None


def _too_large_plane(problem: UnpoolProblem, device: Device) -> str | None:
    x = problem.inputs[-2]
    g = geometry_of(x, problem.space, problem.layout)
    if max(math.prod(g.space), math.prod(g.out_space), g.channels) >= 1 << 31:
        return "a plane has 2^31 elements or more"
    return None


_WINDOWS = (Method("windows", windows, "every window by itself, neighbours through the cache", _too_large),)
_GATHER = (Method("gather", gather, "for each element a sum over the windows that cover it", _too_large, saved_bytes),)
_MAXIMA = [f"{prefix}max_pool{suffix}" for prefix in ("", "adaptive_") for suffix in ("", "_with_indices")]
_FORWARDS = [*_MAXIMA, "avg_pool", "adaptive_avg_pool", "lp_pool"]

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys(_FORWARDS, _WINDOWS),
    **dict.fromkeys([f"{op}_backward" for op in _FORWARDS], _GATHER),
    "max_unpool": (Method("ordered", unpool, "the last element that names a place goes there", _too_large_plane, marks_bytes),),
    "max_unpool_backward": (Method("gather", unpool_backward, "each gradient comes from its place", _too_large_plane),),
}
