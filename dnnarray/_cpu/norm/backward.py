"""Gradients of norms, block by block; all arrays come in the shape of the problem's `view`.

With u = (x - mean) * rstd, g the gradient before the activation and h = g * weight:

    x:      rstd * (h - average(h) - u * average(h * u))      averages over the normalised axes; none of h for RMS norm
    weight: sum(g * u)        bias: sum(g)                     over the axes along which they broadcast

Both kinds of sum begin with the axes they have in common (`Geometry.fine`), which are summed once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.activation import apply_gradient
from dnnarray._cpu.blocks import long_rows
from dnnarray._cpu.norm.blocks import Box, boxes, part, parts, stretch
from dnnarray._cpu.norm.forward import statistics
from dnnarray._cpu.norm.sums import add, spread
from dnnarray._cpu.sums import total
from dnnarray._problems.norm_base import NormProblem


class Inputs(NamedTuple):
    """Arrays of a gradient, whole or in part; `mean` and `rstd` are None where they are still to be found."""

    grad: np.ndarray
    x: np.ndarray
    weight: Any = None
    bias: Any = None
    residual: Any = None
    mean: Any = None
    rstd: Any = None

    def part(self, box: Box) -> Inputs:
        return Inputs(*parts(self, box))


class Gradients(NamedTuple):
    """Arrays to be written, None for those that are not asked for."""

    x: Any = None
    weight: Any = None
    bias: Any = None
    residual: Any = None

    def part(self, box: Box) -> Gradients:
        return Gradients(*parts(self, box))

    def pulls(self, problem: NormProblem) -> bool:
        """Whether more is asked for than sums and copies of the incoming gradient: x and its statistics are read
        then."""
        return self.x is not None or self.weight is not None or problem.activation is not None


def backward(problem: NormProblem, inputs: Inputs, gradients: Gradients) -> None:
    """Gradients of a norm by the statistics of its own input; those of the parameters are added up in float64."""
    results = gradients.weight, gradients.bias
    weight, bias = sums = [None if array is None else np.zeros(array.shape) for array in results]
    gradients = gradients._replace(weight=weight, bias=bias)
    if gradients.pulls(problem):
        with long_rows(stretch(problem, inputs.x)):
            for box in boxes(inputs.x, problem.geometry.kept):
                _block(problem, inputs.part(box), gradients.part(box))
    else:
        _pass_on(problem, inputs.grad, gradients)
    for array, found in zip(results, sums, strict=True):
        if array is not None:
            array[...] = found


def _pass_on(problem: NormProblem, grad: np.ndarray, gradients: Gradients) -> None:
    """The gradients of bias and residual where there is no activation."""
    axes = (*problem.geometry.fine, *problem.geometry.across)
    for box in boxes(grad, tuple(range(grad.ndim))):
        g, now = part(grad, box), gradients.part(box)
        if now.bias is not None:
            np.add(now.bias, total(g, axes), out=now.bias)
        if now.residual is not None:
            now.residual[...] = g


def _block(problem: NormProblem, inputs: Inputs, gradients: Gradients) -> None:
    """`backward` for whole statistics, in chunks of what is summed over: once for the sums, once for the gradient of
    x."""
    chunks = tuple(boxes(inputs.x, problem.geometry.axes))
    inputs = _with_statistics(problem, inputs, gradients.x, chunks)
    mean, rstd = (spread(problem.geometry, s, inputs.x.shape) for s in (inputs.mean, inputs.rstd))
    inputs = inputs._replace(mean=mean, rstd=rstd)
    average = projection = pulled = None
    for chunk in chunks:
        now, results = inputs.part(chunk), gradients.part(chunk)
        pulled = before_activation(problem, now)
        mine, theirs = _sums(problem, now, *pulled, results)
        if results.residual is not None:
            results.residual[...] = pulled[0]
        average, projection = add(average, mine), add(projection, theirs)
    if gradients.x is None:
        return
    scale = inputs.rstd / max(problem.geometry.count, 1)
    average, projection = (
        np.asarray(sums * scale).astype(inputs.x.dtype, copy=False) for sums in (average, projection)
    )
    for chunk in chunks:
        now = inputs.part(chunk)
        g, u = pulled if pulled is not None and len(chunks) == 1 else before_activation(problem, now)
        _write(problem, now, g, u, part(average, chunk), part(projection, chunk), part(gradients.x, chunk))


def _with_statistics(
    problem: NormProblem, inputs: Inputs, buffer: np.ndarray | None, chunks: tuple[Box, ...]
) -> Inputs:
    """The statistics that were not saved are found again, with the memory of the result as scratch where there is
    one."""
    if inputs.rstd is not None and (inputs.mean is not None or not problem.centred):
        return inputs
    found = statistics(problem, inputs.x, np.empty_like(inputs.x) if buffer is None else buffer, chunks)
    if problem.centred and inputs.mean is None:
        inputs = inputs._replace(mean=found.mean + found.delta)
    return inputs if inputs.rstd is not None else inputs._replace(rstd=found.rstd)


def before_activation(problem: NormProblem, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """(g, u): the gradient before the activation and the normalised x, the latter in memory of its own."""
    if problem.centred:
        u = inputs.x - inputs.mean
        np.multiply(u, inputs.rstd, out=u)
    else:
        u = inputs.x * inputs.rstd
    if problem.activation is None:
        return inputs.grad, u
    z = u.copy() if inputs.weight is None else u * inputs.weight
    for term in (inputs.bias, inputs.residual):
        if term is not None:
            np.add(z, term, out=z)
    return apply_gradient(problem.activation, inputs.grad, z), u


def _sums(problem: NormProblem, inputs: Inputs, g: np.ndarray, u: np.ndarray, gradients: Gradients) -> tuple[Any, Any]:
    """Adds to the gradients of weight and bias; gives the sums of h and of h * u over the normalised axes, None where x
    has no gradient."""
    geometry, weight, writes = problem.geometry, inputs.weight, gradients.x is not None
    along_u: Any = total(g, geometry.fine, u) if writes or gradients.weight is not None else None
    plain: Any = total(g, geometry.fine) if (writes and problem.centred) or gradients.bias is not None else None
    for parameter, terms in ((gradients.weight, along_u), (gradients.bias, plain)):
        if parameter is not None:
            np.add(parameter, total(terms, geometry.across), out=parameter)
    if not writes:
        return None, None
    average = total(plain, geometry.within, weight).astype(np.float64, copy=False) if problem.centred else 0
    return average, total(along_u, geometry.within, weight).astype(np.float64, copy=False)


def _write(
    problem: NormProblem,
    inputs: Inputs,
    g: np.ndarray,
    u: np.ndarray,
    average: Any,
    projection: Any,
    target: np.ndarray,
) -> None:
    """The gradient of x; `average` and `projection` carry rstd already, and u is used up."""
    weight = inputs.weight
    if weight is None or problem.geometry.folds:
        np.multiply(g, inputs.rstd if weight is None else inputs.rstd * weight, out=target)
    else:
        np.multiply(g, weight, out=target)
        np.multiply(target, inputs.rstd, out=target)
    np.multiply(u, projection, out=u)
    np.subtract(target, u, out=target)
    if problem.centred:
        np.subtract(target, average, out=target)


def fixed_backward(problem: NormProblem, inputs: Inputs, gradients: Gradients, mean: Any, variance: Any) -> None:
    """Gradients of a norm by given statistics; `mean` and `variance` receive theirs, None for those that are not asked
    for."""
    axes = problem.geometry.axes
    along_u = None if gradients.weight is None and variance is None else np.zeros(inputs.mean.shape)
    plain = None if gradients.bias is None and mean is None else np.zeros(inputs.mean.shape)
    scale = inputs.rstd if inputs.weight is None else inputs.rstd * inputs.weight
    for box in boxes(inputs.grad, tuple(range(inputs.grad.ndim))):
        now, target = inputs.part(box), gradients.part(box)
        u: Any = None
        g, u = (
            before_activation(problem, now) if along_u is not None or problem.activation is not None else (now.grad, u)
        )
        for sums, factor in ((part(along_u, box), u), (part(plain, box), None)):
            if sums is not None:
                np.add(sums, total(g, axes, factor), out=sums)
        if target.x is not None:
            np.multiply(g, part(scale, box), out=target.x)
        if target.residual is not None:
            target.residual[...] = g
    results: tuple[tuple[Any, Any, Any], ...] = (
        (gradients.weight, along_u, 1),
        (gradients.bias, plain, 1),
        (mean, plain, -scale),
        (variance, along_u, -0.5 * scale * inputs.rstd),
    )
    for parameter, sums, factor in results:
        if parameter is not None:
            np.multiply(sums, factor, out=parameter)
