"""Products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import floating, namespace, widened


@operator("MatMul")
def matmul(node: Node, a: Any, b: Any) -> Any:
    """By `linear` where one matrix stands on the right, which is what a layer of a network is."""
    if floating(a) and b.ndim == 2 and a.ndim >= 2:
        return dnn.linear(a, b.T)
    return namespace(a, b).matmul(widened(a), widened(b)).astype(a.dtype)


@operator("Gemm")
def gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    a = a.T if node.get("transA", 0) else a
    weight = b if node.get("transB", 0) else b.T
    if not floating(a):
        product = namespace(a, b).matmul(a, weight.T)
        found = product if alpha == 1 else (alpha * product).astype(a.dtype)
        return found if c is None else (found + (c if beta == 1 else beta * c)).astype(a.dtype)
    if alpha == beta == 1 and c is not None and c.shape == weight.shape[:1]:
        return dnn.linear(a, weight, c)
    found = dnn.linear(a, weight)
    found = found if alpha == 1 else found * alpha
    return found if c is None or beta == 0 else (found + (c if beta == 1 else c * beta)).astype(a.dtype)


@operator("Einsum")
def einsum(node: Node, *inputs: Any) -> Any:
    xp = namespace(*inputs)
    return xp.einsum(node.get("equation").replace(" ", ""), *map(widened, inputs)).astype(inputs[0].dtype)


@operator("MatMulInteger")
def matmul_integer(node: Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """The zero points of `a` stand for its rows."""
    xp = namespace(a, b)
    left, right = a.astype(np.int32), b.astype(np.int32)
    if a_zero is not None:
        zero = a_zero.astype(np.int32)
        left = left - (zero[..., None] if zero.ndim == 1 and zero.size > 1 else zero)
    if b_zero is not None:
        right = right - b_zero.astype(np.int32)
    return xp.matmul(left, right)


@operator("Det")
def det(node: Node, x: Any) -> Any:
    xp = namespace(x)
    return xp.asarray(xp.linalg.det(widened(x))).astype(x.dtype)
