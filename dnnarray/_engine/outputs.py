"""The results of a call, shared by both engines: how to allocate them, and what a caller's own `out=` must look
like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dnnarray._errors import ArrayTypeError, DTypeError, OptionError, ShapeError, WorkspaceError, fail
from dnnarray._problems.base import Problem, leaves
from dnnarray._spec import Spec, lies


class Output:
    """One result."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.shape, self.dtype = spec, spec.shape, spec.dtype
        order = spec.axis_order()
        permuted = order is not None and order != tuple(range(spec.ndim))
        self.memory_shape = tuple(spec.shape[i] for i in order) if permuted and order else spec.shape
        self.inverse = tuple(order.index(i) for i in range(spec.ndim)) if permuted and order else None
        self.element_strides = spec.strides or spec.c_strides
        self.strides = tuple(s * spec.dtype.itemsize for s in self.element_strides)

    def empty(self, allocate: Callable[..., Any]) -> Any:
        """A new array in the memory order of the spec; `allocate` is the ``empty`` of the engine's namespace."""
        array = allocate(self.memory_shape, self.dtype)
        return array if self.inverse is None else array.transpose(self.inverse)

    def check(self, op: str, array: Any, kind: Any) -> None:
        """Raise the named error unless `array` can receive this result."""
        planned = (
            type(array) is kind
            and array.shape == self.shape
            and array.dtype == self.dtype
            and array.strides == self.strides
        )
        if planned and (kind is not np.ndarray or array.flags.writeable):
            return  # nearly every call ends here
        if not isinstance(array, kind):
            fail(ArrayTypeError, op, "out", type(array).__name__, "an array of the inputs' namespace")
        if array.shape != self.shape:
            fail(ShapeError, op, "out", f"of shape {array.shape}", f"{self.shape}")
        if array.dtype != self.dtype:
            got = array.dtype.name if array.dtype.isnative else f"byte-swapped {array.dtype.name}"
            fail(DTypeError, op, "out", got, self.dtype.name)
        if kind is np.ndarray and not array.flags.writeable:
            fail(OptionError, op, "out", "read-only", "an array that can be written", "Pass a copy.")
        if (
            0 in array.strides
            and self.spec.size
            and any(n > 1 and not stride for n, stride in zip(array.shape, array.strides, strict=True))
        ):
            fail(
                OptionError,
                op,
                "out",
                "broadcast: several elements share memory",
                "an array with memory for each element",
            )


class Memory(NamedTuple):
    """What an engine knows of the memory of its arrays.

    Attributes
    ----------
    kind : the type of the arrays
    overlap : ``overlap(a, b)`` says whether two arrays can touch the same bytes
    address : ``address(array)`` is where its first element lies
    """

    kind: Any
    overlap: Callable[[Any, Any], bool]
    address: Callable[[Any], int]

    def same(self, a: Any, b: Any) -> bool:
        """Whether two arrays of one shape and dtype are the same memory, element by element."""
        return self.address(a) == self.address(b) and lies(a.shape, a.strides, b.strides)


def users_own(
    problem: Problem,
    outputs: list[Output],
    out: Any,
    inputs: Sequence[Any],
    memory: Memory,
    in_place: frozenset[tuple[int, int]],
) -> tuple[list[Any], list[int]]:
    """The caller's output arrays, checked, and the places of those that are inputs: to the byte, and among the pairs
    (input, output) `in_place`.

    Any other overlap, with an input or between outputs, is an error: the result would depend on what is written first.
    """
    given = [out] if type(out) is memory.kind else leaves(out)
    if len(given) != len(outputs):
        fail(OptionError, problem.op, "out", f"{len(given)} arrays", f"{len(outputs)}, one for each result")
    over = []
    for j, (array, output) in enumerate(zip(given, outputs, strict=True)):
        output.check(problem.op, array, memory.kind)
        met = [i for i, other in enumerate(inputs) if memory.overlap(array, other)]
        if not all((i, j) in in_place and memory.same(array, inputs[i]) for i in met):
            _fail_shared(problem, in_place)
        if any(memory.overlap(array, other) for other in given[:j]):
            fail(OptionError, problem.op, "out", "memory shared with another output", "memory of its own")
        over += [j] if met else []
    return given, over


def _fail_shared(problem: Problem, in_place: frozenset[tuple[int, int]]) -> NoReturn:
    fix = (
        "An input of the same shape itself may be overwritten, not a part of it or a view that lies otherwise."
        if in_place
        else None
    )
    fail(OptionError, problem.op, "out", "memory shared with an input", "memory of its own", fix)


def pairs_in_place(problem: Problem) -> frozenset[tuple[int, int]]:
    """``problem.in_place`` with places among the arrays that are there."""
    if not problem.in_place:
        return frozenset()
    before = [len(leaves(problem.inputs[:i])) for i in range(len(problem.inputs))]
    behind = [len(leaves(problem.outputs[:j])) for j in range(len(problem.outputs))]
    there = ((i, j) for i, j in problem.in_place if problem.inputs[i] is not None and problem.outputs[j] is not None)
    return frozenset((before[i], behind[j]) for i, j in there)


def check_workspace(op: str, workspace: Any, needed: int, kind: Any) -> Any:
    """The caller's scratch memory, if it will do."""
    expected = "a contiguous, writable one-dimensional uint8 array"
    if not isinstance(workspace, kind) or workspace.dtype != "uint8" or workspace.ndim != 1:
        fail(ArrayTypeError, op, "workspace", getattr(workspace, "dtype", type(workspace).__name__), expected)
    if not (workspace.flags.c_contiguous and getattr(workspace.flags, "writeable", True)):
        fail(OptionError, op, "workspace", "strided or read-only", expected)
    if workspace.nbytes < needed:
        fix = "dnnarray.infer gives the size needed; options(workspace_limit=...) chooses an algorithm that needs less."
        fail(WorkspaceError, op, "workspace", f"{workspace.nbytes:,} bytes", f"{needed:,} bytes or more", fix)
    return workspace


def check_apart(op: str, scratch: Any, arrays: Sequence[Any], overlap: Callable[..., bool]) -> None:
    """The part of a caller's scratch memory that is used lies apart from all inputs and results."""
    if any(overlap(scratch, array) for array in arrays):
        fail(OptionError, op, "workspace", "memory shared with an input or an output", "memory of its own")
