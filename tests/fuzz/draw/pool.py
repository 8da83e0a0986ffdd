"""Pooling and its inverse."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.draw.conv import each, pairs, sizes
from tests.fuzz.drawer import Drawer, Drawn, Leaf

_ELEMENTS = 400  # the oracle looks at the taps of each window one by one


def _image(d: Drawer, space: tuple[int, ...], layout: str, most: int) -> tuple[int, ...]:
    n, c = (
        d.choice((0, 1, 1, 2, 2, 3)) if d.maybe(0.15) else d.choice((1, 2)),
        d.choice((1, 2, 3, 8, 16, 17)) if d.maybe(0.97) else 0,
    )
    while n * c * most > _ELEMENTS and c > 1:
        c //= 2
    return (n, c, *space) if layout == "channels_first" else (n, *space, c)


def _values(d: Drawer, op: str, shape: tuple[int, ...]) -> tuple[Leaf, bool]:
    """The image, and whether it has a gradient: integers where the operation takes them."""
    if op.startswith("max_pool") and d.maybe(0.1):
        dtype = np.iinfo(d.choice(("int8", "uint8", "int16", "int32", "int64", "uint64")))
        values = d.rng.integers(max(dtype.min, -9), 9, shape).astype(dtype.dtype)
        return d.array(values, "fixed"), False
    return d.floats(*shape), True


def _windowed(op: str, d: Drawer) -> Drawn:
    rank, layout = d.choice((1, 2, 2, 2, 3)), d.layout()
    window = d.one_or_each(rank, lambda: d.choice((1, 2, 2, 3, 3, 3, 4, 5)))
    options: dict[str, Any] = {"kernel_size": window}
    options |= d.some(
        stride=lambda: d.one_or_each(rank, lambda: d.integer(1, 4)),
        dilation=lambda: d.one_or_each(rank, lambda: d.choice((1, 2, 3))),
        ceil_mode=lambda: d.maybe(),
    )
    options |= {"layout": layout} if layout != "channels_first" or d.maybe() else {}
    windows, dilation = each(window, rank), each(options.get("dilation", 1), rank)
    steps = windows if options.get("stride") is None else each(options["stride"], rank)
    covered = tuple((w - 1) * e + 1 for w, e in zip(windows, dilation, strict=True))
    if d.maybe():
        options["padding"] = _padding(d, covered)
    space = list(sizes(d, rank))
    added = pairs(options.get("padding", 0), tuple(space), covered, steps)
    for i in range(rank):
        space[i] += max(covered[i] - space[i] - added[i], 0)
    if op == "avg_pool" and d.maybe():
        options["count_include_pad"] = d.maybe()
    if op == "lp_pool" and d.maybe(0.7):
        options["p"] = d.choice((1, 2, 3, 4, 1.5, 0.5, 7.0, math.inf))
    taps = math.prod(windows) * math.prod(-(-n // s) + 1 for n, s in zip(space, steps, strict=True))
    x, gradient = _values(d, op, _image(d, tuple(space), layout, taps))
    name = f"max_pool{rank}d_with_indices" if op.endswith("indices") else f"{op}{rank}d"
    return Drawn(name if d.maybe(0.1) else op, (x,), options, math.prod(windows), gradient)


def _padding(d: Drawer, covered: tuple[int, ...]) -> Any:
    """Less than the window on each side."""
    form = d.rng.random()
    if form < 0.15:
        return d.choice(("valid", "same", "same_lower")) if form > 0.1 or all(c > 1 for c in covered) else 0
    if form < 0.35:
        return tuple((d.integer(0, c - 1), d.integer(0, c - 1)) for c in covered)
    return d.integer(0, min(covered) - 1) if d.maybe(0.6) else tuple(d.integer(0, c - 1) for c in covered)


def _adaptive(op: str, d: Drawer) -> Drawn:
    rank, layout = d.choice((1, 2, 2, 3)), d.layout()
    space = sizes(d, rank)
    extent = {1: 12, 2: 5, 3: 3}[rank]
    size = d.one_or_each(rank, lambda: d.integer(0 if d.maybe(0.05) else 1, extent))
    if isinstance(size, tuple) and d.maybe(0.2):
        size = (None, *size[1:])
    x = d.floats(*_image(d, space, layout, math.prod(space)))
    options = {"output_size": size} | ({"layout": layout} if layout != "channels_first" or d.maybe() else {})
    name = f"adaptive_max_pool{rank}d_with_indices" if op.endswith("indices") else f"{op}{rank}d"
    return Drawn(name if d.maybe(0.1) else op, (x,), options, math.prod(space))


def _max_unpool(d: Drawer) -> Drawn:
    """Each element goes to a place of its own: where two share one, either may stay."""
    rank, layout = d.choice((1, 2, 2, 3)), d.layout()
    out = sizes(d, rank)
    space = tuple(d.integer(0 if d.maybe(0.05) else 1, n) for n in out)
    n, c, count, room = d.choice((0, 1, 2, 3)), d.choice((1, 2, 3, 8)), math.prod(space), math.prod(out)
    places = np.stack([d.rng.permutation(room)[:count] for _ in range(n * c)]) if n else np.zeros((0, count), np.int64)
    indices = places.reshape(n, c, *space)
    indices = indices if layout == "channels_first" else np.moveaxis(indices, 1, -1)
    size = out[0] if len(set(out)) == 1 and d.maybe() else out
    options = {"output_size": size} | ({"layout": layout} if layout != "channels_first" else {})
    return Drawn("max_unpool", (d.floats(*indices.shape), d.whole(indices)), options)


DRAWERS = {op: partial(_windowed, op) for op in ("max_pool", "max_pool_with_indices", "avg_pool", "lp_pool")} | {
    **{
        op: partial(_adaptive, op)
        for op in ("adaptive_avg_pool", "adaptive_max_pool", "adaptive_max_pool_with_indices")
    },
    "max_unpool": _max_unpool,
}
