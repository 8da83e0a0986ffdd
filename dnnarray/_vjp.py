"""`vjp`: output and pullback of any differentiable operation, from the one registry of operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dnnarray import _source
from dnnarray._call.arrays import spec_of
from dnnarray._call.binding import binding_of
from dnnarray._call.operation import Operation, find, lookup
from dnnarray._call.untraced import untraced
from dnnarray._errors import ArrayTypeError, OptionError, UnsupportedError, fail
from dnnarray._options import CURRENT, DEFAULT, Options
from dnnarray._problems.needs import NEEDS, check_names
from dnnarray._records import frozen


@untraced
def vjp(
    op: Any, *arrays: Any, needs: tuple[str, ...] | None = None, **options: Any
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Run an operation and return, beside its output, the function that pulls a gradient back.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array or option
        The arrays of the call in signature order, None where omitted. Options that the function takes among them
        (``num_groups``, ``kernel_size``, ``output_size``, ...) may stand in their places or be given by name; what is
        no array, behind all arrays, is the next option of the signature.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted, as the functions that compute gradients take them: the pullback
        computes nothing for the others, and gives None for them. None (the default) for all.
    **options
        Everything else, by name. Keyword-only arrays (``residual``, ``mask``) may be given by name too. ``algorithm``
        is that of the forward; the gradients go by the algorithm of the same name where there is one that does them.

    Returns
    -------
    output : array or named tuple
        What ``op(*arrays, **options)`` returns.
    pullback : callable
        ``pullback(grad)`` takes the gradient of the output (of the first one where there are several, or a tuple with
        None for the others) and returns a tuple with one entry per array passed, None for what has no gradient. Arrays
        given by name follow in signature order. Of an output without axes the gradient may be a Python number, and is 1
        where it is left out. The `options` that were in force when `vjp` ran are in force again while the pullback
        runs, in whatever thread that is. A pullback can be pickled, and takes the arrays that it keeps with it.

    Notes
    -----
    Second derivatives are the gradients of the functions that compute gradients: ``vjp("conv_backward", grad, x,
    weight)``. They exist for convolution, linear layers, activations, norms, softmax, pooling, dropout, interpolation,
    and for all losses but `ctc_loss`. They are composed of the library's functions and of array arithmetic, so that a
    second derivative of `linear_cross_entropy` holds all logits. Saved statistics that the function may be given
    (``mean``, ``rstd``, ``lse``, ``indices``) count as functions of the other arrays and have no gradient; a saved
    result ``y`` has one, in the place of `x`.

    Raises
    ------
    UnsupportedError
        The operation has no gradient.
    OptionError
        `op` is no operation, or `needs` names what is no array of it or, when the pullback is called, an array without
        a gradient.
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
    plan = any_plan_of(find(op))
    operation = plan.operation
    forced = {"algorithm": options.pop("algorithm")} if plan.choosable and "algorithm" in options else {}
    binding = binding_of(operation, arrays, options)
    bound, chosen = binding.bound(arrays, options)
    options = binding.missing | chosen | forced
    output, kept = plan.run(bound, options)
    wanted = None if needs is None else _wanted(plan, needs)
    results = output if isinstance(output, tuple) else (output,)
    scalars = tuple([result if getattr(result, "shape", None) == () else None for result in results])
    return output, Pullback(plan, kept, options, CURRENT.get(DEFAULT), wanted, binding.passed, scalars)


@frozen(eq=False)
class Plan:
    """How calls of an operation are differentiated: what no call changes, found once.

    Attributes
    ----------
    operation, backward : the operation, and the one that computes its gradients
    forward : ``forward(arrays, options)`` calls the function, or what saves something for the gradient beside; the
        arrays stand in signature order, everything else goes by name, and nothing is left out but ``algorithm``
    pull : ``pull(grad, arrays, options, needs, algorithm)`` calls the backward; behind the arrays of the forward stand
        those that it saved
    saved : the names of the latter
    choosable, algorithm : whether the forward, and the backward, takes an algorithm
    several : whether the backward computes several gradients, and leaves out those that are not needed
    every : whether the backward takes the gradients of all results, not that of the first alone
    needs : what `needing` found
    """

    operation: Operation
    backward: Operation
    forward: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    pull: Callable[..., Any]
    saved: tuple[str, ...]
    choosable: bool
    algorithm: bool
    several: bool
    every: bool
    needs: dict[tuple[str, ...], tuple[str, ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, those of other processes too, are the one plan of the operation."""
        return any_plan_of, (self.operation,)

    def run(self, arrays: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The output of a call, and the arrays that it leaves for the gradient."""
        operation = self.operation
        if operation.save is None:
            return self.forward(arrays, options), arrays
        if operation.ndim is not None:  # `save` calls the general operation
            operation.check_rank(spec_of(arrays[0], f"{operation.name}: {operation.arrays[0]}"))
        output, saved = self.forward(arrays, options)
        if not saved.keys().isdisjoint(operation.arrays):  # what the gradient takes in the place of an input
            arrays = tuple([saved.get(n, a) for n, a in zip(operation.arrays, arrays, strict=True)])
        return output, (*arrays, *[saved.get(n) for n in self.saved])

    def gradients(
        self,
        grad: Any,
        arrays: tuple[Any, ...],
        options: dict[str, Any],
        settings: Options,
        needs: tuple[str, ...] | None = None,
    ) -> Any:
        """What the backward returns for the gradient of the output, under the options `settings` that were in force at
        the forward.

        It goes by the algorithm that was named for the forward, where it has one of that name which does the problem;
        else by the best."""
        token = None if CURRENT.get(DEFAULT) is settings else CURRENT.set(settings)
        try:
            if self.algorithm and (algorithm := options.get("algorithm")):
                with suppress(OptionError, UnsupportedError):
                    return self.pull(grad, arrays, options, needs, algorithm)
            return self.pull(grad, arrays, options, needs, None)
        finally:
            if token is not None:
                CURRENT.reset(token)

    def taken(self, grads: Any) -> Any:
        """The gradient as the backward takes it: of the first result, unless it takes those of all."""
        if self.every or not isinstance(grads, (tuple, list)):
            return grads
        if any(g is not None for g in grads[1:]):
            raise UnsupportedError(
                f"{self.operation.name}: only the first result has a gradient; pass None for the others."
            )
        return grads[0] if grads else None

    def needing(
        self, names: tuple[str, ...], grad: Any, arrays: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[str, ...]:
        """Those of these arrays of a call that have a gradient, of an operation with several."""
        found = self.needs.get(names)
        if found is None:
            from dnnarray._autodiff import stop_gradient
            from dnnarray._call.introspect import question  # which few programs need

            named = dict(zip(self.backward.arrays, stop_gradient((grad, *arrays)), strict=True))
            taken = {n: v for n, v in options.items() if n in self.backward.defaults}
            fields = question(self.backward.function, (), named | taken).problem.fields
            found = self.needs[names] = tuple([n for n in names if n in fields])
        return found


@lru_cache(maxsize=1024)
def any_plan_of(operation: Operation) -> Plan:
    """The plan of an operation, which may compute gradients itself."""
    from dnnarray._autodiff.second import gradient_plan  # which few programs need

    backward = operation.base.endswith("_backward") and lookup(f"{operation.base}_backward") is None
    return gradient_plan(operation) if backward else plan_of(operation)


@lru_cache(maxsize=1024)
def plan_of(operation: Operation) -> Plan:
    """The plan of an operation, or the error that says that it has no gradient."""
    backward = lookup(f"{operation.base}_backward")
    if backward is None:
        raise UnsupportedError(
            f"{operation.name}: has no gradient here; it counts or looks up, serves inference alone, or is itself a "
            "gradient. dnn.vjp and dnn.value_and_grad differentiate the gradients that are named <operation>_backward."
        )
    saved = backward.arrays[1 + len(operation.arrays) :] if operation.save else ()
    parameters = inspect.signature(backward.function).parameters
    return Plan(
        operation,
        backward,
        forward=caller(operation),
        pull=_puller(operation, backward, saved),
        saved=saved,
        choosable="algorithm" in inspect.signature(operation.function).parameters,
        algorithm="algorithm" in parameters,
        several=NEEDS in parameters,
        every="grad" in backward.nested,
        needs={},
    )


def caller(operation: Operation) -> Callable[..., Any]:
    """``call(arrays, options)``: the function, or what saves something beside, on all arrays in signature order and the
    options by name."""
    saves = operation.save is not None
    by_place = len(operation.arrays) if saves else operation.by_place
    given = [n if i < by_place else f"{n}={n}" for i, n in enumerate(operation.arrays)]
    given += [f"{n}=_options[{n!r}]" for n in operation.defaults]
    if "algorithm" in inspect.signature(operation.function).parameters:
        given.append("algorithm=_options.get('algorithm')")
    return _written(operation.name, "_arrays, _options", operation.arrays, given, operation.save or operation.function)


def _puller(operation: Operation, backward: Operation, saved: tuple[str, ...]) -> Callable[..., Any]:
    """``pull(grad, arrays, options, needs, algorithm)``: the backward on its arrays and on those of the options that it
    takes too."""
    parameters = inspect.signature(backward.function).parameters
    arrays = (*operation.arrays, *saved)
    given = ["_grad", *(n if parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY else f"{n}={n}" for n in arrays)]
    given += [f"{n}=_options[{n!r}]" for n in operation.defaults if n in backward.defaults]
    given += [f"{n}=_{n}" for n in (NEEDS, "algorithm") if n in parameters]
    return _written(backward.name, "_grad, _arrays, _options, _needs, _algorithm", arrays, given, backward.function)


def _written(
    name: str, parameters: str, arrays: tuple[str, ...], given: list[str], function: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that takes `arrays` out of the tuple ``_arrays`` and calls `function` with `given`."""
    names = "".join(f"{n}, " for n in arrays)
    text = f"def call_{name}({parameters}):\n    ({names}) = _arrays\n    return _function({', '.join(given)})\n"
    return _source.function(f"call_{name}", text, {"_function": function}, __name__)


@frozen(eq=False)
class Pullback:
    """What pulls a gradient back through one call of an operation.

    Attributes
    ----------
    plan : how the operation is differentiated
    arrays, options : what the call got, and what it saved
    settings : the options of the library that were in force, and are again while the pullback runs
    needs : the arrays whose gradients are wanted, of an operation with several; None for all
    passed : the arrays whose gradients are returned, by name
    scalars : the results that have no axes, None for each of the others
    """

    plan: Plan
    arrays: tuple[Any, ...]
    options: dict[str, Any]
    settings: Options
    needs: tuple[str, ...] | None
    passed: tuple[str, ...]
    scalars: tuple[Any, ...]

    def __call__(self, grad: Any = 1.0) -> tuple[Any, ...]:
        plan = self.plan
        result = plan.gradients(plan.taken(self._as_arrays(grad)), self.arrays, self.options, self.settings, self.needs)
        gradients = _by_name(plan.operation, result)
        return tuple([gradients.get(name) for name in self.passed])

    def __repr__(self) -> str:
        return f"<pullback of {self.plan.operation.name}>"

    def _as_arrays(self, grad: Any) -> Any:
        """The gradients with an array for each Python number, which is for a result without axes."""
        if isinstance(grad, (tuple, list)):
            return tuple([self._as_array(g, i) for i, g in enumerate(grad)])
        return self._as_array(grad, 0)

    def _as_array(self, grad: Any, place: int) -> Any:
        if not isinstance(grad, (int, float)):
            return grad
        scalar = self.scalars[place] if place < len(self.scalars) else None
        if scalar is None:
            fix = "Only the gradient of a result without axes may be a number, or be left out, for 1."
            fail(
                ArrayTypeError,
                self.plan.backward.name,
                "grad",
                f"the number {grad}",
                "an array of the shape of the result",
                fix,
            )
        from array_api_compat import array_namespace  # which few calls need

        return array_namespace(scalar).full_like(scalar, grad)


def _wanted(plan: Plan, needs: Any) -> tuple[str, ...] | None:
    """What the backward is told to compute; nothing where it has a single gradient, which must be the one that is
    needed."""
    check_names(plan.operation.name, needs, plan.operation.arrays if plan.several else plan.operation.gradients[:1])
    return tuple(needs) if plan.several else None


def _by_name(operation: Operation, gradients: Any) -> dict[str, Any]:
    if hasattr(gradients, "_asdict"):
        return gradients._asdict()
    return {operation.gradients[0]: gradients}
