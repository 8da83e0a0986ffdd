"""Settings and arguments of ``kernels/conv/parts_image.cu``: images as parts of half types; `parts` plans the launch."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.conv.arguments import FloatIn
from dnnarray._cuda.core.arguments import Arguments, Extent, Out, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._records import frozen

FoundOut = Annotated[Array | None, Pointer("unsigned", False)]
ScaleOut = Annotated[Array | None, Pointer("dnnarray::Scale", False)]


@frozen
class PartsImageConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_image.cu``."""

    element: str
    parts: int
    scale: int
    last: bool
    vector: int
    threads: int


@frozen
class PartsImageArguments(Arguments, restrict=True):
    """What ``kernels/conv/parts_image.cu`` is called with: `count` blocks have looked at x before."""

    x: FloatIn
    found: FoundOut
    scale: ScaleOut
    guess: ScaleOut
    parts: Out
    count: Extent
    batch: Extent
    channels: Extent
    pixels: Extent
    width: Extent
    plane: Extent
