"""The algorithm ``unpool_strided``: unpooling and its gradient in any memory order, with the marks in scratch
memory."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out, Pointer
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Places, Steps
from dnnarray._cuda.pool.unpooling import too_large, unpooled
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_CLEAR, _MARK, _FETCH, _BACKWARD = range(4)
_STAGES = ("clear", "mark", "fetch", "backward")


Marks = Annotated[Array | None, Pointer("int", False)]


@frozen
class UnpoolStridedConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_strided.cu``."""

    element: str
    index: str
    stage: int
    threads: int


@frozen
class UnpoolStridedArguments(Arguments, restrict=True):
    """What ``kernels/pool/unpool_strided.cu`` is called with."""

    x: In
    indices: Places
    y: Out
    marks: Marks
    total: Extent
    channels: Extent
    x_strides: Steps
    y_strides: Steps
    x_height: Int
    x_width: Int
    y_height: Int
    y_width: Int
    x_size: Extent
    y_size: Extent


def _plan(
    g: Geometry, stage: int, total: int, x: Spec, indices: Spec, arrays: tuple[Array, Array, Array, Array]
) -> Plan:
    """The launch of a stage; `arrays` are x, the indices, y and the marks, of the gradient that and dx."""
    config = UnpoolStridedConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], stage, THREADS)
    symbol = f"max_unpool_strided_{_STAGES[stage]}_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}"
    (_, h, w), (_, p, q) = g.space, g.out_space
    arguments = UnpoolStridedArguments(
        *arrays,
        total=total,
        channels=g.channels,
        x_strides=g.x_strides,
        y_strides=g.y_strides,
        x_height=h,
        x_width=w,
        y_height=p,
        y_width=q,
        x_size=math.prod(g.space),
        y_size=math.prod(g.out_space),
    )
    return planned(
        Kernel("pool/unpool_strided.cu", symbol, config, ("pool/window",)),
        (-(-total // THREADS), 1, 1),
        THREADS,
        arguments,
    )


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
