"""Calls of dnnarray's own functions on `Traced` arrays: the operation's forward and pullback become one recorded
step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dnnarray import _source
from dnnarray._autodiff.primitive import is_floating
from dnnarray._autodiff.traced import Node, Trace, Traced, top_trace
from dnnarray._errors import OptionError
from dnnarray._options import CURRENT, DEFAULT, Options
from dnnarray._problems.base import leaves
from dnnarray._vjp import any_plan_of

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
    recorder = _recorders.get((op, *map(type, arrays)))
    found = recorder.values(arrays) if recorder is not None and recorder.values is not None else None
    if recorder is None or found is None:
        recorder, found = _values(op, arrays)
    trace, values, parents = found
    result, kept = recorder.plan.run(values, options)
    places = (
        [_places(trace, a) for n, a in zip(op.arrays, arrays, strict=True) if n in recorder.names] if op.nested else ()
    )
    node = Node(partial(recorder.pull, kept, options, CURRENT.get(DEFAULT), places), parents)
    if not isinstance(result, tuple):
        return Traced(result, trace, node) if is_floating(result) else result
    node.outputs = len(result)
    build: Any = type(result)
    return build(*[Traced(r, trace, node, i) if is_floating(r) else r for i, r in enumerate(result)])


_Inputs = tuple[Trace, tuple[Any, ...], list[tuple[Node, int]]]


class Recorder:
    """What all recorded calls of an operation have in common whose arguments are recorded at the same places.

    Attributes
    ----------
    plan : how the operation is differentiated
    names : the arguments that are recorded, or hold arrays that are
    values : ``values(arrays)`` gives the trace, the arguments as that trace computes with them, and the parents of the
        step; or None where the arrays belong to several traces, or to one that has ended. None where the operation
        takes nested arguments, which have no fixed places
    """

    __slots__ = ("_places", "_single", "names", "plan", "values")

    def __init__(self, op: Operation, names: tuple[str, ...]) -> None:
        self.plan, self.names = any_plan_of(op), names
        self.values = None if op.nested else _values_at(op, names)
        self._single = [name == op.gradients[0] for name in names]  # which of them a single gradient is of
        self._places: list[int | None] = []

    def pull(
        self, arrays: tuple[Any, ...], options: dict[str, Any], settings: Options, places: Sequence[Any], *grads: Any
    ) -> list[Any]:
        """A gradient, or None, for each array that is recorded.

        Parameters
        ----------
        arrays, options, settings : as a `Pullback` has them
        places : for each of the names, which of its arrays are recorded; empty where no argument is nested
        grads : the gradients of the results
        """
        plan, names = self.plan, self.names
        grad = grads[0] if len(grads) == 1 else plan.taken(grads)
        needs = None
        if plan.several:
            needs = plan.needs.get(names) or plan.needing(names, grad, arrays, options)
            if not needs:
                return [None] * len(names)
        if options.get("algorithm") is None and CURRENT.get(DEFAULT) is settings:  # nearly every call
            found = plan.pull(grad, arrays, options, needs, None)
        else:
            found = plan.gradients(grad, arrays, options, settings, needs)
        if isinstance(found, tuple):
            places_in = self._places or self._found_in(found)
            gradients = [None if i is None else found[i] for i in places_in]
        else:
            gradients = [found if its else None for its in self._single]
        if not places:
            return gradients
        return [g for gradient, chosen in zip(gradients, places, strict=True) for g in _chosen(gradient, chosen)]

    def _found_in(self, gradients: Any) -> list[int | None]:
        """Where the gradients of `names` stand in what the backward returns, which is of the same form for all
        calls."""
        fields = gradients._fields
        self._places = [fields.index(name) if name in fields else None for name in self.names]
        return self._places


_MOST = 4096
# By operation, and the types of its arguments; or, where these do not tell which are recorded, the names that are.
_recorders: dict[tuple[Any, ...], Recorder] = {}


def _recorder(op: Operation, key: tuple[Any, ...], names: tuple[str, ...]) -> Recorder:
    found = _recorders.get((op, *key))
    if found is None:
        if len(_recorders) >= _MOST:
            _recorders.clear()
        found = _recorders[(op, *key)] = Recorder(op, names)
    return found


def _values_at(op: Operation, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], _Inputs | None]:
    """``values(arrays)`` of a `Recorder`, written for the arguments `names`: loops over all arguments take longer than
    everything else that is done for a recorded call."""
    first, *others = names
    values = ", ".join(f"{n}.value" if n in names else n for n in op.arrays)
    lines = [
        f"def values_{op.name}(_arrays):",
        f"    ({', '.join(op.arrays)},) = _arrays",
        f"    _trace = {first}.trace",
        f"    if not _trace.open{''.join(f' or {n}.trace is not _trace' for n in others)}: return None",
        f"    return _trace, ({values},), [{', '.join(f'({n}.node, {n}.index)' for n in names)}]\n",
    ]
    return _source.function(f"values_{op.name}", "\n".join(lines), {}, __name__)


def _values(op: Operation, arrays: tuple[Any, ...]) -> tuple[Recorder, _Inputs]:
    """The recorder of a call, its trace, the arguments as that trace computes with them, and the parents of the
    step."""
    trace = top_trace(leaves(arrays) if op.nested else arrays)
    assert trace is not None
    parents: list[tuple[Node, int]] = []
    names, values = [], []
    for name, array in zip(op.arrays, arrays, strict=True):
        before = len(parents)
        values.append(_opened(trace, array, parents) if name in op.nested or type(array) is Traced else array)
        if len(parents) > before:
            names.append(name)
    told = not op.nested and names == [n for n, a in zip(op.arrays, arrays, strict=True) if type(a) is Traced]
    recorder = _recorder(op, tuple(map(type, arrays)) if told else tuple(names), tuple(names))
    return recorder, (trace, tuple(values), parents)


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
