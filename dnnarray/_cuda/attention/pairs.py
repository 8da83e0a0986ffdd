"""What the launches of the rotary embedding share: the memory orders, the pairs of a thread, and results that are
brought to another order."""

from __future__ import annotations

from dnnarray._cuda.core.plan import TYPES, vector_length
from dnnarray._problems.attention_rotary import RotaryProblem
from dnnarray._spec import Spec

LONG = 1 << 31  # indices from which on one is too large for a Divisor


def order_of(spec: Spec) -> tuple[int, ...]:
    """The memory order of an array whose last axis runs fastest; C order, into which it is copied, for another."""
    order = spec.axis_order()
    return order if order and order[-1] == spec.ndim - 1 else tuple(range(spec.ndim))


def length(problem: RotaryProblem, aligned: bool) -> tuple[int, bool]:
    """Pairs of a thread, and whether features side by side are moved as one vector."""
    x, cos, _ = problem.inputs[-3:]
    if not problem.interleaved:
        return vector_length(x.dtype, aligned, x.shape[3], cos.shape[-1]), True
    features = vector_length(x.dtype, aligned, x.shape[3], 2 * cos.shape[-1])
    return max(features // 2, 1), features > 1


def copied(problem: RotaryProblem, aligned: bool) -> int:
    """Features that a thread copies of those that do not turn."""
    pairs, wide = length(problem, aligned)
    return pairs if not problem.interleaved else 2 * pairs if wide else 1


def scattered(problem: RotaryProblem) -> bool:
    """Whether the features of x, and so of the result, do not run fastest."""
    x = problem.inputs[-3]
    return x.axis_order() not in (None, order_of(x))


def types(problem: RotaryProblem) -> tuple[str, str, str]:
    """The types of x, cos and sin."""
    x, cos, sin = problem.inputs[-3:]
    return TYPES[x.dtype], TYPES[cos.dtype], TYPES[sin.dtype]
