"""Activations, in place too, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import decline, dense, kernel

Call = tuple[Callable[..., Any], dict[str, Any]]  # a function of dnnarray and its options


def _plain(name: str, function: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Enter an activation without options, its variant in place, and its gradient by the input."""
    kernel(name)(lambda x: function(dense(x)))
    kernel(f"{name}_")(lambda x: function(x, out=x))
    kernel(f"{name}_backward")(lambda grad, x: backward(grad, dense(x)))


def _by_options(name: str, call: Callable[..., Call]) -> None:
    """Enter an activation, and its variant in place; `call` takes the operator's options."""

    def forward(x: Tensor, *options: Any, **named: Any) -> Tensor:
        function, chosen = call(*options, **named)
        return function(dense(x), **chosen)

    def in_place(x: Tensor, *options: Any, **named: Any) -> Tensor:
        function, chosen = call(*options, **named)
        return function(x, out=x, **chosen)

    _enter(forward, name)
    _enter(in_place, f"{name}_")


def _enter(run: Callable[..., Any], *names: str) -> None:
    run.__module__ = __name__
    kernel(*names)(run)


def _elu(alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Call:
    """PyTorch's one operator for ELU, SELU and CELU."""
    alpha, scale, input_scale = float(alpha), float(scale), float(input_scale)
    if scale == input_scale == 1.0:
        return dnn.elu, {"alpha": alpha}
    if input_scale == 1.0:
        return dnn.selu, {"alpha": alpha, "gamma": scale}
    if scale == 1.0 and abs(alpha * input_scale - 1.0) < 1e-12:
        return dnn.celu, {"alpha": alpha}
    raise decline("elu: scales that are those of no ELU, SELU or CELU")


_BACKWARD = {dnn.elu: dnn.elu_backward, dnn.selu: dnn.selu_backward, dnn.celu: dnn.celu_backward}

_plain("silu", dnn.silu, dnn.silu_backward)
_plain("mish", dnn.mish, dnn.mish_backward)
_plain("hardswish", dnn.hard_swish, dnn.hard_swish_backward)
_plain("hardsigmoid", dnn.hard_sigmoid, dnn.hard_sigmoid_backward)
for _name, _function in (("relu", dnn.relu), ("sigmoid", dnn.sigmoid), ("tanh", dnn.tanh)):
    _by_options(_name, lambda _function=_function: (_function, {}))
_by_options("gelu", lambda approximate="none": (dnn.gelu, {"approximate": approximate}))
_by_options("hardtanh", lambda low=-1.0, high=1.0: (dnn.hard_tanh, {"min": float(low), "max": float(high)}))
_by_options("leaky_relu", lambda slope=0.01: (dnn.leaky_relu, {"negative_slope": float(slope)}))
_by_options(
    "threshold", lambda threshold, value: (dnn.threshold, {"threshold": float(threshold), "value": float(value)})
)
_by_options("elu", _elu)


@kernel("softplus")
def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return dnn.softplus(dense(x), beta=float(beta), threshold=float(threshold))


@kernel("softplus_backward")
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    return dnn.softplus_backward(grad, dense(x), beta=float(beta), threshold=float(threshold))


@kernel("log_sigmoid_forward")
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    y = dnn.log_sigmoid(dense(x))
    return y, x.new_empty(0) if x.is_cuda else x.abs().neg_().exp_()  # what PyTorch's gradient on the processor reads


@kernel("log_sigmoid_backward")
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return dnn.log_sigmoid_backward(grad, dense(x))


@kernel("sigmoid_backward")
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return dnn.sigmoid_backward(grad, y=dense(y))


@kernel("tanh_backward")
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return dnn.tanh_backward(grad, y=dense(y))


@kernel("gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    return dnn.gelu_backward(grad, dense(x), approximate=approximate)


@kernel("hardtanh_backward")
def hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return dnn.hard_tanh_backward(grad, dense(x), min=float(low), max=float(high))


@kernel("threshold_backward")
def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """PyTorch's gradient of ReLU too, which is given the result for `x`."""
    if threshold == 0:
        return dnn.relu_backward(grad, dense(x))
    return dnn.threshold_backward(grad, dense(x), threshold=float(threshold), value=0.0)


@kernel("leaky_relu_backward")
def leaky_relu_backward(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    """A result has the sign of its input for slopes above 0; PyTorch refuses others in place."""
    return dnn.leaky_relu_backward(grad, dense(x), negative_slope=float(slope))


@kernel("elu_backward")
def elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    if is_result:
        raise decline("elu_backward: the result in the place of the input")
    function, options = _elu(alpha, scale, input_scale)
    return _BACKWARD[function](grad, dense(x), **options)


@kernel("_prelu_kernel")
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    return dnn.prelu(dense(x), weight)


@kernel("glu")
def glu(x: Tensor, dim: int = -1) -> Tensor:
    return dnn.glu(dense(x), axis=dim)


@kernel("glu_backward")
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    return dnn.glu_backward(grad, dense(x), axis=dim)
