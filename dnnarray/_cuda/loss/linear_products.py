"""The matrix products of `linear_cross_entropy`: how its scores are divided into blocks, and the products of a block by
cuBLAS."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from dnnarray._cuda.common.convert import convert
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import Array, MatMul, Matrix, Step
from dnnarray._cuda.positional import NOTHING
from dnnarray._problems.loss_linear import LinearProblem
from dnnarray._records import frozen
from dnnarray._spec import HALF, Spec

Block = tuple[int, int]
"""The first row, or class, and how many."""

_ROWS = 8192  # of a block of scores, at most
_BYTES, _PARTS_BYTES = 264 << 20, 128 << 20  # of a block of scores, and of its gradients; for products by parts
_CLASSES = 128  # of a block, at the least: a tile of the matrix product; larger blocks are multiples of it
# classes; with rows, or features, in multiples of 512 the tiles of larger multiples fill 132 multiprocessors (H100,
# H200) to the last
_WAVE = 33 * 256
_VECTOR = 4  # classes that rows without gaps must be multiples of
_WHOLE = 1 << 29  # of a block of scores over all classes
# of the gradients of scores that are held, at the least: fewer rows make short sums of dw, which is read and written
# for each
_HELD = 1 << 30


@frozen
class Layer:
    """The linear layer as matrices, and how its scores are divided: blocks of rows and of classes, at most `pitch` of
    them.

    `split` says that gradients of scores in a half type come as two terms, `dense` that the rows of a block lie without
    gaps between them: a few classes at the end are a block of their own then. `held_rows` are those whose gradients of
    scores stand together; a forward with a tape holds them for all classes, and the scores of a block of rows too."""

    x: Spec
    rows: int
    classes: int
    features: int
    block_rows: int
    pitch: int
    precision: str
    split: bool
    dense: bool
    held_rows: int

    @classmethod
    def of(cls, problem: LinearProblem, precision: str, parts: bool = False, aligned: bool = True) -> Layer:
        """For products by parts, which want dense rows in aligned memory, or by cuBLAS; the latter do in the scratch
        memory of the former what is not aligned."""
        rows, x, every = math.prod(problem.rows), problem.x, -(-problem.classes // 16) * 16
        itemsize, gradients = arithmetic_of(x.dtype).itemsize, problem.gradient or problem.taped
        split = gradients and x.dtype in HALF and precision == "highest"
        held_bytes = x.dtype.itemsize * (1 + split)  # of the gradient of a score
        block_rows, held_rows = max(min(rows, _ROWS), 1), rows
        if problem.taped:
            block_rows = _rows_within(_WHOLE // (every * itemsize), rows)
            held_rows = _rows_within(max(problem.tape_spec.nbytes, _HELD) // (every * held_bytes), rows)
        limit, dense = _PARTS_BYTES if parts else _BYTES, parts and aligned
        width = limit // (block_rows * itemsize)
        if gradients:
            width = min(width, limit // (max(held_rows, 1) * held_bytes))
        unit = _WAVE if width >= _WAVE and not parts else _CLASSES
        pitch = every if problem.taped and not dense else min(max(width // unit, 1) * unit, every)
        return cls(x, rows, problem.classes, problem.features, block_rows, pitch, precision, split, dense, held_rows)

    @property
    def computed(self) -> np.dtype:
        return arithmetic_of(self.x.dtype)

    @property
    def score_bytes(self) -> int:
        return self.block_rows * self.pitch * self.computed.itemsize

    def row_blocks(self, within: Block | None = None) -> Iterator[Block]:
        """Blocks of these rows, of all if none are given."""
        first, count = within or (0, self.rows)
        return ((i, min(self.block_rows, first + count - i)) for i in range(first, first + count, self.block_rows))

    def held_blocks(self) -> Iterator[Block]:
        return ((i, min(self.held_rows, self.rows - i)) for i in range(0, self.rows, self.held_rows))

    def class_blocks(self) -> Iterator[Block]:
        whole = self.classes - self.classes % _VECTOR if self.dense else self.classes
        yield from ((i, min(self.pitch, whole - i)) for i in range(0, whole, self.pitch))
        if whole < self.classes:
            yield whole, self.classes - whole

    def across(self, count: int) -> int:
        """Scores from one row of a block to the next."""
        return count if self.dense and count % _VECTOR == 0 else -(-count // 16) * 16

    @property
    def width(self) -> int:
        """Places for all scores of a row, its blocks of classes one behind the other."""
        return sum(self.across(count) for _, count in self.class_blocks())


def _rows_within(limit: int, rows: int) -> int:
    """Rows of a block of at most about `limit` of them: all, or blocks of nearly the same size, multiples of a tile of
    the matrix product."""
    blocks = -(-rows // max(limit, _CLASSES))
    return rows if blocks == 1 else max(-(-rows // max(blocks, 1) // _CLASSES) * _CLASSES, 1)


@frozen
class Gradients:
    """What the products with a block of gradients of scores write to, of what is wanted, and what they read beside x
    and w.

    `spare_x` and `spare_w` stand for `x` and `w` where those cannot take sums of several products themselves; `ones`
    has as many rows as the scores' gradients. `taped`: `x`, `w` and `bias` are of the dtype of the arithmetic, and sums
    over blocks of rows are added up in them."""

    dz: Array
    ones: Any
    x: Any
    w: Any
    bias: Any
    spare_x: Any = NOTHING
    spare_w: Any = NOTHING
    taped: bool = False

    def reading(self, dz: Array) -> Gradients:
        """The same for gradients of scores that stand elsewhere."""
        return replace(self, dz=dz)


class Products(Protocol):
    """How the products of a block are done; `workspace` is the scratch memory of the whole program where it is more
    than the caller's."""

    @property
    def workspace(self) -> int | None: ...

    def scores(self, z: Array, rows: Block, classes: Block) -> list[Step]:
        """A block of scores without the bias."""
        ...

    def gradients(self, g: Gradients, rows: Block, classes: Block, alpha: float) -> list[Step]:
        """From the gradients of these rows' scores of a block of classes: its term of dx, and of its part of dw and of
        dbias, times `alpha`."""
        ...


class LibraryProducts:
    """By cuBLAS."""

    workspace = None  # nothing beside the blocks

    def __init__(self, layer: Layer, x: Array, w: Array, aligned: bool) -> None:
        self._layer, self._x, self._w, self._aligned = layer, x, w, aligned

    def scores(self, z: Array, rows: Block, classes: Block) -> list[Step]:
        layer = self._layer
        if layer.features == 0:  # sums over nothing
            return [zero(z, layer.score_bytes, aligned=True)]
        a, b = self._matrix(self._x, rows[0]), self._matrix(self._w, classes[0], transposed=True)
        return [
            self._product(
                a, b, Matrix(z, layer.across(classes[1])), rows[1], classes[1], layer.features, layer.computed
            )
        ]

    def gradients(self, g: Gradients, rows: Block, classes: Block, alpha: float) -> list[Step]:
        layer, plans = self._layer, []
        first, count = classes
        if layer.features:
            for term in range(1 + layer.split):
                plans += [self._of_x(g, term, rows, classes, alpha)] if g.x != NOTHING else []
                plans += [self._of_w(g, term, rows, classes, alpha)] if g.w != NOTHING else []
            if g.spare_w != NOTHING:
                target = advanced(g.w, first * layer.features, layer.x.dtype.itemsize)
                plans.append(convert(g.spare_w, target, layer.x.dtype, count * layer.features, self._aligned))
        return plans + self.of_bias(g, rows, classes, alpha)

    def of_bias(self, g: Gradients, rows: Block, classes: Block, alpha: float) -> list[Step]:
        """The sums over rows."""
        if g.bias == NOTHING:
            return []
        layer, (first, count) = self._layer, classes
        terms, result = (1 + layer.split) * rows[1], self._result(g)
        dz, out = Matrix(g.dz, layer.across(count)), Matrix(advanced(g.bias, first, result.itemsize), count)
        return [self._product(Matrix(g.ones, terms), dz, out, 1, count, terms, result, alpha, 1.0 if rows[0] else 0.0)]

    def _result(self, g: Gradients) -> np.dtype:
        return self._layer.computed if g.taped else self._layer.x.dtype

    def _of_x(self, g: Gradients, term: int, rows: Block, classes: Block, alpha: float) -> Step:
        layer, (first, count) = self._layer, classes
        target, result = (g.x, self._result(g)) if g.spare_x == NOTHING else (g.spare_x, layer.computed)
        a, b = self._term(g, term, rows[1], count), self._matrix(self._w, first)
        out = Matrix(advanced(target, rows[0] * layer.features, result.itemsize), layer.features)
        return self._product(a, b, out, rows[1], layer.features, count, result, alpha, 1.0 if first or term else 0.0)

    def _of_w(self, g: Gradients, term: int, rows: Block, classes: Block, alpha: float) -> Step:
        layer, (first, count), result = self._layer, classes, self._result(g)
        a, b = self._term(g, term, rows[1], count, transposed=True), self._matrix(self._x, rows[0])
        c = Matrix(advanced(g.w, first * layer.features, result.itemsize), layer.features)
        if g.spare_w != NOTHING:
            c, result = Matrix(g.spare_w, layer.features), layer.computed
        return self._product(a, b, c, count, layer.features, rows[1], result, alpha, 1.0 if rows[0] or term else 0.0)

    def _term(self, g: Gradients, term: int, rows: int, count: int, transposed: bool = False) -> Matrix:
        """A term of the gradients of the scores."""
        layer = self._layer
        across = layer.across(count)
        return Matrix(advanced(g.dz, term * rows * across, layer.x.dtype.itemsize), across, transposed=transposed)

    def _matrix(self, array: Array, first: int, transposed: bool = False) -> Matrix:
        """The rows of x, or of w, from `first` on."""
        layer, row = self._layer, max(self._layer.features, 1)
        return Matrix(
            Array(array.index, array.offset + first * row * layer.x.dtype.itemsize), row, transposed=transposed
        )

    def _product(
        self,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        m: int,
        n: int,
        k: int,
        result: np.dtype,
        alpha: float = 1,
        beta: float = 0,
    ) -> MatMul:
        layer = self._layer
        return MatMul(a, b, c, m, n, k, layer.x.dtype, result, alpha=alpha, beta=beta, precision=layer.precision)


def advanced(array: Any, elements: int, itemsize: int) -> Any:
    """The array from a later element on."""
    return array if array == NOTHING else Array(array.index, array.offset + elements * itemsize)
