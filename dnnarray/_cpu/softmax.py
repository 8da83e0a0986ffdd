"""Softmax and its relatives, on NumPy arrays: rows in blocks that stay in the cache, everything in the output's own
memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.blocks import BLOCK, borrow, give, long_rows, slabs
from dnnarray._cpu.sums import total
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._select import Method

Array = np.ndarray
_CALLS = 6  # of NumPy in one block


def _rows(axis: int, limit: int, *arrays: Array | None) -> Iterator[tuple[Any, ...]]:
    """Parts of each array, of about `limit` elements, with whole rows along their last axis, which is `axis` moved
    there."""
    first = arrays[0]
    assert first is not None
    if first.size == 0:
        return
    if first.ndim == 0:
        yield tuple(a if a is None else a.reshape(1) for a in arrays)
    elif first.size <= BLOCK:
        yield tuple(a if a is None else a.swapaxes(axis, -1) for a in arrays)  # many times cheaper than moveaxis
    else:
        moved = [a if a is None else np.moveaxis(a, axis, -1) for a in arrays]
        extent = first.shape[axis]
        for index in slabs(moved[0].shape[:-1], max(limit // extent, 1)):  # type: ignore[union-attr]
            yield tuple(a if a is None else a[index] for a in moved)


def _total(x: Array, factor: Array | None = None) -> Array:
    """The sum of each row of x, or of x * factor, as a column."""
    return total(x, (x.ndim - 1,), factor)


def _softmax_rows(x: Array, out: Array) -> None:
    np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= _total(out)


def _log_softmax_rows(x: Array, out: Array) -> None:
    np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    powers = np.exp(out, out=borrow(out))
    out -= np.log(_total(powers))
    give(powers)


def _softmin_rows(x: Array, out: Array) -> None:
    np.subtract(x.min(axis=-1, keepdims=True), x, out=out)
    np.exp(out, out=out)
    out /= _total(out)


def _softmax_gradient(grad: Array, y: Array, out: Array) -> None:
    np.subtract(grad, _total(grad, y), out=out)
    out *= y


def _log_softmax_gradient(grad: Array, y: Array, out: Array) -> None:
    sums = _total(grad)
    np.exp(y, out=out)
    out *= sums
    np.subtract(grad, out, out=out)


def _softmin_gradient(grad: Array, y: Array, out: Array) -> None:
    _softmax_gradient(grad, y, out)
    np.negative(out, out=out)


def _spread(block: Callable[..., None], axis: int, first: Array, *others: Array | None) -> None:
    """``block(*parts)`` for all parts of the arrays, spread over threads."""
    work = _CALLS * first.size
    threads.each(block, _rows(axis, threads.grain(first.size, BLOCK, work=work), first, *others), work=work)


def _forward(rows: Callable[[Array, Array], None]) -> Callable[..., None]:
    def run(problem: SoftmaxProblem, outputs: tuple[Array, ...], scratch: Any, x: Array) -> None:
        def block(part: Array, target: Array) -> None:
            with long_rows(part.shape[-1]):
                rows(part, target)

        _spread(block, problem.axis, x, outputs[0])

    return run


def _backward(
    rows: Callable[[Array, Array], None], gradient: Callable[[Array, Array, Array], None]
) -> Callable[..., None]:
    """The gradient from the output; without it, from the input, by computing the rows of the output again."""

    def run(
        problem: SoftmaxProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, y: Array | None
    ) -> None:
        def block(source: Array, part: Array, result: Array | None, target: Array) -> None:
            with long_rows(part.shape[-1]):
                if result is None:
                    result = np.empty_like(part)
                    rows(part, result)
                gradient(source, result, target)

        _spread(block, problem.axis, grad, x, y, outputs[0])

    return run


_SUMMARY = "rows in cache-sized blocks, shifted by their maximum"
_FORMULAS = {
    "softmax": (_softmax_rows, _softmax_gradient),
    "log_softmax": (_log_softmax_rows, _log_softmax_gradient),
    "softmin": (_softmin_rows, _softmin_gradient),
}


def _no_rows(problem: SoftmaxProblem, device: Any) -> str | None:
    """Why the compiled kernels cannot do it, or None."""
    x = problem.inputs[0]
    if x.ndim and x.size and problem.axis == x.ndim - 1 and x.strides is None:
        return None
    return "it takes C-contiguous arrays along their last axis"


def _entries(name: str, run: Callable[..., None], summary: str) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    numpy_entry = Method("blocked", run, summary, cost=compiled.numpy_cost(_CALLS))
    return numpy_entry, compiled.method(
        "rows", "softmax", name, "compiled: a row at a time, over all threads", accepts=_no_rows
    )


ALGORITHMS = {name: _entries(name, _forward(rows), _SUMMARY) for name, (rows, _) in _FORMULAS.items()} | {
    f"{name}_backward": _entries(f"{name}_backward", _backward(rows, gradient), "rows in cache-sized blocks")
    for name, (rows, gradient) in _FORMULAS.items()
}
