"""`Planner`: the launches of a problem while they are being planned, with the scratch memory that passes results
between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dnnarray._cuda.core.arguments import Arguments
from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program, Step
from dnnarray._problems.base import Problem, tree_map
from dnnarray._records import changed, frozen
from dnnarray._spec import Spec

_LINE = 256  # bytes that parts of the scratch memory start at multiples of


@frozen
class Operand:
    """An array as launches take it: where it begins, its dtype and the steps in memory, in elements, along its axes."""

    array: Array
    dtype: np.dtype
    strides: tuple[int, ...] = ()

    def at(self, elements: int) -> Array:
        """The pointer to this element."""
        return Array(self.array.index, self.array.offset + elements * self.dtype.itemsize)

    def part(self, elements: int) -> Operand:
        """The array from this element on."""
        return Operand(self.at(elements), self.dtype, self.strides)


class Planner:
    """The launches of one problem.

    `inputs` and `outputs` are pointers, nested as in the problem and None where an array is absent.
    """

    def __init__(self, problem: Problem, aligned: bool) -> None:
        self.aligned = aligned
        self.plans: list[Step] = []
        self.workspace = 0
        self._top = self._count = 0
        self.inputs: tuple[Any, ...] = tree_map(self._place, problem.inputs)
        self.outputs: tuple[Any, ...] = tree_map(self._place, problem.outputs)

    def _place(self, spec: Spec) -> Array:
        self._count += 1
        return Array(self._count - 1)

    def take(self, dtype: np.dtype, elements: int) -> Operand:
        """Scratch memory for this many elements."""
        found = Operand(Array(self._count, self._top), dtype)
        self._top += round_up(max(elements * dtype.itemsize, 1), _LINE)
        self.workspace = max(self.workspace, self._top)
        return found

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """What is taken inside is free again behind it."""
        top = self._top
        yield
        self._top = top

    def add(self, *plans: Step | None) -> None:
        """The next launches; those that have nothing to do are left out."""
        self.plans += [p for p in plans if p is not None]

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Arguments, **how: Any) -> None:
        """The next launch, of a kernel that takes a struct; `how` are the other fields of `Plan`."""
        self.add(planned(kernel, grid, block, arguments, **how))

    def program(self, orders: tuple[tuple[int, ...] | None, ...] = ()) -> Program:
        """The launches so far, for inputs that lie in these orders. The method says how much scratch memory they need,
        aligned or not."""
        return Program(tuple(self.plans), orders)


def planned(kernel: Kernel, grid: tuple[int, int, int], block: int, arguments: Arguments, **how: Any) -> Plan:
    """A launch of a kernel that takes a struct, which the kernel is compiled with."""
    return Plan(changed(kernel, arguments=arguments.struct), grid, block, arguments, **how)
