"""Linear layers on the matrix units of sm_90a, bias, residual and activation behind the product: a convolution of one
tap over the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from dnnarray._cuda.common.channels import lies
from dnnarray._cuda.conv import implicit_tma_sm90, wgrad_tma
from dnnarray._cuda.conv import parts as conv_parts
from dnnarray._cuda.conv.shared import Maps, Setting, plan
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems import conv as conv_problems
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.linear import LinearProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

_Orders = tuple[tuple[int, ...], ...]
OPTIONS: dict[str, Any] = {
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "layout": "channels_last",
    "flip": False,
    "activation": None,
}


@frozen
class _Kind:
    """An algorithm of convolution that linear layers go by."""

    name: str
    summary: str
    maps: Callable[[Setting], Maps]
    rejects: Callable[[str, ConvProblem, Device], str | None]
    cost: Callable[[str, ConvProblem, Device], Cost]
    precision: str = "highest"


_WINDOWS = 0.96  # of the rate that is predicted for windows: large matrices share less of what is brought


def _matrix_cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    found = wgrad_tma.cost(op, problem, device)
    return replace(found, efficiency=_WINDOWS * found.efficiency)


_KINDS = (
    *(
        _Kind(name, conv_parts.SUMMARY, conv_parts.maps, conv_parts.rejects, partial(conv_parts.cost, precision=p), p)
        for p, name in conv_parts.NAMES.items()
    ),
    _Kind(
        "implicit_tma_sm90",
        "operands brought by TMA, products by wgmma",
        wgrad_tma.maps,
        implicit_tma_sm90.rejects,
        _matrix_cost,
    ),
)


def _image(problem: LinearProblem, spec: Any) -> Any:
    return None if spec is None else Spec((1, problem.rows, spec.shape[-1]), spec.dtype)


@lru_cache(maxsize=1024)
def as_conv(problem: LinearProblem) -> ConvProblem:
    """The convolution with the same arrays in the same memory: one image of one row, whose pixels are the rows of x."""
    *grad, x, weight, bias, residual = problem.inputs
    strides = None if lies(weight, (0, 1)) else (1, problem.outs, problem.outs)
    arrays = (
        _image(problem, x),
        Spec((problem.outs, 1, problem.features), weight.dtype, strides),
        bias,
        _image(problem, residual),
    )
    if grad:
        found = conv_problems.conv_backward(problem.op, _image(problem, grad[0]), *arrays, **OPTIONS)
    else:
        found = conv_problems.conv(problem.op, *arrays, **OPTIONS)
    outputs = tuple(
        made if asked is not None else None for made, asked in zip(found.outputs, problem.outputs, strict=True)
    )
    return replace(found, activation=problem.activation, outputs=outputs)


def _setting(kind: _Kind, problem: LinearProblem, aligned: bool, units: int) -> Setting:
    return plan(kind.maps, as_conv(problem), aligned, kind.precision, units)


def _rejects(kind: _Kind, problem: LinearProblem, device: Device) -> str | None:
    if 0 in (problem.rows, problem.features, problem.outs, problem.products):
        return "there is nothing to multiply"
    if not all(s is None or i == 1 or lies(s, range(s.ndim)) for i, s in enumerate(problem.outputs)):
        return "a gradient that does not lie in C order"
    found = as_conv(problem)
    return kind.rejects(found.alike, found, device)


def _cost(kind: _Kind, problem: LinearProblem, device: Device) -> Cost:
    found = as_conv(problem)
    return kind.cost(found.alike, found, device)


def methods(
    orders: Callable[[LinearProblem], _Orders], library: Callable[[LinearProblem, bool, str], Planner]
) -> tuple[Method, ...]:
    """One for each kind. `orders` are those that a program expects of its arrays; `library` plans for addresses that
    TMA does not take."""

    def method(kind: _Kind) -> Method:
        def run(problem: LinearProblem, device: Device, aligned: bool) -> Program:
            steps = (
                _setting(kind, problem, True, device.units).steps
                if aligned
                else library(problem, False, kind.precision)
            )
            return Program(tuple(steps.plans), orders(problem), steps.workspace)

        def workspace(problem: LinearProblem) -> int:
            """The larger of what both kinds of addresses need."""
            return max(
                _setting(kind, problem, True, 1).steps.workspace, library(problem, False, kind.precision).workspace
            )

        rejects, cost = partial(_rejects, kind), partial(_cost, kind)
        return Method(kind.name, run, kind.summary, rejects, workspace, cost, precision=kind.precision)

    return tuple(map(method, _KINDS))
