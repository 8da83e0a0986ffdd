"""The algorithm ``philox``: dropout alone, and its gradient, with the mask drawn where it is used."""

from __future__ import annotations

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.core.arguments import Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.dropout.shared import NOTHING, MaskArguments, mask, permuted, rejects, x_of
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run"]


@frozen
class PhiloxConfig(Config):
    """Compile-time settings of ``kernels/dropout/philox.cu``."""

    element: str
    permuted: bool
    vector: int
    threads: int


@frozen
class PhiloxArguments(MaskArguments, restrict=True):
    """What ``kernels/dropout/philox.cu`` is called with."""

    x: In
    y: Out
    size: Extent


def run(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x, or of the gradient, which is brought to the order of x."""
    x = x_of(problem)
    if x.size == 0:
        return NOTHING
    planner, scattered = Planner(problem, aligned), permuted(x)
    vector = vector_length(x.dtype, aligned and not scattered)
    name = f"dropout_philox_{SHORT[x.dtype]}x{vector}{'_permuted' * scattered}"
    kernel = Kernel(
        "dropout/philox.cu",
        name,
        PhiloxConfig(TYPES[x.dtype], scattered, vector, THREADS),
        ("core/philox", "core/index"),
    )
    arguments = PhiloxArguments(x=planner.inputs[0], y=planner.outputs[0], size=x.size, **mask(problem))
    planner.launch(kernel, (blocks_of(x.size, THREADS * vector), 1, 1), THREADS, arguments)
    return planner.program((order_of(x),) * len(problem.inputs))
