"""Constants, ranges and random numbers."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import dtype_of, integers, namespace, number


@operator("Constant")
def constant(node: Node) -> Any:
    if (tensor := node.get("value", node.get("sparse_value"))) is not None:
        return node.place.constant(tensor)
    (name, value), *_ = node.attributes.items()
    dtype: Any = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }.get(name, object)
    return node.place.constant(np.asarray(value, dtype))


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(node: Node, shape: Any) -> Any:
    value = node.get("value", np.zeros(1, np.float32))
    return node.place.constant(np.full(integers(shape), value.reshape(-1)[0], value.dtype))


@operator("Range", host=(0, 1, 2))
def arange(node: Node, start: Any, limit: Any, delta: Any) -> Any:
    return node.place.constant(np.arange(number(start), number(limit), number(delta)).astype(start.dtype))


@operator("EyeLike")
def eye_like(node: Node, x: Any) -> Any:
    code = node.get("dtype")
    dtype = x.dtype if code is None else dtype_of(code)
    return namespace(x).eye(*x.shape, k=node.get("k", 0), dtype=dtype)


def generator(node: Node) -> np.random.Generator:
    """Random numbers that the seed of a node decides, if it has one."""
    seed = node.get("seed")
    return np.random.default_rng(secrets.randbits(64) if seed is None else int(np.float32(seed).view(np.uint32)))


def _random(node: Node, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    draw = generator(node)
    if node.op.startswith("RandomNormal"):
        numbers = draw.normal(node.get("mean", 0.0), node.get("scale", 1.0), shape)
    else:
        numbers = draw.uniform(node.get("low", 0.0), node.get("high", 1.0), shape)
    return node.place.constant(numbers.astype(dtype))


@operator("RandomNormal", "RandomUniform")
def random(node: Node) -> Any:
    return _random(node, tuple(node.get("shape")), dtype_of(node.get("dtype", 1)))


@operator("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node, x: Any) -> Any:
    code = node.get("dtype")
    return _random(node, tuple(x.shape), x.dtype if code is None else dtype_of(code))


@operator("Bernoulli")
def bernoulli(node: Node, x: Any) -> Any:
    code = node.get("dtype")
    drawn = namespace(x).asarray(generator(node).random(x.shape, np.float32))
    return (drawn < x).astype(x.dtype if code is None else dtype_of(code))


@operator("Multinomial")
def multinomial(node: Node, x: Any) -> Any:
    """Classes drawn by unnormalised log-probabilities: the largest of them after Gumbel noise is added."""
    xp, count = namespace(x), node.get("sample_size", 1)
    noise = xp.asarray(generator(node).gumbel(size=(x.shape[0], count, x.shape[1])))
    return xp.argmax(x[:, None, :] + noise, axis=-1).astype(dtype_of(node.get("dtype", 6)))
