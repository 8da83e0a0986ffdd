"""Region pooling: the problems of `roi_align`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from dnnarray._errors import OptionError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._problems.spatial_grid import nonempty_space
from dnnarray._records import frozen
from dnnarray._spec import Spec

MODES = ("avg", "max")
_MOST_SAMPLES = 2**10  # in a bin along an axis
# pixels; float32 has no fractions of a pixel beyond, and the number of samples follows from the extent
_FARTHEST = 2**24


@frozen(kw_only=True)
class RoiAlignProblem(Problem):
    """y[k, :, p, q] pools the samples of bin (p, q) of box k; `output_size` is (P, Q)."""

    output_size: tuple[int, int]
    spatial_scale: float
    sampling_ratio: int
    aligned: bool
    mode: str
    x: Spec

    @property
    def flops(self) -> int:
        """Four taps of two operations for each sample; without a sampling ratio, two by two samples are supposed."""
        p, q = self.output_size
        return 8 * self.inputs[-1].shape[0] * self.x.shape[1] * p * q * (self.sampling_ratio or 2) ** 2


def roi_align(
    op: str, x: Spec, boxes: Spec, *, output_size: Any, spatial_scale: Any, sampling_ratio: Any, aligned: Any, mode: Any
) -> RoiAlignProblem:
    checks.same_dtype(op, x=x, boxes=boxes)
    checks.rank(op, "x", x, 4, "N C H W")
    checks.shape(op, "boxes", boxes, (None, 5), "boxes by batch index, x1, y1, x2, y2")
    nonempty_space(op, x, "N C H W")
    if boxes.shape[0] and not x.shape[0]:
        _fail_index(op, 0)
    bins = checks.per_axis(op, "output_size", output_size, 2, 1)
    output = x.like((boxes.shape[0], x.shape[1], *bins))
    return RoiAlignProblem(
        op=op,
        inputs=(x, boxes),
        outputs=(output,),
        output_size=(bins[0], bins[1]),
        spatial_scale=checks.number(op, "spatial_scale", spatial_scale, above=0),
        sampling_ratio=checks.integer(op, "sampling_ratio", sampling_ratio, 0, _MOST_SAMPLES),
        aligned=checks.boolean(op, "aligned", aligned),
        mode=checks.choice(op, "mode", mode, MODES),
        x=x,
    )


def roi_align_backward(op: str, grad: Spec, x: Spec, boxes: Spec, **options: Any) -> RoiAlignProblem:
    forward = roi_align(op, x, boxes, **options)
    checks.gradient(op, grad, forward.result)
    shapes = frozenset((1,) if forward.mode == "avg" else ())
    return replace(forward, inputs=(grad, x, boxes), outputs=(x.like(),), shapes=shapes)


def _fail_index(op: str, images: int) -> NoReturn:
    expected = f"batch indices (column 0) from 0 to {images - 1}" if images else "no boxes, since x has no images"
    fail(OptionError, op, "boxes", "an array with a batch index outside of x", expected)


def roi_values(problem: RoiAlignProblem, *arrays: Any) -> None:
    """Batch indices name images of x; coordinates are finite and not absurd."""
    boxes = arrays[-1]
    images = problem.x.shape[0]
    index = boxes[:, 0]
    if not ((index >= 0) & (index < images)).all():
        _fail_index(problem.op, images)
    largest = float(abs(boxes[:, 1:]).max()) if boxes.size else 0.0
    if not largest * problem.spatial_scale < _FARTHEST:
        got = f"an array with the coordinate {largest:g} or its negative"
        fail(
            OptionError,
            problem.op,
            "boxes",
            got,
            f"finite coordinates, of less than {_FARTHEST:,} pixels after spatial_scale",
        )
