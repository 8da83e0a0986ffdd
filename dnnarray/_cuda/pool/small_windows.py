"""The algorithm ``small_windows``: windows of up to 5 x 5 in registers, by threads that walk down the rows."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, Int
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program, ahead_if_small
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.shared import (
    INDICES,
    MAX,
    MEAN,
    NORM,
    POOL_TYPES,
    THREADS,
    Indices,
    Reduction,
    Results,
    StripArguments,
    StripConfig,
    forward,
    forward_reason,
    strips_of,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF


@frozen
class SmallWindowsConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/small_windows.cu``."""

    result: str
    reduction: int
    magnitude: bool
    exponent: int
    lends: bool


@frozen
class SmallWindowsArguments(StripArguments):
    """What ``kernels/pool/small_windows.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    padded: Int


def reason(r: Reduction, device: Device) -> str | None:
    if r.g.at_once(r.p if r.kind == NORM else None) and not r.g.whole:
        return None
    return (
        "windows are larger than 5 x 5 (3 x 3 of a norm), apart by more than 3, dilated, uneven, or the only one "
        "of a plane"
    )


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the results and the places."""
    g = r.g
    _, h, w = g.axes
    # Results of a thread: four positions of 8 bytes each still fill whole sectors of memory by two stores.
    widest = 4 if r.kind == INDICES else 16
    plain, norm = r.kind == MAX, r.kind == NORM
    strips = strips_of(
        g, r.dtype, aligned, h.outputs * h.stride_used, w.outputs, widest, plain, norm, most=2 if r.places else 0
    )
    exponent = int(r.p) if norm else 0
    # Beside two vectors, three single loads take the first-level cache longer than these do; floats and places are
    # bound by instructions.
    lends = g.first and w.window > 3 and r.dtype in HALF and r.kind in (MAX, MEAN)
    config = SmallWindowsConfig(
        **strips.settings,
        result=POOL_TYPES[r.result],
        reduction=r.kind,
        magnitude=r.magnitude and not norm,
        exponent=exponent,
        lends=lends,
    )
    words = [
        *r.words("small_windows"),
        *["magnitude"] * config.magnitude,
        *[f"l{exponent}"] * norm,
        *["lends"] * lends,
        *strips.words,
    ]
    kernel = Kernel("pool/small_windows.cu", "_".join(words), config, ("pool/strip",))
    x, y, indices = arrays
    plan = planned(
        kernel,
        strips.grid,
        THREADS,
        SmallWindowsArguments(x=x, y=y, indices=indices, **strips.arguments, padded=int(r.padded)),
    )
    return ahead_if_small(plan) if config.steps == 1 and not norm else plan


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
