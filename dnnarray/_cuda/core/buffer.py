"""`Buffer`: where the argument values of all launches of a problem lie in host memory, which the driver reads them
from."""

from __future__ import annotations

import operator
import struct
from typing import Any

import numpy as np

from dnnarray._cuda.core.extents import blocks_of, round_up
from dnnarray._cuda.core.plan import Array, Block, Parameter, Plan, Runtime, Step, TensorMap, block_of

_WORD = 8  # bytes
_LINE = 8  # words that structs with tensor maps begin at multiples of


class Buffer:
    """The layout, in words of 64 bits: values of one word (pointers of the call, run-time options, constants), the
    addresses that tensor maps are encoded for, structs, and for each launch the addresses of its arguments.

    A struct is filled when memory is made; a call writes what is in `written` and moves the `maps`.

    Attributes
    ----------
    written : the words that a call writes, each with the pointer or run-time option
    maps : for each tensor map, the word with the address that it is encoded for, the word that it begins at, and its
        description
    """

    __slots__ = ("_blocks", "_end", "_launches", "_words", "maps", "written")

    def __init__(self, plans: tuple[Step, ...], count: int) -> None:
        self._launches = [
            [block_of(p) or _word(p) for p in plan.parameters] for plan in plans if isinstance(plan, Plan)
        ]
        given = [value for launch in self._launches for value in launch]
        by_library = len(self._launches) < len(plans)  # such steps find the pointers of the call in the first words
        alone = [*(map(Array, range(count)) if by_library else ()), *(v for v in given if not isinstance(v, Block))]
        self._words: dict[Any, int] = {value: word for word, value in enumerate(dict.fromkeys(alone))}
        blocks = list(dict.fromkeys(v for v in given if isinstance(v, Block)))
        maps = [(block, offset, described) for block in blocks for offset, described in block.maps]
        self._place(blocks, len(self._words) + len(maps))
        self.maps: list[tuple[int, int, TensorMap]] = [
            (len(self._words) + i, self._blocks[block] + offset // _WORD, described)
            for i, (block, offset, described) in enumerate(maps)
        ]
        self.written: list[tuple[int, Array | Runtime]] = [
            (w, v) for v, w in self._words.items() if not isinstance(v, int)
        ]
        self.written += [
            (first + offset // _WORD, v) for block, first in self._blocks.items() for offset, v in block.words
        ]

    def _place(self, blocks: list[Block], end: int) -> None:
        """Put the structs behind the first `end` words."""
        self._blocks: dict[Block, int] = {}
        for block in blocks:
            self._blocks[block] = first = round_up(end, _LINE) if block.maps else end
            end = first + blocks_of(len(block.data), _WORD)
        self._end = end

    def make(self) -> tuple[np.ndarray, list[int]]:
        """Memory with all that no call writes, and for each launch the address of its arguments' addresses."""
        memory = _aligned(self._end + sum(map(len, self._launches)))
        start = memory.ctypes.data
        for value, word in self._words.items():
            if isinstance(value, int):
                memory[word] = value
        for block, first in self._blocks.items():
            memory[first:].view(np.uint8)[: len(block.data)] = np.frombuffer(block.data, np.uint8)
        places, found = self._words | self._blocks, []
        end = self._end
        for launch in self._launches:
            memory[end : end + len(launch)] = [start + _WORD * places[value] for value in launch]
            found.append(start + _WORD * end)
            end += len(launch)
        return memory, found


def _aligned(words: int) -> np.ndarray:
    """Zeros that begin where a tensor map may."""
    memory = np.zeros(words + _LINE, np.uint64)
    skipped = -memory.ctypes.data % (_LINE * _WORD) // _WORD
    return memory[skipped : skipped + words]


def _word(parameter: Parameter) -> Any:
    """What makes two values of one word the same: pointers and run-time options themselves (null where there is none),
    numbers as the 64 bits that the kernel reads."""
    if isinstance(parameter, (Array, Runtime)):
        return parameter
    if parameter is None:
        return 0
    if isinstance(parameter, float):
        return int.from_bytes(struct.pack("<d", parameter), "little")
    return operator.index(parameter) & (2**64 - 1)  # type: ignore[arg-type]
