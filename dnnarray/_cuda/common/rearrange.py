"""A copy of an array from one memory order and dtype to another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

_THREADS = 128
_AXES = 5  # of struct Strided
Source = Annotated[Array, Pointer("Config::Source", True)]
Target = Annotated[Array, Pointer("Config::Target", False)]


@frozen
class RearrangeConfig(Config):
    """Compile-time settings of ``kernels/common/rearrange.cu``."""

    source: str
    target: str
    threads: int


@frozen
class RearrangeArguments(Arguments, restrict=True):
    """What ``kernels/common/rearrange.cu`` is called with."""

    source: Source
    target: Target
    size: Extent
    extents: Extents
    read: Extents
    written: Extents


def rearrange(source: Operand, target: Operand, shape: Sequence[int]) -> Plan | None:
    """A copy of an array of up to five axes, after those that lie alike in both are taken as one; strides are along the
    axes of `shape`."""
    size = math.prod(shape)
    if size == 0:
        return None
    axes = _merged(shape, source.strides, target.strides)
    assert len(axes) <= _AXES, axes
    extents, s, t = zip(*([(1, 0, 0)] * (_AXES - len(axes)) + axes), strict=True)
    config = RearrangeConfig(TYPES[source.dtype], TYPES[target.dtype], _THREADS)
    name = f"rearrange_{SHORT[source.dtype]}_to_{SHORT[target.dtype]}"
    arguments = RearrangeArguments(source.array, target.array, size, extents=extents[1:], read=s, written=t)
    kernel = Kernel("common/rearrange.cu", name, config)
    return planned(kernel, (blocks_of(size, _THREADS), 1, 1), _THREADS, arguments)


def too_many_axes(source: Operand, target: Operand, shape: Sequence[int]) -> bool:
    """Whether `rearrange` cannot do it."""
    return len(_merged(shape, source.strides, target.strides)) > _AXES


def _merged(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, step, step) of each axis, the target's slowest first; neighbours that lie alike in both count as one."""
    found: list[tuple[int, int, int]] = []
    for i in sorted((i for i, n in enumerate(shape) if n != 1), key=lambda i: -abs(target[i])):
        n, s, t = shape[i], source[i], target[i]
        if found and found[-1][1:] == (n * s, n * t):
            found[-1] = (found[-1][0] * n, s, t)
        else:
            found.append((n, s, t))
    return found
