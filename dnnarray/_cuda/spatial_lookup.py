"""Look-ups: plans for the rows of a table, their gradient, and one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool import INTEGERS
from dnnarray._problems.spatial_lookup import EmbeddingProblem, OneHotProblem
from dnnarray._select import Device, Method

_THREADS = 128
_LIMIT = 1 << 31
_ROW_OF_BLOCKS = 65_535


@dataclass(frozen=True)
class EmbeddingConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding.cu``."""

    element: str
    index: str
    vector: int
    threads: int


@dataclass(frozen=True)
class EmbeddingGradientConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding_gradient.cu``."""

    element: str
    index: str
    stage: int
    vector: int
    threads: int


@dataclass(frozen=True)
class OneHotConfig(Config):
    """Compile-time settings of ``kernels/spatial/one_hot.cu``."""

    index: str
    vector: int
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
    config = EmbeddingConfig(TYPES[weight.dtype], INTEGERS[indices.dtype], vector, _THREADS)
    kernel = Kernel("spatial/embedding.cu", f"embedding_{SHORT[weight.dtype]}x{vector}_by_{indices.dtype.name}", config)
    total = y.size // vector
    arguments = (Array(0), Array(1), Array(2), total, length // vector, problem.rows)
    return Program((Plan(kernel, (-(-total // _THREADS), 1, 1), _THREADS, arguments),))


def _round(size: int) -> int:
    return -(-size // 16) * 16


def counted_bytes(problem: EmbeddingProblem) -> int:
    """Scratch: counts, starts and cursors of the rows, and the entries of all rows."""
    return _round(12 * problem.rows) + _round(4 * problem.inputs[1].size)


def counted(problem: EmbeddingProblem, device: Device, aligned: bool) -> Program:
    """Five launches: clear, count, scan, list, add up each row."""
    _, indices, weight = problem.inputs
    if weight.size == 0:
        return Program(())
    rows, length = weight.shape
    order = weight.axis_order() or (0, 1)
    row_step, column_step = (length, 1) if order == (0, 1) else (1, rows)
    vector = vector_length(weight.dtype, aligned, length)
    padding = -1 if problem.padding_index is None else problem.padding_index
    pointers = (Array(0), Array(1), Array(3), Array(4), Array(4, _round(12 * rows)))
    arguments = (*pointers, indices.size, rows, length, padding, row_step, column_step)
    by_row, by_entry = -(-rows // _THREADS), -(-indices.size // _THREADS)
    grids = {0: (by_row, 1, 1), 1: (by_entry, 1, 1), 2: (1, 1, 1), 3: (by_entry, 1, 1), 4: (rows, -(-length // (_THREADS * vector)), 1)}
    plans = []
    for stage, grid in grids.items():
        if not indices.size and stage in (1, 3):
            continue
        threads = 1024 if stage == 2 else _THREADS
        element, size = (TYPES[weight.dtype], f"{SHORT[weight.dtype]}x{vector}") if stage == 4 else ("float", "any")
        config = EmbeddingGradientConfig(element, INTEGERS[indices.dtype], stage, vector if stage == 4 else 1, threads)
        name = ("clear", "count", "scan", "list", "sum")[stage]
        kernel = Kernel("spatial/embedding_gradient.cu", f"embedding_gradient_{name}_{size}_by_{indices.dtype.name}", config)
        plans.append(Plan(kernel, grid, threads, arguments))
    return Program(tuple(plans), (tuple(range(problem.inputs[0].ndim)), tuple(range(indices.ndim)), order))


def _uncountable(problem: EmbeddingProblem, device: Device) -> str | None:
    _, indices, weight = problem.inputs
    if max(indices.size, problem.rows) >= _LIMIT - _THREADS:
        return "2^31 indices or rows"
    wide = -(-weight.shape[1] // _THREADS)
    return "rows too long" if wide > _ROW_OF_BLOCKS else None


def _too_long(problem: EmbeddingProblem, device: Device) -> str | None:
    return "rows of 2^31 elements or more" if problem.inputs[1].shape[1] >= _LIMIT else None


def one_hot(problem: OneHotProblem, device: Device, aligned: bool) -> Program:
    """One launch: each element compares its class with the index."""
    indices, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    vector = 2 if aligned else 1
    config = OneHotConfig(INTEGERS[indices.dtype], vector, _THREADS)
    kernel = Kernel("spatial/one_hot.cu", f"one_hot_x{vector}_by_{indices.dtype.name}", config)
    grid = (-(-y.size // (_THREADS * vector)), 1, 1)
    return Program((Plan(kernel, grid, _THREADS, (Array(0), Array(1), y.size, problem.rows)),))


def _too_many_classes(problem: OneHotProblem, device: Device) -> str | None:
    return "2^31 classes or more" if problem.rows >= _LIMIT else None


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "embedding": (Method("take", take, "one gather of rows", _too_long),),
    "embedding_backward": (Method("counted", counted, "a list of entries per row, each summed in order", _uncountable, counted_bytes),),
    "one_hot": (Method("compare", one_hot, "each class is compared with the index", _too_many_classes),),
}
