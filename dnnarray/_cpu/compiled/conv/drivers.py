"""The drivers of a compiled convolution, from its `Way` and kernels. Imports Numba."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.kernel import Driver, Kernel, driver
from dnnarray._cpu.conv import maps as conv_maps
from dnnarray._cpu.conv.blocks import Shape, Way, carve, scratch_elements
from dnnarray._cpu.conv.gemm import DIRECT
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry


def by_definition(g: Geometry, memory: np.ndarray, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """A correlation whose numbers a way cannot take: NaN and infinity stay where the definition puts them.

    `memory` is the last buffer of the way, which `with_definition` has made large enough.
    """
    DIRECT.forward(g, carve(memory.view(np.uint8), DIRECT.buffers(g), y.dtype), x, w, y)


def weight_by_definition(g: Geometry, memory: np.ndarray, x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    """The same for the gradient of a weight."""
    assert DIRECT.weight_gradient is not None
    assert DIRECT.weight_buffers is not None
    DIRECT.weight_gradient(g, carve(memory.view(np.uint8), DIRECT.weight_buffers(g), w.dtype), x, grad, w)


def with_definition(shapes: Sequence[Shape], geometries: Iterable[Geometry], wgrad: bool = False) -> tuple[Shape, ...]:
    """The scratch of a way, whose last buffer also holds that of the definition for each of these geometries, one at a
    time."""
    needed = DIRECT.weight_buffers if wgrad else DIRECT.buffers
    assert needed is not None
    *others, last = shapes
    return (*others, (max(math.prod(last), *(scratch_elements(needed(g)) for g in geometries)),))


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
