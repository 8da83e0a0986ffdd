"""The arithmetic of the optimizers, on the arrays of any namespace.

A rule is a function of one array, its gradient and its slots (the moving means that the optimizer keeps for it), in the
arithmetic's own dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from dnnarray._call.arrays import spec_of
from dnnarray._errors import ArrayTypeError, DTypeError, OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64, FLOATING, HALF, as_dtype
from dnnarray._tree import leaves, tree_map

_GUARD = 1e-6  # added to the norm that a limit is divided by


@frozen
class SGD:
    """`sgd` for one array."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

    def __call__(self, xp: Any, step: int, p: Any, g: Any, *slots: Any) -> tuple[Any, ...]:
        if self.weight_decay:
            g = g + self.weight_decay * p
        if not self.momentum:
            return (p - self.lr * g,)
        (velocity,) = slots
        velocity = g if step == 1 else self.momentum * velocity + (1 - self.dampening) * g
        return p - self.lr * (g + self.momentum * velocity if self.nesterov else velocity), velocity


@frozen
class Adam:
    """`adam` and `adamw` for one array."""

    lr: float
    first: float
    second: float
    eps: float
    weight_decay: float
    decoupled: bool
    slots = 2

    def __call__(self, xp: Any, step: int, p: Any, g: Any, mean: Any, square: Any) -> tuple[Any, ...]:
        if self.weight_decay and self.decoupled:
            p = p * (1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            g = g + self.weight_decay * p
        mean = mean + (1 - self.first) * (g - mean)
        square = self.second * square + (1 - self.second) * (g * g)
        size = self.lr / (1 - self.first**step)
        return p - size * mean / (xp.sqrt(square) / math.sqrt(1 - self.second**step) + self.eps), mean, square


@frozen
class Lion:
    """`lion` for one array."""

    lr: float
    first: float
    second: float
    weight_decay: float
    slots = 1

    def __call__(self, xp: Any, step: int, p: Any, g: Any, momentum: Any) -> tuple[Any, ...]:
        direction = xp.sign(self.first * momentum + (1 - self.first) * g)
        p = p * (1 - self.lr * self.weight_decay) - self.lr * direction
        return p, self.second * momentum + (1 - self.second) * g


def checked_betas(op: str, betas: Any) -> tuple[float, float]:
    """Two numbers of 0 or more and below 1."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        fail(OptionError, op, "betas", repr(betas), "two numbers of 0 or more and below 1")
    first, second = (checks.number(op, "betas", beta, 0, 1) for beta in betas)
    if first == 1 or second == 1:
        fail(OptionError, op, "betas", repr(betas), "two numbers of 0 or more and below 1")
    return first, second


def checked_nesterov(nesterov: Any, momentum: float, dampening: float) -> bool:
    if nesterov and (momentum == 0 or dampening != 0):
        fail(
            OptionError,
            "sgd",
            "nesterov",
            f"True with momentum {momentum} and dampening {dampening}",
            "momentum above 0 and dampening 0",
        )
    return bool(nesterov)


def apply(
    op: str, rule: Any, params: Any, grads: Any, state: Any, kind: Callable[..., Any], out: Any
) -> tuple[Any, Any]:
    """One step for all arrays; `kind` builds the state of the step's number and one structure for each slot."""
    slots = _slots_of(op, rule, params, grads, state, kind)
    step = 1 if state is None else state.step + 1
    targets = [None] * (1 + rule.slots) if out is None else _targets(op, out, params, kind, rule.slots)
    flat: list[list[Any]] = [list(leaves(params)), list(leaves(tree_map(lambda p, g: g, params, grads, where=op)))]
    flat += [list(leaves(s)) for s in slots]
    into = [
        [None] * len(flat[0]) if t is None else list(leaves(tree_map(lambda p, o: o, params, t, where=op)))
        for t in targets
    ]
    for p, g in zip(*flat[:2], strict=True):
        _check_pair(op, p, g)
    results = [
        _one(rule, step, values, places)
        for values, places in zip(zip(*flat, strict=True), zip(*into, strict=True), strict=True)
    ]
    columns = list(zip(*results, strict=True)) or [()] * (1 + rule.slots)
    trees = [_rebuilt(params, column) for column in columns]
    states = trees[1:] if rule.slots else [None] * (len(kind._fields) - 1)  # type: ignore[attr-defined]
    return trees[0], kind(step, *states)


def _slots_of(op: str, rule: Any, params: Any, grads: Any, state: Any, kind: Any) -> list[Any]:
    if state is not None and not isinstance(state, kind):
        fail(
            OptionError,
            op,
            "state",
            f"a {type(state).__name__}",
            f"a {kind.__name__}, as the step before returned it, or None",
        )
    if state is None:
        return [tree_map(_zeros, params, grads, where=op) for _ in range(rule.slots)]
    slots = list(state[1:])[: rule.slots]
    if any(s is None for s in slots):
        fail(
            OptionError,
            op,
            "state",
            "without momentum",
            "the state of steps with the same options",
            "Begin anew with state=None.",
        )
    return [tree_map(lambda p, s: s, params, s, where=op) for s in slots]


def _targets(op: str, out: Any, params: Any, kind: Any, count: int) -> list[Any]:
    if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], kind):
        fail(OptionError, op, "out", f"a {type(out).__name__}", f"(params, state) with a {kind.__name__}")
    return [out[0], *list(out[1][1:])[:count]]


def _rebuilt(like: Any, column: tuple[Any, ...]) -> Any:
    values = iter(column)
    return tree_map(lambda leaf: next(values), like)


def _one(rule: Any, step: int, values: tuple[Any, ...], places: tuple[Any, ...]) -> tuple[Any, ...]:
    """The new array and slots; an array without a gradient keeps its value and has no slots."""
    p, g, *slots = values
    if g is None:
        return (p, *slots)
    xp, half = array_namespace(p), as_dtype(p.dtype) in HALF
    wide = (xp.astype(p, xp.float32), xp.astype(g, xp.float32)) if half else (p, g)
    found = rule(xp, step, *wide, *slots)
    new = xp.astype(found[0], p.dtype) if half else found[0]
    return tuple(_placed(xp, result, place) for result, place in zip((new, *found[1:]), places, strict=True))


def _placed(xp: Any, result: Any, place: Any) -> Any:
    if place is None:
        return xp.asarray(result)
    place[...] = result
    return place


def _zeros(p: Any, g: Any) -> Any:
    if g is None:
        return None
    xp = array_namespace(p)
    return xp.zeros_like(p, dtype=xp.float32 if as_dtype(p.dtype) in HALF else p.dtype)


def _check_pair(op: str, p: Any, g: Any) -> None:
    if g is None:
        return
    for name, array in (("params", p), ("grads", g)):
        if not (hasattr(array, "shape") and hasattr(array, "dtype")):
            fail(
                ArrayTypeError,
                op,
                name,
                f"a structure with a {type(array).__name__}",
                "arrays, or None for the gradient of anything else",
            )
    param, grad = spec_of(p, f"{op}: params"), spec_of(g, f"{op}: grads")
    if param.dtype not in FLOATING:
        fail(DTypeError, op, "params", param.dtype.name, "a floating dtype", "Give None for its gradient.")
    if param.shape != grad.shape:
        fail(ShapeError, op, "grads", f"of shape {grad.shape}", f"the shape {param.shape} of its array")
    if param.dtype != grad.dtype:
        fail(DTypeError, op, "grads", grad.dtype.name, f"{param.dtype.name}, the dtype of its array")


def clipped(grads: Any, max_norm: float) -> tuple[Any, Any]:
    """`clip_by_global_norm` with everything checked."""
    arrays = [g for g in leaves(grads) if g is not None]
    if not arrays:
        fail(ArrayTypeError, "clip_by_global_norm", "grads", "a structure without an array", "at least one gradient")
    xp = array_namespace(*arrays)
    dtype = xp.float64 if any(as_dtype(g.dtype) == FLOAT64 for g in arrays) else xp.float32
    squares = [xp.sum(xp.square(xp.astype(g, xp.float64))) for g in arrays]
    norm = xp.sqrt(xp.sum(xp.stack([xp.asarray(s) for s in squares])))
    factor = xp.clip(max_norm / (norm + _GUARD), None, 1.0) if math.isfinite(max_norm) else xp.ones_like(norm)
    scaled = tree_map(lambda g: None if g is None else g * xp.astype(xp.asarray(factor), g.dtype), grads)
    return scaled, xp.astype(xp.asarray(norm), dtype)
