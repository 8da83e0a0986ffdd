"""Arithmetic of extents and memory orders that every family's plans need."""

from __future__ import annotations

import numpy as np

from dnnarray._spec import FLOAT32, FLOAT64, Spec


def blocks_of(n: int, size: int) -> int:
    """How many blocks of `size` hold `n`: the quotient, rounded up."""
    return -(-n // size)


def round_up(n: int, multiple: int) -> int:
    """The next multiple from `n` on."""
    return -(-n // multiple) * multiple


def order_of(spec: Spec) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory; C order where the memory is not dense."""
    return spec.axis_order() or tuple(range(spec.ndim))


def arithmetic_of(dtype: np.dtype) -> np.dtype:
    """The dtype that values are computed and summed in: float64 for itself, float32 for all others."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def divisor(n: int) -> int:
    """The magic number and, above it, the shift of ``struct Divisor`` (``core/division.cuh``)."""
    shift = (n - 1).bit_length()
    return shift << 32 | (((1 << 32) * ((1 << shift) - n)) // n + 1)
