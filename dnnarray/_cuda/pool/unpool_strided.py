"""The algorithm ``unpool_strided``: unpooling and its gradient in any memory order, with the marks in scratch memory."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool.unpooling import too_large, unpooled
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_CLEAR, _MARK, _FETCH, _BACKWARD = range(4)
_STAGES = ("clear", "mark", "fetch", "backward")


@frozen
class UnpoolStridedConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_strided.cu``."""

    element: str
    index: str
    stage: int
    threads: int


def _plan(g: Geometry, stage: int, total: int, x: Spec, indices: Spec, arrays: tuple[Array, ...]) -> Plan:
    """The launch of a stage; `arrays` are x, the indices, y and the marks, of the gradient that and dx."""
    config = UnpoolStridedConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], stage, THREADS)
    symbol = f"max_unpool_strided_{_STAGES[stage]}_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}"
    (_, h, w), (_, p, q) = g.space, g.out_space
    numbers = (total, g.channels, *g.x_strides, *g.y_strides, h << 32 | w, p << 32 | q, math.prod(g.space), math.prod(g.out_space))
    return Plan(Kernel("pool/unpool_strided.cu", symbol, config), (-(-total // THREADS), 1, 1), THREADS, (*arrays, *numbers))


def rejects(problem: UnpoolProblem, device: Device) -> str | None:
    return too_large(problem)


def workspace(problem: UnpoolProblem) -> int:
    """A mark for each element of the result."""
    y = problem.outputs[0]
    assert y is not None
    return -(-4 * y.size // 16) * 16


def cost(problem: UnpoolProblem, device: Device) -> Cost:
    return Cost(problem.flops, 1.5 * problem.bytes + 3 * workspace(problem), launches=3)


def run(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """Three launches: clear the marks, mark every place with the last element that names it, fetch."""
    (x, indices), y = problem.inputs, problem.outputs[0]
    assert y is not None
    arrays = Array(0), Array(1), Array(2), Array(3)
    stages = [(_CLEAR, y.size), *([(_MARK, x.size)] if x.size else []), (_FETCH, y.size)]
    return unpooled(problem, lambda g: tuple(_plan(g, stage, total, x, indices, arrays) for stage, total in stages))


def gradient_cost(problem: UnpoolProblem, device: Device) -> Cost:
    return Cost(problem.flops, 1.5 * problem.bytes)


def run_gradient(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    _, x, indices = problem.inputs
    arrays = Array(0), Array(2), Array(3), Array(3)
    return unpooled(problem, lambda g: (_plan(g, _BACKWARD, x.size, x, indices, arrays),))
