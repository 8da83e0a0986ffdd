"""Some axes of an array in any memory, as kernels walk them by one index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, NamedTuple

from dnnarray._cuda.core.arguments import Nested
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.norm.layer import specs_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._spec import Spec

AXES = 4
Axes = Annotated[Sequence[int], Nested("dnnarray::Axes", "7q")]  # declared in kernels/norm/axes.cuh


class Walk(NamedTuple):
    """Some axes of x in C order: extents and strides in its memory, neighbours merged where they are one axis there."""

    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def fastest(self) -> bool:
        """Whether the last of the axes is the fastest in memory."""
        return bool(self.strides) and self.strides[-1] == 1

    @property
    def axes(self) -> tuple[int, ...]:
        """As ``struct Axes`` (``kernels/norm/axes.cuh``) has them: three extents and four strides, filled with axes of
        extent 1 in front."""
        missing = AXES - len(self.extents)
        extents = (1,) * missing + self.extents
        return (*extents[1:], *(0,) * missing, *self.strides)


def walk(x: Spec, axes: tuple[int, ...]) -> Walk:
    order = order_of(x)
    strides, step = {}, 1
    for i in reversed(order):
        strides[i] = step
        step *= max(x.shape[i], 1)
    merged: list[tuple[int, int]] = []
    for i in sorted(axes):
        n, stride = x.shape[i], strides[i]
        if n == 1:
            continue
        if merged and merged[-1][1] == n * stride:
            merged[-1] = (merged[-1][0] * n, stride)
        else:
            merged.append((n, stride))
    return Walk(tuple(n for n, _ in merged), tuple(s for _, s in merged))


def walks(problem: NormProblem) -> tuple[Walk, Walk]:
    """The axes that are kept, and those that are normalised."""
    x, axes = specs_of(problem).x, problem.geometry.axes
    return walk(x, tuple(i for i in range(x.ndim) if i not in axes)), walk(x, axes)
