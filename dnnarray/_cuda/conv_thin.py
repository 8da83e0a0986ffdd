"""Inputs of few channels, such as the images of a first layer: windows read from pixels as they lie, for the convolution and the weight's gradient;
for the input's gradient products for each row of the window, gathered by pixel. Float32 numbers are multiplied as parts of half types."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import Setting, dense_strides, extents
from dnnarray._cuda.conv_implicit import sum_splits
from dnnarray._cuda.conv_tiles import PLANNED
from dnnarray._cuda.epilogue import Epilogue, rearrange
from dnnarray._cuda.parts import Numerics
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._spec import FLOAT32, HALF

_THREADS, _PLACES = 256, 224  # of a block, of the result that a region meets
_REGIONS = ((16, 32), (16, 16))  # of pixels
_MOST_CHANNELS, _MOST_COLUMNS, _MOST_STEP, _MOST_MATRICES = 4, 32, 4, 4
_STEP_K = 32
_SHARED = 163_840  # bytes of shared memory of a block on every card with the matrix instructions
_RATE = 0.55e12  # multiply-adds a second of a multiprocessor
_TIMES, _GRADIENT_TIMES = (1.0, 1.2, 1.5), (1.0, 1.5, 2.0)  # of that rate, by parts: half types as they come, float32 in one or two
_BLOCKS = 2  # on a multiprocessor
_SIDE, _WIDE = 16, 64  # pixels of a region along an axis, channels of a tile


@dataclass(frozen=True)
class ThinForwardConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_forward.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    result: str
    activation: str
    bias: bool
    residual: bool
    columns: int
    even: bool


@dataclass(frozen=True)
class ThinWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_weight.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    columns: int
    matrices: int


@dataclass(frozen=True)
class ThinConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_gradient.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    channels: int
    columns: int
    stride: int
    height: int
    width: int


@dataclass(frozen=True)
class Numbers:
    """Numbers in memory, and what they are multiplied as."""

    dtype: np.dtype
    how: Numerics

    @staticmethod
    def of(dtype: np.dtype, how: Numerics | None) -> Numbers | None:
        """Half types as they come; float32 where it is said how."""
        if dtype in HALF:
            return Numbers(dtype, Numerics(dtype, 1, False))
        return Numbers(dtype, how) if how is not None and dtype == FLOAT32 else None

    @property
    def settings(self) -> tuple[str, str, int, bool]:
        """For configurations."""
        return TYPES[self.dtype], TYPES[self.how.dtype], self.how.parts, self.how.scaled

    @property
    def words(self) -> str:
        """For symbols."""
        return SHORT[self.dtype] if self.dtype in HALF else f"{SHORT[self.dtype]}_by_{self.how.words}"

    @property
    def parts(self) -> int:
        """Of each number in memory; none of half types."""
        return 0 if self.dtype in HALF else self.how.parts

    @property
    def blocks(self) -> int:
        """Of a weight's gradient on a multiprocessor, at least."""
        return _BLOCKS if self.dtype in HALF else 1

    def pitch(self, columns: int) -> int:
        """Bytes of a padded row of shared memory."""
        return columns * self.dtype.itemsize + 16


def _columns(g: Geometry) -> int:
    """Taps of a row of the window with their channels, filled up."""
    return -(-g.window[2] * g.c // 8) * 8


def _shared_memory(g: Geometry, numbers: Numbers) -> int:
    columns = _columns(g)
    return (_PLACES + g.window[1] * columns) * numbers.pitch(g.k) + g.stride[1] * _PLACES * (columns + 2) * 4


def _few(g: Geometry) -> bool:
    """Few channels, two axes."""
    flat = (g.groups, g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 1, 0)
    return flat and g.c <= _MOST_CHANNELS and 0 not in (g.n, *g.space, *g.out)


def _region(g: Geometry, numbers: Numbers) -> tuple[int, int] | None:
    """The pixels of a region; None where the kernel of the input's gradient does not do it."""
    if not _few(g) or g.k % _STEP_K or g.dilation != (1, 1, 1) or g.stride[1] != g.stride[2] or g.stride[1] > _MOST_STEP:
        return None
    if _columns(g) > _MOST_COLUMNS or _shared_memory(g, numbers) > _SHARED:
        return None

    def met(pixels: tuple[int, int]) -> int:
        axes = zip(pixels, g.window[1:], g.stride[1:], strict=True)
        return math.prod((m + w - 2) // s + 1 for m, w, s in axes)

    return next((r for r in _REGIONS if met(r) <= _PLACES), None)


def gradient_fits(g: Geometry, dtype: np.dtype, result: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the gradient of an input."""
    numbers = Numbers.of(dtype, how)
    return numbers is not None and result == dtype and _region(g, numbers) is not None


def _gradient_seconds(g: Geometry, numbers: Numbers, units: int) -> float:
    """How long it takes."""
    regions = math.prod(_counts(g, _region(g, numbers) or _REGIONS[0])) * g.n
    return regions * g.window[1] * _PLACES * _columns(g) * g.k / (_RATE * units) * _GRADIENT_TIMES[numbers.parts]


def _counts(g: Geometry, pixels: tuple[int, int]) -> tuple[int, int]:
    """Regions of an image along its axes."""
    return -(-g.space[1] // pixels[0]), -(-g.space[2] // pixels[1])


def gradient(g: Geometry, small: Operand, weight: Operand, large: Operand, units: int, how: Numerics | None = None) -> Plan:
    """The launch, of dense channels-last images."""
    numbers = Numbers.of(small.dtype, how)
    assert numbers is not None
    pixels = _region(g, numbers)
    assert pixels is not None
    config = ThinConfig(*numbers.settings, g.c, _columns(g), g.stride[1], *pixels)
    name = f"conv_thin_gradient_{numbers.words}_{g.c}x{config.columns}_by_{config.stride}_{pixels[0]}x{pixels[1]}"
    counts = _counts(g, pixels)
    k, c, _, r, s = weight.strides
    sizes = (g.n, g.k, *counts, k, c, r, s, *extents(g)[3:])
    grid = (min(g.n * math.prod(counts), _BLOCKS * units), 1, 1)
    return Plan(
        Kernel("conv/thin_gradient.cu", name, config),
        grid,
        _THREADS,
        (small.array, weight.array, large.array, *sizes),
        _shared_memory(g, numbers),
    )


# --- the convolution itself ---------------------------------------------------------------------------------------------


def _pixel_memory(g: Geometry, numbers: Numbers) -> int:
    """Bytes of the pixels that a region meets."""
    rows = (_SIDE - 1) * g.stride[1] + (g.window[1] - 1) * g.dilation[1] + 1
    elements = ((_SIDE - 1) * g.stride[2] + g.window[2]) * g.c
    return rows * ((elements + _columns(g) + 1) // 2 * 2 * numbers.dtype.itemsize)


def _forward_memory(g: Geometry, numbers: Numbers) -> int:
    return numbers.how.parts * _WIDE * (-(-g.window[1] * _columns(g) // 16) * 32 + 16) + _pixel_memory(g, numbers)


def _in_rows(g: Geometry) -> bool:
    """Whether the kernels that read windows as rows of pixels do it."""
    return _few(g) and g.k % 8 == 0 and g.dilation[2] == 1


def _regions(g: Geometry) -> tuple[int, int]:
    """Of an image, along its axes."""
    return -(-g.out[1] // _SIDE), -(-g.out[2] // _SIDE)


def forward_fits(g: Geometry, dtype: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the convolution."""
    numbers = Numbers.of(dtype, how)
    return numbers is not None and _in_rows(g) and _forward_memory(g, numbers) <= _SHARED // _BLOCKS


def _forward_seconds(g: Geometry, numbers: Numbers, units: int) -> float:
    """How long it takes: the products, or memory."""
    tiles = g.n * math.prod(_regions(g)) * -(-g.k // _WIDE)
    return tiles * _SIDE * _SIDE * _WIDE * g.window[1] * _columns(g) / (_RATE * units) * _TIMES[numbers.parts]


def forward(g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue, units: int, how: Numerics | None = None) -> Plan:
    """The launch, of a dense channels-last input."""
    numbers = Numbers.of(x.dtype, how)
    assert numbers is not None
    f, columns, even = formula(e.activation, x.dtype), _columns(g), g.stride[2] * g.c % 2 == 0
    given = f.type, e.bias is not None, e.residual is not None
    config = ThinForwardConfig(*numbers.settings, TYPES[y.dtype], *given, columns, even)
    words = ["conv_thin_forward", numbers.words, "to", SHORT[y.dtype], f"x{columns}", e.name] + ["odd"] * (not even)
    kernel = Kernel("conv/thin_forward.cu", "_".join(words), config, ("activation",))
    regions, tiles = g.n * math.prod(_regions(g)), -(-g.k // _WIDE)
    k, c, _, r, s = weight.strides
    steps = (k, c, r, s, y.strides[0], *y.strides[2:])
    sizes = (regions, g.c, g.k, *_regions(g), *steps, *extents(g), f.p, f.q)
    grid = (min(regions, -(-_BLOCKS * units // tiles)), tiles, 1)
    pointers = (x.array, weight.array, e.bias or x.array, e.residual or x.array, y.array)
    return Plan(kernel, grid, _THREADS, (*pointers, *sizes), _forward_memory(g, numbers))


# --- the weight's gradient ----------------------------------------------------------------------------------------------


def _matrices(g: Geometry) -> int:
    """Of eight columns, for each warp of a block."""
    return -(-g.window[1] * _columns(g) // (_THREADS // 4))


def _weight_memory(g: Geometry, numbers: Numbers) -> int:
    return _SIDE * _SIDE * numbers.pitch(_WIDE) + _pixel_memory(g, numbers)


def weight_fits(g: Geometry, dtype: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the gradient of a weight."""
    numbers = Numbers.of(dtype, how)
    return (
        numbers is not None and _in_rows(g) and _matrices(g) <= _MOST_MATRICES and _weight_memory(g, numbers) <= _SHARED // numbers.blocks
    )


def _splits(g: Geometry) -> int:
    """Parts of a weight's gradient: the device does not matter, since the scratch memory must be known without it."""
    return min(g.n * math.prod(_regions(g)), _BLOCKS * PLANNED)


def _weight_parts(g: Geometry, small: Operand, large: Operand, partial: Operand, how: Numerics | None) -> Plan:
    """The launch, of dense channels-last images; `partial` is (`_splits`, K, window, C)."""
    numbers = Numbers.of(small.dtype, how)
    assert numbers is not None
    config = ThinWeightConfig(*numbers.settings, _columns(g), _matrices(g))
    kernel = Kernel("conv/thin_weight.cu", f"conv_thin_weight_{numbers.words}_x{config.columns}x{config.matrices}", config)
    sizes = (g.n * math.prod(_regions(g)), g.c, g.k, *_regions(g), *extents(g))
    grid = (_splits(g), -(-g.k // _WIDE), 1)
    return Plan(kernel, grid, _THREADS, (small.array, large.array, partial.array, *sizes), _weight_memory(g, numbers))


def weigh(setting: Setting, small: Operand, large: Operand, weight: Operand, how: Numerics | None = None) -> None:
    """The launches of the gradient of a weight, which is in the order (K, window, C) at first."""
    g, shape, steps = setting.g, setting.weight_shape, setting.steps
    size, count = math.prod(shape), _splits(g)
    as_made = dense_strides(shape, (0, 2, 3, 4, 1))
    with steps.borrowed():
        partial = steps.take(FLOAT32, count * size)
        steps.add(_weight_parts(g, small, large, partial, how))
        same = all(a == b or n == 1 for a, b, n in zip(weight.strides, as_made, shape, strict=True))
        result = weight if same else steps.take(weight.dtype, size)
        flat = Operand(result.array, result.dtype, (size, 1, size, size, size))
        steps.add(sum_splits(partial, count, flat, (1, size, 1, 1, 1)))
        if result is not weight:
            steps.add(rearrange(Operand(result.array, result.dtype, as_made), weight, shape))


def seconds(op: str, g: Geometry, dtype: np.dtype, units: int, how: Numerics | None = None) -> float | None:
    """How long an operation of a single map takes; None where the kernels do not do it."""
    numbers = Numbers.of(dtype, how)
    if numbers is None:
        return None
    fits = {"conv": forward_fits(g, dtype, how), "conv_backward_weight": weight_fits(g, dtype, how)}
    if op in fits:
        return _forward_seconds(g, numbers, units) if fits[op] else None
    return _gradient_seconds(g, numbers, units) if op == "conv_backward_input" and gradient_fits(g, dtype, dtype, how) else None
