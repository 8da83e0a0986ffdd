"""The launch that moves rows from one dtype to another, with zeros past the end of each sequence, or writes a
constant."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from dnnarray._cuda.attention.arguments import AnyArray
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 256


@frozen
class PlaceRowsConfig(Config):
    """Compile-time settings of ``kernels/attention/place_rows.cu``."""

    source: str
    result: str
    threads: int


@frozen(kw_only=True)
class PlaceRowsArguments(Arguments, restrict=("x", "y")):
    """What ``kernels/attention/place_rows.cu`` is called with; the rows of `x` are `step` elements apart, and a
    constant is written where it is absent."""

    x: Annotated[Array | None, Pointer("Config::Source", True)]
    y: Annotated[Array | None, Pointer("Config::Result", False)]
    size: Extent
    width: Extent
    step: Extent
    constant: Double
    lengths: AnyArray
    lengths_kind: Extent
    sequence: Extent


def launch(source: np.dtype, result: np.dtype, arguments: PlaceRowsArguments) -> Plan:
    config = PlaceRowsConfig(TYPES[source], TYPES[result], _THREADS)
    kernel = Kernel("attention/place_rows.cu", f"place_rows_{SHORT[source]}_{SHORT[result]}", config)
    return planned(kernel, (blocks_of(arguments.size, _THREADS), 1, 1), _THREADS, arguments)
