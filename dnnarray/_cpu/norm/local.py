"""Local response normalization on NumPy arrays: sums over a window of channels, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.norm.blocks import boxes
from dnnarray._cpu.sums import Cascade
from dnnarray._problems.norm import LocalResponseProblem


def forward(problem: LocalResponseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray) -> None:
    (y,) = outputs
    for box in boxes(x, _free(problem, x)):
        y[box] = _over_power(x[box], _denominator(problem, x[box]), problem.beta)


def backward(
    problem: LocalResponseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, grad: np.ndarray, x: np.ndarray
) -> None:
    """With d the denominator before its power: grad * d**-beta - 2 alpha beta / size * x * (sum of grad * x * d**(-beta
    - 1)).

    The sum runs over the channels whose window holds this one: the window turned round.
    """
    (gx,) = outputs
    factor = 2 * problem.alpha * problem.beta / problem.size
    for box in boxes(x, _free(problem, x)):
        g, here = grad[box], x[box]
        d = _denominator(problem, here)
        scaled = _over_power(g, d, problem.beta)
        felt = _window_sum(scaled * here / d, problem.axis, problem.after, problem.before)
        np.multiply(felt, here, out=felt)
        np.subtract(scaled, factor * felt, out=gx[box])


def _free(problem: LocalResponseProblem, x: np.ndarray) -> tuple[int, ...]:
    return tuple(i for i in range(x.ndim) if i != problem.axis)


def _denominator(problem: LocalResponseProblem, x: np.ndarray) -> np.ndarray:
    d = _window_sum(x * x, problem.axis, problem.before, problem.after)
    np.multiply(d, problem.alpha / problem.size, out=d)
    return np.add(d, problem.k, out=d)


def _window_sum(a: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    """Each element with its `before` predecessors and `after` successors along `axis`; zeros outside."""
    out, terms = np.empty_like(a), np.moveaxis(a, axis, 0)
    before, after = min(before, len(terms) - 1), min(after, len(terms) - 1)
    sums = Cascade(np.moveaxis(out, axis, 0), before + 1 + after)
    sums.low[...] = terms
    for shift in range(1, before + 1):
        sums.step()
        sums.low[shift:] += terms[:-shift]
    for shift in range(1, after + 1):
        sums.step()
        sums.low[:-shift] += terms[shift:]
    sums.finish()
    return out


def _over_power(x: np.ndarray, d: np.ndarray, exponent: float) -> np.ndarray:
    """x / d ** exponent; the usual exponents by square roots, which are several times faster."""
    if exponent == 0.75:
        y = x / d
        y *= np.sqrt(np.sqrt(np.minimum(d, np.finfo(d.dtype).max)))  # 0 times the root of infinity would be NaN
        return y
    return x / (d if exponent == 1 else np.sqrt(d) if exponent == 0.5 else np.power(d, exponent))
