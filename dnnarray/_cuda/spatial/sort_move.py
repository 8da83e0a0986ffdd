"""Keys and their places, stably ordered by one digit: the second half of a pass of the radix sort."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._cuda.spatial.sort_count import Counts, Key, PassArguments
from dnnarray._records import frozen

Places = Annotated[Array, Pointer("unsigned", True)]


@frozen
class SortMoveConfig(Config):
    """Compile-time settings of ``kernels/spatial/sort_move.cu``."""

    key: str
    first: bool
    bits: int
    threads: int


@frozen(kw_only=True)
class SortMoveArguments(PassArguments):
    """What ``kernels/spatial/sort_move.cu`` is called with."""

    keys: Key
    places: Places
    table: Places
    moved_keys: Counts
    moved_places: Counts
