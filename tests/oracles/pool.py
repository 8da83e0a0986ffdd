"""Pooling, its gradients and its inverse, by definition, in float64."""

import itertools
import math
from collections.abc import Callable

import numpy as np


def _tuple(value, rank):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


def _padding(value, space, window, stride, dilation):
    """(before, after) per axis. "same": as little as gives ceil(n / s) windows."""
    if value == "valid":
        return [(0, 0)] * len(space)
    if isinstance(value, str):
        pairs = []
        for n, w, s, d in zip(space, window, stride, dilation, strict=True):
            total = 0
            while (n + total - (w - 1) * d - 1) // s + 1 < math.ceil(n / s):
                total += 1
            pairs.append((total // 2, total - total // 2)[:: 1 if value == "same" else -1])
        return pairs
    return [p if isinstance(p, (tuple, list)) else (p, p) for p in _tuple(value, len(space))]


def _places(n, window, stride, pair, dilation, ceil_mode):
    """For each output of one axis the positions of its taps, and the end of the padded input."""
    before, after = pair
    starts, start = [], -before
    while True:
        whole = start + (window - 1) * dilation < n + after
        cut = ceil_mode and start < n and (not starts or starts[-1] + (window - 1) * dilation < n + after - 1)
        if not (whole or cut):
            return [[s + t * dilation for t in range(window)] for s in starts], n + after
        starts.append(start)
        start += stride


def _regular(space, kernel_size, stride, padding, dilation, ceil_mode):
    rank = len(space)
    window, spread = _tuple(kernel_size, rank), _tuple(dilation, rank)
    step = window if stride is None else _tuple(stride, rank)
    pairs = _padding(padding, space, window, step, spread)
    return [_places(n, *rest, ceil_mode) for n, *rest in zip(space, window, step, pairs, spread, strict=True)]


def _adaptive(space, output_size):
    sizes = [n if o is None else o for n, o in zip(space, _tuple(output_size, len(space)), strict=True)]
    return [
        ([range(math.floor(i * n / o), math.ceil((i + 1) * n / o)) for i in range(o)], n)
        for n, o in zip(space, sizes, strict=True)
    ]


def _pool(x, axes, layout, reduce):
    """`reduce(elements, positions, padded)` for each window: what lies inside, where, and how many taps lie in the
    padded input."""
    x = x if layout == "channels_first" else np.moveaxis(x, -1, 1)
    space = x.shape[2:]
    shape = (*x.shape[:2], *(len(places) for places, _ in axes))
    results = np.zeros((2, *shape), object)
    for n, c, *out in np.ndindex(*shape):
        taps = list(itertools.product(*(places[i] for (places, _), i in zip(axes, out, strict=True))))
        padded = sum(all(p < end for p, (_, end) in zip(tap, axes, strict=True)) for tap in taps)
        inside = [tap for tap in taps if all(0 <= p < e for p, e in zip(tap, space, strict=True))]
        positions = [int(np.ravel_multi_index(tap, space)) for tap in inside]
        results[(slice(None), n, c, *out)] = reduce([x[(n, c, *tap)] for tap in inside], positions, padded)
    return tuple(r if layout == "channels_first" else np.moveaxis(r, 1, -1) for r in results)


def _largest(elements, positions, padded):
    """The last NaN, else the first of the largest."""
    nan = [(e, p) for e, p in zip(elements, positions, strict=True) if e != e]
    if nan:
        return nan[-1]
    best = max(range(len(elements)), key=lambda i: (elements[i], -i), default=None)
    return (-math.inf, -1) if best is None else (elements[best], positions[best])


def _numbers(results, dtype):
    y, indices = results
    return y.astype(dtype), indices.astype(np.int64)


def max_pool_with_indices(
    x, *, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, layout="channels_first"
):
    space = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    return _numbers(
        _pool(x, _regular(space, kernel_size, stride, padding, dilation, ceil_mode), layout, _largest), x.dtype
    )


def max_pool(x, **options):
    return max_pool_with_indices(x, **options)[0]


def avg_pool(
    x,
    *,
    kernel_size,
    stride=None,
    padding=0,
    dilation=1,
    ceil_mode=False,
    count_include_pad=True,
    layout="channels_first",
):
    def mean(elements, positions, padded):
        return math.fsum(elements) / (padded if count_include_pad else max(len(elements), 1)), 0

    space = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    return _numbers(
        _pool(x, _regular(space, kernel_size, stride, padding, dilation, ceil_mode), layout, mean), np.float64
    )[0]


def lp_pool(x, *, kernel_size, p=2, stride=None, padding=0, dilation=1, ceil_mode=False, layout="channels_first"):
    def norm(elements, positions, padded):
        if math.isinf(p):
            return math.nan if any(map(math.isnan, elements)) else max(map(abs, elements), default=0.0), 0
        return math.fsum(abs(e) ** p for e in elements) ** (1 / p), 0

    space = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    return _numbers(
        _pool(x, _regular(space, kernel_size, stride, padding, dilation, ceil_mode), layout, norm), np.float64
    )[0]


def adaptive_avg_pool(x, *, output_size, layout="channels_first"):
    space = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    return _numbers(
        _pool(x, _adaptive(space, output_size), layout, lambda e, *_: (math.fsum(e) / len(e), 0)), np.float64
    )[0]


def adaptive_max_pool_with_indices(x, *, output_size, layout="channels_first"):
    space = x.shape[2:] if layout == "channels_first" else x.shape[1:-1]
    return _numbers(_pool(x, _adaptive(space, output_size), layout, _largest), np.float64)


def adaptive_max_pool(x, **options):
    return adaptive_max_pool_with_indices(x, **options)[0]


def max_unpool(x, indices, *, output_size, layout="channels_first"):
    if layout == "channels_last":
        moved = max_unpool(np.moveaxis(x, -1, 1), np.moveaxis(indices, -1, 1), output_size=output_size)
        return np.moveaxis(moved, 1, -1)
    y = np.zeros((*x.shape[:2], *_tuple(output_size, x.ndim - 2)))
    for n, c, *place in np.ndindex(*x.shape):
        y[n, c].flat[indices[(n, c, *place)]] = x[(n, c, *place)]
    return y


ORACLES: dict[str, Callable] = {
    "max_pool": max_pool,
    "max_pool_with_indices": max_pool_with_indices,
    "avg_pool": avg_pool,
    "lp_pool": lp_pool,
    "adaptive_avg_pool": adaptive_avg_pool,
    "adaptive_max_pool": adaptive_max_pool,
    "adaptive_max_pool_with_indices": adaptive_max_pool_with_indices,
    "max_unpool": max_unpool,
}
