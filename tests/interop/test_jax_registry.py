"""Every function of `dnnarray.interop.jax` under `jit`, `grad` and `vmap`, held to its oracle, to its pullback and to
loops."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.binding import binding_of
from dnnarray._call.operation import find, operations
from dnnarray._problems.base import leaves, tree_map
from tests.registry import CASES, FIRST, ORACLES
from tests.support import BFLOAT16, FLOAT32, FLOAT64, as_float64, assert_close, flat, gradient_call

jax = pytest.importorskip("jax")
jnp = jax.numpy
door = pytest.importorskip("dnnarray.interop.jax")
run = pytest.importorskip("dnnarray.interop.jax.run")
pytestmark = pytest.mark.usefixtures("x64")


def _first_of_each(count):
    met = {}
    return [c for c in CASES if met.setdefault(c.op, []).append(c) or len(met[c.op]) <= count]


def _function_of(name, options):
    """The function of all arrays in signature order, as the function of JAX takes them."""
    operation = find(name)
    places = operation.by_place

    def call(*arrays):
        return getattr(door, name)(
            *arrays[:places], **dict(zip(operation.arrays[places:], arrays[places:], strict=True)), **options
        )

    return call


def _described(case, dtype):
    """The function of a case, and its arrays in signature order."""
    arrays, options = find(case.op).bind(case.draw(dtype), case.options)
    return _function_of(case.op, options), arrays, options


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("case", FIRST, ids=str)
def test_results_under_jit(case, dtype):
    if dtype not in case.dtypes:
        pytest.skip("not a dtype of the case")
    call, arrays, options = _described(case, dtype)
    found = flat(jax.jit(call)(*arrays))
    expected = flat(ORACLES[find(case.op).base](*as_float64(case.draw(dtype)), **case.options))
    for i, (a, e) in enumerate(zip(found, expected, strict=True)):
        assert_close(a, e, case.reduction, case.condition, f"{case} result {i}")
    for a, b in zip(found, flat(find(case.op).call(arrays, options)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", [c for c in FIRST if c.gradient and FLOAT64 in c.dtypes], ids=str)
def test_gradients_as_functions_of_their_own(case):
    described = gradient_call(case, case.draw(FLOAT64))
    if described is None:
        pytest.skip("has no gradient")
    name, arrays, options = described
    found = jax.jit(_function_of(name, options))(*arrays)
    for a, b in zip(flat(found), flat(find(name).call(arrays, options)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def _floating(tree):
    return tree is not None and tree.dtype.kind == "f"


def _expected_gradients(case, output, pullback, grad):
    """By array name, from `dnn.vjp`."""
    grads = pullback((grad, *(None,) * (len(output) - 1)) if isinstance(output, tuple) else grad)
    passed = binding_of(find(case.op), case.draw(FLOAT64), case.options).passed
    return dict(zip(passed, grads, strict=True))


def _differentiable(case):
    return case.gradient and FLOAT64 in case.dtypes and f"{find(case.op).base}_backward" in operations()


@pytest.mark.parametrize("case", [c for c in _first_of_each(4) if _differentiable(c)], ids=str)
def test_gradients_are_those_of_vjp(case):
    call, arrays, _ = _described(case, FLOAT64)
    output, pullback = dnn.vjp(case.op, *case.draw(FLOAT64), **case.options)
    first = output[0] if isinstance(output, tuple) else output
    if first.dtype.kind != "f":
        pytest.skip("the result has no gradient")
    grad = np.random.default_rng(0).standard_normal(first.shape)
    expected = _expected_gradients(case, output, pullback, grad)
    places = [i for i, n in enumerate(find(case.op).arrays) if expected.get(n) is not None]

    def objective(*chosen):
        given = list(arrays)
        for place, tree in zip(places, chosen, strict=True):
            given[place] = tree
        result = call(*given)
        return ((result[0] if isinstance(result, tuple) else result) * grad).sum()

    found = jax.jit(jax.grad(objective, argnums=tuple(range(len(places)))))(*(arrays[i] for i in places))
    for place, tree in zip(places, found, strict=True):
        for a, b in zip(leaves((tree,)), leaves((expected[find(case.op).arrays[place]],)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


_SEVERAL = ["add_layer_norm", "add_rms_norm", "lstm", "gru", "lstm_cell", "attention"]


@pytest.mark.parametrize("name", _SEVERAL)
def test_gradients_of_several_results(name):
    case = next(c for c in FIRST if c.op == name)
    more = {"return_lse": True} if name == "attention" else {}
    arrays, options = find(name).bind(case.draw(FLOAT64), case.options | more)
    call = _function_of(name, options)
    output, pullback = dnn.vjp(name, *case.draw(FLOAT64), **case.options, **more)
    rng = np.random.default_rng(0)
    weights = [None if r is None else rng.standard_normal(r.shape) for r in output]
    for kept in ([True] * len(output), [False, *[True] * (len(output) - 1)]):
        chosen = [w if k else None for w, k in zip(weights, kept, strict=True)]

        def objective(first, chosen=chosen):
            results = call(first, *arrays[1:])
            return sum((r * w).sum() for r, w in zip(results, chosen, strict=True) if w is not None)

        grads = tuple(
            np.zeros_like(r) if c is None and r is not None else c for r, c in zip(output, chosen, strict=True)
        )
        np.testing.assert_allclose(jax.jit(jax.grad(objective))(arrays[0]), pullback(grads)[0], rtol=1e-10, atol=1e-12)


_PARAMETERS = {"weight", "bias", "w", "cos", "sin", "variance", "boxes"}


def _names(name, arrays):
    """The name of the argument that each array belongs to."""
    return [n for n, tree in zip(find(name).arrays, arrays, strict=True) for _ in leaves((tree,))]


def _check_vmap(name, arrays, options, mapped):
    """`vmap` over the arrays that are `mapped` gives what a loop gives."""
    given = leaves(arrays)
    call = _function_of(name, options)

    def on_leaves(*flat_arrays):
        rest = iter(flat_arrays)
        return call(*(tree_map(lambda leaf: next(rest), tree) for tree in arrays))

    factors = np.array([1.0, 0.5, 1.25])
    stacked = [
        np.stack([a * f if _floating(a) else a for f in factors]) if m else a
        for a, m in zip(given, mapped, strict=True)
    ]
    found = jax.jit(jax.vmap(on_leaves, in_axes=tuple(0 if m else None for m in mapped)))(*stacked)
    for i in range(len(factors)):
        one = on_leaves(*(jnp.asarray(a[i]) if m else a for a, m in zip(stacked, mapped, strict=True)))
        for a, b in zip(flat(found), flat(one), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("every", [True, False], ids=["every", "rows"])
@pytest.mark.parametrize("case", [c for c in FIRST if FLOAT64 in c.dtypes], ids=str)
def test_vmap_is_a_loop(case, every):
    _, arrays, options = _described(case, FLOAT64)
    mapped = [
        n not in _PARAMETERS | ({"mean"} if case.op == "batch_norm" else set()) or (every and n != "boxes")
        for n in _names(case.op, arrays)
    ]
    _check_vmap(case.op, arrays, options, mapped)


@pytest.mark.parametrize("every", [True, False], ids=["every", "rows"])
@pytest.mark.parametrize("case", [c for c in FIRST if _differentiable(c)], ids=str)
def test_vmap_of_a_gradient_is_a_loop(case, every):
    name, arrays, options = gradient_call(case, case.draw(FLOAT64))
    if not every and "needs" in options:
        options = options | {"needs": find(case.op).arrays[:1]}
    mapped = [
        n not in _PARAMETERS | ({"mean"} if case.op == "batch_norm" else set()) or (every and n != "boxes")
        for n in _names(name, arrays)
    ]
    _check_vmap(name, arrays, options, mapped)


@pytest.mark.parametrize("name", ["relu", "conv", "max_pool", "layer_norm", "softmax", "linear", "attention"])
def test_a_batch_is_one_call(name, monkeypatch):
    case = next(c for c in FIRST if c.op == name)
    _, arrays, options = _described(case, FLOAT64)
    calls = []
    monkeypatch.setattr(run, "compute", lambda call, *rest, own=run.compute: calls.append(call) or own(call, *rest))
    _check_vmap(name, arrays, options, [n not in _PARAMETERS for n in _names(name, arrays)])
    assert len(calls) == 4  # one for the batch, one for each element of the loop beside it


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_backward"])
def test_the_axis_of_a_batch_is_no_axis_of_the_operation(name):
    x = np.array([0.5, -1.0, 2.0])
    operation = find(name)
    arrays = [x] * (len(operation.arrays) - ("y" in operation.arrays))
    found = jax.vmap(getattr(door, name))(*arrays)
    np.testing.assert_allclose(
        found, [operation.function(*(a[i : i + 1] for a in arrays))[0] for i in range(3)], atol=1e-15
    )


def test_vmap_within_vmap_and_over_an_inner_axis():
    x, w = np.random.default_rng(0).standard_normal((2, 3, 4, 5)), np.eye(3, 5)
    found = jax.vmap(jax.vmap(door.linear, in_axes=(0, None)), in_axes=(1, None))(x, w)
    np.testing.assert_allclose(found, np.moveaxis(x, 1, 0) @ w.T)
    both = jax.vmap(jax.vmap(door.linear, in_axes=(None, 0)), in_axes=(0, None))(x, np.stack([w, 2 * w]))
    np.testing.assert_allclose(both[:, 1], 2 * x @ w.T)
