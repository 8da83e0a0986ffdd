"""The drivers of a compiled convolution, from its `Way` and kernels. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import conv_maps
from dnnarray._cpu.compiled.kernel import Driver, Kernel, driver
from dnnarray._cpu.conv_blocks import Way, carve
from dnnarray._cpu.conv_gemm import DIRECT
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry


def by_definition(g: Geometry, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """A correlation whose numbers a way cannot take: NaN and infinity stay where the definition puts them."""
    DIRECT.correlate(g, carve(None, DIRECT.buffers(g), y.dtype), x, w, y)


def bound(way: Way, operation: Callable[..., None], *kernels: Kernel) -> Driver:
    """An operation of convolutions by this way."""

    @driver(*kernels)
    def run(problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, *arrays: Any) -> None:
        operation(way, problem, outputs, scratch, *arrays)

    return run


def correlations(way: Way, *kernels: Kernel) -> tuple[Driver, Driver, Driver]:
    """Of `conv`, `conv_backward_input` and `conv_transpose`."""
    operations = (conv_maps.conv, conv_maps.conv_backward_input, conv_maps.conv_transpose)
    forward, back, transposed = (bound(way, operation, *kernels) for operation in operations)
    return forward, back, transposed
