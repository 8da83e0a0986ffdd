"""The algorithm ``embedding_sums``: entries sorted by row, then sums in fixed pieces."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.sort import Sort, Unsigned32
from dnnarray._problems.spatial_lookup import EmbeddingProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
_LIMIT = 1 << 31
_PIECE, _GROUP = 32, 2048  # entries; as in kernels/spatial/embedding_sums.cu


@frozen
class EmbeddingSumsConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding_sums.cu``."""

    element: str
    stage: int
    vector: int
    count: int
    lanes: int
    threads: int


@frozen(kw_only=True)
class EmbeddingSumsArguments(Arguments, restrict=("grad", "keys", "places", "starts", "dweight")):
    """What ``kernels/spatial/embedding_sums.cu`` is called with: `units` pieces, groups or rows of `count` entries."""

    grad: In
    keys: Unsigned32
    places: Unsigned32
    starts: Unsigned32
    pieces: OutArithmetic
    groups: OutArithmetic
    dweight: Out
    units: Extent
    count: Extent
    rows: Extent
    length: Extent
    row_step: Extent
    column_step: Extent


def _sort(problem: EmbeddingProblem) -> Sort:
    return Sort(1, problem.inputs[1].size, problem.rows, 4)


def _parts(problem: EmbeddingProblem) -> tuple[int, int, int, int]:
    """Pieces and groups of the sorted entries, and where the sums of both start in the scratch memory."""
    _, indices, weight = problem.inputs
    pieces, groups = -(-indices.size // _PIECE), -(-indices.size // _GROUP)
    row, start = 2 * weight.shape[1] * arithmetic_of(weight.dtype).itemsize, _sort(problem).end
    return pieces, groups, start, start + -(-pieces * row // 16) * 16


def workspace(problem: EmbeddingProblem) -> int:
    """Scratch: the sort, the sums of pieces and groups."""
    weight = problem.inputs[2]
    _, groups, _, start = _parts(problem)
    return start + groups * 2 * weight.shape[1] * arithmetic_of(weight.dtype).itemsize


def _lanes(vectors: int) -> tuple[int, int]:
    """Threads of a row, and vectors of a thread: few idle, few tiles, whole warps, then as many vectors as may be."""
    shapes = [(lanes, count) for lanes in (128, 64, 32, 16, 8) for count in (4, 3, 2, 1)]

    def tiles(shape: tuple[int, int]) -> int:
        return -(-vectors // math.prod(shape))

    def rank(shape: tuple[int, int]) -> tuple[float, ...]:
        return round(tiles(shape) * math.prod(shape) / vectors, 1), tiles(shape), shape[0] < 32, -shape[1]

    return min(shapes, key=rank)


def run(problem: EmbeddingProblem, device: Device, aligned: bool) -> Program:
    """The entries sorted by row, then sums: of the pieces of long rows, of groups of pieces, of rows."""
    _, indices, weight = problem.inputs
    if weight.size == 0:
        return Program(())
    rows, length = weight.shape
    order = order_of(weight)
    steps = (length, 1) if order == (0, 1) else (1, rows)
    sort, vector = _sort(problem), vector_length(weight.dtype, aligned, length)
    lanes, each = _lanes(length // vector)
    pieces, groups, pieces_start, groups_start = _parts(problem)
    arrays: dict[str, Any] = {
        "grad": Array(0),
        "keys": sort.keys,
        "places": sort.places,
        "starts": sort.starts,
        "dweight": Array(3),
    }
    arrays |= {"pieces": Array(4, pieces_start), "groups": Array(4, groups_start)}
    plans = sort.plans(
        Array(1),
        INTEGERS[indices.dtype],
        indices.dtype.name,
        -1 if problem.padding_index is None else problem.padding_index,
    )
    for stage, units in enumerate((pieces, groups, rows)):
        if not units or (stage == 1 and groups == 1):
            continue  # a row with more than a group of entries takes more than one group
        config = EmbeddingSumsConfig(TYPES[weight.dtype], stage, vector, each, lanes, _THREADS)
        name = f"embedding_sums_{('pieces', 'groups', 'rows')[stage]}_{SHORT[weight.dtype]}x{vector}_{lanes}x{each}"
        blocks = -(-units // (_THREADS // lanes)) * -(-length // (vector * lanes * each))
        arguments = EmbeddingSumsArguments(
            **arrays, units=units, count=indices.size, rows=rows, length=length, row_step=steps[0], column_step=steps[1]
        )
        plans.append(planned(Kernel("spatial/embedding_sums.cu", name, config), (blocks, 1, 1), _THREADS, arguments))
    return Program(tuple(plans), (tuple(range(problem.inputs[0].ndim)), tuple(range(indices.ndim)), order))


def rejects(problem: EmbeddingProblem, device: Device) -> str | None:
    return "2^31 indices or rows" if max(problem.inputs[1].size, problem.rows) >= _LIMIT else None
