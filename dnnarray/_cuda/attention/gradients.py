"""What the algorithms of attention's gradients share: the scratch memory, what the forward left or is computed again,
and the order of launches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnnarray._cuda.attention import delta, sink_backward, tiled_bias
from dnnarray._cuda.attention.shared import Arrays, Launch, Place, Saved, Strides, arrays_of
from dnnarray._cuda.core.extents import arithmetic_of, round_up
from dnnarray._cuda.core.plan import Array, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

_LINE = 256  # bytes that parts of the scratch memory start at multiples of

Launches = Callable[[AttentionProblem, Arrays, Saved, bool], list[Plan]]
"""How an algorithm plans the gradients of q, k and v that are wanted, from memory that is aligned or not."""


@frozen
class _Scratch:
    """Where in the scratch memory what lies, in bytes."""

    again: bool  # y and lse are computed again
    lse: int
    delta: int
    bias: int
    end: int

    @classmethod
    def of(cls, problem: AttentionProblem) -> _Scratch:
        q, output, lse = problem.inputs[1], problem.inputs[-2], problem.inputs[-1]
        item = arithmetic_of(q.dtype).itemsize
        rows = math.prod(q.shape[:-1])
        again = lse is None or (output is None and problem.wanted.deltas)
        at_lse = round_up(rows * problem.sizes.value_width * item, _LINE) if again else 0
        at_delta = at_lse + (round_up(rows * item, _LINE) if again else 0)
        at_bias = at_delta + round_up(rows * item, _LINE)
        return cls(
            again, at_lse, at_delta, at_bias, max(at_bias + round_up(tiled_bias.scratch_bytes(problem), _LINE), _LINE)
        )


def workspace(problem: AttentionProblem) -> int:
    """Bytes of scratch memory: delta, and what the forward did not leave."""
    return _Scratch.of(problem).end


def _again(problem: AttentionProblem, dtype: np.dtype) -> Spec:
    """The result of the forward in the dtype of the arithmetic, in C order."""
    q = problem.inputs[1]
    return Spec((*q.shape[:-1], problem.sizes.value_width), dtype)


def _c_strides(spec: Spec, layout: str) -> Strides:
    steps = spec.c_strides
    if spec.ndim == 3:
        return 0, steps[1], steps[0], steps[2]
    return (steps[0], steps[1], steps[2], steps[3]) if layout == "BHSD" else (steps[0], steps[2], steps[1], steps[3])


def saved_of(problem: AttentionProblem, arrays: Arrays) -> Saved:
    """Where y, lse and delta are found."""
    scratch, base, shift = _Scratch.of(problem), arrays.scratch, arrays.shift
    of_delta, parts = Array(base, shift + scratch.delta), Array(base, shift + scratch.bias)
    if not scratch.again:
        return Saved(arrays["output"], arrays.spec("q").dtype, arrays["lse"].pointer, of_delta, parts)
    dtype = arithmetic_of(problem.inputs[1].dtype)
    spec = _again(problem, dtype)
    y = Place(Array(base, shift), spec, _c_strides(spec, problem.layout))
    return Saved(y, dtype, Array(base, shift + scratch.lse), of_delta, parts)


def backward(problem: AttentionProblem, aligned: bool, forward: Launch, gradients: Launches) -> Program:
    """What the forward did not leave, then all gradients."""
    arrays = arrays_of(problem)
    saved = saved_of(problem, arrays)
    again = _Scratch.of(problem).again and _queries(arrays)
    first = [forward(problem, arrays, saved.y, saved.lse, saved.result, aligned)] if again else []
    return Program((*first, *after_forward(problem, arrays, saved, aligned, gradients)), arrays.orders)


def after_forward(
    problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool, gradients: Launches
) -> list[Plan]:
    """Delta, where a gradient takes it, then each gradient that is wanted."""
    first = [delta.launch(problem, arrays, saved, aligned)] if problem.wanted.deltas and _queries(arrays) else []
    last = [*tiled_bias.launches(problem, arrays, saved, aligned), *sink_backward.launches(problem, arrays, saved)]
    return [*first, *gradients(problem, arrays, saved, aligned), *last]


def _queries(arrays: Arrays) -> int:
    """Rows of q of all heads."""
    return math.prod(arrays.spec("q").shape[:-1])
