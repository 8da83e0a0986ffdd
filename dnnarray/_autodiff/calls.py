"""Calls of dnnarray's own functions on `Traced` arrays: the operation's forward and pullback become one recorded step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dnnarray._autodiff.primitive import is_floating
from dnnarray._autodiff.traced import Node, Traced, top_trace, value_in
from dnnarray._errors import OptionError
from dnnarray._problems.base import leaves, tree_map
from dnnarray._vjp import vjp

if TYPE_CHECKING:
    from dnnarray._operation import Operation


def call(op: Operation, arrays: tuple[Any, ...], options: dict[str, Any], out: Any, workspace: Any) -> Any:
    """Run `op` on arrays of which some are traced, and record it.

    Parameters
    ----------
    arrays : one entry per array of the operation in signature order, nested for lists of weights, None where omitted
    options : everything else by name
    """
    if out is not None or workspace is not None:
        raise OptionError(f"{op.name}: out= and workspace= cannot be given for arrays that value_and_grad differentiates; leave them out.")
    trace = top_trace(leaves(arrays))
    assert trace is not None
    values = tuple(tree_map(lambda a: value_in(trace, a), a) for a in arrays)
    result, pullback = vjp(op.function, *values, **options)
    parents, places = [], []
    for i, array in enumerate(arrays):
        for j, leaf in enumerate(leaves(array)):
            if type(leaf) is Traced and leaf.trace is trace:
                parents.append((leaf.node, leaf.index))
                places.append((i, j))

    results = result if isinstance(result, tuple) else (result,)
    forms = tree_map(lambda array: True, values)  # not the arrays: the pullback keeps those of which the gradient takes something

    def pull(*grads: Any) -> list[Any]:
        gradients = [_in_places(forms[i], g) for i, g in enumerate(pullback(grads if len(grads) > 1 else grads[0]))]
        return [gradients[i][j] for i, j in places]

    node = Node(pull, parents, len(results))
    traced: list[Any] = [Traced(r, trace, node, i) if r is not None and is_floating(r) else r for i, r in enumerate(results)]
    return type(result)(*traced) if isinstance(result, tuple) else traced[0]


def _in_places(argument: Any, gradient: Any) -> list[Any]:
    """The gradients of the leaves of an argument, of which only the nesting counts, with None where there is none."""
    if argument is None:
        return []
    if isinstance(argument, (tuple, list)):
        branches = [None] * len(argument) if gradient is None else gradient
        return [g for a, b in zip(argument, branches, strict=True) for g in _in_places(a, b)]
    return [gradient]
