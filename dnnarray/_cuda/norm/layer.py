"""What the plans of layer and RMS norm share: the arrays of a problem by name, and x as rows of columns."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.norm.shared import Arrays, Pointer
from dnnarray._problems.norm_base import NormProblem
from dnnarray._spec import Spec

NO_ROWS = "the normalised axes are not the fastest in memory"
SUM_ALONE = "only the sum has a gradient, which goes to both terms as it is"


class Operands(NamedTuple):
    """The arrays of a problem by what they are, as specs or as launch arguments."""

    x: Any
    grad: Any = None
    grad_sum: Any = None
    residual: Any = None
    weight: Any = None
    bias: Any = None
    mean: Any = None
    rstd: Any = None


def operands(problem: NormProblem, arrays: tuple[Any, ...]) -> Operands:
    """`arrays` (as in ``problem.inputs``) sorted by what they are."""
    name, found = problem.op, list(arrays)
    fields: dict[str, Any] = {}
    if name.endswith("_backward"):
        grad = found.pop(0)
        fields["grad"], fields["grad_sum"] = grad if isinstance(grad, tuple) else (grad, None)
    fields["x"] = found.pop(0)
    if name.startswith("add_"):
        fields["residual"] = found.pop(0)
    for key in ("weight", "bias", "mean", "rstd") if problem.centred else ("weight", "rstd"):
        if found:
            fields[key] = found.pop(0)
    return Operands(**fields)


def specs_of(problem: NormProblem) -> Operands:
    return operands(problem, problem.inputs)


def extents(problem: NormProblem) -> tuple[int, int] | None:
    """(rows, columns) where the normalised axes are the fastest in memory and each group of axes stands in the order of
    x, else None."""
    x, axes = specs_of(problem).x, problem.geometry.axes
    order = tuple(i for i in order_of(x) if x.shape[i] != 1)
    along = tuple(i for i in sorted(axes) if x.shape[i] != 1)
    kept = tuple(i for i in range(x.ndim) if i not in axes and x.shape[i] != 1)
    if order != kept + along and x.size:
        return None
    return prod(x.shape[i] for i in kept), prod(x.shape[i] for i in along)


def rows_of(problem: NormProblem) -> tuple[int, int]:
    """`extents` of a problem that has rows."""
    found = extents(problem)
    assert found is not None
    return found


def no_gradient(problem: NormProblem) -> str | None:
    """Why the sums of a gradient have nothing to do with a problem, or None."""
    return SUM_ALONE if problem.op.endswith("_backward") and specs_of(problem).grad is None else None


def name_of(problem: NormProblem) -> str:
    """The beginning of a kernel's name."""
    return f"{'add_' if specs_of(problem).residual is not None else ''}{'layer' if problem.centred else 'rms'}_norm"


def results(problem: NormProblem, arrays: Arrays) -> tuple[Pointer, Pointer, Pointer, Pointer]:
    """Of a forward: (y, sum, mean, rstd), None where there is none."""
    y, *rest = arrays.outputs
    if specs_of(problem).residual is not None:
        return y, rest[0], None, None
    mean, rstd = rest if problem.centred else (None, *rest)
    return y, None, mean, rstd


def gradients(problem: NormProblem, arrays: Arrays) -> tuple[Pointer, Pointer, Pointer, Pointer]:
    """(dx, dresidual, dweight, dbias), None where there is none."""
    dx, *rest = arrays.outputs
    dresidual = rest.pop(0) if problem.op.startswith("add_") else None
    dweight, dbias = (*rest, None)[:2]
    return dx, dresidual, dweight, dbias


def of_parameters(problem: NormProblem) -> tuple[Spec | None, ...]:
    """The outputs that are gradients of weight and bias."""
    return problem.outputs[2 if problem.op.startswith("add_") else 1 :]


def wants_parameters(problem: NormProblem) -> bool:
    """Whether sums make the gradients of weight or bias."""
    return specs_of(problem).grad is not None and any(of_parameters(problem))
