"""The algorithm ``resize_walk``: the gradient by a whole factor, by threads that walk down columns and read each row
once."""

from __future__ import annotations

from dataclasses import fields

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.resize_polyphase import (
    PolyphaseConfig,
    named,
    no_factors,
    orders,
    share_of,
    walk_length,
    walks,
)
from dnnarray._problems.spatial_resize import InterpolateProblem
from dnnarray._records import changed, frozen
from dnnarray._select import Device

_ROWS = {2: 2, 4: 1}  # that are complete at a time, by factor


@frozen
class ResizeWalkConfig(PolyphaseConfig):
    """Compile-time settings of ``kernels/spatial/resize_walk.cu``."""

    shared: bool


@frozen
class ResizeWalkArguments(Arguments, restrict=True):
    """What ``kernels/spatial/resize_walk.cu`` is called with: strips of `rows` rows."""

    x: In
    y: Out
    threads: Extent
    groups: Extent
    strips: Extent
    groups_divisor: Extent
    strips_divisor: Extent
    rows: Extent
    height: Extent


def rejects(problem: InterpolateProblem, device: Device) -> str | None:
    if reason := no_factors(problem, device):
        return reason
    y = problem.outputs[0]
    return (
        None
        if y is not None and y.size and walks(problem, device)
        else "no rows that are read several times, or too few threads"
    )


def run(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    planner, share = Planner(problem, aligned), share_of(problem, aligned)
    settings = changed(share.config, rows=_ROWS[share.config.factor_h])
    config = ResizeWalkConfig(
        **{f.name: getattr(settings, f.name) for f in fields(PolyphaseConfig)}, shared=share.shared
    )
    length = walk_length(share.height, share.planes * share.groups, share.shared, device)
    strips = blocks_of(share.height, length)
    threads = share.planes * strips * share.groups
    arguments = ResizeWalkArguments(
        planner.inputs[0],
        planner.outputs[0],
        threads=threads,
        groups=share.groups,
        strips=strips,
        groups_divisor=divisor(share.groups),
        strips_divisor=divisor(strips),
        rows=length,
        height=share.height,
    )
    kernel = Kernel(
        "spatial/resize_walk.cu", f"{named(config, problem.inputs[0], 'walk')}{'_shared' * config.shared}", config
    )
    planner.launch(kernel, (blocks_of(threads, config.threads), 1, 1), config.threads, arguments)
    return planner.program(orders(problem))
