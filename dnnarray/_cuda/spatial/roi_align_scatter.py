"""The algorithm ``roi_align_scatter``: the gradient by scattered sums, of floating numbers or of 64-bit integers."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.arguments import Extent, In, Pointer
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.roi import StridedRoiArguments, settings, strided_roi
from dnnarray._cuda.spatial.scatter import scattered
from dnnarray._cuda.spatial.shared import THREADS, grid_1d, order_of, strides_of
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

Sums = Annotated[Array, Pointer("void", False)]
Flags = Annotated[Array | None, Pointer("unsigned", False)]
Largest = Annotated[Array | None, Pointer("unsigned long long", True)]


@frozen
class RoiAlignScatterConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_scatter.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    fixed: bool
    threads: int


@frozen(kw_only=True)
class RoiAlignScatterArguments(StridedRoiArguments, restrict=True):
    """What ``kernels/spatial/roi_align_scatter.cu`` is called with; `flags` and `largest` belong to sums of
    integers."""

    grad: In
    x: In
    boxes: In
    sums: Sums
    flags: Flags
    largest: Largest
    bits: Extent


def cost(scratch: int, problem: RoiAlignProblem, device: Device) -> Cost:
    """A scattered addition costs as much as 30 bytes where neighbours lie apart, 8 where they are channels of a
    pixel."""
    added = problem.inputs[0].size * 4 * (problem.sampling_ratio or 2) ** 2
    each = 8 if strides_of(problem.x)[1] == 1 else 30
    return Cost(problem.flops, problem.bytes + added * each + 4 * scratch, launches=4)


def _scatter(
    problem: RoiAlignProblem, fixed: bool, sums: Array, flags: Array | None, largest: Array | None, bits: int
) -> Plan:
    grad = problem.inputs[0]
    own, name = settings(problem)
    kernel = Kernel(
        "spatial/roi_align_scatter.cu",
        f"roi_align_scatter_{name}{'_fixed' * fixed}",
        RoiAlignScatterConfig(*own, fixed, THREADS),
    )
    arguments = RoiAlignScatterArguments(
        grad=Array(0),
        x=Array(1),
        boxes=Array(2),
        sums=sums,
        flags=flags,
        largest=largest,
        bits=bits,
        **strided_roi(problem, grad),
    )
    return planned(kernel, grid_1d(grad.size), THREADS, arguments)


def run(fixed: bool, problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """Scattered sums; the contributions of a bin to a pixel are no more than its gradient together."""
    grad, x, boxes = problem.inputs
    if not x.size:
        return Program(())
    orders = (order_of(grad), order_of(x), tuple(range(boxes.ndim)))
    if not grad.size:
        return Program((zero(Array(3), x.nbytes, aligned),), orders)
    terms = grad.size // grad.shape[1]
    return Program(
        tuple(scattered(x, Array(3), 4, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))),
        orders,
    )
