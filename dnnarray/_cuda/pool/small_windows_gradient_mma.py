"""The algorithm ``small_windows_gradient_mma``: maxima of half types in channels-last memory, two channels at once,
summed by matrix products."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import Known, dx_of, geometry_at, launches, saved_bytes, taps_bytes
from dnnarray._cuda.pool.shared import POOL_SHORT, THREADS, Codes, StripArguments, StripConfig, strips_of, times
from dnnarray._cuda.pool.small_windows_gradient import no_taps, reason, taps_cost
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF


@frozen
class SmallWindowsGradientMmaConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/small_windows_gradient_mma.cu``."""


@frozen
class SmallWindowsGradientMmaArguments(StripArguments):
    """What ``kernels/pool/small_windows_gradient_mma.cu`` is called with."""

    grad: In
    saved: Codes
    dx: Out


def _plan(problem: PoolProblem, aligned: bool, g: Geometry, known: Known) -> Plan:
    dtype, h = problem.inputs[1].dtype, g.axes[1]
    strips = strips_of(g, dtype, aligned, h.extent + h.before)
    symbol = "_".join([f"max_pool_small_windows_gradient_mma_{POOL_SHORT[dtype]}", *strips.words])
    kernel = Kernel(
        "pool/small_windows_gradient_mma.cu", symbol, SmallWindowsGradientMmaConfig(**strips.settings), ("pool/strip",)
    )
    arguments = SmallWindowsGradientMmaArguments(
        grad=Array(0), saved=known.saved, dx=dx_of(problem), **strips.arguments
    )
    return planned(kernel, strips.grid, THREADS, arguments)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if found := reason(problem) or (no_taps(problem) if problem.inputs[2] is not None else None):
        return found
    g, dtype = geometry_at(problem), problem.inputs[1].dtype
    if dtype not in HALF or not g.last or vector_length(dtype, device.aligned, g.channels) % 4:
        return "it takes vectors of four channels or more of float16 and bfloat16 in channels-last memory"
    if max(g.axes[1].cover(), g.axes[2].cover()) > 3:
        return "more than 3 x 3 windows over an element take too many registers"
    return None


def workspace(problem: PoolProblem) -> int:
    return saved_bytes(problem) if problem.inputs[2] is None else taps_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    if problem.inputs[2] is not None:
        return taps_cost(problem, device)
    return times(problem, 1.1, launches=2, more=2 * workspace(problem))


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known), taps=True)
