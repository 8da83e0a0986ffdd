"""Attention over whole arrays: the arguments of the public functions as the blocked passes take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.attention.blocks import Call, Reach
from dnnarray._cpu.attention.dropout import Dropout
from dnnarray._cpu.attention.passes import Gradients, Saved, backward, forward
from dnnarray._problems.attention import AttentionProblem

Outputs = tuple[Any, ...]


def bhsd(array: np.ndarray, layout: str) -> np.ndarray:
    """A view with the heads before the sequence."""
    return array if layout == "BHSD" else array.swapaxes(1, 2)


def call_of(
    problem: AttentionProblem,
    seed: int | None,
    first: int,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: Any,
    mask: Any,
    offset: Any,
    slopes: Any,
    sink: Any,
    q_lengths: Any,
    kv_lengths: Any,
) -> Call:
    """The arrays of the forward, in signature order, as one call; `first` is the offset into the random numbers."""
    rule, sizes = problem.rule, problem.sizes
    dropout = Dropout.of(problem, seed, first)
    reach = Reach.of(rule, sizes.queries, sizes.keys, offset, q_lengths, kv_lengths)
    q, k, v = (bhsd(a, problem.layout) for a in (q, k, v))
    return Call(rule, q, k, v, reach, bias=bias, mask=mask, alibi_slopes=slopes, sink=sink, dropout=dropout)


def attention(
    problem: AttentionProblem, outputs: Outputs, scratch: Any, *arrays: Any, seed: int | None, offset: int
) -> None:
    forward(call_of(problem, seed, offset, *arrays), bhsd(outputs[0], problem.layout), outputs[1])


def attention_backward(
    problem: AttentionProblem, outputs: Outputs, scratch: Any, grad: Any, *arrays: Any, seed: int | None, offset: int
) -> None:
    *inputs, y, lse = arrays
    call = call_of(problem, seed, offset, *inputs)
    grad_y, grad_lse = Saved.pair(grad)
    grad_y, y = (None if a is None else bhsd(a, problem.layout) for a in (grad_y, y))
    gradients = Gradients(*(None if a is None else bhsd(a, problem.layout) for a in outputs[:3]), *outputs[3:])
    backward(call, Saved.of(call, grad_y, grad_lse, y, lse, problem.wanted.deltas), gradients)
