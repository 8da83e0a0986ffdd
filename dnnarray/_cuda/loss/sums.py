"""Partial sums of numbers, or of the weights of labels, in a fixed order."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, OutArithmetic, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import Spec

_PART = 1 << 12  # numbers that a block should have at least
_BLOCKS = 512
_LABELS_PART = 1 << 10  # labels whose weights a block should sum up at least
_LABELS_BLOCKS = 128  # no more sums than a warp adds up in passing
Source = Annotated[Array, Pointer("Config::Source", True)]


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/loss/sums.cu``."""

    element: str
    source: str
    labels: bool
    threads: int


@frozen
class SumsArguments(Arguments, restrict=True):
    """What ``kernels/loss/sums.cu`` is called with; `part` is how many numbers a block sums up."""

    source: Source
    weight: In
    partial: OutArithmetic
    size: Extent
    part: Extent
    classes: Extent = 0
    ignore: Extent = 0


def blocks_for(n: int) -> int:
    """How many partial sums n numbers come to."""
    return max(1, min(_BLOCKS, blocks_of(n, _PART)))


def partial_sums(values: Array, n: int, dtype: np.dtype, out: Array) -> Plan:
    """`blocks_for(n)` sums of numbers of the arithmetic dtype."""
    kernel = Kernel("loss/sums.cu", f"loss_sums_{SHORT[dtype]}", SumsConfig(TYPES[dtype], TYPES[dtype], False, 256))
    blocks = blocks_for(n)
    return planned(
        kernel, (blocks, 1, 1), 256, SumsArguments(values, None, out, size=n, part=blocks_of(n, blocks)), early=True
    )


def label_blocks(n: int) -> int:
    """How many partial sums the weights of n labels come to."""
    return max(1, min(_LABELS_BLOCKS, blocks_of(n, _LABELS_PART)))


def label_weights(
    target: Array, spec: Spec, weight: Array | None, dtype: np.dtype, out: Array, classes: int, ignore: int
) -> Plan:
    """`label_blocks(rows)` sums of the weights of labels."""
    source, blocks = INTEGERS[spec.dtype], label_blocks(spec.size)
    threads = 256 if spec.size <= _LABELS_BLOCKS * _LABELS_PART else 1024
    name = f"loss_sums_{SHORT[dtype]}_labels_{spec.dtype.name}_{threads}"
    kernel = Kernel("loss/sums.cu", name, SumsConfig(TYPES[dtype], source, True, threads))
    arguments = SumsArguments(
        target, weight, out, size=spec.size, part=blocks_of(spec.size, blocks), classes=classes, ignore=ignore
    )
    return planned(kernel, (blocks, 1, 1), threads, arguments)
