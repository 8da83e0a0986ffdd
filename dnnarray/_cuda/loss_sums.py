"""What the losses share: pointers of optional arrays, scratch memory in parts, sums in a fixed order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, FLOAT64, Spec

INTEGERS = {
    np.dtype(name): kind
    for name, kind in {
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long long",
        "uint8": "unsigned char",
        "uint16": "unsigned short",
        "uint32": "unsigned",
        "uint64": "unsigned long long",
    }.items()
}
"""Integer dtypes to C++ types."""

NOTHING = 0
"""The pointer of an array that is not there."""

_DIRECT = 1 << 16  # numbers that one block sums up by itself
_PART = 1 << 12  # numbers that a block should have at least
_BLOCKS = 512
_LABELS_PART, _LABELS_BLOCKS = (
    1 << 10,
    128,
)  # labels whose weights a block should sum up at least; no more sums than a warp adds up in passing


def pointers(problem: Problem) -> tuple[list[Any], list[Any], int]:
    """Arguments for the inputs and for the outputs (`NOTHING` where one is absent), and the index of the scratch memory."""
    count = itertools.count()
    inputs = [NOTHING if s is None else Array(next(count)) for s in problem.inputs]
    outputs = [NOTHING if s is None else Array(next(count)) for s in problem.outputs]
    return inputs, outputs, next(count)


def arithmetic(spec: Spec) -> np.dtype:
    """The dtype that the kernels compute in."""
    return FLOAT64 if spec.dtype == FLOAT64 else FLOAT32


class Scratch:
    """Hands out parts of the scratch memory, each aligned to 16 bytes."""

    def __init__(self, index: int = 0) -> None:
        self._index, self.size = index, 0

    def take(self, count: int, itemsize: int) -> Array:
        part = Array(self._index, self.size)
        self.size += -(-count * itemsize // 16) * 16
        return part


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/loss/sums.cu``."""

    element: str
    source: str
    labels: bool
    threads: int


@frozen
class MeanConfig(Config):
    """Compile-time settings of ``kernels/loss/mean.cu``."""

    element: str
    weighted: bool
    threads: int


def blocks_for(n: int) -> int:
    """How many partial sums n numbers come to."""
    return max(1, min(_BLOCKS, -(-n // _PART)))


def partial_sums(values: Any, n: int, dtype: np.dtype, out: Array) -> Plan:
    """`blocks_for(n)` sums of numbers of the arithmetic dtype."""
    kernel = Kernel("loss/sums.cu", f"loss_sums_{SHORT[dtype]}", SumsConfig(TYPES[dtype], TYPES[dtype], False, 256))
    blocks = blocks_for(n)
    return Plan(kernel, (blocks, 1, 1), 256, (values, NOTHING, out, n, -(-n // blocks), 0, 0), early=True)


def label_blocks(n: int) -> int:
    """How many partial sums the weights of n labels come to."""
    return max(1, min(_LABELS_BLOCKS, -(-n // _LABELS_PART)))


def label_weights(target: Any, spec: Spec, weight: Any, dtype: np.dtype, out: Array, classes: int, ignore: int) -> Plan:
    """`label_blocks(rows)` sums of the weights of labels."""
    source, blocks = INTEGERS[spec.dtype], label_blocks(spec.size)
    threads = 256 if spec.size <= _LABELS_BLOCKS * _LABELS_PART else 1024
    name = f"loss_sums_{SHORT[dtype]}_labels_{spec.dtype.name}_{threads}"
    kernel = Kernel("loss/sums.cu", name, SumsConfig(TYPES[dtype], source, True, threads))
    return Plan(kernel, (blocks, 1, 1), threads, (target, weight, out, spec.size, -(-spec.size // blocks), classes, ignore))


def mean(values: Any, weights: Any, n: int, divisor: float, dtype: np.dtype, out: Array) -> Plan:
    """The sum of n numbers, over that of `weights` if they are given, else over `divisor`."""
    weighted = weights != NOTHING
    threads = 128 if n <= 1024 else 1024
    kernel = Kernel(
        "loss/mean.cu", f"loss_mean_{SHORT[dtype]}{'_weighted' * weighted}_{threads}", MeanConfig(TYPES[dtype], weighted, threads)
    )
    return Plan(kernel, (1, 1, 1), threads, (values, weights, out, n, float(divisor)), early=True)


def reduced(
    values: Any, weights: Any, n: int, divisor: float, dtype: np.dtype, computed: np.dtype, scratch: Scratch, out: Array
) -> list[Plan]:
    """The launches that reduce the losses of n rows to `out`; long arrays in two steps."""
    if n <= _DIRECT:
        return [mean(values, weights, n, divisor, dtype, out)]
    blocks, plans, parts = blocks_for(n), [], []
    for source in (values, weights):
        if source == NOTHING:
            parts.append(source)
            continue
        part = scratch.take(blocks, computed.itemsize)
        parts.append(part)
        plans.append(partial_sums(source, n, computed, part))
    return [*plans, mean(parts[0], parts[1], blocks, divisor, dtype, out)]
