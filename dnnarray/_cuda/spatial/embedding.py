"""The algorithm ``embedding``: rows of a table at indices."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.spatial_lookup import EmbeddingProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS, _VECTORS = 128, 2  # threads of a block, vectors of a thread
_LIMIT = 1 << 31
Index = Annotated[Array, Pointer("Config::Index", True)]


@frozen
class EmbeddingConfig(Config):
    """Compile-time settings of ``kernels/spatial/embedding.cu``."""

    element: str
    index: str
    vector: int
    count: int
    threads: int


@frozen
class EmbeddingArguments(Arguments, restrict=True):
    """What ``kernels/spatial/embedding.cu`` is called with; `vectors` stand in a row, `total` in y."""

    indices: Index
    weight: In
    y: Out
    total: Extent
    vectors: Extent
    rows: Extent


def rejects(problem: EmbeddingProblem, device: Device) -> str | None:
    return "rows of 2^31 elements or more" if problem.inputs[1].shape[1] >= _LIMIT else None


def run(problem: EmbeddingProblem, device: Device, aligned: bool) -> Program:
    indices, weight = problem.inputs
    y = problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    planner, length = Planner(problem, aligned), weight.shape[1]
    vector = vector_length(weight.dtype, aligned, length)
    config = EmbeddingConfig(TYPES[weight.dtype], INTEGERS[indices.dtype], vector, _VECTORS, _THREADS)
    kernel = Kernel("spatial/embedding.cu", f"embedding_{SHORT[weight.dtype]}x{vector}_by_{indices.dtype.name}", config)
    total, (index, table) = y.size // vector, planner.inputs
    arguments = EmbeddingArguments(
        index, table, planner.outputs[0], total=total, vectors=length // vector, rows=problem.rows
    )
    planner.launch(kernel, (blocks_of(total, _THREADS * _VECTORS), 1, 1), _THREADS, arguments)
    return planner.program()
