"""What the plans of spatial operations share: arrays by strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from dnnarray._cuda.core.arguments import Nested
from dnnarray._cuda.core.extents import divisor
from dnnarray._spec import FLOAT32, FLOAT64, Spec

THREADS = 128
RESIZE_MODES = {"nearest": 0, "nearest_exact": 1, "linear": 2, "cubic": 3, "area": 4}  # the numbers in resize.cuh
_LONG = 1 << 31  # numbers from which on are too large for a Divisor

SharesView = Annotated[Sequence[int], Nested("dnnarray::Shares", "11q")]  # of sampling.cuh


def order_of(spec: Spec) -> tuple[int, ...]:
    """The memory order of a dense array; C order, into which it is copied, for another."""
    return spec.axis_order() or tuple(range(spec.ndim))


def strides_of(spec: Spec) -> tuple[int, ...]:
    """Elements between neighbours along each axis, once the array lies in `order_of`."""
    order = order_of(spec)
    return tuple(math.prod(spec.shape[a] for a in order[order.index(axis) + 1 :]) for axis in range(spec.ndim))


def channels_last(spec: Spec) -> bool:
    """Whether the channels, axis 1, are what lies closest together in memory. In C order they are not, even if nothing
    but extents of 1 follow."""
    return spec.shape[1] > 1 and order_of(spec)[-1] == 1


def five_strides(spec: Spec, channels: int = 1) -> tuple[int, ...]:
    """Strides along batch, channels and three spatial axes; missing ones stand first and have the stride 0."""
    strides = strides_of(spec)
    space = [s for axis, s in enumerate(strides) if axis not in (0, channels)]
    return (strides[0], strides[channels], *(0,) * (3 - len(space)), *space)


def three_extents(space: tuple[int, ...]) -> tuple[int, ...]:
    """The extents of three spatial axes, 1 for those that are missing."""
    return (*(1,) * (3 - len(space)), *space)


def shares(batch: int, channels: int, per: int, space: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """The members of ``struct Shares`` (``sampling.cuh``), of which the first is the number of threads: a place and
    `per` channels to each."""
    o, p, q = three_extents(space)
    chunks, places = -(-channels // per), batch * o * p * q
    threads, parts = places * chunks, chunks if last else places
    divided = ((n, divisor(n) if threads < _LONG else 0) for n in (parts, o, p, q))
    return threads, channels, per, *(number for pair in divided for number in pair)


def arithmetic(spec: Spec) -> np.dtype:
    """The dtype that the kernels compute in."""
    return FLOAT64 if spec.dtype == FLOAT64 else FLOAT32


def grid_1d(n: int, threads: int = THREADS) -> tuple[int, int, int]:
    """Blocks for n threads."""
    return -(-n // threads), 1, 1
