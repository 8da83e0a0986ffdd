"""The launches of a planned problem: what the driver reads is laid out once, and a call writes its pointers and goes."""

from __future__ import annotations

import operator
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api.driver import funcSetAttribute, launchKernel

from dnnarray._cuda.matmul import Product
from dnnarray._cuda.plan import Array, MatMul, Plan, Runtime

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED = 48 << 10  # bytes of shared memory a block gets without asking
_WORD = 8  # bytes
_thread = threading.local()


@dataclass(frozen=True)
class _Buffer:
    """Memory that the driver reads, and every step with what it is called with beside the stream."""

    words: Any
    steps: list[tuple[Callable[..., None], Any]]


class Launches:
    """The steps of a problem for one alignment of its memory.

    The driver takes for each launch the addresses of its argument values. All values of all launches lie in one buffer of 64-bit words: first the
    pointers of the call, then pointers with an offset, run-time options and constants, last the addresses. A call takes a buffer that no other thread
    is using, since the driver works with the interpreter's lock released.

    Attributes
    ----------
    copied : the inputs to be copied before the launches, each with its order of axes
    """

    __slots__ = ("_constants", "_free", "_functions", "_offsets", "_pack", "_plans", "_runtime", "_slots", "copied")

    def __init__(
        self, plans: tuple[Plan | MatMul, ...], functions: list[Any], count: int, copied: list[tuple[int, tuple[int, ...]]]
    ) -> None:
        self.copied = copied
        self._plans, self._functions = plans, functions  # the code stays loaded as long as it can be called
        self._pack = struct.Struct(f"={count}Q").pack_into
        kernels = [plan for plan in plans if isinstance(plan, Plan)]
        for plan, function in zip(kernels, functions, strict=True):
            if plan.shared_memory > _STATIC_SHARED:
                funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, plan.shared_memory)
        self._slots: dict[Any, int] = {Array(i): i for i in range(count)}
        for plan in kernels:
            for argument in plan.arguments:
                self._slots.setdefault(_key(argument), len(self._slots))
        self._offsets = [(slot, a.index, a.offset) for a, slot in self._slots.items() if isinstance(a, Array) and a.offset]
        self._runtime = [(slot, a.index) for a, slot in self._slots.items() if isinstance(a, Runtime)]
        self._constants = [(slot, word) for word, slot in self._slots.items() if isinstance(word, int)]
        self._free: list[_Buffer] = []

    def queue(self, pointers: list[int], runtime: tuple[Any, ...], stream: int) -> None:
        """Put all steps on the stream with this handle."""
        try:
            _thread.has_context  # noqa: B018
        except AttributeError:
            cupy.cuda.Device().use()  # a thread that never spoke to the device has no context yet
            _thread.has_context = True
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = self._buffer()
        words = buffer.words
        self._pack(words, 0, *pointers)
        for slot, index, offset in self._offsets:
            words[slot] = pointers[index] + offset
        for slot, index in self._runtime:
            words[slot] = runtime[index]
        for step, argument in buffer.steps:
            step(stream, argument, 0)
        self._free.append(buffer)

    def _buffer(self) -> _Buffer:
        kernels = [plan for plan in self._plans if isinstance(plan, Plan)]
        first = len(self._slots)
        memory = np.zeros(first + sum(len(plan.arguments) for plan in kernels), np.uint64)
        start = memory.ctypes.data
        for slot, word in self._constants:
            memory[slot] = word
        functions = iter(self._functions)
        steps: list[tuple[Callable[..., None], Any]] = []
        for plan in self._plans:
            if isinstance(plan, MatMul):
                steps.append((Product(plan), memory.data))
                continue
            slots = [self._slots[_key(argument)] for argument in plan.arguments]
            memory[first : first + len(slots)] = [start + _WORD * slot for slot in slots]
            steps.append((_launcher(plan, next(functions)), start + _WORD * first))
            first += len(slots)
        return _Buffer(memory.data, steps)


def _launcher(plan: Plan, function: Any) -> Callable[[int, int, int], None]:
    return partial(launchKernel, function.ptr, *plan.grid, plan.block, 1, 1, plan.shared_memory)


def _key(argument: Array | Runtime | int | float) -> Any:
    """What makes two arguments the same word: pointers and run-time options themselves, numbers as the 64 bits that the kernel reads."""
    if isinstance(argument, (Array, Runtime)):
        return argument
    if isinstance(argument, float):
        return int.from_bytes(struct.pack("<d", argument), "little")
    return operator.index(argument) & (2**64 - 1)
