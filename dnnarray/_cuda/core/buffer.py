"""`Buffer`: where the argument values of all launches of a problem lie in host memory, which the driver reads them from."""

from __future__ import annotations

import operator
import struct
from ctypes import addressof, c_char
from typing import Any

from dnnarray._cuda.core.plan import Array, Block, Parameter, Plan, Runtime, Step, TensorMap, block_of

WORD = 8  # bytes
_AS_THEY_ARE = frozenset((Array, Runtime, Block))
_LINE = 8  # words that structs with tensor maps begin at multiples of


class Buffer:
    """The layout, in words of 64 bits: values of one word (pointers of the call, run-time options, constants), structs, the addresses that tensor maps are
    encoded for, and for each launch the addresses of its arguments.

    All that no call writes is put together once; a call writes what is in `written` and moves the `maps`.

    Attributes
    ----------
    written : the words that a call writes, each with the pointer or run-time option
    maps : for each tensor map, the word with the address that it is encoded for, the word that it begins at, and its description
    """

    __slots__ = ("_content", "_end", "_launches", "_places", "maps", "written")

    def __init__(self, plans: tuple[Step, ...], count: int) -> None:
        self._content: list[bytes] = []
        self._end = 0
        self._places: dict[Any, int] = {}
        self.maps: list[tuple[int, int, TensorMap]] = []
        self.written: list[tuple[int, Array | Runtime]] = []
        kernels = [plan for plan in plans if isinstance(plan, Plan)]
        if len(kernels) < len(plans):  # steps by a library find the pointers of the call in the first words
            for index in range(count):
                self._place(Array(index))
        self._launches = [tuple([self._place(parameter) for parameter in plan.parameters]) for plan in kernels]
        self._content = [b"".join(self._content)]

    def _place(self, parameter: Parameter) -> int:
        """The word that a parameter begins at. Equal ones stand there once."""
        value: Any = parameter if type(parameter) in _AS_THEY_ARE else block_of(parameter) or _word(parameter)
        place = self._places.get(value)
        if place is None:
            place = self._places[value] = self._place_block(value) if isinstance(value, Block) else self._place_word(value)
        return place

    def _place_word(self, value: Array | Runtime | int) -> int:
        if isinstance(value, int):
            return self._add(value.to_bytes(WORD, "little"))
        self.written.append((self._end, value))
        return self._add(bytes(WORD))

    def _place_block(self, block: Block) -> int:
        encoded_for = [self._add(bytes(WORD)) for _ in block.maps]
        if block.maps:
            self._add(bytes(-self._end % _LINE * WORD))
        first = self._add(block.data + bytes(-len(block.data) % WORD))
        self.written += [(first + offset // WORD, value) for offset, value in block.words]
        self.maps += [(at, first + offset // WORD, described) for at, (offset, described) in zip(encoded_for, block.maps, strict=True)]
        return first

    def _add(self, content: bytes) -> int:
        """The word that these begin at."""
        first = self._end
        self._content.append(content)
        self._end += len(content) // WORD
        return first

    def make(self) -> tuple[memoryview, int, list[int]]:
        """Memory with all that no call writes, by words, its address, and for each launch the address of its arguments' addresses."""
        memory, start = _aligned(self._end + sum(map(len, self._launches)))
        (content,) = self._content
        memory[: len(content)] = content
        found, end = [], WORD * self._end
        for launch in self._launches:
            struct.pack_into(f"={len(launch)}Q", memory, end, *[start + WORD * place for place in launch])
            found.append(start + end)
            end += WORD * len(launch)
        return memory.cast("Q"), start, found


def _aligned(words: int) -> tuple[memoryview, int]:
    """Zeros that begin where a tensor map may, and their address."""
    whole = bytearray(WORD * (words + _LINE))
    start = addressof(c_char.from_buffer(whole))
    skipped = -start % (_LINE * WORD)
    return memoryview(whole)[skipped : skipped + WORD * words], start + skipped


def _word(parameter: Parameter) -> int:
    """A number as the 64 bits that the kernel reads, and null where there is no array."""
    if parameter is None:
        return 0
    if isinstance(parameter, float):
        return int.from_bytes(struct.pack("<d", parameter), "little")
    return operator.index(parameter) & (2**64 - 1)  # type: ignore[arg-type]
