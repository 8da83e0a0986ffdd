"""What the plans of all norms share: where the arrays stand among those of a call, how they lie in memory, and the
types that kernels read."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from dnnarray._cuda.core import arguments
from dnnarray._cuda.core.extents import order_of, round_up
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Program
from dnnarray._problems.base import Problem, leaves
from dnnarray._problems.checks import statistics_dtype
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

NOTHING = Program(())  # for arrays without elements
UNALIGNED = "it moves vectors of 16 bytes, and an array begins at an address that is no multiple of 16"
_LINE = 256  # bytes that parts of the scratch memory begin at multiples of

Pointer = Array | None  # None is an array that is absent: a null pointer in the kernel

# Parameters and statistics, which have the dtype of x or that of its arithmetic; a kernel is told which by a number,
# ...
AnyType = Annotated[Array | None, arguments.Pointer("void", True)]
AnyTypeOut = Annotated[Array | None, arguments.Pointer("void", False)]
# 64 bits: by one of 32 bits the compiler does not tell loops over parameters of either dtype apart, which it does for
# these
Flag = arguments.Extent
# ... or by its settings.
Weight = Annotated[Array | None, arguments.Pointer("Config::Weight", True)]
Bias = Annotated[Array | None, arguments.Pointer("Config::Bias", True)]
Mean = Annotated[Array | None, arguments.Pointer("Config::Mean", True)]
Rstd = Annotated[Array | None, arguments.Pointer("Config::Rstd", True)]

# Sums of a part: two numbers in double (kernels/norm/channels.cuh).
SharesIn = Annotated[Array | None, arguments.Pointer("dnnarray::Shares", True)]
SharesOut = Annotated[Array | None, arguments.Pointer("dnnarray::Shares", False)]


class Arrays:
    """The arrays of a problem: `inputs` and `outputs` as in the problem, None where one is absent, then the scratch
    memory.

    Kernels of a gradient write that of x whether or not it is wanted. Where it is not, it goes to the beginning of the
    scratch memory (`discarded`), unless no such kernel is launched (`beside` is False). Behind an addition there are
    two of them, which are equal: one may stand for both."""

    def __init__(self, problem: Problem, beside: bool = True) -> None:
        self._count = 0
        self.inputs: tuple[Any, ...] = tuple(self._place(s) for s in problem.inputs)
        outputs: list[Pointer] = [self._place(s) for s in problem.outputs]
        self._begin = discarded(problem) if beside else 0
        if is_gradient(problem) and beside:
            twins = _twins(problem)
            written = next((p for p in outputs[:twins] if p), Array(self._count))
            outputs[:twins] = [p or written for p in outputs[:twins]]
        self.outputs = tuple(outputs)

    def _place(self, spec: Any) -> Any:
        if spec is None:
            return None
        if isinstance(spec, tuple):
            return tuple(self._place(s) for s in spec)
        self._count += 1
        return Array(self._count - 1)

    def scratch(self, offset: int = 0) -> Array:
        """Scratch memory from this byte on."""
        return Array(self._count, self._begin + offset)


def is_gradient(problem: Problem) -> bool:
    return problem.op.endswith("_backward")


def _twins(problem: Problem) -> int:
    """How many of the first outputs of a gradient are that of x."""
    return 2 if problem.op.startswith("add_") else 1


def discarded(problem: Problem) -> int:
    """Bytes of scratch memory that take the gradient of x where it is not wanted."""
    if not is_gradient(problem) or any(problem.outputs[: _twins(problem)]):
        return 0
    return round_up(max(problem.inputs[1].nbytes, 1), _LINE)


def with_discarded(method: Method) -> Method:
    """A gradient whose kernels write that of x beside the others: to scratch memory, where it is not wanted."""

    def workspace(problem: Problem) -> int:
        return method.workspace(problem) + discarded(problem)

    def cost(problem: Problem, device: Device) -> Cost:
        found = method.cost(problem, device)
        return replace(found, bytes=found.bytes + discarded(problem))

    return replace(method, workspace=workspace, cost=cost)


def orders(problem: Problem, x: Spec) -> tuple[tuple[int, ...], ...]:
    """`Program.orders`: gradients, x itself and residuals lie as x does, parameters and statistics in C order, even
    where they have the shape of x."""
    own, each_channel = (
        order_of(x),
        problem.op.startswith("batch_norm"),
    )  # its residual comes after the parameters, which have one axis
    end = max(i for i, s in enumerate(problem.inputs) if s is x) + 1 + problem.op.startswith("add_")
    first = len(leaves(problem.inputs[:end]))
    return tuple(
        own if i < first or (each_channel and s.shape == x.shape) else tuple(range(s.ndim))
        for i, s in enumerate(leaves(problem.inputs))
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


def wide_bits(x: Spec, *parameters: Spec | None) -> int:
    """A bit for each parameter of the arithmetic dtype."""
    return sum(wide(s, x) << i for i, s in enumerate(parameters))
