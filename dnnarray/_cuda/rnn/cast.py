"""Elements in another type and other strides, or zeros."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, Extents
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.network import THREADS, Block, Launches, Lengths, Source, Target, blocks
from dnnarray._records import frozen


@frozen
class CastConfig(Config):
    """Compile-time settings of ``kernels/rnn/cast.cu``."""

    source: str
    target: str
    threads: int


@frozen
class CastArguments(Arguments, restrict=True):
    """What ``kernels/rnn/cast.cu`` is called with: the extents of the faster axes, and the strides of all three."""

    x: Source
    y: Target
    lengths: Lengths
    size: Extent
    extents: Extents
    read: Extents
    written: Extents


def cast(
    source: Block | None,
    target: Block,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    out: tuple[int, ...],
    lengths: Array | None = None,
) -> Launches:
    """Elements of `source` (zeros where it is None) in the type and order of `target`: three axes with their
    strides."""
    n = math.prod(extents)
    if n == 0:
        return []
    kind = target.dtype if source is None else source.dtype
    config = CastConfig(TYPES[kind], TYPES[target.dtype], THREADS)
    kernel = Kernel("rnn/cast.cu", f"rnn_cast_{SHORT[kind]}_{SHORT[target.dtype]}", config)
    pointer = None if source is None else source.array
    arguments = CastArguments(pointer, target.array, lengths, size=n, extents=extents[1:], read=strides, written=out)
    return [planned(kernel, blocks(n), THREADS, arguments)]


def zeros(target: Block, n: int) -> Launches:
    return cast(None, target, (1, 1, n), (0, 0, 1), (0, 0, 1))


def flat_cast(source: Block, target: Block, n: int) -> Launches:
    return cast(source, target, (1, 1, n), (0, 0, 1), (0, 0, 1))
