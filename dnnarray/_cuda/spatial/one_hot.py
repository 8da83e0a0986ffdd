"""The algorithm ``one_hot``: each class is compared with the index."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import INTEGERS, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.embedding import Index
from dnnarray._problems.spatial_lookup import OneHotProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS, _VECTORS = 128, 4  # threads of a block, vectors of a thread
_LIMIT = 1 << 31
Integers = Annotated[Array, Pointer("long long", False)]


@frozen
class OneHotConfig(Config):
    """Compile-time settings of ``kernels/spatial/one_hot.cu``."""

    index: str
    vector: int
    count: int
    threads: int


@frozen
class OneHotArguments(Arguments, restrict=True):
    """What ``kernels/spatial/one_hot.cu`` is called with; y has `total` elements."""

    indices: Index
    y: Integers
    total: Extent
    classes: Extent


def rejects(problem: OneHotProblem, device: Device) -> str | None:
    return "2^31 classes or more" if problem.rows >= _LIMIT else None


def run(problem: OneHotProblem, device: Device, aligned: bool) -> Program:
    indices, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    planner, vector = Planner(problem, aligned), 2 if aligned else 1
    config = OneHotConfig(INTEGERS[indices.dtype], vector, _VECTORS, _THREADS)
    kernel = Kernel("spatial/one_hot.cu", f"one_hot_x{vector}_by_{indices.dtype.name}", config)
    arguments = OneHotArguments(planner.inputs[0], planner.outputs[0], total=y.size, classes=problem.rows)
    planner.launch(kernel, (blocks_of(y.size, _THREADS * vector * _VECTORS), 1, 1), _THREADS, arguments)
    return planner.program()
