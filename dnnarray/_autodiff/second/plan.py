"""The plan of an operation that computes gradients: how `vjp` and `value_and_grad` differentiate it."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from dnnarray._autodiff import calls, operators, rules  # the first two give `Traced` what definitions use
from dnnarray._autodiff.primitive import is_floating, is_half, namespace
from dnnarray._autodiff.second import activation, linear
from dnnarray._autodiff.second.definitions import DEFINITIONS
from dnnarray._autodiff.second.given import Given, zeros_like
from dnnarray._autodiff.traced import Node, Trace, Traced, backward, plain
from dnnarray._call.operation import Operation, find
from dnnarray._errors import UnsupportedError
from dnnarray._problems.base import leaves
from dnnarray._records import frozen
from dnnarray._tree import tree_map
from dnnarray._vjp import Plan, caller

__all__ = ["calls", "gradient_plan", "operators"]

_RULES = activation.RULES | linear.RULES
_BILINEAR = ("conv", "conv_transpose", "linear")
_HAVE = (
    "convolution, linear layers, activations, norms, softmax, pooling, dropout, interpolation, and losses but ctc_loss"
)


@frozen(eq=False)
class GradientPlan(Plan):
    """How calls of an operation that computes gradients are differentiated; its pull needs no backward of its own."""

    def run(self, arrays: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The output of a call, and what it leaves for its gradient: the arrays, and the names of the gradients that it
        computed, which depend on the arrays that were there."""
        output = self.forward(arrays, options)
        return output, (*arrays, getattr(output, "_fields", None))

    def needing(
        self, names: tuple[str, ...], grad: Any, arrays: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[str, ...]:
        return names


def gradient_plan(operation: Operation) -> Plan:
    """The plan of ``<op>_backward``.

    Raises
    ------
    UnsupportedError
        The gradient of the forward is not differentiable here.
    """
    forward = find(operation.base.removesuffix("_backward"))
    name = forward.base
    if name not in _RULES and name not in DEFINITIONS:
        raise UnsupportedError(
            f"{operation.name}: has no gradient; there are second derivatives of {_HAVE}. Write {forward.name} in "
            "array arithmetic where its second derivative is needed."
        )
    return GradientPlan(
        operation,
        operation,
        forward=caller(operation),
        pull=partial(_pull, forward, operation),
        saved=(),
        choosable="algorithm" in inspect.signature(operation.function).parameters,
        algorithm=False,
        several=True,
        every=True,
        needs={},
    )


def _pull(
    forward: Operation,
    operation: Operation,
    grads: Any,
    arrays: Sequence[Any],
    options: dict[str, Any],
    needs: tuple[str, ...] | None,
    algorithm: str | None,
) -> Any:
    """The gradients of a call of `operation`, given those of its results: a named tuple over its arrays."""
    *arrays, fields = arrays
    fields = forward.gradients[:1] if fields is None else fields
    given = dict(zip(operation.arrays, arrays, strict=True))
    results = dict(zip(fields, grads if isinstance(grads, (tuple, list)) else (grads,), strict=False))
    narrow = any(is_floating(leaf) and is_half(leaf) for leaf in arrays)
    if narrow:  # sums and differences in float32, rounded once
        given, results = tree_map(_widened, given), tree_map(_widened, results)
    chosen = {n: v for n, v in options.items() if n not in ("needs", "algorithm")}
    call = Given(forward, operation, given, chosen, tuple(n for n in fields if given.get(n) is not None))
    some = any(v is not None for v in results.values()) and any(0 not in g.shape for g in leaves(call.arrays["grad"]))
    found = _gradients(call, results) if some else {}  # of no elements the gradients are 0
    for name in ("grad", *call.fields):
        if found.get(name) is None and not (name == "x" and given.get("y") is not None):
            found[name] = tree_map(lambda leaf: None if leaf is None else zeros_like(leaf), given[name])
    wanted = [found.get(n) if needs is None or n in needs else None for n in operation.arrays]
    if narrow:
        wanted = [tree_map(_as_leaf, gradient, array) for gradient, array in zip(wanted, arrays, strict=True)]
    return _result(operation)(*wanted)


def _gradients(call: Given, results: dict[str, Any]) -> dict[str, Any]:
    name = call.forward.base
    if name in _BILINEAR and call.options["activation"] is None:
        return linear.bilinear(results, call)
    rule = _RULES.get(name)
    return _by_definition(DEFINITIONS[name], results, call) if rule is None else rule(results, call)


def _by_definition(definition: Callable[..., Any], v: dict[str, Any], call: Given) -> dict[str, Any]:
    """The gradients of ``g -> J(x)^T g`` for the Jacobian J of a definition, by recording its gradient.

    The inner trace records the forward; its backward run, which gives the result of the operation, is recorded by the
    outer one together with `grad`."""
    outer, inner = Trace(), Trace()
    try:
        grads = tree_map(partial(_start, outer), call.arrays["grad"])
        starts = {n: _start(outer, call.arrays[n]) for n in call.fields}
        inside = {n: _start(inner, start) for n, start in starts.items()}
        given = {n: call.arrays[n] for n in call.forward.arrays} | inside
        options = {n: o for n, o in call.options.items() if n in call.forward.defaults}
        y = definition(**given, **options)
        heads = zip(y, grads, strict=True) if isinstance(y, tuple) else [(y, grads)]
        roots = [(o.node, o.index, g) for o, g in heads if g is not None]
        first = backward(roots)
        second = [(first.get(inside[n].node), v.get(n)) for n in call.fields]
        found = backward([(r.node, r.index, w) for r, w in second if type(r) is Traced and w is not None])
        gradients = {n: found.get(start.node) for n, start in starts.items()}
        return gradients | {"grad": tree_map(lambda g: None if g is None else found.get(g.node), grads)}
    finally:
        outer.open = inner.open = False


def _start(trace: Trace, array: Any) -> Any:
    return None if array is None else Traced(array, trace, Node(None, ()))


@cache
def _result(operation: Operation) -> Any:
    return namedtuple(f"{operation.name}_gradients", operation.arrays)


def _widened(leaf: Any) -> Any:
    return rules.astype(leaf, dtype=namespace(plain(leaf)).float32) if is_floating(leaf) and is_half(leaf) else leaf


def _as_leaf(gradient: Any, array: Any) -> Any:
    return gradient if gradient is None else rules.astype(gradient, dtype=array.dtype)
