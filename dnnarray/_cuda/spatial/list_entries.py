"""The entries of lists: what each target adds up, in its order."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._cuda.spatial.sort import Unsigned32
from dnnarray._records import frozen

Weights = Annotated[Array, Pointer("Config::Arithmetic", True)]
EntriesOut = Annotated[Array, Pointer("dnnarray::Entry<Config::Arithmetic>", False)]


@frozen
class ListEntriesConfig(Config):
    """Compile-time settings of ``kernels/spatial/list_entries.cu``."""

    arithmetic: str
    sliced: bool
    threads: int


@frozen(kw_only=True)
class ListEntriesArguments(Arguments, restrict=True):
    """What ``kernels/spatial/list_entries.cu`` is called with; `padded` is the number of targets as whole warps."""

    places: Unsigned32
    weights: Weights
    starts: Unsigned32
    entries: EntriesOut
    segments: Extent
    length: Extent
    targets: Extent
    padded: Extent
    taps: Extent
