"""`vjp`: output and pullback of any differentiable operation, from the one registry of operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dnnarray._arrays import spec_of
from dnnarray._errors import ArrayTypeError, OptionError, UnsupportedError, fail
from dnnarray._operation import Operation, find, lookup
from dnnarray._options import CURRENT, Options, current
from dnnarray._problems.needs import NEEDS, check_names
from dnnarray._records import frozen
from dnnarray._untraced import untraced


@untraced
def vjp(op: Any, *arrays: Any, needs: tuple[str, ...] | None = None, **options: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Run an operation and return, beside its output, the function that pulls a gradient back.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array or option
        The arrays of the call in signature order, None where omitted. Options that the function takes among them (``num_groups``,
        ``kernel_size``, ``output_size``, ...) may stand in their places or be given by name; what is no array, behind all arrays, is
        the next option of the signature.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted, as the functions that compute gradients take them: the pullback computes nothing
        for the others, and gives None for them. None (the default) for all.
    **options
        Everything else, by name. Keyword-only arrays (``residual``, ``mask``) may be given by name too. ``algorithm`` is that of the
        forward; the gradients go by the algorithm of the same name where there is one that does them.

    Returns
    -------
    output : array or named tuple
        What ``op(*arrays, **options)`` returns.
    pullback : callable
        ``pullback(grad)`` takes the gradient of the output (of the first one where there are several, or a tuple with None
        for the others) and returns a tuple with one entry per array passed, None for what has no gradient. Arrays given by
        name follow in signature order. Of an output without axes the gradient may be a Python number, and is 1 where it is left out.
        The `options` that were in force when `vjp` ran are in force again while the pullback runs, in whatever thread that is. A pullback can be
        pickled, and takes the arrays that it keeps with it.

    Raises
    ------
    UnsupportedError
        The operation has no gradient.
    OptionError
        `op` is no operation, or `needs` names what is no array of it or, when the pullback is called, an array without a gradient.
    ArrayTypeError
        An argument is no array; or the pullback got a number, or nothing, for an output that has axes.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> y, pullback = dnn.vjp("relu", np.array([-1.0, 2.0]))
    >>> pullback(np.array([10.0, 10.0]))
    (array([ 0., 10.]),)
    >>> loss, pullback = dnn.vjp("cross_entropy", np.zeros((1, 2)), np.array([0]))
    >>> pullback()
    (array([[-0.5,  0.5]]), None)
    >>> y, pullback = dnn.vjp("linear", np.ones((1, 2)), np.ones((3, 2)), needs=("weight",))
    >>> pullback(np.array([[1.0, 2.0, 3.0]]))
    (None, array([[1., 1.],
           [2., 2.],
           [3., 3.]]))
    """
    operation = find(op)
    backward = lookup(f"{operation.base}_backward")
    if backward is None:
        raise UnsupportedError(
            f"{operation.name}: has no gradient; it counts or looks up, serves inference alone, or is itself a gradient."
        )
    forced = {"algorithm": options.pop("algorithm")} if "algorithm" in options else {}
    bound, chosen = operation.bind(arrays, options)
    chosen = {n: v for n, v in chosen.items() if v is not inspect.Parameter.empty}  # the call itself says what is missing
    placed = operation.place(arrays, options)
    passed = tuple(n for n in operation.arrays if n in placed) + tuple(n for n in operation.arrays if n in options)
    named = dict(zip(operation.arrays, bound, strict=True))
    saved: dict[str, Any]
    if operation.save is None:
        output, saved = operation.call(bound, chosen | forced), {}
    else:
        if operation.ndim is not None:  # `save` calls the general operation
            operation.check_rank(spec_of(bound[0], f"{operation.name}: {operation.arrays[0]}"))
        output, saved = operation.save(*bound, **chosen, **forced)
    takes_algorithm = "algorithm" in backward.function.__signature__.parameters  # type: ignore[attr-defined]
    forced = forced if takes_algorithm else {}
    kept = {n: v for n, v in (named | chosen | saved).items() if n in backward.arrays or n in backward.defaults}
    kept |= _wanted(operation, backward, needs)
    (_, *others), rest = backward.bind((None,), kept)
    results = output if isinstance(output, tuple) else (output,)
    scalars = tuple(result if getattr(result, "shape", None) == () else None for result in results)
    return output, Pullback(operation, backward, tuple(others), rest, forced, passed, scalars, current())


@frozen(eq=False)
class Pullback:
    """What pulls a gradient back through one call of an operation.

    Attributes
    ----------
    operation, backward : the operation, and the one that computes its gradients
    arrays, options : what the latter gets beside the gradient
    forced : the algorithm that was named for the forward
    passed : the arrays whose gradients are returned, by name
    scalars : the results that have no axes, None for each of the others
    settings : the options that were in force
    """

    operation: Operation
    backward: Operation
    arrays: tuple[Any, ...]
    options: dict[str, Any]
    forced: dict[str, Any]
    passed: tuple[str, ...]
    scalars: tuple[Any, ...]
    settings: Options

    def __call__(self, grad: Any = 1.0) -> tuple[Any, ...]:
        token = CURRENT.set(self.settings)
        try:
            given = (_only_first(self.operation, self.backward, self._as_arrays(grad)), *self.arrays)
            gradients = _by_name(self.operation, _run(self.backward, given, self.options, self.forced))
        finally:
            CURRENT.reset(token)
        return tuple(gradients.get(name) for name in self.passed)

    def __repr__(self) -> str:
        return f"<pullback of {self.operation.name}>"

    def _as_arrays(self, grad: Any) -> Any:
        """The gradients with an array for each Python number, which is for a result without axes."""
        if isinstance(grad, (tuple, list)):
            return tuple(self._as_array(g, i) for i, g in enumerate(grad))
        return self._as_array(grad, 0)

    def _as_array(self, grad: Any, place: int) -> Any:
        if not isinstance(grad, (int, float)):
            return grad
        scalar = self.scalars[place] if place < len(self.scalars) else None
        if scalar is None:
            fix = "Only the gradient of a result without axes may be a number, or be left out, for 1."
            fail(ArrayTypeError, self.backward.name, "grad", f"the number {grad}", "an array of the shape of the result", fix)
        from array_api_compat import array_namespace  # which few calls need

        return array_namespace(scalar).full_like(scalar, grad)


def _wanted(operation: Operation, backward: Operation, needs: Any) -> dict[str, Any]:
    """The option of the backward that leaves out what is not needed; none where it has a single gradient, which must be the one that is."""
    if needs is None:
        return {}
    several = NEEDS in backward.defaults
    check_names(operation.name, needs, operation.arrays if several else operation.gradients[:1])
    return {NEEDS: tuple(needs)} if several else {}


def _run(backward: Operation, arrays: tuple[Any, ...], options: dict[str, Any], forced: dict[str, Any]) -> Any:
    """The backward by the algorithm named for the forward, where it has one of that name which does the problem; else by the best."""
    if forced:
        with suppress(OptionError, UnsupportedError):
            return backward.call(arrays, options | forced)
    return backward.call(arrays, options)


def _only_first(operation: Operation, backward: Operation, grad: Any) -> Any:
    """The gradient as the backward takes it: of the first result, unless it takes those of all."""
    if "grad" in backward.nested or not isinstance(grad, (tuple, list)):
        return grad
    if any(g is not None for g in grad[1:]):
        raise UnsupportedError(f"{operation.name}: only the first result has a gradient; pass None for the others.")
    return grad[0] if grad else None


def _by_name(operation: Operation, gradients: Any) -> dict[str, Any]:
    if hasattr(gradients, "_asdict"):
        return gradients._asdict()
    return {operation.gradients[0]: gradients}
