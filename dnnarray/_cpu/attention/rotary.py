"""Rotary embedding on NumPy arrays: pairs of features turned by the angle of their position."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.attention.dense import bhsd
from dnnarray._cpu.sums import total
from dnnarray._problems.attention_rotary import RotaryProblem


def _halves(x: np.ndarray, columns: int, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Views of the first and the second feature of each pair."""
    if interleaved:
        return x[..., 0 : 2 * columns : 2], x[..., 1 : 2 * columns : 2]
    return x[..., :columns], x[..., columns : 2 * columns]


def _per_head(table: np.ndarray) -> np.ndarray:
    """(S, D/2), (B, S, D/2) or (1, S, D/2) with an axis for the heads."""
    return table[None, None] if table.ndim == 2 else table[:, None]


def _turn(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool, out: np.ndarray) -> None:
    """out = x with each pair turned by +angle; features behind the pairs are copied."""
    columns = cos.shape[-1]
    (a, b), (out_a, out_b) = _halves(x, columns, interleaved), _halves(out, columns, interleaved)
    np.multiply(a, cos, out=out_a)
    out_a -= b * sin
    np.multiply(b, cos, out=out_b)
    out_b += a * sin
    out[..., 2 * columns :] = x[..., 2 * columns :]


def rotary(
    problem: RotaryProblem, outputs: tuple[Any, ...], scratch: Any, x: np.ndarray, cos: np.ndarray, sin: np.ndarray
) -> None:
    x, out = bhsd(x, problem.layout), bhsd(outputs[0], problem.layout)
    _turn(x, _per_head(cos), _per_head(sin), problem.interleaved, out)


def rotary_backward(
    problem: RotaryProblem,
    outputs: tuple[Any, ...],
    scratch: Any,
    grad: np.ndarray,
    x: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
) -> None:
    of_x, of_cos, of_sin = outputs
    grad, x = (bhsd(a, problem.layout) for a in (grad, x))
    if of_x is not None:
        _turn(grad, _per_head(cos), _per_head(-sin), problem.interleaved, bhsd(of_x, problem.layout))
    (a, b), (grad_a, grad_b) = (_halves(t, cos.shape[-1], problem.interleaved) for t in (x, grad))
    shared = (1,) if problem.own_tables else (0, 1)
    if of_cos is not None:
        of_cos[...] = total(grad_a * a + grad_b * b, shared).reshape(cos.shape)
    if of_sin is not None:
        of_sin[...] = total(grad_b * a - grad_a * b, shared).reshape(sin.shape)
