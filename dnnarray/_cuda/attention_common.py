"""What the plans of attention share: where every array lies, and the numbers of ``kernels/include/dnnarray/attention.cuh``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dnnarray._cuda.core.plan import Array, Runtime
from dnnarray._problems.attention import AttentionProblem
from dnnarray._problems.base import remembered
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, FLOAT64, Spec

NOTHING = 0  # the pointer of an array that is not there
_FAR = 2**40
_WORDS = 2**32
_UNSIGNED = 16
_AXES = {"BHSD": (0, 1, 2, 3), "BSHD": (0, 2, 1, 3)}  # where batch, heads, sequence and features stand
_PACKED_AXES = (None, 1, 0, 2)

Argument = Any
Strides = tuple[int, int, int, int]


def arithmetic_of(dtype: np.dtype) -> np.dtype:
    """The dtype that the kernels compute in."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def order_of(spec: Spec) -> tuple[int, ...]:
    """The memory order of a dense array; C order, into which it is copied, for another."""
    return spec.axis_order() or tuple(range(spec.ndim))


def strides_of(spec: Spec) -> tuple[int, ...]:
    """Elements between neighbours along each axis, once the array lies in `order_of`."""
    order = order_of(spec)
    return tuple(math.prod(spec.shape[a] for a in order[order.index(axis) + 1 :]) for axis in range(spec.ndim))


@frozen
class Place:
    """An array of a call: its pointer and its strides along batch, heads, sequence and features."""

    pointer: Argument
    spec: Spec | None
    strides: Strides = (0, 0, 0, 0)

    @property
    def given(self) -> bool:
        return self.spec is not None

    def vector(self, length: int) -> bool:
        """Whether vectors of this many features are aligned in every row."""
        batch, head, row, column = self.strides
        extents = (batch, head, row, self.spec.shape[-1] if self.spec else 0)
        return column == 1 and all(n % length == 0 for n in extents)


@frozen
class Arrays:
    """The arrays of a problem by name, with the memory order that each is taken in."""

    places: dict[str, Place]
    orders: tuple[tuple[int, ...], ...]
    given: int
    results: tuple[Place, ...]
    scratch: int
    shift: int = 0  # bytes of the scratch memory that others use

    def __getitem__(self, name: str) -> Place:
        return self.places[name]


_NAMES = {
    "attention": ("q", "k", "v", "bias", "mask", "causal_offset", "alibi_slopes", "sink", "q_lengths", "kv_lengths"),
    "attention_varlen": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sink"),
    "paged_attention": ("q", "k", "v", "block_table", "kv_lengths", "alibi_slopes", "sink"),
}
_ROWS = frozenset({"q", "k", "v", "grad_y", "output"})
_SCORES = frozenset({"bias", "mask"})


def _spread(strides: Iterable[int], axes: Iterable[int | None]) -> Strides:
    strides = tuple(strides)
    batch, head, row, column = (0 if a is None else strides[a] for a in axes)
    return batch, head, row, column


def rows_of(spec: Spec, layout: str) -> Strides:
    if spec.ndim == 4:
        return _spread(strides_of(spec), _AXES["BSHD" if layout == "SHD" else layout])
    return _spread(strides_of(spec), _PACKED_AXES)


def scores_of(spec: Spec) -> Strides:
    """Strides of an array that broadcasts to (B, H, S_q, S_k)."""
    steps = tuple(s if n != 1 else 0 for s, n in zip(strides_of(spec), spec.shape, strict=True))
    return _spread((*(0,) * (4 - spec.ndim), *steps), range(4))


@remembered
def arrays_of(problem: AttentionProblem) -> Arrays:
    """Every input and output with its pointer."""
    base = problem.op.removesuffix("_backward")
    names, inputs = list(_NAMES[base]), list(problem.inputs)
    if problem.op.endswith("_backward"):
        grad = inputs[0] if isinstance(inputs[0], (tuple, list)) else (inputs[0],)
        names = ["grad_y", "grad_lse", *names, "output", "lse"]
        inputs = [*grad, *(None,) * (2 - len(grad)), *inputs[1:]]
    places, count = {}, 0
    for name, spec in zip(names, inputs, strict=True):
        strides = (0, 0, 0, 0)
        if spec is not None and name in _ROWS:
            strides = _paged_query(spec) if base == "paged_attention" and name == "q" and spec.ndim == 3 else rows_of(spec, problem.layout)
        elif spec is not None and name in _SCORES:
            strides = scores_of(spec)
        places[name] = Place(NOTHING if spec is None else Array(count), spec, strides)
        count += spec is not None
    results: list[Place] = []
    for n, spec in enumerate(problem.outputs):
        rows = spec is not None and (n < 3 if problem.op.endswith("_backward") else n == 0)
        strides = (0, 0, 0, 0)
        if rows and spec is not None:
            strides = _paged_query(spec) if base == "paged_attention" and spec.ndim == 3 else rows_of(spec, problem.layout)
        results.append(Place(NOTHING if spec is None else Array(count + len([r for r in results if r.given])), spec, strides))
    any_order = _ROWS | _SCORES  # the others are read in C order
    given = [(name, spec) for name, spec in zip(names, inputs, strict=True) if spec is not None]
    orders = tuple(order_of(spec) if name in any_order else tuple(range(spec.ndim)) for name, spec in given)
    return Arrays(places, orders, count, tuple(results), count + sum(r.given for r in results))


def _paged_query(spec: Spec) -> Strides:
    """(B, H, D): one query each."""
    batch, head, column = strides_of(spec)
    return batch, head, 0, column


def _kind(place: Place) -> int:
    """How the kernels name an integer dtype."""
    if place.spec is None:
        return 0
    dtype = place.spec.dtype
    return dtype.itemsize + (_UNSIGNED if dtype.kind == "u" else 0)


def lse_strides(problem: AttentionProblem) -> tuple[int, int]:
    """Distances of lse between sequences and between heads; queries lie side by side."""
    sizes = problem.sizes
    if problem.op.startswith("attention_varlen"):
        q = problem.inputs[1 if problem.op.endswith("_backward") else 0]
        return 0, q.shape[0]
    return sizes.heads * sizes.queries, sizes.queries


def rule_arguments(problem: AttentionProblem, arrays: Arrays) -> tuple[Argument, ...]:
    """The arguments of DNNARRAY_RULE."""
    rule, sizes = problem.rule, problem.sizes
    absent = Place(NOTHING, None)
    offset, q_lengths, kv_lengths, slopes, sink, q_bounds, k_bounds = (
        arrays.places.get(name, absent)
        for name in ("causal_offset", "q_lengths", "kv_lengths", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k")
    )
    dropped = rule.dropout > 0
    threshold = min(math.floor(rule.dropout * _WORDS), _WORDS - 1) if dropped else 0
    keep_scale = 1 / (1 - rule.dropout) if rule.dropout < 1 else 0.0
    return (
        float(rule.scale),
        float(rule.softcap or 0),
        -1 if rule.left is None else min(rule.left, _FAR),
        -1 if rule.right is None else min(rule.right, _FAR),
        int(rule.upper_left),
        *(p.pointer for p in (offset, q_lengths, kv_lengths)),
        _kind(offset),
        int(offset.spec is not None and offset.spec.ndim == 1),
        _kind(q_lengths),
        _kind(kv_lengths),
        slopes.pointer,
        sink.pointer,
        int(_wide(slopes)),
        sizes.heads if slopes.spec is not None and slopes.spec.ndim == 2 else 0,
        int(_wide(sink)),
        q_bounds.pointer,
        k_bounds.pointer,
        _kind(q_bounds),
        _kind(k_bounds),
        *_packed_rows(arrays),
        *((Runtime(0), Runtime(1)) if dropped else (0, 0)),
        threshold,
        keep_scale,
        sizes.heads,
        max(sizes.heads // sizes.kv_heads, 1) if sizes.kv_heads else 1,
        sizes.queries,
        sizes.keys,
    )


def _packed_rows(arrays: Arrays) -> tuple[int, int]:
    """Rows of the arrays that bounds lead into."""
    if "cu_seqlens_q" not in arrays.places:
        return 0, 0
    q, k = arrays["q"].spec, arrays["k"].spec
    assert q is not None
    assert k is not None
    return q.shape[0], k.shape[0]


def _wide(place: Place) -> bool:
    return place.spec is not None and place.spec.dtype == FLOAT32


def rarer_options(problem: AttentionProblem, arrays: Arrays) -> dict[str, bool]:
    """Which options a call has that most go without, by groups: what a sequence is, what changes a score, dropout."""
    there = {name for name, place in arrays.places.items() if place.given}
    return {
        "ragged": not there.isdisjoint(("causal_offset", "q_lengths", "kv_lengths", "cu_seqlens_q")),
        "changed": not there.isdisjoint(("bias", "mask", "alibi_slopes")) or problem.rule.softcap is not None,
        "dropped": problem.rule.dropout > 0,
    }


def given_options(problem: AttentionProblem, arrays: Arrays) -> tuple[str, str]:
    """The same as `Given` of attention.cuh, and what stands for it in a symbol."""
    found = rarer_options(problem, arrays)
    flags = ", ".join(str(flag).lower() for flag in found.values())
    return f"dnnarray::Given<{flags}>", "".join(f"_{name}" for name, flag in found.items() if flag)


def extra_arguments(arrays: Arrays) -> tuple[Argument, ...]:
    """The arguments of DNNARRAY_EXTRA."""
    absent = Place(NOTHING, None)
    bias, mask = (arrays.places.get(name, absent) for name in ("bias", "mask"))
    return bias.pointer, *bias.strides, mask.pointer, *mask.strides


def page_arguments(arrays: Arrays) -> tuple[Argument, ...]:
    """Table, its dtype, blocks of a sequence, keys of a block, blocks that there are."""
    table = arrays.places.get("block_table", Place(NOTHING, None))
    if table.spec is None:
        return NOTHING, 0, 0, 1, 0
    k = arrays["k"].spec
    assert k is not None
    return table.pointer, _kind(table), table.spec.shape[1], k.shape[1], k.shape[0]
