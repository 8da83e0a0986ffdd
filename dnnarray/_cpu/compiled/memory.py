"""Addresses and aligned memory for kernels that work on them."""

from __future__ import annotations

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and the longest vector


def address(array: np.ndarray) -> int:
    """Where the first element of an array lies."""
    return array.__array_interface__["data"][0]


def aligned(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose rows begin at cache lines; they may be a little longer than asked for."""
    line = ALIGNMENT // dtype.itemsize
    columns = -(-columns // line) * line
    memory = np.empty(rows * columns + line, dtype)
    first = -address(memory) % ALIGNMENT // dtype.itemsize
    return memory[first : first + rows * columns].reshape(rows, columns)
