"""The algorithm ``argmax_gradient_bulk``: maxima over small windows that overlap, found again, in channels-first
memory; blocks that stay fetch long runs of a plane's rows, or all of it, by TMA (sm_90)."""

from __future__ import annotations

from dataclasses import asdict

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.argmax_gradient import reason
from dnnarray._cuda.pool.bulk import (
    GradientArguments,
    GradientConfig,
    Settings,
    Table,
    arguments_of,
    config_of,
    cut_of,
    words_of,
)
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import geometry_at, one_launch
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_TABLE: Table = {
    (False, False): {True: Settings(8, 128, 14, 2, 2, turns=True), False: Settings(4, 64, 14, 1, 8)},
    (True, False): {False: Settings(4, 128, 28, 1, 2)},
    (False, True): {True: Settings(8, 96, 20, 1, 6), False: Settings(4, 128, 16, 1, 5)},
    (True, True): {True: Settings(8, 128, 14, 2, 2, turns=True), False: Settings(4, 64, 14, 2, 4)},
}


@frozen
class ArgmaxGradientBulkConfig(GradientConfig):
    """Compile-time settings of ``kernels/pool/argmax_gradient_bulk.cu``."""


@frozen
class ArgmaxGradientBulkArguments(GradientArguments):
    """What ``kernels/pool/argmax_gradient_bulk.cu`` is called with."""

    grad: In
    x: In
    dx: Out


def _plan(problem: PoolProblem, device: Device, g: Geometry) -> Plan:
    x = problem.inputs[1]
    cut = cut_of(_TABLE, g, x, None, device)
    assert cut is not None  # rejects
    name = "_".join(words_of("argmax_gradient_bulk", g, x, cut))
    kernel = Kernel(
        "pool/argmax_gradient_bulk.cu", name, ArgmaxGradientBulkConfig(**asdict(config_of(g, x, cut))), ("pool/window",)
    )
    arguments = ArgmaxGradientBulkArguments(grad=Array(0), x=Array(1), dx=Array(2), **arguments_of(g, cut))
    return planned(kernel, (cut.blocks, 1, 1), cut.settings.threads, arguments, shared_memory=cut.tiles.shared)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if problem.inputs[2] is not None:
        return "the places of maxima are given"
    return bulk_reason(problem, device, _TABLE)


def bulk_reason(problem: PoolProblem, device: Device, table: Table) -> str | None:
    """Why bulk copies of rows do not serve a gradient."""
    if device.capability != (9, 0) or not device.aligned:
        return "it needs an sm_90 GPU, and memory at multiples of 16 bytes"
    if found := reason(problem):
        return found
    g, (_, x, indices) = geometry_at(problem), problem.inputs
    if not g.first:
        return "memory is not channels-first"
    if cut_of(table, g, x, indices, device) is None:
        return (
            "there are no settings for windows of this size and stride, or planes, rows or lanes do not divide "
            "into whole runs"
        )
    return None


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, device, g))
