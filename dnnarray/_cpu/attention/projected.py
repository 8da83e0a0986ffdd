"""Attention with its projections: matrix products around the blocked passes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.attention.blocks import Call, compute_dtype
from dnnarray._cpu.attention.dense import bhsd, call_of
from dnnarray._cpu.attention.passes import Gradients, Saved, backward, forward
from dnnarray._cpu.products import spread, whole
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.attention_projected import MultiHeadProblem

Outputs = tuple[Any, ...]


class _Layers(NamedTuple):
    """Inputs, weights and biases of the projections in the order q, k, v (o has no input), in the dtype of the
    arithmetic."""

    x: tuple[np.ndarray, ...]
    w: tuple[np.ndarray, ...]
    b: tuple[np.ndarray | None, ...]


def _layers(arrays: tuple[Any, ...]) -> _Layers:
    dtype = compute_dtype(arrays[0])
    wide: list[Any] = [None if a is None else a.astype(dtype, copy=False) for a in arrays[:11]]
    return _Layers(tuple(wide[:3]), tuple(wide[3:7]), tuple(wide[7:]))


def _project(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x @ weight.T + bias over the last axis, as one matrix product."""
    y = _product(_flat(x), weight.T)
    if bias is not None:
        y += bias
    return y.reshape(*x.shape[:2], len(weight))


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return spread(a, b, np.empty((len(a), b.shape[1]), a.dtype), whole)


def _flat(x: np.ndarray) -> np.ndarray:
    """(B, S, E) as (B S, E)."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


def _joined(y: np.ndarray) -> np.ndarray:
    """(B, S, H, D) as (B, S, H D)."""
    return y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])


def _core(problem: MultiHeadProblem, layers: _Layers, others: tuple[Any, ...], seed: int | None, offset: int) -> Call:
    """The attention between the projections."""
    projected = map(_project, layers.x, layers.w, layers.b)
    specs = problem.core.inputs[:3]
    q, k, v = (p.reshape(s.shape) for p, s in zip(projected, specs, strict=True))
    return call_of(problem.core, seed, offset, q, k, v, *others)


def _attended(call: Call, problem: MultiHeadProblem) -> tuple[np.ndarray, np.ndarray]:
    """y (B, S, H, D_v) and lse (B, H, S)."""
    s = problem.sizes
    y = np.empty((s.batch, s.queries, s.heads, s.value_width), call.dtype)
    lse = np.empty((s.batch, s.heads, s.queries), call.dtype)
    forward(call, bhsd(y, "BSHD"), lse)
    return y, lse


def multi_head(
    problem: MultiHeadProblem, outputs: Outputs, scratch: Any, *arrays: Any, seed: int | None, offset: int
) -> None:
    layers = _layers(arrays)
    y, _ = _attended(_core(problem, layers, arrays[11:], seed, offset), problem)
    outputs[0][...] = _project(_joined(y), layers.w[3], layers.b[3])


def multi_head_backward(
    problem: MultiHeadProblem,
    outputs: Outputs,
    scratch: Any,
    grad: np.ndarray,
    *arrays: Any,
    seed: int | None,
    offset: int,
) -> None:
    lengths = arrays[-2], arrays[-1], arrays[-1]
    layers = _layers(arrays)
    layers = layers._replace(x=tuple(_live(x, n) for x, n in zip(layers.x, lengths, strict=True)))
    call = _core(problem, layers, arrays[11:], seed, offset)
    y, lse = _attended(call, problem)
    grad = grad.astype(call.dtype, copy=False)
    rows = np.empty(y.shape, call.dtype) if problem.attends_back else None
    _layer_gradients(grad, _joined(y), layers.w[3], rows, outputs[6], outputs[10])
    if rows is None:
        return
    inner = [
        np.empty((*x.shape[:2], len(w)), call.dtype) if n in problem.heads else None
        for n, x, w in zip("qkv", layers.x, layers.w, strict=False)
    ]
    specs = problem.core.inputs[:3]
    heads = [None if g is None else bhsd(g.reshape(s.shape), "BSHD") for g, s in zip(inner, specs, strict=True)]
    saved = Saved(bhsd(y, "BSHD"), lse, bhsd(rows, "BSHD"), None)
    backward(call, saved, Gradients(*heads, *outputs[11:]))
    for i, (g, x, w) in enumerate(zip(inner, layers.x, layers.w, strict=False)):
        if g is not None:
            _layer_gradients(g, x, w, outputs[i], outputs[3 + i], outputs[7 + i])


def _layer_gradients(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray, grad_x: Any, grad_w: Any, grad_b: Any
) -> None:
    """Write the gradients of one projection that are wanted."""
    rows = _flat(grad)
    if grad_x is not None:
        grad_x[...] = _product(rows, weight).reshape(grad_x.shape)
    if grad_w is not None:
        grad_w[...] = _product(rows.T, _flat(x))
    if grad_b is not None:
        of_rows(rows, grad_b)


def _live(x: np.ndarray, lengths: Any) -> np.ndarray:
    """The rows of each sequence, zeros past its end: 0 times what padding holds, even NaN, must stay 0."""
    if lengths is None:
        return x
    inside = np.arange(x.shape[1]) < lengths[:, None]
    return np.where(inside[..., None], x, x.dtype.type(0))
