"""dnnarray's functions for HIPS autograd: every differentiable operation as a primitive whose gradient is dnnarray's
own.

Each function has the name and the signature of dnnarray's function, without ``out=`` and ``workspace=``, which have
no meaning while autograd records. autograd differentiates functions of NumPy arrays alone; for CuPy arrays use
`dnnarray.value_and_grad`.

>>> import autograd, autograd.numpy as np
>>> from dnnarray.interop.autograd import conv, cross_entropy
>>> x, w, labels = np.ones((2, 1, 3, 3)), np.ones((4, 1, 3, 3)), np.array([0, 3])
>>> def loss(w):
...     return cross_entropy(conv(x, w).reshape(2, 4), labels)
>>> autograd.grad(loss)(w).shape
(4, 1, 3, 3)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from autograd.builtins import SequenceBox
from autograd.extend import Box, defvjp_argnums, primitive

import dnnarray as dnn
from dnnarray._call.operation import Operation, operations
from dnnarray._errors import UnsupportedError
from dnnarray._problems.base import leaves, tree_map
from dnnarray._vjp import plan_of

_LEFT_OUT = ("out", "workspace")
_NOTE = """{first}

This is `dnnarray.{name}` as a primitive of HIPS autograd: it takes NumPy arrays, and autograd differentiates through
it.

{rest}"""


class _Call:
    """One call of an operation while autograd records.

    Attributes
    ----------
    operation, arrays, options : the call; a `_Place` stands in `arrays` for each leaf that autograd records
    pullback : what `dnnarray.vjp` gave for the call
    results : all results of the call, without boxes; the result is alone where the operation has one
    """

    def __init__(self, operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.operation, self.options = operation, options
        self.recorded: list[Any] = []
        self.arrays = tuple([tree_map(self._placed, _opened(a)) for a in arrays])
        self.needs = tuple(
            n for n, a in zip(operation.arrays, self.arrays, strict=True) if any(map(_is_place, leaves(a)))
        )
        self.pullback: Callable[..., tuple[Any, ...]] | None = None
        self.results: Any = None

    def _placed(self, array: Any) -> Any:
        if not isinstance(array, Box):
            return array
        self.recorded.append(array)
        return _Place(len(self.recorded) - 1)

    def filled(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arrays of the call with `values` for the recorded leaves."""
        return tuple([tree_map(lambda a: values[a.index] if _is_place(a) else a, array) for array in self.arrays])

    def run(self, values: tuple[Any, ...]) -> None:
        """Compute the results and keep the pullback."""
        plan = plan_of(self.operation)
        needs = None
        if plan.several:
            fields = inspect.signature(plan.backward.function).parameters
            needs = tuple(n for n in self.needs if n in fields)
        arrays = self.filled(values)
        self.results, self.pullback = dnn.vjp(self.operation.function, *arrays, needs=needs, **self.options)

    def gradients(self, grad: Any, argnums: tuple[int, ...], values: tuple[Any, ...]) -> list[Any]:
        """The gradients of the recorded leaves at `argnums`; zeros where the operation has no gradient for one."""
        assert self.pullback is not None
        return self._chosen(self.pullback(grad), argnums, values)

    def differentiable_gradients(self, grad: Any, argnums: tuple[int, ...], values: tuple[Any, ...]) -> list[Any]:
        """The same by a recorded call of the operation's gradient, for derivatives of derivatives."""
        plan = plan_of(self.operation)
        named = dict(zip(self.operation.arrays, self.filled(values), strict=True)) | self.options
        named[plan.backward.arrays[0]] = grad
        arrays = tuple(named.get(n) for n in plan.backward.arrays)
        found = _apply(plan.backward, arrays, {n: v for n, v in named.items() if n in plan.backward.defaults})
        by_name = found._asdict() if hasattr(found, "_asdict") else {self.operation.gradients[0]: found}
        return self._chosen(tuple(by_name.get(n) for n in self.operation.arrays), argnums, values)

    def _chosen(self, gradients: tuple[Any, ...], argnums: tuple[int, ...], values: tuple[Any, ...]) -> list[Any]:
        found: dict[int, Any] = {}
        for array, gradient in zip(self.arrays, gradients, strict=True):
            found.update((place.index, g) for place, g in _pairs(array, gradient) if _is_place(place))
        return [np.zeros_like(values[i - 1]) if found.get(i - 1) is None else found[i - 1] for i in argnums]


class _Place:
    """Stands for the recorded leaf of this index among the arrays of a call."""

    def __init__(self, index: int) -> None:
        self.index = index


def _is_place(array: Any) -> bool:
    return type(array) is _Place


def _opened(argument: Any) -> Any:
    """A list or tuple that autograd itself records as a tuple of recorded entries."""
    if isinstance(argument, SequenceBox):
        return tuple([_opened(argument[i]) for i in range(len(argument))])
    if isinstance(argument, (tuple, list)):
        branches = [_opened(branch) for branch in argument]
        return type(argument)(*branches) if hasattr(argument, "_fields") else tuple(branches)
    return argument


def _pairs(array: Any, gradient: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of an argument, each with its gradient."""
    if isinstance(array, (tuple, list)):
        for branch, g in zip(array, [None] * len(array) if gradient is None else gradient, strict=True):
            yield from _pairs(branch, g)
    elif array is not None:
        yield array, gradient


@primitive
def _result(call: _Call, *values: Any) -> Any:
    """The result that has a gradient; a tuple of the floating results where the gradient takes those of all."""
    call.run(values)
    if not isinstance(call.results, tuple):
        return call.results
    return tuple([call.results[i] for i in _recorded_results(call)])


@primitive
def _constant_result(call: _Call, place: int, *values: Any) -> Any:
    """A floating result without a gradient."""
    return call.results[place]


def _recorded_results(call: _Call) -> list[int]:
    floating = [i for i, r in enumerate(call.results) if r is not None and r.dtype.kind == "f"]
    return floating if plan_of(call.operation).every else floating[:1]


def _pull(
    argnums: tuple[int, ...], result: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[Any], list[Any]]:
    call, *values = arguments

    def pull(grad: Any) -> list[Any]:
        full: Any = grad
        if isinstance(call.results, tuple):
            given = dict(zip(_recorded_results(call), [grad[i] for i in range(len(result))], strict=True))
            full = tuple([given.get(i) for i in range(len(call.results))])
            if not plan_of(call.operation).every:
                full = full[0]
        again = any(isinstance(v, Box) for v in (*values, *leaves(full)))
        return (call.differentiable_gradients if again else call.gradients)(full, argnums, tuple(values))

    return pull


def _refuse(
    argnums: tuple[int, ...], result: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Callable[[Any], Any]:
    call, place = arguments[:2]
    name = getattr(call.results, "_fields", ())[place]

    def pull(grad: Any) -> Any:
        raise UnsupportedError(
            f"{call.operation.name}: its result {name} has no gradient; only the first result has one. Compute the "
            "loss from that, or take "
            f"the value alone with autograd.tracer.getval(result.{name})."
        )

    return pull


defvjp_argnums(_result, _pull)
defvjp_argnums(_constant_result, _refuse)


def _apply(operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The operation, recorded where autograd records one of the arrays."""
    call = _Call(operation, arrays, options)
    if not call.recorded:
        return operation.call(call.arrays, options)
    found = _result(call, *call.recorded)
    if not isinstance(call.results, tuple):
        return found
    boxed = {place: found[i] for i, place in enumerate(_recorded_results(call))}
    for i, r in enumerate(call.results):
        if i not in boxed and r is not None and r.dtype.kind == "f":
            boxed[i] = _constant_result(call, i, *call.recorded)
    build: Any = type(call.results)
    return build(*[boxed.get(i, r) for i, r in enumerate(call.results)])


def _function(operation: Operation) -> Callable[..., Any]:
    signature = inspect.signature(operation.function)
    kept = signature.replace(parameters=[p for n, p in signature.parameters.items() if n not in _LEFT_OUT])

    def function(*arguments: Any, **named: Any) -> Any:
        bound = kept.bind(*arguments, **named)
        bound.apply_defaults()
        options = bound.arguments
        arrays = tuple([options.pop(n) for n in operation.arrays])
        if options.get("algorithm", "") is None:
            del options["algorithm"]
        return _apply(operation, arrays, options)

    function.__name__ = function.__qualname__ = operation.name
    function.__module__ = __name__
    function.__signature__ = kept  # type: ignore[attr-defined]
    first, _, rest = inspect.cleandoc(operation.function.__doc__ or "").partition("\n\n")
    function.__doc__ = _NOTE.format(first=first, name=operation.name, rest=rest)
    return function


def _functions() -> dict[str, Callable[..., Any]]:
    """A function for every operation with a gradient, by name."""
    registered = operations()
    return {n: _function(o) for n, o in registered.items() if f"{o.base}_backward" in registered}


_FUNCTIONS = _functions()
__all__ = sorted(_FUNCTIONS)
globals().update(_FUNCTIONS)
