"""Look-ups: plans for the rows of a table, their gradient, and one-hot vectors."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool import INTEGERS
from dnnarray._cuda.spatial_common import arithmetic
from dnnarray._cuda.spatial_sort import Sort
from dnnarray._problems.spatial_lookup import EmbeddingProblem, OneHotProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method

_THREADS = 128
_TAKE = (128, 2)  # threads of a block, vectors of a thread
_COMPARED = 4  # vectors of a thread of one_hot
_LIMIT = 1 << 31
_PIECE, _GROUP = 32, 2048  # entries; as in kernels/spatial/embedding_sums.cu


@frozen
class EmbeddingConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding.cu``."""

    element: str
    index: str
    vector: int
    count: int
    threads: int


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding_sums.cu``."""

    element: str
    stage: int
    vector: int
    count: int
    lanes: int
    threads: int


@frozen
class OneHotConfig(Config):
    """Compile-time settings of ``kernels/spatial/one_hot.cu``."""

    index: str
    vector: int
    count: int
    threads: int


def take(problem: EmbeddingProblem, device: Device, aligned: bool) -> Program:
    """One launch: rows of the table."""
    indices, weight = problem.inputs
    y = problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    length = weight.shape[1]
    vector = vector_length(weight.dtype, aligned, length)
    threads, count = _TAKE
    config = EmbeddingConfig(TYPES[weight.dtype], INTEGERS[indices.dtype], vector, count, threads)
    kernel = Kernel("spatial/embedding.cu", f"embedding_{SHORT[weight.dtype]}x{vector}_by_{indices.dtype.name}", config)
    total = y.size // vector
    arguments = (Array(0), Array(1), Array(2), total, length // vector, problem.rows)
    return Program((Plan(kernel, (-(-total // (threads * count)), 1, 1), threads, arguments),))


def _sort(problem: EmbeddingProblem) -> Sort:
    return Sort(1, problem.inputs[1].size, problem.rows, 4)


def _parts(problem: EmbeddingProblem) -> tuple[int, int, int, int]:
    """Pieces and groups of the sorted entries, and where the sums of both start in the scratch memory."""
    _, indices, weight = problem.inputs
    pieces, groups = -(-indices.size // _PIECE), -(-indices.size // _GROUP)
    row, start = 2 * weight.shape[1] * arithmetic(weight).itemsize, _sort(problem).end
    return pieces, groups, start, start + -(-pieces * row // 16) * 16


def sorted_bytes(problem: EmbeddingProblem) -> int:
    """Scratch: the sort, the sums of pieces and groups."""
    weight = problem.inputs[2]
    _, groups, _, start = _parts(problem)
    return start + groups * 2 * weight.shape[1] * arithmetic(weight).itemsize


def _lanes(vectors: int) -> tuple[int, int]:
    """Threads of a row, and vectors of a thread: few idle, few tiles, whole warps, then as many vectors as may be."""
    shapes = [(lanes, count) for lanes in (128, 64, 32, 16, 8) for count in (4, 3, 2, 1)]

    def tiles(shape: tuple[int, int]) -> int:
        return -(-vectors // math.prod(shape))

    def rank(shape: tuple[int, int]) -> tuple[float, ...]:
        return round(tiles(shape) * math.prod(shape) / vectors, 1), tiles(shape), shape[0] < 32, -shape[1]

    return min(shapes, key=rank)


def sorted_sums(problem: EmbeddingProblem, device: Device, aligned: bool) -> Program:
    """The entries sorted by row, then sums: of the pieces of long rows, of groups of pieces, of rows."""
    _, indices, weight = problem.inputs
    if weight.size == 0:
        return Program(())
    rows, length = weight.shape
    order = weight.axis_order() or (0, 1)
    steps = (length, 1) if order == (0, 1) else (1, rows)
    sort, vector = _sort(problem), vector_length(weight.dtype, aligned, length)
    lanes, each = _lanes(length // vector)
    pieces, groups, pieces_start, groups_start = _parts(problem)
    pointers = (Array(0), sort.keys, sort.places, sort.starts, Array(4, pieces_start), Array(4, groups_start), Array(3))
    plans = sort.plans(
        Array(1), INTEGERS[indices.dtype], indices.dtype.name, -1 if problem.padding_index is None else problem.padding_index
    )
    for stage, units in enumerate((pieces, groups, rows)):
        if not units or (stage == 1 and groups == 1):
            continue  # a row with more than a group of entries takes more than one group
        config = SumsConfig(TYPES[weight.dtype], stage, vector, each, lanes, _THREADS)
        name = f"embedding_{('pieces', 'groups', 'rows')[stage]}_{SHORT[weight.dtype]}x{vector}_{lanes}x{each}"
        blocks = -(-units // (_THREADS // lanes)) * -(-length // (vector * lanes * each))
        arguments = (*pointers, units, indices.size, rows, length, *steps)
        plans.append(Plan(Kernel("spatial/embedding_sums.cu", name, config), (blocks, 1, 1), _THREADS, arguments))
    return Program(tuple(plans), (tuple(range(problem.inputs[0].ndim)), tuple(range(indices.ndim)), order))


def _unsortable(problem: EmbeddingProblem, device: Device) -> str | None:
    return "2^31 indices or rows" if max(problem.inputs[1].size, problem.rows) >= _LIMIT else None


def _too_long(problem: EmbeddingProblem, device: Device) -> str | None:
    return "rows of 2^31 elements or more" if problem.inputs[1].shape[1] >= _LIMIT else None


def one_hot(problem: OneHotProblem, device: Device, aligned: bool) -> Program:
    """One launch: each element compares its class with the index."""
    indices, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    vector = 2 if aligned else 1
    config = OneHotConfig(INTEGERS[indices.dtype], vector, _COMPARED, _THREADS)
    kernel = Kernel("spatial/one_hot.cu", f"one_hot_x{vector}_by_{indices.dtype.name}", config)
    grid = (-(-y.size // (_THREADS * vector * _COMPARED)), 1, 1)
    return Program((Plan(kernel, grid, _THREADS, (Array(0), Array(1), y.size, problem.rows)),))


def _too_many_classes(problem: OneHotProblem, device: Device) -> str | None:
    return "2^31 classes or more" if problem.rows >= _LIMIT else None


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "embedding": (Method("take", take, "one gather of rows", _too_long),),
    "embedding_backward": (Method("sorted", sorted_sums, "entries sorted by row, then sums in fixed pieces", _unsortable, sorted_bytes),),
    "one_hot": (Method("compare", one_hot, "each class is compared with the index", _too_many_classes),),
}
