"""The algorithm ``indices_gradient_bulk``: the gradient of maxima over small windows that overlap, from where they
stand, in channels-first memory; blocks that stay fetch long runs of rows of windows and of places by TMA (sm_90)."""

from __future__ import annotations

from dataclasses import asdict

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.argmax_gradient_bulk import bulk_reason
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
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.gradient import one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, Division, Saved
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_TABLE: Table = {
    (False, False): {True: Settings(4, 64, 7, 1, 12), False: Settings(4, 64, 14, 1, 10)},
    (True, False): {False: Settings(4, 64, 14, 1, 10)},
    (True, True): {True: Settings(4, 128, 14, 2, 4), False: Settings(4, 96, 19, 1, 6)},
}


@frozen
class IndicesGradientBulkConfig(GradientConfig):
    """Compile-time settings of ``kernels/pool/indices_gradient_bulk.cu``."""

    saved: str


@frozen
class IndicesGradientBulkArguments(GradientArguments):
    """What ``kernels/pool/indices_gradient_bulk.cu`` is called with."""

    grad: In
    indices: Saved
    dx: Out
    width: Division


def _plan(problem: PoolProblem, device: Device, g: Geometry) -> Plan:
    (_, x, indices), (_, h, w) = problem.inputs, g.axes
    cut = cut_of(_TABLE, g, x, indices, device)
    assert cut is not None  # rejects
    words = words_of("indices_gradient_bulk", g, x, cut)
    words.insert(1, f"by_{POOL_SHORT[indices.dtype]}")
    config = IndicesGradientBulkConfig(**asdict(config_of(g, x, cut)), saved=POOL_TYPES[indices.dtype])
    kernel = Kernel("pool/indices_gradient_bulk.cu", "_".join(words), config, ("pool/window",))
    arguments = IndicesGradientBulkArguments(
        grad=Array(0),
        indices=Array(2),
        dx=Array(3),
        **arguments_of(g, cut),
        width=division(w.extent, h.extent * w.extent),
    )
    return planned(kernel, (cut.blocks, 1, 1), cut.settings.threads, arguments, shared_memory=cut.tiles.shared)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return "no places of maxima are given" if problem.inputs[2] is None else bulk_reason(problem, device, _TABLE)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, device, g))
