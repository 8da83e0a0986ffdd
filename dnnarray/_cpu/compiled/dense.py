"""Between arrays of any strides and kernels, which take C-contiguous ones."""

from __future__ import annotations

from typing import Any

import numpy as np


def taken(array: np.ndarray, shape: tuple[int, ...] | None = None, order: tuple[int, ...] | None = None) -> np.ndarray:
    """An input, its axes permuted by `order` and then in this shape, C-contiguous and aligned: a view where that is possible, else a copy."""
    if order is not None:
        array = array.transpose(order)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        array = np.array(array, order="C")
    return array if shape is None else array.reshape(shape)


class Written:
    """Results for a kernel to write: those that do not lie C-contiguous (after `order`) are written beside and copied at the end.

    with Written(outputs, order) as (y, mean): ...
    """

    __slots__ = ("_copied", "_order", "_outputs")

    def __init__(self, outputs: tuple[Any, ...], order: tuple[int, ...] | None = None) -> None:
        self._outputs, self._order = outputs, order
        self._copied: list[tuple[np.ndarray, np.ndarray]] = []

    def __enter__(self) -> list[Any]:
        return [None if a is None else self._place(a if self._order is None else a.transpose(self._order)) for a in self._outputs]

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
