"""Linear layers in float32 on the matrix units of sm_90a: a convolution of one tap over the rows, by the kernels of `conv_parts`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from dnnarray._cuda import conv_parts
from dnnarray._cuda.channels import lies
from dnnarray._cuda.conv_common import Setting, plan
from dnnarray._cuda.plan import Program
from dnnarray._problems import conv as conv_problems
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.linear import LinearProblem
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

_Orders = tuple[tuple[int, ...], ...]
_OPS = {"linear": "conv", "linear_backward": "conv_backward"}
OPTIONS: dict[str, Any] = {
    "stride": 1,
    "padding": 0,
    "dilation": 1,
    "groups": 1,
    "layout": "channels_last",
    "flip": False,
    "activation": None,
}


def _image(problem: LinearProblem, spec: Any) -> Any:
    return None if spec is None else Spec((1, problem.rows, spec.shape[-1]), spec.dtype)


@lru_cache(maxsize=1024)
def as_conv(problem: LinearProblem) -> ConvProblem:
    """The convolution with the same arrays in the same memory: one image of one row, whose pixels are the rows of x."""
    *grad, x, weight, bias, residual = problem.inputs
    strides = None if lies(weight, (0, 1)) else (1, problem.outs, problem.outs)
    arrays = _image(problem, x), Spec((problem.outs, 1, problem.features), weight.dtype, strides), bias, _image(problem, residual)
    if grad:
        found = conv_problems.conv_backward(problem.op, _image(problem, grad[0]), *arrays, **OPTIONS)
    else:
        found = conv_problems.conv(problem.op, *arrays, **OPTIONS)
    return replace(found, activation=problem.activation, maps=problem.products)


def _setting(problem: LinearProblem, aligned: bool, precision: str, units: int) -> Setting:
    return plan(_OPS[problem.op], conv_parts.maps, as_conv(problem), aligned, precision, units)


def _run(orders: Callable[[LinearProblem], _Orders], precision: str, problem: LinearProblem, device: Device, aligned: bool) -> Program:
    return Program(tuple(_setting(problem, aligned, precision, device.units).steps.plans), orders(problem))


def _workspace(precision: str, problem: LinearProblem) -> int:
    return _setting(problem, True, precision, 1).steps.workspace


def _rejects(problem: LinearProblem, device: Device) -> str | None:
    if 0 in (problem.rows, problem.features, problem.outs):
        return "an extent of 0"
    if not all(s is None or i == 1 or lies(s, range(s.ndim)) for i, s in enumerate(problem.outputs)):
        return "a gradient that does not lie in C order"
    return conv_parts.rejects(_OPS[problem.op], as_conv(problem), device)


def _cost(precision: str, problem: LinearProblem, device: Device) -> Cost:
    return conv_parts.cost(_OPS[problem.op], as_conv(problem), device, precision)


def methods(orders: Callable[[LinearProblem], _Orders]) -> tuple[Method, ...]:
    """One for each numerics class; `orders` are those that a program expects of its arrays."""
    return tuple(
        Method(
            name, partial(_run, orders, precision), conv_parts.SUMMARY, _rejects, partial(_workspace, precision), partial(_cost, precision),
            precision=precision,
        )
        for precision, name in conv_parts.NAMES.items()
    )  # fmt: skip
