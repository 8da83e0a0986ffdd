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
from dnnarray._cpu.norm_blocks import Box, boxes, part, parts, stretch
from dnnarray._cpu.norm_forward import statistics
from dnnarray._cpu.norm_sums import add, spread
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

    x: np.ndarray
    weight: Any = None
    bias: Any = None
    residual: Any = None

    def part(self, box: Box) -> Gradients:
        return Gradients(*parts(self, box))


def backward(problem: NormProblem, inputs: Inputs, gradients: Gradients) -> None:
    """Gradients of a norm by the statistics of its own input."""
    _clear(gradients)
    with long_rows(stretch(problem, inputs.x)):
        for box in boxes(inputs.x, problem.geometry.kept):
            _block(problem, inputs.part(box), gradients.part(box))


def _clear(gradients: Gradients) -> None:
    for parameter in (gradients.weight, gradients.bias):
        if parameter is not None:
            parameter[...] = 0


def _block(problem: NormProblem, inputs: Inputs, gradients: Gradients) -> None:
    """`backward` for whole statistics, in chunks of what is summed over: once for the sums, once for the gradient of x."""
    chunks = tuple(boxes(inputs.x, problem.geometry.axes))
    inputs = _with_statistics(problem, inputs, gradients.x, chunks)
    mean, rstd = (spread(problem.geometry, s, inputs.x.shape) for s in (inputs.mean, inputs.rstd))
    inputs = inputs._replace(mean=mean, rstd=rstd)
    average = projection = pulled = None
    for chunk in chunks:
        now = inputs.part(chunk)
        pulled = before_activation(problem, now)
        mine, theirs = _sums(problem, now, *pulled, gradients.part(chunk))
        average, projection = add(average, mine), add(projection, theirs)
    scale = inputs.rstd / max(problem.geometry.count, 1)
    average, projection = average * scale, projection * scale
    for chunk in chunks:
        now = inputs.part(chunk)
        g, u = pulled if pulled is not None and len(chunks) == 1 else before_activation(problem, now)
        _write(problem, now, g, u, part(average, chunk), part(projection, chunk), gradients.part(chunk))


def _with_statistics(problem: NormProblem, inputs: Inputs, buffer: np.ndarray, chunks: tuple[Box, ...]) -> Inputs:
    """The statistics that were not saved are found again, with the memory of the result as scratch."""
    if inputs.rstd is not None and (inputs.mean is not None or not problem.centred):
        return inputs
    found = statistics(problem, inputs.x, buffer, chunks)
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
    """Adds to the gradients of weight and bias; gives the sums of h and of h * u over the normalised axes."""
    geometry, weight = problem.geometry, inputs.weight
    along_u = total(g, geometry.fine, u)
    plain: Any = total(g, geometry.fine) if problem.centred else None
    for parameter, terms in ((gradients.weight, along_u), (gradients.bias, plain)):
        if parameter is not None:
            np.add(parameter, total(terms, geometry.across), out=parameter)
    average = total(plain, geometry.within, weight) if problem.centred else 0
    return average, total(along_u, geometry.within, weight)


def _write(problem: NormProblem, inputs: Inputs, g: np.ndarray, u: np.ndarray, average: Any, projection: Any, gradients: Gradients) -> None:
    """The gradients of x and residual; `average` and `projection` carry rstd already, and u is used up."""
    weight, target = inputs.weight, gradients.x
    if weight is None or problem.geometry.folds:
        np.multiply(g, inputs.rstd if weight is None else inputs.rstd * weight, out=target)
    else:
        np.multiply(g, weight, out=target)
        np.multiply(target, inputs.rstd, out=target)
    np.multiply(u, projection, out=u)
    np.subtract(target, u, out=target)
    if problem.centred:
        np.subtract(target, average, out=target)
    if gradients.residual is not None:
        gradients.residual[...] = g


def fixed_backward(problem: NormProblem, inputs: Inputs, gradients: Gradients, mean: np.ndarray, variance: np.ndarray) -> None:
    """Gradients of a norm by given statistics; `mean` and `variance` receive theirs."""
    axes = problem.geometry.axes
    along_u, plain = np.zeros_like(mean), np.zeros_like(mean)
    scale = inputs.rstd if inputs.weight is None else inputs.rstd * inputs.weight
    for box in boxes(inputs.x, tuple(range(inputs.x.ndim))):
        now, target = inputs.part(box), gradients.part(box)
        g, u = before_activation(problem, now)
        for sums, factor in ((part(along_u, box), u), (part(plain, box), None)):
            np.add(sums, total(g, axes, factor), out=sums)
        np.multiply(g, part(scale, box), out=target.x)
        if target.residual is not None:
            target.residual[...] = g
    for parameter, sums in ((gradients.weight, along_u), (gradients.bias, plain)):
        if parameter is not None:
            parameter[...] = sums
    np.multiply(plain, -scale, out=mean)
    np.multiply(along_u, -0.5 * scale * inputs.rstd, out=variance)
