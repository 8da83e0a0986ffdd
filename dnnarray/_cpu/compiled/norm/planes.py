"""Norms by rows and by planes of channels, forward and backward.

Each statistic is found in two passes over data that is still in the cache: the mean, then the squares of the
differences from it. The mean is kept as two numbers, the rounded one and what is left, since x may lie far from 0. With
u = (x - mean) rstd and h = g weight the gradient of x is rstd (h - average(h) - u average(h u)); for RMS norm without
average(h)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu.compiled import arithmetic
from dnnarray._cpu.compiled.dense import Plan, Written, planned, taken
from dnnarray._cpu.compiled.kernel import (
    Doubles2,
    In1,
    In2,
    In3,
    Out1,
    Out2,
    Out3,
    OutDoubles2,
    device,
    driver,
    kernel,
    wide,
)
from dnnarray._cpu.compiled.memory import row_after
from dnnarray._cpu.compiled.scalar import const, fma
from dnnarray._cpu.compiled.sums import row_moments, row_products, row_sum, weighted_products
from dnnarray._cpu.norm import forms as norm_forms
from dnnarray._cpu.norm.sums import move
from dnnarray._problems.norm_base import NormProblem

_BLOCKS = (
    16  # of rows, each with its own sums for the parameters: always as many, so that no result depends on the threads
)
# rows whose share of the parameters' gradients is added up by itself: sums of sums are more exact than one long one
_RUN = 16
_WORK = 3  # passes

Array = np.ndarray

# --- pieces of a row --------------------------------------------------------------------------------------------------


@device
def _statistics(x: Any, eps: Any, centred: Any, ahead: Any) -> Any:
    """(mean, rest, variance, rstd) of a row: the mean is mean + rest. `ahead` is where the next row lies."""
    count = len(x)
    mean = x.dtype.type(row_sum(x) / count if centred else 0.0)
    apart, squares = row_moments(x, mean, ahead)
    rest = apart / count if centred else 0.0
    variance = squares / count - rest * rest
    variance = 0.0 if variance < 0.0 else variance
    return mean, x.dtype.type(rest), variance, x.dtype.type(1.0 / math.sqrt(variance + eps))


@device
def _centre(mean: Any, rest: Any, variance: Any) -> Any:
    """What is taken from x before anything else, in two parts, and what is left of the mean: all of it of data far from
    0, where that is exact (of equal values the result is 0); near 0 nothing, since the difference would round."""
    if np.float64(mean) * np.float64(mean) > variance:
        return mean, const(mean, rest), 0.0
    return const(mean, 0.0), const(mean, 0.0), np.float64(mean) + rest


@device
def _affine(x: Any, centre: Any, rest: Any, scale: Any, shift: Any, y: Any) -> Any:
    """y = (x - centre - rest) scale + shift."""
    for i in range(len(y)):
        y[i] = fma((x[i] - centre) - rest, scale, shift)


@device
def _affine_each(x: Any, centre: Any, rest: Any, rstd: Any, shift: Any, weight: Any, bias: Any, y: Any) -> Any:
    """`_affine`, and then a weight and a bias for each element."""
    for i in range(len(y)):
        y[i] = fma(fma((x[i] - centre) - rest, rstd, shift), weight[i], bias[i])


@device
def _gradient(g: Any, x: Any, mean: Any, rstd: Any, scale: Any, average: Any, projection: Any, dx: Any) -> Any:
    """dx = g scale - average - u projection; rstd is in `average` and `projection` already."""
    for i in range(len(dx)):
        dx[i] = g[i] * scale - average - (x[i] - mean) * rstd * projection


@device
def _gradient_each(g: Any, weight: Any, x: Any, mean: Any, rstd: Any, average: Any, projection: Any, dx: Any) -> Any:
    """`_gradient` with a weight for each element."""
    for i in range(len(dx)):
        dx[i] = g[i] * weight[i] * rstd - average - (x[i] - mean) * rstd * projection


@device
def _add_parameters(g: Any, x: Any, mean: Any, rstd: Any, dweight: Any, dbias: Any) -> Any:
    for i in range(len(x)):
        dweight[i] += g[i] * ((x[i] - mean) * rstd)
        dbias[i] += g[i]


@device
def _settle(run: Any, total: Any) -> Any:
    """The sum of a run of rows goes to that of all, which is float64."""
    for i in range(len(run)):
        total[i] += run[i]
        run[i] = 0


# --- by rows ----------------------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _rows(
    start: int,
    stop: int,
    x: In2,
    weight: In1,
    bias: In1,
    y: Out2,
    mean: Out1,
    rstd: Out1,
    period: int,
    inner: int,
    eps: float,
    centred: bool,
) -> None:
    wide()
    pieces = x.shape[1] // inner
    for r in range(start, stop):
        row, out = x[r], y[r]
        m, rest, v, s = _statistics(row, eps, centred, row_after(x, r, stop))
        if mean.size:
            mean[r] = m + rest
        if rstd.size:
            rstd[r] = s
        base = (r % period) * pieces
        centre, near, offset = _centre(m, rest, v)
        if inner == 1:
            _affine_each(
                row,
                centre,
                near,
                s,
                x.dtype.type(-offset * s),
                weight[base : base + pieces],
                bias[base : base + pieces],
                out,
            )
        else:
            for k in range(pieces):
                scale = s * weight[base + k]
                a = k * inner
                _affine(
                    row[a : a + inner],
                    centre,
                    near,
                    scale,
                    x.dtype.type(bias[base + k] - offset * scale),
                    out[a : a + inner],
                )


@kernel(counted=False, streams=True)
def _rows_backward(
    start: int,
    stop: int,
    g: In2,
    x: In2,
    weight: In1,
    mean: In1,
    rstd: In1,
    dx: Out2,
    dweight: OutDoubles2,
    dbias: OutDoubles2,
    weight_run: Out2,
    bias_run: Out2,
    period: int,
    inner: int,
    eps: float,
    centred: bool,
) -> None:
    wide()
    rows, length = x.shape
    pieces = length // inner
    zero, sums = x.dtype.type(0), weight_run.shape[1] > 0  # none where neither parameter has a gradient
    for block in range(start, stop):
        first, last = rows * block // len(dweight), rows * (block + 1) // len(dweight)
        dweight[block, :], dbias[block, :], weight_run[block, :], bias_run[block, :] = 0.0, 0.0, zero, zero
        of_weight, of_bias = weight_run[block], bias_run[block]
        for r in range(first, last):
            row, grad = x[r], g[r]
            m, s = zero, zero
            if (mean.size == 0 and centred) or rstd.size == 0:
                m, rest, _, s = _statistics(row, eps, centred, row_after(x, r, last))
                m = m + rest
            if mean.size:
                m = mean[r]
            if rstd.size:
                s = rstd[r]
            base = (r % period) * pieces
            total, along = 0.0, 0.0
            if inner == 1:
                w = weight[base : base + pieces]
                if dx.size:
                    total, along = weighted_products(grad, w, row, m, s)
                if sums:
                    _add_parameters(grad, row, m, s, of_weight[base : base + pieces], of_bias[base : base + pieces])
            else:
                for k in range(pieces):
                    a = k * inner
                    plain, product = row_products(grad[a : a + inner], row[a : a + inner], m, s)
                    if sums:
                        of_weight[base + k] += x.dtype.type(product)
                        of_bias[base + k] += x.dtype.type(plain)
                    total += plain * weight[base + k]
                    along += product * weight[base + k]
            average = x.dtype.type(total * s / length if centred else 0.0)
            projection = x.dtype.type(along * s / length)
            if dx.size and inner == 1:
                _gradient_each(grad, weight[base : base + pieces], row, m, s, average, projection, dx[r])
            elif dx.size:
                out = dx[r]
                for k in range(pieces):
                    a = k * inner
                    _gradient(
                        grad[a : a + inner],
                        row[a : a + inner],
                        m,
                        s,
                        s * weight[base + k],
                        average,
                        projection,
                        out[a : a + inner],
                    )
            if sums and ((r + 1 - first) % _RUN == 0 or r + 1 == last):
                _settle(of_weight, dweight[block])
                _settle(of_bias, dbias[block])


def _or(array: Array | None, size: int, dtype: Any, value: float) -> Array:
    """A parameter, flat; this value where it is left out."""
    return np.full(size, value, dtype) if array is None else taken(array, (-1,))


def _by_rows(problem: NormProblem) -> Callable[..., None]:
    """``run(x, weight, bias, y, mean, rstd)`` on contiguous arrays, None for what is left out."""
    form, dtype = norm_forms.rows(problem), arithmetic(problem)
    assert form is not None  # `accepts` has looked
    shape, work, nothing = (form.rows, form.length), _WORK * form.rows * form.length, np.empty(0, dtype)
    ones, zeros = _or(None, form.parameters, dtype, 1), _or(None, form.parameters, dtype, 0)
    rest = (form.period, form.inner, problem.eps, problem.centred)

    def run(
        x: Array,
        weight: Array | None,
        bias: Array | None,
        y: Array,
        mean: Array | None = None,
        rstd: Array | None = None,
    ) -> None:
        found = (nothing if mean is None else mean.reshape(-1), nothing if rstd is None else rstd.reshape(-1))
        parameters = (ones if weight is None else weight.reshape(-1), zeros if bias is None else bias.reshape(-1))
        _rows(form.rows, x.reshape(shape), *parameters, y.reshape(shape), *found, *rest, work=work)

    return run


@kernel(counted=False)
def _totals(start: int, stop: int, parts: Doubles2, total: Out1) -> None:
    """The sums of the columns of `parts`."""
    for i in range(start, stop):
        found = 0.0
        for part in range(len(parts)):
            found += parts[part, i]
        total[i] = found


def _by_rows_backward(problem: NormProblem) -> Callable[..., None]:
    """``run(grad, x, weight, mean, rstd, dx, dweight, dbias)`` on contiguous arrays, None for what is left out."""
    form, dtype = norm_forms.rows(problem), arithmetic(problem)
    assert form is not None
    shape, work, nothing = (form.rows, form.length), 2 * _WORK * form.rows * form.length, np.empty(0, dtype)
    nowhere = np.empty((0, form.length), dtype)
    ones, rest = _or(None, form.parameters, dtype, 1), (form.period, form.inner, problem.eps, problem.centred)

    def run(grad: Array, x: Array, weight: Any, mean: Any, rstd: Any, dx: Any, dweight: Any, dbias: Any) -> None:
        blocks = 2, min(_BLOCKS, form.rows), 0 if dweight is None and dbias is None else form.parameters
        sums, runs = np.empty(blocks), np.empty(blocks, dtype)
        inputs = (grad.reshape(shape), x.reshape(shape), ones if weight is None else weight.reshape(-1))
        found = (nothing if a is None else a.reshape(-1) for a in (mean, rstd))
        _rows_backward(
            blocks[1], *inputs, *found, nowhere if dx is None else dx.reshape(shape), *sums, *runs, *rest, work=work
        )
        for parameter, parts in ((dweight, sums[0]), (dbias, sums[1])):
            if parameter is not None:
                _totals(form.parameters, parts, parameter.reshape(-1))

    return run


@planned(_rows)
def layer_norm(problem: NormProblem) -> Plan:
    return _by_rows(problem), None


@planned(_rows)
def rms_norm(problem: NormProblem) -> Plan:
    run = _by_rows(problem)
    return lambda x, weight, y, rstd: run(x, weight, None, y, None, rstd), None


@driver(_rows)
def add_norm(
    problem: NormProblem,
    outputs: Any,
    scratch: Any,
    x: Array,
    residual: Array,
    weight: Array | None,
    bias: Array | None = None,
) -> None:
    with Written(outputs) as (y, total):
        arrays = (None if a is None else taken(a) for a in (weight, bias))
        _by_rows(problem)(np.add(x, residual, out=total), *arrays, y)


@planned(_rows_backward, _totals)
def layer_norm_backward(problem: NormProblem) -> Plan:
    run = _by_rows_backward(problem)
    return lambda grad, x, weight, bias, *others: run(grad, x, weight, *others), None


@planned(_rows_backward, _totals)
def rms_norm_backward(problem: NormProblem) -> Plan:
    run = _by_rows_backward(problem)
    return lambda grad, x, weight, rstd, dx, dweight: run(grad, x, weight, None, rstd, dx, dweight, None), None


# --- by planes of channels --------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _planes(
    start: int, stop: int, x: In3, weight: In1, bias: In1, y: Out3, mean: Out1, rstd: Out1, variance: Out1, eps: float
) -> None:
    wide()
    outer, _, inner = x.shape
    count = outer * inner
    for c in range(start, stop):
        total = 0.0
        for n in range(outer):
            total += row_sum(x[n, c])
        m = x.dtype.type(total / count)
        apart, squares = 0.0, 0.0
        for n in range(outer):
            of_row = row_moments(x[n, c], m, 0)
            apart += of_row[0]
            squares += of_row[1]
        rest = apart / count
        v = squares / count - rest * rest
        v = 0.0 if v < 0.0 else v
        s = 1.0 / math.sqrt(v + eps)
        mean[c], rstd[c], variance[c] = m + x.dtype.type(rest), s, v
        scale = x.dtype.type(s * weight[c])
        centre, near, offset = _centre(m, rest, v)
        shift = x.dtype.type(bias[c] - offset * scale)
        for n in range(outer):
            _affine(x[n, c], centre, near, scale, shift, y[n, c])


@kernel(counted=False, streams=True)
def _planes_backward(
    start: int, stop: int, g: In3, x: In3, weight: In1, mean: In1, rstd: In1, dx: Out3, dweight: Out1, dbias: Out1
) -> None:
    wide()
    outer, _, inner = x.shape
    count = outer * inner
    for c in range(start, stop):
        m, s = mean[c], rstd[c]
        total, along = 0.0, 0.0
        for n in range(outer):
            plain, product = row_products(g[n, c], x[n, c], m, s)
            total += plain
            along += product
        dweight[c], dbias[c] = along, total
        scale = s * weight[c]
        average, projection = x.dtype.type(total * scale / count), x.dtype.type(along * scale / count)
        for n in range(len(dx)):
            _gradient(g[n, c], x[n, c], m, s, scale, average, projection, dx[n, c])


@kernel(counted=False, streams=True)
def _planes_affine(start: int, stop: int, x: In2, centre: In1, scale: In1, shift: In1, y: Out2) -> None:
    wide()
    channels = len(centre)
    for r in range(start, stop):
        c = r % channels
        _affine(x[r], centre[c], const(centre[c], 0.0), scale[c], shift[c], y[r])


@kernel(counted=False, streams=True)
def _columns_affine(start: int, stop: int, x: In2, centre: In1, scale: In1, shift: In1, y: Out2) -> None:
    wide()
    for r in range(start, stop):
        row, out = x[r], y[r]
        for c in range(len(centre)):
            out[c] = fma(row[c] - centre[c], scale[c], shift[c])


@kernel(counted=False)
def _coefficients(
    start: int,
    stop: int,
    mean: In1,
    variance: In1,
    weight: In1,
    bias: In1,
    eps: float,
    centre: Out1,
    scale: Out1,
    shift: Out1,
) -> None:
    """What `_affine` takes for each channel, of given statistics."""
    for c in range(start, stop):
        rstd = 1.0 / math.sqrt(np.float64(variance[c]) + eps)
        centre[c], _, offset = _centre(mean[c], 0.0, variance[c])
        scale[c] = rstd * weight[c]
        shift[c] = bias[c] - offset * scale[c]


def _form(problem: NormProblem) -> tuple[norm_forms.Planes, tuple[int, int, int]]:
    form = norm_forms.planes(problem)
    assert form is not None
    return form, (form.outer, form.channels, form.inner)


@planned(_coefficients, _planes_affine, _columns_affine)
def batch_norm(problem: NormProblem) -> Plan:
    (form, _), dtype = _form(problem), arithmetic(problem)
    rows = (form.outer, form.channels) if form.inner == 1 else (form.outer * form.channels, form.inner)
    affine = _columns_affine if form.inner == 1 else _planes_affine
    ones, zeros = _or(None, form.channels, dtype, 1), _or(None, form.channels, dtype, 0)

    def run(
        x: Array, mean: Array, variance: Array, weight: Array | None, bias: Array | None, residual: None, y: Array
    ) -> None:
        parameters = (ones if weight is None else weight.reshape(-1), zeros if bias is None else bias.reshape(-1))
        coefficients = np.empty((3, form.channels), dtype)
        _coefficients(form.channels, mean.reshape(-1), variance.reshape(-1), *parameters, problem.eps, *coefficients)
        affine(rows[0], x.reshape(rows), *coefficients, y.reshape(rows), work=x.size)

    return run, form.order


@driver(_planes)
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
    form, shape = _form(problem)
    y, mean, rstd, next_mean, next_var = outputs
    found = np.empty((3, form.channels), x.dtype)
    with Written((y,), form.order) as (y_,):
        parameters = (_or(weight, form.channels, x.dtype, 1), _or(bias, form.channels, x.dtype, 0))
        _planes(
            form.channels,
            taken(x, shape, form.order),
            *parameters,
            y_.reshape(shape),
            *found,
            problem.eps,
            work=_WORK * x.size,
        )
    mean[...], rstd[...] = found[0], found[1]
    move(next_mean, running_mean, found[0], problem.momentum, 1.0)
    move(next_var, running_var, found[2], problem.momentum, problem.geometry.count / max(problem.geometry.count - 1, 1))


@planned(_planes_backward)
def batch_norm_train_backward(problem: NormProblem) -> Plan:
    (form, shape), dtype = _form(problem), arithmetic(problem)
    ones, work, nowhere = (
        _or(None, form.channels, dtype, 1),
        2 * _WORK * math.prod(shape),
        np.empty((0, *shape[1:]), dtype),
    )

    def run(grad: Array, x: Array, weight: Any, *others: Any) -> None:
        mean, rstd, dx, dweight, dbias = others[-5:]
        parameters = (np.empty(form.channels, dtype) if a is None else a.reshape(-1) for a in (dweight, dbias))
        inputs = (grad.reshape(shape), x.reshape(shape), ones if weight is None else weight.reshape(-1))
        target = nowhere if dx is None else dx.reshape(shape)
        _planes_backward(form.channels, *inputs, mean.reshape(-1), rstd.reshape(-1), target, *parameters, work=work)

    return run, form.order
