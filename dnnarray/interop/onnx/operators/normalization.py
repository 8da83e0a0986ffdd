"""Normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace, widened


def _like(x: Any, *parameters: Any) -> list[Any]:
    """Parameters in a dtype that goes with x: its own, or float32 beside a half type."""
    return [
        p
        if p is None or p.dtype == x.dtype or (str(p.dtype) == "float32" and x.dtype.itemsize == 2)
        else p.astype(x.dtype)
        for p in parameters
    ]


def _refuses_statistics(node: Node) -> None:
    training = (
        node.get("training_mode", 0)
        if node.opset >= 14
        else not node.get("is_test", 0) and sum(map(bool, node.outputs)) > 1
    )
    if training and node.opset < 14:
        raise node.unsupported(
            f"the training form of BatchNormalization-{node.opset} is not supported",
            "Convert the model to opset 14 or newer with onnx.version_converter.",
        )
    if not node.get("spatial", 1):
        raise node.unsupported(
            "spatial=0 is not supported", "Convert the model to opset 9 or newer with onnx.version_converter."
        )


@operator("BatchNormalization", refuses=_refuses_statistics)
def batch_normalization(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """In training, the running variance takes the biased variance of the batch."""
    eps = node.get("epsilon", 1e-5)
    weight, shift = _like(x, scale, bias)
    if not node.get("training_mode", 0):
        mean, variance = _like(x, mean, variance)
        return dnn.batch_norm(x, mean, variance, weight, shift, eps=eps)
    result = dnn.batch_norm_train(x, weight, shift, eps=eps)
    xp, keep = namespace(x), node.get("momentum", 0.9)
    found = xp.var(widened(x), axis=(0, *range(2, x.ndim)))
    running = [
        (keep * old + (1 - keep) * new).astype(old.dtype) for old, new in ((mean, result.mean), (variance, found))
    ]
    return (result.y, *running)


@operator("InstanceNormalization")
def instance_normalization(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    return dnn.instance_norm(x, scale, bias, eps=node.get("epsilon", 1e-5))


@operator("GroupNormalization")
def group_normalization(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    """The parameters are one for each group before opset 21, one for each channel since."""
    xp, groups = namespace(x), node.get("num_groups")
    if node.opset < 21:
        scale, bias = (xp.repeat(p, x.shape[1] // groups) for p in (scale, bias))
    return dnn.group_norm(x, groups, *_like(x, scale, bias), eps=node.get("epsilon", 1e-5))


def _inner(node: Node, x: Any, *parameters: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The axes that are normalized, and the parameters in their shape where they broadcast to it."""
    xp, axis = namespace(x), node.get("axis", -1) % x.ndim
    shape = tuple(x.shape[axis:])
    return tuple(range(axis, x.ndim)), [None if p is None else xp.broadcast_to(p, shape) for p in _like(x, *parameters)]


@operator("LayerNormalization")
def layer_normalization(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    """With the mean and the reciprocal deviation, of extent 1 along the normalized axes."""
    axes, (weight, shift) = _inner(node, x, scale, bias)
    if not node.wants(1) and not node.wants(2):
        return dnn.layer_norm(x, weight, shift, axis=axes, eps=node.get("epsilon", 1e-5))
    y, mean, rstd = dnn.layer_norm(x, weight, shift, axis=axes, eps=node.get("epsilon", 1e-5), return_stats=True)
    shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
    dtype = np.float32 if node.get("stash_type", 1) == 1 else x.dtype
    return y, mean.reshape(shape).astype(dtype), rstd.reshape(shape).astype(dtype)


@operator("RMSNormalization")
def rms_normalization(node: Node, x: Any, scale: Any) -> Any:
    axes, (weight,) = _inner(node, x, scale)
    return dnn.rms_norm(x, weight, axis=axes, eps=node.get("epsilon", 1e-5))


@operator("LRN")
def local_response_normalization(node: Node, x: Any) -> Any:
    """For an even size, ONNX takes the odd channel behind and dnnarray before: the channels are reversed then."""
    xp, size = namespace(x), node.get("size")
    options = {"alpha": node.get("alpha", 1e-4), "beta": node.get("beta", 0.75), "k": node.get("bias", 1.0)}
    if size % 2:
        return dnn.local_response_norm(x, size, **options)
    return xp.flip(dnn.local_response_norm(xp.flip(x, axis=1), size, **options), axis=1)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Any) -> Any:
    xp, axes = namespace(x), tuple(node.get("axes", (0, 2, 3)))
    wide = widened(x)
    deviation = wide - xp.mean(wide, axis=axes, keepdims=True)
    return (deviation / (xp.sqrt(xp.mean(deviation * deviation, axis=axes, keepdims=True)) + 1e-9)).astype(x.dtype)
