"""The launch that writes delta, the product of each row of y and its gradient, which the gradients of attention
subtract."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.attention.arguments import AnyArray, Strides, integer_kind
from dnnarray._cuda.attention.shared import ABSENT, Arrays, Saved, lse_strides, packed
from dnnarray._cuda.attention.tiled import vector_of
from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, OutArithmetic, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen

_THREADS = 128
_WARP = 32


@frozen
class DeltaConfig(Config):
    """Compile-time settings of ``kernels/attention/delta.cu``."""

    element: str
    result: str
    vector: int
    threads: int


@frozen(kw_only=True)
class DeltaArguments(Arguments, restrict=("grad", "y", "grad_lse", "delta")):
    """What ``kernels/attention/delta.cu`` is called with."""

    grad: In
    y: Annotated[Array | None, Pointer("Config::Result", True)]
    grad_lse: InArithmetic
    delta: OutArithmetic
    rows: Extent
    queries: Extent
    heads: Extent
    width: Extent
    q_lengths: AnyArray
    q_kind: Extent
    lse_batch: Extent
    lse_head: Extent
    grad_strides: Strides
    y_strides: Strides


def queries_of(problem: AttentionProblem, arrays: Arrays) -> tuple[int, int]:
    """Batch items and queries; sequences that are packed count as one batch item."""
    return (1, arrays.spec("q").shape[0]) if packed(problem) else (problem.sizes.batch, problem.sizes.queries)


def launch(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> Plan:
    sizes, dtype = problem.sizes, arrays.spec("q").dtype
    grad, lengths = arrays["grad"], arrays.places.get("q_lengths", ABSENT)
    batch, queries = queries_of(problem, arrays)
    vector = vector_of((grad,), aligned) if grad.given else 1
    config = DeltaConfig(TYPES[dtype], TYPES[saved.result], vector, _THREADS)
    name = f"attention_delta_{SHORT[dtype]}x{vector}{'_wide' * (saved.result != dtype)}"
    rows = batch * sizes.heads * queries
    lse_batch, lse_head = lse_strides(problem)
    arguments = DeltaArguments(
        grad=grad.pointer,
        y=saved.y.pointer,
        grad_lse=arrays["grad_lse"].pointer,
        delta=saved.delta,
        rows=rows,
        queries=queries,
        heads=sizes.heads,
        width=sizes.value_width,
        q_lengths=lengths.pointer,
        q_kind=integer_kind(lengths),
        lse_batch=lse_batch,
        lse_head=lse_head,
        grad_strides=grad.strides,
        y_strides=saved.y.strides,
    )
    return planned(
        Kernel("attention/delta.cu", name, config, ("attention/rule",)),
        (blocks_of(rows, _THREADS // _WARP), 1, 1),
        _THREADS,
        arguments,
    )
