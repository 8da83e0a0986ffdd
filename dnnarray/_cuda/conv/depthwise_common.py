"""What the plans of the depthwise convolution share: how the images lie, the correlation to be computed, records of
arguments."""

from __future__ import annotations

import math
from functools import cached_property

from dnnarray._cuda.common.channels import lies
from dnnarray._cuda.core.arguments import Arguments, In, Out
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import Plan, vector_length
from dnnarray._problems import checks
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed, frozen
from dnnarray._spec import FLOAT64, Spec

SIDES = (3, 5, 7)
"""Extents of the window along the last axis that kernels are compiled for."""


@frozen
class Memory:
    """How the images lie: the axes from the slowest to the fastest, and whether the channels are the fastest."""

    order: tuple[int, ...]
    last: bool
    channel: int

    def strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Along batch, channel and three spatial axes."""
        found, step = [0] * len(shape), 1
        for i in reversed(self.order):
            found[i] = step
            step *= max(shape[i], 1)
        spatial = [found[i] for i in range(1, len(shape)) if i != self.channel]
        return (found[0], found[self.channel], *(0,) * (3 - len(spatial)), *spatial)


def memory_of(x: Spec, y: Spec, layout: str) -> Memory:
    """The memory that both have: that of the first, but where its extents of 1 leave open how the second lies, that of
    the second."""
    order = order_of(x)
    if not lies(y, order) and lies(x, order_of(y)):
        order = order_of(y)
    channel = checks.channel_axis(layout, x.ndim)
    present = [i for i in order if (x.shape[i], y.shape[i]) != (1, 1)]
    wanted = [i for i in (0, *(i for i in range(1, x.ndim) if i != channel), channel) if i in present]
    return Memory(order, y.shape[channel] > 1 and present == wanted, channel)


@frozen
class DepthwiseArguments(Arguments, restrict=True):
    """The arrays of a correlation, which are the first fields of its record; `residual` and `bias` may be absent."""

    x: In
    weight: In
    bias: In
    residual: In
    y: Out


@frozen
class PartialSums:
    """A first launch and how many partial sums of each tap of the weight it leaves."""

    plan: Plan
    parts: int


@frozen
class Correlation:
    """y from x: `g` is read as a forward or, with `gradient`, backwards as the gradient of one. `added` says that a
    residual is.

    `folded` says that it is x that has `g.k` channels for one of y, over which y sums: the gradient of a multiplier as
    a forward."""

    g: Geometry
    x: Spec
    y: Spec
    layout: str
    aligned: bool
    flip: bool
    gradient: bool = False
    added: bool = False
    relu: bool = False
    folded: bool = False

    @cached_property
    def memory(self) -> Memory:
        return memory_of(self.x, self.y, self.layout)

    @property
    def channels(self) -> int:
        """Of the result."""
        return self.y.shape[self.memory.channel]

    @property
    def plain(self) -> bool:
        """Whether there are as many output channels as input channels."""
        return self.g.k == 1

    @property
    def fast(self) -> bool:
        return not self.gradient and is_fast(self.g)

    @property
    def whole_vectors(self) -> bool:
        """Whether the channels of a pixel are whole vectors of 16 bytes."""
        return (
            self.memory.last
            and vector_length(self.x.dtype, self.aligned, self.channels, self.x.shape[self.memory.channel])
            * self.x.dtype.itemsize
            == 16
        )

    @property
    def computed(self) -> int:
        """Bytes of an element of the arithmetic."""
        return 8 if self.x.dtype == FLOAT64 else 4


def is_fast(g: Geometry) -> bool:
    """Whether the last axis of the window is one that kernels are compiled for."""
    return g.window[2] in SIDES and g.stride[2] in (1, 2) and g.dilation[2] == 1


def too_many(g: Geometry) -> bool:
    """Whether the kernels could not count strips of outputs in 31 bits."""
    return g.n * g.groups * g.k * max(math.prod(e[:2]) * -(-e[2] // 4) for e in (g.out, g.space)) >= 1 << 31


def is_flat(g: Geometry) -> bool:
    """Whether there are two spatial axes at the most."""
    return g.window[0] == g.space[0] == g.out[0] == 1


def turned(g: Geometry) -> Geometry:
    """The convolution of stride 1 over the output's gradient that gives the input's, its weights turned round."""
    a, b, c = ((w - 1) * d - p for w, d, p in zip(g.window, g.dilation, g.before, strict=True))
    return changed(g, space=g.out, out=g.space, before=(a, b, c))


_START = 6  # steps of time until a block has its weights and its first rows


def blocks_of_rows(rows: int, tiles: int, slots: int, each: int, late: int) -> tuple[int, int]:
    """How many of the rows of a tile a block walks down, `each` rows a step, the first of them `late` rows after those
    that it brings; before it the steps of time until the last block has ended.

    Fewer blocks start less often, more fill the slots of the device better.
    """
    steps = -(-rows // each)

    def time(parts: int) -> int:
        return -(-tiles * parts // slots) * (-(-steps // parts) + -(-late // each) + _START)

    parts = min(range(1, steps + 1), key=time)
    return time(parts), -(-steps // parts) * each


def axes(g: Geometry, into: tuple[int, ...], space: tuple[int, ...]) -> tuple[int, ...]:
    """The members of ``dnnarray::ConvAxes`` for a launch that writes `into` and reads `space`; an axis of one tap has
    no dilation."""
    dilation = tuple(d if n > 1 else 1 for d, n in zip(g.dilation, g.window, strict=True))
    found = zip(into, space, g.window, g.stride, dilation, g.before, strict=True)
    return tuple(number for axis in found for number in axis)
