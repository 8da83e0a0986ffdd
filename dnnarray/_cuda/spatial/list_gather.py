"""Each target adds up its list."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._cuda.spatial.sort import Unsigned32
from dnnarray._records import frozen

Entries = Annotated[Array, Pointer("dnnarray::Entry<dnnarray::arithmetic_t<Config::Element>>", True)]


@frozen
class ListGatherConfig(Config):
    """Compile-time settings of ``kernels/spatial/list_gather.cu``."""

    element: str
    channels_last: bool
    one_list: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class ListArguments(Arguments, restrict=True):
    """What both gathers have in common."""

    grad: In
    entries: Entries
    starts: Unsigned32
    dx: Out
    channels: Extent
    pixels: Extent
    length: Extent


@frozen(kw_only=True)
class ListGatherArguments(ListArguments):
    """What ``kernels/spatial/list_gather.cu`` is called with; `group` sources are a plane of grad."""

    batch: Extent
    group: Extent
