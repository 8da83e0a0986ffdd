"""What the plans share whose kernels still take their arguments by position: pointers of optional arrays, and scratch
memory in parts."""

from __future__ import annotations

import itertools
from typing import Any

from dnnarray._cuda.core.plan import Array
from dnnarray._problems.base import Problem

NOTHING = None
"""The pointer of an array that is not there."""


def pointers(problem: Problem) -> tuple[list[Any], list[Any], int]:
    """Arguments for the inputs and for the outputs (`NOTHING` where one is absent), and the index of the scratch
    memory."""
    count = itertools.count()
    inputs = [NOTHING if s is None else Array(next(count)) for s in problem.inputs]
    outputs = [NOTHING if s is None else Array(next(count)) for s in problem.outputs]
    return inputs, outputs, next(count)


class Scratch:
    """Hands out parts of the scratch memory, each aligned to 16 bytes."""

    def __init__(self, index: int = 0) -> None:
        self._index, self.size = index, 0

    def take(self, count: int, itemsize: int) -> Array:
        part = Array(self._index, self.size)
        self.size += -(-count * itemsize // 16) * 16
        return part
