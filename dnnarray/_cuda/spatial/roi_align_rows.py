"""The algorithm ``roi_align_rows``: a block for a box and some channels, whose warps read along rows of pixels."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda.core.arguments import Extent, In, Out
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.roi import RoiArguments, looked_up, roi
from dnnarray._cuda.spatial.shared import THREADS, order_of
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_CHANNELS = 64  # at most, that a block takes one after the other
cost = partial(looked_up, 8)


@frozen
class RoiAlignRowsConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_rows.cu``."""

    element: str
    maximum: bool
    aligned: bool
    ratio: int
    threads: int


@frozen(kw_only=True)
class RoiAlignRowsArguments(RoiArguments, restrict=True):
    """What ``kernels/spatial/roi_align_rows.cu`` is called with; a block takes `each` channels."""

    x: In
    boxes: In
    y: Out
    channels: Extent
    each: Extent


def run(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for a box and some channels, whose warps read along rows of pixels."""
    x, y, ratio = problem.x, problem.outputs[0], problem.sampling_ratio
    assert y is not None
    if not y.size:
        return Program(())
    name = f"{SHORT[x.dtype]}_{problem.mode}{'_aligned' * problem.aligned}_{ratio}"
    planner, config = (
        Planner(problem, aligned),
        RoiAlignRowsConfig(TYPES[x.dtype], problem.mode == "max", problem.aligned, ratio, THREADS),
    )
    kernel = Kernel("spatial/roi_align_rows.cu", f"roi_align_rows_{name}", config)
    boxes, channels = y.shape[:2]
    each = max(4, min(_CHANNELS, -(-boxes * channels // (16 * device.units))))
    (x_in, boxes_in), out = planner.inputs, planner.outputs[0]
    arguments = RoiAlignRowsArguments(x=x_in, boxes=boxes_in, y=out, channels=channels, each=each, **roi(problem))
    planner.launch(
        kernel, (boxes * -(-channels // each), 1, 1), THREADS, arguments, shared_memory=_rows_shared(problem)
    )
    return planner.program()


def _rows_shared(problem: RoiAlignProblem) -> int:
    return 2 * problem.sampling_ratio * problem.output_size[0] * (arithmetic_of(problem.x.dtype).itemsize + 4)


def rejects(problem: RoiAlignProblem, device: Device) -> str | None:
    """Why there are not bins of a few samples, in planes in C order, or None."""
    if problem.sampling_ratio not in (1, 2, 4, 8):
        return f"sampling_ratio={problem.sampling_ratio}, not 1, 2, 4 or 8"
    if order_of(problem.x) != (0, 1, 2, 3) or max(problem.x.shape[2:]) >= 2**31:
        return "x does not lie in C order"
    return f"{problem.output_size[0]:,} rows of bins" if _rows_shared(problem) > 40 << 10 else None
