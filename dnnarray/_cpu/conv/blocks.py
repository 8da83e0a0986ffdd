"""What all convolution algorithms share: canonical views, scratch memory, blocks of outputs, padded copies of their
inputs.

Canonical axes: x (N, G, C, D, H, W), w (G, K, C, T, R, S), y (N, G, K, O, P, Q), with G groups and C, K channels of one
group. They are views; the memory order stays the caller's. Buffers are made in the order that keeps the innermost axis
long."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dnnarray._problems.conv_geometry import Geometry, Triple
from dnnarray._select import Cost

Shape = tuple[int, ...]
CHANNELS_FIRST = (0, 1, 2, 3, 4, 5)
CHANNELS_LAST = (0, 1, 3, 4, 5, 2)
GROUPS_LAST = (0, 2, 3, 4, 5, 1)
_ALL = slice(None)
START = 40  # NumPy calls that are worth as much as a plan, its buffers, and threads that are woken
_ALIGN = 64  # bytes: a cache line
_TAPS, _TERMS = 1 << 10, 1 << 17  # of a sum, one tap after the other


class Way(NamedTuple):
    """One algorithm over canonical views, for any of the three maps of a geometry.

    `buffers` gives the shapes of scratch it needs, in elements of the arithmetic; `forward(g, buffers, x, w, y)`
    writes y, `weight_gradient(g, buffers, x, grad, w)` writes w. `cost(g, itemsize)` is that of the correlation,
    `weight_cost` that of the other. `input_gradient(g, buffers, grad, w, x)` does all phases of the input's gradient at
    once, with `input_buffers`; without it they are correlations, by `forward_flipped` where there is one. `mixes` says
    that outputs whose windows do not meet still share arithmetic (tiles, spectra), so that one NaN would reach them
    all; `parallel` that its groups run on the engine's threads, which a compiled way is not: it has its own;
    `parallel_channels` its images and channels, too."""

    name: str
    summary: str
    rejects: Callable[[Geometry], str | None]
    buffers: Callable[[Geometry], Sequence[Shape]]
    forward: Callable[..., None]
    cost: Callable[[Geometry, int], Cost]
    weight_buffers: Callable[[Geometry], Sequence[Shape]] | None = None
    weight_gradient: Callable[..., None] | None = None
    weight_cost: Callable[[Geometry, int], Cost] | None = None
    rejects_weight: Callable[[Geometry], str | None] | None = None
    precision: str = "highest"
    mixes: bool = False
    input_gradient: Callable[..., None] | None = None
    forward_flipped: Callable[..., None] | None = None
    input_buffers: Callable[[Geometry], Sequence[Shape]] | None = None
    parallel: bool = False
    parallel_channels: bool = False


def even_parts(total: int, most: int) -> int:
    """The extent of nearly equal parts of a total, as few as have `most` at the most."""
    return -(-total // -(-total // most))


# --- views ------------------------------------------------------------------------------------------------------------


def image_view(a: np.ndarray, layout: str, groups: int) -> np.ndarray:
    """x or y in canonical axes."""
    if layout == "channels_last":
        a = a.transpose(0, a.ndim - 1, *range(1, a.ndim - 1))
    n, c, *space = a.shape
    return a.reshape(n, groups, c // groups, *(1,) * (3 - len(space)), *space)


def weight_view(w: np.ndarray, layout: str, groups: int, flip: bool) -> np.ndarray:
    """The weight in canonical axes, reversed where the convolution is a true one."""
    if layout == "channels_last":
        w = w.transpose(0, w.ndim - 1, *range(1, w.ndim - 1))
    k, c, *window = w.shape
    w = w.reshape(groups, k // groups, c, *(1,) * (3 - len(window)), *window)
    return w[..., ::-1, ::-1, ::-1] if flip else w


def at(index: Iterable[slice]) -> Any:
    """The index of a box in the last axes."""
    return (..., *index)


def box(start: Iterable[int], extent: Iterable[int]) -> list[slice]:
    """The slices of a box."""
    return [slice(s, s + n) for s, n in zip(start, extent, strict=True)]


def packed(memory: np.ndarray, shape: Shape, order: tuple[int, ...] | None = None) -> np.ndarray:
    """The first elements of flat `memory` as an array of `shape` whose axes lie in `order`, slowest first."""
    strides, step = [0] * len(shape), memory.itemsize
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= shape[axis]
    return np.ndarray(shape, memory.dtype, memory, 0, tuple(strides))


def strided(memory: np.ndarray, shape: Shape, strides: Shape, offset: int = 0) -> np.ndarray:
    """Any view of flat `memory`; strides and offset in bytes."""
    return np.ndarray(shape, memory.dtype, memory, offset, strides)


def matrices(a: np.ndarray, shape: Shape) -> np.ndarray | None:
    """`a` reshaped without a copy to matrices that a BLAS takes, or None."""
    if not a.flags.aligned:
        return None
    try:
        a = a.reshape(shape, copy=False)
    except ValueError:
        return None
    rows, columns, item = a.strides[-2], a.strides[-1], a.itemsize
    fits = (columns == item and rows >= item * a.shape[-1]) or (rows == item and columns >= item * a.shape[-2])
    return a if fits else None


# --- scratch ----------------------------------------------------------------------------------------------------------


def _rounded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def scratch_bytes(shapes: Sequence[Shape], itemsize: int) -> int:
    """Bytes that `carve` needs for these shapes."""
    return sum(_rounded(math.prod(s) * itemsize) for s in shapes)


def scratch_elements(shapes: Sequence[Shape]) -> int:
    """Elements, of 4 bytes or more, whose memory is enough for `carve`."""
    return scratch_bytes(shapes, 4) // 4


def carve(scratch: np.ndarray | None, shapes: Sequence[Shape], dtype: np.dtype) -> list[np.ndarray]:
    """Flat arrays of the sizes of `shapes`, one behind the other in `scratch` (uint8; None is no bytes at all). Too few
    bytes are an error."""
    parts, start = [], 0
    memory = np.empty(0, np.uint8) if scratch is None else scratch
    for shape in shapes:
        size = math.prod(shape)
        parts.append(np.ndarray((size,), dtype, memory, start))
        start += _rounded(size * dtype.itemsize)
    return parts


# --- blocks -----------------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """Some images and a box of output pixels."""

    images: slice
    start: Triple
    extent: Triple

    @property
    def pixels(self) -> int:
        return (self.images.stop - self.images.start) * math.prod(self.extent)

    @property
    def region(self) -> tuple[slice, ...]:
        """The index of the block in an array (N, G, K, O, P, Q)."""
        return (self.images, _ALL, _ALL, *box(self.start, self.extent))


def block_extents(g: Geometry, pixels: int) -> tuple[int, int, int, int]:
    """Images and output extents of a block of about `pixels` outputs: whole rows and planes where they fit."""
    w = min(g.out[2], pixels)
    h = min(g.out[1], max(pixels // w, 1))
    d = min(g.out[0], max(pixels // (w * h), 1))
    return min(g.n, max(pixels // (w * h * d), 1)), d, h, w


def blocks(g: Geometry, extents: tuple[int, int, int, int]) -> Iterator[Block]:
    """Blocks of these extents over all images and outputs; the last ones are smaller."""
    n, *sizes = extents
    for i, *start in product(range(0, g.n, n), *(range(0, m, b) for m, b in zip(g.out, sizes, strict=True))):
        a, b, c = (min(size, m - s) for size, m, s in zip(sizes, g.out, start, strict=True))
        yield Block(slice(i, min(i + n, g.n)), (start[0], start[1], start[2]), (a, b, c))


def first_input(g: Geometry, start: Sequence[int]) -> Triple:
    """The input position that the first tap of output `start` reads."""
    a, b, c = (p * s - pad for p, s, pad in zip(start, g.stride, g.before, strict=True))
    return a, b, c


def load(
    x: np.ndarray, images: slice, low: Sequence[int], size: Sequence[int], memory: np.ndarray, order: tuple[int, ...]
) -> np.ndarray:
    """Copy ``x[images]`` at positions [low, low + size) of the spatial axes into `memory`; zeros outside of x."""
    source, target, whole = [], [], True
    for extent, start, length in zip(x.shape[3:], low, size, strict=True):
        first = min(max(start, 0), extent)
        last = max(min(start + length, extent), first)
        source.append(slice(first, last))
        target.append(slice(first - start, last - start) if last > first else slice(0))
        whole = whole and last - first == length
    n, groups, c = images.stop - images.start, x.shape[1], x.shape[2]
    result = packed(memory, (n, groups, c, *size), order)
    if not whole:
        memory[: result.size] = 0
    result[at(target)] = x[(images, _ALL, _ALL, *source)]
    return result


def store(y: np.ndarray, block: Block, values: np.ndarray) -> None:
    """Write the matrices (G, K, pixels) of a block to y."""
    target = y[block.region].transpose(1, 2, 0, 3, 4, 5)
    target[...] = values.reshape(target.shape)


def block_matrices(y: np.ndarray, block: Block) -> np.ndarray | None:
    """The block of y as matrices (G, K, pixels) without a copy, or None."""
    part = y[block.region].transpose(1, 2, 0, 3, 4, 5)
    return matrices(part, (*part.shape[:2], block.pixels))


def gradient_matrices(grad: np.ndarray, block: Block, memory: np.ndarray, pixel_major: bool) -> np.ndarray:
    """The block of a gradient as matrices (G, K, pixels), copied to `memory` where it must be."""
    found = block_matrices(grad, block)
    if found is not None:
        return found
    part = grad[block.region].transpose(1, 2, 0, 3, 4, 5)
    copy = packed(memory, part.shape, (0, 2, 3, 4, 5, 1) if pixel_major else None)
    copy[...] = part
    return copy.reshape(*part.shape[:2], block.pixels)


def scatter(g: Geometry) -> float:
    """How much dearer than long runs it is to copy the channels of one group where those of all groups lie
    innermost."""
    return 1 + 20 / g.c if g.pixel_major and g.groups > 1 else 1.0


def long_sums(g: Geometry) -> str | None:
    """Why a way that adds one tap after the other would round too much, or None."""
    if g.taps > _TAPS:
        return f"a window has {g.taps} taps; it adds one after the other, {_TAPS} at the most"
    terms = g.c * g.taps
    return None if terms <= _TERMS else f"a sum has {terms} terms, of which gemm loses fewer digits"


def never(g: Geometry) -> Any:
    """An algorithm without limits."""
    return None
