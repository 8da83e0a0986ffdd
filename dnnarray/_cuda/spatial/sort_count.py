"""How often each digit of the keys occurs in each part: the first half of a pass of the radix sort."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._records import frozen

Key = Annotated[Array, Pointer("Config::Key", True)]
Counts = Annotated[Array, Pointer("unsigned", False)]


@frozen
class SortCountConfig(Config):
    """Compile-time settings of ``kernels/spatial/sort_count.cu``."""

    key: str
    bits: int
    threads: int


@frozen(kw_only=True)
class PassArguments(Arguments, restrict=True):
    """What both halves of a pass have in common: digits are taken from bit `shift` on, and keys that are `left_out` go
    behind all others."""

    length: Extent
    parts: Extent
    shift: Extent
    buckets: Extent
    left_out: Extent


@frozen(kw_only=True)
class SortCountArguments(PassArguments):
    """What ``kernels/spatial/sort_count.cu`` is called with."""

    keys: Key
    table: Counts
