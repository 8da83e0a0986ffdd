"""The parts of the kernels' arguments that attention's launches share: the structs of ``kernels/attention/rule.cuh``
and how they are filled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from dnnarray._cuda.attention.shared import ABSENT, Arrays, Place, Saved, lse_strides
from dnnarray._cuda.core.arguments import (
    Arguments,
    Double,
    Extent,
    In,
    InArithmetic,
    Nested,
    Out,
    OutArithmetic,
    Part,
    Pointer,
    Seed,
)
from dnnarray._cuda.core.plan import Array, Runtime
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32

_FAR = 2**40
_WORDS = 2**32
_UNSIGNED = 16

Strides = Annotated[Sequence[int], Nested("dnnarray::Strides", "4q")]  # along batch, heads, sequence and features
AnyArray = Annotated[Array | None, Pointer("void", True)]  # of a type that only the call knows
Mask = Annotated[Array | None, Pointer("unsigned char", True)]


@frozen(kw_only=True)
class RuleArguments(Arguments):
    """``struct Rule``: how scores are made, and which keys a query sees."""

    scale: Double
    softcap: Double
    left: Extent
    right: Extent
    upper_left: Extent
    offsets: AnyArray
    q_lengths: AnyArray
    kv_lengths: AnyArray
    offsets_kind: Extent
    offsets_step: Extent
    q_kind: Extent
    kv_kind: Extent
    slopes: AnyArray
    sinks: AnyArray
    slopes_wide: Extent
    slopes_step: Extent
    sinks_wide: Extent
    q_bounds: AnyArray
    k_bounds: AnyArray
    q_bounds_kind: Extent
    k_bounds_kind: Extent
    q_rows: Extent
    k_rows: Extent
    seed: Seed
    place: Seed
    threshold: Extent
    keep_scale: Double
    heads: Extent
    group: Extent
    queries: Extent
    keys: Extent


@frozen(kw_only=True)
class ExtraArguments(Arguments):
    """``struct Extra``: the arrays that broadcast to all scores."""

    bias: AnyArray
    of_bias: Strides
    mask: Mask
    of_mask: Strides


@frozen(kw_only=True)
class PagesArguments(Arguments):
    """``struct Pages``: the block table of a paged cache, and the cache's blocks."""

    table: AnyArray
    kind: Extent
    width: Extent
    size: Extent
    count: Extent


Rule = Annotated[RuleArguments, Part("dnnarray::Rule", RuleArguments)]
Extra = Annotated[ExtraArguments, Part("dnnarray::Extra", ExtraArguments)]
Pages = Annotated[PagesArguments, Part("dnnarray::Pages", PagesArguments)]


def integer_kind(place: Place) -> int:
    """The code of an integer dtype in the kernels (``integer_at``): the bytes of a number, and 16 where it is
    unsigned."""
    if place.spec is None:
        return 0
    dtype = place.spec.dtype
    return dtype.itemsize + (_UNSIGNED if dtype.kind == "u" else 0)


def _wide(place: Place) -> int:
    return int(place.spec is not None and place.spec.dtype == FLOAT32)


def rule_of(problem: AttentionProblem, arrays: Arrays) -> RuleArguments:
    """The rule of a problem."""
    rule, sizes = problem.rule, problem.sizes
    offset, q_lengths, kv_lengths, slopes, sink, q_bounds, k_bounds = (
        arrays.places.get(name, ABSENT)
        for name in ("causal_offset", "q_lengths", "kv_lengths", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k")
    )
    q_rows, k_rows = _packed_rows(arrays)
    dropped = rule.dropout > 0
    return RuleArguments(
        scale=float(rule.scale),
        softcap=float(rule.softcap or 0),
        left=-1 if rule.left is None else min(rule.left, _FAR),
        right=-1 if rule.right is None else min(rule.right, _FAR),
        upper_left=int(rule.upper_left),
        offsets=offset.pointer,
        q_lengths=q_lengths.pointer,
        kv_lengths=kv_lengths.pointer,
        offsets_kind=integer_kind(offset),
        offsets_step=int(offset.spec is not None and offset.spec.ndim == 1),
        q_kind=integer_kind(q_lengths),
        kv_kind=integer_kind(kv_lengths),
        slopes=slopes.pointer,
        sinks=sink.pointer,
        slopes_wide=_wide(slopes),
        slopes_step=sizes.heads if slopes.spec is not None and slopes.spec.ndim == 2 else 0,
        sinks_wide=_wide(sink),
        q_bounds=q_bounds.pointer,
        k_bounds=k_bounds.pointer,
        q_bounds_kind=integer_kind(q_bounds),
        k_bounds_kind=integer_kind(k_bounds),
        q_rows=q_rows,
        k_rows=k_rows,
        seed=Runtime(0) if dropped else None,
        place=Runtime(1) if dropped else None,
        threshold=min(math.floor(rule.dropout * _WORDS), _WORDS - 1) if dropped else 0,
        keep_scale=1 / (1 - rule.dropout) if rule.dropout < 1 else 0.0,
        heads=sizes.heads,
        group=max(sizes.heads // sizes.kv_heads, 1) if sizes.kv_heads else 1,
        queries=sizes.queries,
        keys=sizes.keys,
    )


def _packed_rows(arrays: Arrays) -> tuple[int, int]:
    """Rows of the arrays that bounds lead into."""
    if "cu_seqlens_q" not in arrays.places:
        return 0, 0
    return arrays.spec("q").shape[0], arrays.spec("k").shape[0]


def extra_of(arrays: Arrays) -> ExtraArguments:
    """Bias and mask of a problem."""
    bias, mask = (arrays.places.get(name, ABSENT) for name in ("bias", "mask"))
    return ExtraArguments(bias=bias.pointer, of_bias=bias.strides, mask=mask.pointer, of_mask=mask.strides)


def pages_of(arrays: Arrays) -> PagesArguments:
    """The blocks of a paged cache; one key to a block where there is none."""
    table = arrays.places.get("block_table", ABSENT)
    if table.spec is None:
        return PagesArguments(table=None, kind=0, width=0, size=1, count=0)
    count, size, *_ = arrays.spec("k").shape
    return PagesArguments(
        table=table.pointer, kind=integer_kind(table), width=table.spec.shape[1], size=size, count=count
    )


Result = Annotated[Array | None, Pointer("Config::Output", False)]  # of a launch whose result has a type of its own


@frozen(kw_only=True)
class ForwardArguments(Arguments, restrict=True):
    """What the kernels of the forward have in common; `lse` is absent where it is not wanted."""

    q: In
    k: In
    v: In
    y: Result
    lse: OutArithmetic
    tiles: Extent
    width: Extent
    value_width: Extent
    lse_batch: Extent
    lse_head: Extent
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides
    y_strides: Strides
    pages: Pages
    rule: Rule


@frozen(kw_only=True)
class GradientArguments(Arguments, restrict=True):
    """What the kernels of the gradients have in common; `grad` is absent where lse alone has a gradient."""

    q: In
    k: In
    v: In
    grad: In
    lse: InArithmetic
    delta: InArithmetic
    out: Out
    width: Extent
    value_width: Extent
    lse_batch: Extent
    lse_head: Extent
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides
    grad_strides: Strides
    out_strides: Strides
    rule: Rule


def _sizes_of(problem: AttentionProblem, arrays: Arrays, names: Sequence[str]) -> dict[str, Any]:
    """Widths, the strides of lse and of these arrays, and the rule, by the names of the fields."""
    batch, head = lse_strides(problem)
    given: dict[str, Any] = {name: arrays[name].pointer for name in names}
    given |= {f"{name}_strides": arrays[name].strides for name in names}
    given |= {
        "width": problem.sizes.width,
        "value_width": problem.sizes.value_width,
        "lse_batch": batch,
        "lse_head": head,
    }
    return given | {"rule": rule_of(problem, arrays)}


def forward_arguments(
    problem: AttentionProblem, arrays: Arrays, y: Place, lse: Array | None, tiles: int
) -> dict[str, Any]:
    """The values of the fields of `ForwardArguments`."""
    given = {"y": y.pointer, "y_strides": y.strides, "lse": lse, "tiles": tiles, "pages": pages_of(arrays)}
    return _sizes_of(problem, arrays, ("q", "k", "v")) | given


def gradient_arguments(problem: AttentionProblem, arrays: Arrays, saved: Saved, out: Place) -> dict[str, Any]:
    """The values of the fields of `GradientArguments`."""
    given = {"lse": saved.lse, "delta": saved.delta, "out": out.pointer, "out_strides": out.strides}
    return _sizes_of(problem, arrays, ("q", "k", "v", "grad")) | given
