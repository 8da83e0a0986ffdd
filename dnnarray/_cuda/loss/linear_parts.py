"""The products of `linear_cross_entropy` in float32 on the matrix units of sm_90a: convolutions of one tap over the
rows, by the kernels of `conv.parts`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.common.accumulate import accumulate
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.conv import parts as conv_parts
from dnnarray._cuda.conv.parts import InParts, PartsMaps
from dnnarray._cuda.conv.shared import Setting
from dnnarray._cuda.core.parts import NUMERICS
from dnnarray._cuda.core.plan import Array, Step
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._cuda.linear_conv import OPTIONS
from dnnarray._cuda.loss.linear_products import Block, Gradients, Layer, LibraryProducts, advanced
from dnnarray._cuda.positional import NOTHING
from dnnarray._problems import conv as conv_problems
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.loss_linear import LinearProblem
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32, Spec

_BYTE = np.dtype(np.uint8)
_OF_BLOCK = 8  # launches for a block of scores


@lru_cache(maxsize=1024)
def as_conv(rows: int, features: int, classes: int) -> ConvProblem:
    """The scores as the convolution of one image of one row, whose pixels are the rows of x."""
    x, weight = Spec((1, rows, features), FLOAT32), Spec((classes, 1, features), FLOAT32)
    return conv_problems.conv("conv", x, weight, None, None, **OPTIONS)


class PartsProducts:
    """`linear_products.Products` for a layer whose blocks are dense. The few classes that are no whole vector go by
    cuBLAS.

    x is brought into parts once, before the first block; `reserved` bytes at the beginning of the scratch memory are
    the caller's."""

    def __init__(self, problem: LinearProblem, layer: Layer, x: Array, w: Array, reserved: int, units: int) -> None:
        self._layer, self._w, self._units = layer, w, units
        self._library = LibraryProducts(layer, x, w, aligned=True)
        self._steps = Planner(problem, aligned=True)
        self._steps.take(_BYTE, reserved)
        self._spare = self._steps.take(FLOAT32, layer.rows * layer.features).array if problem.summed[0] else x
        self._x = Operand(x, FLOAT32)
        shape = (1, layer.features, layer.rows)
        self._x_parts = conv_parts.in_parts(self._steps, self._x, NUMERICS[layer.precision], shape, last=True)

    @property
    def workspace(self) -> int:
        """What the blocks so far need."""
        return self._steps.workspace

    def scores(self, z: Array, rows: Block, classes: Block) -> list[Step]:
        if not self._whole(classes):
            return self._planned() + self._library.scores(z, rows, classes)
        maps, setting, x = self._maps(rows, classes[1])
        maps.forward(x, self._weight(setting, self._w, classes), _rows(z, rows[1], classes[1]))
        return self._planned()

    def gradients(self, g: Gradients, rows: Block, classes: Block, alpha: float) -> list[Step]:
        assert alpha == 1
        if not self._whole(classes):
            return self._library.gradients(g, rows, classes, alpha)
        maps, setting, x = self._maps(rows, classes[1])
        dz = _rows(g.dz, rows[1], classes[1])
        with self._steps.borrowed():
            if g.x != NOTHING:
                self._spread(maps, setting, dz, g.x, rows, classes)
            if g.w != NOTHING and rows[0] == 0:
                maps.wgrad(dz, x, self._weight(setting, g.w, classes))
            elif g.w != NOTHING:
                self._add(maps, setting, dz, x, g.w, classes)
        return self._planned() + self._library.of_bias(g, rows, classes, alpha)

    def _spread(self, maps: PartsMaps, setting: Setting, dz: Operand, dx: Array, rows: Block, classes: Block) -> None:
        """The term of dx."""
        features, (row, count) = self._layer.features, rows
        offset, (target, before) = row * features, self._sums(dx, classes[0])
        target, before = (
            advanced(target, offset, FLOAT32.itemsize),
            before and advanced(before, offset, FLOAT32.itemsize),
        )
        maps.dgrad(
            dz, self._weight(setting, self._w, classes), _rows(target, count, features), Epilogue(None, before, None)
        )

    def _add(self, maps: PartsMaps, setting: Setting, dz: Operand, x: Operand, dw: Array, classes: Block) -> None:
        """What later rows add to dw."""
        (first, count), features = classes, self._layer.features
        term = self._steps.take(FLOAT32, count * features).array
        maps.wgrad(dz, x, self._weight(setting, term, (0, count)))
        self._steps.add(accumulate(term, advanced(dw, first * features, FLOAT32.itemsize), count * features))

    @staticmethod
    def _whole(classes: Block) -> bool:
        return classes[1] % 4 == 0

    def _planned(self) -> list[Step]:
        """The launches since the last time."""
        found, self._steps.plans = self._steps.plans, []
        return found

    def _sums(self, dx: Array, first: int) -> tuple[Array, Array | None]:
        """Where a block's term of dx is added up, and what it is added to: two arrays by turns, since what is repaired
        reads the second. dx is the last."""
        pitch = self._layer.pitch
        last = (self._layer.classes // 4 * 4 - 1) // pitch
        target, before = (dx, self._spare) if (last - first // pitch) % 2 == 0 else (self._spare, dx)
        return target, before if first else None

    def _maps(self, rows: Block, classes: int) -> tuple[PartsMaps, Setting, Operand]:
        """The maps from these rows of x, which they know in parts already."""
        (first, count), features = rows, self._layer.features
        setting = Setting(as_conv(count, features, classes), True, self._layer.precision, self._units)
        setting.steps = self._steps
        maps, x = (
            PartsMaps(setting),
            _rows(advanced(self._x.array, first * features, FLOAT32.itemsize), count, features),
        )
        parts = (p.part(first * conv_parts.filled(features)) for p in self._x_parts.parts)
        maps.know(x, InParts(tuple(parts), self._x_parts.scale).lying(features, (1, 1, count)))
        return maps, setting, x

    def _weight(self, setting: Setting, w: Array, classes: Block) -> Operand:
        """These rows of w, or of its gradient."""
        (first, count), features = classes, self._layer.features
        return setting.weight(Spec((count, 1, features), FLOAT32), advanced(w, first * features, FLOAT32.itemsize))


def _rows(array: Array, rows: int, width: int) -> Operand:
    """A dense matrix as an image of five axes."""
    return Operand(array, FLOAT32, (rows * width, 1, rows * width, rows * width, width))


def products_of(
    problem: LinearProblem, layer: Layer, x: Array, w: Array, reserved: int, aligned: bool, units: int
) -> LibraryProducts | PartsProducts:
    """How the products are done; `reserved` bytes of the scratch memory are taken."""
    return (
        PartsProducts(problem, layer, x, w, reserved, units) if layer.dense else LibraryProducts(layer, x, w, aligned)
    )


def _maps_of(problem: LinearProblem) -> tuple[str, ...]:
    """The products as operations of a convolution."""
    of_x, of_w, _ = problem.summed
    scores = ("conv",) * (problem.products - of_x - of_w)
    return *("conv_backward_input",) * of_x, *("conv_backward_weight",) * of_w, *scores


def rejects(problem: LinearProblem, layer: Layer, device: Device) -> str | None:
    if layer.x.dtype != FLOAT32:
        return f"{layer.x.dtype.name} arrays; it takes float32"
    if 0 in (layer.rows, layer.features) or layer.classes < 4:
        return "no rows, no features or fewer than 4 classes"
    block = as_conv(layer.held_rows, layer.features, min(layer.pitch, layer.classes))
    return next(filter(None, (conv_parts.rejects(op, block, device) for op in _maps_of(problem))), None)


def cost(problem: LinearProblem, layer: Layer, device: Device) -> Cost:
    """As if one product had all classes, and the passes over the scores."""
    whole = as_conv(layer.rows, layer.features, layer.classes)
    found = [conv_parts.cost(op, whole, device, layer.precision) for op in _maps_of(problem)]
    unit = found[0].unit
    peak = device.peak.get(unit or "") or device.peak["float32"]
    seconds = sum(c.flops / (c.efficiency * peak) for c in found)
    blocks = len(list(layer.class_blocks())) * len(list(layer.row_blocks()))
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), _OF_BLOCK * blocks, unit)
