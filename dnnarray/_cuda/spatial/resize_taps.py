"""The tables of taps of up to three axes, in one launch."""

from __future__ import annotations

from typing import Annotated, Any

from dnnarray._cuda.core.arguments import Arguments, Doubles, Extents, Pointer
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.resampling import Table, steps, tables
from dnnarray._cuda.spatial.shared import THREADS
from dnnarray._problems.spatial_resize import InterpolateProblem
from dnnarray._records import frozen

FirstsOut = Annotated[Array | None, Pointer("int", False)]
WeightsOut = Annotated[Array | None, Pointer("Config::Arithmetic", False)]


@frozen
class ResizeTapsConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize_taps.cu``."""

    arithmetic: str
    transposed: bool
    shares: bool
    threads: int


@frozen(kw_only=True)
class ResizeTapsArguments(Arguments):
    """What ``kernels/spatial/resize_taps.cu`` is called with: the tables, and for each axis the most taps, its extents
    and how it is resampled."""

    first_o: FirstsOut
    count_o: FirstsOut
    weight_o: WeightsOut
    first_p: FirstsOut
    count_p: FirstsOut
    weight_p: WeightsOut
    first_q: FirstsOut
    count_q: FirstsOut
    weight_q: WeightsOut
    most: Extents
    source: Extents
    target: Extents
    options: Extents
    steps: Doubles


def taps(problem: InterpolateProblem, found: list[Table], scratch: int, shares: bool) -> Plan | None:
    """The launch that fills the tables."""
    if not found:
        return None
    computed, missing = arithmetic_of(problem.inputs[0].dtype), [0] * (3 - len(found))
    symbol = f"resize_taps_{SHORT[computed]}{'_transposed' * problem.transposed}{'_shares' * shares}"
    kernel = Kernel(
        "spatial/resize_taps.cu", symbol, ResizeTapsConfig(TYPES[computed], problem.transposed, shares, THREADS)
    )
    sizes: dict[str, Any] = {"most": [t.most for t in found], "source": [t.resize.source for t in found]}
    sizes["target"] = [t.resize.target for t in found]
    for name, axes in sizes.items():
        sizes[name] = missing + axes
    arguments = ResizeTapsArguments(**tables(found, scratch), **sizes, **steps(problem))
    blocks = blocks_of(max(t.elements * t.most for t in found), THREADS)
    return planned(kernel, (blocks, len(found), 1), THREADS, arguments)
