"""Weight gradients from the parts that other launches leave: plans for ``kernels/conv/split_sums.cu``."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.conv.arguments import NO_AXES, NO_STRIDES, ConvAxes, FloatIn, ImageStrides, SourceIn, conv_axes
from dnnarray._cuda.conv.shared import dense_strides
from dnnarray._cuda.core.arguments import Arguments, Extent, Int, Out, Strided
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 256
_SLICES = (32, 16, 8, 4, 2)  # threads that share the parts of an element's sum
_GROUPS = (8, 4, 2, 1)  # neighbouring channels that a thread adds up


@frozen
class SplitSumsConfig(Config):
    """Compile-time settings of ``kernels/conv/split_sums.cu``."""

    element: str
    source: str
    repairs: bool
    group: int
    slices: int
    threads: int


@frozen
class SplitSumsArguments(Arguments, restrict=True):
    """What ``kernels/conv/split_sums.cu`` is called with; what follows `written` is what a repair reads."""

    partial: FloatIn
    out: Out
    dy: SourceIn
    x: SourceIn
    size: Extent
    groups: Extent
    splits: Extent
    apart: Extent
    read: Strided
    written: Strided
    images: Int
    outs: Int
    channels: Int
    y_strides: ImageStrides
    x_strides: ImageStrides
    axes: ConvAxes


@frozen
class WeightTerms:
    """What a weight gradient is made of, where elements that are NaN are to be computed again by the definition."""

    g: Geometry
    small: Operand
    large: Operand


def sum_splits(
    partial: Operand,
    count: int,
    weight: Operand,
    shape: tuple[int, ...],
    aligned: bool,
    terms: WeightTerms | None = None,
) -> Plan:
    """The weight's gradient from its parts, which lie as (K, window, C). With `terms`, what is NaN is computed
    again."""
    size, slices = math.prod(shape), next((s for s in _SLICES if count >= 4 * s), 1)
    widest = vector_length(weight.dtype, aligned)
    group = next(n for n in _GROUPS if n <= widest and shape[1] % n == 0)
    steps = dense_strides(shape, (0, 2, 3, 4, 1))
    wide = (1, group, 1, 1, 1)  # a thread adds up groups of channels
    axes = [(shape[i] // w, steps[i] * w, weight.strides[i] * w) for i, w in enumerate(wide)]
    axes.sort(key=lambda axis: -abs(axis[2]))  # neighbouring threads write neighbouring places
    inner, from_steps, to_steps = zip(*axes, strict=True)
    source = terms.large.dtype if terms else weight.dtype
    config = SplitSumsConfig(TYPES[weight.dtype], TYPES[source], terms is not None, group, slices, _THREADS)
    words = ["conv_split_sums", SHORT[weight.dtype], f"{group}x{slices}", *(["repair", SHORT[source]] if terms else [])]
    arguments = SplitSumsArguments(
        partial.array, weight.array, size=size, groups=size // group, splits=count, apart=weight.strides[1],
        read=(*inner[1:], *from_steps), written=(*inner[1:], *to_steps), **_repair(terms),
    )  # fmt: skip
    grid = (-(-size * slices // (group * _THREADS)), 1, 1)
    kernel = Kernel("conv/split_sums.cu", "_".join(words), config, ("core/index", "conv/geometry"))
    return planned(kernel, grid, _THREADS, arguments, early=True)


def _repair(terms: WeightTerms | None) -> dict[str, Any]:
    """The arguments of a repair; without `terms` the kernel does not look at them."""
    if terms is None:
        return {
            "dy": None,
            "x": None,
            "images": 0,
            "outs": 0,
            "channels": 0,
            "y_strides": NO_STRIDES,
            "x_strides": NO_STRIDES,
            "axes": NO_AXES,
        }
    g, small, large = terms.g, terms.small, terms.large
    return {
        "dy": small.array, "x": large.array, "images": g.n, "outs": g.k, "channels": g.c,
        "y_strides": small.strides, "x_strides": large.strides, "axes": conv_axes(g),
    }  # fmt: skip
