"""The algorithm ``bias_add_backward``: all gradients of a bias, dropout and a residual in one pass, then the second
stage of the sums for the bias."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.common.channels import THREADS, SumsArguments, lies, partial_bytes, sums
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import In, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.dropout.shared import NOTHING, MaskArguments, by_channel, mask, permuted, rejects, x_of
from dnnarray._problems.base import leaves
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run", "workspace"]
_RESIDENT = 6  # blocks of the sums on a multiprocessor; what each begins and ends with costs as much as some rows


@frozen
class BiasAddBackwardConfig(Config):
    """Compile-time settings of ``kernels/dropout/bias_add_backward.cu``."""

    element: str
    permuted: bool
    residual: bool
    columns: int
    vector: int
    threads: int


@frozen
class BiasAddBackwardArguments(MaskArguments, SumsArguments, restrict=True):
    """What ``kernels/dropout/bias_add_backward.cu`` is called with."""

    grad: In
    bias: In
    dx: Out
    dresidual: Out
    partial: OutArithmetic


def run(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """Of the forward's arrays only the shapes are needed."""
    x, residual = x_of(problem), problem.outputs[2]
    if x.shape[-1] == 0:
        return NOTHING
    planner, dtype, order, scattered = Planner(problem, aligned), x.dtype, order_of(x), permuted(x)
    (grad, _, bias, _), (dx, dbias, dresidual) = planner.inputs, planner.outputs
    orders, same = (order, order, (0,), order_of(leaves(problem.inputs)[3])), residual is None or lies(residual, order)
    if problem.draws:
        s = sums(by_channel(problem), dtype, aligned and not scattered, _RESIDENT * device.units)
        partial = planner.take(arithmetic_of(dtype), s.view.channels * s.parts).array
        name = (
            f"dropout_bias_add_backward_{SHORT[dtype]}x{s.vector}"
            f"_{s.name}{'_permuted' * scattered}{'' if same else '_alone'}"
        )
        config = BiasAddBackwardConfig(TYPES[dtype], scattered, same, s.columns, s.vector, THREADS)
        arrays: dict[str, Any] = {"grad": grad, "bias": bias, "dx": dx, "dresidual": dresidual, "partial": partial}
        arguments = BiasAddBackwardArguments(**arrays, **s.arguments, **mask(problem))
        kernel = Kernel("dropout/bias_add_backward.cu", name, config, ("core/philox", "core/index"))
        planner.launch(kernel, (s.blocks, 1, 1), THREADS, arguments)
        if dbias is not None:
            planner.add(add_parts(partial, dbias, dtype, s.view.channels, s.parts))
    if residual is not None and not (same and problem.draws):
        planner.add(reorder(residual, order, grad, dresidual))
    return planner.program(orders)


def workspace(problem: DropoutProblem) -> int:
    return partial_bytes(by_channel(problem), x_of(problem).dtype) if problem.draws else 0
