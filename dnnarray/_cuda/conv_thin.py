"""Inputs of few channels, such as the images of a first layer: windows read from pixels as they lie, for the convolution and the weight's gradient;
for the input's gradient products for each row of the window, gathered by pixel."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import extents
from dnnarray._cuda.conv_tiles import PLANNED
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._spec import HALF

_THREADS, _PLACES = 256, 224  # of a block, of the result that a region meets
_REGIONS = ((16, 32), (16, 16))  # of pixels
_MOST_CHANNELS, _MOST_COLUMNS, _MOST_STEP, _MOST_MATRICES = 4, 32, 4, 4
_STEP_K = 32
_SHARED = 163_840  # bytes of shared memory of a block on every card with the matrix instructions
_RATE = 0.55e12  # multiply-adds a second of a multiprocessor
_BLOCKS = 2  # on a multiprocessor
_SIDE, _WIDE = 16, 64  # pixels of a region along an axis, channels of a tile


@frozen
class ThinForwardConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_forward.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    columns: int
    even: bool


@frozen
class ThinWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_weight.cu``."""

    element: str
    columns: int
    matrices: int


@frozen
class ThinConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_gradient.cu``."""

    element: str
    channels: int
    columns: int
    stride: int
    height: int
    width: int


def _columns(g: Geometry) -> int:
    """Taps of a row of the window with their channels, filled up."""
    return -(-g.window[2] * g.c // 8) * 8


def _shared_memory(g: Geometry) -> int:
    columns = _columns(g)
    return (_PLACES + g.window[1] * columns) * (g.k * 2 + 16) + g.stride[1] * _PLACES * (columns + 2) * 4


def _few(g: Geometry) -> bool:
    """Few channels, two axes."""
    flat = (g.groups, g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 1, 0)
    return flat and g.c <= _MOST_CHANNELS and 0 not in (g.n, *g.space, *g.out)


def _region(g: Geometry) -> tuple[int, int] | None:
    """The pixels of a region; None where the kernel of the input's gradient does not do it."""
    if not _few(g) or g.k % _STEP_K or g.dilation != (1, 1, 1) or g.stride[1] != g.stride[2] or g.stride[1] > _MOST_STEP:
        return None
    if _columns(g) > _MOST_COLUMNS or _shared_memory(g) > _SHARED:
        return None

    def met(pixels: tuple[int, int]) -> int:
        axes = zip(pixels, g.window[1:], g.stride[1:], strict=True)
        return math.prod((m + w - 2) // s + 1 for m, w, s in axes)

    return next((r for r in _REGIONS if met(r) <= _PLACES), None)


def gradient_fits(g: Geometry, dtype: np.dtype, result: np.dtype) -> bool:
    """Whether the kernel does the gradient of an input."""
    return dtype in HALF and result == dtype and _region(g) is not None


def _gradient_seconds(g: Geometry, units: int) -> float:
    """How long it takes."""
    return _counts(g)[0] * _counts(g)[1] * g.n * g.window[1] * _PLACES * _columns(g) * g.k / (_RATE * units)


def _counts(g: Geometry) -> tuple[int, int]:
    """Regions of an image along its axes."""
    height, width = _region(g) or _REGIONS[0]
    return -(-g.space[1] // height), -(-g.space[2] // width)


def gradient(g: Geometry, small: Operand, weight: Operand, large: Operand, units: int) -> Plan:
    """The launch, of dense channels-last images."""
    pixels = _region(g)
    assert pixels is not None
    config = ThinConfig(TYPES[small.dtype], g.c, _columns(g), g.stride[1], *pixels)
    name = f"conv_thin_gradient_{SHORT[small.dtype]}_{g.c}x{config.columns}_by_{config.stride}_{pixels[0]}x{pixels[1]}"
    counts = _counts(g)
    k, c, _, r, s = weight.strides
    numbers = (g.n, g.k, *counts, k, c, r, s, *extents(g)[3:])
    grid = (min(g.n * math.prod(counts), _BLOCKS * units), 1, 1)
    return Plan(
        Kernel("conv/thin_gradient.cu", name, config), grid, _THREADS, (small.array, weight.array, large.array, *numbers), _shared_memory(g)
    )


# --- the convolution itself ---------------------------------------------------------------------------------------------


def _pixel_memory(g: Geometry) -> int:
    """Bytes of the pixels that a region meets."""
    rows = (_SIDE - 1) * g.stride[1] + (g.window[1] - 1) * g.dilation[1] + 1
    elements = ((_SIDE - 1) * g.stride[2] + g.window[2]) * g.c
    return rows * ((elements + _columns(g) + 1) // 2 * 4)


def _forward_memory(g: Geometry) -> int:
    return _WIDE * (-(-g.window[1] * _columns(g) // 16) * 32 + 16) + _pixel_memory(g)


def _in_rows(g: Geometry) -> bool:
    """Whether the kernels that read windows as rows of pixels do it."""
    return _few(g) and g.k % 8 == 0 and g.dilation[2] == 1


def _regions(g: Geometry) -> tuple[int, int]:
    """Of an image, along its axes."""
    return -(-g.out[1] // _SIDE), -(-g.out[2] // _SIDE)


def forward_fits(g: Geometry, dtype: np.dtype, e: Epilogue) -> bool:
    """Whether the kernel does the convolution."""
    return dtype in HALF and e.residual is None and _in_rows(g) and _forward_memory(g) <= _SHARED // _BLOCKS


def _forward_seconds(g: Geometry, units: int) -> float:
    """How long it takes: the products, or memory."""
    tiles = g.n * math.prod(_regions(g)) * -(-g.k // _WIDE)
    return tiles * _SIDE * _SIDE * _WIDE * g.window[1] * _columns(g) / (_RATE * units)


def forward(g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue, units: int) -> Plan:
    """The launch, of a dense channels-last input."""
    f, columns, even = formula(e.activation, x.dtype), _columns(g), g.stride[2] * g.c % 2 == 0
    config = ThinForwardConfig(TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, False, columns, even)
    words = ["conv_thin_forward", SHORT[x.dtype], "to", SHORT[y.dtype], f"x{columns}", e.name] + ["odd"] * (not even)
    kernel = Kernel("conv/thin_forward.cu", "_".join(words), config, ("activation",))
    regions, tiles = g.n * math.prod(_regions(g)), -(-g.k // _WIDE)
    k, c, _, r, s = weight.strides
    steps = (k, c, r, s, y.strides[0], *y.strides[2:])
    numbers = (regions, g.c, g.k, *_regions(g), *steps, *extents(g), f.p, f.q)
    grid = (min(regions, -(-_BLOCKS * units // tiles)), tiles, 1)
    return Plan(kernel, grid, _THREADS, (x.array, weight.array, e.bias or x.array, y.array, *numbers), _forward_memory(g))


# --- the weight's gradient ----------------------------------------------------------------------------------------------


def _matrices(g: Geometry) -> int:
    """Of eight columns, for each warp of a block."""
    return -(-g.window[1] * _columns(g) // (_THREADS // 4))


def _weight_memory(g: Geometry) -> int:
    return _SIDE * _SIDE * (_WIDE * 2 + 16) + _pixel_memory(g)


def weight_fits(g: Geometry, dtype: np.dtype) -> bool:
    """Whether the kernel does the gradient of a weight."""
    return dtype in HALF and _in_rows(g) and _matrices(g) <= _MOST_MATRICES and _weight_memory(g) <= _SHARED // _BLOCKS


def splits(g: Geometry) -> int:
    """Parts of a weight's gradient: the device does not matter, since the scratch memory must be known without it."""
    return min(g.n * math.prod(_regions(g)), _BLOCKS * PLANNED)


def weight_parts(g: Geometry, small: Operand, large: Operand, partial: Operand) -> Plan:
    """The launch, of dense channels-last images; `partial` is (`splits`, K, window, C)."""
    config = ThinWeightConfig(TYPES[small.dtype], _columns(g), _matrices(g))
    kernel = Kernel("conv/thin_weight.cu", f"conv_thin_weight_{SHORT[small.dtype]}_x{config.columns}x{config.matrices}", config)
    numbers = (g.n * math.prod(_regions(g)), g.c, g.k, *_regions(g), *extents(g))
    return Plan(kernel, (splits(g), -(-g.k // _WIDE), 1), _THREADS, (small.array, large.array, partial.array, *numbers), _weight_memory(g))


def seconds(op: str, problem: ConvProblem, units: int) -> float | None:
    """How long an operation of a single map takes; None where the kernels do not do it."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    residual = Array(0) if op == "conv" and problem.inputs[3] is not None else None
    if op == "conv" and forward_fits(g, dtype, Epilogue(residual=residual)):
        return _forward_seconds(g, units)
    if op == "conv_backward_weight" and weight_fits(g, dtype):
        return _forward_seconds(g, units)
    return _gradient_seconds(g, units) if op == "conv_backward_input" and gradient_fits(g, dtype, dtype) else None
