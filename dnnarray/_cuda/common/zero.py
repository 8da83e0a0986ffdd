"""Zeros in device memory, which gradients by scattering begin with."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128
Bytes = Annotated[Array, Pointer("char", False)]


@frozen
class ZeroConfig(Config):
    """Compile-time settings of ``kernels/common/zero.cu``."""

    aligned: bool
    threads: int


@frozen
class ZeroArguments(Arguments):
    """What ``kernels/common/zero.cu`` is called with."""

    out: Bytes
    bytes: Extent


def zero(out: Array, nbytes: int, aligned: bool) -> Plan:
    """Zeros in `nbytes` of memory."""
    kernel = Kernel("common/zero.cu", "zero_aligned" if aligned else "zero", ZeroConfig(aligned, _THREADS))
    return planned(kernel, (blocks_of(nbytes, 16 * _THREADS), 1, 1), _THREADS, ZeroArguments(out, nbytes))
