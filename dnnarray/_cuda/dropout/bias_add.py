"""The algorithm ``bias_add``: a bias before dropout and a residual behind it, in one pass."""

from __future__ import annotations

from dnnarray._cuda.common.channels import THREADS, channel_mode
from dnnarray._cuda.core.arguments import Channels, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.dropout.shared import NOTHING, MaskArguments, by_channel, mask, permuted, rejects, x_of
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run"]


@frozen
class BiasAddConfig(Config):
    """Compile-time settings of ``kernels/dropout/bias_add.cu``."""

    element: str
    permuted: bool
    channel: int
    vector: int
    threads: int


@frozen
class BiasAddArguments(MaskArguments, restrict=True):
    """What ``kernels/dropout/bias_add.cu`` is called with."""

    x: In
    bias: In
    residual: In
    y: Out
    size: Extent
    view: Channels


def run(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x."""
    x, view, scattered = x_of(problem), by_channel(problem), permuted(x_of(problem))
    if x.size == 0:
        return NOTHING
    planner, vector = Planner(problem, aligned), vector_length(x.dtype, aligned and not scattered)
    mode, (size, *by) = channel_mode(view, vector), view.sizes
    name = f"dropout_bias_add_{SHORT[x.dtype]}x{vector}_channel{mode}{'_permuted' * scattered}"
    kernel = Kernel(
        "dropout/bias_add.cu",
        name,
        BiasAddConfig(TYPES[x.dtype], scattered, mode, vector, THREADS),
        ("core/philox", "core/channels"),
    )
    arrays = dict(zip(("x", "bias", "residual", "y"), (*planner.inputs, *planner.outputs), strict=True))
    arguments = BiasAddArguments(**arrays, size=size, view=by, **mask(problem))
    planner.launch(kernel, (blocks_of(x.size, THREADS * vector), 1, 1), THREADS, arguments)
    return planner.program((order_of(x), (0,), order_of(x)))
