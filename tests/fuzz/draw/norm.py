"""Normalizations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tests.fuzz.draw.activation import activation
from tests.fuzz.drawer import Drawer, Drawn, Leaf


def _eps(d: Drawer) -> float:
    return float(d.choice((1e-5, 1e-6, 1e-3, 0.1)))


def _parameter(d: Drawer, *shape: int) -> Leaf | None:
    return d.floats(*shape, role="beside") if d.maybe(0.7) else None


def _channels_and_rest(d: Drawer, layout: str) -> tuple[tuple[int, ...], int]:
    """A shape with zero to three spatial axes and its channels; at times whole vectors of them."""
    shape = list(d.shape(d.integer(2, 5)))
    axis = 1 if layout == "channels_first" else len(shape) - 1
    if d.maybe(0.2):
        shape[axis] = d.choice((8, 16, 24, 32, 64))
    while math.prod(shape) > 4 * d.budget and max(shape) > 1:
        shape[shape.index(max(shape))] //= 2
    return tuple(shape), shape[axis]


def _layout(d: Drawer) -> tuple[str, dict[str, Any]]:
    layout = d.layout()
    return layout, {"layout": layout} if layout != "channels_first" or d.maybe() else {}


def _batch_norm(d: Drawer) -> Drawn:
    layout, options = _layout(d)
    shape, c = _channels_and_rest(d, layout)
    mean, variance = d.floats(c, role="beside"), d.positive(c, role="beside")
    residual = d.floats(*shape) if d.maybe(0.3) else None
    options |= d.some(eps=lambda: _eps(d), activation=lambda: activation(d))
    arrays = (d.floats(*shape), mean, variance, _parameter(d, c), _parameter(d, c), residual)
    return Drawn("batch_norm", arrays, options, reduction=1)


def _batch_norm_train(d: Drawer) -> Drawn:
    layout, options = _layout(d)
    shape, c = _channels_and_rest(d, layout)
    if (
        math.prod(shape[:-1] if layout == "channels_last" else (shape[0], *shape[2:])) == 1
    ):  # a single value has no variance
        shape = (2, *shape[1:])
    residual = d.floats(*shape) if d.maybe(0.3) else None
    running = [d.positive(c, role="beside") if d.maybe(0.6) else None for _ in range(2)]
    options |= d.some(eps=lambda: _eps(d), momentum=lambda: d.choice((0.0, 0.3, 1.0)), activation=lambda: activation(d))
    arrays = (d.floats(*shape), _parameter(d, c), _parameter(d, c), *running, residual)
    return Drawn("batch_norm_train", arrays, options, reduction=max(math.prod(shape) // max(c, 1), 1))


def _axes(d: Drawer, rank: int) -> Any:
    """An axis or several, from either end."""
    axes = [i - rank if d.maybe() else i for i in range(rank) if d.maybe()]
    if not axes or d.maybe(0.5):
        return d.choice((-1, -1, d.integer(-rank, rank - 1)))
    return tuple(axes[:: -1 if d.maybe() else 1])


def _over_axes(op: str, d: Drawer) -> Drawn:
    shape = d.shape(d.integer(1, 4))
    if d.maybe(0.2):
        shape = (*shape[:-1][:1], d.choice((16, 48, 64, 100, 128, 257, 512)))
    options: dict[str, Any] = {"axis": _axes(d, len(shape))} if d.maybe(0.6) else {}
    options |= d.some(eps=lambda: _eps(d))
    axes = options.get("axis", -1)
    over = sorted(a % len(shape) for a in (axes if isinstance(axes, tuple) else (axes,)))
    extents = [shape[a] for a in over]
    given = [d.floats(*shape)] * 1 + ([d.floats(*shape)] if op.startswith("add") else [])
    given += [_parameter(d, *extents)] + ([_parameter(d, *extents)] if "layer" in op else [])
    if not op.startswith("add"):
        options |= d.some(return_stats=lambda: d.maybe())
    return Drawn(op, tuple(given), options, reduction=max(math.prod(extents), 1))


def _group_norm(d: Drawer) -> Drawn:
    layout, options = _layout(d)
    shape, c = _channels_and_rest(d, layout)
    groups = d.choice([g for g in range(1, c + 1) if c % g == 0] or [1])
    options |= {
        "num_groups": groups,
        **d.some(eps=lambda: _eps(d), activation=lambda: activation(d), return_stats=lambda: d.maybe()),
    }
    arrays = (d.floats(*shape), _parameter(d, c), _parameter(d, c))
    return Drawn("group_norm", arrays, options, reduction=max(math.prod(shape) // groups, 1))


def _instance_norm(d: Drawer) -> Drawn:
    layout, options = _layout(d)
    shape, c = _channels_and_rest(d, layout)
    if len(shape) == 2:
        shape = (shape[0], c, 3) if layout == "channels_first" else (shape[0], 3, c)
    inside = shape[2:] if layout == "channels_first" else shape[1:-1]
    if math.prod(inside) == 1:  # a single value has no variance
        axis = 2 if layout == "channels_first" else 1
        shape = (*shape[:axis], 2, *shape[axis + 1 :])
    arrays = (d.floats(*shape), _parameter(d, c), _parameter(d, c))
    options |= d.some(eps=lambda: _eps(d), return_stats=lambda: d.maybe())
    return Drawn("instance_norm", arrays, options, reduction=max(math.prod(shape), 1))


def _local_response_norm(d: Drawer) -> Drawn:
    layout, options = _layout(d)
    shape, _ = _channels_and_rest(d, layout)
    options |= {"size": d.integer(1, 9)}
    options |= d.some(
        alpha=lambda: d.choice((1e-4, 0.5, 2.0)),
        beta=lambda: d.choice((0.75, 0.5, 1.0, 1.3)),
        k=lambda: d.choice((1.0, 2.0, 0.5)),
    )
    return Drawn("local_response_norm", (d.floats(*shape),), options, reduction=options["size"])


_OVER_AXES = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
DRAWERS = {op: partial(_over_axes, op) for op in _OVER_AXES} | {
    "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "local_response_norm": _local_response_norm,
}
