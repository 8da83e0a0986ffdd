"""Norms of data near 0 in few passes over memory: both sums first, then one scale and one shift for each row.

The variance is the mean square less the squared mean, which loses digits where the mean is far from 0 against the
spread: then the functions here say False, whatever they have written, and the way that subtracts the mean first takes
over. They also say False to arrays that are not rows in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.blocks import borrow, give, long_rows
from dnnarray._cpu.norm import forms as norm_forms
from dnnarray._cpu.products import weighted_rows
from dnnarray._cpu.sums import total
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen

_BLOCK = 1 << 19  # elements at a time, on any number of threads: sums over blocks are then always the same
_CALLS = 6  # of NumPy over a block
_SMALL = 4096  # elements; fewer gain nothing
_SHORT_ROW = 128  # elements; shorter rows gain nothing here
_LARGE = 1 << 20  # elements behind one statistic; with more, scratch memory would grow without bound
_LONG_ROW = 1 << 16  # elements; sums of longer ones round more than sums of their parts
_WIDE = 1e24  # a variance whose inverse, times itself and a mean, may leave the range of float32
_NEAR = 1.0  # the largest squared mean, in units of the variance, that costs no more than a bit of it

Block = tuple[slice, slice]


@frozen
class _Form:
    """x as (first, second, row): a statistic is over the rows along `axis`, a parameter for each (first % period,
    second).

    Where `along` holds, a parameter is for each place in a row instead, and there is one row a statistic.
    """

    shape: tuple[int, int, int]
    axis: int
    period: int
    along: bool

    def blocks(self) -> Iterator[Block]:
        """Blocks of whole statistics."""
        first, second, row = self.shape
        if self.axis == 0:
            step = max(self._limit() // max(first * row, 1), 1)
            yield from ((slice(None), slice(i, i + step)) for i in range(0, second, step))
        else:
            step = max(self._limit() // max(second * row, 1), 1)
            yield from ((slice(i, i + step), slice(None)) for i in range(0, first, step))

    def _limit(self) -> int:
        """Elements of a block, such that an even number of blocks takes all; one where there is little."""
        size = math.prod(self.shape)
        return size if size <= _BLOCK // 2 else -(-size // (2 * -(-size // (2 * _BLOCK))))

    def each(self, function: Callable[[Block], Any]) -> list[Any] | None:
        """``function(block)`` of all blocks in their order, spread over threads; None, and no further blocks, once
        there is nothing for one."""
        found: dict[int, Any] = {}
        failed: list[int] = []

        def run(i: int, block: Block) -> None:
            if failed:
                return
            with long_rows(self.shape[2]):
                found[i] = function(block)
            if not found[i]:
                failed.append(i)

        threads.each(run, enumerate(self.blocks()), work=_CALLS * math.prod(self.shape))
        return None if failed else [found[i] for i in sorted(found)]

    def parameter(self, array: Any, block: Block) -> Any:
        """The part of a parameter for a block of (first, second), which it broadcasts to; None stays None."""
        if array is None:
            return None
        first, second, _ = self.shape
        table = array.reshape(self.period, second)[:, block[1]]
        if self.axis == 0:
            return table
        return table[np.arange(*block[0].indices(first)) % self.period]

    def statistic(self, array: Any, block: Block) -> Any:
        """The part of an array of statistics for a block, as a view with the axes (first, second)."""
        if array is None:
            return None
        return array.reshape(1, -1)[:, block[1]] if self.axis == 0 else array.reshape(-1, 1)[block[0]]

    def total(self, terms: np.ndarray) -> np.ndarray:
        """The sum behind each statistic of terms of (first, second)."""
        return terms if terms.shape[self.axis] == 1 else total(terms, (self.axis,))

    def add(self, sums: np.ndarray, block: Block, terms: np.ndarray) -> None:
        """Add terms of (first, second), or of a row, to the gradient of a parameter, in float64."""
        if self.along:
            np.add(sums, terms.reshape(sums.shape), out=sums)
            return
        first, second, _ = self.shape
        table = sums.reshape(self.period, second)
        if self.axis == 0:
            table[:, block[1]] += total(terms, (0,))
        else:
            np.add.at(table, np.arange(*block[0].indices(first)) % self.period, terms.astype(np.float64, copy=False))


@lru_cache(maxsize=1024)
def _form(problem: NormProblem) -> _Form | None:
    """The form of a problem, None where it has another."""
    if problem.activation is not None:
        return None
    rows, planes = norm_forms.rows(problem), norm_forms.planes(problem)
    if rows is not None and rows.inner > 1:
        form = _Form((rows.rows, rows.length // rows.inner, rows.inner), 1, rows.period, along=False)
    elif rows is not None and rows.period == 1:
        form = _Form((rows.rows, 1, rows.length), 1, 1, along=True)
    elif planes is not None and planes.order == tuple(range(len(planes.order))):
        form = _Form((planes.outer, planes.channels, planes.inner), 0, 1, along=False)
    else:
        return None
    return (
        form if _SHORT_ROW <= form.shape[2] <= _LONG_ROW and form.shape[2] * form.shape[form.axis] <= _LARGE else None
    )


def _dense(*arrays: Any) -> bool:
    return all(a is None or a.flags.c_contiguous for a in arrays)


def _moments(problem: NormProblem, form: _Form, x: np.ndarray, ones: np.ndarray) -> tuple[Any, np.ndarray]:
    """The mean, None where the norm is not centred, and the variance of a block, in float64: few numbers, of which
    every rounding would reach many."""
    count = problem.geometry.count
    squares = form.total(np.vecdot(x, x).astype(np.float64)) / count
    if not problem.centred:
        return None, squares
    mean = form.total(np.vecdot(x, ones).astype(np.float64)) / count
    return mean, squares - mean * mean


def _near(mean: Any, variance: np.ndarray, least: float = 0.0) -> bool:
    """Whether nothing is lost, neither digits nor, in powers of the spread, numbers beyond the range of float32; not
    for NaN."""
    near = (variance >= least) & (variance <= _WIDE)
    return bool((near if mean is None else near & (mean * mean <= _NEAR * variance)).all())


def forward(
    problem: NormProblem,
    x: np.ndarray,
    y: np.ndarray,
    weight: Any,
    bias: Any,
    mean: Any = None,
    rstd: Any = None,
    variance: Any = None,
) -> bool:
    """y = norm(x) * weight + bias, and the statistics into those arrays that are given."""
    form = _form(problem) if x.size >= _SMALL else None
    if form is None or not _dense(x, y, mean, rstd, variance):
        return False
    x, y, ones = x.reshape(form.shape), y.reshape(form.shape), np.ones(form.shape[2], x.dtype)

    def write(block: Block) -> bool:
        part = x[block]
        found, spread = _moments(problem, form, part, ones)
        if not _near(found, spread):
            return False
        scale = 1 / np.sqrt(spread + problem.eps)
        if mean is not None:
            found = _refined(form, part, y[block], found, problem.geometry.count, ones)
        for array, values in ((mean, found), (rstd, scale), (variance, spread)):
            if array is not None:
                form.statistic(array, block)[...] = values
        _write(form, block, part, y[block], found, scale, weight, bias)
        return True

    return form.each(write) is not None


def _refined(
    form: _Form, x: np.ndarray, scratch: np.ndarray, mean: np.ndarray, count: int, ones: np.ndarray
) -> np.ndarray:
    """The mean by the differences from it, since the sum of the values themselves has rounded."""
    near = _column(mean, x)
    apart = np.vecdot(np.subtract(x, near, out=scratch), ones)
    return near[..., 0] + form.total(apart.astype(np.float64)) / count


def _write(
    form: _Form, block: Block, x: np.ndarray, y: np.ndarray, mean: Any, scale: np.ndarray, weight: Any, bias: Any
) -> None:
    if form.along:
        np.multiply(x, _column(scale, x), out=y)
        if mean is not None:
            y -= _column(mean * scale, x)
        if weight is not None:
            y *= weight.reshape(-1)
        if bias is not None:
            y += bias.reshape(-1)
        return
    weight, bias = form.parameter(weight, block), form.parameter(bias, block)
    scale = scale if weight is None else scale * weight
    shift = bias if mean is None else -mean * scale if bias is None else bias - mean * scale
    np.multiply(x, _column(scale, x), out=y)
    if shift is not None:
        y += _column(shift, x)


def _column(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Statistics in the dtype of x and with an axis for its rows."""
    return values.astype(x.dtype, copy=False)[..., None]


def backward(
    problem: NormProblem,
    grad: np.ndarray,
    x: np.ndarray,
    weight: Any,
    mean: Any,
    rstd: Any,
    gx: np.ndarray | None,
    gw: Any,
    gb: Any,
) -> bool:
    """The gradients of x, which must be asked for, weight and bias; `mean` and `rstd` are found again where they are
    not given."""
    form = _form(problem) if x.size >= _SMALL else None
    if form is None or gx is None or not _dense(grad, x, gx, gw, gb):
        return False
    grad, x, gx, ones = (
        grad.reshape(form.shape),
        x.reshape(form.shape),
        gx.reshape(form.shape),
        np.ones(form.shape[2], x.dtype),
    )
    gradient = _Gradient(problem, form, weight, gw is not None, gb is not None, ones)

    def write(block: Block) -> tuple[Block, Any, Any] | None:
        part = x[block]
        found, scale = form.statistic(mean, block), form.statistic(rstd, block)
        if scale is None or (found is None and problem.centred):
            found, spread = _moments(problem, form, part, ones)
            scale = 1 / np.sqrt(spread + problem.eps)
        found, scale = (
            None if found is None else found.astype(np.float64, copy=False),
            scale.astype(np.float64, copy=False),
        )
        if not _near(found, 1 / (scale * scale), 1 / _WIDE):
            return None
        scratch = borrow(part)
        terms = gradient.write(block, _Part(grad[block], part, found, scale, gx[block], scratch))
        give(scratch)
        return block, *terms

    written = form.each(write)
    if written is None:
        return False
    for n, result in enumerate((gw, gb)):
        if result is not None:
            sums = np.zeros(result.shape)
            for block, *terms in written:  # in their order, whatever thread they come from
                form.add(sums, block, terms[n])
            result[...] = sums
    return True


class _Part(NamedTuple):
    """The arrays of a block on the way back; `scale` is rstd, `scratch` of the shape of x."""

    grad: np.ndarray
    x: np.ndarray
    mean: Any
    scale: np.ndarray
    gx: np.ndarray
    scratch: np.ndarray


class _Gradient(NamedTuple):
    """With h = grad * weight, and a and p the averages of h and of h * (x - mean) * rstd,

    gx = rstd * h - (rstd * rstd * p) * x + (rstd * rstd * p * mean - rstd * a)
    """

    problem: NormProblem
    form: _Form
    weight: Any
    of_weight: bool
    of_bias: bool
    ones: np.ndarray

    def write(self, block: Block, part: _Part) -> tuple[Any, Any]:
        """gx of a block; gives its terms of the gradients of weight and bias, None for what is not wanted."""
        return self._along(part) if self.form.along else self._folded(block, part)

    def _averages(self, part: _Part, plain: np.ndarray, along_x: np.ndarray) -> tuple[np.ndarray, Any]:
        """(factor of x, constant) of gx, from the sums of h and of h * x in each row."""
        mean, scale, count = part.mean, part.scale, self.problem.geometry.count
        sum_x = self.form.total(along_x)
        if mean is None:
            return scale**3 * sum_x / count, None
        plain_sum = self.form.total(plain)
        factor = scale**3 * (sum_x - mean * plain_sum) / count
        return factor, factor * mean - scale * plain_sum / count

    def _folded(self, block: Block, part: _Part) -> tuple[Any, Any]:
        weight = self.form.parameter(self.weight, block)
        plain, along_x = np.vecdot(part.grad, self.ones), np.vecdot(part.grad, part.x)
        of_weight = (
            (along_x if part.mean is None else along_x - part.mean * plain) * part.scale if self.of_weight else None
        )
        weighted = (plain, along_x) if weight is None else (plain * weight, along_x * weight)
        factor, constant = self._averages(part, *weighted)
        np.multiply(part.grad, _column(part.scale if weight is None else part.scale * weight, part.x), out=part.gx)
        np.subtract(part.gx, np.multiply(part.x, _column(factor, part.x), out=part.scratch), out=part.gx)
        if constant is not None:
            np.add(part.gx, _column(constant, part.x), out=part.gx)
        return of_weight, plain

    def _along(self, part: _Part) -> tuple[Any, Any]:
        terms = self._terms_along(part)
        h = part.grad if self.weight is None else np.multiply(part.grad, self.weight.reshape(-1), out=part.scratch)
        factor, constant = self._averages(part, np.vecdot(h, self.ones), np.vecdot(h, part.x))
        np.multiply(h, _column(part.scale, part.x), out=part.scratch)
        np.multiply(part.x, _column(factor, part.x), out=part.gx)
        np.subtract(part.scratch, part.gx, out=part.gx)
        if constant is not None:
            np.add(part.gx, _column(constant, part.x), out=part.gx)
        return terms

    def _terms_along(self, part: _Part) -> tuple[Any, Any]:
        """The terms for each place in a row: sums over the rows, as products of a vector and a matrix."""
        grad, scale = part.grad[:, 0], part.scale[:, 0].astype(part.grad.dtype, copy=False)
        of_weight = None
        if self.of_weight:
            of_weight = weighted_rows(scale, np.multiply(part.grad, part.x, out=part.scratch)[:, 0])
            if part.mean is not None:
                of_weight -= weighted_rows((part.mean[:, 0] * scale).astype(grad.dtype, copy=False), grad)
        return of_weight, weighted_rows(np.ones(len(grad), grad.dtype), grad) if self.of_bias else None
