"""Normalization: batch, layer, RMS, group, instance, local response, by definition, in float64."""

import itertools
import math

import numpy as np

_ACTIVATIONS = {
    None: lambda z: z,
    "relu": lambda z: z if math.isnan(z) else max(z, 0.0),
    "gelu": lambda z: z * 0.5 * (1 + math.erf(z / math.sqrt(2))),
}


def _activate(z, name):
    return np.array([_ACTIVATIONS[name](float(v)) for v in z.ravel()], np.float64).reshape(z.shape)


def _moments(values):
    """Mean and biased variance of some numbers, exactly summed; 0 and 0 of none. A sum that is not finite gives NaN."""
    values = [float(v) for v in np.ravel(values)]
    if not values:
        return 0.0, 0.0
    if not all(map(math.isfinite, values)):
        mean = float(np.sum(values)) / len(values)
        return mean, math.nan
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / len(values)


def _inverse_root(number):
    return math.inf if number == 0 else 1 / math.sqrt(number)


def _first(x, layout):
    """Channels on axis 1."""
    return x if layout == "channels_first" else np.moveaxis(x, -1, 1)


def _back(x, layout):
    return x if layout == "channels_first" else np.moveaxis(x, 1, -1)


def _channel(parameter, c, default):
    return default if parameter is None else parameter[c]


def batch_norm(
    x, mean, variance, weight=None, bias=None, residual=None, *, eps=1e-5, layout="channels_first", activation=None
):
    xs = _first(x, layout)
    y = np.empty_like(xs)
    for c in range(xs.shape[1]):
        y[:, c] = (xs[:, c] - mean[c]) / math.sqrt(variance[c] + eps) * _channel(weight, c, 1.0) + _channel(
            bias, c, 0.0
        )
    y = _back(y, layout)
    return _activate(y if residual is None else y + residual, activation)


def batch_norm_train(
    x, weight=None, bias=None, running_mean=None, running_var=None, residual=None, *, momentum=0.1, eps=1e-5, **options
):
    xs = _first(x, options.get("layout", "channels_first"))
    moments = [_moments(xs[:, c]) for c in range(xs.shape[1])]
    mean, variance = (np.array([m[i] for m in moments], np.float64) for i in (0, 1))
    y = batch_norm(x, mean, variance, weight, bias, residual, eps=eps, **options)
    count = xs[:, 0].size if xs.shape[1] else 0
    if count:
        running_mean = None if running_mean is None else (1 - momentum) * running_mean + momentum * mean
        running_var = (
            None if running_var is None else (1 - momentum) * running_var + momentum * variance * count / (count - 1)
        )
    rstd = np.array([_inverse_root(v + eps) for v in variance], np.float64)
    return y, mean, rstd, running_mean, running_var


def _over_axes(x, axis, moments):
    """(first, second) moments along `axis` for every position of the other axes, extents 1 along `axis`."""
    axes = {a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    found = np.empty((2, *shape))
    for index in itertools.product(*map(range, shape)):
        found[(slice(None), *index)] = moments(x[tuple(slice(None) if i in axes else k for i, k in enumerate(index))])
    return axes, found


def _along(parameter, x, axes, default):
    if parameter is None:
        return default
    return np.reshape(parameter, tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))


def layer_norm(x, weight=None, bias=None, *, axis=-1, eps=1e-5, return_stats=False):
    axes, (mean, variance) = _over_axes(x, axis, _moments)
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(variance + eps)
        y = (x - mean) * rstd * _along(weight, x, axes, 1.0) + _along(bias, x, axes, 0.0)
    return (y, mean, rstd) if return_stats else y


def rms_norm(x, weight=None, *, axis=-1, eps=1e-6, return_stats=False):
    axes, (_, square) = _over_axes(
        x, axis, lambda v: (0.0, math.fsum(float(u) ** 2 for u in v.ravel()) / max(v.size, 1))
    )
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(square + eps)
        y = x * rstd * _along(weight, x, axes, 1.0)
    return (y, rstd) if return_stats else y


def add_layer_norm(x, residual, weight=None, bias=None, **options):
    return layer_norm(x + residual, weight, bias, **options), x + residual


def add_rms_norm(x, residual, weight=None, **options):
    return rms_norm(x + residual, weight, **options), x + residual


def group_norm(
    x, weight=None, bias=None, *, num_groups, eps=1e-5, layout="channels_first", activation=None, return_stats=False
):
    xs = _first(x, layout)
    y, size = np.empty_like(xs), xs.shape[1] // max(num_groups, 1)
    means, rstds = np.empty((2, xs.shape[0], num_groups))
    for n, group in itertools.product(range(xs.shape[0]), range(num_groups)):
        members = range(group * size, (group + 1) * size)
        mean, variance = _moments(xs[n, members])
        means[n, group], rstds[n, group] = mean, _inverse_root(variance + eps)
        for c in members:
            y[n, c] = (xs[n, c] - mean) / math.sqrt(variance + eps) * _channel(weight, c, 1.0) + _channel(bias, c, 0.0)
    y = _activate(_back(y, layout), activation)
    return (y, means, rstds) if return_stats else y


def instance_norm(x, weight=None, bias=None, **options):
    channels = _first(x, options.get("layout", "channels_first")).shape[1]
    return group_norm(x, weight, bias, num_groups=channels, **options)


def local_response_norm(x, *, size, alpha=1e-4, beta=0.75, k=1.0, layout="channels_first"):
    xs = _first(x, layout)
    y = np.empty_like(xs)
    for c in range(xs.shape[1]):
        neighbours = [j for j in range(c - size // 2, c + (size - 1) // 2 + 1) if 0 <= j < xs.shape[1]]
        y[:, c] = xs[:, c] / (k + alpha / size * sum(xs[:, j] ** 2 for j in neighbours)) ** beta
    return _back(y, layout)


ORACLES = {
    "batch_norm": batch_norm,
    "batch_norm_train": batch_norm_train,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "add_layer_norm": add_layer_norm,
    "add_rms_norm": add_rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "local_response_norm": local_response_norm,
}
