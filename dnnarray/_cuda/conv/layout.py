"""Problems that the gathering kernels take after a step: channels-first images are turned round, thin channels filled
up with zeros, small groups put together into larger ones whose weight is zero between them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

from dnnarray._cuda.common.channels import lies
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.rearrange import rearrange, too_many_axes
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv import small_channels_plans
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.gemm import GemmMaps, same_memory
from dnnarray._cuda.conv.implicit import ImplicitMaps, misfit
from dnnarray._cuda.conv.kinds import HOPPER_HALF
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Maps, Setting, dense_strides, first_order, last_order, lying
from dnnarray._cuda.conv.tiling import (
    BLOCK,
    DGRADS,
    PLANNED,
    START,
    Timed,
    choose,
    efficiency,
    least,
    least_wgrad,
    split,
)
from dnnarray._cuda.conv.transpose import transpose
from dnnarray._cuda.conv.weight_order import weight_order
from dnnarray._cuda.conv.widen import widen
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.plan import Array
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.base import remembered
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import HALF

_CHUNK = 8  # channels that the kernels move at once
_WIDE = 64  # channels of a group that fill a tile


@remembered
def filled(g: Geometry) -> Geometry:
    """The convolution that the kernels run for this one."""
    together = 1
    if g.groups > 1 and min(g.c, g.k) < _WIDE:
        whole = math.lcm(
            _CHUNK // math.gcd(_CHUNK, g.c), _CHUNK // math.gcd(_CHUNK, g.k)
        )  # groups whose channels are whole chunks
        for f in range(whole, g.groups + 1, whole):
            if g.groups % f == 0:
                together = f
                if f * min(g.c, g.k) >= _WIDE:
                    break
    c, k = (-(-together * n // _CHUNK) * _CHUNK for n in (g.c, g.k))
    return g if (c, k) == (g.c, g.k) else changed(g, groups=g.groups // together, c=c, k=k)


def fits(g: Geometry) -> bool:
    """Whether `filled` keeps the channels of an image where they are, but for zeros at their end."""
    f = filled(g)
    return f.groups == 1 or (f.groups * f.c == g.groups * g.c and f.groups * f.k == g.groups * g.k)


class LayoutMaps:
    """`ImplicitMaps` of the filled geometry between copies: `shared.Maps`. `fill` says which geometry that is."""

    def __init__(
        self,
        setting: Setting,
        kind: Callable[[Setting], Maps] = ImplicitMaps,
        fill: Callable[[Geometry], Geometry] = filled,
    ) -> None:
        self._setting, self._steps, self._g = setting, setting.steps, setting.g
        self._inner = copy.copy(setting)
        self._inner.g, self._inner.last = fill(setting.g), True
        self._maps, self._plain = kind(self._inner), GemmMaps(setting)
        # A NaN or an infinity times the zeros between groups would reach all that were put together.
        self._repair = DirectMaps(setting, repair=True) if self._inner.g.groups != setting.g.groups else None

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if large.dtype not in HALF:
            self._plain.forward(large, weight, small, epilogue)
            return
        if self._setting.last and small_channels_plans.forward_fits(self._g, large.dtype):
            self._steps.add(small_channels_plans.forward(self._g, large, weight, small, epilogue, self._setting.units))
            return
        with self._steps.borrowed():
            x, w, e = self._into(large, False), self._weight(weight), self._epilogue(epilogue, True)
            y = self._room(small, True, e)
            self._maps.forward(x, w, y, e)
            self._out_of(y, small, True)
        if self._repair:
            self._repair.forward(large, weight, small, epilogue)

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if small.dtype not in HALF:
            self._plain.dgrad(small, weight, large, epilogue)
            return
        if (
            self._setting.last
            and epilogue.empty
            and small_channels_plans.gradient_fits(self._g, small.dtype, large.dtype)
        ):
            self._steps.add(small_channels_plans.gradient(self._g, small, weight, large, self._setting.units))
            return
        with self._steps.borrowed():
            y, w, e = self._into(small, True), self._weight(weight), self._epilogue(epilogue, False)
            x = self._room(large, False, e)
            self._maps.dgrad(y, w, x, e)
            self._out_of(x, large, False)
        if self._repair:
            self._repair.dgrad(small, weight, large, epilogue)

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        if small.dtype not in HALF or large.dtype not in HALF:
            self._plain.wgrad(small, large, weight)
            return
        if self._setting.last and small_channels_plans.weight_fits(self._g, small.dtype):
            small_channels_plans.wgrad(self._setting, small, large, weight)
            return
        with self._steps.borrowed():
            y, x = self._into(small, True), self._into(large, False)
            if self._same_weight:
                self._maps.wgrad(y, x, weight)
                return
            shape = self._inner.weight_shape
            result = self._dense_weight(self._steps.take(weight.dtype, math.prod(shape)))
            self._maps.wgrad(y, x, result)
            self._steps.add(rearrange(self._diagonal(result), *self._split(weight)))

    # --- images -------------------------------------------------------------------------------------------------------

    def _same_image(self, small: bool) -> bool:
        return self._setting.last and self._setting.shape(small) == self._inner.shape(small)

    def _room(self, target: Operand, small: bool, e: Epilogue) -> Operand:
        """Where the kernels write an image."""
        return (
            target
            if self._same_image(small) or self._turned(target, small, e)
            else self._inner.taken(small, target.dtype)
        )

    def _turned(self, target: Operand, small: bool, e: Epilogue) -> bool:
        """Whether the kernels themselves write an image channels-first."""
        g, shape = self._g, self._setting.shape(small)
        if (
            self._setting.last
            or shape != self._inner.shape(small)
            or target.dtype not in HALF
            or math.prod(shape[2:]) == 1
        ):
            return False
        dgrad = not small and (max(g.stride) > 1 or not g.phases_cover or (g.groups > 1 and g.window[0] > 1))
        return not dgrad and isinstance(self._maps, ImplicitMaps) and self._maps.turns(e)

    def _into(self, source: Operand, small: bool) -> Operand:
        """The image as the kernels read it."""
        if self._same_image(small):
            return source
        target = self._inner.taken(small, source.dtype)
        n, channels, *space = self._setting.shape(small)
        width, pixels = self._inner.shape(small)[1], math.prod(space)
        if self._setting.last:
            self._steps.add(widen(source, target, n * pixels, channels, width))
        else:
            self._steps.add(transpose(self._steps.aligned, source, target, (n, channels, pixels), width, pixels, width))
        return target

    def _out_of(self, source: Operand, target: Operand, small: bool) -> None:
        """The image as the caller wants it."""
        if source is target:
            return
        n, channels, *space = self._setting.shape(small)
        width, pixels = self._inner.shape(small)[1], math.prod(space)
        if self._setting.last:
            self._steps.add(widen(source, target, n * pixels, width, channels))
        else:
            self._steps.add(
                transpose(self._steps.aligned, source, target, (n, pixels, channels), pixels, width, pixels)
            )

    def _epilogue(self, e: Epilogue, small: bool) -> Epilogue:
        """Bias and residual of the filled channels."""
        dtype, channels = self._setting.problem.inputs[0].dtype, self._setting.shape(small)[1]
        width, bias, residual = self._inner.shape(small)[1], e.bias, e.residual
        if bias is not None and width != channels:
            longer = self._steps.take(dtype, width)
            self._steps.add(widen(Operand(bias, dtype), longer, 1, channels, width))
            bias = longer.array
        if residual is not None:
            residual = self._into(Operand(residual, dtype), small).array
        return Epilogue(bias, residual, e.activation)

    # --- weights ------------------------------------------------------------------------------------------------------

    def scatters(self, weight: Operand) -> bool:
        """Whether the axes of a weight cannot be brought to those of the filled one."""
        (own, shape), filled_up = self._split(weight), self._diagonal(self._dense_weight(weight))
        return not self._same_weight and (too_many_axes(own, filled_up, shape) or too_many_axes(filled_up, own, shape))

    @property
    def _same_weight(self) -> bool:
        return self._setting.weight_shape == self._inner.weight_shape

    def _dense_weight(self, memory: Operand) -> Operand:
        """The filled weight as (K, window, C)."""
        f = self._inner.g
        _, h, w = f.window
        return Operand(memory.array, memory.dtype, (f.taps * f.c, 1, h * w * f.c, w * f.c, f.c))

    def _weight(self, weight: Operand) -> Operand:
        size, g = math.prod(self._inner.weight_shape), self._g
        if self._same_weight:
            if not self._packs(weight):
                return weight
            target = self._dense_weight(self._steps.take(weight.dtype, size))
            matrices = g.groups * g.k, g.c, g.taps
            turned = weight_order(weight, target, matrices, self._steps.aligned)
            self._steps.add(turned or transpose(self._steps.aligned, weight, target, matrices, g.c, g.taps, g.c))
            return target
        target = self._dense_weight(self._steps.take(weight.dtype, size))
        self._steps.add(zero(target.array, size * weight.dtype.itemsize, self._steps.aligned))
        source, shape = self._split(weight)
        self._steps.add(rearrange(source, self._diagonal(target), shape))
        return target

    def _packs(self, weight: Operand) -> bool:
        """Whether the kernels would bring a weight in C order to (K, window, C) first, as any copy."""
        shape = self._setting.weight_shape
        in_order = same_memory(shape, weight.strides, dense_strides(shape, range(len(shape))))
        return in_order and self._g.taps > 1 and weight.dtype in HALF and isinstance(self._maps, ImplicitMaps)

    def _split(self, weight: Operand) -> tuple[Operand, tuple[int, ...]]:
        """A weight with its groups as axes of their own: those put together, K and C of one, the window."""
        g, f = self._g, self._inner.g
        k, c, *window = weight.strides
        together = g.groups // f.groups
        shape = (f.groups, together, g.k, g.c, *g.window)
        return Operand(weight.array, weight.dtype, (together * g.k * k, g.k * k, k, c, *window)), shape

    def _diagonal(self, weight: Operand) -> Operand:
        """The part of a filled weight that is not zero, in the axes of `_split`."""
        g, f = self._g, self._inner.g
        k, c, *window = weight.strides
        return Operand(weight.array, weight.dtype, (f.k * k, g.k * k + g.c * c, k, c, *window))


# --- judgement --------------------------------------------------------------------------------------------------------


def maps(setting: Setting, kind: type[ImplicitMaps] = ImplicitMaps) -> ImplicitMaps | LayoutMaps | DirectMaps:
    """The kernels need 16-byte addresses; elsewhere the definition does it."""
    if not setting.steps.aligned:
        return DirectMaps(setting)
    return kind(setting) if setting.last and filled(setting.g) == setting.g else LayoutMaps(setting, kind)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    return _rejects(problem, op, device)


@remembered
def _rejects(problem: ConvProblem, op: str, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := HOPPER_HALF.refuses(dtype, device):
        return reason
    if 0 in (g.groups, g.c, g.k):
        return "an extent of 0"
    if not fits(g):
        return f"{g.groups} groups of {g.c} and {g.k} channels, which do not make up multiples of {_CHUNK}"
    return misfit(op, problem, filled(g)) or _scattered(problem)


_WEIGHTS = {
    "conv": 1,
    "conv_transpose": 1,
    "conv_backward_input": 1,
    "conv_backward": 2,
    "conv_transpose_backward": 2,
}  # among the inputs


def _scattered(problem: ConvProblem) -> str | None:
    """Why the weight cannot be filled up; a weight gradient on its own is in C order or channels-last."""
    number = _WEIGHTS.get(problem.kind)
    if number is None or number in problem.unread or filled(problem.geometry) == problem.geometry:
        return None
    weight = problem.inputs[number]
    if any(lies(weight, order(problem.layout, weight.ndim)) for order in (first_order, last_order)):
        return None  # groups, those put together, K, C and the window: as many axes as a copy takes
    setting = Setting(problem, True)
    return (
        "a weight whose axes lie in too many pieces"
        if LayoutMaps(setting).scatters(setting.weight(weight, Array(0)))
        else None
    )


_GATHERED = (
    1.6  # times that gathering threads take of what the bandwidth would allow (56 us for 129 MB where 31 is the floor)
)
_LOOKED_AT = 4.5e-12  # seconds in which a result is looked at for what the zeros between groups have spoilt
_COPIES = 2  # times that the copies to another order take of what the bandwidth would allow


def _passed_over(g: Geometry) -> int:
    """Elements of the image that no window meets: gathering threads leave them out, TMA brings the boxes
    that they lie in."""
    met = math.prod(min(n, m * r) for n, m, r in zip(g.space, g.out, g.window, strict=True))
    return g.n * g.groups * g.c * (math.prod(g.space) - met)


def floor(
    op: str,
    problem: ConvProblem,
    device: Device,
    least: Callable[[int], tuple[float, float]] = least,
    wgrad_split: Callable[[int], float] = least_wgrad,
) -> float:
    """Seconds of tiles that are full, with the zeros between groups, of the launch and of looking for what the zeros
    have spoilt.

    0 for few channels, which kernels of their own may do, and for so many that tiles may be planned for more
    multiprocessors than there are."""
    g = problem.geometry
    if problem.inputs[0].dtype not in HALF or (g.groups == 1 and min(g.c, g.k) < _WIDE) or not g.macs:
        return 0.0
    f, units = filled(g), device.units
    if f.groups * max(f.c, f.k) > BLOCK * units:
        return 0.0
    dgrad = op in DGRADS
    parts, c, k = ([phase.geometry for phase in g.phases], f.k, f.c) if dgrad else ([g], f.c, f.k)
    stage, end = least(k)
    products = f.groups / units * sum([p.n * p.pixels * (p.taps * c / BLOCK * stage + end) for p in parts])
    if problem.runs.wgrad:
        weights = f.groups / PLANNED * g.n * g.pixels * g.taps * f.c * wgrad_split(f.k)
        both = op != "conv_backward_weight"
        return device.launch + (weights + products) / 2 * problem.maps if both else device.launch + weights
    return products + len(parts) * (START + device.launch) + (_looked_at(problem) if f.groups != g.groups else 0.0)


def _looked_at(problem: ConvProblem) -> float:
    """Seconds in which the images that are computed are searched for what the zeros between groups have spoilt."""
    images = problem.outputs[0]  # none where the gradient of the input is not wanted
    return 0.0 if images is None else _LOOKED_AT * images.size


def cost(op: str, problem: ConvProblem, device: Device, tile: Callable[[Geometry, int], Timed] = choose,
         wgrad_split: Callable[[Geometry], Timed] = split) -> Cost:  # fmt: skip
    """The filled geometry's operations, and what its copies move."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    f, last = filled(g), lying(problem).last
    images = ((g.groups * g.c, f.groups * f.c, math.prod(g.space)), (g.groups * g.k, f.groups * f.k, g.pixels))
    copied = [g.n * pixels * (a + b) * dtype.itemsize for a, b, pixels in images if a != b or not last]
    grouped, dgrad = f.groups != g.groups, op in ("conv_backward_input", "conv_transpose")
    # a launch each, and one that turns its part of the weight
    phases = len(f.phases) * (1 if f.k % BLOCK == 0 else 2) if dgrad else 1
    launches = problem.maps * (phases + len(copied) + 2 * grouped) + (op == "conv_backward_weight")
    of_peak = unit(dtype, "highest")
    of_all = device.peak.get(of_peak or "") or device.peak["float32"]
    if last and (seconds := small_channels_plans.seconds(op, g, dtype, device.units)):
        return Cost(2 * g.macs, problem.bytes, share_of_peak(2 * g.macs, seconds, of_all), 1, of_peak)
    share = efficiency(op, f, device.units, of_all, wgrad_split, tile)
    own: float = problem.bytes
    if tile is choose and op != "conv_backward_weight":
        own = _GATHERED * (own - (_passed_over(g) * dtype.itemsize if op == "conv" else 0))
    if grouped and op != "conv_backward_weight":
        seconds = 2 * f.macs * problem.maps / (share * of_all)
        share *= seconds / (seconds + _looked_at(problem))
    return Cost(2 * f.macs * problem.maps, own + _COPIES * sum(copied) * problem.maps, share, launches, of_peak)
