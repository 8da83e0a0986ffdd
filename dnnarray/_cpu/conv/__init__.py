"""Convolution, its gradients and transposed convolution on NumPy arrays: the maps of a geometry by any of the
`WAYS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import compiled, matrix_unit
from dnnarray._cpu.conv.blocks import Way
from dnnarray._cpu.conv.channel_lanes import SUMMARY_LANES, channel_lanes_cost
from dnnarray._cpu.conv.depthwise import DEPTHWISE, SUMMARY_DEPTHWISE_LANES, lanes_cost, rejects_lanes
from dnnarray._cpu.conv.fft import FFT, FFT_TILED
from dnnarray._cpu.conv.gemm import DIRECT, GEMM
from dnnarray._cpu.conv.implicit_gemm import IMPLICIT_GEMM
from dnnarray._cpu.conv.maps import (
    Scratch,
    conv,
    conv_backward,
    conv_backward_input,
    conv_backward_weight,
    conv_transpose,
    conv_transpose_backward,
)
from dnnarray._cpu.conv.shares import Shapes, scratch_of, weight_parts
from dnnarray._cpu.conv.shifted import SUMMARY, SUMMARY_WEIGHT, huge, shifted_cost, shifted_weight_cost, strided_cost
from dnnarray._cpu.conv.shifted import rejects as rejects_shifted
from dnnarray._cpu.conv.split import SUMMARY_SHIFTS, rejects_shifts, shifts_cost, split_cost
from dnnarray._cpu.conv.split import rejects as rejects_split
from dnnarray._cpu.conv.unfold import ALGORITHMS as UNFOLD_ALGORITHMS
from dnnarray._cpu.conv.winograd import (
    SUMMARY_4X4,
    SUMMARY_4X4_WEIGHT,
    WINOGRAD,
    cost_4x4,
    cost_4x4_weight,
    precision_4x4,
    precision_4x4_weight,
)
from dnnarray._cpu.conv.winograd import rejects as rejects_winograd
from dnnarray._options import PRECISIONS
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, Method

_PRODUCTS = (IMPLICIT_GEMM, GEMM, DIRECT, WINOGRAD)
WAYS = tuple(
    way._replace(parallel=True, parallel_channels=way in _PRODUCTS)
    for way in (IMPLICIT_GEMM, GEMM, DIRECT, DEPTHWISE, WINOGRAD, FFT, FFT_TILED)
)


# --- the table --------------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Callable[..., None]] = {
    "conv": conv,
    "conv_backward_input": conv_backward_input,
    "conv_backward_weight": conv_backward_weight,
    "conv_backward": conv_backward,
    "conv_transpose": conv_transpose,
    "conv_transpose_backward": conv_transpose_backward,
}
_BACKWARD = ("conv_backward", "conv_transpose_backward")


def _correlations(problem: ConvProblem) -> list[Geometry]:
    """The geometries that the maps hand to `forward`."""
    g, runs = problem.geometry, problem.runs
    return [g] * runs.forward + ([p.geometry for p in g.phases] if runs.dgrad else [])


def _is_finite(array: np.ndarray | None) -> bool:
    """Whether every value is finite; a sum that overflows says no, which costs time and nothing else."""
    return array is None or bool(np.isfinite(np.sum(array)))


_NO_WEIGHT = "it has no gradient of the weight"


def _is_empty(g: Geometry) -> bool:
    return 0 in g.sizes


def _workspace(way: Way, problem: ConvProblem) -> int:
    """Bytes of scratch that hold each of the maps, one at a time."""
    g, runs = problem.geometry, problem.runs
    if _is_empty(g):
        return 0
    needed: list[tuple[Geometry, Shapes, bool]] = [(g, way.buffers, False)] * runs.forward
    if runs.dgrad and way.input_buffers is not None:
        needed.append((g, way.input_buffers, False))
    elif runs.dgrad:
        needed += [(phase.geometry, way.buffers, False) for phase in g.phases]
    if runs.wgrad:
        assert way.weight_buffers is not None  # `rejects` has asked for the gradient of the weight
        needed += [(part.geometry, way.weight_buffers, True) for part in weight_parts(g)]
    return max((scratch_of(way, each, shapes, problem.itemsize, wgrad) for each, shapes, wgrad in needed), default=0)


def _method(op: str, way: Way) -> Method:
    run = _OPERATIONS[op]

    def rejects(problem: ConvProblem, device: Device) -> str | None:
        if problem.runs.wgrad:
            reason = _NO_WEIGHT if way.rejects_weight is None else way.rejects_weight(problem.geometry)
            if reason is not None:
                return reason
        return next((r for r in map(way.rejects, _correlations(problem)) if r is not None), None)

    def workspace(problem: ConvProblem) -> int:
        return max(_workspace(each, problem) for each in ((way, DIRECT) if way.mixes else (way,)))

    def cost(problem: ConvProblem, device: Device) -> Cost:
        g = problem.geometry
        if _is_empty(g):
            return Cost(0, 0)
        costs = [way.cost(c, problem.itemsize) for c in _correlations(problem)]
        if way.input_gradient is None and problem.runs.dgrad and g.stride != (1, 1, 1):
            costs.append(strided_cost(g.sizes[0], problem.itemsize))
        if problem.runs.wgrad:
            assert way.weight_cost is not None
            costs.append(way.weight_cost(g, problem.itemsize))
        return _total(costs)

    def bound(problem: ConvProblem, outputs: Any, scratch: Scratch, *arrays: Any) -> None:
        if way.mixes and not all(_is_finite(a) for i, a in enumerate(arrays) if i not in problem.unread):
            run(
                DIRECT, problem, outputs, scratch, *arrays
            )  # so that NaN and infinity stay where the definition puts them
        else:
            run(way, problem, outputs, scratch, *arrays)

    return Method(way.name, bound, way.summary, rejects, workspace, cost, precision=way.precision)


def _total(costs: Sequence[Cost]) -> Cost:
    """The costs one after the other, at the full peak rate."""
    return Cost(
        sum(c.flops / c.efficiency for c in costs), sum(c.bytes for c in costs), 1.0, sum(c.launches for c in costs)
    )


class _CompiledWay(NamedTuple):
    """A way that Numba compiles, for the maps that are correlations; its module holds `WAY`, and a driver for each
    operation of these alone.

    Where the weight's gradient is asked for as well, ``compiled/conv/backward.py`` puts the compiled one beside it.
    """

    name: str
    module: str
    summary: str
    cost: Callable[[Geometry, int], Cost]
    rejects: Callable[[Geometry], str | None]
    strided: bool = True  # a gradient's phases are written one after the other, each to every so many pixels
    precision: Callable[[Geometry], str] = lambda g: "highest"  # the class of its numerics in float32
    target: Callable[[str], str | None] = lambda dtype: None  # why it cannot be compiled for a dtype on this machine
    alone: bool = False  # of a backward it does a single map: several of them would round several times as much
    of_weight: bool = False  # its gradient of the weight is one of its own; else it stands beside that of "shifted"
    rejects_weight: Callable[[Geometry], str | None] = huge
    weight_cost: Callable[[Geometry, int], Cost] = shifted_weight_cost
    weight_precision: Callable[[Geometry], str] = lambda g: "highest"

    def way(self, op: str) -> Way:
        """Asked for only where Numba has compiled it."""
        way: Way
        if op in _BACKWARD:
            way = import_module("dnnarray._cpu.compiled.conv.backward").WAYS[self.name]
        else:
            way = import_module(f"dnnarray._cpu.compiled.{self.module}").WAY
        return way

    def unasked(self, problem: ConvProblem) -> str | None:
        """Why a backward by this way would be that by another one, or None."""
        if self.alone and problem.maps > 1:
            return "it does one gradient at a time"
        forward, dgrad, wgrad = problem.runs
        if forward or dgrad or (wgrad and self.of_weight):
            return None
        return (
            "the gradient of the weight alone is that of another algorithm" if wgrad else "there is nothing to multiply"
        )

    def accepts(self, problem: ConvProblem, device: Device) -> str | None:
        reasons = map(self.rejects, _correlations(problem))
        reason = (
            self.unasked(problem)
            or next((r for r in reasons if r is not None), None)
            or self.target(compiled.arithmetic(problem))
        )
        return self.rejects_weight(problem.geometry) if problem.runs.wgrad and reason is None else reason

    def cost_of(self, problem: ConvProblem, device: Device) -> Cost:
        g, runs = problem.geometry, problem.runs
        if _is_empty(g):
            return Cost(0, 0)
        costs = [self.cost(c, problem.itemsize) for c in _correlations(problem)]
        if self.strided and runs.dgrad and g.stride != (1, 1, 1):
            costs.append(strided_cost(g.sizes[0], problem.itemsize))
        if runs.wgrad:
            costs.append(self.weight_cost(g, problem.itemsize))
        return _total(costs)

    def precision_of(self, problem: ConvProblem) -> str:
        found = [self.precision(c) for c in _correlations(problem)]
        found += [self.weight_precision(problem.geometry)] * problem.runs.wgrad
        return max(found, key=PRECISIONS.index, default="highest")

    def method(self, op: str) -> Method:
        """The entry of an operation."""

        def workspace(problem: ConvProblem) -> int:
            return _workspace(self.way(op), problem)

        module, driver = ("conv.backward", f"{self.name}_{op}") if op in _BACKWARD else (self.module, op)
        return compiled.method(
            self.name,
            module,
            driver,
            self.summary,
            accepts=self.accepts,
            target=self.target,
            cost=self.cost_of,
            workspace=workspace,
            precision=self.precision_of,
        )


class _CompiledWeight(NamedTuple):
    """A way that Numba compiles for the gradient of a weight alone; its module holds `WAY` and the driver."""

    name: str
    module: str
    summary: str
    cost: Callable[[Geometry, int], Cost]
    rejects: Callable[[Geometry], str | None]
    precision: Callable[[Geometry], str] = lambda g: "highest"

    def method(self) -> Method:
        """Its entry."""

        def accepts(problem: ConvProblem, device: Device) -> str | None:
            return self.rejects(problem.geometry)

        def workspace(problem: ConvProblem) -> int:
            return _workspace(import_module(f"dnnarray._cpu.compiled.{self.module}").WAY, problem)

        def cost(problem: ConvProblem, device: Device) -> Cost:
            g = problem.geometry
            return Cost(0, 0) if _is_empty(g) else self.cost(g, problem.itemsize)

        def precision(problem: ConvProblem) -> str:
            return self.precision(problem.geometry)

        name, driver = self.name, "conv_backward_weight"
        return compiled.method(
            name,
            self.module,
            driver,
            self.summary,
            accepts=accepts,
            cost=cost,
            workspace=workspace,
            precision=precision,
        )


_COMPILED_WEIGHTS = (
    _CompiledWeight(
        "winograd_4x4",
        "conv.winograd_4x4_weight",
        SUMMARY_4X4_WEIGHT,
        cost_4x4_weight,
        rejects_winograd,
        precision_4x4_weight,
    ),
    _CompiledWeight(
        "depthwise_lanes", "conv.depthwise_lanes_weight", SUMMARY_DEPTHWISE_LANES, lanes_cost, rejects_lanes
    ),
    _CompiledWeight("shifted", "conv.shifted_weight", SUMMARY_WEIGHT, shifted_weight_cost, huge),
)
_COMPILED_WAYS = (
    _CompiledWay(
        "winograd_4x4",
        "conv.winograd_4x4",
        SUMMARY_4X4,
        cost_4x4,
        rejects_winograd,
        precision=precision_4x4,
        alone=True,
        of_weight=True,
        rejects_weight=rejects_winograd,
        weight_cost=cost_4x4_weight,
        weight_precision=precision_4x4_weight,
    ),
    _CompiledWay("shifted", "conv.shifted", SUMMARY, shifted_cost, rejects_shifted, of_weight=True),
    _CompiledWay(
        "channel_lanes", "conv.channel_lanes", SUMMARY_LANES, channel_lanes_cost, rejects_shifted, strided=False
    ),
    _CompiledWay(
        "depthwise_lanes",
        "conv.depthwise_lanes",
        SUMMARY_DEPTHWISE_LANES,
        lanes_cost,
        rejects_lanes,
        strided=False,
        of_weight=True,
        rejects_weight=rejects_lanes,
        weight_cost=lanes_cost,
    ),
    _CompiledWay(
        "split_gemm", "conv.split_gemm", matrix_unit.SUMMARY, split_cost, rejects_split, target=matrix_unit.refuses
    ),
    _CompiledWay(
        "split_shifted", "conv.split_shifted", SUMMARY_SHIFTS, shifts_cost, rejects_shifts, target=matrix_unit.refuses
    ),
)


def _compiled(op: str) -> tuple[Method, ...]:
    if op == "conv_backward_weight":
        return tuple(way.method() for way in _COMPILED_WEIGHTS)
    return tuple(way.method(op) for way in _COMPILED_WAYS)


ALGORITHMS = {op: (*(_method(op, way) for way in WAYS), *_compiled(op)) for op in _OPERATIONS}
ALGORITHMS |= UNFOLD_ALGORITHMS
