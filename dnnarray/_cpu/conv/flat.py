"""An image laid out for shifted views: once for each tap of the innermost window axis, so that its rows hold exactly
the outputs' columns.

The taps of the other axes are then offsets of whole rows. A stride along those axes splits the rows into phases that
lie one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.conv.blocks import Shape, first_input, packed
from dnnarray._problems.conv_geometry import Geometry, Triple

PLANES = tuple(range(9))
PIXELS = (0, 1, 4, 5, 6, 7, 8, 2, 3)  # the channels of a group innermost
GROUPS_LAST = (0, 2, 3, 4, 5, 6, 7, 8, 1)
_ALL = slice(None)


def shape(g: Geometry, n: int, extent: Sequence[int]) -> Shape:
    """(N, G, S, C, stride, D, stride, H, Q) of the image that `extent` outputs read: input row ``stride * i + phase``
    stands at [phase, i]."""
    d, h, _ = g.reach(extent)
    a, b, _ = g.stride
    return n, g.groups, g.window[2], g.c, a, -(-d // a), b, -(-h // b), extent[2]


class _Run(NamedTuple):
    """Places of an axis of the image whose inputs exist, and those inputs."""

    places: slice
    inputs: slice
    total: int  # places

    def margins(self) -> list[slice]:
        """The places that stay 0."""
        return [s for s in (slice(self.places.start), slice(self.places.stop, self.total)) if s.stop > (s.start or 0)]


def _run(first: int, step: int, count: int, extent: int) -> _Run:
    """Place i reads input first + step * i, 0 where there is none."""
    low = min(max(-(first // step), 0), count)
    high = max(min((extent - first + step - 1) // step, count), low)
    start = max(first + step * low, 0)
    return _Run(slice(low, high), slice(start, start + step * (high - low), step), count)


class _Fill(NamedTuple):
    """A copy: where to in the image and where from in x, without their rows and columns, and these."""

    target: tuple[Any, ...]
    source: tuple[Any, ...]
    rows: _Run
    columns: _Run


class _Recipe(NamedTuple):
    fills: tuple[_Fill, ...]
    zeros: tuple[tuple[Any, ...], ...]  # parts of the image that read beyond x


@lru_cache(maxsize=1024)
def _recipe(g: Geometry, start: Triple, extent: Triple) -> _Recipe:
    low, size = first_input(g, start), shape(g, 1, extent)
    columns = [_run(low[2] + t * g.dilation[2], g.stride[2], extent[2], g.space[2]) for t in range(g.window[2])]
    fills: list[_Fill] = []
    zeros: list[tuple[Any, ...]] = [(_ALL, _ALL, t, *[_ALL] * 5, m) for t, c in enumerate(columns) for m in c.margins()]
    for i, j in product(range(g.stride[0]), range(g.stride[1])):
        planes = _run(low[0] + i, g.stride[0], size[5], g.space[0])
        rows = _run(low[1] + j, g.stride[1], size[7], g.space[1])
        for tap, column in enumerate(columns):
            fills.append(
                _Fill((_ALL, _ALL, tap, _ALL, i, planes.places, j), (_ALL, _ALL, _ALL, planes.inputs), rows, column)
            )
        zeros += [(_ALL, _ALL, _ALL, _ALL, i, m) for m in planes.margins()]
        zeros += [(_ALL, _ALL, _ALL, _ALL, i, planes.places, j, m) for m in rows.margins()]
    return _Recipe(tuple(fills), tuple(zeros))


def lay_out(g: Geometry, x: np.ndarray, start: Triple, extent: Triple, memory: np.ndarray, order: Shape) -> np.ndarray:
    """The image of x (N, G, C, D, H, W) for the outputs from `start` on, in `memory`; x may be some of the images and
    groups of the geometry."""
    n, groups = x.shape[:2]
    image = packed(memory, (n, groups, *shape(g, n, extent)[2:]), order)
    recipe = _recipe(g, start, extent)
    flat, source = _flat(image), _flat(x)
    for fill in recipe.fills:
        if (
            flat is None
            or source is None
            or not _fill_shifted(fill, flat, source, x.shape[5] == image.shape[8], x.shape[5])
        ):
            image[(*fill.target, fill.rows.places, fill.columns.places)] = x[
                (*fill.source, fill.rows.inputs, fill.columns.inputs)
            ]
    for part in recipe.zeros:
        image[part] = 0
    return image


def _fill_shifted(fill: _Fill, flat: np.ndarray, source: np.ndarray, as_long: bool, width: int) -> bool:
    """Where rows are as long in both, a shift along them is one of the whole plane: long copies. What comes round the
    ends is set to 0 later."""
    _, _, rows, columns = fill
    shift, length = columns.inputs.start - columns.places.start, (rows.places.stop - rows.places.start) * width
    if not as_long or columns.inputs.step != 1 or rows.inputs.step != 1 or length <= abs(shift) or abs(shift) >= width:
        return False
    a, b = rows.places.start * width, rows.inputs.start * width
    target = flat[(*fill.target, slice(a + max(-shift, 0), a + length - max(shift, 0)))]
    target[...] = source[(*fill.source, slice(b + max(shift, 0), b + length + min(shift, 0)))]
    return True


def _flat(a: np.ndarray) -> np.ndarray | None:
    """A view with the last two axes as one, or None."""
    if a.strides[-1] != a.itemsize or a.strides[-2] != a.itemsize * a.shape[-1]:
        return None
    return a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1], copy=False)
