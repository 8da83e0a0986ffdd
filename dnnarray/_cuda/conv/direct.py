"""Convolution by its definition: plans for the kernels that do every case."""

from __future__ import annotations

import math

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, ScaleIn, SourceIn, WeightIn, conv_axes
from dnnarray._cuda.conv.direct_weight import direct_weight
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, lying, too_large
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Extents, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, share_of_peak

_BLOCKS, _GATED = 1 << 30, 2048
_LOOKED_AT = 8  # elements that a thread of a repair looks at
_EFFICIENCY = 0.01  # of the float32 rate: a term is two loads through the caches
_EFFICIENCY_FIRST = 0.04  # channels-first, where neighbouring threads read neighbouring pixels and the same weight
_WEIGHT_EFFICIENCY = 0.002


@frozen
class DirectConfig(Config):
    """Compile-time settings of ``kernels/conv/direct.cu``."""

    source: str
    weight: str
    element: str
    activation: str
    gradient: bool
    repair: bool
    gated: bool
    last: bool
    threads: int


@frozen
class DirectArguments(Arguments, restrict=True):
    """What ``kernels/conv/direct.cu`` is called with."""

    gate_x: ScaleIn
    gate_weight: ScaleIn
    x: SourceIn
    weight: WeightIn
    bias: WeightIn
    residual: WeightIn
    y: Out
    total: Extent
    groups: Extent
    own: Extent
    others: Extent
    x_strides: ImageStrides
    residual_strides: ImageStrides
    y_strides: ImageStrides
    w_group: Extent
    w_own: Extent
    w_other: Extent
    window_strides: Extents
    axes: ConvAxes
    p: Double
    q: Double


class DirectMaps:
    """The maps by their definitions: `shared.Maps`."""

    def __init__(self, setting: Setting, repair: bool = False, gates: tuple[Array, Array] | None = None) -> None:
        """`repair`: only the elements of a result that are NaN, an image being dense in its order; with `gates` only
        where one of two `Scale` says that numbers are strange."""
        self._setting, self._repair, self._gates = setting, repair, gates

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._run(large, weight, small, epilogue, False)

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._run(small, weight, large, epilogue, True)

    def _run(self, x: Operand, w: Operand, y: Operand, e: Epilogue, gradient: bool) -> None:
        setting, g = self._setting, self._setting.g
        total = math.prod(setting.shape(not gradient))
        if total == 0:
            return
        f = formula(e.activation, w.dtype)
        given, gated = (TYPES[x.dtype], TYPES[w.dtype], TYPES[y.dtype], f.type), self._gates is not None
        config = DirectConfig(*given, gradient, self._repair, gated, setting.last, THREADS)
        words = [
            "conv_direct",
            SHORT[x.dtype],
            SHORT[w.dtype],
            SHORT[y.dtype],
            f.name,
            "last" if setting.last else "first",
        ]
        words += ["gradient"] * gradient + ["repair"] * self._repair + ["gated"] * gated
        kernel = Kernel("conv/direct.cu", "_".join(words), config, ("core/activation", "conv/geometry"))
        k, c, *window = w.strides
        own, others = ((g.c, c), (g.k, k)) if gradient else ((g.k, k), (g.c, c))
        gates: tuple[Array | None, Array | None] = self._gates or (None, None)
        arguments = DirectArguments(
            gates[0], gates[1], x.array, w.array, e.bias, e.residual, y.array, total=total, groups=g.groups, own=own[0],
            others=others[0], x_strides=x.strides, residual_strides=setting.strides(not gradient), y_strides=y.strides,
            w_group=g.k * k, w_own=own[1], w_other=others[1], window_strides=window, axes=conv_axes(g), p=f.p, q=f.q,
        )  # fmt: skip
        each = THREADS * (_LOOKED_AT if self._repair else 1)
        grid = (min(-(-total // each), _GATED if gated else _BLOCKS), 1, 1)
        setting.steps.launch(kernel, grid, THREADS, arguments, early=gated)

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        setting, g = self._setting, self._setting.g
        if math.prod(setting.weight_shape):
            setting.steps.add(direct_weight(g, small, large, weight, self._repair))


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g = problem.geometry
    if g.groups * g.k * g.c * g.taps >= 1 << 31:
        return "a weight of 2^31 elements or more"
    return too_large(g)


_OUTPUT, _TERM, _WEIGHT_TERM = (
    20e-12,
    45e-9,
    7e-9,
)  # seconds: of each output beside its terms; of a thread's term after the other


def _chain(op: str, g: Geometry, wgrad: bool) -> float:
    """Seconds of the terms of one element, which wait for each other."""
    if wgrad:
        return g.n * g.pixels * _WEIGHT_TERM
    return g.taps * (g.k if op in ("conv_backward_input", "conv_transpose") else g.c) * _TERM


def floor(op: str, problem: ConvProblem, device: Device) -> float:
    """Seconds of the operations at the best rate, or of the terms of one element."""
    g, wgrad = problem.geometry, problem.runs.wgrad
    rate = max(device.peak["float32"], device.peak.get("float64", 0.0)) * max(_EFFICIENCY, _EFFICIENCY_FIRST)
    return max(problem.flops / rate, _chain(op, g, wgrad)) if problem.flops else 0.0


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The operations, or the terms of one element, which wait for each other."""
    g, wgrad = problem.geometry, problem.runs.wgrad
    unit = "float64" if problem.itemsize == 8 else "float32"
    share = _WEIGHT_EFFICIENCY if wgrad else _EFFICIENCY if lying(problem).last else _EFFICIENCY_FIRST
    rate = (device.peak.get(unit) or device.peak["float32"]) * share
    outputs = sum(spec.size for spec in problem.outputs if spec is not None)
    seconds = max(problem.flops / rate + outputs * _OUTPUT, _chain(op, g, wgrad))
    peak = device.peak.get(unit) or device.peak["float32"]
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), problem.maps, unit)
