"""The sums of parts of the gradient of an affine map."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, InArithmetic, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.shared import (
    THREADS,
    grid_1d,
    strides_of,
)
from dnnarray._records import frozen
from dnnarray._spec import Spec


@frozen
class AffineGridThetaConfig(Config):
    """Compile-time settings of ``kernels/spatial/affine_grid_theta.cu``."""

    element: str
    rank: int
    threads: int


@frozen
class AffineGridThetaArguments(Arguments, restrict=True):
    """What ``kernels/spatial/affine_grid_theta.cu`` is called with."""

    partial: InArithmetic
    dtheta: Out
    batch: Extent
    parts: Extent
    strides: Extents


def affine_grid_theta(theta: Spec, rank: int, partial: Array, target: Array, parts: int) -> Plan:
    """A thread for each element of the gradient."""
    config = AffineGridThetaConfig(TYPES[theta.dtype], rank, THREADS)
    kernel = Kernel("spatial/affine_grid_theta.cu", f"affine_grid_theta_{SHORT[theta.dtype]}_rank{rank}", config)
    arguments = AffineGridThetaArguments(partial, target, batch=theta.shape[0], parts=parts, strides=strides_of(theta))
    return planned(kernel, grid_1d(theta.size), THREADS, arguments, early=True)
