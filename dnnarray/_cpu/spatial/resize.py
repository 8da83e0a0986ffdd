"""Resizing on NumPy arrays: along each axis a few taps with weights; the gradient has the same form, transposed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.blocks import borrow, give
from dnnarray._cpu.spatial.common import CUBIC, blocks, cubic_far, cubic_near, cubic_weights, lies
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize
from dnnarray._select import Method
from dnnarray._spec import FLOAT32

_CALLS = 12  # of NumPy in one block
_LONG = 4  # times the usual block: long calls for the sake of threads
_SMALL = 2048  # elements of a block; for fewer a gather for each tap is as good
_MANY = 64  # taps of a target, that are not added one after the other
_TILE = 56  # targets in a matrix product: larger ones multiply more zeros, smaller ones are too small for BLAS
_ROWS = 1024  # in one matrix product, so that they are still in the cache for the next tile
_FACTORS = 4  # the largest by which an extent grows in phases: larger ones are rare
_EDGES = 32  # the most targets that are taken one by one

# One entry of the matrix target x source: (target, source, weight), the three as long as there are taps.
_Entries = tuple[np.ndarray, np.ndarray, np.ndarray]


class Tile(NamedTuple):
    """Neighbouring targets, the sources that weigh in any of them, and the matrix source x target between the two."""

    targets: slice
    sources: slice
    matrix: np.ndarray


class Phase(NamedTuple):
    """Every so many targets, and for each tap its sources, neighbours all, with their common weight."""

    targets: slice
    terms: tuple[tuple[slice, Any], ...]

    @property
    def shifts(self) -> tuple[int, ...]:
        """For each tap how far its sources stand from the element that the targets lie in."""
        own = self.targets.start // self.targets.step
        return tuple(source.start - own for source, _ in self.terms)


class Taps(NamedTuple):
    """A matrix in columns: for each the source of every target and its weight (None: all 1). No column: nothing
    changes.

    `unread` are the targets without any tap (in a transposed matrix, source elements that nothing reads). The same
    matrix once more, where each target has several taps: `tiles` are cut along its diagonal; `phases` are what repeats
    from one source element to the next when an extent grows by a whole factor, and `edges` the targets that are not in
    it, each by itself."""

    columns: tuple[tuple[np.ndarray, np.ndarray | None], ...]
    unread: np.ndarray | None
    tiles: tuple[Tile, ...] = ()
    phases: tuple[Phase, ...] = ()
    edges: tuple[Phase, ...] = ()


# --- which source elements weigh how much in a target element
# -----------------------------------------------------------


def _step(resize: Resize) -> float:
    """Source elements per target element."""
    if resize.align_corners:
        return (resize.source - 1) / (resize.target - 1) if resize.target > 1 else 0.0
    return resize.source / resize.target if resize.scale is None else 1 / resize.scale


def _same_count(taps: list[np.ndarray], weights: list[np.ndarray]) -> _Entries:
    """Entries where every target has as many taps."""
    targets = np.tile(np.arange(len(taps[0])), len(taps))
    return targets, np.concatenate(taps), np.concatenate(weights)


def _ranges(first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(target, source) of taps ``first[i] ... first[i] + count[i] - 1``."""
    targets = np.repeat(np.arange(len(first)), count)
    past = np.cumsum(count) - count
    return targets, np.arange(len(targets)) - np.repeat(past - first, count)


def _nearest(resize: Resize) -> _Entries:
    """floor(i * step), or with the centres of the pixels floor((i + 1/2) * step); in whole numbers where they allow
    it."""
    i = np.arange(resize.target)
    half = resize.mode == "nearest_exact"
    if resize.scale is None:
        index = (2 * i + half) * resize.source // (2 * resize.target)
    else:
        index = np.floor((i + half / 2) * _step(resize)).astype(np.intp)
    return _same_count([np.minimum(index, resize.source - 1)], [np.ones(resize.target)])


def _places(resize: Resize) -> np.ndarray:
    i = np.arange(resize.target)
    return i * _step(resize) if resize.align_corners else (i + 0.5) * _step(resize) - 0.5


def _linear(resize: Resize) -> _Entries:
    last = resize.source - 1
    place = np.maximum(_places(resize), 0)
    low = np.minimum(place.astype(np.intp), last)
    part = np.minimum(place - low, 1)
    return _same_count([low, np.minimum(low + 1, last)], [1 - part, part])


def _cubic(resize: Resize) -> _Entries:
    last = resize.source - 1
    place = _places(resize)
    low = np.minimum(np.floor(place).astype(np.intp), last)
    part = np.clip(place - low, 0, 1)
    return _same_count([np.clip(low + k, 0, last) for k in (-1, 0, 1, 2)], list(cubic_weights(part, CUBIC)))


def _area(resize: Resize) -> _Entries:
    i = np.arange(resize.target)
    first = i * resize.source // resize.target
    count = -(-(i + 1) * resize.source // resize.target) - first
    return *_ranges(first, count), np.repeat(1 / count, count)


def _triangle(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _keys(distance: np.ndarray) -> np.ndarray:
    far = np.where(distance < 2, cubic_far(distance, -0.5), 0)
    return np.where(distance < 1, cubic_near(distance, -0.5), far)


def _antialiased(resize: Resize) -> _Entries:
    """The filter stretched over all source elements that a target element covers, its weights made to sum to 1."""
    kernel, reach = (_triangle, 1) if resize.mode == "linear" else (_keys, 2)
    step = _step(resize)
    stretch = max(step, 1.0)
    centre = step * (np.arange(resize.target) + 0.5)
    first = np.maximum((centre - reach * stretch + 0.5).astype(np.intp), 0)
    count = np.minimum((centre + reach * stretch + 0.5).astype(np.intp), resize.source) - first
    targets, sources = _ranges(first, count)
    weights = kernel(np.abs((sources - centre[targets] + 0.5) / stretch))
    return targets, sources, weights / np.bincount(targets, weights, resize.target)[targets]


_ENTRIES = {"nearest": _nearest, "nearest_exact": _nearest, "linear": _linear, "cubic": _cubic, "area": _area}


def _entries(resize: Resize) -> _Entries:
    """The matrix of one axis. Where PyTorch copies an axis that keeps its extent, whatever its scale, so does this."""
    if resize.source == resize.target and (resize.mode == "linear" or resize.antialias):
        return _same_count([np.arange(resize.target)], [np.ones(resize.target)])
    return _antialiased(resize) if resize.antialias else _ENTRIES[resize.mode](resize)


# --- the matrix as columns of taps
# --------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def taps_of(resize: Resize, transposed: bool, dtype: np.dtype) -> Taps:
    targets, sources, weights = _entries(resize)
    if transposed:
        return _in_columns(sources, targets, weights, resize.source, resize.target, dtype)
    return _in_columns(targets, sources, weights, resize.target, resize.source, dtype)


def _in_columns(
    rows: np.ndarray, taps: np.ndarray, weights: np.ndarray, n_rows: int, n_taps: int, dtype: np.dtype
) -> Taps:
    """Equal entries summed, and each row made as long as the longest by repeating its last tap with a share of its
    weight.

    Shares, not zeros: an infinite tap would turn into NaN beside a zero.
    """
    keys, place = np.unique(rows * n_taps + taps, return_inverse=True)
    weights = np.bincount(place, weights, len(keys))
    rows, taps = keys // n_taps, keys % n_taps
    count = np.bincount(rows, minlength=n_rows)
    first = np.cumsum(count) - count
    longest = int(count.max())
    columns = []
    for k in range(longest):
        # A row without taps takes any, with weight 0.
        entry = np.minimum(first + np.minimum(k, np.maximum(count - 1, 0)), len(keys) - 1)
        share = np.where(k < count - 1, 1, longest - count + 1)
        weight = np.where(count > 0, weights[entry] / share, 0).astype(dtype)
        columns.append((np.ascontiguousarray(taps[entry]), None if longest == 1 and (weight == 1).all() else weight))
    if n_rows == n_taps and longest == 1 and columns[0][1] is None and (columns[0][0] == np.arange(n_rows)).all():
        return Taps((), None)
    found = Taps(tuple(columns), None if count.all() else np.flatnonzero(count == 0))
    if longest == 1:
        return found
    found = found._replace(tiles=tuple(_tiles(rows, taps, weights, n_rows, dtype)))
    phases = tuple(_phases(columns, n_rows, n_taps)) if found.unread is None else ()
    inside = np.zeros(n_rows, bool)
    for phase in phases:
        inside[phase.targets] = True
    outside = np.flatnonzero(~inside)
    if not phases or len(outside) > _EDGES:
        return found
    return found._replace(phases=phases, edges=tuple(_edge(columns, int(target)) for target in outside))


def _edge(columns: list[Any], target: int) -> Phase:
    """One target by itself, equal sources taken once."""
    sums: dict[int, Any] = {}
    for index, weight in columns:
        source = int(index[target])
        sums[source] = sums.get(source, 0) + weight[target]
    return Phase(
        slice(target, target + 1), tuple((slice(source, source + 1), weight) for source, weight in sums.items())
    )


def _phases(columns: list[Any], n_rows: int, n_taps: int) -> Iterator[Phase]:
    """The targets whose taps follow a pattern, but for those near the ends; none where there is no pattern."""
    factor, rest = divmod(n_rows, n_taps)
    if rest or not 2 <= factor <= _FACTORS or n_taps <= 2 * len(columns):
        return
    for offset in range(factor):
        inside = _even_run([(index[offset::factor], weight[offset::factor]) for index, weight in columns])
        if inside.stop - inside.start < n_taps - 2 * len(columns):
            continue  # these stay at the edge
        targets = slice(offset + inside.start * factor, offset + (inside.stop - 1) * factor + 1, factor)
        terms = [(index[targets], weight[targets][0]) for index, weight in columns]
        yield Phase(targets, tuple((slice(int(s[0]), int(s[-1]) + 1), w) for s, w in terms))


def _even_run(columns: list[Any]) -> slice:
    """The targets around the middle whose taps have the same weights as there, and the same places but for the target's
    own."""
    middle = len(columns[0][0]) // 2
    alike = np.ones(len(columns[0][0]), bool)
    for index, weight in columns:
        alike &= (index - index[middle] == np.arange(-middle, len(index) - middle)) & (weight == weight[middle])
    other = np.flatnonzero(~alike)
    place = int(np.searchsorted(other, middle))
    return slice(int(other[place - 1]) + 1 if place else 0, int(other[place]) if place < len(other) else len(alike))


def _tiles(rows: np.ndarray, taps: np.ndarray, weights: np.ndarray, n_rows: int, dtype: np.dtype) -> Iterator[Tile]:
    """The entries, sorted by rows, as small dense matrices."""
    for start in range(0, n_rows, _TILE):
        stop = min(start + _TILE, n_rows)
        inside = slice(*np.searchsorted(rows, (start, stop)))
        low, high = int(taps[inside].min(initial=n_rows)), int(taps[inside].max(initial=-1)) + 1
        matrix = np.zeros((max(high - low, 0), stop - start), dtype)
        matrix[taps[inside] - low, rows[inside] - start] = weights[inside]
        yield Tile(slice(start, stop), slice(min(low, high), high), matrix)


def _resampled(x: np.ndarray, axis: int, taps: Taps, out: np.ndarray | None) -> np.ndarray:
    """One axis resampled: in `out` where there is one and it will do, else in memory of its own."""
    if not taps.columns:
        return x
    x = np.ascontiguousarray(x)
    if x.size < _SMALL:
        return _by_gathers(x, axis, taps)
    if taps.phases:
        return _repeated(x, axis, taps, out)
    if taps.tiles and axis == x.ndim - 1 and len(taps.columns) <= _MANY and _all_finite(x):
        return _multiplied(x, taps.tiles)
    return _by_gathers(x, axis, taps)


def _all_finite(x: np.ndarray) -> bool:
    """Whether there is neither infinity nor NaN, which beside a zero of a matrix would reach elements that do not read
    it."""
    rows = x.reshape(-1, x.shape[-1])
    return bool(np.isfinite(np.matmul(rows, np.zeros(x.shape[-1], x.dtype))).all())


def _multiplied(x: np.ndarray, tiles: tuple[Tile, ...]) -> np.ndarray:
    """Matrix products along the last axis."""
    target = tiles[-1].targets.stop
    out = np.empty((*x.shape[:-1], target), x.dtype)
    rows, sums = x.reshape(-1, x.shape[-1]), out.reshape(-1, target)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        for tile in tiles:
            np.matmul(rows[part, tile.sources], tile.matrix, out=sums[part, tile.targets])
    return out


def _repeated(x: np.ndarray, axis: int, taps: Taps, out: np.ndarray | None) -> np.ndarray:
    """Sums of shifted products, each product made once for all targets that take it; in borrowed memory where `out`
    will not do."""
    before = (slice(None),) * axis
    flat = axis == x.ndim - 1
    if out is None or (flat and not out.flags.c_contiguous):
        out = borrow(x, (*x.shape[:axis], len(taps.columns[0][0]), *x.shape[axis + 1 :]))
    weights = {weight for phase in taps.phases for _, weight in phase.terms}
    products = {weight: np.multiply(x, weight, out=borrow(x)) for weight in weights}
    for phase in taps.phases:
        if flat:
            _add_shifted(products, phase, out)
        else:
            _add_up(
                [products[weight][(*before, source)] for source, weight in phase.terms], out[(*before, phase.targets)]
            )
    give(*products.values())
    for edge in taps.edges:
        _add_up(
            [x[(*before, source)] if weight == 1 else x[(*before, source)] * weight for source, weight in edge.terms],
            out[(*before, edge.targets)],
        )
    return out


def _add_up(terms: list[np.ndarray], out: np.ndarray) -> None:
    if len(terms) == 1:
        out[...] = terms[0]
        return
    first, second, *others = terms
    np.add(first, second, out=out)
    for term in others:
        np.add(out, term, out=out)


def _add_shifted(products: dict[Any, np.ndarray], phase: Phase, out: np.ndarray) -> None:
    """Along the last axis a shift is one of all rows at once: NumPy adds and copies one long run. What comes round the
    ends of a row is an edge, written later."""
    product, shifts = products[phase.terms[0][1]], phase.shifts
    low, high = max(0, -min(shifts)), product.size - max(0, *shifts)
    sums = borrow(product)
    run = sums.reshape(-1)[low:high]
    _add_up(
        [products[weight].reshape(-1)[low + d : high + d] for d, (_, weight) in zip(shifts, phase.terms, strict=True)],
        run,
    )
    step = phase.targets.step
    out.reshape(-1)[phase.targets.start % step :: step][low:high] = run
    give(sums)


def _by_gathers(x: np.ndarray, axis: int, taps: Taps) -> np.ndarray:
    total = _gathered(x, axis, taps.columns)
    if taps.unread is not None:
        total[(slice(None),) * axis + (taps.unread,)] = 0  # infinity times 0 would be NaN
    return total


def _gathered(x: np.ndarray, axis: int, columns: tuple[tuple[np.ndarray, Any], ...]) -> np.ndarray:
    """A gather for each tap; the sums of many of them are sums of sums."""
    if len(columns) > _MANY:
        middle = len(columns) // 2
        first, second = (_gathered(x, axis, half) for half in (columns[:middle], columns[middle:]))
        return np.add(first, second, out=first)
    along = tuple(-1 if a == axis else 1 for a in range(x.ndim))
    total: Any = None
    for index, weight in columns:
        term = x.take(index, axis=axis)
        if weight is not None:
            term *= weight.reshape(along)
        total = term if total is None else np.add(total, term, out=total)
    return total


def _interpolate(
    problem: InterpolateProblem, outputs: tuple[np.ndarray, ...], scratch: Any, *arrays: np.ndarray
) -> None:
    """Blocks of images and channels, one axis after the other; those that shrink most come first, of equal ones the
    last."""
    source, out = arrays[0], outputs[0]

    def growth(item: tuple[Resize, int]) -> tuple[float, int]:
        resize, axis = item
        ratio = resize.source / resize.target if problem.transposed else resize.target / resize.source
        return ratio, -axis

    by_growth = sorted(zip(problem.resizes, problem.axes, strict=True), key=growth)
    steps = [(axis, taps_of(resize, problem.transposed, source.dtype)) for resize, axis in by_growth]
    per_item = math.prod(max(r.source, r.target) for r in problem.resizes)

    def block(images: slice, channels: slice) -> None:
        where = tuple(
            images if a == 0 else channels if a == problem.channels else slice(None) for a in range(source.ndim)
        )
        part, target = source[where], out[where]
        y = part
        for axis, taps in steps:
            before, y = y, _resampled(y, axis, taps, target if axis == steps[-1][0] else None)
            if before is not part and before is not y:
                give(before)
        if y is not target:
            target[...] = y
            if y is not part:
                give(y)

    whole = blocks(source.shape[0], source.shape[problem.channels], per_item, _LONG)
    threads.each(block, whole, work=_CALLS * max(source.size, out.size))


def memory_order(problem: InterpolateProblem) -> str | None:
    """Whether the channels are planes or, the innermost in memory, lanes; None where they are neither."""
    images = (problem.inputs[0], problem.result)
    planes, lanes = (0, problem.channels, *problem.axes), (0, *problem.axes, problem.channels)
    if len(problem.axes) < 3 and all(lies(image, planes) for image in images):
        return "planes"
    return "lanes" if all(lies(image, lanes) for image in images) else None


def _no_order(problem: InterpolateProblem, device: Any) -> str | None:
    """Why the compiled kernel cannot do it, or None."""
    if memory_order(problem) is None:
        return (
            "it takes dense arrays whose channels are planes, with one or two spatial axes, or the innermost "
            "axis in memory"
        )
    if any(len(taps_of(resize, problem.transposed, FLOAT32).columns) > _MANY for resize in problem.resizes):
        return f"it adds the taps of a target one after the other, {_MANY} at the most"
    return None if problem.inputs[0].size and problem.result.size else "there is nothing to do"


_PLANES = (
    "compiled: rows, then columns, by planes or with the channels that lie side by side in vectors, over all threads"
)


def _with_compiled(summary: str) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    numpy_entry = Method("separable", _interpolate, summary, cost=compiled.numpy_cost(_CALLS))
    return numpy_entry, compiled.method("planes", "spatial.planes", "interpolate", _PLANES, accepts=_no_order)


ALGORITHMS = {
    "interpolate": _with_compiled("small matrix products or sums of shifted products, one axis after the other"),
    "interpolate_backward": _with_compiled("the transposed taps, one axis after the other"),
}
