"""The algorithm ``move``: one permuted copy."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer, Words
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, Config, Kernel, Program, ahead_if_small
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.spatial.walks import LIMIT, THREADS, UNIT, Walk, in_units, input_order, walks_of, words_of
from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_MOST = 8  # axes that the kernel takes
Unit = Annotated[Array, Pointer("dnnarray::Unit<Config::kBytes>::type", True)]
UnitOut = Annotated[Array, Pointer("dnnarray::Unit<Config::kBytes>::type", False)]


@frozen
class MoveConfig(Config):
    """Compile-time settings of ``kernels/spatial/move.cu``."""

    bytes: int
    rank: int
    vector: int
    inner: int
    middle: int
    run: int
    short: bool
    threads: int


@frozen
class MoveArguments(Arguments, restrict=True):
    """What ``kernels/spatial/move.cu`` is called with: two words for each axis of y, from the slowest to the fastest
    (``struct Walk``)."""

    x: Unit
    y: UnitOut
    total: Extent
    words: Words


def _inner(walks: list[Walk], vector: int) -> tuple[int, int, int]:
    """How many elements of a vector follow one another along the last axis (0 where they may cross into others) and
    along the axis before it (1 where the rest does), and along the axis of the rest, how many lie beside each other in
    x."""
    if walks[-1].extent % vector == 0:
        return vector, 1, 1
    inner, middle, outer = walks[-1].extent, 1, walks[:-1]
    if len(outer) > 1 and outer[-1].extent < vector // inner:
        middle, outer = outer[-1].extent, outer[:-1]
    if not outer or vector % (inner * middle) or outer[-1].extent % (vector // (inner * middle)):
        return 0, 1, 1
    run = vector // (inner * middle)
    together = outer[-1].x == 1 and all(w.x % run == 0 for w in walks if w is not outer[-1])
    return inner, middle, run if together else 1


def run(problem: ShuffleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a permuted copy."""
    x: Spec = problem.inputs[0]
    if x.size == 0:
        return Program(())
    planner, order = Planner(problem, aligned), input_order(problem)
    walks, size = in_units(walks_of(problem, order), x.dtype.itemsize, aligned)
    total = x.size * x.dtype.itemsize // size
    vector = max(UNIT // size, 1) if aligned else 1
    while vector > 1 and total < vector * THREADS * device.units:  # small arrays: a block for each multiprocessor first
        vector //= 2
    inner, middle, run = _inner(walks, vector)
    rest = (_MOST - len(walks)) * (Walk(1, 1, 1),)
    words = [word for walk in (*walks, *rest) for word in words_of(walk)]
    grid = (blocks_of(total, THREADS * vector), 1, 1)
    config = MoveConfig(size, len(walks), vector, inner, middle, run, total < LIMIT, THREADS)
    name = f"move_{8 * size}_r{len(walks)}x{vector}_{inner}x{middle}_{run}{'' if config.short else '_long'}"
    arguments = MoveArguments(planner.inputs[0], planner.outputs[0], total=total, words=words)
    planner.add(ahead_if_small(planned(Kernel("spatial/move.cu", name, config), grid, THREADS, arguments)))
    return planner.program((order,) * len(problem.inputs))


def rejects(problem: ShuffleProblem, device: Device) -> str | None:
    x: Spec = problem.inputs[0]
    if x.dtype.itemsize not in (1, 2, 4, 8, 16):
        return f"elements of {x.dtype.itemsize} bytes"
    walks = walks_of(problem, input_order(problem)) if x.size else []
    if len(walks) >= _MOST:
        return f"{len(walks)} axes that move by themselves, more than {_MOST - 1}"
    return "an axis of 2^31 elements or more" if any(w.extent >= LIMIT for w in walks) else None
