"""`dnnarray.interop.autograd`: every differentiable operation held to autograd's own check of gradients."""

import inspect

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find, operations
from dnnarray._problems.base import leaves
from tests.registry import CASES
from tests.support import FLOAT64

autograd = pytest.importorskip("autograd")
from autograd.builtins import tuple as boxed_tuple  # noqa: E402
from autograd.test_util import check_grads  # noqa: E402

from dnnarray.interop import autograd as door  # noqa: E402

_DIFFERENTIABLE = [c for c in CASES if c.gradient and FLOAT64 in c.dtypes and c.op in door.__all__]
_FIRST = list({case.op: case for case in reversed(_DIFFERENTIABLE)}.values())


def _rebuilt(tree, replacements):
    """`tree` with its floating leaves taken from the iterator `replacements`."""
    if isinstance(tree, (tuple, list)):
        branches = [_rebuilt(branch, replacements) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    return next(replacements) if tree is not None and tree.dtype == FLOAT64 else tree


def _floating(arrays):
    return [a for a in leaves(arrays) if a.dtype == FLOAT64]


def _function(case, arrays):
    operation = find(case.op)
    given = (*arrays, *[None] * (len(operation.arrays) - len(arrays)))
    by_place = operation.by_place

    def f(*floating):
        filled = _rebuilt(given, iter(floating))
        named = dict(zip(operation.arrays[by_place:], filled[by_place:], strict=True))
        result = getattr(door, case.op)(*filled[:by_place], **named, **case.options)
        return result[0] if isinstance(result, tuple) else result

    return f


def test_every_operation_with_a_gradient_is_there():
    registered = operations()
    assert set(door.__all__) == {n for n, o in registered.items() if f"{o.base}_backward" in registered}
    bases = {find(n).base for n in door.__all__}
    assert {find(c.op).base for c in _FIRST} == bases


@pytest.mark.parametrize("case", _FIRST, ids=str)
def test_gradients_pass_the_check_of_autograd(case):
    arrays = case.draw(FLOAT64)
    check_grads(_function(case, arrays), modes=["rev"], order=1)(*_floating(arrays))


_TWICE = [c for c in _FIRST if f"{find(c.op).base}_backward_backward" in operations()]


@pytest.mark.parametrize("case", _TWICE, ids=str)
def test_second_derivatives_pass_the_check_of_autograd(case):
    arrays = case.draw(FLOAT64)
    check_grads(_function(case, arrays), modes=["rev"], order=2)(*_floating(arrays))


def test_a_derivative_of_a_derivative_that_is_missing_is_a_named_error():
    x = np.random.default_rng(0).standard_normal((1, 2, 6))
    slope = autograd.grad(lambda x: door.local_response_norm(x, 3).sum())
    with pytest.raises(dnn.UnsupportedError, match="local_response_norm_backward: has no gradient"):
        autograd.grad(lambda x: slope(x).sum())(x)


def _weights(rng):
    return dnn.RNNWeights(
        rng.standard_normal((20, 3)), rng.standard_normal((20, 5)), rng.standard_normal(20), rng.standard_normal(20)
    )


def test_all_results_of_a_recurrent_network_have_gradients():
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal((4, 2, 3)), _weights(rng)

    def f(x, w_ih, w_hh, b_ih, b_hh):
        y, h, c = door.lstm(x, [dnn.RNNWeights(w_ih, w_hh, b_ih, b_hh)])
        return boxed_tuple((y, h, c))

    check_grads(f, modes=["rev"], order=1)(x, *weights[:4])


def test_weights_may_be_one_recorded_list():
    rng = np.random.default_rng(2)
    x, weights = rng.standard_normal((4, 2, 3)), _weights(rng)

    def f(parameters):
        return door.lstm(x, [dnn.RNNWeights(*(parameters[i] for i in range(4)))]).y.sum()

    found = autograd.grad(f)(list(weights[:4]))
    _, pullback = dnn.vjp("lstm", x, [weights])
    (expected,) = pullback((np.ones((4, 2, 5)), None, None))[1]
    for have, want in zip(found, expected[:4], strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12)


def test_a_result_without_a_gradient_names_itself_where_the_loss_takes_it():
    x = np.random.default_rng(3).standard_normal((4, 2, 3))
    assert autograd.grad(lambda x: (door.batch_norm_train(x).y ** 2).sum())(x).shape == x.shape
    with pytest.raises(dnn.UnsupportedError, match="batch_norm_train: its result mean has no gradient"):
        autograd.grad(lambda x: door.batch_norm_train(x).mean.sum())(x)


def test_indices_beside_a_result_are_plain_arrays():
    x = np.random.default_rng(4).standard_normal((1, 2, 6))
    seen = []

    def f(x):
        y, indices = door.max_pool_with_indices(x, 2)
        seen.append(indices)
        return (y * y).sum()

    gradient = autograd.grad(f)(x)
    assert type(seen[0]) is np.ndarray
    expected = np.zeros_like(x)
    np.put_along_axis(expected, seen[0], 2 * np.take_along_axis(x, seen[0], axis=-1), axis=-1)
    np.testing.assert_allclose(gradient, expected)


def test_outside_of_autograd_a_function_is_dnnarrays_own():
    x = np.linspace(-1, 1, 5)
    assert type(door.relu(x)) is np.ndarray
    np.testing.assert_array_equal(door.relu(x), dnn.relu(x))


def test_the_signature_leaves_out_what_has_no_meaning():
    parameters = inspect.signature(door.conv).parameters
    assert "padding" in parameters
    assert not {"out", "workspace"} & set(parameters)
    with pytest.raises(TypeError, match="out"):
        door.relu(np.ones(3), out=np.ones(3))


def test_errors_are_the_named_ones():
    with pytest.raises(dnn.ShapeError, match="conv: weight"):
        autograd.grad(lambda w: door.conv(np.ones((1, 3, 8, 8)), w).sum())(np.ones((4, 5, 3, 3)))
    with pytest.raises(dnn.DTypeError, match="relu"):
        autograd.grad(lambda x: door.relu(x).sum())(np.ones(3, np.complex128))


def test_float32_stays_float32():
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    assert autograd.grad(lambda x: door.gelu(x).sum())(x).dtype == np.float32


def test_a_network_trains():
    rng = np.random.default_rng(5)
    x, target, w = rng.standard_normal((64, 4)), rng.integers(0, 3, 64), rng.standard_normal((3, 4)) / 2
    loss = autograd.value_and_grad(lambda w: door.cross_entropy(door.linear(x, w), target))
    losses = []
    for _ in range(20):
        value, gradient = loss(w)
        losses.append(float(value))
        w = w - 0.5 * gradient
    assert losses[-1] < losses[0]
