"""Weight gradients whose operands TMA brings (sm_90a): the launches, and what the engine does not
take."""

from __future__ import annotations

from dnnarray._cuda.conv import layout, tma_tiling, wgrad
from dnnarray._cuda.conv.arguments import pixel_strides
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.implicit import ImplicitMaps
from dnnarray._cuda.conv.implicit_tma_sm90 import TmaMaps
from dnnarray._cuda.conv.implicit_weight_tma_halo_sm90 import halo_sums
from dnnarray._cuda.conv.implicit_weight_tma_sm90 import window_sums
from dnnarray._cuda.conv.layout import LayoutMaps
from dnnarray._cuda.conv.shared import Setting
from dnnarray._cuda.conv.tiling import Split
from dnnarray._cuda.conv.wgrad import HaloSplit, TmaSplit
from dnnarray._cuda.core.plan import Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device


class WeighingMaps(TmaMaps):
    """The maps with all operands from TMA, where it brings them fast."""

    def divided(self, g: Geometry) -> Split | HaloSplit:
        return wgrad.wgrad_split(g)

    def whole(self, split: Split | HaloSplit, small: Operand, large: Operand, weight: Operand) -> Plan | None:
        dense = weight.strides[1] == 1 and not any(s % 2 for s in pixel_strides(weight.strides))
        return (
            window_sums(self._g, split, small, large, weight, self._units, True)
            if isinstance(split, TmaSplit) and dense
            else None
        )

    def partial_sums(self, split: Split | HaloSplit, small: Operand, large: Operand, partial: Operand) -> Plan:
        if isinstance(split, HaloSplit):
            return halo_sums(self._g, split, small, large, partial, self._units)
        if isinstance(split, TmaSplit):
            return window_sums(self._g, split, small, large, partial, self._units)
        return super().partial_sums(split, small, large, partial)


# --- the table's entry
# --------------------------------------------------------------------------------------------------


def maps(setting: Setting) -> ImplicitMaps | LayoutMaps | DirectMaps:
    return layout.maps(setting, WeighingMaps)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    return layout.cost(op, problem, device, tma_tiling.choose, wgrad.wgrad_split)


def floor(op: str, problem: ConvProblem, device: Device) -> float:
    return layout.floor(op, problem, device, tma_tiling.least, wgrad.least_wgrad)
