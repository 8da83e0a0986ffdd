"""Convolution by definition: every output pixel from its window of the padded input, in float64."""

import math

import numpy as np

_ACTIVATIONS = {
    "relu": lambda v: max(v, 0.0),
    "gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
}


def _tuple(value, rank):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank


def _pads(padding, space, window, stride, dilation):
    """(before, after) for each axis, from any form of the option."""
    if padding == "valid":
        padding = 0
    if padding in ("same", "same_lower"):
        pads = []
        for n, w, s, d in zip(space, window, stride, dilation, strict=True):
            total = max((math.ceil(n / s) - 1) * s + d * (w - 1) + 1 - n, 0)
            small, large = total // 2, total - total // 2
            pads.append((small, large) if padding == "same" else (large, small))
        return pads
    return [p if isinstance(p, tuple) else (p, p) for p in _tuple(padding, len(space))]


def _first(a, layout):
    return np.moveaxis(a, -1, 1) if layout == "channels_last" else a


def _back(a, layout):
    return np.moveaxis(a, 1, -1) if layout == "channels_last" else a


def _windows(out, window, stride, dilation):
    """Each output pixel with the index of its window in the padded input."""
    for p in np.ndindex(*out):
        yield (
            p,
            (
                ...,
                *(
                    slice(i * s, i * s + (w - 1) * d + 1, d)
                    for i, s, w, d in zip(p, stride, window, dilation, strict=True)
                ),
            ),
        )


def _setting(space, window, stride, padding, dilation):
    rank = len(space)
    stride, dilation = _tuple(stride, rank), _tuple(dilation, rank)
    pads = _pads(padding, space, window, stride, dilation)
    padded = [n + sum(p) for n, p in zip(space, pads, strict=True)]
    out = [(n - (w - 1) * d - 1) // s + 1 for n, w, s, d in zip(padded, window, stride, dilation, strict=True)]
    return pads, padded, out, list(_windows(out, window, stride, dilation))


def _flipped(weight, flip):
    return np.flip(weight, tuple(range(2, weight.ndim))) if flip else weight


def _activated(y, name):
    if name is None:
        return y
    return np.vectorize(_ACTIVATIONS[name], otypes=[np.float64])(y)


def correlate(x, weight, *, stride=1, padding=0, dilation=1, groups=1):
    """Channels first, nothing else."""
    pads, _, out, windows = _setting(x.shape[2:], weight.shape[2:], stride, padding, dilation)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    y = np.zeros((x.shape[0], weight.shape[0], *out))
    c, k = weight.shape[1], weight.shape[0] // groups
    for p, window in windows:
        for g in range(groups):
            part = padded[window][:, g * c : (g + 1) * c]
            y[(slice(None), slice(g * k, (g + 1) * k), *p)] = np.tensordot(part, weight[g * k : (g + 1) * k], axes=(
                list(range(1, x.ndim)), list(range(1, x.ndim))))  # fmt: skip
    return y


def input_gradient(grad, weight, shape, *, stride=1, padding=0, dilation=1, groups=1):
    pads, extents, _, windows = _setting(shape[2:], weight.shape[2:], stride, padding, dilation)
    padded = np.zeros((*shape[:2], *extents))
    c, k = weight.shape[1], weight.shape[0] // groups
    for p, window in windows:
        for g in range(groups):
            part = grad[(slice(None), slice(g * k, (g + 1) * k), *p)]
            padded[window][:, g * c : (g + 1) * c] += np.tensordot(part, weight[g * k : (g + 1) * k], axes=1)
    return padded[(..., *(slice(a, a + n) for (a, _), n in zip(pads, shape[2:], strict=True)))]


def weight_gradient(grad, x, shape, *, stride=1, padding=0, dilation=1, groups=1):
    pads, _, _, windows = _setting(x.shape[2:], shape[2:], stride, padding, dilation)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    dw = np.zeros(shape)
    c, k = shape[1], shape[0] // groups
    for p, window in windows:
        for g in range(groups):
            part = grad[(slice(None), slice(g * k, (g + 1) * k), *p)]
            dw[g * k : (g + 1) * k] += np.tensordot(part, padded[window][:, g * c : (g + 1) * c], axes=((0,), (0,)))
    return dw


def conv(x, weight, bias=None, residual=None, *, layout="channels_first", activation=None, flip=False, **options):
    y = correlate(_first(x, layout), _flipped(_first(weight, layout), flip), **options)
    if bias is not None:
        y += bias.reshape(-1, *(1,) * (y.ndim - 2))
    y = _back(y, layout)
    return _activated(y if residual is None else y + residual, activation)


def conv_backward_input(grad, weight, *, input_shape, layout="channels_first", flip=False, **options):
    shape = np.empty(input_shape) if layout == "channels_first" else np.moveaxis(np.empty(input_shape), -1, 1)
    weight = _flipped(_first(weight, layout), flip)
    return _back(input_gradient(_first(grad, layout), weight, shape.shape, **options), layout)


def conv_backward_weight(grad, x, *, weight_shape, layout="channels_first", flip=False, **options):
    shape = np.empty(weight_shape) if layout == "channels_first" else np.moveaxis(np.empty(weight_shape), -1, 1)
    dw = weight_gradient(_first(grad, layout), _first(x, layout), shape.shape, **options)
    return _back(_flipped(dw, flip), layout)


def conv_transpose(
    x,
    weight,
    bias=None,
    *,
    stride=1,
    padding=0,
    output_padding=0,
    dilation=1,
    groups=1,
    layout="channels_first",
    activation=None,
):
    """Every input pixel adds its scaled window to a canvas, of which the padding is cut off."""
    x, weight = _first(x, layout), _first(weight, layout)
    rank, window = x.ndim - 2, weight.shape[2:]
    stride, dilation, extra = _tuple(stride, rank), _tuple(dilation, rank), _tuple(output_padding, rank)
    if padding in ("same", "same_lower"):
        space = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
        pads = _pads(padding, space, window, stride, dilation)
    else:
        pads = _pads(padding, x.shape[2:], window, stride, dilation)
        axes = zip(x.shape[2:], stride, dilation, window, pads, extra, strict=True)
        space = [(n - 1) * s + d * (w - 1) + 1 - sum(p) + e for n, s, d, w, p, e in axes]
    canvas = np.zeros(
        (x.shape[0], weight.shape[1] * groups, *(n + sum(p) + max(stride) for n, p in zip(space, pads, strict=True)))
    )
    c, k = weight.shape[0] // groups, weight.shape[1]
    for p, at in _windows(x.shape[2:], window, stride, dilation):
        for g in range(groups):
            part = x[(slice(None), slice(g * c, (g + 1) * c), *p)]
            canvas[at][:, g * k : (g + 1) * k] += np.tensordot(part, weight[g * c : (g + 1) * c], axes=1)
    y = canvas[(..., *(slice(a, a + n) for (a, _), n in zip(pads, space, strict=True)))]
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * rank)
    return _activated(_back(y, layout), activation)


def unfold(x, *, kernel_size, stride=1, padding=0, dilation=1, layout="channels_first"):
    x = _first(x, layout)
    window = _tuple(kernel_size, x.ndim - 2)
    pads, _, _, windows = _setting(x.shape[2:], window, stride, padding, dilation)
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    size = x.shape[1] * math.prod(window)
    columns = [_back(padded[at], layout).reshape(x.shape[0], size) for _, at in windows]
    return np.stack(columns, axis=1 if layout == "channels_last" else 2)


def fold(x, *, output_size, kernel_size, stride=1, padding=0, dilation=1, layout="channels_first"):
    rank = len(output_size) if isinstance(output_size, tuple) else 2
    space, window = _tuple(output_size, rank), _tuple(kernel_size, rank)
    columns = np.moveaxis(x, 2, 1) if layout == "channels_first" else x
    channels = columns.shape[2] // math.prod(window)
    pads, extents, _, windows = _setting(space, window, stride, padding, dilation)
    padded = np.zeros((x.shape[0], channels, *extents))
    for i, (_, at) in enumerate(windows):
        if layout == "channels_first":
            padded[at] += columns[:, i].reshape(x.shape[0], channels, *window)
        else:
            padded[at] += np.moveaxis(columns[:, i].reshape(x.shape[0], *window, channels), -1, 1)
    return _back(padded[(..., *(slice(a, a + n) for (a, _), n in zip(pads, space, strict=True)))], layout)


ORACLES = {
    "conv": conv,
    "conv_backward_input": conv_backward_input,
    "conv_backward_weight": conv_backward_weight,
    "conv_transpose": conv_transpose,
    "unfold": unfold,
    "fold": fold,
}
