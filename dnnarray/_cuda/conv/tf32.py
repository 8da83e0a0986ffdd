"""Float32 convolution by TF32 products: windows and weights as they lie, rounded by TMA on the way (
sm_90a)."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.conv import tma_tiling
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.implicit import misfit
from dnnarray._cuda.conv.implicit_tma_sm90 import TmaMaps, as_wide
from dnnarray._cuda.conv.implicit_tma_sm90 import misfit as misfit_tma
from dnnarray._cuda.conv.kinds import HOPPER_SINGLE
from dnnarray._cuda.conv.shared import OF_IMAGES, Setting, lying
from dnnarray._cuda.core.device import unit
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32

NAME, SUMMARY = "implicit_tma_tf32", "windows gathered and rounded by TMA, TF32 products by wgmma"
_CHUNK = 4  # channels of 16 bytes
_START = 3e-6  # seconds of a launch that turns the weight round
_READ, _WRITTEN = 1.13, 1.5  # times that images take of what the bandwidth would allow: results leave from registers


class Tf32Maps(TmaMaps):
    """The maps of images: `shared.Maps`. Both operands run along the sum's channels, so the weight of an input gradient
    is turned round."""

    walks = False

    def _takes(self, dtype: np.dtype) -> bool:
        return dtype == FLOAT32


def maps(setting: Setting) -> Tf32Maps | DirectMaps:
    """TMA needs 16-byte addresses; elsewhere the definition does it."""
    return Tf32Maps(setting) if setting.steps.aligned else DirectMaps(setting)


def _correlations(op: str, g: Geometry) -> list[Geometry]:
    return [g] if op == "conv" else [phase.geometry for phase in g.phases]


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if op not in OF_IMAGES:  # the weight's gradient would ask for operands that run along K
        return "the gradient of the weight"
    if reason := HOPPER_SINGLE.refuses(dtype, device):
        return reason
    if g.c % _CHUNK or g.k % _CHUNK:
        return f"{g.c} and {g.k} channels, not multiples of {_CHUNK}"
    if not lying(problem).last:
        return "memory that is not channels-last"
    if op != "conv" and not g.phases_cover:
        return "a stride beyond the window"
    return misfit(op, problem, g) or next(filter(None, map(misfit_tma, _correlations(op, g))), None)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    g, asked = problem.geometry, _correlations(op, problem.geometry)
    seconds = math.fsum(tma_tiling.choose(as_wide(a, FLOAT32), device.units, False, False, True).seconds for a in asked)
    seconds += _START * len(asked)  # the weight comes in C order, as a rule
    of_peak = unit(FLOAT32, "high")
    peak = device.peak.get(of_peak or "") or device.peak["float32"]
    large, _, small = g.sizes
    read, written = (large, small) if op == "conv" else (small, large)
    moved = FLOAT32.itemsize * (_READ * read + _WRITTEN * written)
    return Cost(2 * g.macs, moved, share_of_peak(2 * g.macs, seconds, peak), len(asked), of_peak)
