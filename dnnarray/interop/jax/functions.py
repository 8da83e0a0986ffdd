"""The public functions of `dnnarray.interop.jax`: dnnarray's own functions on arrays that stand for those of JAX, with
their gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import jax
import numpy as np

from dnnarray._call.dispatch import freeze
from dnnarray._call.operation import Operation, operations
from dnnarray._errors import ArrayTypeError, OptionError, UnsupportedError
from dnnarray._options import current
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import Spec
from dnnarray._vjp import Plan, plan_of
from dnnarray.interop.jax.axes import alike
from dnnarray.interop.jax.call import Call, arrays_of, read, write
from dnnarray.interop.jax.target import emit

_ARRAYS = (jax.Array, np.ndarray)
_LEFT_OUT = ("out", "workspace")
_NO_INFLUENCE = {"running_mean", "running_var"}  # on the only result that has a gradient
_NOTE = """{first}

This is `dnnarray.{name}` as a function of JAX arrays, for use under ``jax.jit``, ``jax.grad``, ``jax.vmap`` and
``jax.shard_map``.

{rest}"""


def functions() -> dict[str, Callable[..., Any]]:
    """A function for every operation, by name."""
    return {name: _function(operation) for name, operation in operations().items()}


def _function(operation: Operation) -> Callable[..., Any]:
    own = operation.function
    signature = inspect.signature(own)

    @wraps(own)
    def function(*values: Any, **named: Any) -> Any:
        placed = [_wrapped(v) for v in values]
        result = own(*placed, **{n: _wrapped(v) if n in operation.arrays else v for n, v in named.items()})
        return tree_map(lambda a: a.value, result)

    made: Any = function
    made.__module__ = __name__.rpartition(".")[0]
    made.__signature__ = signature.replace(
        parameters=[p for n, p in signature.parameters.items() if n not in _LEFT_OUT]
    )
    first, _, rest = inspect.cleandoc(own.__doc__ or "").partition("\n\n")
    made.__doc__ = _NOTE.format(first=first, name=operation.name, rest=rest)
    del made.__wrapped__
    return function


class Standing:
    """An array inside of a call of dnnarray that stands for one of JAX, which may be a tracer. Calls on it come to
    `apply`."""

    def __init__(self, value: Any) -> None:
        self.value, self.shape, self.dtype, self.ndim = value, value.shape, np.dtype(value.dtype), value.ndim

    @staticmethod
    def __dnnarray_function__(
        operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any], out: Any, workspace: Any
    ) -> Any:
        return apply(operation, arrays, options, out, workspace)


def _wrapped(value: Any) -> Any:
    """A value with every array in it as one that stands for it."""
    if isinstance(value, _ARRAYS):
        return Standing(jax.numpy.asarray(value))
    return tree_map(_wrapped, value) if any(isinstance(leaf, _ARRAYS) for leaf in leaves((value,))) else value


def apply(operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any], out: Any, workspace: Any) -> Any:
    """Trace a call of an operation: its result, of arrays that stand for those of JAX."""
    if out is not None or workspace is not None:
        raise OptionError(
            f"{operation.name}: out= and workspace= cannot be given for arrays of JAX, which never change; leave "
            "them out."
        )
    described = tuple(_described(operation, n, a) for n, a in zip(operation.arrays, arrays, strict=True))
    drawn = {n: v for n in operation.runtime if isinstance(v := options[n], (jax.Array, Standing))}
    static = {n: freeze(v) for n, v in options.items() if n not in drawn}
    for name, value in static.items():
        if isinstance(value, jax.Array):
            raise OptionError(
                f"{operation.name}: {name} is an array of JAX; expected a value that is known when the call is traced."
            )
    flat = alike([*(a.value for a in arrays_of(arrays)), *map(_value, drawn.values())])
    specs = {n: _spec_of_number(operation, n, _value(v)) for n, v in drawn.items()}
    call = read(write(operation, described, static, specs, current()))
    return tree_map(Standing, call.pack(_differentiable(call)(*flat)))


def _value(array: Any) -> Any:
    return array.value if isinstance(array, Standing) else array


def _described(operation: Operation, name: str, argument: Any) -> Any:
    """The specs of an argument, its numbers as they are."""

    def describe(leaf: Any) -> Any:
        if isinstance(leaf, Standing):
            return _specs(leaf)
        if type(leaf) is int and name in operation.numbers:
            return leaf
        raise ArrayTypeError(
            f"{operation.name}: {name} is a {type(leaf).__name__}; expected an array of JAX, as the others are."
        )

    return (
        tree_map(describe, argument)
        if name in operation.nested
        else argument
        if argument is None
        else describe(argument)
    )


def _spec_of_number(operation: Operation, name: str, array: Any) -> Spec:
    """The spec of a run-time option, which may be traced."""
    if array.shape != () or array.dtype.kind not in "iu":
        raise OptionError(
            f"{operation.name}: {name} is an array {array.dtype}{list(array.shape)}; expected an integer, or an "
            "array of one."
        )
    return Spec((), np.dtype(array.dtype))


@lru_cache(maxsize=4096)
def _differentiable(call: Call) -> Callable[..., Any]:
    """The custom call of an operation, with its gradient."""
    function = jax.custom_vjp(lambda *flat: emit(call, flat))
    function.defvjp(
        lambda *given: _forward(call, given), lambda kept, grads: _backward(call, kept, grads), symbolic_zeros=True
    )
    return function


@jax.tree_util.register_pytree_node_class
class _Kept:
    """What a forward leaves for the gradient.

    Attributes
    ----------
    arrays : those that the gradient takes, in its form
    drawn : run-time options that are arrays
    wanted : for each array of the call, whether its gradient is wanted
    """

    def __init__(self, arrays: Any, drawn: dict[str, Any], wanted: tuple[bool, ...]) -> None:
        self.arrays, self.drawn, self.wanted = arrays, drawn, wanted

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        return (self.arrays, self.drawn), self.wanted

    @classmethod
    def tree_unflatten(cls, wanted: tuple[bool, ...], children: Any) -> _Kept:
        arrays, drawn = children
        return cls(arrays, drawn, wanted)


def _forward(call: Call, given: Sequence[Any]) -> tuple[list[Any], _Kept]:
    """The results, and what the gradient wants of them."""
    flat, wanted = [g.value for g in given], tuple(g.perturbed for g in given)
    drawn = dict(zip(call.drawn, flat[len(flat) - len(call.drawn) :], strict=True))
    if not any(wanted):
        return emit(call, flat), _Kept((), drawn, wanted)
    plan = plan_of(call.operation)
    arrays = call.fill([Standing(value) for value in flat])
    result, kept = plan.run(arrays, call.options | drawn)
    return [a.value for a in leaves((result,))], _Kept(tree_map(_value, kept), drawn, wanted)


def _backward(call: Call, kept: _Kept, grads: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients of the arrays in the order of XLA's operands, None where there is none."""
    if not any(kept.wanted):
        return (None,) * len(kept.wanted)
    plan, operation = plan_of(call.operation), call.operation
    options = call.options | kept.drawn
    arrays = tree_map(lambda a: a if type(a) is int else Standing(a), kept.arrays)
    names = _wanted(call, kept.wanted)
    grad = plan.taken(_cotangents(call, plan, grads))
    needs = operation.gradients[:1]
    if plan.several:
        needs = plan.needing(names, _specs(grad), _specs(arrays), options | dict.fromkeys(kept.drawn, 0))
    _check_all(operation, names, needs)
    found: Any = plan.gradients(grad, arrays, options, call.settings, needs if plan.several else None) if needs else ()
    by_name = found._asdict() if hasattr(found, "_asdict") else dict(zip(needs, (found,), strict=False))
    flat = [g for n, tree in zip(operation.arrays, call.arrays, strict=True) for g in _in_place(tree, by_name.get(n))]
    flat += [None] * len(call.drawn)
    return tuple(None if g is None or not w else g.value for g, w in zip(flat, kept.wanted, strict=True))


def _specs(tree: Any) -> Any:
    """What is known of the arrays without their data."""
    return tree_map(lambda a: Spec(a.shape, a.dtype) if isinstance(a, Standing) else a, tree)


def _wanted(call: Call, wanted: tuple[bool, ...]) -> tuple[str, ...]:
    """The names of the arrays whose gradients are wanted."""
    flags = iter(wanted)
    found = [
        (n, [next(flags) for _ in arrays_of(tree)]) for n, tree in zip(call.operation.arrays, call.arrays, strict=True)
    ]
    return tuple(name for name, any_of in found if any(any_of))


def _check_all(operation: Operation, names: tuple[str, ...], needs: tuple[str, ...]) -> None:
    """No gradient is left out silently."""
    for name in names:
        if name not in needs and name not in _NO_INFLUENCE:
            raise UnsupportedError(
                f"{operation.name}: has no gradient with respect to {name}; pass jax.lax.stop_gradient({name}) "
                "where it is a constant."
            )


def _cotangents(call: Call, plan: Plan, grads: Sequence[Any]) -> Any:
    """The gradients of the results as the backward takes them, None where a result does not matter."""
    zero = jax.custom_derivatives.SymbolicZero
    given = [None if isinstance(g, zero) or g.dtype == jax.dtypes.float0 else g for g in grads]
    if given[0] is None:
        first = call.outputs[0]
        given[0] = jax.numpy.zeros(first.shape, first.dtype)
    if not plan.every and any(g is not None for g in given[1:]):
        raise UnsupportedError(
            f"{call.operation.name}: only the first result has a gradient; pass the others through "
            "jax.lax.stop_gradient."
        )
    packed = call.pack([None if g is None else Standing(g) for g in given])
    return tuple(packed) if isinstance(packed, tuple) else packed


def _in_place(tree: Any, gradient: Any) -> list[Any]:
    """The gradients of an argument, one for each array in it."""
    if isinstance(tree, (tuple, list)):
        branches = [None] * len(tree) if gradient is None else gradient
        return [g for branch, inner in zip(tree, branches, strict=True) for g in _in_place(branch, inner)]
    return [] if tree is None or type(tree) is int else [gradient]
