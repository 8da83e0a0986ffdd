"""`Traced`: an array that records what is computed from it, and the backward pass over that record.

Every operation on a `Traced` array makes a `Node`, which holds the nodes of its inputs and a function that pulls the
gradients of its outputs back to them. The nodes form a graph without any central list, so that whatever does not lead
to the result is freed at once. Each call of `value_and_grad` has a `Trace` of its own; where calls are nested, an
operation is recorded by the innermost trace among its inputs, on values that the outer traces may be recording in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, NoReturn

from dnnarray._errors import ArrayTypeError, UnsupportedError

_order = itertools.count(0, -1)
_levels = itertools.count()


class Trace:
    """One recording: `level` tells nested traces apart, `open` ends with the call of `value_and_grad`."""

    __slots__ = ("level", "open")

    def __init__(self) -> None:
        self.level, self.open = next(_levels), True


class Node:
    """One recorded step, or an input of the trace.

    Attributes
    ----------
    pull : ``pull(gradients of the outputs)`` gives a gradient, or None, for each parent; None for an input of the trace
    parents : for each input that is recorded, its node and which output of that node it is
    order : steps made later have a smaller number
    outputs : how many results the step has
    gradients : those of its results that have been found so far, while `backward` is at work; else None
    """

    __slots__ = ("gradients", "order", "outputs", "parents", "pull")

    def __init__(
        self, pull: Callable[..., Iterable[Any]] | None, parents: Sequence[tuple[Node, int]], outputs: int = 1
    ) -> None:
        self.pull, self.parents, self.outputs = pull, parents, outputs
        self.order = next(_order)
        self.gradients: Any = None


def backward(roots: Sequence[tuple[Node, int, Any]]) -> dict[Node, Any]:
    """Gradients at the inputs of the trace, given the gradients at some outputs of nodes.

    A step is visited once, after all that used it, and then let go of with all that it keeps.
    """
    start = Node(lambda: [gradient for _, _, gradient in roots], [(node, index) for node, index, _ in roots])
    start.gradients = []
    queue = [(start.order, start)]
    found: dict[Node, Any] = {}
    while queue:
        node = heappop(queue)[1]
        gradients, node.gradients = node.gradients, None
        pull = node.pull
        if pull is None:
            found[node] = gradients[0]
            continue
        for (parent, index), gradient in zip(node.parents, pull(*gradients), strict=True):
            if gradient is None:
                continue
            slots = parent.gradients
            if slots is None:
                slots = parent.gradients = [None] * parent.outputs
                heappush(queue, (parent.order, parent))
            known = slots[index]
            slots[index] = gradient if known is None else known + gradient
        node.pull, node.parents = _pulled, ()
    return found


def _pulled(*_: Any) -> NoReturn:
    raise AssertionError("a recorded step is pulled back once")


class Traced:
    """An array inside a function that `value_and_grad` differentiates: arithmetic, indexing and the Array API are
    recorded."""

    __slots__ = ("index", "node", "trace", "value")
    __array_priority__ = 1000.0

    def __init__(self, value: Any, trace: Trace, node: Node, index: int = 0) -> None:
        self.value, self.trace, self.node, self.index = value, trace, node, index

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def device(self) -> Any:
        return self.value.device

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"Traced({self.value!r})"

    def __hash__(self) -> int:
        return id(self)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ArrayTypeError(
            "value_and_grad: an array that is being differentiated has no plain value here; a Python number or "
            "another library's array made "
            "from it would lose its gradient. Use dnn.stop_gradient(x) for its value, or return it as auxiliary "
            "output (has_aux=True)."
        )

    __float__ = __int__ = __complex__ = __index__ = __array__ = __dlpack__ = __dlpack_device__ = _refuse

    def __bool__(self) -> bool:
        self._refuse()

    def __setitem__(self, key: Any, value: Any) -> None:
        raise UnsupportedError(
            "value_and_grad: an array that is being differentiated cannot be assigned to; build the result with "
            "where, concat or stack."
        )


def top_trace(arrays: Iterable[Any]) -> Trace | None:
    """The innermost trace among these arrays, None where nothing is recorded; an array of a trace that has ended is an
    error."""
    top = None
    for array in arrays:
        if type(array) is Traced:
            trace = array.trace
            if trace is not top and (top is None or trace.level > top.level):
                top = trace
    if top is not None and not top.open:
        raise UnsupportedError(
            "value_and_grad: this array was recorded in a call that has ended. Return it as auxiliary output "
            "(has_aux=True) or take its "
            "value by dnn.stop_gradient(x) instead of keeping it outside of the function."
        )
    return top


def value_in(trace: Trace, array: Any) -> Any:
    """What this trace computes with in the place of `array`."""
    return array.value if type(array) is Traced and array.trace is trace else array


def plain(array: Any) -> Any:
    """The array without any recording."""
    while type(array) is Traced:
        array = array.value
    return array
