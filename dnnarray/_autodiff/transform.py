"""`value_and_grad`, `grad`, `checkpoint` and `stop_gradient`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from dnnarray._errors import OptionError
from dnnarray._tree import leaves, tree_map


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Make a function that returns the value of `f` and its gradient.

    `f` may call any differentiable function of dnnarray, use operators, indexing and broadcasting on its arrays, and
    the functions of the Array API namespace that ``x.__array_namespace__()`` gives. While it runs, its arrays are
    recorded; control flow is ordinary Python.

    Parameters
    ----------
    f : callable
        A function of arrays, or of nested dicts, lists, tuples and named tuples of arrays, which returns a scalar (an
        array of shape ``()``).
    argnums : int or sequence of int, optional
        The positional arguments to differentiate with respect to, by default the first one.
    has_aux : bool, optional
        Whether `f` returns a pair ``(value, aux)``. The auxiliary output may be any structure of arrays; it has no
        gradient.

    Returns
    -------
    callable
        ``(value, gradient)`` of the arguments of `f`, or ``((value, aux), gradient)`` with `has_aux`. The gradient has
        the structure of the argument (a tuple of such structures where `argnums` is a sequence), with None for leaves
        that have no gradient: integers, indices, text, None. Each gradient has the shape, the dtype and the device of
        its array; an array that does not affect the value has a gradient of zeros.

    Raises
    ------
    ShapeError
        `f` returned an array that is no scalar.
    UnsupportedError
        `f` used a function without a gradient rule, or assigned to an array that is being recorded.
    ArrayTypeError
        `f` made a Python number or an array of another library of an array that is being recorded.

    Notes
    -----
    For a scalar :math:`L = f(x)` the gradient is :math:`\\partial L / \\partial x`, by reverse-mode differentiation:
    one forward run, one backward run over the recorded steps in reverse order [1]_. Operations keep for the backward
    run what their own ``*_backward`` function needs.

    References
    ----------
    .. [1] A. Griewank, A. Walther, "Evaluating Derivatives", 2nd edition, SIAM, 2008.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> def loss(params, x, target):
    ...     scores = dnn.linear(dnn.relu(dnn.linear(x, params["hidden"])), params["out"])
    ...     return dnn.cross_entropy(scores, target)
    >>> params = {"hidden": np.eye(3), "out": np.ones((2, 3))}
    >>> value, grads = dnn.value_and_grad(loss)(params, np.array([[1.0, -1.0, 2.0]]), np.array([0]))
    >>> round(float(value), 4)
    0.6931
    >>> grads["out"]
    array([[-0.5,  0. , -1. ],
           [ 0.5,  0. ,  1. ]])
    """
    places = _checked_places(argnums)

    @functools.wraps(f)
    def differentiated(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        from dnnarray._autodiff.run import differentiate

        if places and max(places) >= len(arguments):
            raise OptionError(
                f"value_and_grad: argnums is {argnums}; expected places among the {len(arguments)} positional "
                "arguments given."
            )
        value, aux, gradients = differentiate(f, places, arguments, named, has_aux)
        return ((value, aux) if has_aux else value), (gradients if isinstance(argnums, Sequence) else gradients[0])

    return differentiated


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """Make a function that returns the gradient of `f` alone; see `value_and_grad`.

    Parameters
    ----------
    f : callable
        A function of arrays or nested structures of arrays, which returns a scalar.
    argnums : int or sequence of int, optional
        The positional arguments to differentiate with respect to, by default the first one.

    Returns
    -------
    callable
        The gradient as `value_and_grad` gives it.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.grad(lambda x: (x**3).sum())(np.array([1.0, 2.0]))
    array([ 3., 12.])
    """
    both = value_and_grad(f, argnums)

    @functools.wraps(f)
    def gradient(*arguments: Any, **named: Any) -> Any:
        return both(*arguments, **named)[1]

    return gradient


def checkpoint(f: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that keeps nothing but its arguments for the backward run, and computes the rest anew there [1]_.

    Parameters
    ----------
    f : callable
        A function of arrays or nested structures of arrays, which returns an array or a structure of arrays. All arrays
        with a gradient must be arguments; those that `f` takes from an enclosing function are an error. `f` must
        compute the same when it runs for the second time, so random functions need the same ``seed``.

    Returns
    -------
    callable
        The same function; outside of `value_and_grad` it behaves like `f`.

    Raises
    ------
    UnsupportedError
        `f` used a recorded array that is none of its arguments.

    References
    ----------
    .. [1] T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> block = dnn.checkpoint(lambda x, w: dnn.gelu(dnn.linear(x, w)))
    >>> dnn.grad(lambda w: block(np.ones((1, 2)), w).sum())(np.zeros((2, 2)))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """

    @functools.wraps(f)
    def checkpointed(*arguments: Any, **named: Any) -> Any:
        from dnnarray._autodiff.run import recompute
        from dnnarray._autodiff.traced import top_trace

        trace = top_trace(leaves((arguments, named)))
        return f(*arguments, **named) if trace is None else recompute(f, trace, arguments, named)

    return checkpointed


def stop_gradient(x: Any) -> Any:
    """The plain value of an array, or of every array in a nested structure: a constant for `value_and_grad`.

    Parameters
    ----------
    x : array or nested structure of arrays
        Arrays inside a function that is being differentiated, or any others.

    Returns
    -------
    array or nested structure of arrays
        The values, without a copy.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.grad(lambda x: (x * dnn.stop_gradient(x)).sum())(np.array([3.0]))
    array([3.])
    """
    from dnnarray._autodiff.traced import plain

    return tree_map(plain, x)


def _checked_places(argnums: int | Sequence[int]) -> tuple[int, ...]:
    places = tuple(argnums) if isinstance(argnums, Sequence) else (argnums,)
    if not all(isinstance(p, int) and not isinstance(p, bool) and p >= 0 for p in places):
        raise OptionError(
            f"value_and_grad: argnums is {argnums!r}; expected the place of a positional argument, or several, from "
            "0 on."
        )
    return places
