"""`winograd`: F(2x2, 3x3) in float32 (Lavin and Gray, 2016): images and weight transformed, 16 products by cuBLAS, and
back, block by block of images.

A tile of 2x2 outputs takes 16 products in place of 36. F(4x4) would take 36 in place of 144, with an error of 2 to 6
times that of a plain sum (docs/development/findings/convolution/winograd-on-tensor-cores.md)."""

from __future__ import annotations

import math
from dataclasses import replace

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.gemm import GemmMaps
from dnnarray._cuda.conv.kinds import SINGLE
from dnnarray._cuda.conv.shared import NO_EPILOGUE, OF_IMAGES, Setting, lying, too_large
from dnnarray._cuda.conv.winograd_input import WinogradInputArguments, winograd_input
from dnnarray._cuda.conv.winograd_output import WinogradOutputArguments, winograd_output
from dnnarray._cuda.conv.winograd_weight import winograd_weight
from dnnarray._cuda.core.plan import MatMul, Matrix
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32

_TILE, _PATCH, _WINDOW = 2, 4, 3
_POINTS = _PATCH**2
_VECTOR = 4  # channels of a thread: 16 numbers each
_SCRATCH = 256 << 20  # bytes of a block of images in Winograd's domain
_LARGEST = 1 << 32  # bytes of a single image there


@frozen
class _Pass:
    """One correlation: what is read (n, channels, rows, columns), what is written, zeros before the first row and
    column."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    before: tuple[int, int]

    @property
    def wide(self) -> tuple[int, int]:
        """Tiles down and along an image."""
        return -(-self.target[2] // _TILE), -(-self.target[3] // _TILE)

    @property
    def tiles(self) -> int:
        """Of an image."""
        return math.prod(self.wide)

    @property
    def bytes_of_image(self) -> int:
        """In Winograd's domain, input and output."""
        return 4 * _POINTS * self.tiles * (self.source[1] + self.target[1])

    @property
    def images(self) -> int:
        """Of a block."""
        return max(min(_SCRATCH // max(self.bytes_of_image, 1), self.target[0]), 1)


def _forward(g: Geometry) -> _Pass:
    return _Pass((g.n, g.c, *g.space[1:]), (g.n, g.k, *g.out[1:]), (g.before[1], g.before[2]))


def _gradient(g: Geometry) -> _Pass:
    """The correlation of the output's gradient with the window turned round."""
    before = (_WINDOW - 1 - g.before[1], _WINDOW - 1 - g.before[2])
    return _Pass((g.n, g.k, *g.out[1:]), (g.n, g.c, *g.space[1:]), before)


class WinogradMaps:
    """The maps to and from images: `shared.Maps`. The gradient of the weight goes by columns and products."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._last = setting, setting.steps, setting.last
        self._repair, self._plain = DirectMaps(setting, repair=True), GemmMaps(setting)

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._run(_forward(self._setting.g), large, weight, small, epilogue)
        self._repair.forward(large, weight, small, epilogue)

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        k, c, d, *window = weight.strides
        turned = Operand(weight.at(sum(2 * s for s in window)), weight.dtype, (c, k, d, *(-s for s in window)))
        self._run(_gradient(self._setting.g), small, turned, large, epilogue)
        self._repair.dgrad(small, weight, large, epilogue)

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        self._plain.wgrad(small, large, weight)

    def _run(self, p: _Pass, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> None:
        with self._steps.borrowed():
            u = self._weight(p, weight)
            for first in range(0, p.source[0], p.images):
                part = replace(p, source=(min(p.images, p.source[0] - first), *p.source[1:]))
                with self._steps.borrowed():
                    v = self._input(part, x.part(first * x.strides[0]))
                    m = self._products(part, v, u)
                    self._output(part, m, y.part(first * y.strides[0]), e, first * y.strides[0])

    def _weight(self, p: _Pass, weight: Operand) -> Operand:
        inputs, outputs = p.source[1], p.target[1]
        u = self._steps.take(FLOAT32, _POINTS * inputs * outputs)
        k, c, _, *window = weight.strides
        self._steps.add(winograd_weight(weight.array, u.array, inputs, outputs, (k, c, *window)))
        return u

    def _vector(self, image: Operand, channels: int) -> int:
        fits = (
            self._last and self._steps.aligned and channels % _VECTOR == 0 and image.array.offset % (4 * _VECTOR) == 0
        )
        return _VECTOR if fits else 1

    def _input(self, p: _Pass, x: Operand) -> Operand:
        n, channels, *space = p.source
        tiles, vector = n * p.tiles, self._vector(x, channels)
        v = self._steps.take(FLOAT32, _POINTS * channels * tiles)
        s_n, s_c, _, *steps = x.strides
        arguments = WinogradInputArguments(
            x.array,
            v.array,
            units=channels // vector * tiles,
            tiles=tiles,
            channels=channels,
            high=p.wide[0],
            wide=p.wide[1],
            rows=space[0],
            columns=space[1],
            before_h=p.before[0],
            before_w=p.before[1],
            strides=(s_n, s_c, *steps),
        )
        self._steps.add(winograd_input(arguments, self._last, vector))
        return v

    def _products(self, p: _Pass, v: Operand, u: Operand) -> Operand:
        """m = v u for each point, tiles x channels; channels-first all of it the other way round."""
        inner, outputs, tiles = p.source[1], p.target[1], p.source[0] * p.tiles
        m = self._steps.take(FLOAT32, _POINTS * outputs * tiles)
        weight = Matrix(u.array, outputs, inner * outputs, transposed=not self._last)
        image, result = (Matrix(a.array, n if self._last else tiles, n * tiles) for a, n in ((v, inner), (m, outputs)))
        factors = (image, weight, result, tiles, outputs) if self._last else (weight, image, result, outputs, tiles)
        self._steps.add(MatMul(*factors, inner, FLOAT32, FLOAT32, _POINTS))
        return m

    def _output(self, p: _Pass, m: Operand, y: Operand, e: Epilogue, first: int) -> None:
        (n, *_), (_, channels, *space) = p.source, p.target
        tiles, vector, f = n * p.tiles, self._vector(y, channels), formula(e.activation, FLOAT32)
        residual = None if e.residual is None else Operand(e.residual, FLOAT32).at(first)
        s_n, s_c, _, *steps = y.strides
        arguments = WinogradOutputArguments(
            m.array,
            e.bias,
            residual,
            y.array,
            units=channels // vector * tiles,
            tiles=tiles,
            channels=channels,
            high=p.wide[0],
            wide=p.wide[1],
            rows=space[0],
            columns=space[1],
            strides=(s_n, s_c, *steps),
            p=f.p,
            q=f.q,
        )
        self._steps.add(winograd_output(arguments, e, self._last, vector))


# --- judgement --------------------------------------------------------------------------------------------------------


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if op not in OF_IMAGES:
        return "the gradient of the weight"
    if reason := SINGLE.refuses(dtype, device):
        return reason
    if g.window != (1, _WINDOW, _WINDOW) or g.space[0] != 1 or g.out[0] != 1:
        return f"the window is {'x'.join(map(str, g.window))}, not 3x3 over two axes"
    if {*g.stride[1:], *g.dilation[1:]} != {1}:
        return "it does stride 1 and dilation 1 only"
    if g.groups != 1:
        return f"{g.groups} groups; it does one"
    if 0 in (g.n, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if max(abs(b) for b in g.before) > 1 << 20 or _pass(op, g).bytes_of_image > _LARGEST:
        return f"an image of more than {_LARGEST >> 30} GiB in Winograd's domain"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g)


def _pass(op: str, g: Geometry) -> _Pass:
    return _forward(g) if op == "conv" else _gradient(g)


_PRODUCTS = 0.8  # of the peak that cuBLAS reaches
_DOMAIN = (
    1.3  # times the bandwidth of memory, for what is written and read again: part of it stays in the second-level cache
)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The products, and every array once; those in Winograd's domain written and read."""
    g = problem.geometry
    p = _pass(op, g)
    tiles, inputs, outputs = g.n * p.tiles, p.source[1], p.target[1]
    peak = device.peak["float32"]
    narrow = min(inputs, 64) / 64 * min(outputs, 64) / 64
    products = 2 * _POINTS * tiles * inputs * outputs / (peak * _PRODUCTS * narrow)
    domain = 2 * 4 * _POINTS * (tiles * (inputs + outputs) + inputs * outputs)
    seconds = (
        products + domain / (_DOMAIN * device.bandwidth) + (problem.bytes + 4 * math.prod(p.target)) / device.bandwidth
    )
    blocks = -(-g.n // p.images)
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), 4 * blocks + 2, "float32")
