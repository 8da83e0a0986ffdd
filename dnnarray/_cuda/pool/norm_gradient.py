"""The algorithm ``norm_gradient``: norms over windows of up to 3 x 3 in channels-first memory, computed again and given
back in one launch."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import backward_reason, geometry_at, is_norm, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, THREADS, StripArguments, StripConfig, strips_of
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT64


@frozen
class NormGradientConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/norm_gradient.cu``."""

    exponent: int
    at_once: bool
    blocks: int


@frozen
class NormGradientArguments(StripArguments):
    """What ``kernels/pool/norm_gradient.cu`` is called with."""

    grad: In
    x: In
    dx: Out


def _plan(problem: PoolProblem, aligned: bool, g: Geometry) -> Plan:
    dtype, exponent, h = problem.inputs[1].dtype, int(problem.p), g.axes[1]
    blocks, at_once, most = _settings(g, dtype)
    strips = strips_of(g, dtype, aligned, h.extent + h.before, most=most)
    config = NormGradientConfig(**strips.settings, exponent=exponent, at_once=at_once, blocks=blocks)
    words = [f"norm_pool_norm_gradient_{POOL_SHORT[dtype]}_l{exponent}", *strips.words] + ["at_once"] * at_once
    kernel = Kernel("pool/norm_gradient.cu", "_".join([*words, f"b{blocks}"]), config, ("pool/strip",))
    arguments = NormGradientArguments(grad=Array(0), x=Array(1), dx=Array(2), **strips.arguments)
    return planned(kernel, strips.grid, THREADS, arguments)


def _settings(g: Geometry, dtype: np.dtype) -> tuple[int, bool, int]:
    """Blocks that registers are kept for, whether a thread asks for all it reads at once, the rows it walks (0: by the
    common rule)."""
    if dtype == FLOAT64:
        return 2, False, 0
    if any(a.stride_used != 2 for a in g.axes[1:]):  # more sums than registers
        return (3, False, 4) if dtype == BFLOAT16 else (4, False, 0)
    if dtype == FLOAT16:
        return 8, False, 0
    return (4, True, 3) if dtype == BFLOAT16 else (6, True, 0)


def reason(problem: PoolProblem) -> str | None:
    """Why norms are not computed again."""
    if found := backward_reason(problem):
        return found
    g = geometry_at(problem)
    if not is_norm(problem) or not g.at_once(problem.p) or g.whole:
        return "it takes the gradients of L1 and L2 norms over windows of up to 3 x 3, several in a plane"
    return None


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return reason(problem) or ("memory is channels-last" if geometry_at(problem).last else None)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, aligned, g))
