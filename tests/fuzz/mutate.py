"""One thing of a call made wrong, or made other than usual."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import FLOATING
from tests.fuzz.drawer import Drawer, Leaf
from tests.fuzz.memory import dense

if TYPE_CHECKING:
    from tests.fuzz.calls import Call

_VALUES = (
    None,
    -1,
    0,
    1,
    3,
    7,
    2**31,
    2**63,
    -(2**63),
    10**30,
    2.5,
    0.0,
    -1.0,
    float("nan"),
    float("inf"),
    True,
    "same",
    "abc",
    (),
    (1,),
    (2, 2),
    (1, 2, 3),
    ((1, 2), (0, 3)),
    (0, 0),
    (-1, 2),
    (None, 1),
)
# What may be wrong with the memory that a caller gives.
SPOILT = (
    "out of another shape",
    "out of another dtype",
    "out read-only",
    "out broadcast",
    "out on an input turned round",
    "too many outs",
    "workspace too small",
    "workspace of another dtype",
    "workspace strided",
    "workspace read-only",
)
_ABSURD = 1e6  # numbers from here on, and what is none, overflow on the way
_DTYPES = ("float64", "float32", "float16", "int64", "int8", "bool", "complex64")


def spoil(how: str, out: list[Any], scratch: Any, inputs: list[Any], needed: int) -> tuple[list[Any], Any]:
    """`out` and `workspace` made wrong; as they are where there is nothing to spoil. `needed` are the bytes that no
    call can do without."""
    if how == "workspace too small":
        return out, scratch[: needed - 1] if needed else scratch
    if "workspace" in how:
        return out, _spoilt_scratch(how, scratch)
    if not (out and out[0].size > 1 and out[0].ndim):
        return out, scratch
    first, others = out[0], out[1:]
    same = [a for a in inputs if isinstance(a, np.ndarray) and a.shape == first.shape and a.dtype == first.dtype]
    match how:
        case "out of another shape":
            first = first[:-1] if len(first) > 1 else first[None]
        case "out of another dtype":
            first = np.zeros(first.shape, "int16" if first.dtype == np.int8 else "int8")
        case "out read-only":
            first = first.view()
            first.flags.writeable = False
        case "out broadcast":
            first = np.lib.stride_tricks.as_strided(first, strides=(0,) * first.ndim)
        case "out on an input turned round":
            first = same[0][::-1] if same and len(first) > 1 else first
        case "too many outs":
            others = [*others, first.copy()]
    return [first, *others], scratch


def _spoilt_scratch(how: str, scratch: Any) -> Any:
    if how == "workspace of another dtype":
        return scratch.view(np.int8)
    if how == "workspace strided":
        return scratch[::-1] if len(scratch) > 1 else scratch
    found = scratch.view()
    found.flags.writeable = False
    return found


def mutated(d: Drawer, call: Call) -> Call:
    """The call with one array or one option changed. What comes of it may be an error, but a named one, or a result
    that is right."""
    change: Callable[[Drawer, Call], Call | None] = d.choice(
        (_other_dtype, _other_shape, _other_shape, _other_option, _other_option, _spoilt)
    )
    found = change(d, replace(call, mode="backward" if call.mode == "vjp" else call.mode))
    return found or call


def _one_leaf(d: Drawer, call: Call, change: Callable[[Leaf], np.ndarray | None], words: str) -> Call | None:
    every = [leaf for leaf in leaves(call.drawn.arrays) if isinstance(leaf, Leaf)]
    chosen = d.choice(every)
    values = change(chosen)
    if values is None:
        return None
    role = "float" if values.dtype in FLOATING else "fixed"
    other = Leaf(values, dense(values.shape), role)
    arrays = tuple(tree_map(lambda leaf: other if leaf is chosen else leaf, a) for a in call.drawn.arrays)
    return replace(call.with_arrays(arrays), change=f"{words} of {chosen.values.dtype}{list(chosen.values.shape)}")


def _other_dtype(d: Drawer, call: Call) -> Call | None:
    name = d.choice(_DTYPES)

    def change(leaf: Leaf) -> np.ndarray:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of complex numbers that lose their imaginary part
            return leaf.values.astype(np.float64 if leaf.role != "fixed" else leaf.values.dtype).astype(name)

    return _one_leaf(d, call, change, f"{name} instead")


def _other_shape(d: Drawer, call: Call) -> Call | None:
    how = d.choice(("longer", "shorter", "none", "more axes", "fewer axes"))

    def change(leaf: Leaf) -> np.ndarray | None:
        values = leaf.values
        if how == "more axes":
            return values[None] if d.maybe() else values[..., None]
        if not values.ndim:
            return None
        axis = d.integer(0, values.ndim - 1)
        if how == "fewer axes":
            return values.take(0, axis) if values.shape[axis] else None
        if how == "longer":
            return np.concatenate([values, values.take([0], axis)], axis) if values.shape[axis] else None
        return values.take(range(values.shape[axis] - 1 if how == "shorter" else 0), axis)

    return _one_leaf(d, call, change, how)


def _spoilt(d: Drawer, call: Call) -> Call | None:
    how = d.choice(SPOILT)
    given = {"out": True} if "out" in how else {"workspace": True}
    return None if d.engine == "cuda" else replace(call, **given, spoilt=how, change=how)


def _other_option(d: Drawer, call: Call) -> Call | None:
    names = [n for n in find(call.drawn.op).defaults if n not in ("group", "return_tape")]
    if not names:
        return None
    name, value = d.choice(names), d.choice(_VALUES)
    options: dict[str, Any] = call.drawn.options | {name: value}
    style = "extreme" if type(value) in (int, float) and not abs(value) < _ABSURD else call.style
    return replace(call, drawn=replace(call.drawn, options=options), style=style, change=f"{name}={value!r}")
