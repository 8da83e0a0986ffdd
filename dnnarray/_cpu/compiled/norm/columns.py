"""Norms of channels that are innermost in memory (batch, group and instance norm), forward and backward.

A sample is a matrix (rows, channels), a statistic is one of some neighbouring channels: of all samples together for
batch norm, which is the case of one sample. Blocks of rows that stay in the cache find mean and squares for each
channel, the latter around the mean of the block, and the blocks' are merged in float64 (Chan, Golub and LeVeque, 1983):
data is read once for both, and may lie far from 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled import arithmetic
from dnnarray._cpu.compiled.columns import (
    moments_of_few,
    moments_of_many,
    moments_of_one,
    products_of_few,
    products_of_many,
    products_of_one,
    strip_of,
)
from dnnarray._cpu.compiled.dense import Plan, Written, planned, taken
from dnnarray._cpu.compiled.kernel import Doubles2, In1, In2, Out1, Out2, OutDoubles2, device, driver, kernel, wide
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.scalar import const, fma
from dnnarray._cpu.norm import forms as norm_forms
from dnnarray._cpu.norm.forms import Columns
from dnnarray._cpu.norm.sums import move
from dnnarray._problems.norm_base import NormProblem

_BLOCK_ELEMENTS = 1 << 15  # stay in the second-level cache
_LEAST_ROWS, _MOST_ROWS = 8, 64  # of a block: sums in the dtype are short
_WORK = 3  # passes

Array = np.ndarray


@device
def _span(block: Any, rows: Any, size: Any) -> Any:
    """(sample, first row, row after the last) of a block; those of a sample follow each other."""
    blocks = -(-rows // size)
    sample, part = block // blocks, block % blocks
    first = sample * rows + part * size
    return sample, first, min(first + size, (sample + 1) * rows)


# --- statistics -------------------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _moments(
    start: int,
    stop: int,
    x: int,
    mean: int,
    rest: int,
    square: int,
    rows: int,
    size: int,
    channels: int,
    item: int,
    strip: int,
    like: Out1,
) -> None:
    """Of the blocks from `start` to `stop`: a mean, and the sums of the differences from it and of their squares."""
    zero, step = like.dtype.type(0), channels * item
    for block in range(start, stop):
        _, first, last = _span(block, rows, size)
        count, at = last - first, block * step
        share, source = like.dtype.type(1.0 / count), x + first * step
        if strip > 1:
            moments_of_many(zero, source, step, count, channels, share, mean + at, rest + at, square + at)
        elif strip:
            moments_of_one(zero, source, step, count, channels, share, mean + at, rest + at, square + at)
        else:
            moments_of_few(zero, source, step, count, channels, share, mean + at, rest + at, square + at)


@device
def _merge(
    first: Any, last: Any, mean: Any, rest: Any, square: Any, rows: Any, size: Any, average: Any, left: Any, spread: Any
) -> Any:
    """The mean of each channel over the blocks, ``average + left``, and the sum of the squares around it."""
    average[:] = 0
    left[:] = 0
    spread[:] = 0
    for block in range(first, last):
        count = min(size, rows - (block - first) * size)
        m, d = mean[block], rest[block]
        for i in range(len(average)):
            average[i] += np.float64(m[i]) * count + d[i]
    for i in range(len(average)):
        average[i] /= rows
    for block in range(first, last):
        count = min(size, rows - (block - first) * size)
        m, d, s = mean[block], rest[block], square[block]
        for i in range(len(average)):
            off = np.float64(d[i]) / count
            apart = (np.float64(m[i]) - average[i]) + off
            left[i] += count * apart
            spread[i] += s[i] - d[i] * off + count * apart * apart
    for i in range(len(average)):
        left[i] /= rows


@kernel(counted=False)
def _statistics(
    start: int,
    stop: int,
    mean: In2,
    rest: In2,
    square: In2,
    weight: In1,
    bias: In1,
    average: OutDoubles2,
    left: OutDoubles2,
    spread: OutDoubles2,
    found: Out2,
    rstd: Out2,
    variance: Out2,
    centre: Out2,
    near: Out2,
    scale: Out2,
    shift: Out2,
    rows: int,
    size: int,
    groups: int,
    eps: float,
) -> None:
    """Of the samples from `start` to `stop`, for each channel: mean, rstd and variance of its group, and what makes y
    of x. Without blocks, `average`, `left` and `spread` are those of the channels already. A mean is a sum of two
    numbers, of which the second is what rounding took from the first."""
    channels, blocks = average.shape[1], -(-rows // size)
    per = channels // groups
    for n in range(start, stop):
        of_channel, more, squares = average[n], left[n], spread[n]
        if len(mean):
            _merge(n * blocks, (n + 1) * blocks, mean, rest, square, rows, size, of_channel, more, squares)
        for group in range(groups):
            first, total, off, v = group * per, 0.0, 0.0, 0.0
            for c in range(first, first + per):
                total += of_channel[c]
            total /= per
            for c in range(first, first + per):
                apart = (of_channel[c] - total) + more[c]
                off += apart
                v += squares[c] + rows * (
                    apart * apart - more[c] * more[c]
                )  # squares are around the first number of the channel's mean
            off /= per
            v = v / (rows * per) - off * off
            v = 0.0 if v < 0.0 else v
            s, m = 1.0 / math.sqrt(v + eps), weight.dtype.type(total + off)
            # What is taken from x before anything else: the mean of data far from 0, which is exact there; near 0
            # nothing, since the difference would round.
            far = total * total > v
            for c in range(first, first + per):
                found[n, c], rstd[n, c], variance[n, c] = m, s, v
                centre[n, c], near[n, c], scale[n, c] = const(m, 0.0), const(m, 0.0), s * weight[c]
                shift[n, c] = bias[c] - total * np.float64(scale[n, c])
                if far:
                    centre[n, c], near[n, c], shift[n, c] = m, (total - np.float64(m)) + off, bias[c]


@kernel(counted=False, streams=True)
def _affine(start: int, stop: int, x: In2, centre: In2, near: In2, scale: In2, shift: In2, y: Out2, rows: int) -> None:
    """y = (x - centre - near) scale + shift, in the rows from `start` to `stop` of all samples."""
    wide()
    for r in range(start, stop):
        row, out, n = x[r], y[r], r // rows
        c, d, k, b = centre[n], near[n], scale[n], shift[n]
        for i in range(len(out)):
            out[i] = fma((row[i] - c[i]) - d[i], k[i], b[i])


# --- gradients --------------------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _products(
    start: int,
    stop: int,
    g: int,
    x: int,
    mean: int,
    rstd: int,
    plain: int,
    along: int,
    rows: int,
    size: int,
    channels: int,
    item: int,
    strip: int,
    like: Out1,
) -> None:
    """The sums of g and of g (x - mean) rstd of the blocks from `start` to `stop`."""
    zero, step = like.dtype.type(0), channels * item
    for block in range(start, stop):
        n, first, last = _span(block, rows, size)
        at, place, of = first * step, block * step, n * step
        if strip > 1:
            products_of_many(
                zero, g + at, x + at, step, last - first, channels, mean + of, rstd + of, plain + place, along + place
            )
        elif strip:
            products_of_one(
                zero, g + at, x + at, step, last - first, channels, mean + of, rstd + of, plain + place, along + place
            )
        else:
            products_of_few(
                zero, g + at, x + at, step, last - first, channels, mean + of, rstd + of, plain + place, along + place
            )


@kernel(counted=False)
def _slopes(
    start: int,
    stop: int,
    plain: In2,
    along: In2,
    weight: In1,
    rstd: In2,
    total: OutDoubles2,
    product: OutDoubles2,
    scale: Out2,
    average: Out2,
    slope: Out2,
    rows: int,
    size: int,
    groups: int,
) -> None:
    """Of the samples from `start` to `stop`, for each channel: both sums, and what makes dx of g and x."""
    channels, blocks = total.shape[1], -(-rows // size)
    per = channels // groups
    for n in range(start, stop):
        sums, products = total[n], product[n]
        sums[:] = 0
        products[:] = 0
        for block in range(n * blocks, (n + 1) * blocks):
            p, a = plain[block], along[block]
            for i in range(channels):
                sums[i] += p[i]
                products[i] += a[i]
        for first in range(0, channels, per):
            of_one, of_u = 0.0, 0.0
            for c in range(first, first + per):
                of_one += sums[c] * weight[c]
                of_u += products[c] * weight[c]
            s = np.float64(rstd[n, first])
            for c in range(first, first + per):
                scale[n, c], average[n, c] = s * weight[c], of_one * s / (rows * per)
                slope[n, c] = of_u * s / (rows * per)


@kernel(counted=False, streams=True)
def _gradient(
    start: int,
    stop: int,
    g: In2,
    x: In2,
    mean: In2,
    rstd: In2,
    scale: In2,
    average: In2,
    slope: In2,
    dx: Out2,
    rows: int,
) -> None:
    """dx = g scale - average - (x - mean) rstd slope, in the rows from `start` to `stop` of all samples."""
    wide()
    for r in range(start, stop):
        grad, row, out, n = g[r], x[r], dx[r], r // rows
        m, s, k, a, b = mean[n], rstd[n], scale[n], average[n], slope[n]
        for i in range(len(out)):
            out[i] = fma((m[i] - row[i]) * s[i], b[i], fma(grad[i], k[i], -a[i]))


@kernel(counted=False)
def _parameter(start: int, stop: int, sums: Doubles2, out: Out1) -> None:
    """The sums of all samples, for the channels from `start` to `stop`."""
    for c in range(start, stop):
        total = 0.0
        for n in range(len(sums)):
            total += sums[n, c]
        out[c] = total


# --- drivers ----------------------------------------------------------------------------------------------------------


class _Call:
    """What all kernels of a call take."""

    def __init__(self, problem: NormProblem) -> None:
        form = norm_forms.columns(problem)
        assert form is not None  # `accepts` has looked
        self.form: Columns = form
        self.dtype, self.eps = arithmetic(problem), problem.eps
        self.shape = form.samples * form.rows, form.channels
        self.size = min(max(_BLOCK_ELEMENTS // form.channels, _LEAST_ROWS), _MOST_ROWS, form.rows)
        self.blocks = form.samples * -(-form.rows // self.size)
        item = np.dtype(self.dtype).itemsize
        self.numbers = form.rows, self.size, form.channels, item, strip_of(form.channels, item)
        self.ones, self.zeros = np.ones(form.channels, self.dtype), np.zeros(form.channels, self.dtype)
        self.work = form.samples * form.rows * form.channels

    def statistics(self, x: Array, weight: Array | None, bias: Array | None) -> tuple[Array, ...]:
        """(mean, rstd, variance, centre, near, scale, shift), each (samples, channels); x as rows of all samples."""
        form = self.form
        sums = np.empty((3, self.blocks, form.channels), self.dtype)
        doubles = np.empty((3, form.samples, form.channels))
        found = np.empty((7, form.samples, form.channels), self.dtype)
        _moments(self.blocks, address(x), *map(address, sums), *self.numbers, self.ones, work=_WORK * self.work)
        parameters = (
            self.ones if weight is None else weight.reshape(-1),
            self.zeros if bias is None else bias.reshape(-1),
        )
        rest = (*parameters, *doubles, *found, form.rows, self.size, form.groups, self.eps)
        _statistics(form.samples, *sums, *rest, work=self.blocks * form.channels)
        if not np.isfinite(doubles).all():  # squares of numbers above 1e19 leave the range of float32
            self._in_float64(x.reshape(form.samples, form.rows, form.channels), *doubles)
            _statistics(form.samples, *sums[:, :0], *rest, work=self.blocks * form.channels)
        return tuple(found)

    @np.errstate(all="ignore")
    def _in_float64(self, x: Array, average: Array, left: Array, spread: Array) -> None:
        """The mean of each channel of each sample, and the sum of the squares of the differences from it."""
        rows = range(0, self.form.rows, self.size)
        average[...] = sum(x[:, r : r + self.size].sum(axis=1, dtype=np.float64) for r in rows) / self.form.rows
        left[...] = sum((x[:, r : r + self.size] - average[:, None]).sum(axis=1) for r in rows) / self.form.rows
        spread[...] = sum(((x[:, r : r + self.size] - average[:, None]) ** 2).sum(axis=1) for r in rows)

    def forward(self, x: Array, weight: Array | None, bias: Array | None, y: Array) -> tuple[Array, ...]:
        """y of x, both of the shape of the problem; gives the statistics."""
        rows = x.reshape(self.shape)
        found = self.statistics(rows, weight, bias)
        _affine(self.shape[0], rows, *found[3:], y.reshape(self.shape), self.form.rows, work=self.work)
        return found

    def backward(
        self, grad: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, dx: Any, dweight: Any, dbias: Any
    ) -> None:
        """The gradients, from statistics (samples, channels); None for what is left out."""
        form, shape = self.form, self.shape
        sums, doubles = (
            np.empty((2, self.blocks, form.channels), self.dtype),
            np.empty((2, form.samples, form.channels)),
        )
        found = np.empty((3, form.samples, form.channels), self.dtype)
        g, rows = grad.reshape(shape), x.reshape(shape)
        _products(
            self.blocks, *map(address, (g, rows, mean, rstd, *sums)), *self.numbers, self.ones, work=_WORK * self.work
        )
        parameter = self.ones if weight is None else weight.reshape(-1)
        _slopes(
            form.samples,
            *sums,
            parameter,
            rstd,
            *doubles,
            *found,
            form.rows,
            self.size,
            form.groups,
            work=self.blocks * form.channels,
        )
        if dx is not None:
            _gradient(shape[0], g, rows, mean, rstd, *found, dx.reshape(shape), form.rows, work=2 * self.work)
        for out, totals in ((dbias, doubles[0]), (dweight, doubles[1])):
            if out is not None:
                _parameter(form.channels, totals, out.reshape(-1))


@planned(_moments, _statistics, _affine)
def group_norm(problem: NormProblem) -> Plan:
    call = _Call(problem)
    first = slice(None, None, call.form.channels // call.form.groups)  # channel of each group

    def run(
        x: Array, weight: Array | None, bias: Array | None, y: Array, mean: Array | None, rstd: Array | None
    ) -> None:
        for statistic, found in zip((mean, rstd), call.forward(x, weight, bias, y), strict=False):
            if statistic is not None:
                statistic[...] = found[:, first]

    return run, call.form.order


@planned(_moments, _statistics, _products, _slopes, _gradient, _parameter)
def group_norm_backward(problem: NormProblem) -> Plan:
    call = _Call(problem)
    members = call.form.channels // call.form.groups

    def run(
        grad: Array, x: Array, weight: Any, bias: Any, mean: Any, rstd: Any, dx: Array, dweight: Any, dbias: Any
    ) -> None:
        if mean is None or rstd is None:
            found = call.statistics(x.reshape(call.shape), weight, None)
        else:
            found = mean.repeat(members, axis=1), rstd.repeat(members, axis=1)
        call.backward(grad, x, weight, found[0], found[1], dx, dweight, dbias)

    return run, call.form.order


@driver(_moments, _statistics, _affine)
def batch_norm_train(
    problem: NormProblem,
    outputs: Any,
    scratch: Any,
    x: Array,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
) -> None:
    call, (y, mean, rstd, next_mean, next_var) = _Call(problem), outputs
    with Written((y,), call.form.order) as (y_,):
        weight, bias = (None if a is None else taken(a) for a in (weight, bias))
        found = call.forward(taken(x, None, call.form.order), weight, bias, y_)
    mean[...], rstd[...] = found[0][0], found[1][0]
    move(next_mean, running_mean, found[0][0], problem.momentum, 1.0)
    move(
        next_var,
        running_var,
        found[2][0],
        problem.momentum,
        problem.geometry.count / max(problem.geometry.count - 1, 1),
    )


@planned(_products, _slopes, _gradient, _parameter)
def batch_norm_train_backward(problem: NormProblem) -> Plan:
    call = _Call(problem)

    def run(grad: Array, x: Array, weight: Any, *others: Any) -> None:
        mean, rstd, dx, dweight, dbias = others[-5:]
        call.backward(grad, x, weight, mean.reshape(1, -1), rstd.reshape(1, -1), dx, dweight, dbias)

    return run, call.form.order
