"""Lp norms of windows on NumPy arrays: the norm along one axis of the norms along the other, and the chain rule through
them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnarray._cpu.pool.windows import Plan, reduce_axis, resized, spread_axis
from dnnarray._cpu.sums import Cascade


def norm_windows(magnitude: np.ndarray, plans: Sequence[Plan], p: float) -> list[np.ndarray]:
    """The magnitudes, then the norms after each spatial axis; the last entry is the norm of each window."""
    stages = [magnitude]
    for plan in plans:
        stages.append(stages[-1] if plan.trivial else _norm_axis(stages[-1], plan, p))
    return stages


def _norm_axis(magnitude: np.ndarray, plan: Plan, p: float) -> np.ndarray:
    """Scaled by the largest element of each window, so that no power overflows where the norm itself does not."""
    largest = resized(magnitude, plan.axis, plan.outputs)
    reduce_axis(np.maximum, magnitude, plan, largest, 0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, largest.dtype.type(1))
    total = np.empty_like(largest)
    sums = Cascade(total, len(plan.taps))
    for outputs, inputs in plan.taps:
        share = magnitude[inputs] / scale[outputs]
        sums.low[outputs] += _power(share, p)
        sums.step()
    sums.finish()
    return np.multiply(scale, np.sqrt(total) if p == 2 else _power(total, 1 / p), out=total)


def norm_windows_gradient(grad: np.ndarray, magnitude: np.ndarray, plans: Sequence[Plan], p: float) -> np.ndarray:
    """Gradient with respect to the magnitudes."""
    stages = norm_windows(magnitude, plans, p)
    if p < 1 and not np.isfinite(stages[-1]).all():
        return _gradient_at_once(grad, magnitude, stages[-1], plans, p)
    walked = [i for i, plan in enumerate(plans) if not plan.trivial]
    for i in reversed(walked):
        grad = _gradient_axis(grad, stages[i], stages[i + 1], plans[i], p, of_norms=i > walked[0])
    return grad


def _gradient_at_once(
    grad: np.ndarray, magnitude: np.ndarray, norm: np.ndarray, plans: Sequence[Plan], p: float
) -> np.ndarray:
    """magnitude^(p - 1) times the sum of grad norm^(1 - p), where infinities of different signs must meet before
    anything else is done with them."""
    total = grad * norm ** (1 - p)
    for plan in reversed(plans):
        spread = resized(total, plan.axis, plan.extent)
        spread_axis(total, plan, spread)
        total = spread
    return np.where(magnitude == 0, magnitude, total * magnitude ** (p - 1))


def _gradient_axis(
    grad: np.ndarray, magnitude: np.ndarray, norm: np.ndarray, plan: Plan, p: float, of_norms: bool
) -> np.ndarray:
    """d norm / d magnitude = (magnitude / norm)^(p - 1), taken as 0 where the magnitude is 0 and p below 1.

    An infinite norm gives nothing to finite magnitudes (for p above 1) and NaN to infinite elements. Where the
    magnitudes are themselves norms, `of_norms`, an infinite one passes the gradient on, so that its own elements are
    told apart."""
    result = np.empty_like(magnitude)
    sums = Cascade(result, len(plan.taps))
    safe = np.where(norm == 0, norm.dtype.type(1), norm)
    infinite = of_norms and bool(np.isinf(norm).any())
    for outputs, inputs in plan.taps:
        share = magnitude[inputs] / safe[outputs]
        if infinite:
            share[magnitude[inputs] == safe[outputs]] = 1
        part = grad[outputs] * _power(share, p - 1)
        sums.low[inputs] += np.where(magnitude[inputs] == 0, 0, part) if p < 1 else part
        sums.step()
    sums.finish()
    return result


def _power(x: np.ndarray, exponent: float) -> np.ndarray:
    """x to a power, without pow where none is needed."""
    if exponent == 1:
        return x
    return x * x if exponent == 2 else x**exponent
