"""Convolutions, their gradients, transposed ones, unfold and fold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.fuzz.draw.activation import activation
from tests.fuzz.drawer import Drawer, Drawn

_WORK = 6000  # multiply-adds of most convolutions: the oracle takes a product for each pixel
_PIXELS = 150


@dataclass
class Setting:
    """A convolution that has an output."""

    n: int
    groups: int
    c: int
    k: int
    space: tuple[int, ...]
    window: tuple[int, ...]
    out: tuple[int, ...]
    layout: str
    options: dict[str, Any]

    def image(self, channels: int, space: tuple[int, ...]) -> tuple[int, ...]:
        return (self.n, channels, *space) if self.layout == "channels_first" else (self.n, *space, channels)

    def weight(self, outer: int, inner: int) -> tuple[int, ...]:
        return (outer, inner, *self.window) if self.layout == "channels_first" else (outer, *self.window, inner)


def _padding(d: Drawer, rank: int, most: int) -> Any:
    """Any form of the option."""
    form = d.rng.random()
    if form < 0.15:
        return d.choice(("valid", "same", "same_lower"))
    if form < 0.3:
        return tuple((d.integer(0, most), d.integer(0, most)) for _ in range(rank))
    return d.one_or_each(rank, lambda: d.integer(0, most))


def pairs(padding: Any, space: tuple[int, ...], covered: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """The padding of each axis in sum."""
    if padding == "valid":
        return [0] * len(space)
    if isinstance(padding, str):
        return [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(space, stride, covered, strict=True)]
    each = padding if isinstance(padding, tuple) else (padding,) * len(space)
    return [sum(p) if isinstance(p, tuple) else 2 * p for p in each]


def each(value: Any, rank: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * rank


def sizes(d: Drawer, rank: int, most: int = 24) -> tuple[int, ...]:
    """Spatial extents, fewer where there are more axes."""
    found = [d.integer(1, max(most >> rank, 3)) if d.maybe(0.85) else d.integer(1, most) for _ in range(rank)]
    while math.prod(found) > _PIXELS:
        found[found.index(max(found))] //= 2
    return tuple(found)


def _windows(d: Drawer, rank: int) -> tuple[int, ...]:
    kind = d.rng.random()
    if kind < 0.2:
        return (1,) * rank
    if kind < 0.5:
        return (3,) * rank
    if kind < 0.6 and rank < 3:
        return tuple(d.choice((5, 7, 9)) for _ in range(rank))
    return tuple(d.integer(1, 5 if rank < 3 else 3) for _ in range(rank))


def _channels(d: Drawer) -> tuple[int, int, int]:
    """Groups, and channels of one of them in and out."""
    kind = d.rng.random()
    if kind < 0.2:  # a window for each channel
        return d.choice((1, 2, 3, 5, 8, 16, 17, 24, 32)), 1, d.choice((1, 1, 1, 2, 3))
    if kind < 0.35:  # whole vectors
        return d.choice((1, 1, 1, 2)), d.choice((8, 16, 32)), d.choice((8, 16, 32, 48))
    return d.choice((1, 1, 1, 2, 3, 4)), d.extent(), d.extent()


def setting(d: Drawer) -> Setting:
    """A convolution: any options that leave an output, of little work."""
    rank, layout = d.choice((1, 2, 2, 2, 3)), d.layout()
    window, space = _windows(d, rank), list(sizes(d, rank))
    stride = d.one_or_each(rank, lambda: d.choice((1, 1, 2, 3, 4)))
    dilation = d.one_or_each(rank, lambda: d.choice((1, 1, 1, 2, 3)))
    covered = tuple((w - 1) * e + 1 for w, e in zip(window, each(dilation, rank), strict=True))
    padding = _padding(d, rank, d.choice((0, 1, 1, 2, 4)))
    steps = each(stride, rank)
    for i in range(rank):  # room for the window
        lacking = covered[i] - space[i] - pairs(padding, tuple(space), covered, steps)[i]
        space[i] += max(lacking, 0)
    added = pairs(padding, tuple(space), covered, steps)
    out = tuple((n + p - w) // s + 1 for n, p, w, s in zip(space, added, covered, steps, strict=True))
    n, (groups, c, k) = d.choice((0, 1, 1, 2, 2, 3)) if d.maybe(0.2) else d.choice((1, 2)), _channels(d)
    while n * groups * c * k * math.prod(window) * math.prod(out) > _WORK * (10 if d.maybe(0.1) else 1) and (
        c > 1 or k > 1
    ):
        c, k = (c // 2, k) if c > k else (c, k // 2)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "channels_first"}
    options = {name: value for name, value in options.items() if value != plain[name] or d.maybe()}
    return Setting(n, groups, max(c, 0), max(k, 0), tuple(space), window, out, layout, options)


def _name(d: Drawer, op: str, rank: int) -> str:
    return f"{op}{rank}d" if d.maybe(0.1) else op


def _conv(d: Drawer) -> Drawn:
    s = setting(d)
    channels = s.groups * s.k
    x, weight = d.floats(*s.image(s.groups * s.c, s.space)), d.floats(*s.weight(channels, s.c))
    bias = d.floats(channels) if d.maybe() else None
    residual = d.floats(*s.image(channels, s.out)) if d.maybe(0.25) else None
    options = s.options | d.some(activation=lambda: activation(d), flip=lambda: d.maybe())
    return Drawn(_name(d, "conv", len(s.space)), (x, weight, bias, residual), options, s.c * math.prod(s.window) + 2)


def _conv_backward_input(d: Drawer) -> Drawn:
    s = setting(d)
    grad, weight = d.floats(*s.image(s.groups * s.k, s.out)), d.floats(*s.weight(s.groups * s.k, s.c))
    options = s.options | {"input_shape": s.image(s.groups * s.c, s.space), **d.some(flip=lambda: d.maybe())}
    return Drawn("conv_backward_input", (grad, weight), options, s.k * math.prod(s.window) + 1, gradient=False)


def _conv_backward_weight(d: Drawer) -> Drawn:
    s = setting(d)
    grad, x = d.floats(*s.image(s.groups * s.k, s.out)), d.floats(*s.image(s.groups * s.c, s.space))
    options = s.options | {"weight_shape": s.weight(s.groups * s.k, s.c), **d.some(flip=lambda: d.maybe())}
    return Drawn("conv_backward_weight", (grad, x), options, s.n * math.prod(s.out) + 1, gradient=False)


def _conv_transpose(d: Drawer) -> Drawn:
    s = setting(d)
    rank = len(s.space)
    stride, dilation = (each(s.options.get(name, 1), rank) for name in ("stride", "dilation"))
    padding = s.options.get("padding", 0)
    covered = [(w - 1) * e + 1 for w, e in zip(s.window, dilation, strict=True)]
    if padding not in ("same", "same_lower"):
        cut = pairs(padding, s.space, tuple(covered), stride)
        extents = [(n - 1) * step + w - p for n, step, w, p in zip(s.out, stride, covered, cut, strict=True)]
        if min(extents) < 1:
            s.options["padding"] = 0
        extra = d.one_or_each(rank, lambda: d.integer(0, max(min(*stride, *dilation), 1) - 1))
        s.options |= {"output_padding": extra} if extra != 0 else {}
    x, weight = d.floats(*s.image(s.groups * s.k, s.out)), d.floats(*s.weight(s.groups * s.k, s.c))
    bias = d.floats(s.groups * s.c) if d.maybe() else None
    options = s.options | d.some(activation=lambda: activation(d))
    return Drawn(_name(d, "conv_transpose", rank), (x, weight, bias), options, s.k * math.prod(s.window) + 1)


def _columns(op: str, d: Drawer) -> Drawn:
    s = setting(d)
    rank, channels = len(s.space), d.integer(1, 4)
    options = {n: v for n, v in s.options.items() if n != "groups"} | {"kernel_size": s.window}
    if len(set(s.window)) == 1 and d.maybe() and op == "unfold":
        options["kernel_size"] = s.window[0]
    if op == "unfold":
        return Drawn(op, (d.floats(*s.image(channels, s.space)),), options)
    rows, places = channels * math.prod(s.window), math.prod(s.out)
    shape = (s.n, rows, places) if s.layout == "channels_first" else (s.n, places, rows)
    options["output_size"] = s.space[0] if rank == 2 and len(set(s.space)) == 1 and d.maybe() else s.space
    return Drawn(op, (d.floats(*shape),), options, math.prod(s.window))


DRAWERS = {
    "conv": _conv,
    "conv_backward_input": _conv_backward_input,
    "conv_backward_weight": _conv_backward_weight,
    "conv_transpose": _conv_transpose,
    "unfold": partial(_columns, "unfold"),
    "fold": partial(_columns, "fold"),
}
