"""What the spatial kernels share: arrays by strides, and sums of scattered contributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT32, FLOAT64, HALF, Spec

THREADS = 128
RESIZE_MODES = {"nearest": 0, "nearest_exact": 1, "linear": 2, "cubic": 3, "area": 4}  # the numbers in resize.cuh
_LONG = 1 << 31  # numbers from which on are too large for a Divisor
NOTHING = 0  # the pointer of an array that is not there


def order_of(spec: Spec) -> tuple[int, ...]:
    """The memory order of a dense array; C order, into which it is copied, for another."""
    return spec.axis_order() or tuple(range(spec.ndim))


def strides_of(spec: Spec) -> tuple[int, ...]:
    """Elements between neighbours along each axis, once the array lies in `order_of`."""
    order = order_of(spec)
    return tuple(math.prod(spec.shape[a] for a in order[order.index(axis) + 1 :]) for axis in range(spec.ndim))


def channels_last(spec: Spec) -> bool:
    """Whether the channels, axis 1, are what lies closest together in memory. In C order they are not, even if nothing but extents of 1 follow."""
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
    """The arguments of DNNARRAY_SHARES, of which the first is the number of threads: a place and `per` channels to each."""
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


# --- scattered sums -------------------------------------------------------------------------------------------------------


@frozen
class LargestConfig(Config):
    """Compile-time settings of ``kernels/spatial/scatter_largest.cu``."""

    element: str
    threads: int


@frozen
class FinishConfig(Config):
    """Compile-time settings of ``kernels/spatial/scatter_finish.cu``."""

    element: str
    fixed: bool
    threads: int


def _up(n: int) -> int:
    return -(-n // 16) * 16


def float_bytes(target: Spec) -> int:
    """Scratch for floating sums: half types are summed up in float32, others where they shall be."""
    return _up(target.size * 4) if target.dtype in HALF else 0


def fixed_bytes(target: Spec) -> int:
    """Scratch for the largest gradient, 64-bit sums and a byte of flags for each."""
    return 16 + _up(target.size * 8) + _up(target.size)


def scattered(
    target: Spec, out: Array, scratch: int, fixed: bool, grad: Spec, incoming: Array, terms: int, aligned: bool, plan: Callable[..., Plan]
) -> list[Plan]:
    """The launches around a scattering one, ``plan(sums, flags, largest, bits)``: zeros before, rounding after.

    No more than `terms` contributions, none larger than the largest of `grad`, meet in an element.
    """
    size, bits = target.size, max(terms, 1).bit_length()
    largest: Any = NOTHING
    flags: Any = NOTHING
    if fixed:
        largest, sums = Array(scratch), Array(scratch, 16)
        flags = Array(scratch, 16 + _up(size * 8))
        kernel = Kernel("spatial/scatter_largest.cu", f"scatter_largest_{SHORT[grad.dtype]}", LargestConfig(TYPES[grad.dtype], 256))
        blocks = max(1, min(1056, -(-grad.size // 2048)))
        before = [zero(largest, fixed_bytes(target), aligned), Plan(kernel, (blocks, 1, 1), 256, (incoming, largest, grad.size))]
    elif target.dtype in HALF:
        sums = Array(scratch)
        before = [zero(sums, float_bytes(target), aligned)]
    else:
        return [zero(out, target.nbytes, aligned), plan(out, NOTHING, NOTHING, 0)]
    kernel = Kernel(
        "spatial/scatter_finish.cu",
        f"scatter_finish_{SHORT[target.dtype]}{'_fixed' * fixed}",
        FinishConfig(TYPES[target.dtype], fixed, THREADS),
    )
    after = Plan(kernel, grid_1d(size), THREADS, (sums, flags, largest, out, size, bits))
    return [*before, plan(sums, flags, largest, bits), after]


def scattering(
    run: Callable[..., Any], image_cost: Callable[[int, Any, Device], Cost], rejects: Callable[[Any, Device], str | None]
) -> tuple[Method, Method]:
    """The methods whose ``run(fixed, problem, device, aligned)`` scatters sums into the image that is its first output; ``image_cost(bytes, problem, device)``
    knows the scratch memory."""

    def method(name: str, fixed: bool, summary: str, size: Callable[[Spec], int]) -> Method:
        def scratch(problem: Any) -> int:
            return 0 if problem.outputs[0] is None else size(problem.outputs[0])

        return Method(
            name,
            partial(run, fixed),
            summary,
            rejects=rejects,
            workspace=scratch,
            cost=lambda problem, device: image_cost(scratch(problem), problem, device),
            deterministic=fixed,
        )

    return (
        method("atomic", False, "scattered sums of floating numbers", float_bytes),
        method("fixed_point", True, "scattered sums of 64-bit integers, which have no order", fixed_bytes),
    )
