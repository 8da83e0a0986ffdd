"""Arrays in guarded memory: any order of the axes, gaps, negative and zero strides, any address, on the host or a
card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.guarded import beside_a_page

_GUARD = 64  # bytes on each side of what an array covers
_ALIGNED = 256  # what the address of an array without an offset is a multiple of
_UNTOUCHED = 0xA5


@dataclass(frozen=True)
class Layout:
    """How an array lies: strides in elements, bytes between an aligned address and its lowest element, and its
    flags."""

    strides: tuple[int, ...]
    offset: int = 0
    readonly: bool = False
    swapped: bool = False


def dense(shape: tuple[int, ...]) -> Layout:
    """C order at an aligned address."""
    return Layout(packed(shape, range(len(shape))))


def packed(shape: tuple[int, ...], order: Any) -> tuple[int, ...]:
    """Strides in elements with the axes in this order, the last one innermost."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(tuple(order)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """The lowest and the highest element that is touched, from the first one on; (0, -1) of nothing."""
    if 0 in shape:
        return 0, -1
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(e for e in ends if e < 0), sum(e for e in ends if e > 0)


class Host:
    """Memory of this machine; `around` are the bytes before and behind what an array covers."""

    name = "cpu"
    around = (_GUARD, _GUARD)

    def bytes(self, content: np.ndarray) -> Any:
        """These bytes at an aligned address."""
        raw = np.empty(len(content) + _ALIGNED, np.uint8)
        start = -raw.ctypes.data % _ALIGNED
        memory = raw[start : start + len(content)]
        memory[:] = content
        return memory

    def array(self, memory: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        return np.ndarray(shape, dtype, memory, offset, strides)

    def back(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def wait(self) -> None:
        """Until everything is done: nothing to wait for."""

    def is_dead(self) -> bool:
        """Whether nothing can be done there any more."""
        return False


_HOST = Host()


class Pages(Host):
    """Memory of this machine in which arrays end at, or begin behind, a page that must not be touched."""

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end
        self.around = (_GUARD, 0) if at_end else (0, _GUARD)

    def bytes(self, content: np.ndarray) -> Any:
        memory = beside_a_page(len(content), self._at_end)
        memory[:] = content
        return memory


class Card:
    """Memory of the current CUDA device."""

    name = "cuda"
    around = (_GUARD, _GUARD)

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def bytes(self, content: np.ndarray) -> Any:
        return self._cupy.asarray(content)

    def array(self, memory: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...]) -> Any:
        return self._cupy.ndarray(shape, dtype, memory.data + offset, strides=strides)

    def back(self, array: Any) -> np.ndarray:
        return self._cupy.asnumpy(array)

    def wait(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def is_dead(self) -> bool:
        """Whether an illegal access has ended the context: every call fails from then on."""
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return True
        return False


class Placed:
    """An array with guards around it.

    Attributes
    ----------
    array : the array
    memory : all bytes it lies in, the guards included
    """

    def __init__(self, place: Any, shape: tuple[int, ...], dtype: np.dtype, layout: Layout) -> None:
        self._place, self._shape, self._layout = place, shape, layout
        low, high = span(shape, layout.strides)
        self._dtype = dtype.newbyteorder() if layout.swapped else dtype
        before, behind = place.around
        if before and behind:
            before = -(-before // _ALIGNED) * _ALIGNED + layout.offset
        self._first = before - low * dtype.itemsize
        self._content = np.full(before + (high - low + 1) * dtype.itemsize + behind, _UNTOUCHED, np.uint8)
        self.memory: Any = None
        self.array: Any = None

    def _view(self, content: Any, place: Any) -> Any:
        strides = tuple(s * self._dtype.itemsize for s in self._layout.strides)
        return place.array(content, self._shape, self._dtype, self._first, strides)

    def holding(self, values: np.ndarray) -> Placed:
        """Itself with these values in it, made there."""
        self._view(self._content, _HOST)[...] = values
        return self.made()

    def made(self) -> Placed:
        """Itself, made there with what it holds now."""
        self.memory = self._place.bytes(self._content)
        self.array = self._view(self.memory, self._place)
        if self._layout.readonly:
            self.array.flags.writeable = False
        return self

    def unchanged(self) -> bool:
        """Whether no byte has changed, of the array and around it."""
        return bool((self._place.back(self.memory) == self._content).all())

    def guarded(self) -> bool:
        """Whether no byte around the elements has changed."""
        now = self._place.back(self.memory).copy()
        self._view(now, _HOST)[...] = self._view(self._content, _HOST)
        return bool((now == self._content).all())
