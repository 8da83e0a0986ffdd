"""The algorithm ``affine_grid_backward``: sums over parts of each image's places, then over the parts."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Extent, In, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.affine import AffineArguments, affine_kernel, axes
from dnnarray._cuda.spatial.affine_grid_theta import affine_grid_theta
from dnnarray._cuda.spatial.shared import (
    THREADS,
    order_of,
)
from dnnarray._problems.spatial_grid import AffineGridProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_PARTS = 64  # of an image's places, at most


@frozen(kw_only=True)
class AffineGridBackwardArguments(AffineArguments, restrict=True):
    """What ``kernels/spatial/affine_grid_backward.cu`` is called with."""

    grad: In
    partial: OutArithmetic
    batch: Extent
    parts: Extent
    length: Extent


def _parts(problem: AffineGridProblem) -> tuple[int, int]:
    """Parts of an image's places, and the places of each."""
    places = math.prod(problem.space)
    wanted = max(1, min(_PARTS, places // 1024))
    length = -(-places // (4 * wanted)) * 4
    return -(-places // length), length


def workspace(problem: AffineGridProblem) -> int:
    theta = problem.inputs[1]
    return _parts(problem)[0] * theta.size * arithmetic_of(theta.dtype).itemsize


def run(problem: AffineGridProblem, device: Device, aligned: bool) -> Program:
    """Sums over parts of each image's places, then over the parts; in the order of C for the gradient of theta."""
    theta = problem.inputs[1]
    if not theta.size:
        return Program(())
    (parts, length), n = _parts(problem), theta.shape[0]
    planner, rank = Planner(problem, aligned), len(problem.space)
    partial = planner.take(arithmetic_of(theta.dtype), parts * theta.size).array
    kernel = affine_kernel(problem, "affine_grid_backward", theta, aligned, 4 if problem.space[-1] % 4 == 0 else 1)
    arguments = AffineGridBackwardArguments(
        grad=planner.inputs[0], partial=partial, batch=n, parts=parts, length=length, **axes(problem)
    )
    planner.launch(kernel, (n * parts, 1, 1), THREADS, arguments)
    planner.add(affine_grid_theta(theta, rank, partial, planner.outputs[0], parts))
    return planner.program(((0, *range(1, theta.ndim + rank - 1)), order_of(theta)))
