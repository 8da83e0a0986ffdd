"""A map of a convolution as several smaller ones, each for a thread of its own: of some groups, images or channels.

Matrix products are spread here and not by the BLAS, whose threads spin on after a product and keep the cores from
everything that comes next; what is copied beside the products is spread with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.conv.blocks import Shape, Way, carve, scratch_bytes
from dnnarray._options import current
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed

Shapes = Callable[[Geometry], Sequence[Shape]]
Index = tuple[slice, ...]
_ALL = slice(None)
# multiply-adds that take as long as an element of a light operation, waking a thread included; of matrix products
_MACS = 16
_PRODUCT_MACS = 64
_FEW = 16  # channels, fewer of which make a slow product
_LONG_IMAGES, _LONG_PIXELS = 512, 1 << 18  # of a part of the gradient of a weight
_MOST_SCRATCH = 1 << 27  # bytes of all shares, unless one has more


class Share(NamedTuple):
    """A problem of its own: what it takes of both images and of the weight, and where its scratch starts."""

    geometry: Geometry
    x: Index
    y: Index
    w: Index
    start: int


class Shares(NamedTuple):
    """A map in parts; none where it is done as one. `sums` is where the weight's gradients of the parts start, if they
    are to be added up."""

    parts: tuple[Share, ...]
    sums: int | None
    memory: int  # bytes of scratch


class _Cut(NamedTuple):
    """Parts along images, groups, input and output channels."""

    images: int = 1
    groups: int = 1
    inputs: int = 1
    outputs: int = 1

    @property
    def parts(self) -> int:
        return self.images * self.groups * self.inputs * self.outputs

    def largest(self, g: Geometry) -> int:
        """The work of the largest part, in channels and images."""
        return -(-g.n // self.images) * -(-g.groups // self.groups) * -(-g.c // self.inputs) * -(-g.k // self.outputs)


def _even(g: Geometry, cuts: list[_Cut]) -> _Cut:
    """The cut with the smallest largest part; of equal ones the one with the most parts along images, for which nothing
    is laid out twice."""
    return min(cuts, key=lambda cut: (cut.largest(g), -cut.images, cut.parts))


def _cut(way: Way, g: Geometry, parts: int, wgrad: bool) -> _Cut:
    if g.groups >= parts or not way.parallel_channels:
        return _Cut(groups=min(parts, g.groups))
    outputs = range(1, min(max(g.k // _FEW, 1), parts) + 1)
    if wgrad and g.c >= parts * _FEW and (g.n < parts or parts * g.sizes[1] > g.sizes[0] + g.sizes[2]):
        return _Cut(inputs=parts)  # gradients of the images would be longer to add up than the images are
    return _even(
        g, [_Cut(images=i, outputs=o) for i, o in product(range(1, min(g.n, parts) + 1), outputs) if i * o <= parts]
    )


def shares(way: Way, g: Geometry, shapes: Shapes, itemsize: int, wgrad: bool = False) -> Shares:
    """The work spread over the threads of now, where there is enough to do. `wgrad`: it is the gradient of the
    weight."""
    wanted = threads.worth(g.macs // (_PRODUCT_MACS if way.parallel_channels else _MACS)) if way.parallel else 1
    if wanted > 1 and way.parallel_channels:
        limit = current().workspace_limit
        most = _MOST_SCRATCH if limit is None else min(limit, _MOST_SCRATCH)
        wanted = max(min(wanted, most // max(scratch_bytes(shapes(g), itemsize), 1)), 1)
    cut = _cut(way, g, wanted, wgrad) if wanted > 1 else _Cut()
    if cut.parts == 1:
        return Shares((), None, 0)
    found: list[Share] = []
    start = 0
    spans = (threads.split(size, count) for size, count in zip((g.n, g.groups, g.c, g.k), cut, strict=True))
    for n, group, c, k in product(*([slice(*span) for span in along] for along in spans)):
        part = changed(g, n=_extent(n), groups=_extent(group), c=_extent(c), k=_extent(k))
        found.append(Share(part, (n, group, c), (n, group, k), (group, k, c), start))
        start += scratch_bytes(shapes(part), itemsize)
    adds = wgrad and cut.images > 1
    more = scratch_bytes([(cut.images, g.sizes[1])], itemsize) if adds else 0
    return Shares(tuple(found), start if adds else None, start + more)


def _extent(span: slice) -> int:
    return int(span.stop - span.start)


class WeightPart(NamedTuple):
    """Some images and outputs of a problem, and the problem that they are by themselves."""

    geometry: Geometry
    images: slice
    outputs: Index


@lru_cache(maxsize=1024)
def weight_parts(g: Geometry) -> tuple[WeightPart, ...]:
    """The outputs by few enough images and pixels for one sum over blocks of them, in the dtype of the arithmetic."""
    if not g.pixels or (g.n <= _LONG_IMAGES and g.n * g.pixels <= _LONG_PIXELS):
        return (WeightPart(g, _ALL, (_ALL, _ALL, _ALL)),)
    images = max(min(_LONG_IMAGES, _LONG_PIXELS // g.pixels), 1)
    axis = next((i for i in range(3) if g.out[i] > 1), 2)
    step = max(_LONG_PIXELS * g.out[axis] // g.pixels, 1) if images == 1 else g.out[axis]
    spans = product(*(_even_spans(*along) for along in ((g.n, images), (g.out[axis], step))))
    return tuple(_weight_part(g, n, axis, rows) for n, rows in spans)


def _even_spans(extent: int, most: int) -> list[slice]:
    return [slice(*span) for span in threads.split(extent, -(-extent // most))]


def _weight_part(g: Geometry, images: slice, axis: int, rows: slice) -> WeightPart:
    out, before, outputs = list(g.out), list(g.before), [_ALL] * 3
    out[axis], outputs[axis] = _extent(rows), rows
    before[axis] -= rows.start * g.stride[axis]
    return WeightPart(changed(g, n=_extent(images), out=tuple(out), before=tuple(before)), images, tuple(outputs))


def scratch_of(way: Way, g: Geometry, shapes: Shapes, itemsize: int, wgrad: bool = False) -> int:
    """Bytes for the work spread over the threads of now, or all of it as one."""
    return max(scratch_bytes(shapes(g), itemsize), shares(way, g, shapes, itemsize, wgrad).memory)


def spread(
    way: Way,
    run: Callable[..., None],
    g: Geometry,
    shapes: Shapes,
    scratch: np.ndarray | None,
    x: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    wgrad: bool = False,
) -> None:
    """``run(geometry, buffers, x, y, w)`` of each share; as one where the scratch is that of another number of
    threads."""
    found = shares(way, g, shapes, w.itemsize, wgrad)
    if not found.parts or scratch is None or found.memory > scratch.size:
        run(g, carve(scratch, shapes(g), w.dtype), x, y, w)
        return
    sums = None if found.sums is None else _sums(found, g, scratch[found.sums :], w)

    def share(part: Share) -> None:
        buffers = carve(scratch[part.start :], shapes(part.geometry), w.dtype)
        target = w if sums is None else sums[part.x[0].start]
        run(part.geometry, buffers, x[part.x], y[part.y], target[part.w])

    threads.each(share, ((part,) for part in found.parts), work=g.macs)
    if sums is not None:
        _add_up(list(sums.values()), w)


def _sums(found: Shares, g: Geometry, memory: np.ndarray, w: np.ndarray) -> dict[int, np.ndarray]:
    """A weight of its own for each part along the images, by its first image."""
    firsts = sorted({part.x[0].start for part in found.parts})
    (flat,) = carve(memory, [(len(firsts), w.size)], w.dtype)
    return dict(zip(firsts, flat.reshape(len(firsts), *w.shape), strict=True))


def _add_up(sums: list[np.ndarray], w: np.ndarray) -> None:
    np.add(sums[0], sums[1], out=w)
    for more in sums[2:]:
        w += more
