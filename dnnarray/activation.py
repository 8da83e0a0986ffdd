"""Activations: elementwise nonlinearities and gated units, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dnnarray._call.operation import operation
from dnnarray._call.save import result_of
from dnnarray._problems import activation as problems
from dnnarray._problems.activation import (
    SELU_ALPHA,
    SELU_GAMMA,
    BiasActivationGradients,
    GatedGradients,
    PReLUGradients,
)
from dnnarray._typing import Array, ArrayT

__all__ = [
    "bias_activation",
    "bias_activation_backward",
    "celu",
    "celu_backward",
    "clipped_relu",
    "clipped_relu_backward",
    "elu",
    "elu_backward",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "glu",
    "glu_backward",
    "hard_sigmoid",
    "hard_sigmoid_backward",
    "hard_swish",
    "hard_swish_backward",
    "hard_tanh",
    "hard_tanh_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "log_sigmoid",
    "log_sigmoid_backward",
    "mish",
    "mish_backward",
    "prelu",
    "prelu_backward",
    "relu",
    "relu6",
    "relu6_backward",
    "relu_backward",
    "selu",
    "selu_backward",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "softsign",
    "softsign_backward",
    "swiglu",
    "swiglu_backward",
    "tanh",
    "tanh_backward",
    "threshold",
    "threshold_backward",
]


@operation(problems.elementwise("relu"))
def relu(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Rectified linear unit.

    ``y = max(x, 0)``; NaN stays NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """


@operation(problems.elementwise_backward("relu"))
def relu_backward(grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Gradient of `relu` with respect to `x`: ``grad`` where ``x > 0``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `relu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([0., 5.])
    """


@operation(problems.elementwise("relu6"))
def relu6(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Rectified linear unit cut off at 6.

    ``y = min(max(x, 0), 6)``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications",
    arXiv:1704.04861, 2017.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu6(np.array([2.0, 7.0]))
    array([2., 6.])
    """


@operation(problems.elementwise_backward("relu6"))
def relu6_backward(grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Gradient of `relu6` with respect to `x`: ``grad`` where ``0 < x < 6``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `relu6`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu6_backward(np.array([5.0, 5.0]), np.array([2.0, 7.0]))
    array([5., 0.])
    """


@operation(problems.elementwise("clipped_relu"))
def clipped_relu(x: ArrayT, /, *, max: float = 6.0, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Rectified linear unit cut off at `max`.

    ``y = min(max(x, 0), max)``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    max : float, optional
        The ceiling, 0 or more; 6 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `max` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Hannun et al., "Deep Speech: scaling up end-to-end speech recognition", arXiv:1412.5567, 2014.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.clipped_relu(np.array([-1.0, 2.0]), max=1.0)
    array([0., 1.])
    """


@operation(problems.elementwise_backward("clipped_relu"))
def clipped_relu_backward(
    grad: ArrayT, x: Array, /, *, max: float = 6.0, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `clipped_relu` with respect to `x`: ``grad`` where ``0 < x < max``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    max : float, optional
        As in `clipped_relu`.
    out, workspace : array, optional
        As in `clipped_relu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `clipped_relu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.clipped_relu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]), max=1.0)
    array([0., 0.])
    """


@operation(problems.elementwise("leaky_relu"))
def leaky_relu(
    x: ArrayT, /, *, negative_slope: float = 0.01, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Rectified linear unit with a slope below 0.

    ``y = x`` where ``x > 0``, else ``negative_slope * x``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    negative_slope : float, optional
        Finite; 0.01 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `negative_slope` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Maas, Hannun and Ng, "Rectifier nonlinearities improve neural network acoustic models", ICML 2013.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.leaky_relu(np.array([-1.0, 2.0]))
    array([-0.01,  2.  ])
    """


@operation(problems.elementwise_backward("leaky_relu"))
def leaky_relu_backward(
    grad: ArrayT, x: Array, /, *, negative_slope: float = 0.01, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `leaky_relu` with respect to `x`: ``grad`` where ``x > 0``, else ``negative_slope * grad``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    negative_slope : float, optional
        As in `leaky_relu`.
    out, workspace : array, optional
        As in `leaky_relu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `leaky_relu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.leaky_relu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([0.05, 5.  ])
    """


@operation(problems.elementwise("elu"))
def elu(x: ArrayT, /, *, alpha: float = 1.0, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Exponential linear unit.

    ``y = x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    alpha : float, optional
        Minus the limit far below 0; finite, 1 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `alpha` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Clevert, Unterthiner and Hochreiter, "Fast and accurate deep network learning by exponential linear units (ELUs)",
    ICLR 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.elu(np.array([-1.0, 2.0]))
    array([-0.63212056,  2.        ])
    """


@operation(problems.elementwise_backward("elu"))
def elu_backward(
    grad: ArrayT, x: Array, /, *, alpha: float = 1.0, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `elu` with respect to `x`: ``grad`` where ``x > 0``, else ``grad * alpha * exp(x)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    alpha : float, optional
        As in `elu`.
    out, workspace : array, optional
        As in `elu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `elu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.elu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([1.83939721, 5.        ])
    """


@operation(problems.elementwise("selu"))
def selu(
    x: ArrayT,
    /,
    *,
    alpha: float = SELU_ALPHA,
    gamma: float = SELU_GAMMA,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Scaled exponential linear unit.

    ``y = gamma * x`` where ``x > 0``, else ``gamma * alpha * (exp(x) - 1)``. The defaults, those of PyTorch and of
    ONNX, are the fixed point that keeps mean 0 and variance 1 from layer to layer.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    alpha : float, optional
        Finite; 1.6732632423543772 by default.
    gamma : float, optional
        Finite; 1.0507009873554805 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `alpha` or `gamma` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", NeurIPS 2017.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.selu(np.array([-1.0, 2.0]))
    array([-1.11133074,  2.10140197])
    """


@operation(problems.elementwise_backward("selu"))
def selu_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    alpha: float = SELU_ALPHA,
    gamma: float = SELU_GAMMA,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `selu` with respect to `x`.

    ``gamma * grad`` where ``x > 0``, else ``gamma * alpha * exp(x) * grad``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    alpha, gamma : float, optional
        As in `selu`.
    out, workspace : array, optional
        As in `selu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `selu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.selu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([3.23384302, 5.25350494])
    """


@operation(problems.elementwise("celu"))
def celu(x: ArrayT, /, *, alpha: float = 1.0, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Continuously differentiable exponential linear unit.

    ``y = x`` where ``x > 0``, else ``alpha * (exp(x / alpha) - 1)``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    alpha : float, optional
        Width and depth of the bend; finite, not 0, 1 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `alpha` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Barron, "Continuously differentiable exponential linear units", arXiv:1704.07483, 2017.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.celu(np.array([-1.0, 2.0]))
    array([-0.63212056,  2.        ])
    """


@operation(problems.elementwise_backward("celu"))
def celu_backward(
    grad: ArrayT, x: Array, /, *, alpha: float = 1.0, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `celu` with respect to `x`: ``grad`` where ``x > 0``, else ``grad * exp(x / alpha)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    alpha : float, optional
        As in `celu`.
    out, workspace : array, optional
        As in `celu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `celu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.celu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([1.83939721, 5.        ])
    """


@operation(problems.elementwise("sigmoid"), save=result_of("sigmoid", x=None))
def sigmoid(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Logistic function.

    ``y = 1 / (1 + exp(-x))``, with full relative precision also far below 0.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.sigmoid(np.array([0.0, 1.0]))
    array([0.5       , 0.73105858])
    """


@operation(problems.backward_by_result("sigmoid"), arrays=("x", "y"))
def sigmoid_backward(
    grad: ArrayT,
    /,
    x: Array | None = None,
    *,
    y: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `sigmoid` with respect to `x`: ``grad * y * (1 - y)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape, optional
        Input of the forward; not read where `y` is given, and needed where it is not. It gives the gradient its full
        relative precision also where `y` is rounded to 1.
    y : array, shape of `x`, optional
        Output of the forward. `vjp` keeps it in the place of `x` for float64 and float32; rounded to a half type it
        would cost the gradient accuracy.
    out, workspace : array, optional
        As in `sigmoid`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `y` does not match `x`.
    ArrayTypeError
        Neither `x` nor `y` is given, or an argument is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.sigmoid_backward(np.array([5.0, 5.0]), np.array([0.0, 1.0]))
    array([1.25      , 0.98305967])
    >>> dnn.sigmoid_backward(np.array([5.0, 5.0]), y=np.array([0.5, 1.0]))
    array([1.25, 0.  ])
    """


@operation(problems.elementwise("hard_sigmoid"))
def hard_sigmoid(
    x: ArrayT, /, *, alpha: float = 1 / 6, beta: float = 0.5, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Logistic function by three straight lines.

    ``y = min(max(alpha * x + beta, 0), 1)``. The default slope is PyTorch's; ONNX has 0.2.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    alpha : float, optional
        Slope of the middle line; finite, 1/6 by default.
    beta : float, optional
        Value at 0; finite, 0.5 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `alpha` or `beta` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Courbariaux, Bengio and David, "BinaryConnect: training deep neural networks with binary weights during
    propagations", NeurIPS 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_sigmoid(np.array([-4.0, 0.0]))
    array([0. , 0.5])
    """


@operation(problems.elementwise_backward("hard_sigmoid"))
def hard_sigmoid_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    alpha: float = 1 / 6,
    beta: float = 0.5,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `hard_sigmoid` with respect to `x`: ``alpha * grad`` where ``0 < alpha * x + beta < 1``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    alpha, beta : float, optional
        As in `hard_sigmoid`.
    out, workspace : array, optional
        As in `hard_sigmoid`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `hard_sigmoid`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_sigmoid_backward(np.array([5.0, 5.0]), np.array([-4.0, 0.0]))
    array([0.        , 0.83333333])
    """


@operation(problems.elementwise("log_sigmoid"))
def log_sigmoid(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Logarithm of the logistic function.

    ``y = log(1 / (1 + exp(-x))) = min(x, 0) - log(1 + exp(-|x|))``, which never overflows.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.log_sigmoid(np.array([-1000.0, 0.0]))
    array([-1.00000000e+03, -6.93147181e-01])
    """


@operation(problems.elementwise_backward("log_sigmoid"))
def log_sigmoid_backward(
    grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `log_sigmoid` with respect to `x`: ``grad / (1 + exp(x))``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `log_sigmoid`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.log_sigmoid_backward(np.array([5.0, 5.0]), np.array([-1000.0, 0.0]))
    array([5. , 2.5])
    """


@operation(problems.elementwise("tanh"), save=result_of("tanh", x=None))
def tanh(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Hyperbolic tangent.

    ``y = (exp(x) - exp(-x)) / (exp(x) + exp(-x))``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.tanh(np.array([0.0, 1.0]))
    array([0.        , 0.76159416])
    """


@operation(problems.backward_by_result("tanh"), arrays=("x", "y"))
def tanh_backward(
    grad: ArrayT,
    /,
    x: Array | None = None,
    *,
    y: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `tanh` with respect to `x`: ``grad * (1 - y**2)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape, optional
        Input of the forward; not read where `y` is given, and needed where it is not. It gives the gradient its full
        relative precision also where `y` is rounded to 1 or -1.
    y : array, shape of `x`, optional
        Output of the forward. `vjp` keeps it in the place of `x` for float64 and float32; rounded to a half type it
        would cost the gradient accuracy.
    out, workspace : array, optional
        As in `tanh`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `y` does not match `x`.
    ArrayTypeError
        Neither `x` nor `y` is given, or an argument is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.tanh_backward(np.array([5.0, 5.0]), np.array([0.0, 1.0]))
    array([5.        , 2.09987171])
    >>> dnn.tanh_backward(np.array([5.0, 5.0]), y=np.array([0.0, 0.5]))
    array([5.  , 3.75])
    """


@operation(problems.elementwise("hard_tanh"))
def hard_tanh(
    x: ArrayT, /, *, min: float = -1.0, max: float = 1.0, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Identity between two bounds.

    ``y = min(max(x, min), max)``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    min, max : float, optional
        The bounds, `min` at most `max`; infinity leaves a side open; -1 and 1 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        A bound is no number, or `min` is above `max`.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Collobert, "Large scale machine learning", PhD thesis, Université Paris 6, 2004.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_tanh(np.array([-1.0, 2.0]))
    array([-1.,  1.])
    """


@operation(problems.elementwise_backward("hard_tanh"))
def hard_tanh_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    min: float = -1.0,
    max: float = 1.0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `hard_tanh` with respect to `x`: ``grad`` where ``min < x < max``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    min, max : float, optional
        As in `hard_tanh`.
    out, workspace : array, optional
        As in `hard_tanh`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `hard_tanh`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_tanh_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([0., 0.])
    """


@operation(problems.elementwise("softplus"))
def softplus(
    x: ArrayT,
    /,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Smooth rectified linear unit.

    ``y = log(1 + exp(beta * x)) / beta``, and ``y = x`` where ``beta * x > threshold``. It never overflows.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    beta : float, optional
        Sharpness of the bend; finite, not 0, 1 by default.
    threshold : float, optional
        From where on the function is taken for the identity; 20 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `beta` or `threshold` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Dugas, Bengio, Bélisle, Nadeau and Garcia, "Incorporating second-order functional knowledge for better option
    pricing", NeurIPS 2000.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softplus(np.array([-1.0, 2.0]), beta=0.5)
    array([0.94815397, 2.62652338])
    """


@operation(problems.elementwise_backward("softplus"))
def softplus_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `softplus` with respect to `x`.

    ``grad / (1 + exp(-beta * x))``, and ``grad`` where ``beta * x > threshold``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    beta, threshold : float, optional
        As in `softplus`.
    out, workspace : array, optional
        As in `softplus`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `softplus`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softplus_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]), beta=0.5)
    array([1.88770334, 3.65529289])
    """


@operation(problems.elementwise("softsign"))
def softsign(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Sign with a soft step.

    ``y = x / (1 + |x|)``; as in PyTorch, an infinite `x` gives NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softsign(np.array([-1.0, 3.0]))
    array([-0.5 ,  0.75])
    """


@operation(problems.elementwise_backward("softsign"))
def softsign_backward(grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Gradient of `softsign` with respect to `x`: ``grad / (1 + |x|)**2``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `softsign`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softsign_backward(np.array([5.0, 5.0]), np.array([-1.0, 3.0]))
    array([1.25  , 0.3125])
    """


@operation(problems.elementwise("gelu"))
def gelu(
    x: ArrayT,
    /,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gaussian error linear unit.

    ``y = x * Phi(x)`` with the normal distribution function ``Phi(x) = (1 + erf(x / sqrt(2))) / 2``; with
    ``approximate="tanh"``, ``Phi(x) = (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    approximate : {"none", "tanh"}, optional
        "none" (the default) is exact.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `approximate` is neither of the two.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415, 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.gelu(np.array([-1.0, 2.0]))
    array([-0.15865525,  1.95449974])
    """


@operation(problems.elementwise_backward("gelu"))
def gelu_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    approximate: Literal["none", "tanh"] = "none",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `gelu` with respect to `x`: ``grad * (Phi(x) + x * Phi'(x))``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    approximate : {"none", "tanh"}, optional
        As in `gelu`.
    out, workspace : array, optional
        As in `gelu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `gelu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.gelu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([-0.41657735,  5.42615901])
    """


@operation(problems.elementwise("silu"))
def silu(x: ArrayT, /, *, beta: float = 1.0, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Sigmoid linear unit, also called swish.

    ``y = x / (1 + exp(-beta * x))``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    beta : float, optional
        Finite; 1 by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `beta` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Elfwing, Uchibe and Doya, "Sigmoid-weighted linear units for neural network function approximation in reinforcement
    learning", Neural Networks 107 (2018); Ramachandran, Zoph and Le, "Searching for activation functions",
    arXiv:1710.05941, 2017 (`beta`).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.silu(np.array([-1.0, 2.0]), beta=2.0)
    array([-0.11920292,  1.96402758])
    """


@operation(problems.elementwise_backward("silu"))
def silu_backward(
    grad: ArrayT, x: Array, /, *, beta: float = 1.0, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `silu` with respect to `x`.

    ``grad * (s + beta * x * s * (1 - s))`` with ``s = 1 / (1 + exp(-beta * x))``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    beta : float, optional
        As in `silu`.
    out, workspace : array, optional
        As in `silu`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `silu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.silu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]), beta=2.0)
    array([-0.45392124,  5.26332307])
    """


@operation(problems.elementwise("hard_swish"))
def hard_swish(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Swish by straight lines and a parabola.

    ``y = x * min(max(x + 3, 0), 6) / 6``.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Howard et al., "Searching for MobileNetV3", ICCV 2019.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_swish(np.array([1.0, 4.0]))
    array([0.66666667, 4.        ])
    """


@operation(problems.elementwise_backward("hard_swish"))
def hard_swish_backward(
    grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `hard_swish` with respect to `x`.

    0 where ``x <= -3``, ``grad`` where ``x >= 3``, else ``grad * (x / 3 + 1 / 2)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `hard_swish`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.hard_swish_backward(np.array([5.0, 5.0]), np.array([1.0, 4.0]))
    array([4.16666667, 5.        ])
    """


@operation(problems.elementwise("mish"))
def mish(x: ArrayT, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Self-regularized smooth activation.

    ``y = x * tanh(log(1 + exp(x)))``, which never overflows.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Misra, "Mish: a self regularized non-monotonic activation function", BMVC 2020.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.mish(np.array([-1.0, 2.0]))
    array([-0.30340146,  1.94395896])
    """


@operation(problems.elementwise_backward("mish"))
def mish_backward(grad: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Gradient of `mish` with respect to `x`.

    ``grad * (t + x * s * (1 - t**2))`` with ``t = tanh(log(1 + exp(x)))`` and ``s = 1 / (1 + exp(-x))``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `mish`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.mish_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([0.29608378, 5.34658967])
    """


@operation(problems.elementwise("threshold"))
def threshold(
    x: ArrayT, /, *, threshold: float, value: float, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """A constant up to a threshold, the identity above it.

    ``y = x`` where ``x > threshold``, else `value`; NaN stays NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    threshold : float
        Where the step is; no NaN.
    value : float
        The result at and below the threshold; no NaN.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `threshold` or `value` is no number of that kind.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.threshold(np.array([-1.0, 2.0]), threshold=0.5, value=-1.0)
    array([-1.,  2.])
    """


@operation(problems.elementwise_backward("threshold"))
def threshold_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    threshold: float,
    value: float,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `threshold` with respect to `x`: ``grad`` where ``x > threshold``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    threshold, value : float
        As in `threshold`.
    out, workspace : array, optional
        As in `threshold`; `out` may be `grad` itself too.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `threshold`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.threshold_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]), threshold=0.5, value=-1.0)
    array([0., 5.])
    """


@operation(problems.prelu)
def prelu(x: ArrayT, weight: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Rectified linear unit with a learned slope below 0.

    ``y = x`` where ``x > 0``, else ``weight * x``.

    Parameters
    ----------
    x : array, any shape; (N, C, *space) for one slope per channel
        float64, float32, float16 or bfloat16.
    weight : array
        The slope: one element; or shape (C,), along axis 1 of `x`; or any shape that broadcasts to that of `x` by
        NumPy's rules. A one-dimensional `weight` that fits axis 1 of an `x` with two axes or more stands there, as in
        PyTorch, even if it fits the last axis too.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `weight` does not fit `x`.
    DTypeError
        `x` is not floating, or `weight` has another dtype.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers", ICCV 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.prelu(np.array([[-1.0, -1.0, 2.0]]), np.array([0.5, 0.25, 0.1]))
    array([[-0.5 , -0.25,  2.  ]])
    """


@operation(problems.prelu_backward)
def prelu_backward(
    grad: ArrayT,
    x: Array,
    weight: Array,
    /,
    *,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> PReLUGradients[ArrayT]:
    """Gradients of `prelu`.

    With respect to `x`: ``grad`` where ``x > 0``, else ``weight * grad``. With respect to `weight`: the sum of ``grad *
    x`` over the elements with ``x <= 0`` that share the slope.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x, weight : array
        As in `prelu`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the two results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    PReLUGradients
        ``x`` and ``weight``, each in the shape of its array.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `weight` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.prelu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]), np.array([0.5]))
    PReLUGradients(x=array([2.5, 5. ]), weight=array([-5.]))
    """


@operation(problems.glu)
def glu(x: ArrayT, /, *, axis: int = -1, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Gated linear unit: one half of the array gates the other.

    ``y = a * sigmoid(b)``, with a and b the first and the second half of `x` along `axis`.

    Parameters
    ----------
    x : array, one axis or more
        float64, float32, float16 or bfloat16.
    axis : int, optional
        The axis that is halved, of even extent; the last by default.
    out : array, optional
        Where to write the result: shape of `x` with half the extent at `axis`.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape of `x` with half the extent at `axis`; its dtype.

    Raises
    ------
    ShapeError
        `x` has no axes, or an odd extent at `axis`.
    DTypeError
        `x` is not floating.
    OptionError
        `x` has no such axis.

    References
    ----------
    Dauphin, Fan, Auli and Grangier, "Language modeling with gated convolutional networks", ICML 2017.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.glu(np.array([3.0, -4.0, 0.0, 0.0]))
    array([ 1.5, -2. ])
    """


@operation(problems.glu_backward)
def glu_backward(
    grad: ArrayT, x: Array, /, *, axis: int = -1, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """Gradient of `glu` with respect to `x`: ``grad * s`` in the first half, ``grad * a * s * (1 - s)`` in the second,
    ``s = sigmoid(b)``.

    Parameters
    ----------
    grad : array, shape of the output
        Gradient of the output.
    x : array
        Input of the forward.
    axis : int, optional
        As in `glu`.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match the output of ``glu(x)``.
    OptionError
        As in `glu`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.glu_backward(np.array([1.0, 1.0]), np.array([3.0, -4.0, 0.0, 0.0]))
    array([ 0.5 ,  0.5 ,  0.75, -1.  ])
    """


@operation(problems.gated("silu"))
def swiglu(gate: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Linear unit gated by swish.

    ``y = silu(gate) * x``.

    Parameters
    ----------
    gate, x : array, any one shape
        float64, float32, float16 or bfloat16.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `gate` and `x` differ in shape or dtype, or are not floating.

    References
    ----------
    Shazeer, "GLU variants improve transformer", arXiv:2002.05202, 2020.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.swiglu(np.array([0.0, 100.0]), np.array([3.0, 3.0]))
    array([  0., 300.])
    """


@operation(problems.gated_backward("silu"))
def swiglu_backward(
    grad: ArrayT,
    gate: Array,
    x: Array,
    /,
    *,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> GatedGradients[ArrayT]:
    """Gradients of `swiglu`: ``grad * x * silu'(gate)`` with respect to `gate`, ``grad * silu(gate)`` with respect to
    `x`.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    gate, x : array
        Inputs of the forward.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the two results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    GatedGradients
        ``gate`` and ``x``.

    Raises
    ------
    ShapeError, DTypeError
        The three arrays differ in shape or dtype, or are not floating.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.swiglu_backward(np.array([1.0]), np.array([0.0]), np.array([3.0]))
    GatedGradients(gate=array([1.5]), x=array([0.]))
    """


@operation(problems.gated("gelu"))
def geglu(gate: ArrayT, x: Array, /, *, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Linear unit gated by the exact `gelu`.

    ``y = gelu(gate) * x``.

    Parameters
    ----------
    gate, x : array, any one shape
        float64, float32, float16 or bfloat16.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `gate` and `x` differ in shape or dtype, or are not floating.

    References
    ----------
    Shazeer, "GLU variants improve transformer", arXiv:2002.05202, 2020.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.geglu(np.array([0.0, 100.0]), np.array([3.0, 3.0]))
    array([  0., 300.])
    """


@operation(problems.gated_backward("gelu"))
def geglu_backward(
    grad: ArrayT,
    gate: Array,
    x: Array,
    /,
    *,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> GatedGradients[ArrayT]:
    """Gradients of `geglu`: ``grad * x * gelu'(gate)`` with respect to `gate`, ``grad * gelu(gate)`` with respect to
    `x`.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    gate, x : array
        Inputs of the forward.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the two results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    GatedGradients
        ``gate`` and ``x``.

    Raises
    ------
    ShapeError, DTypeError
        The three arrays differ in shape or dtype, or are not floating.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.geglu_backward(np.array([1.0]), np.array([0.0]), np.array([3.0]))
    GatedGradients(gate=array([1.5]), x=array([0.]))
    """


@operation(problems.bias_activation, arrays=("residual",))
def bias_activation(
    x: ArrayT,
    bias: Array,
    /,
    *,
    activation: str,
    axis: int = 1,
    residual: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Bias, residual and activation in one pass.

    ``y = activation(x + bias + residual)``, the bias along `axis`.

    Parameters
    ----------
    x : array, one axis or more; (N, C, *space) with the default `axis`
        float64, float32, float16 or bfloat16.
    bias : array, shape (C,)
        One number for each place along `axis`.
    activation : str or None
        The name of an elementwise activation of this module, taken with its default parameters; `prelu` and
        `threshold`, which have none, are left out. None is the identity.
    axis : int, optional
        The axis of the bias; 1 by default.
    residual : array, shape of `x`, optional
        Added before the activation.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `bias` or `residual` does not fit `x`.
    DTypeError
        The arrays differ in dtype or are not floating.
    OptionError
        `activation` is no such name, or `x` has no such axis.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.bias_activation(np.array([[1.0, 1.0]]), np.array([-2.0, 2.0]), activation="relu")
    array([[0., 3.]])
    """


@operation(problems.bias_activation_backward, arrays=("residual",))
def bias_activation_backward(
    grad: ArrayT,
    x: Array,
    bias: Array,
    /,
    *,
    activation: str,
    axis: int = 1,
    residual: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> BiasActivationGradients[ArrayT]:
    """Gradients of `bias_activation`.

    With respect to `x` and `residual`: ``g = grad * activation'(x + bias + residual)``. With respect to `bias`: the sum
    of g over all axes but `axis`.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x, bias : array
        As in `bias_activation`.
    activation, axis, residual
        As in `bias_activation`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the two results, or three with a residual.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    BiasActivationGradients
        ``x``, ``bias`` and ``residual`` (None without one), each in the shape of its array.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `bias_activation`, or `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> grad, x, bias = np.array([[5.0, 5.0]]), np.array([[1.0, 1.0]]), np.array([-2.0, 2.0])
    >>> dnn.bias_activation_backward(grad, x, bias, activation="relu")
    BiasActivationGradients(x=array([[0., 5.]]), bias=array([0., 5.]), residual=None)
    """
