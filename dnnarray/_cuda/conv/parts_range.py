"""Settings and arguments of ``kernels/conv/parts_range.cu``: the largest magnitude of an array; `parts` plans the launch."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.conv.arguments import FloatIn
from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._records import frozen

FoundOut = Annotated[Array | None, Pointer("unsigned", False)]


@frozen
class PartsRangeConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_range.cu``."""

    vector: int
    threads: int


@frozen
class PartsRangeArguments(Arguments, restrict=True):
    """What ``kernels/conv/parts_range.cu`` is called with."""

    x: FloatIn
    found: FoundOut
    size: Extent
