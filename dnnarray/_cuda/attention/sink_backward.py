"""The launch that writes the gradient of the sinks."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.attention.delta import queries_of
from dnnarray._cuda.attention.shared import Arrays, Saved, lse_strides
from dnnarray._cuda.core.arguments import Arguments, Extent, InArithmetic, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen

_THREADS = 256
_SHARED = 256  # bytes for the sums of a block's warps


@frozen
class SinkBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/sink_backward.cu``."""

    element: str
    sink: str
    threads: int


@frozen(kw_only=True)
class SinkBackwardArguments(Arguments, restrict=True):
    """What ``kernels/attention/sink_backward.cu`` is called with."""

    sinks: Annotated[Array | None, Pointer("Config::Sink", True)]
    lse: InArithmetic
    delta: InArithmetic
    out: Annotated[Array | None, Pointer("Config::Sink", False)]
    rows: Extent
    queries: Extent
    lse_batch: Extent
    lse_head: Extent


def launches(problem: AttentionProblem, arrays: Arrays, saved: Saved) -> list[Plan]:
    """A block for each head; nothing where the gradient is not wanted."""
    sink, out = arrays["sink"], arrays.results[-1]
    if out.spec is None or sink.spec is None or not sink.spec.size:
        return []
    dtype = arrays.spec("q").dtype
    batch, queries = queries_of(problem, arrays)
    lse_batch, lse_head = lse_strides(problem)
    config = SinkBackwardConfig(TYPES[dtype], TYPES[sink.spec.dtype], _THREADS)
    name = f"attention_sink_backward_{SHORT[dtype]}{'_wide' * (sink.spec.dtype != dtype)}"
    arguments = SinkBackwardArguments(
        sinks=sink.pointer,
        lse=saved.lse,
        delta=saved.delta,
        out=out.pointer,
        rows=batch * queries,
        queries=max(queries, 1),
        lse_batch=lse_batch,
        lse_head=lse_head,
    )
    kernel = Kernel("attention/sink_backward.cu", name, config)
    return [planned(kernel, (problem.sizes.heads, 1, 1), _THREADS, arguments, shared_memory=_SHARED)]
