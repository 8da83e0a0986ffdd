"""Activations, their gradients and gated units: one pass over memory, its elements in any order that all arrays share.

A formula takes x and two parameters in the type of x and agrees with `activation_formulas` in every special value; a
slope's formula takes the gradient before them. The kernels around the formulas differ in the formula alone and are made
of one text each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray import _source
from dnnarray._cpu.compiled import scalar
from dnnarray._cpu.compiled.dense import Plan, planned
from dnnarray._cpu.compiled.kernel import In1, Kernel, Out1, device, kernel, wide
from dnnarray._cpu.compiled.memory import fetch_after
from dnnarray._cpu.compiled.scalar import const
from dnnarray._problems.activation import ElementwiseProblem, GatedProblem

_WORK = 4  # a formula with an exponential in it, beside a copy
_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715  # of the tanh form of gelu
_TANH_SATURATED = 50.0  # keeps the cube, and 0 times the cube, finite
_MISH_SATURATED = 40.0
_NEAR_ROOT = 1024.0  # of a line

# --- straight pieces: (x, p, q) and (g, x, p, q)
# ------------------------------------------------------------------------


@device
def _clip(x: Any, low: Any, high: Any) -> Any:
    x = low if x < low else x
    return high if x > high else x


@device
def _clip_slope(g: Any, x: Any, low: Any, high: Any) -> Any:
    return g if (x > low) & (x < high) else const(x, 0.0)


@device
def _threshold(x: Any, threshold: Any, value: Any) -> Any:
    return value if x <= threshold else x


@device
def _threshold_slope(g: Any, x: Any, threshold: Any, value: Any) -> Any:
    return const(x, 0.0) if x <= threshold else g


@device
def _leaky_relu(x: Any, slope: Any, q: Any) -> Any:
    return x if x > const(x, 0.0) else x * slope


@device
def _leaky_relu_slope(g: Any, x: Any, slope: Any, q: Any) -> Any:
    return g if x > const(x, 0.0) else g * slope


@device
def _line(x: Any, alpha: Any, beta: Any) -> Any:
    """alpha x + beta, by the distance from where it is 0 unless that is far away."""
    shift = beta / alpha
    return (x + shift) * alpha if abs(shift) <= const(x, _NEAR_ROOT) else x * alpha + beta


@device
def _hard_sigmoid(x: Any, alpha: Any, beta: Any) -> Any:
    return _clip(_line(x, alpha, beta), const(x, 0.0), const(x, 1.0))


@device
def _hard_sigmoid_slope(g: Any, x: Any, alpha: Any, beta: Any) -> Any:
    low, high = -beta / alpha, (const(x, 1.0) - beta) / alpha
    return _clip_slope(g * alpha, x, low if low < high else high, high if low < high else low)


@device
def _hard_swish(x: Any, p: Any, q: Any) -> Any:
    return x * (_clip(x + const(x, 3.0), const(x, 0.0), const(x, 6.0)) / const(x, 6.0))


@device
def _hard_swish_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    middle = g * (x / const(x, 3.0) + const(x, 0.5))
    middle = g if x >= const(x, 3.0) else middle
    return const(x, 0.0) if x <= const(x, -3.0) else middle


@device
def _softsign(x: Any, p: Any, q: Any) -> Any:
    return x / (abs(x) + const(x, 1.0))


@device
def _softsign_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    one, magnitude = const(x, 1.0), abs(x)
    d = magnitude + one
    # What this sum loses to rounding the square doubles; beyond 1 that is little.
    rest = magnitude - (d - one) if magnitude < one else const(x, 0.0)
    return g / scalar.fma(d, d, const(x, 2.0) * rest * (d if magnitude < one else one))


# --- exponential pieces -----------------------------------------------------------------------------------------------


@device
def _elu(x: Any, alpha: Any, width: Any) -> Any:
    """x above 0, alpha (exp(x / width) - 1) below."""
    return x if x > const(x, 0.0) else alpha * scalar.expm1(x / width)


@device
def _elu_slope(g: Any, x: Any, alpha: Any, width: Any) -> Any:
    return g if x > const(x, 0.0) else g * (alpha / width * scalar.exp(x / width))


@device
def _selu(x: Any, alpha: Any, gamma: Any) -> Any:
    return gamma * _elu(x, alpha, const(x, 1.0))


@device
def _selu_slope(g: Any, x: Any, alpha: Any, gamma: Any) -> Any:
    return gamma * _elu_slope(g, x, alpha, const(x, 1.0))


@device
def _sigmoid(x: Any, p: Any, q: Any) -> Any:
    return scalar.sigmoid(x)


@device
def _sigmoid_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    return g * scalar.sigmoid_slope(x)


@device
def _sigmoid_slope_by_result(g: Any, y: Any, p: Any, q: Any) -> Any:
    return g * (y * (const(y, 1.0) - y))


@device
def _log_sigmoid(x: Any, p: Any, q: Any) -> Any:
    return -scalar.softplus(-x)


@device
def _log_sigmoid_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    return g * scalar.sigmoid(-x)


@device
def _tanh(x: Any, p: Any, q: Any) -> Any:
    return scalar.tanh(x)


@device
def _tanh_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    return g * (const(x, 4.0) * scalar.sigmoid_slope(x + x))


@device
def _tanh_slope_by_result(g: Any, y: Any, p: Any, q: Any) -> Any:
    return g * ((const(y, 1.0) - y) * (const(y, 1.0) + y))


@device
def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    soft = scalar.softplus(x * beta) / beta
    return x if x * beta > threshold else soft


@device
def _softplus_slope(g: Any, x: Any, beta: Any, threshold: Any) -> Any:
    soft = g * scalar.sigmoid(x * beta)
    return g if x * beta > threshold else soft


@device
def _silu(x: Any, beta: Any, q: Any) -> Any:
    return scalar.times_sigmoid(x, x * beta)


@device
def _silu_slope(g: Any, x: Any, beta: Any, q: Any) -> Any:
    s = x * beta
    return g * scalar.sigmoid_and_slope(s, s)


@device
def _gelu(x: Any, p: Any, q: Any) -> Any:
    return scalar.gelu(x)


@device
def _gelu_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    return g * scalar.gelu_slope(x)


@device
def _gelu_tanh(x: Any, p: Any, q: Any) -> Any:
    # 0.5 (1 + tanh(u)) is the logistic function of 2 u.
    return scalar.times_sigmoid(x, x * _cubic(x))


@device
def _cubic(x: Any) -> Any:
    """2 sqrt(2 / pi) (1 + 0.044715 x^2)."""
    return scalar.fma(x * x, const(x, 2 * _SQRT_2_OVER_PI * _CUBIC), const(x, 2 * _SQRT_2_OVER_PI))


@device
def _cubic_slope(x: Any) -> Any:
    """The derivative of x times that."""
    return scalar.fma(x * x, const(x, 6 * _SQRT_2_OVER_PI * _CUBIC), const(x, 2 * _SQRT_2_OVER_PI))


@device
def _gelu_tanh_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    x = _clip(x, const(x, -_TANH_SATURATED), const(x, _TANH_SATURATED))
    return g * scalar.sigmoid_and_slope(x * _cubic(x), x * _cubic_slope(x))


@device
def _mish(x: Any, p: Any, q: Any) -> Any:
    # With e = exp(x) and n = e (e + 2), tanh(softplus(x)) is n / (n + 2).
    high = const(x, _MISH_SATURATED)
    e = scalar.exp(high if x > high else x)
    n = e * (e + const(x, 2.0))
    return x * (n / (n + const(x, 2.0)))


@device
def _mish_slope(g: Any, x: Any, p: Any, q: Any) -> Any:
    high = const(x, _MISH_SATURATED)
    x = high if x > high else x
    e = scalar.exp(x)
    n = e * (e + const(x, 2.0))
    d = n + const(x, 2.0)
    return g * ((const(x, 4.0) * (e + const(x, 1.0)) * e / d * x + n) / d)


# --- kernels ----------------------------------------------------------------------------------------------------------

_RUN = 256  # elements after which the next ones are asked for: arithmetic on lines that are there waits for no others

_FORWARD = """
def {name}(start: int, stop: int, x: In1, y: Out1, p: float, q: float) -> None:
    wide()
    p_, q_ = x.dtype.type(p), x.dtype.type(q)
    for first in range(start, stop, run):
        last = min(first + run, stop)
        x_, y_ = x[first:last], y[first:last]
        fetch_after(x, last, run, stop)
        for i in range(len(y_)):
            y_[i] = forward(x_[i], p_, q_)
"""
_BACKWARD = """
def {name}(start: int, stop: int, g: In1, x: In1, dx: Out1, p: float, q: float) -> None:
    wide()
    p_, q_ = x.dtype.type(p), x.dtype.type(q)
    for first in range(start, stop, run):
        last = min(first + run, stop)
        g_, x_, dx_ = g[first:last], x[first:last], dx[first:last]
        fetch_after(g, last, run, stop)
        fetch_after(x, last, run, stop)
        for i in range(len(dx_)):
            dx_[i] = backward(g_[i], x_[i], p_, q_)
"""
_GATED = """
def {name}(start: int, stop: int, gate: In1, x: In1, y: Out1, p: float, q: float) -> None:
    wide()
    gate, x, y = gate[start:stop], x[start:stop], y[start:stop]
    p_, q_ = x.dtype.type(p), x.dtype.type(q)
    for i in range(len(y)):
        y[i] = forward(gate[i], p_, q_) * x[i]
"""
_GATE_BACKWARD = """
def {name}(start: int, stop: int, g: In1, gate: In1, x: In1, dgate: Out1, p: float, q: float) -> None:
    wide()
    g, gate, x, dgate = g[start:stop], gate[start:stop], x[start:stop], dgate[start:stop]
    p_, q_ = x.dtype.type(p), x.dtype.type(q)
    for i in range(len(dgate)):
        dgate[i] = backward(g[i] * x[i], gate[i], p_, q_)
"""
_GATED_BACKWARD = """
def {name}(start: int, stop: int, g: In1, gate: In1, x: In1, dgate: Out1, dx: Out1, p: float, q: float) -> None:
    wide()
    g, gate, x, dgate, dx = g[start:stop], gate[start:stop], x[start:stop], dgate[start:stop], dx[start:stop]
    p_, q_ = x.dtype.type(p), x.dtype.type(q)
    for i in range(len(dx)):
        dgate[i] = backward(g[i] * x[i], gate[i], p_, q_)
        dx[i] = forward(gate[i], p_, q_) * g[i]
"""


def _kernel(text: str, name: str, **formulas: Any) -> Kernel:
    scope: dict[str, Any] = {
        "In1": In1,
        "Out1": Out1,
        "wide": wide,
        "fetch_after": fetch_after,
        "run": _RUN,
        **formulas,
    }
    return kernel(_source.function(name, text.format(name=name), scope, __name__), counted=False, streams=True)


Parameters = Callable[[tuple[Any, ...]], tuple[float, float]]


def _two(values: tuple[Any, ...]) -> tuple[float, float]:
    """The parameters as they are, 0 for those that an activation lacks."""
    p, q, *_ = (*values, 0.0, 0.0)
    return float(p), float(q)


def _plan(kernel: Kernel, parameters: Parameters, problem: Any) -> Plan:
    made = next(spec for spec in problem.outputs if spec is not None)
    size, values, work = made.size, parameters(problem.activation.parameters), _WORK * made.size

    def run(*arrays: np.ndarray) -> None:
        kernel(size, *[a.reshape(-1) for a in arrays], *values, work=work)

    return run, made.axis_order()


def _drivers(name: str, forward: Any, backward: Any, parameters: Parameters = _two) -> tuple[Any, Any]:
    """The drivers of an activation and of its gradient."""
    there, back = _kernel(_FORWARD, name, forward=forward), _kernel(_BACKWARD, f"{name}_backward", backward=backward)
    return _driver_of(there, parameters), _driver_of(back, parameters)


def _driver_of(kernel: Kernel, parameters: Parameters) -> Any:
    return planned(kernel)(lambda problem: _plan(kernel, parameters, problem))


relu, relu_backward = _drivers("relu", _threshold, _threshold_slope)
relu6, relu6_backward = _drivers("relu6", _clip, _clip_slope, lambda values: (0.0, 6.0))
clipped_relu, clipped_relu_backward = _drivers("clipped_relu", _clip, _clip_slope, lambda values: (0.0, values[0]))
hard_tanh, hard_tanh_backward = _drivers("hard_tanh", _clip, _clip_slope)
threshold, threshold_backward = _drivers("threshold", _threshold, _threshold_slope)
leaky_relu, leaky_relu_backward = _drivers("leaky_relu", _leaky_relu, _leaky_relu_slope)
hard_sigmoid, hard_sigmoid_backward = _drivers("hard_sigmoid", _hard_sigmoid, _hard_sigmoid_slope)
hard_swish, hard_swish_backward = _drivers("hard_swish", _hard_swish, _hard_swish_slope)
softsign, softsign_backward = _drivers("softsign", _softsign, _softsign_slope)
elu, elu_backward = _drivers("elu", _elu, _elu_slope, lambda values: (values[0], 1.0))
celu, celu_backward = _drivers("celu", _elu, _elu_slope, lambda values: (values[0], values[0]))
selu, selu_backward = _drivers("selu", _selu, _selu_slope)
log_sigmoid, log_sigmoid_backward = _drivers("log_sigmoid", _log_sigmoid, _log_sigmoid_slope)
softplus, softplus_backward = _drivers("softplus", _softplus, _softplus_slope)
silu, silu_backward = _drivers("silu", _silu, _silu_slope)
mish, mish_backward = _drivers("mish", _mish, _mish_slope)


# --- gradients from the input or from the result ----------------------------------------------------------------------


def _no_parameters(values: tuple[Any, ...]) -> tuple[float, float]:
    return 0.0, 0.0


def _drivers_by_result(name: str, forward: Any, backward: Any, backward_by_result: Any) -> tuple[Any, Any]:
    """The drivers of an activation and of its gradient, which takes the result of the forward where that is given."""
    by_input = _kernel(_BACKWARD, f"{name}_backward", backward=backward)
    by_result = _kernel(_BACKWARD, f"{name}_backward_by_result", backward=backward_by_result)

    @planned(by_input, by_result)
    def gradient(problem: ElementwiseProblem) -> Plan:
        run, order = _plan(by_result if problem.by_result else by_input, _no_parameters, problem)
        if problem.by_result:
            return lambda grad, x, y, dx: run(grad, y, dx), order
        return lambda grad, x, y, dx: run(grad, x, dx), order

    return _driver_of(_kernel(_FORWARD, name, forward=forward), _no_parameters), gradient


sigmoid, sigmoid_backward = _drivers_by_result("sigmoid", _sigmoid, _sigmoid_slope, _sigmoid_slope_by_result)
tanh, tanh_backward = _drivers_by_result("tanh", _tanh, _tanh_slope, _tanh_slope_by_result)


# --- gelu has two forms -----------------------------------------------------------------------------------------------


def _either(erf_form: Kernel, tanh_form: Kernel) -> Any:
    """The driver of gelu or its gradient, by either form."""

    @planned(erf_form, tanh_form)
    def plan(problem: ElementwiseProblem) -> Plan:
        return _plan(erf_form if problem.activation.parameters[0] == "none" else tanh_form, _no_parameters, problem)

    return plan


gelu = _either(_kernel(_FORWARD, "gelu", forward=_gelu), _kernel(_FORWARD, "gelu_tanh", forward=_gelu_tanh))
gelu_backward = _either(
    _kernel(_BACKWARD, "gelu_backward", backward=_gelu_slope),
    _kernel(_BACKWARD, "gelu_tanh_backward", backward=_gelu_tanh_slope),
)


# --- gated units ------------------------------------------------------------------------------------------------------


def _gated_drivers(name: str, forward: Any, backward: Any, parameters: Parameters) -> tuple[Any, Any]:
    there = _kernel(_GATED, name, forward=forward)
    of_gate = _kernel(_GATE_BACKWARD, f"{name}_gate_backward", backward=backward)
    back = _kernel(_GATED_BACKWARD, f"{name}_backward", forward=forward, backward=backward)

    @planned(there, of_gate, back)
    def gradients(problem: GatedProblem) -> Plan:
        gate, x = problem.outputs
        if x is None:
            run, order = _plan(of_gate, parameters, problem)
            return lambda grad, gate, x, dgate, dx: run(grad, gate, x, dgate), order
        if gate is None:  # what the gate lets through of grad
            run, order = _plan(there, parameters, problem)
            return lambda grad, gate, x, dgate, dx: run(gate, grad, dx), order
        return _plan(back, parameters, problem)

    return _driver_of(there, parameters), gradients


swiglu, swiglu_backward = _gated_drivers("swiglu", _silu, _silu_slope, _two)
geglu, geglu_backward = _gated_drivers("geglu", _gelu, _gelu_slope, _no_parameters)
