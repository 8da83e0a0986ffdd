"""Convolution as matrix products: windows gathered into columns (im2col), block by block of images, and cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue, apply
from dnnarray._cuda.common.rearrange import rearrange
from dnnarray._cuda.conv.columns import Columns
from dnnarray._cuda.conv.fold import fold
from dnnarray._cuda.conv.kinds import SINGLE
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, dense_strides, lying, too_large
from dnnarray._cuda.conv.split_sums import sum_splits
from dnnarray._cuda.conv.unfold import unfold
from dnnarray._cuda.conv.weight_order import weight_order
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import MatMul, Matrix, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32, HALF, name_of

_SCRATCH = 256 << 20  # bytes of columns, and of results that wait for their epilogue, of a block of images
_ROWS = 1 << 30  # of a product
_BATCH = 1 << 15  # products in one call
_CALL = 2  # launches that take as long as a product of cuBLAS beside its arithmetic
_STEP = 0.1e-6  # seconds of 64 terms of a product's sum, one after the other
_CROOKED_TERM = (
    25e-9  # seconds of a term of a sum, the other, of half types whose rows do not begin at multiples of 16 bytes
)
_BATCH_TERM, _CROOKED_BATCH_TERM, _DOT_TERM = (
    3.5e-9,
    12e-9,
    0.75e-9,
)  # of a weight gradient of groups: cuBLAS divides no sum of a batch
# Operations a second of a product of few rows and columns (docs/development/findings/convolution/cublas-cost-terms.md).
_SLOWEST = 0.3e12
_ADDED_UP = 1.4  # times that columns are moved which are added up behind the product, in part from the cache
_GATHERED = {
    (True, True): 0.8,
    (False, True): 0.17,
    (False, False): 0.35,
}  # of the bandwidth: columns by vectors, by channels, by pixels
_REACHED = 0.75  # of the peak, by the products
_CROOKED = (
    2.5  # times that a product takes of what the bandwidth would allow where rows do not begin at multiples of 16 bytes
)
_ROUNDED = 1.2  # the same of products of pixels that are rounded to TF32
_EXTENT = 1 << 31  # that cuBLAS cannot count
_LONG_SUM, _PART = (
    1 << 14,
    512,
)  # terms of a float32 weight gradient that are added up in parts, of a part: rounding grows with those in a row


class GemmMaps:
    """The maps as products: `shared.Maps`.

    Channels-last, the columns of a pixel are (groups, window, C) and the images are matrices of pixels x channels;
    channels-first, the columns are (groups, C, window) x pixels and the images are matrices of channels x pixels. The
    weight is brought to (K, window, C) or (K, C, window) first."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._g, self._last = setting, setting.steps, setting.g, setting.last
        g = setting.g
        self._pixels, self._width = math.prod(g.out), g.c * g.taps
        self._plain = g.taps == 1 and set(g.stride) == {1} and set(g.before) == {0} and g.space == g.out

    # --- the maps -----------------------------------------------------------------------------------------------------

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        g, steps = self._g, self._steps
        dtype, gathers = large.dtype, not self._plain
        waits = small.dtype in HALF and not (epilogue.empty and dtype in HALF)
        with steps.borrowed():
            w = self.packed(weight, dtype)
            for first, n in self._blocks(gathers, dtype, waits):
                with steps.borrowed():
                    x, y = large.part(first * large.strides[0]), small.part(first * small.strides[0])
                    z = steps.take(FLOAT32, n * g.groups * g.k * self._pixels) if waits else y
                    for start, count in self._pieces(n, dtype) if gathers else [(0, self._pixels)]:
                        with steps.borrowed():
                            self._multiply_columns(self._columns(x, n, start, count, dtype), w, z, n, start, count)
                    if waits or not epilogue.empty:
                        steps.add(
                            apply(epilogue, z, y, self._setting.view(True, n), steps.aligned, first * small.strides[0])
                        )

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        g, steps = self._g, self._steps
        dtype, wide = small.dtype, arithmetic_of(small.dtype)
        rounds = large.dtype in HALF and not (epilogue.empty and dtype in HALF)
        direct = self._plain and not rounds
        with steps.borrowed():
            w = self.packed(weight, dtype)
            for first, n in self._blocks(not direct, wide, False):
                with steps.borrowed():
                    x = large.part(first * large.strides[0])
                    columns = x if direct else steps.take(wide, n * g.groups * self._width * self._pixels)
                    self._multiply_to_columns(small.part(first * small.strides[0]), w, columns, n)
                    if not direct:
                        steps.add(fold(self._setting, self._layout(n, self._pixels), columns, x, n, epilogue))
                    elif not epilogue.empty:
                        steps.add(
                            apply(epilogue, x, x, self._setting.view(False, n), steps.aligned, first * large.strides[0])
                        )

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        steps, setting, g = self._steps, self._setting, self._g
        wide = arithmetic_of(small.dtype)
        dtype = wide if wide in (small.dtype, large.dtype) else small.dtype
        packed = self._packed_strides(setting.weight_shape)
        direct = wide == weight.dtype and same_memory(setting.weight_shape, packed, weight.strides)
        with steps.borrowed():
            small, gathers = self._converted(small, dtype), not (self._last and self._plain and large.dtype == dtype)
            blocks = [
                (*block, *piece)
                for block in self._blocks(gathers, dtype, False)
                for piece in self._pieces(block[1], dtype)
            ]
            if _in_parts(g, dtype, self._last, setting.precision):
                self._add_up_parts(small, large, weight, blocks)
                return
            result = (
                weight if direct else Operand(steps.take(wide, math.prod(setting.weight_shape)).array, wide, packed)
            )
            for i, (first, n, start, count) in enumerate(blocks):
                with steps.borrowed():
                    self._add_product(
                        small, large.part(first * large.strides[0]), result, first, n, start, count, float(i > 0)
                    )
            if not direct:
                steps.add(rearrange(result, weight, setting.weight_shape))

    def _add_up_parts(
        self, small: Operand, large: Operand, weight: Operand, blocks: list[tuple[int, int, int, int]]
    ) -> None:
        """The weight's gradient of one group in float32, added up in parts: a product for each, and what is left of a
        block by another."""
        steps, g, width, size, at = self._steps, self._g, self._width, math.prod(self._setting.weight_shape), 0
        terms = _terms_of_part(g)
        sums = steps.take(FLOAT32, size * sum(-(-n * count // terms) for _, n, _, count in blocks))
        for first, n, start, count in blocks:
            with steps.borrowed():
                columns = self._columns(large.part(first * large.strides[0]), n, start, count, FLOAT32)
                rows = small.part(first * small.strides[0] + start * small.strides[4])
                whole, rest = divmod(n * count, terms)
                for row, each, batch in ((0, terms, whole), (whole * terms, rest, 1)):
                    if each and batch:
                        a, b = (
                            Matrix(rows.at(row * g.k), g.k, each * g.k, True),
                            Matrix(columns.at(row * width), width, each * width),
                        )
                        self._product(
                            a, b, Matrix(sums.at(at * size), width, size), g.k, width, each, batch, FLOAT32, FLOAT32
                        )
                        at += batch
        steps.add(sum_splits(sums, at, weight, self._setting.weight_shape, steps.aligned))

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _blocks(self, gathers: bool, dtype: np.dtype, waits: bool) -> list[tuple[int, int]]:
        """(first, count) of images whose columns and waiting results fit into the scratch memory; one at the least."""
        g = self._g
        each = self._pixels * g.groups * (self._width * dtype.itemsize * gathers + g.k * 4 * waits)
        count = min(max(_SCRATCH // max(each, 1), 1), max(_ROWS // self._pixels, 1), _BATCH, g.n)
        return [(i, min(count, g.n - i)) for i in range(0, g.n, count)]

    def _pieces(self, n: int, dtype: np.dtype) -> list[tuple[int, int]]:
        """(first, count) of output pixels; a single image whose columns are too many comes in parts."""
        each = self._g.groups * self._width * dtype.itemsize
        count = self._pixels if n > 1 else min(max(_SCRATCH // each, 1), self._pixels)
        return [(i, min(count, self._pixels - i)) for i in range(0, self._pixels, count)]

    # --- memory -------------------------------------------------------------------------------------------------------

    def _packed_strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a weight as the products take it."""
        _, c, *window = shape
        taps = math.prod(window)
        channel, tap = (1, c) if self._last else (taps, 1)
        _, h, w = window
        return (c * taps, channel, h * w * tap, w * tap, tap)

    def packed(self, weight: Operand, dtype: np.dtype) -> Operand:
        """The weight as the products take it."""
        shape = self._setting.weight_shape
        strides = self._packed_strides(shape)
        if weight.dtype == dtype and same_memory(shape, weight.strides, strides):
            return weight
        target = Operand(self._steps.take(dtype, math.prod(shape)).array, dtype, strides)
        self._steps.add(self._ordered(weight, target, shape) or rearrange(weight, target, shape))
        return target

    def _ordered(self, weight: Operand, target: Operand, shape: tuple[int, ...]) -> Plan | None:
        """From C order by way of shared memory, as nearly all weights come; None where that is not it."""
        k, c, *window = shape
        first = dense_strides(shape, range(len(shape)))
        if (
            not self._last
            or weight.dtype != target.dtype
            or math.prod(window) == 1
            or not same_memory(shape, weight.strides, first)
        ):
            return None
        return weight_order(weight, target, (k, c, math.prod(window)), self._steps.aligned)

    def _converted(self, small: Operand, dtype: np.dtype) -> Operand:
        """The small image in another dtype."""
        if small.dtype == dtype:
            return small
        target = self._setting.taken(True, dtype)
        self._steps.add(rearrange(small, target, self._setting.shape(True)))
        return target

    def _layout(self, n: int, pixels: int, image_inside: bool = False) -> Columns:
        """How the columns of `pixels` pixels of each of `n` images lie; `image_inside`: the images side by side in a
        row of pixels."""
        g = self._g
        if self._last:
            each = g.groups * self._width
            return Columns(True, pixels * each, each, self._width, 1, g.c)
        row = pixels * (n if image_inside else 1)
        image = pixels if image_inside else g.groups * self._width * row
        return Columns(False, image, 1, self._width * row, g.taps * row, row)

    def _columns(
        self, large: Operand, n: int, first: int, count: int, dtype: np.dtype, image_inside: bool = False
    ) -> Operand:
        """The windows of `count` pixels from `first` on; the image itself where a window is a pixel."""
        if self._plain and large.dtype == dtype and not (image_inside and n > 1):
            return large.part(first * large.strides[4])
        target = self._steps.take(dtype, n * count * self._g.groups * self._width)
        self._steps.add(unfold(self._setting, self._layout(n, count, image_inside), large, target, n, first, count))
        return target

    # --- products -----------------------------------------------------------------------------------------------------

    def _product(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        m: int,
        n: int,
        k: int,
        batch: int,
        dtype: np.dtype,
        result: np.dtype,
        beta: float = 0.0,
    ) -> None:
        self._steps.add(MatMul(a, b, c, m, n, k, dtype, result, batch, beta=beta, precision=self._setting.precision))

    def _multiply_columns(self, columns: Operand, w: Operand, z: Operand, n: int, first: int, count: int) -> None:
        """z = the columns times the weight."""
        g, width, pixels = self._g, self._width, self._pixels
        k, dtype = g.k, columns.dtype
        if self._last:
            row = g.groups * k
            a = Matrix(columns.array, g.groups * width, width)
            b = Matrix(w.array, width, k * width, True)
            self._product(a, b, Matrix(z.at(first * row), row, k), n * count, k, width, g.groups, dtype, z.dtype)
            return
        held = pixels if self._plain else count  # of the columns' memory
        for i in range(g.groups):
            a = Matrix(w.at(i * k * width), width)
            b = Matrix(columns.at(i * width * held), held, g.groups * width * held)
            c = Matrix(z.at(i * k * pixels + first), pixels, g.groups * k * pixels)
            self._product(a, b, c, k, count, width, n, dtype, z.dtype)

    def _multiply_to_columns(self, small: Operand, w: Operand, columns: Operand, n: int) -> None:
        """The columns of the gradient: the output's times the weight."""
        g, width, pixels = self._g, self._width, self._pixels
        k, dtype = g.k, small.dtype
        if self._last:
            a, b = Matrix(small.array, g.groups * k, k), Matrix(w.array, width, k * width)
            c = Matrix(columns.array, g.groups * width, width)
            self._product(a, b, c, n * pixels, width, k, g.groups, dtype, columns.dtype)
            return
        for i in range(g.groups):
            a = Matrix(w.at(i * k * width), width, 0, True)
            b = Matrix(small.at(i * k * pixels), pixels, g.groups * k * pixels)
            c = Matrix(columns.at(i * width * pixels), pixels, g.groups * width * pixels)
            self._product(a, b, c, width, pixels, k, n, dtype, columns.dtype)

    def _add_product(
        self, small: Operand, large: Operand, result: Operand, first: int, n: int, start: int, count: int, beta: float
    ) -> None:
        """result += the transposed output gradient times the columns."""
        g, width, steps, k = self._g, self._width, self._steps, self._g.k
        dtype = small.dtype
        columns = self._columns(large, n, start, count, dtype, image_inside=not self._last)
        c = Matrix(result.array, width, k * width)
        part = small.part(first * small.strides[0] + start * small.strides[4])
        if self._last:
            a = Matrix(part.array, g.groups * k, k, True)
            b = Matrix(columns.array, g.groups * width, width)
            self._product(a, b, c, k, width, n * count, g.groups, dtype, result.dtype, beta)
            return
        rows = part
        row = self._pixels
        if n > 1:  # the images side by side
            rows, row = steps.take(dtype, n * g.groups * k * count), n * count
            shape, channels = (n, g.groups * k, count), self._pixels
            source = Operand(part.array, dtype, (g.groups * k * channels, channels, 1))
            steps.add(rearrange(source, Operand(rows.array, dtype, (count, row, 1)), shape))
        held = self._pixels if self._plain and n == 1 and large.dtype == dtype else n * count
        a, b = Matrix(rows.array, row, k * row), Matrix(columns.array, held, width * held, True)
        self._product(a, b, c, k, width, n * count, g.groups, dtype, result.dtype, beta)


def _in_parts(g: Geometry, dtype: np.dtype, last: bool, precision: str) -> bool:
    """Whether a weight's gradient is added up in parts."""
    return last and g.groups == 1 and dtype == FLOAT32 and precision == "highest" and g.n * g.pixels >= _LONG_SUM


def _terms_of_part(g: Geometry) -> int:
    """More than `_PART` where the parts would not fit into the scratch memory, or into one call."""
    terms = g.n * g.pixels
    return max(_PART, -(-terms // _BATCH), -(-4 * terms * g.k * g.c * g.taps // _SCRATCH))


# --- judgement --------------------------------------------------------------------------------------------------------


def rejects(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if precision != "highest" and (reason := SINGLE.refuses(dtype, device)):
        return reason
    if 0 in (g.n, g.groups, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if max(g.pixels, g.groups * g.c * g.taps, g.groups * g.k) >= _EXTENT:
        return f"a matrix with an extent of {_EXTENT} or more"
    if g.groups > _BATCH:
        return f"more than {_BATCH} groups"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g)


def _peak(dtype: np.dtype, device: Device, precision: str) -> tuple[str | None, float]:
    """The key of the rate of products, and operations a second."""
    peak_of = unit(dtype, precision)
    return peak_of, device.peak.get(peak_of or name_of(dtype)) or device.peak["float32"]


def _plain(g: Geometry) -> bool:
    """Whether an image is its own columns."""
    return g.taps == 1 and g.stride == (1, 1, 1) and g.before == (0, 0, 0)


def _moved(op: str, problem: ConvProblem, last: bool) -> float:
    """Bytes of the columns, written and read; for the gradient of the input in the type of the sums."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    columns = 0 if _plain(g) else g.n * g.pixels * g.groups * g.c * g.taps
    dgrad = op in ("conv_backward_input", "conv_transpose")
    return (
        2
        * columns
        * problem.maps
        * (arithmetic_of(dtype).itemsize * (_ADDED_UP if last else 2) if dgrad else dtype.itemsize)
    )


def floor(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> float:
    """Seconds of the products and of the columns at the best rates, and of the launches."""
    _, peak = _peak(problem.inputs[0].dtype, device, precision)
    products, columns = (
        problem.flops / max(peak * _REACHED, _SLOWEST),
        _moved(op, problem, True) / (device.bandwidth * max(_GATHERED.values())),
    )
    return products + columns + _CALL * problem.maps * device.launch


def cost(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> Cost:
    """The products, and before or behind them the columns."""
    g, dtype, last = problem.geometry, problem.inputs[0].dtype, lying(problem).last
    peak_of, peak = _peak(dtype, device, precision)
    plain, half, moved = _plain(g), dtype in HALF, _moved(op, problem, last)
    wide = 128 if half else 64  # a product much narrower than a tile leaves most of it empty
    narrow = min(g.k, wide) / wide * min(g.c * g.taps, wide) / wide
    wgrad = problem.runs.wgrad
    # images, to the other order
    turned = 2 * g.n * g.groups * (g.k * g.pixels + plain * g.c * math.prod(g.space)) * dtype.itemsize
    calls = 1 if last or op == "conv_backward_weight" else g.groups
    launches = problem.maps * (_CALL * calls + (not plain) + wgrad * (1 if last else 3))
    of_copy = _GATHERED[last and g.c * dtype.itemsize % 16 == 0, last]
    products = problem.flops / max(peak * _REACHED * narrow * (1 if last or not half else 0.5), _SLOWEST)
    seconds = max(products, problem.maps * _chain(op, g, last, dtype.itemsize)) + moved / (device.bandwidth * of_copy)
    seconds += turned * (wgrad and not last) / (device.bandwidth * 0.25)
    straight = not last or (g.groups * g.c * dtype.itemsize % 16 == 0 and g.groups * g.k * dtype.itemsize % 16 == 0)
    if wgrad and _in_parts(g, dtype, last, precision):
        seconds += 8 * g.sizes[1] * g.n * g.pixels / _terms_of_part(g) / device.bandwidth
    behind = _behind(problem)
    own = problem.bytes * (1 if straight else _CROOKED) * (_ROUNDED if plain and precision == "high" else 1) + behind
    return Cost(problem.flops, own, share_of_peak(problem.flops, seconds, peak), launches + (behind > 0), peak_of)


def _chain(op: str, g: Geometry, last: bool, size: int) -> float:
    """Seconds that the terms of a sum take which are added one after the other; cuBLAS divides the sums of a single
    weight gradient."""
    if op == "conv_backward_weight":
        if g.groups == 1:
            return 0.0
        rows = (g.k, g.c * g.taps) if last else (g.pixels,)
        straight = size > 2 or all(row * size % 16 == 0 for row in rows)
        return g.n * g.pixels * (_DOT_TERM if g.k == 1 else _BATCH_TERM if straight else _CROOKED_BATCH_TERM)
    terms = g.k if op in ("conv_backward_input", "conv_transpose") else g.c * g.taps
    if not last and size == 2 and g.pixels * size % 16:
        return _CROOKED_TERM * terms
    return _STEP * terms / 64 * (op == "conv")


def _behind(problem: ConvProblem) -> int:
    """Bytes that a bias, a residual or an activation moves behind the products, whose sums wait in their own type."""
    if problem.kind not in ("conv", "conv_transpose") or (
        problem.activation is None and all(s is None for s in problem.inputs[2:])
    ):
        return 0
    return 2 * problem.result.size * arithmetic_of(problem.result.dtype).itemsize


def same_memory(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    return all(n == 1 or i == j for n, i, j in zip(shape, a, b, strict=True))
