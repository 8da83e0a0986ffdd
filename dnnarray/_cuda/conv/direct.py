"""Convolution by its definition: plans for the kernels that do every case."""

from __future__ import annotations

import math

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, extents, lying, too_large
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
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
class DirectWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/direct_weight.cu``."""

    source: str
    gradient: str
    element: str
    repair: bool
    threads: int


class DirectMaps:
    """The maps by their definitions: `shared.Maps`."""

    def __init__(self, setting: Setting, repair: bool = False, gates: tuple[Array, Array] | None = None) -> None:
        """`repair`: only the elements of a result that are NaN, an image being dense in its order; with `gates` only where one of two `Scale` says
        that numbers are strange.
        """
        self._setting, self._repair, self._gates = setting, repair, gates

    def correlate(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._run(large, weight, small, epilogue, False)

    def spread(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._run(small, weight, large, epilogue, True)

    def _run(self, x: Operand, w: Operand, y: Operand, e: Epilogue, gradient: bool) -> None:
        setting, g = self._setting, self._setting.g
        total = math.prod(setting.shape(not gradient))
        if total == 0:
            return
        f = formula(e.activation, w.dtype)
        given, gated = (TYPES[x.dtype], TYPES[w.dtype], TYPES[y.dtype], f.type), self._gates is not None
        config = DirectConfig(*given, gradient, self._repair, gated, setting.last, THREADS)
        words = ["conv_direct", SHORT[x.dtype], SHORT[w.dtype], SHORT[y.dtype], f.name, "last" if setting.last else "first"]
        words += ["gradient"] * gradient + ["repair"] * self._repair + ["gated"] * gated
        kernel = Kernel("conv/direct.cu", "_".join(words), config, ("activation",))
        k, c, *window = w.strides
        own, others = ((g.c, c), (g.k, k)) if gradient else ((g.k, k), (g.c, c))
        flags = 2 * (e.bias is not None) | 4 * (e.residual is not None)
        residual = setting.strides(not gradient)  # it lies as the inputs do, also where y does not
        pointers = (*(self._gates or (x.array, x.array)), x.array, w.array, e.bias or x.array, e.residual or x.array, y.array)
        sizes = (total, g.groups, own[0], others[0], flags)
        steps = (*x.strides, *residual, *y.strides, g.k * k, own[1], others[1], *window)
        each = THREADS * (_LOOKED_AT if self._repair else 1)
        grid = (min(-(-total // each), _GATED if gated else _BLOCKS), 1, 1)
        setting.steps.add(Plan(kernel, grid, THREADS, (*pointers, *sizes, *steps, *extents(g), f.p, f.q), early=gated))

    def weigh(self, small: Operand, large: Operand, weight: Operand) -> None:
        setting, g = self._setting, self._setting.g
        total = math.prod(setting.weight_shape)
        if total == 0:
            return
        config = DirectWeightConfig(TYPES[large.dtype], TYPES[small.dtype], TYPES[weight.dtype], self._repair, THREADS)
        words = ["conv_direct_weight", *(SHORT[o.dtype] for o in (large, small, weight)), *["repair"] * self._repair]
        kernel = Kernel("conv/direct_weight.cu", "_".join(words), config)
        pointers = (small.array, large.array, weight.array)
        arguments = (g.n, g.k, g.c, *small.strides, *large.strides, *weight.strides, *extents(g))
        setting.steps.add(Plan(kernel, (total, 1, 1), THREADS, (*pointers, *arguments)))


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g = problem.geometry
    if g.groups * g.k * g.c * g.taps >= 1 << 31:
        return "a weight of 2^31 elements or more"
    return too_large(g)


_OUTPUT, _TERM, _WEIGHT_TERM = 20e-12, 45e-9, 7e-9  # seconds: of each output beside its terms; of a thread's term after the other


def _chain(op: str, g: Geometry, weighs: bool) -> float:
    """Seconds of the terms of one element, which wait for each other."""
    if weighs:
        return g.n * g.pixels * _WEIGHT_TERM
    return g.taps * (g.k if op in ("conv_backward_input", "conv_transpose") else g.c) * _TERM


def floor(op: str, problem: ConvProblem, device: Device) -> float:
    """Seconds of the operations at the best rate, or of the terms of one element."""
    g, weighs = problem.geometry, problem.runs.weighs
    rate = max(device.peak["float32"], device.peak.get("float64", 0.0)) * max(_EFFICIENCY, _EFFICIENCY_FIRST)
    return max(problem.flops / rate, _chain(op, g, weighs)) if problem.flops else 0.0


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The operations, or the terms of one element, which wait for each other."""
    g, weighs = problem.geometry, problem.runs.weighs
    unit = "float64" if problem.itemsize == 8 else "float32"
    share = _WEIGHT_EFFICIENCY if weighs else _EFFICIENCY if lying(problem).last else _EFFICIENCY_FIRST
    rate = (device.peak.get(unit) or device.peak["float32"]) * share
    outputs = sum(spec.size for spec in problem.outputs if spec is not None)
    seconds = max(problem.flops / rate + outputs * _OUTPUT, _chain(op, g, weighs))
    peak = device.peak.get(unit) or device.peak["float32"]
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), problem.maps, unit)
