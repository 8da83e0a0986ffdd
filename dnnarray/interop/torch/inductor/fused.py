"""The fused forms of compiled graphs: convolution, normalization and linear layer with what follows each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

import dnnarray as dnn
from dnnarray.interop.torch.aten import convolution as convolutions
from dnnarray.interop.torch.aten import norm as norms
from dnnarray.interop.torch.inductor.operators import define, mirror

_ATEN = torch.ops.aten

ACTIVATIONS: dict[Any, dict[tuple[Any, ...], str]] = {
    _ATEN.relu.default: {(): "relu"},
    _ATEN.sigmoid.default: {(): "sigmoid"},
    _ATEN.tanh.default: {(): "tanh"},
    _ATEN.gelu.default: {(): "gelu", ("none",): "gelu"},
    _ATEN.silu.default: {(): "silu"},
    _ATEN.mish.default: {(): "mish"},
    _ATEN.hardswish.default: {(): "hard_swish"},
    _ATEN.hardsigmoid.default: {(): "hard_sigmoid"},
    _ATEN.leaky_relu.default: {(): "leaky_relu", (0.01,): "leaky_relu"},
    _ATEN.elu.default: {(): "elu", (1.0,): "elu", (1.0, 1.0): "elu", (1.0, 1.0, 1.0): "elu"},
    _ATEN.hardtanh.default: {(): "hard_tanh", (-1.0, 1.0): "hard_tanh", (0.0, 6.0): "relu6"},
}
"""PyTorch's activations by the options with which dnnarray's fused operations have them, and their names there."""

_PLAIN = {
    name: (operator, options) for operator, table in ACTIVATIONS.items() for options, name in reversed(table.items())
}


def _finished(y: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    """A result that nobody else has, with the residual added and the activation applied; its strides stay."""
    if residual is not None:
        y = y.add_(residual)
    if activation is None:
        return y
    operator, options = _PLAIN[activation]
    finished: Tensor = operator(y, *options)
    return finished


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _conv_plain(*arguments: Any) -> Tensor:
    *plain, residual, activation = arguments
    return _finished(_ATEN.convolution(*plain), residual, activation)


def _conv(*arguments: Any) -> Tensor:
    *plain, residual, activation = arguments
    return convolutions.convolution(*plain, **_given(residual=residual, activation=activation))


CONV = define(
    "conv",
    "(Tensor x, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, "
    "SymInt[] output_padding, SymInt groups, Tensor? residual, str? activation) -> Tensor",
    _conv_plain,
    _conv,
    "dnnarray::conv",
)


def folded(
    weight: Tensor, bias: Tensor | None, scale: Tensor | None, shift: Tensor | None, mean: Tensor, var: Tensor, eps: Any
) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution that stands for a convolution with a batch normalization behind it."""
    factor = torch.rsqrt(var + eps)
    if scale is not None:
        factor = factor * scale
    offset = -mean * factor if bias is None else (bias - mean) * factor
    if shift is not None:
        offset = offset + shift
    shaped = factor.reshape(-1, *(1,) * (weight.dim() - 1))
    return (weight * shaped).to(weight.dtype), offset.to(weight.dtype)


def _batch_norm_plain(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> Tensor:
    y = _ATEN._native_batch_norm_legit_no_training(x, weight, bias, mean, var, 0.0, eps)[0]
    return _finished(y, residual, activation)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> Tensor:
    return dnn.batch_norm(x, mean, var, weight, bias, eps=eps, residual=residual, activation=activation)


BATCH_NORM = define(
    "batch_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float eps, Tensor? residual, str? activation) "
    "-> Tensor",
    _batch_norm_plain,
    _batch_norm,
    "dnnarray::batch_norm",
)


def _batch_norm_train_plain(*arguments: Any) -> tuple[Tensor, ...]:
    *plain, momentum, eps, residual, activation = arguments
    y, *rest = _ATEN._native_batch_norm_legit_functional(*plain, True, momentum, eps)
    return _finished(y, residual, activation), *rest


def _batch_norm_train(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    residual: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, ...]:
    found = dnn.batch_norm_train(
        x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps, residual=residual, activation=activation
    )
    return found.y, *norms.kept((found.mean, found.rstd), x, weight), found.running_mean, found.running_var


BATCH_NORM_TRAIN = define(
    "batch_norm_train",
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps, "
    "Tensor? residual, str? activation) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _batch_norm_train_plain,
    _batch_norm_train,
    "dnnarray::batch_norm_train",
)


def _group_norm_plain(*arguments: Any) -> tuple[Tensor, ...]:
    *plain, activation = arguments
    y, *rest = _ATEN.native_group_norm(*plain)
    return _finished(y, None, activation), *rest


GROUP_NORM = define(
    "group_norm",
    "(Tensor x, Tensor? weight, Tensor? bias, SymInt n, SymInt c, SymInt space, int groups, float eps, "
    "str? activation) -> (Tensor, Tensor, Tensor)",
    _group_norm_plain,
    norms.native_group_norm,
    "dnnarray::group_norm",
)


def _add_layer_norm_plain(
    x: Tensor, residual: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x.contiguous() + residual.contiguous()
    return _ATEN.native_layer_norm(total, shape, weight, bias, eps)[0], total


def _add_layer_norm(
    x: Tensor, residual: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    axis = tuple(range(-len(shape), 0))
    found = dnn.add_layer_norm(x.contiguous(), residual.contiguous(), weight, bias, axis=axis, eps=eps)
    return found.y, found.sum


ADD_LAYER_NORM = define(
    "add_layer_norm",
    "(Tensor x, Tensor residual, SymInt[] shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor)",
    _add_layer_norm_plain,
    _add_layer_norm,
    "dnnarray::add_layer_norm",
)


def _linear_plain(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return _finished(F.linear(x.contiguous(), weight, bias), None, activation)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return dnn.linear(x.contiguous(), weight, bias, activation=activation)


LINEAR = define(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    _linear_plain,
    _linear,
    "dnnarray::linear",
)


def _batch_norm_without_statistics(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return norms.native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


mirror(_ATEN._native_batch_norm_legit.no_stats, _batch_norm_without_statistics, "norm")
