"""Convolution, its gradients and transposed convolution on NumPy arrays: the maps of a geometry by any of the `WAYS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import activation, compiled, matrix_unit, threads
from dnnarray._cpu.conv_blocks import Shape, Way, at, carve, image_view, scratch_bytes, weight_view
from dnnarray._cpu.conv_channel_lanes import SUMMARY_LANES, channel_lanes_cost
from dnnarray._cpu.conv_depthwise import DEPTHWISE
from dnnarray._cpu.conv_fft import FFT, FFT_TILED
from dnnarray._cpu.conv_gemm import DIRECT, GEMM
from dnnarray._cpu.conv_implicit_gemm import IMPLICIT_GEMM
from dnnarray._cpu.conv_shifted import SUMMARY, SUMMARY_WEIGHT, huge, shifted_cost, shifted_weight_cost, strided_cost
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

WAYS = tuple(way._replace(spreads=True) for way in (IMPLICIT_GEMM, GEMM, DIRECT, DEPTHWISE, WINOGRAD, FFT, FFT_TILED))
Scratch = np.ndarray | None
_MACS = 16  # multiply-adds that take as long as an element of a light operation, waking a thread included


# --- the three maps ---------------------------------------------------------------------------------------------------


class _Share(NamedTuple):
    """Some of the groups, as a problem of its own for one thread, and where its scratch starts."""

    groups: slice
    geometry: Geometry
    start: int


def _shares(way: Way, g: Geometry, shapes: Callable[[Geometry], Sequence[Shape]], itemsize: int) -> tuple[list[_Share], int]:
    """The groups spread over threads where there is enough to do, and the bytes of scratch of all."""
    parts = min(threads.worth(g.macs // _MACS), g.groups) if way.spreads else 1
    shares, start = [], 0
    for low, high in threads.split(g.groups, parts):
        part = g.of_groups(slice(low, high))
        shares.append(_Share(slice(low, high), part, start))
        start += scratch_bytes(shapes(part), itemsize)
    return shares, start


def _spread(
    way: Way,
    run: Callable[..., None],
    g: Geometry,
    shapes: Callable[[Geometry], Sequence[Shape]],
    scratch: Scratch,
    images: Sequence[np.ndarray],
    w: np.ndarray,
) -> None:
    """``run(geometry, buffers, groups' parts of the images and of w)``; as one where the scratch is that of another number of threads."""
    shares, needed = _shares(way, g, shapes, w.itemsize) if way.spreads else ([], 0)
    if len(shares) < 2 or scratch is None or needed > scratch.size:
        run(g, carve(scratch, shapes(g), w.dtype), *images, w)
        return

    def share(part: _Share) -> None:
        buffers = carve(scratch[part.start :], shapes(part.geometry), w.dtype)
        run(part.geometry, buffers, *(a[:, part.groups] for a in images), w[part.groups])

    threads.each(share, ((part,) for part in shares), work=g.macs, products=True)


def _correlate(way: Way, g: Geometry, scratch: Scratch, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """y from x; sums over nothing are 0."""
    if not (x.size and w.size):
        y[...] = 0
    elif y.size:
        _spread(way, lambda g, buffers, x, y, w: way.correlate(g, buffers, x, w, y), g, way.buffers, scratch, (x, y), w)


def _input_gradient(way: Way, g: Geometry, scratch: Scratch, grad: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    """x, the gradient of the input, from that of the output: a correlation for each phase of the stride, unless the way does them together."""
    if way.input_gradient is not None and way.input_buffers is not None and grad.size and w.size and x.size:
        way.input_gradient(g, carve(scratch, way.input_buffers(g), x.dtype), grad, w, x)
        return
    w, way = w.transpose(0, 2, 1, 3, 4, 5), way._replace(correlate=way.correlate_back or way.correlate)
    if not g.phases_cover:
        x[...] = 0
    for phase in g.phases:
        _correlate(way, phase.geometry, scratch, grad, w[at(phase.taps)], x[at(phase.target)])


def _weight_gradient(way: Way, g: Geometry, scratch: Scratch, x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    """w, the gradient of the weight."""
    if not (x.size and grad.size):
        w[...] = 0
    elif w.size:
        _spread(way, way.weight_gradient, g, way.weight_buffers, scratch, (x, grad), w)  # type: ignore[arg-type]


def _epilogue(problem: ConvProblem, y: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None) -> None:
    """Bias and residual, in place."""
    if bias is not None:
        np.add(y, bias if problem.layout == "channels_last" else bias.reshape(-1, *(1,) * problem.rank), out=y)
    if residual is not None:
        np.add(y, residual, out=y)


def _bias_gradient(problem: ConvProblem, grad: np.ndarray, bias: np.ndarray) -> None:
    channel = grad.ndim - 1 if problem.layout == "channels_last" else 1
    np.sum(grad, axis=tuple(i for i in range(grad.ndim) if i != channel), out=bias)


def _views(problem: ConvProblem, *images: np.ndarray) -> list[np.ndarray]:
    return [image_view(a, problem.layout, problem.geometry.groups) for a in images]


def _weight(problem: ConvProblem, w: np.ndarray) -> np.ndarray:
    return weight_view(w, problem.layout, problem.geometry.groups, problem.flip)


# --- the operations ---------------------------------------------------------------------------------------------------
# Each is run(way, problem, outputs, scratch, *arrays); `_table` binds the way.


def _before_activation(way: Way, problem: ConvProblem, scratch: Scratch, x: Any, weight: Any, bias: Any, residual: Any, y: Any) -> None:
    source, target = _views(problem, x, y)
    _correlate(way, problem.geometry, scratch, source, _weight(problem, weight), target)
    _epilogue(problem, y, bias, residual)


def conv(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, x: Any, weight: Any, bias: Any, residual: Any) -> None:
    y = outputs[0]
    _before_activation(way, problem, scratch, x, weight, bias, residual, y)
    activation.apply(problem.activation, y, y)


def conv_backward_input(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, weight: Any) -> None:
    dy, dx = _views(problem, grad, outputs[0])
    _input_gradient(way, problem.geometry, scratch, dy, _weight(problem, weight), dx)


def conv_backward_weight(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, x: Any) -> None:
    dy, x = _views(problem, grad, x)
    _weight_gradient(way, problem.geometry, scratch, x, dy, _weight(problem, outputs[0]))


def conv_backward(
    way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, x: Any, weight: Any, bias: Any, residual: Any
) -> None:
    if problem.activation is not None:
        y = np.empty_like(grad)
        _before_activation(way, problem, scratch, x, weight, bias, residual, y)
        grad = activation.apply_gradient(problem.activation, grad, y)
    conv_backward_input(way, problem, outputs[:1], scratch, grad, weight)
    conv_backward_weight(way, problem, outputs[1:2], scratch, grad, x)
    if bias is not None:
        _bias_gradient(problem, grad, outputs[2])
    if residual is not None:
        outputs[3][...] = grad


def _transposed(way: Way, problem: ConvProblem, scratch: Scratch, x: Any, weight: Any, bias: Any, y: Any) -> None:
    conv_backward_input(way, problem, (y,), scratch, x, weight)
    _epilogue(problem, y, bias, None)


def conv_transpose(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, x: Any, weight: Any, bias: Any) -> None:
    y = outputs[0]
    _transposed(way, problem, scratch, x, weight, bias, y)
    activation.apply(problem.activation, y, y)


def conv_transpose_backward(
    way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, x: Any, weight: Any, bias: Any
) -> None:
    if problem.activation is not None:
        y = np.empty_like(grad)
        _transposed(way, problem, scratch, x, weight, bias, y)
        grad = activation.apply_gradient(problem.activation, grad, y)
    dy, x, dx = _views(problem, grad, x, outputs[0])
    _correlate(way, problem.geometry, scratch, dy, _weight(problem, weight), dx)
    _weight_gradient(way, problem.geometry, scratch, dy, x, _weight(problem, outputs[1]))
    if bias is not None:
        _bias_gradient(problem, grad, outputs[2])


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
            needed = [(g, way.input_buffers)]
        else:
            needed = [(c, way.buffers) for c in _correlations(maps(problem), g)]
        if _WEIGHT in always:
            needed.append((g, way.weight_buffers))  # type: ignore[arg-type]
        return max((_scratch(way, c, shapes, problem.itemsize) for c, shapes in needed), default=0)

    def cost(problem: ConvProblem, device: Device) -> Cost:
        g = problem.geometry
        if _is_empty(g):
            return Cost(0, 0)
        costs = [way.cost(c, problem.itemsize) for c in _correlations(maps(problem), g)]
        if _WEIGHT in always:
            costs.append(way.weight_cost(g, problem.itemsize))  # type: ignore[misc]
        return _total(costs)

    def bound(problem: ConvProblem, outputs: Any, scratch: Scratch, *arrays: Any) -> None:
        if way.mixes and not all(map(_is_finite, arrays)):
            run(DIRECT, problem, outputs, None, *arrays)  # so that NaN and infinity stay where the definition puts them
        else:
            run(way, problem, outputs, scratch, *arrays)

    return Method(way.name, bound, way.summary, rejects, workspace, cost, precision=way.precision)


def _scratch(way: Way, g: Geometry, shapes: Callable[[Geometry], Sequence[Shape]], itemsize: int) -> int:
    """Bytes for the groups spread over the threads of now, or all of them as one."""
    return max(scratch_bytes(shapes(g), itemsize), _shares(way, g, shapes, itemsize)[1])


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
    weighs: bool = True  # it stands beside a gradient of the weight, too

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
            return huge(problem.geometry) if weighs and reason is None else reason

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
                costs.append(shifted_weight_cost(g, problem.itemsize))
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
            return 0 if _is_empty(problem.geometry) else scratch_bytes(shapes(problem.geometry), problem.itemsize)

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
    _CompiledWeight("shifted", "conv_weight", SUMMARY_WEIGHT, shifted_weight_cost, huge),
)
_COMPILED_WAYS = (
    _CompiledWay("winograd_4x4", "winograd", SUMMARY_4X4, cost_4x4, rejects_winograd, precision=precision_4x4, weighs=False),
    _CompiledWay("shifted", "conv", SUMMARY, shifted_cost, huge),
    _CompiledWay("channel_lanes", "conv_lanes", SUMMARY_LANES, channel_lanes_cost, huge, strided=False),
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
