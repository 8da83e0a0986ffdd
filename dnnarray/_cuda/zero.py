"""Zeros in device memory: the plan that gradients by scattering start with."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._records import frozen

_THREADS = 128


@frozen
class ZeroConfig(Config):
    """Compile-time settings of ``kernels/common/zero.cu``."""

    aligned: bool
    threads: int


def zero(out: Any, nbytes: int, aligned: bool) -> Plan:
    """Zeros in `nbytes` of memory."""
    kernel = Kernel("common/zero.cu", "zero_aligned" if aligned else "zero", ZeroConfig(aligned, _THREADS))
    return Plan(kernel, (-(-nbytes // (16 * _THREADS)), 1, 1), _THREADS, (out, nbytes))
