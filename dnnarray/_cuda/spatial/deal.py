"""The algorithm ``deal``: neighbours are read together and dealt out to several places."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Words
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial import move
from dnnarray._cuda.spatial.move import Unit, UnitOut
from dnnarray._cuda.spatial.walks import LIMIT, THREADS, UNIT, Walk, in_units, input_order, walks_of, words_of
from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_MOST_DEALT = 6  # axes that the kernel counts along
_PLACES = (2, 4, 8)  # that it deals out to


@frozen
class DealConfig(Config):
    """Compile-time settings of ``kernels/spatial/deal.cu``."""

    bytes: int
    rank: int
    vector: int
    places: int
    short: bool
    threads: int


@frozen
class DealArguments(Arguments, restrict=True):
    """What ``kernels/spatial/deal.cu`` is called with: the words (``struct Walk``) and the step in y of each axis, and
    where in y the places are."""

    x: Unit
    y: UnitOut
    size: Extent
    words: Words
    places: Extents


@frozen
class _Deal:
    """How neighbours in x are dealt out: the axes that are counted along, with the last one in vectors, and where in y
    the places are."""

    counted: tuple[Walk, ...]
    places: tuple[int, ...]
    size: int
    vector: int

    @property
    def threads(self) -> int:
        return math.prod(walk.extent for walk in self.counted)


def _deal_of(problem: ShuffleProblem) -> _Deal | None:
    """The last axis of y has steps of as many elements of x as other axes have places for; None where there are no such
    axes."""
    x: Spec = problem.inputs[0]
    walks, size = in_units(walks_of(problem, input_order(problem)), x.dtype.itemsize, True)
    last, vector, others, places = walks[-1], UNIT // size, walks[:-1], [0]
    for walk in sorted(others, key=lambda w: w.x):
        if walk.x == len(places) < last.x:
            places = [place + i * walk.y for i in range(walk.extent) for place in places]
            others.remove(walk)
    steps = (*places, *(n for walk in others for n in (walk.x, walk.y)))
    if (
        last.x not in _PLACES
        or len(places) != last.x
        or last.extent % vector
        or any(n % vector for n in steps)
        or vector == 1
    ):
        return None
    runs = Walk(last.extent // vector, last.x * vector, vector)
    counted = tuple(walk for walk in (*others, runs) if walk.extent > 1)
    return _Deal(counted or (runs,), tuple(places), size, vector)


def run(problem: ShuffleProblem, device: Device, aligned: bool) -> Program:
    """One launch: vectors read one behind the other, and written to several places."""
    how = _deal_of(problem)
    assert how is not None
    planner = Planner(problem, aligned)
    short, rank, order = problem.inputs[0].size < LIMIT, len(how.counted), input_order(problem)
    config = DealConfig(how.size, rank, how.vector, len(how.places), short, THREADS)
    name = f"deal_{8 * how.size}_r{rank}x{how.vector}_{len(how.places)}{'' if short else '_long'}"
    rest = (_MOST_DEALT - rank) * (Walk(1, 1, 1),)
    words = [word for walk in (*how.counted, *rest) for word in (*words_of(walk), walk.y)]
    places = (*how.places, *(_PLACES[-1] - len(how.places)) * (0,))
    arguments = DealArguments(planner.inputs[0], planner.outputs[0], size=how.threads, words=words, places=places)
    planner.launch(Kernel("spatial/deal.cu", name, config), (blocks_of(how.threads, THREADS), 1, 1), THREADS, arguments)
    return planner.program((order,) * len(problem.inputs))


def rejects(problem: ShuffleProblem, device: Device) -> str | None:
    x: Spec = problem.inputs[0]
    if not device.aligned:
        return "memory that is not aligned to 16 bytes"
    how = None if x.size == 0 or move.rejects(problem, device) else _deal_of(problem)
    if how is None or len(how.counted) > _MOST_DEALT:
        return "neighbours in memory are not dealt out to whole vectors of two to eight places"
    return "too few elements for a block on each multiprocessor" if how.threads < THREADS * device.units else None
