"""`Primitive`: a function of the Array API together with its gradient rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from dnnarray._autodiff.traced import Node, Traced, top_trace, value_in
from dnnarray._errors import DTypeError
from dnnarray._spec import FLOAT32, FLOATING, HALF, as_dtype

_NO_ARRAYS = frozenset((int, float, bool, type(None)))
_namespaces: dict[type, Any] = {}


def namespace(*arrays: Any) -> Any:
    """The Array API namespace of plain arrays; Python numbers among them are passed over."""
    for array in arrays:
        if type(array) not in _NO_ARRAYS:
            cls = type(array)
            if cls not in _namespaces:
                _namespaces[cls] = array_namespace(np.asarray(array) if isinstance(array, np.generic) else array)
            return _namespaces[cls]
    raise TypeError("expected an array among the arguments")


def is_half(array: Any) -> bool:
    """Whether sums over the array must be taken in float32."""
    return as_dtype(array.dtype) in HALF


def cast(array: Any, dtype: Any) -> Any:
    """A plain array in another dtype."""
    return namespace(array).astype(array, dtype, copy=False)


def widened(array: Any) -> Any:
    """A plain array of half type in float32, any other as it is."""
    xp = namespace(array)
    return xp.astype(array, getattr(xp, FLOAT32.name)) if is_half(array) else array


class Primitive:
    """A function with a gradient rule for each of its leading array arguments.

    Calling it with `Traced` arrays records a `Node`; with plain arrays it only calls `forward`.

    Parameters
    ----------
    forward : ``forward(xp, *arrays, **options)`` computes with plain arrays of the namespace `xp`
    rules : for each array argument ``rule(grad, result, *arrays, **options)``, the gradient with respect to it. Rules
        are written in terms of primitives and operators, so that they can be recorded themselves. A single rule stands
        for all arguments of a function of any number of arrays and gets the place of its argument as ``place=``.
    """

    __slots__ = ("forward", "name", "rules", "variadic")

    def __init__(self, forward: Callable[..., Any], *rules: Callable[..., Any], variadic: bool = False) -> None:
        self.name = forward.__name__.strip("_")
        self.forward, self.rules, self.variadic = forward, rules, variadic

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        trace = top_trace(arrays)
        if trace is None:
            return self.forward(namespace(*arrays), *arrays, **options)
        values = [value_in(trace, a) for a in arrays]
        nested = Traced in map(type, values)
        result = self(*values, **options) if nested else self.forward(namespace(*values), *values, **options)
        places = [i for i, a in enumerate(arrays) if type(a) is Traced and a.trace is trace]
        if self.variadic:
            (rule,) = self.rules

            def pull(grad: Any) -> list[Any]:
                return [rule(grad, result, *values, place=i, **options) for i in places]

        else:
            rules = [self.rules[i] for i in places]

            def pull(grad: Any) -> list[Any]:
                return [rule(grad, result, *values, **options) for rule in rules]

        return Traced(result, trace, Node(pull, [(arrays[i].node, arrays[i].index) for i in places]))


def primitive(*rules: Callable[..., Any], variadic: bool = False) -> Callable[[Callable[..., Any]], Primitive]:
    """Decorate a forward function with its rules."""
    return lambda forward: Primitive(forward, *rules, variadic=variadic)


def shape_of(array: Any) -> tuple[int, ...]:
    """The shape of an array, traced or not; () for a Python number."""
    return tuple(getattr(array, "shape", ()))


def is_floating(leaf: Any) -> bool:
    """Whether something is an array, traced or not, of a dtype that has gradients."""
    try:
        dtype = leaf.dtype
        known = _floating.get(dtype)
    except (AttributeError, TypeError):  # no array; a dtype that cannot be looked up by
        return False
    if known is None:
        known = _floating[dtype] = _has_gradients(dtype)
    return known and hasattr(leaf, "shape")


# By dtype, of which a namespace has a few.
_floating: dict[Any, bool] = {}


def _has_gradients(dtype: Any) -> bool:
    try:
        return as_dtype(dtype) in FLOATING
    except DTypeError:
        return False
