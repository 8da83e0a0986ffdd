"""Forwards by definition, in functions that can be differentiated twice, where a rule by hand would be long: fused
activations, norms and losses. Each takes the arrays of the forward by name and its options."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import device

from dnnarray._autodiff import functions as xp
from dnnarray._autodiff.primitive import is_floating, namespace
from dnnarray._autodiff.rules import UNARY
from dnnarray._autodiff.second.given import activated, channel_axis, public, spatial_axes, zeros_like
from dnnarray._autodiff.traced import plain
from dnnarray._errors import UnsupportedError

_sqrt, _square, _abs = UNARY["sqrt"], UNARY["square"], UNARY["abs"]


def _fused(name: str) -> Callable[..., Any]:
    """Convolution and linear layers with an activation behind them."""

    def definition(*, activation: str | None, **given: Any) -> Any:
        arrays = [given.pop(n) for n in ("x", "weight")]
        return activated(public(name)(*arrays, **given), activation)

    return definition


# --- activations ------------------------------------------------------------------------------------------------------


def _along(parameter: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """A parameter with the extents of `axes` of x, its axes in their places."""
    return xp.reshape(parameter, tuple([n if a in axes else 1 for a, n in enumerate(x.shape)]))


def _prelu(*, x: Any, weight: Any) -> Any:
    if math.prod(weight.shape) == 1:
        weight = xp.reshape(weight, ())
    elif len(x.shape) > 1 and tuple(weight.shape) == (x.shape[1],):
        weight = _along(weight, x, (1,))
    return xp.where(x > 0, x, weight * x)


def _glu(*, x: Any, axis: int) -> Any:
    before = (slice(None),) * (axis % len(x.shape))
    half = x.shape[axis] // 2
    return x[(*before, slice(half))] * public("sigmoid")(x[(*before, slice(half, None))])


def _gated(name: str) -> Callable[..., Any]:
    return lambda *, gate, x: public(name)(gate) * x


def _bias_activation(*, x: Any, bias: Any, residual: Any, activation: str | None, axis: int) -> Any:
    total = x + _along(bias, x, (axis % len(x.shape),))
    return activated(total if residual is None else total + residual, activation)


# --- norms ------------------------------------------------------------------------------------------------------------


def _affine(y: Any, weight: Any, bias: Any, axes: tuple[int, ...]) -> Any:
    y = y if weight is None else y * _along(weight, y, axes)
    return y if bias is None else y + _along(bias, y, axes)


def _standardized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    deviation = x - xp.mean(x, axis=axes, keepdims=True)
    return deviation / _sqrt(xp.mean(_square(deviation), axis=axes, keepdims=True) + eps)


def _axes(x: Any, axis: Any) -> tuple[int, ...]:
    return tuple(sorted(a % len(x.shape) for a in (axis if isinstance(axis, tuple) else (axis,))))


def _layer_norm(*, x: Any, weight: Any, bias: Any, axis: Any, eps: float, **_: Any) -> Any:
    axes = _axes(x, axis)
    return _affine(_standardized(x, axes, eps), weight, bias, axes)


def _rms_norm(*, x: Any, weight: Any, axis: Any, eps: float, **_: Any) -> Any:
    axes = _axes(x, axis)
    return _affine(x / _sqrt(xp.mean(_square(x), axis=axes, keepdims=True) + eps), weight, None, axes)


def _added(norm: Callable[..., Any]) -> Callable[..., Any]:
    def definition(*, x: Any, residual: Any, **given: Any) -> Any:
        total = x + residual
        return norm(x=total, **given), total

    return definition


def _group_norm(
    *, x: Any, weight: Any, bias: Any, num_groups: int, eps: float, layout: str, activation: str | None, **_: Any
) -> Any:
    channel = channel_axis(x, layout)
    shape = tuple(x.shape)
    split = (*shape[:channel], num_groups, shape[channel] // num_groups, *shape[channel + 1 :])
    axes = tuple(a for a in range(1, len(split)) if a != channel)
    y = xp.reshape(_standardized(xp.reshape(x, split), axes, eps), shape)
    return activated(_affine(y, weight, bias, (channel,)), activation)


def _instance_norm(*, x: Any, weight: Any, bias: Any, eps: float, layout: str, **_: Any) -> Any:
    return _affine(_standardized(x, spatial_axes(x, layout), eps), weight, bias, (channel_axis(x, layout),))


def _batch_norm(
    *,
    x: Any,
    mean: Any,
    variance: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    eps: float,
    layout: str,
    activation: str | None,
) -> Any:
    axes = (channel_axis(x, layout),)
    y = _affine((x - _along(mean, x, axes)) / _sqrt(_along(variance, x, axes) + eps), weight, bias, axes)
    return activated(y if residual is None else y + residual, activation)


def _batch_norm_train(
    *,
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    eps: float,
    layout: str,
    activation: str | None,
    group: Any,
    **_: Any,
) -> Any:
    if group is not None:
        raise UnsupportedError(
            "batch_norm_train_backward: statistics over several devices (group=) have no second derivative; leave "
            "group out."
        )
    channel = channel_axis(x, layout)
    y = _standardized(x, (0, *spatial_axes(x, layout)), eps)
    y = _affine(y, weight, bias, (channel,))
    return activated(y if residual is None else y + residual, activation)


def _local_response_norm(*, x: Any, size: int, alpha: float, beta: float, k: float, layout: str) -> Any:
    channel = channel_axis(x, layout)
    before = (slice(None),) * channel
    none = zeros_like(x)[(*before, slice(0, 1))]
    squares = xp.concat([*[none] * (size // 2), _square(x), *[none] * ((size - 1) // 2)], axis=channel)
    total = squares[(*before, slice(0, x.shape[channel]))]
    for start in range(1, size):
        total = total + squares[(*before, slice(start, start + x.shape[channel]))]
    return x / (k + alpha / size * total) ** beta


# --- losses and pooling -----------------------------------------------------------------------------------------------


def _cross_entropy(
    *,
    logits: Any,
    target: Any,
    weight: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    axis: int,
    **_: Any,
) -> Any:
    axis = 0 if len(logits.shape) == 1 else axis % len(logits.shape)
    classes = logits.shape[axis]
    log_p = public("log_softmax")(logits, axis=axis)
    weighted = log_p if weight is None else log_p * _along(weight, log_p, (axis,))
    if is_floating(target):
        shares = (1 - label_smoothing) * target + label_smoothing / classes
        return _reduced(-xp.sum(shares * weighted, axis=axis), None, reduction)
    target = plain(target)
    counted = target != ignore_index
    np_like = namespace(target)
    labels = np_like.where(counted, target, np_like.zeros_like(target))
    picked = xp.squeeze(xp.take_along_axis(weighted, np_like.expand_dims(labels, axis=axis), axis=axis), axis)
    losses = (1 - label_smoothing) * picked + label_smoothing / classes * xp.sum(weighted, axis=axis)
    ones = np_like.ones_like(plain(picked))
    weights = np_like.where(counted, ones if weight is None else plain(weight)[labels], 0 * ones)
    return _reduced(xp.where(counted, -losses, 0.0 * losses), weights, reduction)


def _reduced(losses: Any, weights: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    total = xp.sum(losses)
    if reduction == "sum":
        return total
    return total / (math.prod(losses.shape) if weights is None else xp.sum(weights))


def _linear_cross_entropy(*, x: Any, w: Any, bias: Any, **given: Any) -> Any:
    return _cross_entropy(logits=public("linear")(x, w, bias), axis=-1, **given)


def _lp_pool(*, x: Any, kernel_size: Any, p: Any, **options: Any) -> Any:
    """The sums of powers as a depthwise convolution with a window of ones."""
    if p == math.inf:
        return public("max_pool")(_abs(x), kernel_size, **options)
    layout, axes = options["layout"], spatial_axes(x, options["layout"])
    like = plain(x)
    window = tuple(_each(kernel_size, axes))
    stride = tuple(_each(window if options["stride"] is None else options["stride"], axes))
    dilation = tuple(_each(options["dilation"], axes))
    out = public("lp_pool")(like, window, p=p, **options).shape
    lengths = [
        (out[a] - 1) * s + d * (k - 1) + 1 - like.shape[a]
        for a, s, d, k in zip(axes, stride, dilation, window, strict=True)
    ]
    channels = like.shape[channel_axis(x, layout)]
    kernel = (channels, 1, *window) if layout == "channels_first" else (channels, *window, 1)
    powers = public("conv")(
        _abs(x) ** p,
        namespace(like).ones(kernel, dtype=like.dtype, device=device(like)),
        stride=stride,
        padding=_padding(options["padding"], lengths, axes),
        dilation=dilation,
        groups=max(channels, 1),
        layout=layout,
    )
    some = plain(powers) > 0  # the root of 0 has no slope: such windows are left out
    return xp.where(some, xp.where(some, powers, 0.0 * powers + 1.0) ** (1.0 / p), 0.0 * powers)


def _padding(padding: Any, lengths: list[int], axes: tuple[int, ...]) -> Any:
    """Padding as pairs, where the last window of each axis asks for `lengths` elements beyond those there are."""
    if padding in ("same", "same_lower"):
        more = [max(n, 0) for n in lengths]
        halves = [(n // 2, n - n // 2) for n in more]
        return tuple(pair if padding == "same" else pair[::-1] for pair in halves)
    pairs = [(0, 0)] * len(axes) if padding == "valid" else _each(padding, axes)
    pairs = [(q, q) if isinstance(q, int) else tuple(q) for q in pairs]
    return tuple((before, max(after, n - before)) for (before, after), n in zip(pairs, lengths, strict=True))


def _each(value: Any, axes: tuple[int, ...]) -> list[Any]:
    return [value] * len(axes) if isinstance(value, int) else list(value)


DEFINITIONS: dict[str, Callable[..., Any]] = {
    **{name: _fused(name) for name in ("conv", "conv_transpose", "linear")},
    "prelu": _prelu,
    "glu": _glu,
    "swiglu": _gated("silu"),
    "geglu": _gated("gelu"),
    "bias_activation": _bias_activation,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "add_layer_norm": _added(_layer_norm),
    "add_rms_norm": _added(_rms_norm),
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "batch_norm_train": _batch_norm_train,
    "local_response_norm": _local_response_norm,
    "lp_pool": _lp_pool,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
}
