"""`sgd`, `adam`, `adamw`, `lion` and `clip_by_global_norm`: the signatures and the checks; the arithmetic is in
`updates`."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._problems import checks


class SGDState(NamedTuple):
    """State of `sgd`: the number of steps made, and a momentum for each array (None without momentum)."""

    step: int
    momentum: Any


class AdamState(NamedTuple):
    """State of `adam` and `adamw`: the number of steps made, the moving means of the gradients and of their squares."""

    step: int
    mean: Any
    square: Any


class LionState(NamedTuple):
    """State of `lion`: the number of steps made, and a momentum for each array."""

    step: int
    momentum: Any


def sgd(
    params: Any,
    grads: Any,
    state: SGDState | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    out: Any = None,
) -> tuple[Any, SGDState]:
    """One step of stochastic gradient descent.

    With :math:`g` the gradient plus ``weight_decay`` times the parameter, :math:`v = \\mu v + (1 -
    \\text{dampening})\\, g` (in the first step :math:`v = g`) and :math:`p = p - \\text{lr} \\cdot v`, or :math:`p -
    \\text{lr} (g + \\mu v)` with `nesterov` [1]_.

    Parameters
    ----------
    params : array or nested structure of arrays
        Dicts, lists, tuples and named tuples of floating arrays. Half types are computed in float32.
    grads : the same structure
        A gradient for each array, with its shape and dtype; an array whose gradient is None stays as it is.
    state : SGDState, optional
        What the step before returned; None begins anew.
    lr : float
        The learning rate, at least 0.
    momentum, dampening, weight_decay : float
        As above, each at least 0.
    nesterov : bool, default False
        Nesterov's momentum; `momentum` must be above 0 and `dampening` 0.
    out : (params, state), optional
        Structures of arrays that the results are written to. The inputs themselves may be given: the step is then made
        in place.

    Returns
    -------
    params : the structure of `params`
        The new arrays.
    state : SGDState
        For the next step. Momenta of half arrays are float32.

    Raises
    ------
    OptionError
        An option is outside of its range, or the structures differ.
    ShapeError, DTypeError
        A gradient does not fit its array.

    References
    ----------
    .. [1] I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> params, state = dnn.sgd({"w": np.array([1.0])}, {"w": np.array([2.0])}, lr=0.1, momentum=0.9)
    >>> params, state = dnn.sgd(params, {"w": np.array([2.0])}, state, lr=0.1, momentum=0.9)
    >>> params["w"], state.step
    (array([0.42]), 2)
    """
    from dnnarray._optimizers import updates

    lr, momentum = checks.number("sgd", "lr", lr, 0), checks.number("sgd", "momentum", momentum, 0)
    dampening = checks.number("sgd", "dampening", dampening, 0)
    weight_decay = checks.number("sgd", "weight_decay", weight_decay, 0)
    rule = updates.SGD(lr, momentum, dampening, weight_decay, updates.checked_nesterov(nesterov, momentum, dampening))
    return updates.apply("sgd", rule, params, grads, state, SGDState, out)


def adam(
    params: Any,
    grads: Any,
    state: AdamState | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    out: Any = None,
) -> tuple[Any, AdamState]:
    """One step of Adam.

    With :math:`g` the gradient plus ``weight_decay`` times the parameter: :math:`m = \\beta_1 m + (1 - \\beta_1) g`,
    :math:`v = \\beta_2 v + (1 - \\beta_2) g^2` and
    :math:`p = p - \\text{lr}\\; \\hat m / (\\sqrt{\\hat v} + \\epsilon)`, where :math:`\\hat m = m / (1 - \\beta_1^t)`
    and :math:`\\hat v = v / (1 - \\beta_2^t)` at step t [1]_.

    Parameters
    ----------
    params, grads, lr, out
        As for `sgd`.
    state : AdamState, optional
        What the step before returned; None begins anew.
    betas : (float, float), default (0.9, 0.999)
        The decay of the two moving means, each at least 0 and below 1.
    eps : float, default 1e-8
        Added to the divisor, at least 0.
    weight_decay : float, default 0.0
        The factor of the L2 penalty's gradient, at least 0; `adamw` decays the parameters themselves.

    Returns
    -------
    params : the structure of `params`
        The new arrays.
    state : AdamState
        For the next step. Means of half arrays are float32.

    Raises
    ------
    OptionError
        An option is outside of its range, or the structures differ.
    ShapeError, DTypeError
        A gradient does not fit its array.

    References
    ----------
    .. [1] D. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> params, state = dnn.adam([np.array([1.0])], [np.array([0.5])], lr=0.1)
    >>> round(float(params[0][0]), 4)
    0.9
    """
    return _adam("adam", params, grads, state, lr, betas, eps, weight_decay, False, out)


def adamw(
    params: Any,
    grads: Any,
    state: AdamState | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    out: Any = None,
) -> tuple[Any, AdamState]:
    """One step of Adam with decoupled weight decay: parameters shrink by the factor ``1 - lr * weight_decay`` before
    the step of `adam` [1]_.

    Parameters
    ----------
    params, grads, lr, out
        As for `sgd`.
    state, betas, eps
        As for `adam`.
    weight_decay : float, default 1e-2
        The rate of the decay, at least 0.

    Returns
    -------
    params : the structure of `params`
        The new arrays.
    state : AdamState
        For the next step. Means of half arrays are float32.

    Raises
    ------
    OptionError
        An option is outside of its range, or the structures differ.
    ShapeError, DTypeError
        A gradient does not fit its array.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> params, state = dnn.adamw([np.array([1.0])], [np.array([0.0])], lr=0.1, weight_decay=0.5)
    >>> params[0]
    array([0.95])
    """
    return _adam("adamw", params, grads, state, lr, betas, eps, weight_decay, True, out)


def _adam(
    op: str,
    params: Any,
    grads: Any,
    state: Any,
    lr: Any,
    betas: Any,
    eps: Any,
    weight_decay: Any,
    decoupled: bool,
    out: Any,
) -> tuple[Any, AdamState]:
    from dnnarray._optimizers import updates

    first, second = updates.checked_betas(op, betas)
    lr, eps = checks.number(op, "lr", lr, 0), checks.number(op, "eps", eps, 0)
    weight_decay = checks.number(op, "weight_decay", weight_decay, 0)
    return updates.apply(
        op, updates.Adam(lr, first, second, eps, weight_decay, decoupled), params, grads, state, AdamState, out
    )


def lion(
    params: Any,
    grads: Any,
    state: LionState | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    out: Any = None,
) -> tuple[Any, LionState]:
    """One step of Lion: the sign of a moving mean, with a step of one length for all elements.

    :math:`p = p\\,(1 - \\text{lr} \\cdot \\text{weight\\_decay}) - \\text{lr} \\cdot \\text{sign}(\\beta_1 m + (1 -
    \\beta_1) g)`, then :math:`m = \\beta_2 m + (1 - \\beta_2) g` [1]_.

    Parameters
    ----------
    params, grads, lr, out
        As for `sgd`.
    state : LionState, optional
        What the step before returned; None begins anew.
    betas : (float, float), default (0.9, 0.99)
        The weights of the momentum in the step and in itself, each at least 0 and below 1.
    weight_decay : float, default 0.0
        The rate of the decay, at least 0.

    Returns
    -------
    params : the structure of `params`
        The new arrays.
    state : LionState
        For the next step. Momenta of half arrays are float32.

    Raises
    ------
    OptionError
        An option is outside of its range, or the structures differ.
    ShapeError, DTypeError
        A gradient does not fit its array.

    References
    ----------
    .. [1] X. Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> params, state = dnn.lion([np.array([1.0, 2.0])], [np.array([0.5, -3.0])], lr=0.1)
    >>> params[0]
    array([0.9, 2.1])
    """
    from dnnarray._optimizers import updates

    first, second = updates.checked_betas("lion", betas)
    lr, weight_decay = checks.number("lion", "lr", lr, 0), checks.number("lion", "weight_decay", weight_decay, 0)
    return updates.apply("lion", updates.Lion(lr, first, second, weight_decay), params, grads, state, LionState, out)


def clip_by_global_norm(grads: Any, max_norm: float) -> tuple[Any, Any]:
    """Scale all gradients down together where their common norm is above a limit [1]_.

    The factor is ``min(1, max_norm / (norm + 1e-6))`` with ``norm`` the square root of the sum of all squares, as in
    PyTorch.

    Parameters
    ----------
    grads : array or nested structure of arrays
        Gradients; leaves that are None stay None.
    max_norm : float
        The largest norm, at least 0.

    Returns
    -------
    grads : the structure of `grads`
        The scaled gradients.
    norm : array, shape ()
        The norm before, float64 where a gradient is float64 and else float32. It stays on the device.

    Raises
    ------
    OptionError
        `max_norm` is negative, or NaN.

    References
    ----------
    .. [1] R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> grads, norm = dnn.clip_by_global_norm({"a": np.array([3.0]), "b": np.array([4.0])}, 1.0)
    >>> float(norm), round(float(grads["b"][0]), 4)
    (5.0, 0.8)
    """
    from dnnarray._optimizers import updates

    return updates.clipped(grads, checks.number("clip_by_global_norm", "max_norm", max_norm, 0, finite=False))
