"""`depthwise`: plans for convolutions of one channel a group, and their gradients."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.activation.elementwise import elementwise
from dnnarray._cuda.common.channel_sums import first_stage
from dnnarray._cuda.common.channels import View, partial_bytes, sums, too_scattered, view, whole_lines
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.conv.depthwise_band import banded, can_band
from dnnarray._cuda.conv.depthwise_common import Correlation, is_flat, memory_of, too_many, turned
from dnnarray._cuda.conv.depthwise_direct import direct
from dnnarray._cuda.conv.depthwise_mma import can_multiply, multiplied
from dnnarray._cuda.conv.depthwise_patch import can_patch, patches
from dnnarray._cuda.conv.depthwise_plane import can_plane, planes
from dnnarray._cuda.conv.depthwise_strip import can_strip, stripped
from dnnarray._cuda.conv.depthwise_tile import can_tile, tiled
from dnnarray._cuda.conv.depthwise_weight import added_up, by_rows, too_wide, walk_of_rows, weight_bytes, weight_plans
from dnnarray._cuda.conv.depthwise_weight_patch import wgrad_takes_patches
from dnnarray._cuda.conv.depthwise_weight_tile import wgrad_takes_tiles
from dnnarray._cuda.conv.depthwise_weight_walk import walks
from dnnarray._cuda.conv.shared import too_large
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import Array, Plan, Program
from dnnarray._cuda.core.planner import Operand
from dnnarray._cuda.positional import NOTHING, pointers
from dnnarray._problems.conv import ConvProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method, share_of_peak
from dnnarray._spec import FLOAT32, FLOAT64, Spec

_THREADS = 128


def _planned_correlation(c: Correlation, device: Device, arrays: tuple[Any, ...]) -> Plan:
    """One launch from x to y. `arrays` are pointers of x, w, bias, residual and y."""
    if can_band(c, device):
        return banded(c, device, arrays)
    if can_multiply(c):
        return multiplied(c, device, arrays)
    if can_strip(c):
        return stripped(c, device, arrays)
    if can_patch(c):
        return patches(c, arrays)
    if can_plane(c):
        return planes(c, device, arrays)
    return tiled(c, device, arrays) if can_tile(c) else direct(c, device, arrays)


def _orders(problem: ConvProblem, x: Spec, y: Spec, weight: int = 1) -> tuple[tuple[int, ...], ...]:
    """The memory orders that the launches expect: images as x lies, input number `weight` and the bias in C order."""
    order = memory_of(x, y, problem.layout).order
    given = [(i, s) for i, s in enumerate(problem.inputs) if s is not None]
    return tuple(order if s.ndim == x.ndim and i != weight else tuple(range(s.ndim)) for i, s in given)


# --- the forward and the gradient of its input ------------------------------------------------------------------------


def _forward(
    problem: ConvProblem, x: Spec, y: Spec, device: Device, aligned: bool, arrays: tuple[Any, ...], target: Array
) -> Plan:
    """y from x, w, bias and residual (`NOTHING` where one is absent): one launch with its epilogue."""
    relu = problem.activation is not None
    c = Correlation(
        problem.geometry, x, y, problem.layout, aligned, problem.flip, added=arrays[3] != NOTHING, relu=relu
    )
    return _planned_correlation(c, device, (*arrays, target))


def forward(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """y from x."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    inputs, outputs, _ = pointers(problem)
    return Program((_forward(problem, x, y, device, aligned, tuple(inputs), outputs[0]),), _orders(problem, x, y))


def _input(
    problem: ConvProblem, dy: Spec, dx: Spec, device: Device, aligned: bool, arrays: tuple[Any, Any, Any]
) -> Plan:
    """dx from dy and w: a forward with the weights turned round where the stride is 1, else a gather over the taps that
    meet."""
    source, weight, target = arrays
    return _planned_correlation(
        _turned_round(problem, dy, dx, aligned), device, (source, weight, NOTHING, NOTHING, target)
    )


def _turned_round(problem: ConvProblem, dy: Spec, dx: Spec, aligned: bool) -> Correlation:
    g = problem.geometry
    if set(g.stride) == {1}:
        c = Correlation(turned(g), dy, dx, problem.layout, aligned, not problem.flip, folded=g.k > 1)
        if g.k == 1 or can_strip(c):
            return c
    return Correlation(g, dy, dx, problem.layout, aligned, problem.flip, gradient=True)


def input_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dx from dy."""
    dx, dy = _images(problem)
    if dx.size == 0:
        return Program(())
    return Program(
        (_input(problem, dy, dx, device, aligned, (Array(0), Array(1), Array(2))),), _orders(problem, dy, dx)
    )


# --- the gradient of the weight ---------------------------------------------------------------------------------------


def _met(problem: ConvProblem, x: Spec, dy: Spec, aligned: bool) -> Correlation:
    """The forward whose weight's gradient is asked for."""
    return Correlation(problem.geometry, x, dy, problem.layout, aligned, problem.flip)


def weight_gradient(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """dw from dy and x."""
    dy, x = problem.inputs
    dw = problem.outputs[0]
    assert dw is not None
    if dw.size == 0:
        return Program(())
    order = memory_of(x, dy, problem.layout).order
    plans = weight_plans(_met(problem, x, dy, aligned), dw, device, (Array(0), Array(1), Array(2), Array(3)))
    return Program(tuple(plans), (order, order))


def _weight_workspace(problem: ConvProblem) -> int:
    dy, x = problem.inputs
    dw = problem.outputs[0]
    assert dw is not None
    return weight_bytes(_met(problem, x, dy, True), _met(problem, x, dy, False), dw)


# --- all gradients ----------------------------------------------------------------------------------------------------


@frozen
class _Parts:
    """Scratch memory: partial sums for weight and bias, the output that an activation needs again, the gradient behind
    it."""

    weight: Array
    bias: Array
    y: Array
    g: Array
    size: int


def _channel_view(problem: ConvProblem, x: Spec, dy: Spec) -> View:
    memory = memory_of(x, dy, problem.layout)
    found = view(dy.shape, memory.order, [memory.channel])
    assert found is not None
    return found


def _parts(problem: ConvProblem, index: int) -> _Parts:
    dy, x = problem.inputs[:2]
    _, weight, bias, *_ = problem.outputs
    of_weight = 0 if weight is None else weight_bytes(_met(problem, x, dy, True), _met(problem, x, dy, False), weight)
    of_bias = 0 if bias is None or not dy.size else partial_bytes(_channel_view(problem, x, dy), x.dtype)
    image = whole_lines(dy.nbytes) if problem.activation is not None else 0
    places: list[Array] = []
    place = 0
    for size in (of_weight, of_bias, image, image):
        places.append(Array(index, place))
        place += size
    return _Parts(places[0], places[1], places[2], places[3], place)


def _bias(
    problem: ConvProblem, x: Spec, dy: Spec, aligned: bool, g: Array, target: Array, partial: Array
) -> list[Plan]:
    """The gradient summed over all but the channel."""
    bias = problem.inputs[3]
    assert bias is not None
    if not dy.size:
        return [added_up(target, target, bias, 0)]
    s = sums(_channel_view(problem, x, dy), x.dtype, aligned)
    return [first_stage(Operand(g, x.dtype), s, partial), added_up(partial, target, bias, s.parts)]


def gradients(problem: ConvProblem, device: Device, aligned: bool) -> Program:
    """Those of dx, dw, dbias and dresidual that are wanted, from the gradient that the activation lets through."""
    dy, x = problem.inputs[:2]
    dx, dw, bias, residual = (*problem.outputs, None)[:4]
    (g, *arrays), outputs, last = pointers(problem)
    parts, y = _parts(problem, last), x.like(dy.shape)
    plans: list[Plan] = []
    if problem.activation is not None and dy.size:
        plans.append(_forward(problem, x, y, device, aligned, tuple(arrays), parts.y))
        plans.append(elementwise(formula(problem.activation, y.dtype), y, aligned, g, parts.y, parts.g))
        g = parts.g
    if dx is not None and dx.size:
        plans.append(_input(problem, y, dx, device, aligned, (g, arrays[1], outputs[0])))
    if dw is not None and dw.size:
        plans += weight_plans(_met(problem, x, y, aligned), dw, device, (g, arrays[0], outputs[1], parts.weight))
    if bias is not None and bias.size:
        plans += _bias(problem, x, y, aligned, g, outputs[2], parts.bias)
    if residual is not None and residual.size:
        plans.append(reorder(residual, memory_of(x, y, problem.layout).order, g, outputs[3]))
    return Program(tuple(plans), _orders(problem, x, y, weight=2))


# --- the table --------------------------------------------------------------------------------------------------------


def _rejects(problem: ConvProblem, device: Device) -> str | None:
    g: Any = problem.geometry
    if g.c != 1:
        return f"groups of {g.c} channels; it takes groups of one"
    if problem.activation is not None and problem.activation.name != "relu":
        return f"the fused activation {problem.activation.name}; it takes relu or none"
    return "2^31 strips of four outputs or more" if too_many(g) else too_large(g)


def _turned(problem: ConvProblem, device: Device, gradient: int = 0) -> str | None:
    """The weight's gradient is written in C order; axes of extent 1 may stand anywhere."""
    dw = problem.outputs[gradient]
    if dw is None:
        return _rejects(problem, device)
    order = [i for i in order_of(dw) if dw.shape[i] != 1]
    if order != sorted(order):
        return _rejects(problem, device) or "a weight in another memory order than C"
    return _rejects(problem, device) or (
        "a window of more taps than a grid has blocks" if too_wide(problem.geometry) else None
    )


def _scattered(problem: ConvProblem, device: Device) -> str | None:
    residual, x = (*problem.outputs, None)[3], problem.inputs[1]
    reason = _turned(problem, device, 1)
    if reason is None and not problem.maps:
        return "there is nothing to multiply"
    return reason if reason or residual is None else too_scattered(residual.shape, order_of(residual), order_of(x))


@frozen
class _Speed:
    """What a way to compute reaches on an H200: a share of the bandwidth, operations a second, and launches that its
    start costs."""

    share: float
    rate: float
    launches: int = 1
    term: float = 0.0  # seconds of a thread's term after the other

    def seconds(self, c: Correlation, device: Device) -> float:
        operations = 2 * c.g.macs * (2 if c.x.dtype == FLOAT64 else 1)
        moved = c.x.nbytes + c.y.nbytes
        chain = self.term * c.g.taps * (c.g.k if c.gradient else 1)
        work = max(operations / (self.rate * device.units / _UNITS), moved / (self.share * device.bandwidth))
        return work + chain + self.launches * device.launch


_UNITS = 132  # multiprocessors of the device that was measured
_BAND, _MMA, _STRIP, _CUBE, _PATCH, _PLANE, _TILE = (
    _Speed(share, rate)
    for share, rate in (
        (0.67, 90e12),
        (0.6, 40e12),
        (0.65, 25e12),
        (0.48, 25e12),
        (0.85, 23e12),
        (0.5, 23e12),
        (0.5, 12e12),
    )
)
_DIRECT, _DIRECT_FIRST, _GATHER = (
    _Speed(share, rate, term=0.5e-6) for share, rate in ((0.35, 6e12), (0.17, 5e12), (0.15, 2e12))
)
_WEIGHT_BAND, _WEIGHT_CUBE, _WEIGHT_STRIP, _WEIGHT_PATCH, _WEIGHT_WALK, _WEIGHT_TILE, _WEIGHT_DIRECT = (
    _Speed(share, rate, 2)
    for share, rate in (
        (0.9, 100e12),
        (0.75, 100e12),
        (0.9, 32e12),
        (0.95, 25e12),
        (0.92, 20e12),
        (0.56, 16e12),
        (0.5, 6e12),
    )
)


def _speed(c: Correlation, device: Device) -> _Speed:
    if can_band(c, device):
        return _BAND
    if can_multiply(c):
        return _MMA
    if can_strip(c):
        return _STRIP if is_flat(c.g) else _CUBE
    if can_patch(c):
        return _PATCH
    if can_plane(c):
        return _PLANE
    if can_tile(c):
        return _TILE
    direct = _DIRECT if c.memory.last else _DIRECT_FIRST
    return _GATHER if c.gradient else direct


def _weight_speed(c: Correlation, device: Device) -> _Speed:
    if by_rows(c, device):
        bands = _WEIGHT_BAND if is_flat(c.g) else _WEIGHT_CUBE
        return _WEIGHT_STRIP if c.x.dtype == FLOAT32 else bands
    if wgrad_takes_patches(c):
        return _WEIGHT_PATCH
    if walks(c):
        return _WEIGHT_WALK
    return _WEIGHT_TILE if wgrad_takes_tiles(c) else _WEIGHT_DIRECT


def _cost(problem: ConvProblem, device: Device) -> Cost:
    """By the ways that it takes; the efficiency is of the float32 peak."""
    x, y, g = *_images(problem), problem.geometry
    seconds, runs = 0.0, problem.runs
    if runs.forward:
        c = Correlation(g, x, y, problem.layout, True, problem.flip, added=problem.inputs[-1] is not None)
        seconds += _speed(c, device).seconds(c, device)
    if runs.dgrad:
        c = _turned_round(problem, y, x, True)
        seconds += _speed(c, device).seconds(c, device)
    if runs.wgrad:
        c = _met(problem, x, y, True)
        speed = _weight_speed(c, device)
        seconds += max(
            speed.seconds(c, device),
            walk_of_rows(c) + speed.launches * device.launch if speed is _WEIGHT_DIRECT else 0.0,
        )
    peak = device.peak["float32"]
    share = share_of_peak(problem.flops, seconds, peak)
    return Cost(problem.flops, problem.bytes, share, 0, "float32")  # the seconds hold the launches


def _images(problem: ConvProblem) -> tuple[Spec, Spec]:
    """The forward's input and output."""
    first = problem.inputs[0]
    if problem.kind == "conv_backward_input":
        return problem.result, problem.result.like(first.shape)  # where the launches find it
    return (first, problem.result) if problem.kind == "conv" else (problem.inputs[1], first)


_FORWARD = "one channel a group: windows in registers, or strips of pixels on the tensor cores"
_SUMS = "each row of the window against all pixels, partial sums added up in a fixed order"
METHODS: dict[str, tuple[Method, ...]] = {
    "conv": (Method("depthwise", forward, _FORWARD, _rejects, cost=_cost),),
    "conv_backward_input": (
        Method(
            "depthwise",
            input_gradient,
            "the forward turned round, or a gather for strides",
            _rejects,
            cost=_cost,
        ),
    ),
    "conv_backward_weight": (Method("depthwise", weight_gradient, _SUMS, _turned, _weight_workspace, cost=_cost),),
    "conv_backward": (
        Method(
            "depthwise",
            gradients,
            "all gradients one after the other",
            _scattered,
            lambda p: _parts(p, 0).size,
            _cost,
        ),
    ),
}
