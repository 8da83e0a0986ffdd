"""What the kernels of `affine_grid` and of its gradient have in common."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Doubles, Extents
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, vector_length
from dnnarray._cuda.spatial.shared import (
    THREADS,
    three_extents,
)
from dnnarray._problems.spatial_grid import AffineGridProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

_LONG = 1 << 30  # places from which on indices are long


@frozen
class AffineConfig(Config):
    """Compile-time settings of ``kernels/spatial/affine_grid.cu`` and ``affine_grid_backward.cu``, where `rows` is
    1."""

    element: str
    index: str
    rank: int
    places: int
    rows: int
    vector: int
    threads: int


@frozen(kw_only=True)
class AffineArguments(Arguments):
    """What both kernels have in common: three axes of the places, their lengths in pixels, from -1 to 1, and the
    inverses of those."""

    extents: Extents
    lengths: Extents
    inverses: Doubles


def affine_kernel(
    problem: AffineGridProblem, source: str, theta: Spec, aligned: bool, places: int, rows: int = 1
) -> Kernel:
    """A kernel over places, of which a thread owns so many at a time."""
    rank, wide = len(problem.space), theta.shape[0] * math.prod(problem.space) >= _LONG
    vector, index = vector_length(theta.dtype, aligned, places * rank), "long long" if wide else "int"
    config = AffineConfig(TYPES[theta.dtype], index, rank, places, rows, vector, THREADS)
    name = f"{source}_{SHORT[theta.dtype]}_rank{rank}_{places}x{vector}{f'_rows{rows}' * (rows > 1)}{'_wide' * wide}"
    return Kernel(f"spatial/{source}.cu", name, config)


def neighbours(problem: AffineGridProblem, theta: Spec) -> int:
    """Neighbours that a thread writes: one whole vector, so that those of a warp lie side by side, or four where a
    vector ends within a place."""
    rank, vector = len(problem.space), 16 // theta.dtype.itemsize
    places = vector // rank if vector % rank == 0 else 4
    return places if problem.space[-1] % places == 0 else 1


def axes(problem: AffineGridProblem) -> dict[str, Any]:
    """The fields of `AffineArguments`."""
    lengths = tuple(max(n - problem.align_corners, 1) for n in three_extents(problem.space))
    return {"extents": three_extents(problem.space), "lengths": lengths, "inverses": tuple(1.0 / n for n in lengths)}
