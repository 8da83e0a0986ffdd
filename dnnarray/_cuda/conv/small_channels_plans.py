"""Inputs of few channels, such as the images of a first layer: windows read from pixels as they lie, for the
convolution and the weight's gradient; for the input's gradient products for each row of the window, gathered by pixel.
Float32 numbers are multiplied as parts of half types."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.rearrange import rearrange
from dnnarray._cuda.conv.arguments import conv_axes, pixel_strides
from dnnarray._cuda.conv.shared import Setting, dense_strides
from dnnarray._cuda.conv.split_sums import sum_splits
from dnnarray._cuda.conv.thin_forward import ThinForwardArguments, ThinForwardConfig
from dnnarray._cuda.conv.thin_gradient import ThinGradientArguments, ThinGradientConfig
from dnnarray._cuda.conv.thin_weight import ThinWeightArguments, ThinWeightConfig
from dnnarray._cuda.conv.tiling import PLANNED
from dnnarray._cuda.core.parts import Numerics
from dnnarray._cuda.core.plan import SHORT, TYPES, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF

_THREADS = 256  # of a block
_MOST_CHANNELS, _MOST_COLUMNS, _MOST_STEP, _MOST_MATRICES = 4, 32, 4, 4
_STEP_K = 32
_SHARED = 163_840  # bytes of shared memory of a block on every card with the matrix instructions
_HALF_SHARED = 115_712  # of one of two blocks on the largest multiprocessors
_RATE = 0.55e12  # multiply-adds a second of a multiprocessor
_TIMES, _GRADIENT_TIMES = (
    (1.0, 1.3, 2.3),
    (1.2, 1.8, 2.5),
)  # of that rate, by parts: half types as they come, float32 in one or two
_ALONE = 1.4  # times that it takes where a multiprocessor holds one block
_START = 8e-6  # seconds until float32 weights stand in shared memory as parts
_BLOCKS = 2  # on a multiprocessor
_SIDE, _WIDE = 16, 64  # pixels of a region along an axis, channels of a tile


@frozen
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
        """On a multiprocessor, at least, where sums or pixels stand in registers and shared memory for all regions."""
        return _BLOCKS if self.dtype in HALF else 1

    @property
    def weight_threads(self) -> int:
        """Of a block of a weight's gradient: the sums of products of two parts leave registers for fewer matrices."""
        return _THREADS * 3 // 2 if self.how.parts == 2 else _THREADS

    def pitch(self, columns: int) -> int:
        """Bytes of a padded row of shared memory."""
        return columns * self.dtype.itemsize + 16


def _columns(g: Geometry) -> int:
    """Taps of a row of the window with their channels, filled up."""
    return -(-g.window[2] * g.c // 8) * 8


@frozen
class Region:
    """Pixels of the input along its axes, and how many places of the result they may meet."""

    height: int
    width: int
    places: int

    def met(self, g: Geometry) -> int:
        """Places of the result that they meet."""
        axes = zip((self.height, self.width), g.window[1:], g.stride[1:], strict=True)
        return math.prod((m + w - 2) // s + 1 for m, w, s in axes)

    def memory(self, g: Geometry, numbers: Numbers) -> int:
        """Bytes of shared memory of a block."""
        columns = _columns(g)
        return (self.places + g.window[1] * columns) * numbers.pitch(g.k) + g.stride[1] * self.places * (
            columns + 2
        ) * 4

    def counts(self, g: Geometry) -> tuple[int, int]:
        """Regions of an image along its axes."""
        return -(-g.space[1] // self.height), -(-g.space[2] // self.width)

    def products(self, g: Geometry) -> int:
        """Multiply-adds of all regions."""
        return g.n * math.prod(self.counts(g)) * g.window[1] * self.places * _columns(g) * g.k


_REGIONS = (Region(16, 32, 224), Region(16, 16, 224))
_SMALLER = (
    Region(16, 16, 128),
    Region(8, 16, 224),
    Region(8, 8, 224),
)  # for float32, which takes more memory and has no other fast way


def _few(g: Geometry) -> bool:
    """Few channels, two axes."""
    flat = g.c <= _MOST_CHANNELS and (g.groups, g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 1, 0)
    return flat and 0 not in (g.n, g.c, g.k, *g.space, *g.out)


def _region(g: Geometry, numbers: Numbers) -> Region | None:
    """The region with the least work; None where the kernel of the input's gradient does not do it."""
    if (
        not _few(g)
        or g.k % _STEP_K
        or g.dilation != (1, 1, 1)
        or g.stride[1] != g.stride[2]
        or g.stride[1] > _MOST_STEP
    ):
        return None
    if _columns(g) > _MOST_COLUMNS:
        return None
    regions = _REGIONS + _SMALLER if numbers.parts else _REGIONS
    fitting = [r for r in regions if r.met(g) <= r.places and r.memory(g, numbers) <= _SHARED]
    return min(
        fitting, key=lambda r: r.products(g) * (1 if r.memory(g, numbers) <= _HALF_SHARED else _ALONE), default=None
    )


def gradient_fits(g: Geometry, dtype: np.dtype, result: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the gradient of an input."""
    numbers = Numbers.of(dtype, how)
    return numbers is not None and result == dtype and _region(g, numbers) is not None


def _gradient_seconds(g: Geometry, numbers: Numbers, region: Region, units: int) -> float:
    """How long it takes."""
    alone = 1 if region.memory(g, numbers) <= _HALF_SHARED else _ALONE
    return region.products(g) / (_RATE * units) * _GRADIENT_TIMES[numbers.parts] * alone


def gradient(
    g: Geometry, small: Operand, weight: Operand, large: Operand, units: int, how: Numerics | None = None
) -> Plan:
    """The launch, of dense channels-last images."""
    numbers = Numbers.of(small.dtype, how)
    assert numbers is not None
    region = _region(g, numbers)
    assert region is not None
    config = ThinGradientConfig(
        *numbers.settings, g.c, _columns(g), g.stride[1], region.height, region.width, region.places
    )
    words = f"{g.c}x{config.columns}_by_{config.stride}_{region.height}x{region.width}_{region.places}"
    kernel = Kernel("conv/thin_gradient.cu", f"conv_thin_gradient_{numbers.words}_{words}", config, ("conv/geometry",))
    counts = region.counts(g)
    arguments = ThinGradientArguments(
        small.array,
        weight.array,
        large.array,
        images=g.n,
        outs=g.k,
        regions_h=counts[0],
        regions_w=counts[1],
        w_strides=weight.strides,
        axes=conv_axes(g),
    )
    grid = (min(g.n * math.prod(counts), _BLOCKS * units), 1, 1)
    return planned(kernel, grid, _THREADS, arguments, shared_memory=region.memory(g, numbers))


# --- the convolution itself
# ---------------------------------------------------------------------------------------------


def _pixel_memory(g: Geometry, numbers: Numbers) -> int:
    """Bytes of the pixels that a region meets."""
    rows = (_SIDE - 1) * g.stride[1] + (g.window[1] - 1) * g.dilation[1] + 1
    elements = ((_SIDE - 1) * g.stride[2] + g.window[2]) * g.c
    return rows * ((elements + _columns(g) + 1) // 2 * 2 * numbers.dtype.itemsize)


def _forward_memory(g: Geometry, numbers: Numbers) -> int:
    """The weight in parts, and pixels: float32 ones of two regions."""
    weight = numbers.how.parts * _WIDE * (-(-g.window[1] * _columns(g) // 16) * 32 + 16)
    return weight + (2 if numbers.parts else 1) * _pixel_memory(g, numbers)


def _in_rows(g: Geometry) -> bool:
    """Whether the kernels that read windows as rows of pixels do it."""
    return _few(g) and g.k % 8 == 0 and g.dilation[2] == 1


def _regions(g: Geometry) -> tuple[int, int]:
    """Of an image, along its axes."""
    return -(-g.out[1] // _SIDE), -(-g.out[2] // _SIDE)


def forward_fits(g: Geometry, dtype: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the convolution."""
    numbers = Numbers.of(dtype, how)
    return numbers is not None and _in_rows(g) and _forward_memory(g, numbers) <= _SHARED // numbers.blocks


def _forward_seconds(g: Geometry, numbers: Numbers, units: int) -> float:
    """How long it takes, and the weight's gradient."""
    tiles = g.n * math.prod(_regions(g)) * -(-g.k // _WIDE)
    alone = 1 if _forward_memory(g, numbers) <= _HALF_SHARED else _ALONE
    return tiles * _SIDE * _SIDE * _WIDE * g.window[1] * _columns(g) / (_RATE * units) * _TIMES[numbers.parts] * alone


def forward(
    g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue, units: int, how: Numerics | None = None
) -> Plan:
    """The launch, of a dense channels-last input."""
    numbers = Numbers.of(x.dtype, how)
    assert numbers is not None
    f, columns, even = formula(e.activation, x.dtype), _columns(g), g.stride[2] * g.c % 2 == 0
    given = f.type, e.bias is not None, e.residual is not None
    config = ThinForwardConfig(*numbers.settings, TYPES[y.dtype], *given, columns, even)
    words = ["conv_thin_forward", numbers.words, "to", SHORT[y.dtype], f"x{columns}", e.name] + ["odd"] * (not even)
    kernel = Kernel("conv/thin_forward.cu", "_".join(words), config, ("core/activation", "conv/geometry"))
    regions, tiles = g.n * math.prod(_regions(g)), -(-g.k // _WIDE)
    height, width = _regions(g)
    arguments = ThinForwardArguments(
        x.array,
        weight.array,
        e.bias,
        e.residual,
        y.array,
        regions=regions,
        channels=g.c,
        outs=g.k,
        regions_h=height,
        regions_w=width,
        w_strides=weight.strides,
        y_strides=pixel_strides(y.strides),
        axes=conv_axes(g),
        p=f.p,
        q=f.q,
    )
    grid = (min(regions, -(-_BLOCKS * units // tiles)), tiles, 1)
    return planned(kernel, grid, _THREADS, arguments, shared_memory=_forward_memory(g, numbers))


# --- the weight's gradient
# ----------------------------------------------------------------------------------------------


def _matrices(g: Geometry, numbers: Numbers) -> int:
    """Of eight columns, for each warp of a block."""
    return -(-g.window[1] * _columns(g) // (numbers.weight_threads // 4))


def _weight_memory(g: Geometry, numbers: Numbers) -> int:
    return _SIDE * _SIDE * numbers.pitch(_WIDE) + _pixel_memory(g, numbers)


def weight_fits(g: Geometry, dtype: np.dtype, how: Numerics | None = None) -> bool:
    """Whether the kernel does the gradient of a weight."""
    numbers = Numbers.of(dtype, how)
    return (
        numbers is not None
        and _in_rows(g)
        and _matrices(g, numbers) <= _MOST_MATRICES
        and _weight_memory(g, numbers) <= _SHARED // numbers.blocks
    )


def _splits(g: Geometry) -> int:
    """Parts of a weight's gradient: the device does not matter, since the scratch memory must be known without it."""
    return min(g.n * math.prod(_regions(g)), _BLOCKS * PLANNED)


def _weight_parts(g: Geometry, small: Operand, large: Operand, partial: Operand, how: Numerics | None) -> Plan:
    """The launch, of dense channels-last images; `partial` is (`_splits`, K, window, C)."""
    numbers = Numbers.of(small.dtype, how)
    assert numbers is not None
    config = ThinWeightConfig(*numbers.settings, _columns(g), _matrices(g, numbers), numbers.weight_threads)
    name, (height, width) = f"conv_thin_weight_{numbers.words}_x{config.columns}x{config.matrices}", _regions(g)
    kernel = Kernel("conv/thin_weight.cu", name, config, ("conv/geometry",))
    arguments = ThinWeightArguments(
        small.array,
        large.array,
        partial.array,
        regions=g.n * height * width,
        channels=g.c,
        outs=g.k,
        regions_h=height,
        regions_w=width,
        axes=conv_axes(g),
    )
    grid = (_splits(g), -(-g.k // _WIDE), 1)
    return planned(kernel, grid, numbers.weight_threads, arguments, shared_memory=_weight_memory(g, numbers))


def wgrad(setting: Setting, small: Operand, large: Operand, weight: Operand, how: Numerics | None = None) -> None:
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
        steps.add(sum_splits(partial, count, flat, (1, size, 1, 1, 1), steps.aligned))
        if result is not weight:
            steps.add(rearrange(Operand(result.array, result.dtype, as_made), weight, shape))


def seconds(op: str, g: Geometry, dtype: np.dtype, units: int, how: Numerics | None = None) -> float | None:
    """How long an operation of a single map takes; None where the kernels do not do it."""
    numbers = Numbers.of(dtype, how) if _few(g) else None
    if numbers is None:
        return None
    if op == "conv_backward_input":
        region = _region(g, numbers)
        found = _gradient_seconds(g, numbers, region, units) if region is not None else None
    else:
        fits = (
            forward_fits(g, dtype, how) if op == "conv" else op == "conv_backward_weight" and weight_fits(g, dtype, how)
        )
        found = _forward_seconds(g, numbers, units) if fits else None
    return found + _START * (numbers.parts > 0) if found is not None else None
