"""The algorithm ``global_pool``: each plane becomes one element, by threads that share it."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.shared import NORM, POOL_TYPES, Indices, Reduction, Results, forward, forward_reason, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF

_SHORT = 64  # elements of a plane that few threads add up


@frozen
class GlobalPoolConfig(Config):
    """Compile-time settings of ``kernels/pool/global_pool.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    along: bool
    vector: int
    lanes: int
    taps: int
    unroll: int


@frozen
class GlobalPoolArguments(Arguments, restrict=True):
    """What ``kernels/pool/global_pool.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    columns: Extent
    length: Extent
    inner: Extent
    p: Double


def reason(r: Reduction, device: Device) -> str | None:
    if not r.g.whole:
        return "a window is not the whole of its plane, or channels lie between its elements and others do so too"
    return None if r.g.length < 1 << 30 else "a plane has 2^30 elements or more"


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the results and the places."""
    g, inner, along = r.g, r.g.channels if r.g.last else 1, not r.g.last
    vector = vector_length(r.dtype, aligned, g.length if along else inner)
    columns = g.outer if along else g.outer * inner // vector
    lanes, taps = _block(columns, g.length // vector if along else g.length, along, r.dtype)
    unroll = 4 if along or r.places or r.kind == NORM else 8
    config = GlobalPoolConfig(
        POOL_TYPES[r.dtype], POOL_TYPES[r.result], r.kind, r.magnitude, along, vector, lanes, taps, unroll
    )
    words = [*r.words("global_pool", vector), *["magnitude"] * r.magnitude, *["along"] * along, f"t{taps}_l{lanes}"]
    grid = (min(-(-columns // lanes), 1 << 30), 1, 1)
    arguments = GlobalPoolArguments(
        *arrays, columns=columns, length=g.length, inner=1 if along else inner // vector, p=r.p
    )
    return ahead_if_small(
        planned(Kernel("pool/global_pool.cu", "_".join(words), config), grid, lanes * taps, arguments)
    )


def _block(columns: int, steps: int, along: bool, dtype: np.dtype) -> tuple[int, int]:
    """(columns of a block, threads that share one): enough blocks for the card, then about eight loads a thread."""
    if along:
        return (8 if columns >= 2048 else 2, 32) if steps <= 1024 else (1, 256)
    lanes = next(n for n in (16, 8, 4) if columns >= 256 * n or n == 4)
    taps = 4 if steps <= _SHORT and dtype in HALF else 8
    while taps * 8 < steps and steps > _SHORT and taps * lanes < 512:
        taps *= 2
    return lanes, taps


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def cost(problem: PoolProblem, device: Device) -> Cost:
    return times(problem, 1.1)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
