"""What `value_and_grad` and `checkpoint` do: trace the arguments, run the function, run the record backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._autodiff import (
    calls,
    operators,
    rules,
)  # the first two give `Traced` its operators and its way into dnnarray's functions
from dnnarray._autodiff.primitive import is_floating, namespace
from dnnarray._autodiff.traced import Node, Trace, Traced, backward, plain, value_in
from dnnarray._errors import ArrayTypeError, OptionError, ShapeError, UnsupportedError
from dnnarray._options import CURRENT, Options, current
from dnnarray._tree import leaves, tree_map

__all__ = ["calls", "differentiate", "operators", "recompute"]


def differentiate(
    f: Callable[..., Any], places: tuple[int, ...], arguments: tuple[Any, ...], named: dict[str, Any], has_aux: bool
) -> tuple[Any, Any, tuple[Any, ...]]:
    """The value of f, its auxiliary output, and the gradient of each argument at `places`."""
    trace = Trace()
    try:
        traced = [_recorded(trace, i, a) if i in places else a for i, a in enumerate(arguments)]
        result = f(*traced, **named)
        value, aux = _two(result) if has_aux else (result, None)
        _check_scalar(value)
        if has_aux:
            aux = tree_map(lambda leaf: value_in(trace, leaf), aux)
        found = backward([(value.node, value.index, _one(value.value))]) if _belongs(trace, value) else {}
        gradients = tuple(tree_map(lambda leaf: _gradient(trace, leaf, found), traced[i]) for i in places)
        return value_in(trace, value), aux, gradients
    finally:
        trace.open = False


def recompute(f: Callable[..., Any], trace: Trace, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run f on the values alone; one recorded step stands for it, which runs it again when its gradient is wanted."""
    inputs = [leaf for leaf in leaves((arguments, named)) if _belongs(trace, leaf)]
    values, names = tree_map(lambda leaf: value_in(trace, leaf), (arguments, named))
    options = current()
    result = f(*values, **names)
    outputs = list(leaves(result))
    if any(_belongs(trace, leaf) for leaf in outputs):
        raise UnsupportedError(
            "checkpoint: the function uses an array that is being differentiated and is none of its arguments; pass "
            "it as an argument."
        )

    def pull(*grads: Any) -> list[Any]:
        return _pulled_again(f, trace, (arguments, named), options, grads)

    node = Node(pull, [(leaf.node, leaf.index) for leaf in inputs], len(outputs))
    places = iter(range(len(outputs)))
    return tree_map(lambda leaf: _output(leaf, trace, node, next(places)), result)


def _pulled_again(
    f: Callable[..., Any], trace: Trace, given: Any, options: Options, grads: tuple[Any, ...]
) -> list[Any]:
    """Run f once more, recorded by a trace of its own under the options of the first run, and pull the gradients back
    through that record."""
    inner, starts = Trace(), []

    def enter(leaf: Any) -> Any:
        if not _belongs(trace, leaf):
            return leaf
        starts.append(Traced(leaf.value, inner, Node(None, ())))
        return starts[-1]

    token = CURRENT.set(options)
    try:
        values, names = tree_map(enter, given)
        outputs = zip(leaves(f(*values, **names)), grads, strict=True)
        found = backward([(o.node, o.index, g) for o, g in outputs if g is not None and _belongs(inner, o)])
        return [found.get(start.node) for start in starts]
    finally:
        CURRENT.reset(token)
        inner.open = False


def _output(leaf: Any, trace: Trace, node: Node, place: int) -> Any:
    return Traced(leaf, trace, node, place) if is_floating(leaf) else leaf


def _belongs(trace: Trace, leaf: Any) -> bool:
    return type(leaf) is Traced and leaf.trace is trace


def _recorded(trace: Trace, place: int, argument: Any) -> Any:
    """An argument with a recorded array in the place of each floating one."""
    recorded = False

    def enter(leaf: Any) -> Any:
        nonlocal recorded
        if not is_floating(leaf):
            return leaf
        recorded = True
        return Traced(leaf, trace, Node(None, ()))

    entered = tree_map(enter, argument)
    if not recorded:
        raise ArrayTypeError(
            f"value_and_grad: argument {place} is a {type(argument).__name__} without any floating array; expected an "
            "array or a structure of arrays. Make a Python number an array first, or choose another argument by "
            "argnums."
        )
    return entered


def _two(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise OptionError(
            f"value_and_grad: the function returned {type(result).__name__}; expected (value, aux), since has_aux "
            "is True."
        )
    return result


def _check_scalar(value: Any) -> None:
    if not hasattr(value, "shape") or tuple(value.shape) != ():
        got = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        raise ShapeError(
            f"value_and_grad: the function returned {got}; expected an array of shape (). Reduce it, for example "
            "with .sum() or .mean()."
        )


def _one(value: Any) -> Any:
    value = plain(value)
    return namespace(value).ones_like(value)


def _gradient(trace: Trace, leaf: Any, found: dict[Node, Any]) -> Any:
    """The gradient of one leaf of an argument: zeros where the value does not depend on it, None where it is not
    recorded."""
    if not _belongs(trace, leaf):
        return None
    gradient, like = found.get(leaf.node), plain(leaf)
    if gradient is None:
        return namespace(like).zeros_like(like)
    gradient = gradient if gradient.dtype == like.dtype else rules.astype(gradient, dtype=like.dtype)
    return np.asarray(gradient) if isinstance(gradient, np.generic) else gradient
