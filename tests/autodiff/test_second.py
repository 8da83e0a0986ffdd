"""Second derivatives: the gradient of every operation that computes a gradient, against central differences in
float64."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._autodiff.second.plan import _BILINEAR, _RULES, DEFINITIONS
from dnnarray._call.operation import find, operations
from tests.registry import CASES
from tests.support import FLOAT64, flat

_HAVE = {*_RULES, *DEFINITIONS, *_BILINEAR}
_BACKWARD = [o for o in operations().values() if o.name.endswith("_backward") and o.name == o.base]
_NONE = [
    *("attention", "attention_varlen", "multi_head_attention", "rotary_embedding", "ctc_loss", "grid_sample"),
    *("rnn", "gru", "lstm", "rnn_cell", "gru_cell", "lstm_cell"),
]
_TWICE = [
    c
    for c in CASES
    if c.gradient and FLOAT64 in c.dtypes and find(c.op).base in _HAVE and c.options.get("mode") != "max"
]
_FAMILIES = ("conv", "linear", "activation", "norm", "softmax", "pool", "loss")  # of the public contract
_STEP = 1e-5


def _differences(f, array, directions):
    """Central differences of a scalar function of one array, of the fourth order."""
    return [
        (8 * (f(array + _STEP * d) - f(array - _STEP * d)) - f(array + 2 * _STEP * d) + f(array - 2 * _STEP * d))
        / (12 * _STEP)
        for d in directions
    ]


def _with(arrays, place, inner, array):
    """The arrays with another one at a place, which may lie in a nested argument."""
    changed = list(arrays)
    changed[place] = array if inner is None else (*arrays[place][:inner], array, *arrays[place][inner + 1 :])
    return changed


def _places(arrays):
    for place, array in enumerate(arrays):
        if isinstance(array, tuple):
            yield from ((place, inner, leaf) for inner, leaf in enumerate(array) if leaf is not None)
        elif array is not None and array.dtype == FLOAT64:
            yield place, None, array


@pytest.mark.parametrize("case", _TWICE, ids=str)
def test_gradients_of_gradients_agree_with_finite_differences(case):
    forward, backward = find(case.op), find(f"{find(case.op).base}_backward")
    arrays, rng = case.draw(FLOAT64), np.random.default_rng(5)
    arrays = (*arrays, *(None,) * (len(forward.arrays) - len(arrays)))
    results = flat(forward.call(arrays, case.options))
    nested = "grad" in backward.nested
    heads = [rng.standard_normal(r.shape) for r in (results if nested else results[:1])]
    given = (tuple(heads) if nested else heads[0], *arrays)
    options = {n: v for n, v in case.options.items() if n in backward.defaults}
    output, pullback = dnn.vjp(backward.name, *given, **options)
    outputs = output if isinstance(output, tuple) else (output,)
    weights = tuple(None if o is None else rng.standard_normal(o.shape) for o in outputs)
    found = pullback(weights if isinstance(output, tuple) else weights[0])
    assert len(found) == len(given)
    fields = getattr(output, "_fields", forward.gradients)
    full = (*given, *(None,) * (len(backward.arrays) - len(given)))

    def objective(arrays):
        again = backward.call(tuple(arrays), options)
        again = again if isinstance(again, tuple) else (again,)
        return sum(float((w * a).sum()) for w, a in zip(weights, again, strict=True) if w is not None)

    for place, inner, array in _places(given):
        name = backward.arrays[place]
        gradient = found[place]
        if name != "grad" and name not in fields:
            assert gradient is None
            continue
        gradient = gradient if inner is None else gradient[inner]
        assert gradient.shape == array.shape
        assert gradient.dtype == array.dtype
        directions = [rng.standard_normal(array.shape) for _ in range(3)]
        expected = _differences(lambda a, p=place, i=inner: objective(_with(full, p, i, a)), array, directions)
        slopes = [float((gradient * d).sum()) for d in directions]
        scale = max(1.0, *map(abs, expected))
        np.testing.assert_allclose(slopes, expected, rtol=2e-6, atol=2e-7 * scale, err_msg=name)


def test_every_backward_is_differentiated_or_refuses_by_name():
    assert {o.base.removesuffix("_backward") for o in _BACKWARD} == _HAVE | set(_NONE)
    assert {find(c.op).base for c in _TWICE} == _HAVE
    families = {o.family: [] for o in _BACKWARD}
    for o in _BACKWARD:
        families[o.family].append(o.base.removesuffix("_backward"))
    assert {n for f in _FAMILIES for n in families[f]} - _HAVE == {"ctc_loss"}


@pytest.mark.parametrize("name", _NONE)
def test_what_has_no_second_derivative_says_so(name):
    with pytest.raises(dnn.UnsupportedError, match=f"^{name}_backward: has no gradient; there are second derivatives"):
        dnn.vjp(f"{name}_backward", np.ones(3), np.ones(3))


def test_options_without_a_second_derivative_say_so():
    x, boxes = np.ones((1, 2, 6, 6)), np.array([[0, 0.0, 0.0, 4.0, 4.0]])
    given = (np.ones((1, 2, 2, 2)), x, boxes)
    _, pullback = dnn.vjp("roi_align_backward", *given, output_size=2, mode="max")
    with pytest.raises(dnn.UnsupportedError, match="mode is 'max'"):
        pullback(np.ones_like(x))


def test_gradients_that_nobody_needs_are_left_out():
    g, x, w = np.ones((2, 4)), np.ones((2, 3)), np.ones((4, 3))
    output, pullback = dnn.vjp("linear_backward", g, x, w, needs=("x", "weight"))
    found = pullback((np.ones_like(x), None, *(None,) * (len(output) - 2)))
    assert found[0] is None
    np.testing.assert_array_equal(found[1], np.zeros_like(x))
    np.testing.assert_array_equal(found[2], np.full_like(w, 2.0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "softmax", "layer_norm", "sigmoid", "linear"])
def test_other_dtypes_agree_with_float64(name, dtype):
    rng, dtype = np.random.default_rng(0), dnn.Spec((), dtype).dtype
    shapes = {"linear": ((3, 6), (5, 6)), "layer_norm": ((3, 6), (6,))}.get(name, ((3, 6),))
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    head = rng.standard_normal((3, 5 if name == "linear" else 6)).astype(dtype)
    seeds = [rng.standard_normal(s).astype(dtype) for s in shapes]

    def gradients(convert):
        output, pullback = dnn.vjp(f"{name}_backward", convert(head), *map(convert, arrays))
        several = isinstance(output, tuple)
        weights = [*map(convert, seeds), *(None,) * (len(output) - len(seeds) if several else 0)]
        return flat(pullback(tuple(weights) if several else weights[0]))

    accuracy = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype.name]
    for have, want in zip(gradients(lambda a: a), gradients(lambda a: a.astype(np.float64)), strict=True):
        assert have.dtype == dtype
        np.testing.assert_allclose(have.astype(np.float64), want, rtol=accuracy, atol=accuracy * np.abs(want).max())


def _network(params, x):
    y = dnn.conv(x, params["conv"], params["bias"], padding=1, activation="gelu")
    y = dnn.max_pool(dnn.batch_norm_train(y, params["scale"], params["shift"]).y, 2)
    y = dnn.layer_norm(dnn.linear(y.reshape(len(x), -1), params["linear"], activation="tanh"))
    return dnn.cross_entropy(y, np.arange(len(x)) % 4)


def test_a_penalty_on_the_gradient_of_a_network_is_differentiated():
    """The squared norm of the gradient with respect to the image, differentiated with respect to the parameters."""
    rng = np.random.default_rng(3)
    shapes = {"conv": (3, 2, 3, 3), "bias": (3,), "scale": (3,), "shift": (3,), "linear": (4, 12)}
    params = {n: rng.standard_normal(s) * 0.5 for n, s in shapes.items()}
    x = rng.standard_normal((5, 2, 4, 4))

    def penalty(params):
        return (dnn.grad(_network, 1)(params, x) ** 2).sum()

    found = dnn.grad(penalty)(params)
    for name, array in params.items():
        directions = [rng.standard_normal(array.shape) for _ in range(3)]
        expected = _differences(lambda a, n=name: float(penalty(params | {n: a})), array, directions)
        slopes = [float((found[name] * d).sum()) for d in directions]
        np.testing.assert_allclose(slopes, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "mish", "tanh", "sigmoid", "softmax", "rms_norm"])
def test_third_derivatives_follow_from_the_second_ones(name):
    x, w = np.linspace(-2.0, 2.5, 7), np.cos(np.arange(7.0))

    def f(x):
        return (getattr(dnn, name)(x) * w).sum()

    def second(x):
        return (dnn.grad(lambda x: (dnn.grad(f)(x) * w).sum())(x) * w).sum()

    directions = [np.sin(np.arange(7.0)), np.ones(7)]
    slopes = [float((dnn.grad(second)(x) * d).sum()) for d in directions]
    np.testing.assert_allclose(slopes, _differences(second, x, directions), rtol=1e-6, atol=1e-8)


def test_arrays_of_two_recordings_in_one_call_go_to_the_inner_one():
    x, w = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])

    def inner(w, x):
        return dnn.linear(x, w).sum()

    def outer(x):
        return (dnn.grad(inner)(w, x) * np.array([[10.0, 1.0]])).sum()

    dnn.grad(inner)(w, x)  # the form of this call is known when both arrays are recorded by one trace
    dnn.grad(inner, (0, 1))(w, x)
    value, gradient = dnn.value_and_grad(outer)(x)
    assert value == 12.0
    np.testing.assert_array_equal(gradient, [[10.0, 1.0]])
