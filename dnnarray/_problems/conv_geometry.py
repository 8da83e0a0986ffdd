"""`Geometry`: the extents of a correlation in canonical axes, and what its gradients make of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

from dnnarray._records import frozen

Triple = tuple[int, int, int]


@frozen
class Geometry:
    """A cross-correlation over three spatial axes; absent ones have extent 1 and stand first.

    y[n, g, k, p] = sum over c and r of x[n, g, c, p * stride + r * dilation - before] * w[g, k, c, r], x being 0
    outside of its `space`. `c` and `k` count the channels of one group. `out` stands by itself: whatever is read behind
    the end is 0, too, and `before` may be negative, which crops. `pixel_major` says that the channels are innermost in
    memory."""

    n: int
    groups: int
    c: int
    k: int
    space: Triple
    window: Triple
    out: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    pixel_major: bool = False

    @cached_property
    def taps(self) -> int:
        return math.prod(self.window)

    @cached_property
    def pixels(self) -> int:
        return math.prod(self.out)

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of the definition."""
        return self.n * self.groups * self.k * self.c * self.taps * self.pixels

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of x, w and y."""
        n, channels = self.n * self.groups, self.groups * self.c * self.k
        return n * self.c * math.prod(self.space), channels * self.taps, n * self.k * self.pixels

    def reach(self, count: Sequence[int]) -> Triple:
        """The input extents that `count` neighbouring outputs read."""
        a, b, c = (
            (m - 1) * s + (w - 1) * d + 1
            for m, s, w, d in zip(count, self.stride, self.window, self.dilation, strict=True)
        )
        return a, b, c

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The gradient of the input as stride-1 correlations of the output's gradient, one per residue of the stride
        that a tap meets."""
        axes = [_axis_phases(self, i) for i in range(3)]
        return tuple(_phase(self, a, b, c) for a in axes[0] for b in axes[1] for c in axes[2])

    @cached_property
    def phases_cover(self) -> bool:
        """Whether each element of the input is in one of `phases`; the gradient of the others is 0."""
        return sum(p.geometry.pixels for p in self.phases) == math.prod(self.space)


class _AxisPhase(NamedTuple):
    taps: slice
    window: int
    target: slice
    out: int
    dilation: int
    before: int


class Phase(NamedTuple):
    """One residue class: `taps` selects (and reverses) its part of the window, `target` its pixels of the input.

    `geometry` is the correlation that computes it.
    """

    geometry: Geometry
    taps: tuple[slice, slice, slice]
    target: tuple[slice, slice, slice]


def _axis_phases(g: Geometry, i: int) -> list[_AxisPhase]:
    """Padded position u = stride * j + residue meets output p = j + (residue - dilation * r) / stride through tap r."""
    stride, dilation, window, before, space = g.stride[i], g.dilation[i], g.window[i], g.before[i], g.space[i]
    common = math.gcd(stride, dilation)
    step = stride // common
    phases = []
    for tap in range(min(window, step)):
        residue = dilation * tap % stride
        first = -((residue - before) // stride)
        out = (space - 1 + before - residue) // stride - first + 1
        if out <= 0:
            continue
        start = stride * first + residue - before
        target = slice(start, None, stride)
        count = -(-(window - tap) // step)
        last = tap + (count - 1) * step
        backwards = slice(last, tap - 1 if tap else None, -step)
        shift = first + (residue - dilation * last) // stride
        phases.append(_AxisPhase(backwards, count, target, out, dilation // common, -shift))
    return phases


def _phase(g: Geometry, *axes: _AxisPhase) -> Phase:
    a, b, c = axes
    taps, target = (a.taps, b.taps, c.taps), (a.target, b.target, c.target)
    window, out, dilation = (a.window, b.window, c.window), (a.out, b.out, c.out), (a.dilation, b.dilation, c.dilation)
    before = a.before, b.before, c.before
    geometry = Geometry(g.n, g.groups, g.k, g.c, g.out, window, out, (1, 1, 1), dilation, before, g.pixel_major)
    return Phase(geometry, taps, target)


_RADICES = (2, 3, 5, 7)


@lru_cache(maxsize=4096)
def smooth(length: int) -> int:
    """The smallest length from this one on that Fourier transforms are fast for: a product of small primes; even, where
    it is longer than 1."""
    if length == 1:
        return 1
    while True:
        rest = length
        for prime in _RADICES:
            while rest % prime == 0:
                rest //= prime
        if rest == 1 and length % 2 == 0:
            return length
        length += 1


def geometry(
    n: int,
    groups: int,
    c: int,
    k: int,
    space: Sequence[int],
    window: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[tuple[int, int]],
    pixel_major: bool,
) -> Geometry:
    """The `Geometry` from one to three entries for each spatial term."""
    return Geometry(
        n=n,
        groups=groups,
        c=c,
        k=k,
        space=_lift(space, 1),
        window=_lift(window, 1),
        out=_lift(out, 1),
        stride=_lift(stride, 1),
        dilation=_lift(dilation, 1),
        before=_lift([before for before, _ in pads], 0),
        pixel_major=pixel_major,
    )


def _lift(values: Sequence[int], fill: int) -> Triple:
    """One entry for each of three axes, `fill` for the absent first ones."""
    a, b, c = (fill,) * (3 - len(values)) + tuple(values)
    return a, b, c
