"""Weight gradients from the parts that other launches leave: plans for ``kernels/conv/split_sums.cu``."""

from __future__ import annotations

import math

from dnnarray._cuda.conv.shared import dense_strides, extents
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 256
_REPAIR = 22  # numbers of a repair
_SLICES = (32, 16, 8, 4, 2)  # threads that share the parts of an element's sum
_GROUPS = (8, 4, 2, 1)  # neighbouring channels that a thread adds up


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/conv/split_sums.cu``."""

    element: str
    source: str
    repairs: bool
    group: int
    slices: int
    threads: int


@frozen
class WeightTerms:
    """What a weight gradient is made of, where elements that are NaN are to be computed again by the definition."""

    g: Geometry
    small: Operand
    large: Operand


def sum_splits(
    partial: Operand, count: int, weight: Operand, shape: tuple[int, ...], aligned: bool, terms: WeightTerms | None = None
) -> Plan:
    """The weight's gradient from its parts, which lie as (K, window, C). With `terms`, what is NaN is computed again."""
    size, slices = math.prod(shape), next((s for s in _SLICES if count >= 4 * s), 1)
    widest = vector_length(weight.dtype, aligned)
    group = next(n for n in _GROUPS if n <= widest and shape[1] % n == 0)
    steps = dense_strides(shape, (0, 2, 3, 4, 1))
    wide = (1, group, 1, 1, 1)  # a thread adds up groups of channels
    axes = [(shape[i] // w, steps[i] * w, weight.strides[i] * w) for i, w in enumerate(wide)]
    axes.sort(key=lambda axis: -abs(axis[2]))  # neighbouring threads write neighbouring places
    inner, from_steps, to_steps = zip(*axes, strict=True)
    source = terms.large.dtype if terms else weight.dtype
    config = SumsConfig(TYPES[weight.dtype], TYPES[source], terms is not None, group, slices, _THREADS)
    words = ["conv_split_sums", SHORT[weight.dtype], f"{group}x{slices}", *(["repair", SHORT[source]] if terms else [])]
    numbers = (size, size // group, count, weight.strides[1], *inner[1:], *from_steps, *to_steps)
    arguments = (partial.array, weight.array, *numbers, *(_repair_arguments(terms) if terms else (weight.array,) * 2 + (0,) * _REPAIR))
    grid = (-(-size * slices // (group * _THREADS)), 1, 1)
    return Plan(Kernel("conv/split_sums.cu", "_".join(words), config), grid, _THREADS, arguments, early=True)


def _repair_arguments(terms: WeightTerms) -> tuple[Array | int, ...]:
    g, small, large = terms.g, terms.small, terms.large
    return small.array, large.array, g.n, g.k, g.c, *small.strides, *large.strides, *extents(g)
