"""Convolution as one matrix product whose windows are gathered on the way into shared memory: plans for the tensor-core
kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.rearrange import rearrange
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv import tiling
from dnnarray._cuda.conv.gemm import GemmMaps
from dnnarray._cuda.conv.implicit_gemm_sm90 import implicit_gemm_sm90
from dnnarray._cuda.conv.implicit_weight_sm90 import implicit_weight_sm90
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, lying, too_large
from dnnarray._cuda.conv.split_sums import WeightTerms, sum_splits
from dnnarray._cuda.conv.tiling import BLOCK
from dnnarray._cuda.core.plan import Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry, Phase
from dnnarray._spec import FLOAT32, HALF

_CHUNK = 8  # elements of a half type in 16 bytes
_TAPS = 31  # bits of a row's mask, over the axes of the window together
_PLACES = 1 << 31  # chunks of an image array that 32 bits can count


class ImplicitMaps:
    """The maps by gathering kernels: `shared.Maps`. What they do not take goes through `GemmMaps`.

    `walks`: the kernel takes the weight by its strides, also for the gradient of the input.
    """

    walks = True

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._g, self._units = setting, setting.steps, setting.g, setting.units
        self._gemm = GemmMaps(setting)

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if not self._takes(large.dtype):
            self._gemm.forward(large, weight, small, epilogue)
            return
        with self._steps.borrowed():
            w = self._gemm.packed(weight, large.dtype)
            self._steps.add(self.launch(self._g, large, w, small, epilogue))

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation of stride 1 for each residue of the stride."""
        g = self._g
        if not self._takes(small.dtype) or not (g.phases_cover or epilogue.empty) or (g.groups > 1 and g.window[0] > 1):
            self._gemm.dgrad(small, weight, large, epilogue)
            return
        if not g.phases_cover:
            size = math.prod(self._setting.shape(False))
            self._steps.add(zero(large.array, size * large.dtype.itemsize, self._steps.aligned))
        with self._steps.borrowed():
            transposed = self.walks and g.k % BLOCK == 0
            if transposed and not self._walks(weight):
                weight = self._gemm.packed(weight, small.dtype)
            for phase in g.phases:
                with self._steps.borrowed():
                    w = part_of(weight, phase) if transposed else self._turned(weight, phase)
                    self._steps.add(
                        self.launch(phase.geometry, small, w, target_of(large, phase), epilogue, transposed)
                    )

    def turns(self, e: Epilogue) -> bool:
        """Whether images of half types can also be written channels-first."""
        return False

    def _takes(self, dtype: np.dtype) -> bool:
        return dtype in HALF

    def _walks(self, weight: Operand) -> bool:
        """Whether the kernel can take the weight as it lies, its channels dense."""
        k, c, *window = weight.strides
        return (c == 1 or self._g.c == 1) and all(s % _CHUNK == 0 for s in (k, *window))

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        if small.dtype not in HALF or large.dtype not in HALF:
            self._gemm.wgrad(small, large, weight)
            return
        shape, split = self._setting.weight_shape, self.divided(self._g)
        if split.count == 1 and (whole := self.whole(split, small, large, weight)):
            self._steps.add(whole)
            return
        with self._steps.borrowed():
            partial = self._steps.take(FLOAT32, split.count * math.prod(shape))
            terms = WeightTerms(self._g, small, large) if split.fills_up else None
            self._steps.add(self.partial_sums(split, small, large, partial))
            self._steps.add(sum_splits(partial, split.count, weight, shape, self._steps.aligned, terms))

    def divided(self, g: Geometry) -> Any:
        """How the pixels of a weight gradient are divided: what `partial_sums` takes, with the `count` of its parts."""
        return tiling.split(g)

    def whole(self, split: Any, small: Operand, large: Operand, weight: Operand) -> Plan | None:
        """A weight gradient in one part, by a kernel that writes it; None where there is none."""
        return None

    def partial_sums(self, split: Any, small: Operand, large: Operand, partial: Operand) -> Plan:
        """A weight gradient for each part of the pixels, (K, window, C)."""
        return implicit_weight_sm90(self._g, split, small, large, partial, self._units)

    def _turned(self, weight: Operand, phase: Phase) -> Operand:
        """The weight of a phase as (groups C, window, K)."""
        g, p = self._g, phase.geometry
        part = part_of(weight, phase)
        k, c, *steps = part.strides
        shape = (g.groups, g.k, g.c, *p.window)
        target = self._steps.take(weight.dtype, math.prod(shape))
        _, h, w = p.window
        lying = (g.c * p.taps * g.k, 1, p.taps * g.k, h * w * g.k, w * g.k, g.k)
        source = Operand(part.array, weight.dtype, (g.k * k, k, c, *steps))
        self._steps.add(rearrange(source, Operand(target.array, target.dtype, lying), shape))
        return Operand(target.array, target.dtype, (p.taps * g.k, 1, h * w * g.k, w * g.k, g.k))

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        """One correlation."""
        return implicit_gemm_sm90(g, x, w, y, e, self._units, transposed)


def part_of(weight: Operand, phase: Phase) -> Operand:
    """The taps of a phase of a weight."""
    k, c, *window = weight.strides
    start = sum(t.start * s for t, s in zip(phase.taps, window, strict=True))
    return Operand(
        weight.at(start), weight.dtype, (k, c, *(t.step * s for t, s in zip(phase.taps, window, strict=True)))
    )


def target_of(large: Operand, phase: Phase) -> Operand:
    """The pixels of a phase."""
    n, c, *space = large.strides
    start = sum(t.start * s for t, s in zip(phase.target, space, strict=True))
    return Operand(
        large.at(start), large.dtype, (n, c, *(t.step * s for t, s in zip(phase.target, space, strict=True)))
    )


def misfit(op: str, problem: ConvProblem, g: Geometry) -> str | None:
    """Why the images cannot be gathered in chunks of 16 bytes, or None; `g` is what the kernels are given."""
    chunk = 16 // problem.inputs[0].dtype.itemsize
    if 0 in (g.n, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if sum(g.window) > _TAPS:
        return f"a window of {g.window}; its extents may add up to {_TAPS}"
    if max(g.sizes) // chunk >= _PLACES:
        return f"an array of {chunk * _PLACES} elements or more"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g)
