"""`roi_align`: plans for pooling the samples of bins, and for the scattered gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._cuda.spatial_common import (
    THREADS,
    fixed_bytes,
    float_bytes,
    grid_1d,
    order_of,
    scatter_cost,
    scattered,
    strides_of,
)
from dnnarray._cuda.zero import zero
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._select import Device, Method
from dnnarray._spec import Spec


@dataclass(frozen=True)
class PoolConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    threads: int


@dataclass(frozen=True)
class ScatterConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_scatter.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    fixed: bool
    threads: int


def _settings(problem: RoiAlignProblem) -> tuple[tuple[str, bool, bool, bool], str]:
    """The settings that both kernels have, and what names them in a symbol."""
    x, maximum = problem.x, problem.mode == "max"
    last = strides_of(x)[1] == 1 and x.shape[1] > 1
    return (TYPES[x.dtype], maximum, problem.aligned, last), (
        f"{SHORT[x.dtype]}_{problem.mode}{'_aligned' * problem.aligned}{'_last' * last}"
    )


def _sizes(problem: RoiAlignProblem, pooled: Spec) -> tuple[int | float, ...]:
    """Extents, options and strides."""
    sizes = (*problem.x.shape, pooled.shape[0], *problem.output_size, problem.sampling_ratio, float(problem.spatial_scale))
    return (*sizes, *strides_of(problem.x), *strides_of(pooled))


def roi_align(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for a bin of a channel."""
    x, boxes = problem.inputs
    y = problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    settings, name = _settings(problem)
    kernel = Kernel("spatial/roi_align.cu", f"roi_align_{name}", PoolConfig(*settings, THREADS))
    plan = Plan(kernel, grid_1d(y.size), THREADS, (Array(0), Array(1), Array(2), *_sizes(problem, y)))
    return Program((plan,), (order_of(x), tuple(range(boxes.ndim))))


def _scatter(problem: RoiAlignProblem, fixed: bool, sums: Any, flags: Any, largest: Any, bits: int) -> Plan:
    grad = problem.inputs[0]
    settings, name = _settings(problem)
    kernel = Kernel("spatial/roi_align_scatter.cu", f"roi_align_scatter_{name}{'_fixed' * fixed}", ScatterConfig(*settings, fixed, THREADS))
    arguments = (Array(0), Array(1), Array(2), sums, flags, largest, bits, *_sizes(problem, grad))
    return Plan(kernel, grid_1d(grad.size), THREADS, arguments)


def roi_align_backward(fixed: bool, problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """Scattered sums; the contributions of a bin to a pixel are no more than its gradient together."""
    grad, x, boxes = problem.inputs
    if not x.size:
        return Program(())
    orders = (order_of(grad), order_of(x), tuple(range(boxes.ndim)))
    if not grad.size:
        return Program((zero(Array(3), x.nbytes, aligned),), orders)
    terms = grad.size // grad.shape[1]
    return Program(tuple(scattered(x, Array(3), 4, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))), orders)


def _fixed_bytes(problem: RoiAlignProblem) -> int:
    return fixed_bytes(problem.x)


def _float_bytes(problem: RoiAlignProblem) -> int:
    return float_bytes(problem.x)


ALGORITHMS = {
    "roi_align": (Method("gather", roi_align, "a thread for a bin of a channel"),),
    "roi_align_backward": (
        Method(
            "atomic",
            partial(roi_align_backward, False),
            "scattered sums of floating numbers",
            workspace=_float_bytes,
            cost=scatter_cost(_float_bytes, 3),
            deterministic=False,
        ),
        Method(
            "fixed_point",
            partial(roi_align_backward, True),
            "scattered sums of 64-bit integers, which have no order",
            workspace=_fixed_bytes,
            cost=scatter_cost(_fixed_bytes, 4),
        ),
    ),
}
