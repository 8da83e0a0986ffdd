"""Sampling, resizing, region pooling, shuffles and look-ups by definition, one output element at a time in float64."""

import math
from fractions import Fraction
from itertools import product

import numpy as np

# --- grid_sample: every pixel of the image is asked for its weight
# -----------------------------------------------------


def _cubic(d, a):
    """The cubic convolution kernel over the whole line."""
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def _reflect(p, n, align_corners):
    """Walk back into the image by one mirror at a time."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    if low == high:
        return 0.0
    while not low <= p <= high:
        p = 2 * low - p if p < low else 2 * high - p
    return p


def _outside(p, n, padding_mode, align_corners):
    """The place that is read instead of `p`."""
    if padding_mode == "zeros":
        return p
    if padding_mode == "reflection":
        p = _reflect(p, n, align_corners)
    return min(max(p, 0.0), n - 1.0)


def _place_taps(g, n, mode, padding_mode, align_corners):
    """{pixel: weight} of one coordinate along one axis."""
    p = (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
    taps = {}

    def add(k, weight):
        if 0 <= k < n:
            taps[int(k)] = taps.get(int(k), 0.0) + weight

    if mode == "bicubic":
        for k in range(math.floor(p) - 1, math.floor(p) + 3):
            add(_outside(float(k), n, padding_mode, align_corners), _cubic(p - k, -0.75))
        return taps
    p = _outside(p, n, padding_mode, align_corners)
    if mode == "nearest":
        add(round(p), 1.0)
    else:
        for k in (math.floor(p), math.floor(p) + 1):
            add(k, 1 - abs(p - k))
    return taps


def grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    space = x.shape[2:]
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n in range(x.shape[0]):
        for place in np.ndindex(*grid.shape[1:-1]):
            coordinates = grid[(n, *place)][::-1]
            taps = [
                _place_taps(float(g), e, mode, padding_mode, align_corners)
                for g, e in zip(coordinates, space, strict=True)
            ]
            for pixel in product(*taps):
                weight = math.prod(t[k] for t, k in zip(taps, pixel, strict=True))
                out[(n, slice(None), *place)] += weight * x[(n, slice(None), *pixel)]
    return out


def affine_grid(theta, shape, align_corners=False):
    space = shape[2:]
    out = np.zeros((shape[0], *space, len(space)))
    for n in range(shape[0]):
        for place in np.ndindex(*space):
            coordinates = []
            for i, extent in zip(place[::-1], space[::-1], strict=True):
                if align_corners:
                    coordinates.append(-1 + 2 * i / (extent - 1) if extent > 1 else 0.0)
                else:
                    coordinates.append((2 * i + 1) / extent - 1)
            out[(n, *place)] = theta[n] @ np.array([*coordinates, 1.0])
    return out


# --- interpolate: a dense matrix for each axis
# ---------------------------------------------------------------------------


def _positions(n, m, scale, align_corners):
    """Source position of each target pixel, pixel centres at whole numbers."""
    for i in range(m):
        if align_corners:
            yield i * (n - 1) / (m - 1) if m > 1 else 0.0
        else:
            yield (i + 0.5) * (n / m if scale is None else 1 / scale) - 0.5


def _nearest_matrix(n, m, scale, half):
    matrix = np.zeros((m, n))
    for i in range(m):
        shifted = i + half
        source = math.floor(shifted * Fraction(n, m)) if scale is None else math.floor(float(shifted) * (1 / scale))
        matrix[i, min(source, n - 1)] = 1
    return matrix


def _kernel_matrix(n, m, scale, align_corners, mode):
    """Linear and cubic: the kernel at the distance from the position, pixels past the border standing for the
    border."""
    matrix = np.zeros((m, n))
    for i, p in enumerate(_positions(n, m, scale, align_corners)):
        if mode == "linear":
            p = min(max(p, 0.0), n - 1.0)
        p = min(p, n)  # further out the cubic taps stay where they are
        for k in range(math.floor(p) - 2, math.floor(p) + 4):
            weight = max(0.0, 1 - abs(p - k)) if mode == "linear" else _cubic(p - k, -0.75)
            matrix[i, min(max(k, 0), n - 1)] += weight
    return matrix


def _area_matrix(n, m):
    matrix = np.zeros((m, n))
    for i in range(m):
        start, end = math.floor(Fraction(i * n, m)), math.ceil(Fraction((i + 1) * n, m))
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def _antialias_matrix(n, m, scale, align_corners, mode):
    """The stretched kernel at the distance of the centres, over the pixels whose centre lies in its support, made to
    sum to 1."""
    step = ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else (n / m if scale is None else 1 / scale)
    stretch = max(step, 1.0)
    reach = (1 if mode == "linear" else 2) * stretch
    matrix = np.zeros((m, n))
    for i in range(m):
        centre = (i + 0.5) * step
        first, end = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), n)
        for j in range(first, end):
            d = (j + 0.5 - centre) / stretch
            matrix[i, j] = max(0.0, 1 - abs(d)) if mode == "linear" else _cubic(d, -0.5)
        matrix[i] /= matrix[i].sum()
    return matrix


def _resize_matrix(n, m, scale, mode, align_corners, antialias):
    if mode == "area":
        return _area_matrix(n, m)
    if mode in ("nearest", "nearest_exact"):
        return _nearest_matrix(n, m, scale, Fraction(1, 2) if mode == "nearest_exact" else Fraction(0))
    if n == m and (mode == "linear" or antialias):
        return np.eye(n)
    if antialias:
        return _antialias_matrix(n, m, scale, align_corners, mode)
    return _kernel_matrix(n, m, scale, align_corners, mode)


def interpolate(
    x, size=None, scale=None, mode="nearest", align_corners=False, antialias=False, layout="channels_first"
):
    axes = range(2, x.ndim) if layout == "channels_first" else range(1, x.ndim - 1)
    y = x
    for i, axis in enumerate(axes):
        n = x.shape[axis]
        factor = scale[i] if isinstance(scale, tuple) else scale
        m = math.floor(n * factor) if size is None else size[i] if isinstance(size, tuple) else size
        matrix = _resize_matrix(n, m, factor, mode, align_corners, antialias)
        y = np.moveaxis(np.tensordot(matrix, y, axes=(1, axis)), 0, axis)
    return y


# --- roi_align
# -----------------------------------------------------------------------------------------------------------


def _corners(image, y, x):
    """The four weighted pixels of a bilinear sample; none outside."""
    height, width = image.shape
    if y < -1 or y > height or x < -1 or x > width:
        return [0.0]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    i, j = int(y), int(x)
    below, right = min(i + 1, height - 1), min(j + 1, width - 1)
    v, u = y - i, x - j
    return [
        (1 - v) * (1 - u) * image[i, j],
        (1 - v) * u * image[i, right],
        v * (1 - u) * image[below, j],
        v * u * image[below, right],
    ]


def _bin(image, start, step, place, ratio, mode):
    counts = [ratio if ratio else math.ceil(s) for s in step]
    samples = [
        _corners(image, *(start[a] + place[a] * step[a] + (k[a] + 0.5) * step[a] / counts[a] for a in (0, 1)))
        for k in product(range(counts[0]), range(counts[1]))
    ]
    if not samples:
        return 0.0
    return sum(map(sum, samples)) / len(samples) if mode == "avg" else max(map(max, samples))


def roi_align(x, boxes, output_size, spatial_scale=1.0, sampling_ratio=0, aligned=False, mode="avg"):
    bins = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    out = np.zeros((len(boxes), x.shape[1], *bins))
    for k, (n, x1, y1, x2, y2) in enumerate(boxes):
        shift = 0.5 if aligned else 0.0
        start = [y1 * spatial_scale - shift, x1 * spatial_scale - shift]
        size = [y2 * spatial_scale - shift - start[0], x2 * spatial_scale - shift - start[1]]
        size = size if aligned else [max(s, 1.0) for s in size]
        step = [s / b for s, b in zip(size, bins, strict=True)]
        for c, *place in np.ndindex(x.shape[1], *bins):
            out[(k, c, *place)] = _bin(x[int(n), c], start, step, place, sampling_ratio, mode)
    return out


# --- shuffles and look-ups
# -------------------------------------------------------------------------------------------------


def _channels_first(function):
    """The same over channels-last arrays."""

    def oracle(x, layout="channels_first", **number):
        if layout == "channels_first":
            return function(x, **number)
        return np.moveaxis(function(np.moveaxis(x, -1, 1), **number), 1, -1)

    return oracle


@_channels_first
def pixel_shuffle(x, factor):
    rank = x.ndim - 2
    out = np.zeros((x.shape[0], x.shape[1] // factor**rank, *(factor * s for s in x.shape[2:])), x.dtype)
    for n, c, *place in np.ndindex(*out.shape):
        channel = c
        for p in place:
            channel = channel * factor + p % factor
        out[(n, c, *place)] = x[(n, channel, *(p // factor for p in place))]
    return out


@_channels_first
def pixel_unshuffle(x, factor):
    rank = x.ndim - 2
    out = np.zeros((x.shape[0], x.shape[1] * factor**rank, *(s // factor for s in x.shape[2:])), x.dtype)
    for n, channel, *place in np.ndindex(*out.shape):
        within, rest = [], channel
        for _ in place:
            rest, digit = divmod(rest, factor)
            within.insert(0, digit)
        out[(n, channel, *place)] = x[(n, rest, *(p * factor + w for p, w in zip(place, within, strict=True)))]
    return out


@_channels_first
def channel_shuffle(x, groups):
    out = np.zeros_like(x)
    for k in range(x.shape[1]):
        group, member = divmod(k, x.shape[1] // groups)
        out[:, member * groups + group] = x[:, k]
    return out


def embedding(indices, weight, padding_index=None):
    out = np.zeros((*indices.shape, weight.shape[1]))
    for place in np.ndindex(*indices.shape):
        out[place] = weight[indices[place]]
    return out


def one_hot(indices, num_classes):
    out = np.zeros((*indices.shape, num_classes), np.int64)
    for place in np.ndindex(*indices.shape):
        out[(*place, indices[place])] = 1
    return out


ORACLES = {
    "affine_grid": affine_grid,
    "channel_shuffle": channel_shuffle,
    "embedding": embedding,
    "grid_sample": grid_sample,
    "interpolate": interpolate,
    "one_hot": one_hot,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "roi_align": roi_align,
}
