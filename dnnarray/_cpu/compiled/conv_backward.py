"""All gradients of a convolution at once: the image's by a compiled correlation, the weight's by the compiled gradient of weights. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from dnnarray._cpu import conv as numpy_conv
from dnnarray._cpu.compiled import conv, conv_lanes, conv_weight
from dnnarray._cpu.compiled.kernel import Driver, driver
from dnnarray._problems.conv import ConvProblem

_WEIGHT = {"weight_buffers": conv_weight.WAY.weight_buffers, "weight_gradient": conv_weight.WAY.weight_gradient}
WAYS = {module.WAY.name: module.WAY._replace(**_WEIGHT) for module in (conv, conv_lanes)}


def _drivers(module: ModuleType) -> tuple[Driver, Driver]:
    """Of a convolution, and of a transposed one."""
    way = WAYS[module.WAY.name]

    def bound(operation: Callable[..., None]) -> Driver:
        @driver(*module.conv.kernels, *conv_weight.conv_backward_weight.kernels)
        def run(problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, *arrays: Any) -> None:
            operation(way, problem, outputs, scratch, *arrays)

        return run

    return bound(numpy_conv.conv_backward), bound(numpy_conv.conv_transpose_backward)


shifted_conv_backward, shifted_conv_transpose_backward = _drivers(conv)
channel_lanes_conv_backward, channel_lanes_conv_transpose_backward = _drivers(conv_lanes)
