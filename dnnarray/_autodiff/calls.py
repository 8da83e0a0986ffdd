"""Calls of dnnarray's own functions on `Traced` arrays: the operation's forward and pullback become one recorded
step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dnnarray._autodiff.primitive import is_floating
from dnnarray._autodiff.traced import Node, Trace, Traced, top_trace
from dnnarray._errors import OptionError
from dnnarray._options import CURRENT, DEFAULT, Options
from dnnarray._problems.base import leaves
from dnnarray._vjp import Plan, plan_of

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation


def call(op: Operation, arrays: tuple[Any, ...], options: dict[str, Any], out: Any, workspace: Any) -> Any:
    """Run `op` on arrays of which some are traced, and record it.

    Parameters
    ----------
    arrays : one entry per array of the operation in signature order, nested for lists of weights, None where omitted
    options : everything else by name
    """
    if out is not None or workspace is not None:
        raise OptionError(
            f"{op.name}: out= and workspace= cannot be given for arrays that value_and_grad differentiates; leave "
            "them out."
        )
    trace = top_trace(leaves(arrays) if op.nested else arrays)
    assert trace is not None
    plan = plan_of(op)
    parents: list[tuple[Node, int]] = []
    names, values = [], []
    for name, array in zip(op.arrays, arrays, strict=True):
        if type(array) is Traced and array.trace is trace:
            names.append(name)
            values.append(array.value)
            parents.append((array.node, array.index))
        elif name in op.nested:
            before = len(parents)
            values.append(_opened(trace, array, parents))
            if len(parents) > before:
                names.append(name)
        else:
            values.append(array)
    result, kept = plan.run(tuple(values), options)
    given = zip(op.arrays, arrays, strict=True) if op.nested else ()
    step = _Step(
        plan, kept, options, CURRENT.get(DEFAULT), tuple(names), [_places(trace, a) for n, a in given if n in names]
    )
    if not isinstance(result, tuple):
        return Traced(result, trace, Node(step, parents)) if is_floating(result) else result
    node = Node(step, parents, len(result))
    build: Any = type(result)
    return build(*[Traced(r, trace, node, i) if is_floating(r) else r for i, r in enumerate(result)])


class _Step:
    """Pulls gradients back through one recorded call.

    Attributes
    ----------
    plan, arrays, options, settings : as a `Pullback` has them
    names : the arguments that are recorded, or hold arrays that are
    places : for each of these, which of its arrays are recorded; empty where no argument of the operation is nested
    """

    __slots__ = ("arrays", "names", "options", "places", "plan", "settings")

    def __init__(
        self,
        plan: Plan,
        arrays: tuple[Any, ...],
        options: dict[str, Any],
        settings: Options,
        names: tuple[str, ...],
        places: list[Any],
    ) -> None:
        self.plan, self.arrays, self.options, self.settings = plan, arrays, options, settings
        self.names, self.places = names, places

    def __call__(self, *grads: Any) -> list[Any]:
        """A gradient, or None, for each array that is recorded."""
        plan, names = self.plan, self.names
        grad = grads[0] if len(grads) == 1 else plan.taken(grads)
        needs = None
        if plan.several:
            needs = plan.needs.get(names) or plan.needing(names, grad, self.arrays, self.options)
            if not needs:
                return [None] * len(names)
        found = plan.gradients(grad, self.arrays, self.options, self.settings, needs)
        if isinstance(found, tuple):
            gradients = [getattr(found, name, None) for name in names]
        else:
            first = plan.operation.gradients[0]
            gradients = [found if name == first else None for name in names]
        if not self.places:
            return gradients
        return [g for gradient, places in zip(gradients, self.places, strict=True) for g in _chosen(gradient, places)]


def _opened(trace: Trace, argument: Any, parents: list[tuple[Node, int]]) -> Any:
    """A nested argument as `trace` computes with it; the arrays in it that are recorded are added to `parents`."""
    if type(argument) is Traced and argument.trace is trace:
        parents.append((argument.node, argument.index))
        return argument.value
    if isinstance(argument, (tuple, list)):
        branches = [_opened(trace, branch, parents) for branch in argument]
        return type(argument)(*branches) if hasattr(argument, "_fields") else tuple(branches)
    return argument


def _places(trace: Trace, argument: Any) -> Any:
    """Whether an argument is recorded; of a nested one, a list for each level."""
    if isinstance(argument, (tuple, list)):
        return [_places(trace, branch) for branch in argument]
    return type(argument) is Traced and argument.trace is trace


def _chosen(gradient: Any, places: Any) -> list[Any]:
    """The gradients at the places of an argument that are recorded, with None where there is none."""
    if isinstance(places, list):
        branches = [None] * len(places) if gradient is None else gradient
        return [g for branch, inner in zip(branches, places, strict=True) for g in _chosen(branch, inner)]
    return [gradient] if places else []


Traced.__dnnarray_function__ = staticmethod(call)  # type: ignore[attr-defined]  # by which a dnnarray function hands a call over
