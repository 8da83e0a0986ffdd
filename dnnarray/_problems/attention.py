"""Attention over whole arrays: the problems, and the rules that all forms of attention share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT

LAYOUTS = ("BHSD", "BSHD")


class AttentionOutput(NamedTuple, Generic[ArrayT]):
    """What attention gives with ``return_lse=True``."""

    y: ArrayT
    lse: ArrayT


class AttentionGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `attention`; None for an array that was not given."""

    q: ArrayT
    k: ArrayT
    v: ArrayT
    bias: ArrayT
    sink: ArrayT


@frozen
class Rule:
    """How scores are made and which keys a query sees, in normal form.

    `left` and `right` bound the keys around the diagonal, ``i + diagonal - left <= j <= i + diagonal + right``, None
    where unbounded; causal attention is ``right = 0``. `upper_left` puts the diagonal at ``j = i``, else it ends at the
    last key."""

    scale: float
    softcap: float | None
    left: int | None
    right: int | None
    upper_left: bool
    dropout: float

    @property
    def banded(self) -> bool:
        """Whether the diagonal cuts any keys off."""
        return self.left is not None or self.right is not None


class Sizes(NamedTuple):
    """Batch, query heads, key heads, queries, keys, width of q and k, width of v."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """Shape of all scores, which bias and mask broadcast to."""
        return self.batch, self.heads, self.queries, self.keys


class Wanted(NamedTuple):
    """Which gradients of attention are asked for."""

    q: bool
    k: bool
    v: bool
    bias: bool
    sink: bool

    @property
    def slopes(self) -> bool:
        """Whether these take the gradient of each score."""
        return self.q or self.k or self.bias

    @property
    def deltas(self) -> bool:
        """Whether these take the product of y and its gradient, row by row."""
        return self.slopes or self.sink


@frozen(kw_only=True)
class AttentionProblem(Problem):
    """Attention over whole arrays, forward or backward; `arrays` holds the names of the inputs, for the checks of their
    values."""

    rule: Rule
    sizes: Sizes
    layout: str
    arrays: tuple[str, ...] = ()

    @property
    def needs_seed(self) -> bool:
        return self.rule.dropout > 0

    @property
    def back(self) -> bool:
        """Whether the outputs are gradients, and not y and lse."""
        return len(self.outputs) > 2

    @property
    def wanted(self) -> Wanted:
        """Which gradients the outputs of a backward hold."""
        q, k, v, *bias, sink = (spec is not None for spec in self.outputs)
        return Wanted(q, k, v, any(bias), sink)

    @property
    def unread(self) -> frozenset[int]:
        """The gradient of v takes the weights and the incoming gradient alone."""
        if not self.back or self.wanted.deltas or self.inputs[-1] is None:
            return frozenset()
        return frozenset(i for i, name in enumerate(self.arrays) if name in ("v", "output"))

    @property
    def flops(self) -> int:
        """A gradient forms the scores again and their slopes, and takes a product for each of q, k and v."""
        s = self.sizes
        scores = 2 * s.batch * s.heads * s.queries * s.keys
        if not self.back:
            return scores * (s.width + s.value_width)
        w = self.wanted
        return scores * (s.width * ((w.slopes or w.v) + w.q + w.k) + s.value_width * (w.slopes + w.v))


# --- options ----------------------------------------------------------------------------------------------------------


def rule(op: str, width: int, *, causal: Any, window: Any, scale: Any, softcap: Any, dropout: Any = 0.0) -> Rule:
    """The normal form of the options that all attention functions share."""
    causal = checks.choice(op, "causal", causal, (False, True, "lower_right", "upper_left"))
    left, right = _window(op, window)
    cap = None if softcap is None else checks.number(op, "softcap", softcap, 0)
    return Rule(
        scale=1 / math.sqrt(max(width, 1)) if scale is None else checks.number(op, "scale", scale),
        softcap=cap or None,
        left=left,
        right=0 if causal else right,
        upper_left=causal == "upper_left",
        dropout=checks.number(op, "dropout", dropout, 0, 1),
    )


def _window(op: str, window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        fail(OptionError, op, "window", repr(window), "a pair (left, right)", "None stands for an unbounded side.")
    left, right = (None if side is None else checks.integer(op, "window", side, 0) for side in window)
    return left, right


# --- arrays -----------------------------------------------------------------------------------------------------------


def heads_of(op: str, heads: int, kv_heads: int) -> None:
    """The query heads share the key heads evenly."""
    if heads % kv_heads if kv_heads else heads:
        fail(ShapeError, op, "q", f"of {heads} heads", f"a multiple of the {kv_heads} heads of k")


def _dense_sizes(op: str, q: Spec, k: Spec, v: Spec, layout_: str) -> Sizes:
    for name, spec in (("q", q), ("k", k), ("v", v)):
        checks.rank(op, name, spec, 4, " ".join(layout_))
    head, sequence = (1, 2) if layout_ == "BHSD" else (2, 1)
    batch, heads, queries, width = q.shape[0], q.shape[head], q.shape[sequence], q.shape[3]
    kv_heads, keys = k.shape[head], k.shape[sequence]
    expected = {0: batch, head: kv_heads, sequence: keys, 3: width}
    checks.shape(op, "k", k, [expected[i] for i in range(4)], f"{' '.join(layout_)}: B and D of q")
    expected[3] = v.shape[3]
    checks.shape(op, "v", v, [expected[i] for i in range(4)], f"{' '.join(layout_)}: B, H and S of k")
    heads_of(op, heads, kv_heads)
    return Sizes(batch, heads, kv_heads, queries, keys, width, v.shape[3])


def _score_arrays(op: str, q: Spec, sizes: Sizes, bias: Spec | None, mask: Spec | None) -> None:
    axes = "B H S_q S_k"
    if bias is not None:
        checks.same_dtype(op, q=q, bias=bias)
        checks.broadcastable(op, "bias", bias, sizes.scores, axes)
    if mask is not None:
        checks.booleans(op, "mask", mask)
        checks.broadcastable(op, "mask", mask, sizes.scores, axes)


def head_arrays(op: str, q: Spec, batch: int, heads: int, alibi_slopes: Spec | None, sink: Spec | None) -> None:
    """Slopes (H,) or (B, H) and sinks (H,), in the dtype of q or float32 beside a half type."""
    checks.parameter_dtype(op, q, reference="q", alibi_slopes=alibi_slopes, sink=sink)
    if alibi_slopes is not None:
        checks.rank(op, "alibi_slopes", alibi_slopes, (1, 2), "H, or B H")
        checks.shape(op, "alibi_slopes", alibi_slopes, (batch, heads)[-alibi_slopes.ndim :], "H, or B H")
    if sink is not None:
        checks.shape(op, "sink", sink, (heads,), "H")


def _sequence_arrays(
    op: str, batch: int, causal_offset: Spec | None, q_lengths: Spec | None, kv_lengths: Spec | None
) -> None:
    for name, spec in (("q_lengths", q_lengths), ("kv_lengths", kv_lengths)):
        if spec is not None:
            checks.integers(op, name, spec)
            checks.shape(op, name, spec, (batch,), "B")
    if causal_offset is not None:
        checks.integers(op, "causal_offset", causal_offset)
        if causal_offset.ndim:
            checks.shape(op, "causal_offset", causal_offset, (batch,), "B", "One integer serves all sequences.")


def offset_has_effect(op: str, rule_: Rule, causal_offset: Spec | None, alibi_slopes: Spec | None) -> None:
    """A diagonal that nothing refers to is a mistake of the caller."""
    if causal_offset is not None and alibi_slopes is None and not rule_.banded:
        fix = "Pass causal=True as well."
        fail(OptionError, op, "causal_offset", "given", "None where causal, window and alibi_slopes are absent", fix)


# --- attention --------------------------------------------------------------------------------------------------------

ARRAYS = ("q", "k", "v", "bias", "mask", "causal_offset", "alibi_slopes", "sink", "q_lengths", "kv_lengths")


def attention(
    op: str,
    q: Spec,
    k: Spec,
    v: Spec,
    bias: Spec | None,
    mask: Spec | None,
    causal_offset: Spec | None,
    alibi_slopes: Spec | None,
    sink: Spec | None,
    q_lengths: Spec | None,
    kv_lengths: Spec | None,
    *,
    layout: Any,
    return_lse: Any,
    **options: Any,
) -> AttentionProblem:
    """The builder of `attention`."""
    checks.same_dtype(op, q=q, k=k, v=v)
    layout = checks.choice(op, "layout", layout, LAYOUTS)
    sizes = _dense_sizes(op, q, k, v, layout)
    rule_ = rule(op, sizes.width, **options)
    _score_arrays(op, q, sizes, bias, mask)
    head_arrays(op, q, sizes.batch, sizes.heads, alibi_slopes, sink)
    _sequence_arrays(op, sizes.batch, causal_offset, q_lengths, kv_lengths)
    offset_has_effect(op, rule_, causal_offset, alibi_slopes)
    with_lse = checks.boolean(op, "return_lse", return_lse)
    lse = Spec((sizes.batch, sizes.heads, sizes.queries), checks.statistics_dtype(q))
    return AttentionProblem(
        op=op,
        inputs=(q, k, v, bias, mask, causal_offset, alibi_slopes, sink, q_lengths, kv_lengths),
        outputs=(q.like((*q.shape[:3], sizes.value_width)), lse if with_lse else None),
        returns=AttentionOutput if with_lse else None,
        rule=rule_,
        sizes=sizes,
        layout=layout,
        arrays=ARRAYS,
    )


def gradient_pair(op: str, grad: Any, y: Spec, lse: Spec) -> None:
    """The gradient of y, or the pair of those of y and lse, each None where absent."""
    pair = grad if isinstance(grad, (tuple, list)) else (grad,)
    if not 1 <= len(pair) <= 2 or all(g is None for g in pair):
        fail(
            OptionError,
            op,
            "grad",
            repr(grad),
            "an array, or a pair of the gradients of y and lse of which one may be None",
        )
    for g, expected in zip(pair, (y, lse), strict=False):
        if g is not None:
            checks.gradient(op, g, expected)


def saved(op: str, output: Spec | None, lse: Spec | None, y: Spec, statistics: Spec) -> None:
    """`output` and `lse`, where given, are what the forward returned."""
    for name, spec, expected in (("output", output, y), ("lse", lse, statistics)):
        if spec is not None:
            checks.gradient(op, spec, expected, name)


def attention_backward(op: str, grad: Any, *specs: Any, **options: Any) -> AttentionProblem:
    """The builder of `attention_backward`: the specs of the forward, then output and lse."""
    *arrays, output, lse = specs
    checks.boolean(op, "return_lse", options["return_lse"])
    forward = attention(op, *arrays, **options | {"return_lse": True})
    return backward_of(forward, grad, arrays, output, lse, (*arrays[:4], arrays[7]), AttentionGradients)


def backward_of(
    forward: AttentionProblem,
    grad: Any,
    arrays: list[Any],
    output: Any,
    lse: Any,
    wanted: tuple[Any, ...],
    returns: Any,
) -> AttentionProblem:
    """The problem of the gradients of `wanted`, from the forward's own problem."""
    y, statistics = forward.outputs
    assert y is not None
    assert statistics is not None
    gradient_pair(forward.op, grad, y, statistics)
    saved(forward.op, output, lse, y, statistics)
    return replace(
        forward,
        inputs=(grad, *arrays, output, lse),
        outputs=tuple(None if s is None else s.like() for s in wanted),
        returns=returns,
        arrays=("grad", *forward.arrays, "output", "lse"),
    )


def lengths(problem: AttentionProblem, *arrays: Any) -> None:
    """The lengths lie inside the sequences."""
    given = dict(zip(problem.arrays, arrays, strict=True))
    inside(problem.op, "q_lengths", given["q_lengths"], 0, problem.sizes.queries)
    inside(problem.op, "kv_lengths", given["kv_lengths"], 0, problem.sizes.keys)


def inside(op: str, name: str, values: Any, low: int, high: int) -> None:
    """Every entry of an integer array lies in the closed range."""
    if values is None or not values.size:
        return
    least, most = int(values.min()), int(values.max())
    if least < low or most > high:
        fail(OptionError, op, name, f"with values from {least} to {most}", f"values from {low} to {high}")
