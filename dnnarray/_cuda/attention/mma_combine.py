"""The launch that makes one result of the shares that the parts of ``mma_decode`` leave."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cuda.attention.arguments import Rule, Strides
from dnnarray._cuda.core.arguments import Arguments, Extent, InArithmetic, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128
_WARP = 32


@frozen
class MmaCombineConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_combine.cu``."""

    element: str
    threads: int


@frozen(kw_only=True)
class MmaCombineArguments(Arguments, restrict=True):
    """What ``kernels/attention/mma_combine.cu`` is called with."""

    shares: InArithmetic
    lse_shares: InArithmetic
    y: Out
    lse: OutArithmetic
    rows: Extent
    splits: Extent
    value_width: Extent
    lse_batch: Extent
    lse_head: Extent
    y_strides: Strides
    rule: Rule


def launch(given: dict[str, Any], parts: dict[str, Any], rows: int, splits: int, dtype: np.dtype) -> Plan:
    """A warp for each of the `rows`; `given` are the arguments of the forward, `parts` the shares."""
    kernel = Kernel(
        "attention/mma_combine.cu",
        f"attention_mma_combine_{SHORT[dtype]}",
        MmaCombineConfig(TYPES[dtype], _THREADS),
        ("attention/rule",),
    )
    kept = {name: given[name] for name in ("y", "lse", "value_width", "lse_batch", "lse_head", "y_strides", "rule")}
    arguments = MmaCombineArguments(**kept, **parts, rows=rows, splits=splits)
    return planned(kernel, (blocks_of(rows, _THREADS // _WARP), 1, 1), _THREADS, arguments)
