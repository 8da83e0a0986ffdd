"""What all plans of softmax ask of a problem, and what their kernels are told in the same words."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, In, Out
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.base import remembered
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._records import frozen
from dnnarray._select import Cost

NOTHING = Program(())  # for arrays without elements


@frozen
class SoftmaxConfig(Config):
    """Compile-time settings that all kernels in ``kernels/softmax`` have in common."""

    element: str
    logarithm: bool
    negative: bool
    gradient: bool
    saved: bool


@frozen
class SoftmaxArguments(Arguments):
    """The arrays of all kernels in ``kernels/softmax``; `grad` is absent in a forward, and `x` is the saved result
    where there is one."""

    grad: In
    x: In
    out: Out


@remembered
def extents(problem: SoftmaxProblem) -> tuple[int, int, int]:
    """(outer, extent, inner) of x in memory: what runs slower than the axis, the axis, what runs faster."""
    x = problem.result
    if x.ndim == 0:
        return 1, 1, 1
    order = order_of(x)
    shape, place = [x.shape[a] for a in order], order.index(problem.axis)
    return math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :])


def gradient(problem: SoftmaxProblem) -> bool:
    return len(problem.inputs) > 1


def arrays_read(problem: SoftmaxProblem) -> int:
    """How many arrays a kernel reads: x or the saved result, and the gradient where there is one."""
    return 1 + gradient(problem)


def _saved(problem: SoftmaxProblem) -> bool:
    return gradient(problem) and problem.inputs[2] is not None


def settings(problem: SoftmaxProblem) -> tuple[str, bool, bool, bool, bool]:
    """The fields of `SoftmaxConfig`."""
    op = problem.op
    return (
        TYPES[problem.result.dtype],
        op.startswith("log"),
        op.startswith("softmin"),
        gradient(problem),
        _saved(problem),
    )


def symbol(problem: SoftmaxProblem, algorithm: str) -> str:
    """The beginning of a kernel's name."""
    return f"{problem.op}_{'saved_' if _saved(problem) else ''}{algorithm}_{SHORT[problem.result.dtype]}"


def operands(planner: Planner) -> tuple[Array | None, Array, Array]:
    """The fields of `SoftmaxArguments`."""
    grad, x, y = planner.inputs if len(planner.inputs) > 1 else (None, *planner.inputs, None)
    return grad, x if y is None else y, planner.outputs[0]


def program(problem: SoftmaxProblem, planner: Planner) -> Program:
    """The launches for inputs that lie in memory as the result does."""
    return planner.program((order_of(problem.result),) * sum(spec is not None for spec in problem.inputs))


def times(problem: SoftmaxProblem, factor: float) -> Cost:
    """The cost of a kernel that takes so many times what it takes to read and write each array once."""
    return Cost(factor * problem.flops, factor * problem.bytes)


def no_rows(problem: SoftmaxProblem) -> str | None:
    """Why a kernel for rows does not do a problem, or None."""
    return None if extents(problem)[2] == 1 else f"axis {problem.axis} does not run fastest in memory"


def no_columns(problem: SoftmaxProblem) -> str | None:
    """Why a kernel for columns does not do a problem, or None."""
    return None if extents(problem)[2] != 1 else f"axis {problem.axis} runs fastest in memory: its elements form rows"
