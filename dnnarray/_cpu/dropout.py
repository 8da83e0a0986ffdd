"""Dropout, alone and fused, on NumPy arrays; the random numbers are in `philox`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, philox
from dnnarray._cpu.blocks import slabs
from dnnarray._cpu.sums import total
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._select import Method

Array = np.ndarray


def _masked(problem: DropoutProblem, seed: int, offset: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Parts of the arrays after the factor of each element: 0 or the scale. Elements are counted in C order."""
    arrays = tuple(np.atleast_1d(a) for a in arrays)
    scale = arrays[0].dtype.type(problem.scale)
    for index in slabs(arrays[0].shape):
        parts = tuple(a[index] for a in arrays)
        size = parts[0].size
        yield philox.bernoulli_keep(seed, offset, size, problem.p).reshape(parts[0].shape) * scale, *parts
        offset += size


def _dropout(
    problem: DropoutProblem, outputs: tuple[Array, ...], scratch: Any, x: Array, *, seed: int, offset: int
) -> None:
    for factor, part, target in _masked(problem, seed, offset, x, outputs[0]):
        np.multiply(part, factor, out=target)


def _dropout_backward(
    problem: DropoutProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, *, seed: int, offset: int
) -> None:
    _dropout(problem, outputs, scratch, grad, seed=seed, offset=offset)


def _bias_dropout_add(
    problem: DropoutProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    x: Array,
    bias: Array,
    residual: Array,
    *,
    seed: int,
    offset: int,
) -> None:
    bias = np.broadcast_to(bias, x.shape)
    for factor, part, shift, rest, target in _masked(problem, seed, offset, x, bias, residual, outputs[0]):
        np.add(part, shift, out=target)
        target *= factor
        target += rest


def _bias_dropout_add_backward(
    problem: DropoutProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    grad: Array,
    x: Array,
    bias: Array,
    residual: Array,
    *,
    seed: int,
    offset: int,
) -> None:
    backward_by(_dropout, problem, outputs, grad, seed, offset)


def backward_by(
    dropped: Callable[..., None], problem: DropoutProblem, outputs: tuple[Any, ...], grad: Array, seed: int, offset: int
) -> None:
    """The gradients of `bias_dropout_add`; ``dropped(problem, (out,), scratch, grad, ...)`` draws the mask."""
    out, bias_out, residual_out = outputs
    if out is not None or bias_out is not None:
        masked = np.empty_like(grad) if out is None else out
        dropped(problem, (masked,), None, grad, seed=seed, offset=offset)
        if bias_out is not None:
            bias_out[...] = total(masked, tuple(range(masked.ndim - 1))).reshape(bias_out.shape)
    if residual_out is not None:
        residual_out[...] = grad


_CALLS = 100  # ten rounds of Philox, and what is around them


def _entries(name: str, run: Callable[..., None], summary: str, in_place: bool = False) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    numpy_entry = Method("philox", run, summary, cost=compiled.numpy_cost(_CALLS), in_place=in_place)
    return numpy_entry, compiled.method(
        "vector_philox", "dropout", name, "compiled: the mask drawn in vectors, over all threads"
    )


_SUMMARY = "the mask drawn again in cache-sized blocks"
ALGORITHMS = {
    "dropout": _entries("dropout", _dropout, "the mask drawn in cache-sized blocks", in_place=True),
    "dropout_backward": _entries("dropout_backward", _dropout_backward, _SUMMARY, in_place=True),
    "bias_dropout_add": _entries("bias_dropout_add", _bias_dropout_add, "the mask drawn in cache-sized blocks"),
    "bias_dropout_add_backward": _entries("bias_dropout_add_backward", _bias_dropout_add_backward, _SUMMARY),
}
