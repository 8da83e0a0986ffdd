"""Between arrays of any strides and kernels, which take C-contiguous ones; drivers that have a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.kernel import Driver, Kernel, driver
from dnnarray._problems.base import leaves

Plan = tuple[
    Callable[..., None], tuple[int, ...] | None
]  # run(*arrays, *outputs), and the order in which their axes come to it


def taken(array: np.ndarray, shape: tuple[int, ...] | None = None, order: tuple[int, ...] | None = None) -> np.ndarray:
    """An input, its axes permuted by `order` and then in this shape, C-contiguous and aligned: a view where that is
    possible, else a copy."""
    if order is not None:
        array = array.transpose(order)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    return array if shape is None else array.reshape(shape)


def _order_of(array: np.ndarray, order: tuple[int, ...] | None) -> tuple[int, ...]:
    """An image's axes come in the order, those of its parameters as they are."""
    return order if order is not None and array.ndim == len(order) else tuple(range(array.ndim))


class Written:
    """Results for a kernel to write: those that do not lie C-contiguous (after `order`) are written beside and copied
    at the end.

    with Written(outputs, order) as (y, mean): ...
    """

    __slots__ = ("_copied", "_order", "_outputs")

    def __init__(self, outputs: tuple[Any, ...], order: tuple[int, ...] | None = None) -> None:
        self._outputs, self._order = outputs, order
        self._copied: list[tuple[np.ndarray, np.ndarray]] = []

    def __enter__(self) -> list[Any]:
        return [None if a is None else self._place(a.transpose(_order_of(a, self._order))) for a in self._outputs]

    def _place(self, array: np.ndarray) -> np.ndarray:
        if array.flags.carray:
            return array
        beside = np.empty(array.shape, array.dtype)
        self._copied.append((array, beside))
        return beside

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            for array, beside in self._copied:
                array[...] = beside


def planned(*kernels: Kernel) -> Callable[[Callable[[Any], Plan]], Driver]:
    """Make ``plan(problem)`` a driver of these kernels. What it gives runs on arrays whose axes come in an order, None
    for that of C, and which lie contiguous.

    A plan does what depends on the problem alone. Its `run` starts kernels and does no arithmetic by NumPy, so that
    nothing can warn. Where all arrays are known to lie as it takes them, `direct(problem)` is that `run`: behind a
    kernel that has emptied the caches, each of Python's steps on the way of a call waits for memory, 35 us of them
    together."""

    def mark(plan: Callable[[Any], Plan]) -> Driver:
        @driver(*kernels)
        def through(problem: Any, outputs: tuple[Any, ...], scratch: Any, *arrays: Any) -> None:
            run, order = plan(problem)
            with Written(outputs, order) as results:
                run(*[None if a is None else taken(a, None, _order_of(a, order)) for a in arrays], *results)

        through.direct = lambda problem: _direct(problem, *plan(problem))
        return through

    return mark


def _direct(problem: Any, run: Callable[..., None], order: tuple[int, ...] | None) -> Callable[..., None] | None:
    lies = all(spec is None or spec.strides is None for spec in (*leaves(problem.inputs), *problem.outputs))
    return run if lies and (order is None or order == tuple(range(len(order)))) else None
