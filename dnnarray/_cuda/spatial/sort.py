"""A stable radix sort of integer keys as launches of a plan: the entries of each bucket behind one another, in their
own order."""

from __future__ import annotations

from typing import Annotated, Any

from dnnarray._cuda.core.arguments import Pointer
from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import Array, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.sort_count import SortCountArguments, SortCountConfig
from dnnarray._cuda.spatial.sort_move import SortMoveArguments, SortMoveConfig
from dnnarray._cuda.spatial.sort_starts import sort_starts
from dnnarray._records import frozen

_THREADS = 256
_BLOCKS = 528  # a few for each multiprocessor of the larger cards
_MOST_PARTS = 128  # each block reads the counts of all parts of its segment
_LEAST = 512  # keys of a part, at least
Unsigned32 = Annotated[Array, Pointer("unsigned", True)]


def _line(n: int) -> int:
    return round_up(n, 16)


@frozen
class Sort:
    """`segments` lists of `length` keys below `buckets`, each sorted for itself in the scratch memory from `start` on.

    A key that names no bucket, or the bucket `left_out`, goes behind all others as the key `buckets`.
    """

    segments: int
    length: int
    buckets: int
    scratch: int
    start: int = 0

    @property
    def _bits(self) -> tuple[int, int]:
        """Digits of a key and bits of a digit."""
        bits = max(self.buckets.bit_length(), 1)
        passes = -(-bits // 9)
        return passes, 9 if passes * 8 < bits else 8

    @property
    def _parts(self) -> int:
        wanted = -(-_BLOCKS // max(self.segments, 1))
        return max(1, min(wanted, _MOST_PARTS, -(-self.length // _LEAST)))

    def _list(self, i: int) -> Array:
        return Array(self.scratch, self.start + i * _line(4 * self.segments * self.length))

    @property
    def _table(self) -> int:
        return self.start + 4 * _line(4 * self.segments * self.length)

    @property
    def _starts(self) -> int:
        return self._table + _line(4 * self.segments * self._parts * (1 << self._bits[1]))

    @property
    def end(self) -> int:
        """Where its part of the scratch memory ends."""
        return self._starts + _line(4 * self.segments * (self.buckets + 1))

    @property
    def keys(self) -> Array:
        """The sorted keys, unsigned 32-bit integers."""
        return self._list(2 * (self._bits[0] % 2 == 0))

    @property
    def places(self) -> Array:
        """Where each sorted key stood in its segment."""
        return self._list(2 * (self._bits[0] % 2 == 0) + 1)

    @property
    def starts(self) -> Array:
        """Where each bucket starts, and behind them where the last one ends; per segment."""
        return Array(self.scratch, self._starts)

    def plans(self, keys: Array, kind: str, name: str, left_out: int = -1) -> list[Plan]:
        """The launches; `kind` is the C++ type of the keys and `name` what names it in a symbol."""
        (passes, bits), table = self._bits, Array(self.scratch, self._table)
        grid, found = (self.segments * self._parts, 1, 1), []
        source, places = keys, Array(self.scratch)
        for i in range(passes if self.length else 0):
            key, label = (kind, name) if i == 0 else ("unsigned", "next")
            sizes: dict[str, Any] = {
                "length": self.length,
                "parts": self._parts,
                "shift": i * bits,
                "buckets": self.buckets,
            }
            sizes["left_out"] = left_out if i == 0 else -1
            count = Kernel("spatial/sort_count.cu", f"sort_count_{label}_{bits}", SortCountConfig(key, bits, _THREADS))
            found.append(planned(count, grid, _THREADS, SortCountArguments(keys=source, table=table, **sizes)))
            config = SortMoveConfig(key, i == 0, bits, _THREADS)
            move = Kernel("spatial/sort_move.cu", f"sort_move_{label}_{bits}{'_first' * (i == 0)}", config)
            to = self._list(2 * (i % 2)), self._list(2 * (i % 2) + 1)
            moved = SortMoveArguments(
                keys=source, places=places, table=table, moved_keys=to[0], moved_places=to[1], **sizes
            )
            found.append(planned(move, grid, _THREADS, moved))
            source, places = to
        return [*found, sort_starts(self.keys, self.starts, self.segments, self.length, self.buckets)]
