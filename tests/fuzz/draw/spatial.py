"""Sampling, resizing, region pooling, shuffles and look-ups."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tests.fuzz.draw.conv import sizes
from tests.fuzz.drawer import Drawer, Drawn


def _batch(d: Drawer) -> int:
    return int(d.choice((1, 1, 2, 2, 3)) if d.maybe(0.96) else 0)


def _channels(d: Drawer) -> int:
    return int(d.choice((1, 1, 2, 3, 4, 8)) if d.maybe(0.92) else d.choice((0, 16, 17, 33)))


def _image(d: Drawer, n: int, c: int, space: tuple[int, ...], layout: str) -> tuple[int, ...]:
    return (n, c, *space) if layout == "channels_first" else (n, *space, c)


def _grid_sample(d: Drawer) -> Drawn:
    rank, n, c = d.choice((2, 2, 3)), _batch(d), _channels(d)
    space, places = sizes(d, rank, 12), tuple(d.integer(0 if d.maybe(0.03) else 1, 4) for _ in range(rank))
    modes = ("bilinear", "nearest", "bicubic")[: 3 if rank == 2 else 2]
    options = d.some(
        mode=lambda: d.choice(modes),
        padding_mode=lambda: d.choice(("zeros", "border", "reflection")),
        align_corners=lambda: d.maybe(),
    )
    reach = d.choice((0.9, 1.5, 4.0))
    grid = d.rng.uniform(-reach, reach, (n, *places, rank))
    if d.maybe(0.3):  # on edges and centres
        grid = np.round(grid * 4) / 4
    return Drawn("grid_sample", (d.floats(n, c, *space), d.array(grid)), options, reduction=4**rank)


def _affine_grid(d: Drawer) -> Drawn:
    rank, n = d.choice((2, 3)), _batch(d)
    options = {
        "shape": (n, d.integer(0, 5), *(d.integer(1, 6) for _ in range(rank))),
        **d.some(align_corners=lambda: d.maybe()),
    }
    return Drawn("affine_grid", (d.floats(n, rank, rank + 1),), options, reduction=6**rank)


def _interpolate(d: Drawer) -> Drawn:
    rank, layout = d.choice((1, 2, 2, 3)), d.layout()
    space, mode = sizes(d, rank, 12), d.choice(("nearest", "nearest_exact", "linear", "linear", "cubic", "area"))
    options: dict[str, Any] = {"mode": mode} if mode != "nearest" or d.maybe() else {}
    if mode in ("linear", "cubic"):
        options |= d.some(align_corners=lambda: d.maybe(), antialias=lambda: d.maybe())
    options |= {"layout": layout} if layout != "channels_first" or d.maybe() else {}
    if d.maybe(0.6):
        options["size"] = d.one_or_each(rank, lambda: d.integer(1, {1: 30, 2: 12, 3: 6}[rank]))
        if d.maybe(0.15):
            options["size"] = space
    else:
        factors = [f for f in (0.5, 0.6, 1.0, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0) if min(space) * f >= 1]
        options["scale"] = d.one_or_each(rank, lambda: d.choice(factors))
    return Drawn("interpolate", (d.floats(*_image(d, _batch(d), _channels(d), space, layout)),), options, reduction=64)


def _roi_align(d: Drawer) -> Drawn:
    n, c, space, count = _batch(d), _channels(d), sizes(d, 2, 12), d.integer(0 if d.maybe(0.05) else 1, 4)
    n = n if count else max(n, 1)
    count = count if n else 0
    options = {"output_size": d.one_or_each(2, lambda: d.integer(1, 4))}
    options |= d.some(
        spatial_scale=lambda: d.choice((0.25, 0.5, 1.0, 0.3)),
        sampling_ratio=lambda: d.integer(0, 3),
        aligned=lambda: d.maybe(),
        mode=lambda: d.choice(("avg", "max")),
    )
    corners = d.rng.uniform(-4, max(space) + 6, (count, 2, 2))
    if d.maybe(0.8):
        corners = np.sort(corners, axis=1)
    boxes = np.concatenate(
        [d.rng.integers(0, max(n, 1), (count, 1)), np.round(corners.reshape(count, 4) * 8) / 8], axis=1
    )
    if d.maybe():
        boxes[:, 1:] += 1 / 32  # off the edges
    return Drawn("roi_align", (d.floats(n, c, *space), d.array(boxes, repeats=False)), options, reduction=64)


def _moved(op: str, d: Drawer) -> Drawn:
    rank, layout, number = d.choice((1, 2, 2, 3)), d.layout(), d.integer(1, 3)
    n, c, space = _batch(d), d.integer(1, 3), tuple(d.integer(0 if d.maybe(0.03) else 1, 4) for _ in range(rank))
    if op == "pixel_shuffle":
        c *= number**rank
    elif op == "pixel_unshuffle":
        space = tuple(number * s for s in space)
    else:
        c *= number
    shape = _image(d, n, c, space, layout)
    options = {"groups" if op == "channel_shuffle" else "factor": number}
    options |= {"layout": layout} if layout != "channels_first" or d.maybe() else {}
    if d.maybe(0.15):
        kind = d.choice(("int8", "int32", "int64", "uint16", "bool", "complex64"))
        return Drawn(op, (d.array(d.rng.integers(0, 99, shape).astype(kind), "fixed"),), options, gradient=False)
    return Drawn(op, (d.floats(*shape),), options)


def _embedding(d: Drawer) -> Drawn:
    rows, width = d.shape(2)
    shape = d.shape(d.integer(0, 3))
    if not rows and math.prod(shape):
        rows = 1
    options = {"padding_index": d.integer(-rows, rows - 1)} if rows and d.maybe(0.2) else {}
    arrays = (d.indices(0, rows, *shape), d.floats(rows, width))
    return Drawn("embedding", arrays, options, reduction=max(math.prod(shape), 1))


def _one_hot(d: Drawer) -> Drawn:
    classes = d.choice((1, 2, 3, 5, 8, 17, 300)) if d.maybe(0.9) else d.integer(1, 40)
    return Drawn(
        "one_hot", (d.indices(0, classes, *d.shape(d.integer(0, 3))),), {"num_classes": classes}, gradient=False
    )


DRAWERS = {
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
    "interpolate": _interpolate,
    "roi_align": _roi_align,
    **{op: partial(_moved, op) for op in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")},
    "embedding": _embedding,
    "one_hot": _one_hot,
}
