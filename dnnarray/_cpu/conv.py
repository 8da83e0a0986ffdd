"""Convolution, its gradients and transposed convolution on NumPy arrays: the maps of a geometry by any of the `WAYS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import compiled, matrix_unit
from dnnarray._cpu.conv_blocks import Way, scratch_bytes
from dnnarray._cpu.conv_channel_lanes import SUMMARY_LANES, channel_lanes_cost
from dnnarray._cpu.conv_depthwise import DEPTHWISE, SUMMARY_DEPTHWISE_LANES, lanes_cost, rejects_lanes
from dnnarray._cpu.conv_fft import FFT, FFT_TILED
from dnnarray._cpu.conv_gemm import DIRECT, GEMM
from dnnarray._cpu.conv_implicit_gemm import IMPLICIT_GEMM
from dnnarray._cpu.conv_maps import (
    Scratch,
    conv,
    conv_backward,
    conv_backward_input,
    conv_backward_weight,
    conv_transpose,
    conv_transpose_backward,
)
from dnnarray._cpu.conv_shares import scratch_of, weight_parts
from dnnarray._cpu.conv_shifted import SUMMARY, SUMMARY_WEIGHT, huge, shifted_cost, shifted_weight_cost, strided_cost
from dnnarray._cpu.conv_shifted import rejects as rejects_shifted
from dnnarray._cpu.conv_split import SUMMARY_SHIFTS, rejects_shifts, shifts_cost, split_cost
from dnnarray._cpu.conv_split import rejects as rejects_split
from dnnarray._cpu.conv_unfold import ALGORITHMS as UNFOLD_ALGORITHMS
from dnnarray._cpu.conv_winograd import (
    SUMMARY_4X4,
    SUMMARY_4X4_WEIGHT,
    WINOGRAD,
    cost_4x4,
    cost_4x4_weight,
    precision_4x4,
    precision_4x4_weight,
)
from dnnarray._cpu.conv_winograd import rejects as rejects_winograd
from dnnarray._options import PRECISIONS
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, Method

_PRODUCTS = (IMPLICIT_GEMM, GEMM, DIRECT, WINOGRAD)
WAYS = tuple(
    way._replace(spreads=True, spreads_channels=way in _PRODUCTS)
    for way in (IMPLICIT_GEMM, GEMM, DIRECT, DEPTHWISE, WINOGRAD, FFT, FFT_TILED)
)


# --- the table --------------------------------------------------------------------------------------------------------

_FORWARD, _INPUT, _WEIGHT = "forward", "input", "weight"
# What each operation runs, whether it recomputes the input of an activation first (by the last entry), and its function.
_OPERATIONS: dict[str, tuple[tuple[str, ...], str | None, Callable[..., None]]] = {
    "conv": ((_FORWARD,), None, conv),
    "conv_backward_input": ((_INPUT,), None, conv_backward_input),
    "conv_backward_weight": ((_WEIGHT,), None, conv_backward_weight),
    "conv_backward": ((_INPUT, _WEIGHT), _FORWARD, conv_backward),
    "conv_transpose": ((_INPUT,), None, conv_transpose),
    "conv_transpose_backward": ((_FORWARD, _WEIGHT), _INPUT, conv_transpose_backward),
}


def _correlations(maps: Iterable[str], g: Geometry) -> list[Geometry]:
    """The geometries that the maps hand to `correlate`."""
    found = []
    for name in maps:
        if name == _FORWARD:
            found.append(g)
        elif name == _INPUT:
            found += [p.geometry for p in g.phases]
    return found


def _is_finite(array: np.ndarray | None) -> bool:
    """Whether every value is finite; a sum that overflows says no, which costs time and nothing else."""
    return array is None or bool(np.isfinite(np.sum(array)))


def _is_empty(g: Geometry) -> bool:
    return 0 in g.sizes


def _maps(op: str, problem: ConvProblem) -> tuple[str, ...]:
    """Which of the three an operation runs for a problem."""
    always, recomputed, _ = _OPERATIONS[op]
    return always if recomputed is None or problem.activation is None else (*always, recomputed)


def _method(op: str, way: Way) -> Method:
    always, _, run = _OPERATIONS[op]

    def maps(problem: ConvProblem) -> tuple[str, ...]:
        return _maps(op, problem)

    def rejects(problem: ConvProblem, device: Device) -> str | None:
        g = problem.geometry
        if _WEIGHT in always:
            reason = "it has no gradient of the weight" if way.rejects_weight is None else way.rejects_weight(g)
            if reason is not None:
                return reason
        return next((r for r in map(way.rejects, _correlations(maps(problem), g)) if r is not None), None)

    def workspace(problem: ConvProblem) -> int:
        g = problem.geometry
        if _is_empty(g):
            return 0
        if way.input_buffers is not None and _INPUT in maps(problem):
            needed = [(g, way.input_buffers, False)]
        else:
            needed = [(c, way.buffers, False) for c in _correlations(maps(problem), g)]
        if _WEIGHT in always:
            assert way.weight_buffers is not None  # `rejects` has asked for the gradient of the weight
            needed += [(part.geometry, way.weight_buffers, True) for part in weight_parts(g)]
        return max((scratch_of(way, c, shapes, problem.itemsize, weighs) for c, shapes, weighs in needed), default=0)

    def cost(problem: ConvProblem, device: Device) -> Cost:
        g = problem.geometry
        if _is_empty(g):
            return Cost(0, 0)
        costs = [way.cost(c, problem.itemsize) for c in _correlations(maps(problem), g)]
        if way.input_gradient is None and _INPUT in maps(problem) and g.stride != (1, 1, 1):
            costs.append(strided_cost(g.sizes[0], problem.itemsize))
        if _WEIGHT in always:
            assert way.weight_cost is not None
            costs.append(way.weight_cost(g, problem.itemsize))
        return _total(costs)

    def bound(problem: ConvProblem, outputs: Any, scratch: Scratch, *arrays: Any) -> None:
        if way.mixes and not all(map(_is_finite, arrays)):
            run(DIRECT, problem, outputs, None, *arrays)  # so that NaN and infinity stay where the definition puts them
        else:
            run(way, problem, outputs, scratch, *arrays)

    return Method(way.name, bound, way.summary, rejects, workspace, cost, precision=way.precision)


def _total(costs: Sequence[Cost]) -> Cost:
    """The costs one after the other, at the full peak rate."""
    return Cost(sum(c.flops / c.efficiency for c in costs), sum(c.bytes for c in costs), 1.0, sum(c.launches for c in costs))


class _CompiledWay(NamedTuple):
    """A way that Numba compiles, for the maps that are correlations; its module holds `WAY`, and a driver for each operation of these alone.

    Where the weight's gradient is asked for as well, ``compiled/conv_backward.py`` puts the compiled one beside it.
    """

    name: str
    module: str
    summary: str
    cost: Callable[[Geometry, int], Cost]
    rejects: Callable[[Geometry], str | None]
    strided: bool = True  # a gradient's phases are written one after the other, each to every so many pixels
    precision: Callable[[Geometry], str] = lambda g: "highest"  # the class of its numerics in float32
    target: Callable[[str], str | None] = lambda dtype: None  # why it cannot be compiled for a dtype on this machine
    weighs: bool = True  # it stands beside a gradient of the weight, too, and these are of that one
    rejects_weight: Callable[[Geometry], str | None] = huge
    weight_cost: Callable[[Geometry, int], Cost] = shifted_weight_cost

    def way(self, weighs: bool) -> Way:
        """Asked for only where Numba has compiled it."""
        way: Way
        if weighs:
            way = import_module("dnnarray._cpu.compiled.conv_backward").WAYS[self.name]
        else:
            way = import_module(f"dnnarray._cpu.compiled.{self.module}").WAY
        return way

    def method(self, op: str) -> Method:
        """The entry of an operation."""
        weighs = _WEIGHT in _OPERATIONS[op][0]

        def accepts(problem: ConvProblem, device: Device) -> str | None:
            found = _correlations(_maps(op, problem), problem.geometry)
            reason = next((r for r in map(self.rejects, found) if r is not None), None) or self.target(compiled.arithmetic(problem))
            return self.rejects_weight(problem.geometry) if weighs and reason is None else reason

        def workspace(problem: ConvProblem) -> int:
            return _method(op, self.way(weighs)).workspace(problem)

        def cost(problem: ConvProblem, device: Device) -> Cost:
            g, maps = problem.geometry, _maps(op, problem)
            if _is_empty(g):
                return Cost(0, 0)
            costs = [self.cost(c, problem.itemsize) for c in _correlations(maps, g)]
            if self.strided and _INPUT in maps and g.stride != (1, 1, 1):
                costs.append(strided_cost(g.sizes[0], problem.itemsize))
            if weighs:
                costs.append(self.weight_cost(g, problem.itemsize))
            return _total(costs)

        def precision(problem: ConvProblem) -> str:
            return max(map(self.precision, _correlations(_maps(op, problem), problem.geometry)), key=PRECISIONS.index, default="highest")

        module, driver = ("conv_backward", f"{self.name}_{op}") if weighs else (self.module, op)
        return compiled.method(
            self.name,
            module,
            driver,
            self.summary,
            accepts=accepts,
            target=self.target,
            cost=cost,
            workspace=workspace,
            precision=precision,
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
            shapes = import_module(f"dnnarray._cpu.compiled.{self.module}").WAY.weight_buffers
            if _is_empty(problem.geometry):
                return 0
            return max(scratch_bytes(shapes(part.geometry), problem.itemsize) for part in weight_parts(problem.geometry))

        def cost(problem: ConvProblem, device: Device) -> Cost:
            g = problem.geometry
            return Cost(0, 0) if _is_empty(g) else self.cost(g, problem.itemsize)

        def precision(problem: ConvProblem) -> str:
            return self.precision(problem.geometry)

        name, driver = self.name, "conv_backward_weight"
        return compiled.method(
            name, self.module, driver, self.summary, accepts=accepts, cost=cost, workspace=workspace, precision=precision
        )


_COMPILED_WEIGHTS = (
    _CompiledWeight("winograd_4x4", "winograd_weight", SUMMARY_4X4_WEIGHT, cost_4x4_weight, rejects_winograd, precision_4x4_weight),
    _CompiledWeight("depthwise_lanes", "conv_depthwise_lanes_weight", SUMMARY_DEPTHWISE_LANES, lanes_cost, rejects_lanes),
    _CompiledWeight("shifted", "conv_weight", SUMMARY_WEIGHT, shifted_weight_cost, huge),
)
_COMPILED_WAYS = (
    _CompiledWay("winograd_4x4", "winograd", SUMMARY_4X4, cost_4x4, rejects_winograd, precision=precision_4x4, weighs=False),
    _CompiledWay("shifted", "conv", SUMMARY, shifted_cost, rejects_shifted),
    _CompiledWay("channel_lanes", "conv_lanes", SUMMARY_LANES, channel_lanes_cost, rejects_shifted, strided=False),
    _CompiledWay(
        "depthwise_lanes",
        "conv_depthwise_lanes",
        SUMMARY_DEPTHWISE_LANES,
        lanes_cost,
        rejects_lanes,
        strided=False,
        rejects_weight=rejects_lanes,
        weight_cost=lanes_cost,
    ),
    _CompiledWay("split_gemm", "conv_split", matrix_unit.SUMMARY, split_cost, rejects_split, target=matrix_unit.refuses),
    _CompiledWay("split_shifted", "conv_split_shifts", SUMMARY_SHIFTS, shifts_cost, rejects_shifts, target=matrix_unit.refuses),
)


def _compiled(op: str) -> tuple[Method, ...]:
    """A backward by Winograd would gain nothing beside the gradient of the weight, and round thrice as much."""
    if op == "conv_backward_weight":
        return tuple(way.method() for way in _COMPILED_WEIGHTS)
    return tuple(way.method(op) for way in _COMPILED_WAYS if way.weighs or _WEIGHT not in _OPERATIONS[op][0])


ALGORITHMS = {op: (*(_method(op, way) for way in WAYS), *_compiled(op)) for op in _OPERATIONS}
ALGORITHMS |= UNFOLD_ALGORITHMS
