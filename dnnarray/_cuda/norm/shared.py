"""What the plans of all norms share: where the arrays stand among the launch arguments, and how they lie in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import SHORT, TYPES, Array
from dnnarray._problems.base import Problem, leaves
from dnnarray._problems.checks import statistics_dtype
from dnnarray._spec import Spec

_LINE = 256  # bytes that parts of the scratch memory begin at multiples of
Pointer = Array | int  # an absent array is the null pointer


class Arguments:
    """The arrays of a problem as launch arguments: `inputs` and `outputs` as in the problem, then the scratch memory.

    Kernels of a gradient write that of x whether or not it is wanted. Where it is not, it goes to the beginning of the scratch memory (`discarded`),
    unless no such kernel is launched (`beside` is False). Behind an addition there are two of them, which are equal: one may stand for both.
    """

    def __init__(self, problem: Problem, beside: bool = True) -> None:
        self._count = 0
        self.inputs: tuple[Any, ...] = tuple(self._place(s) for s in problem.inputs)
        outputs: list[Pointer] = [self._place(s) for s in problem.outputs]
        self._begin = discarded(problem) if beside else 0
        if _is_gradient(problem) and beside:
            twins = _twins(problem)
            written = next((p for p in outputs[:twins] if p), Array(self._count))
            outputs[:twins] = [p or written for p in outputs[:twins]]
        self.outputs = tuple(outputs)

    def _place(self, spec: Any) -> Any:
        if spec is None:
            return 0
        if isinstance(spec, tuple):
            return tuple(self._place(s) for s in spec)
        self._count += 1
        return Array(self._count - 1)

    def scratch(self, offset: int = 0) -> Array:
        return Array(self._count, self._begin + offset)


def _is_gradient(problem: Problem) -> bool:
    return problem.op.endswith("_backward")


def _twins(problem: Problem) -> int:
    """How many of the first outputs of a gradient are that of x."""
    return 2 if problem.op.startswith("add_") else 1


def discarded(problem: Problem) -> int:
    """Bytes of scratch memory that take the gradient of x where it is not wanted."""
    if not _is_gradient(problem) or any(problem.outputs[: _twins(problem)]):
        return 0
    return round_up(max(problem.inputs[1].nbytes, 1), _LINE)


def memory_order(spec: Spec) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory; C order for what is not dense, which is copied."""
    return spec.axis_order() or tuple(range(spec.ndim))


def orders(problem: Problem, x: Spec) -> tuple[tuple[int, ...], ...]:
    """`Program.orders`: gradients, x itself and residuals lie as x does, parameters and statistics in C order, even where they have the shape of x."""
    own, each_channel = memory_order(x), problem.op.startswith("batch_norm")  # its residual comes after the parameters, which have one axis
    end = max(i for i, s in enumerate(problem.inputs) if s is x) + 1 + problem.op.startswith("add_")
    first = len(leaves(problem.inputs[:end]))
    return tuple(
        own if i < first or (each_channel and s.shape == x.shape) else tuple(range(s.ndim)) for i, s in enumerate(leaves(problem.inputs))
    )


def arithmetic(x: Spec) -> str:
    """The C++ type that values of x are computed in."""
    return TYPES[statistics_dtype(x)]


def type_of(spec: Spec | None, x: Spec) -> str:
    """The C++ type of a parameter; the arithmetic type where it is absent, so that no kernel is compiled twice."""
    return arithmetic(x) if spec is None else TYPES[spec.dtype]


def short(spec: Spec | None, x: Spec) -> str:
    return SHORT[statistics_dtype(x) if spec is None else spec.dtype]


def wide(spec: Spec | None, x: Spec) -> int:
    """Whether a parameter has the arithmetic dtype of x (and not x's own)."""
    return int(spec is not None and spec.dtype == statistics_dtype(x))
