"""What the plans of attention share: where every array lies, and which of the rarer options a call has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import Array, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._problems.base import remembered
from dnnarray._records import frozen
from dnnarray._spec import Spec

_AXES = {"BHSD": (0, 1, 2, 3), "BSHD": (0, 2, 1, 3)}  # where batch, heads, sequence and features stand
_PACKED_AXES = (None, 1, 0, 2)

Argument = Array | None  # the pointer of an array, None where it is absent
Strides = tuple[int, int, int, int]


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


ABSENT = Place(None, None)


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

    def spec(self, name: str) -> Spec:
        """The spec of an array that every call has."""
        spec = self.places[name].spec
        assert spec is not None
        return spec


@frozen
class Saved:
    """y, lse and delta of a call, and how y lies; where the parts of a gradient of the bias are summed."""

    y: Place
    result: np.dtype
    lse: Argument
    delta: Argument
    bias_parts: Array


_NAMES = {
    "attention": ("q", "k", "v", "bias", "mask", "causal_offset", "alibi_slopes", "sink", "q_lengths", "kv_lengths"),
    "attention_varlen": ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sink"),
    "paged_attention": ("q", "k", "v", "block_table", "kv_lengths", "alibi_slopes", "sink"),
}
_ROWS = frozenset({"q", "k", "v", "grad", "output"})
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
        grads = inputs[0] if isinstance(inputs[0], (tuple, list)) else (inputs[0],)
        names = ["grad", "grad_lse", *names, "output", "lse"]
        inputs = [*grads, *(None,) * (2 - len(grads)), *inputs[1:]]
    places, count = {}, 0
    for name, spec in zip(names, inputs, strict=True):
        strides = (0, 0, 0, 0)
        if spec is not None and name in _ROWS:
            strides = (
                _paged_query(spec)
                if base == "paged_attention" and name == "q" and spec.ndim == 3
                else rows_of(spec, problem.layout)
            )
        elif spec is not None and name in _SCORES:
            strides = scores_of(spec)
        places[name] = Place(None if spec is None else Array(count), spec, strides)
        count += spec is not None
    results: list[Place] = []
    for n, spec in enumerate(problem.outputs):
        rows = spec is not None and (n < 3 if problem.op.endswith("_backward") else n == 0)
        strides = (0, 0, 0, 0)
        if rows and spec is not None:
            strides = (
                _paged_query(spec) if base == "paged_attention" and spec.ndim == 3 else rows_of(spec, problem.layout)
            )
        results.append(
            Place(None if spec is None else Array(count + len([r for r in results if r.given])), spec, strides)
        )
    any_order = _ROWS | _SCORES  # the others are read in C order
    given = [(name, spec) for name, spec in zip(names, inputs, strict=True) if spec is not None]
    orders = tuple(order_of(spec) if name in any_order else tuple(range(spec.ndim)) for name, spec in given)
    return Arrays(places, orders, count, tuple(results), count + sum(r.given for r in results))


def _paged_query(spec: Spec) -> Strides:
    """(B, H, D): one query each."""
    batch, head, column = strides_of(spec)
    return batch, head, 0, column


def packed(problem: AttentionProblem) -> bool:
    """Whether sequences lie one behind another, without a batch axis."""
    return problem.op.startswith("attention_varlen")


def lse_strides(problem: AttentionProblem) -> tuple[int, int]:
    """Distances of lse between sequences and between heads; queries lie side by side."""
    sizes = problem.sizes
    if packed(problem):
        q = problem.inputs[1 if problem.op.endswith("_backward") else 0]
        return 0, q.shape[0]
    return sizes.heads * sizes.queries, sizes.queries


def rarer_options(problem: AttentionProblem, arrays: Arrays) -> dict[str, bool]:
    """Which options a call has that most go without, by groups: what a sequence is, what changes a score, dropout."""
    there = {name for name, place in arrays.places.items() if place.given}
    return {
        "ragged": not there.isdisjoint(("causal_offset", "q_lengths", "kv_lengths", "cu_seqlens_q")),
        "changed": not there.isdisjoint(("bias", "mask", "alibi_slopes")) or problem.rule.softcap is not None,
        "dropped": problem.rule.dropout > 0,
    }


def given_options(problem: AttentionProblem, arrays: Arrays) -> tuple[str, str]:
    """The same as `Given` of rule.cuh, and what stands for it in a symbol."""
    found = rarer_options(problem, arrays)
    flags = ", ".join(str(flag).lower() for flag in found.values())
    return f"dnnarray::Given<{flags}>", "".join(f"_{name}" for name, flag in found.items() if flag)


def has_extras(problem: AttentionProblem, arrays: Arrays) -> bool:
    """Whether more than the scale and the band changes the scores."""
    found = rarer_options(problem, arrays)
    return found["changed"] or found["dropped"]


Launch = Callable[[AttentionProblem, Arrays, Place, Argument, np.dtype, bool], Plan]
"""How an algorithm plans its forward: `y` is written in a dtype, and lse where its pointer is given, from memory that
is aligned or not."""


def forward(problem: AttentionProblem, aligned: bool, launch: Launch) -> Program:
    """One launch."""
    arrays = arrays_of(problem)
    y, lse = arrays.results
    assert y.spec is not None
    if not problem.sizes.batch * problem.sizes.heads * problem.sizes.queries:
        return Program(())
    return Program((launch(problem, arrays, y, lse.pointer, y.spec.dtype, aligned),), arrays.orders)
