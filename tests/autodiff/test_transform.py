"""`value_and_grad`, `grad`, `checkpoint`, `stop_gradient`: structures, errors, nesting, and dnnarray's own
functions."""

import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._autodiff import calls
from dnnarray._call import dispatch as _dispatch
from dnnarray._call import operation as _operation
from dnnarray._call.operation import find
from tests.autodiff.test_rules import directional
from tests.registry import FIRST
from tests.support import FLOAT64, flat

Pair = namedtuple("Pair", "first second")
_DIFFERENTIABLE = [c for c in FIRST if c.gradient and FLOAT64 in c.dtypes and not c.op.endswith("_backward")]


def test_gradients_have_the_structure_of_the_argument():
    params = {
        "a": [np.ones(2), (np.ones((2, 1)), None)],
        "b": Pair(np.ones(1, np.float32), {"steps": 3, "index": np.array([0, 1])}),
    }

    def f(p):
        return (p["a"][0] * p["a"][1][0]).sum() * 2 + p["b"].first.sum()

    value, g = dnn.value_and_grad(f)(params)
    assert value == 9.0
    np.testing.assert_array_equal(g["a"][0], [4.0, 4.0])
    assert g["a"][1][0].shape == (2, 1)
    assert g["a"][1][1] is None
    assert isinstance(g["b"], Pair)
    assert g["b"].first.dtype == np.float32
    assert g["b"].second == {"steps": None, "index": None}


def test_several_arguments_and_auxiliary_output():
    def f(x, n, y, *, scale):
        return (x * y).sum() * scale, {"product": x * y, "n": n}

    (value, aux), (gx, gy) = dnn.value_and_grad(f, argnums=(0, 2), has_aux=True)(
        np.ones(3), 5, np.full(3, 2.0), scale=3.0
    )
    assert value == 18.0
    assert type(aux["product"]) is np.ndarray
    assert aux["n"] == 5
    np.testing.assert_array_equal(gx, [6.0] * 3)
    np.testing.assert_array_equal(gy, [3.0] * 3)


def test_what_does_not_matter_has_a_gradient_of_zeros():
    x, unused = np.ones((2, 2)), np.ones((3,), np.float32)
    gx, gu = dnn.grad(lambda x, u: (dnn.stop_gradient(x) * x).sum(), (0, 1))(x, unused)
    np.testing.assert_array_equal(gx, x)
    np.testing.assert_array_equal(gu, np.zeros(3, np.float32))
    np.testing.assert_array_equal(dnn.grad(lambda x: np.float64(3.0))(x), np.zeros((2, 2)))


@pytest.mark.parametrize("case", _DIFFERENTIABLE, ids=str)
def test_functions_of_dnnarray_agree_with_vjp(case):
    arrays = case.draw(FLOAT64)
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    head = output[0] if isinstance(output, tuple) else output
    weights = np.random.default_rng(0).standard_normal(head.shape)
    absent = (weights, *(None,) * (len(output) - 1)) if isinstance(output, tuple) else weights
    expected = pullback(absent)
    floating = [
        i for i, a in enumerate(arrays) if a is not None and any(getattr(x, "dtype", None) == FLOAT64 for x in flat(a))
    ]

    def f(*chosen):
        given = list(arrays)
        for i, a in zip(floating, chosen, strict=True):
            given[i] = a
        operation = find(case.op)
        result = operation.call((*given, *(None,) * (len(operation.arrays) - len(given))), case.options)
        return ((result[0] if isinstance(result, tuple) else result) * weights).sum()

    found = dnn.grad(f, tuple(range(len(floating))))(*[arrays[i] for i in floating])
    for place, gradient in zip(floating, found, strict=True):
        if expected[place] is None:  # running statistics, boxes: nothing is pulled back to them
            assert not np.any(gradient)
            continue
        wanted = flat(expected[place])
        for have, want in zip(flat(gradient), wanted, strict=True):
            if want is not None:
                np.testing.assert_allclose(have, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", _DIFFERENTIABLE, ids=str)
def test_each_argument_by_itself_has_the_gradient_that_it_has_among_all(case):
    arrays = case.draw(FLOAT64)
    operation = find(case.op)
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    head = output[0] if isinstance(output, tuple) else output
    weights = np.random.default_rng(0).standard_normal(head.shape)
    expected = pullback((weights, *(None,) * (len(output) - 1)) if isinstance(output, tuple) else weights)
    for place, array in enumerate(arrays):
        if array is None or not any(getattr(x, "dtype", None) == FLOAT64 for x in flat(array)):
            continue

        def f(chosen, place=place):
            given = [*arrays[:place], chosen, *arrays[place + 1 :]]
            result = operation.call((*given, *(None,) * (len(operation.arrays) - len(given))), case.options)
            return ((result[0] if isinstance(result, tuple) else result) * weights).sum()

        found = flat(dnn.grad(f)(array))
        wanted = flat(expected[place]) if expected[place] is not None else [None] * len(found)
        for have, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(have, 0.0 if want is None else want, rtol=1e-10, atol=1e-12)


def test_gradients_that_nobody_asks_for_are_not_computed(monkeypatch):
    x, w = np.ones((2, 3, 8, 8)), np.ones((4, 3, 3, 3))
    asked, build = [], _operation.needed
    monkeypatch.setattr(
        _operation, "needed", lambda problem, needs: asked.append((problem.op, needs)) or build(problem, needs)
    )
    _dispatch.forget()
    dnn.grad(lambda w: dnn.conv(x, w).sum())(w)
    assert ("conv_backward", ("weight",)) in asked


def test_what_a_step_keeps_is_let_go_of_when_it_has_been_pulled_back():
    alive, seen = [], []

    def first(x):
        if alive:
            seen.append([reference() is not None for reference in alive])
        return x * 2.0

    def f(x):
        x = dnn.checkpoint(first)(x)
        for _ in range(4):
            x = dnn.gelu(x)
            alive.append(weakref.ref(x.value))
        return x.sum()

    dnn.grad(f)(np.linspace(-1, 1, 7))
    assert seen == [[False] * 4]


def test_recorders_are_kept_by_form_of_call_and_bounded(monkeypatch):
    monkeypatch.setattr(calls, "_recorders", {})
    monkeypatch.setattr(calls, "_MOST", 3)
    x, w, b = np.ones((2, 3)), np.full((4, 3), 2.0), np.zeros(4)

    def f(x, w, b):
        return dnn.linear(x, w, b).sum()

    for places in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (0,)):
        for _ in range(2):
            found = dnn.grad(f, places)(x, w, b)
            expected = {0: np.full((2, 3), 8.0), 1: np.full((4, 3), 2.0), 2: np.full(4, 2.0)}
            for place, gradient in zip(places, found, strict=True):
                np.testing.assert_array_equal(gradient, expected[place])
            assert 0 < len(calls._recorders) <= 3


def test_several_outputs_share_their_gradients():
    x, residual, weight = (np.random.default_rng(i).standard_normal(s) for i, s in enumerate(((4, 6), (4, 6), (6,))))

    def f(x, residual, weight):
        y, total = dnn.add_rms_norm(x, residual, weight)
        return (y * total).sum()

    found = dnn.grad(f, (0, 1, 2))(x, residual, weight)
    directions = [np.random.default_rng(9).standard_normal(a.shape) for a in (x, residual, weight)]
    slope = sum((g * d).sum() for g, d in zip(found, directions, strict=True))
    np.testing.assert_allclose(slope, directional(f, [x, residual, weight], directions), rtol=1e-6)


def test_an_output_without_a_gradient_says_so_when_one_is_asked_for():
    x = np.random.default_rng(0).standard_normal((4, 3, 5))
    with pytest.raises(dnn.UnsupportedError, match="only the first result has a gradient"):
        dnn.grad(lambda x: dnn.batch_norm_train(x).rstd.sum())(x)


def test_recurrent_weights_are_differentiated_in_their_nested_form():
    rng = np.random.default_rng(0)
    weights = dnn.RNNWeights(*(rng.standard_normal(s) * 0.3 for s in ((12, 2), (12, 3), (12,), (12,))))
    x = rng.standard_normal((4, 2, 2))

    def f(w, x):
        return (dnn.lstm(x, [w]).y ** 2).sum()

    gw, gx = dnn.grad(f, (0, 1))(weights, x)
    assert isinstance(gw, dnn.RNNWeights)
    assert gw.peephole is None
    directions = [rng.standard_normal(w.shape) for w in weights[:4]]

    def g(*parts):
        return f(dnn.RNNWeights(*parts), x)

    slope = sum((a * d).sum() for a, d in zip(gw[:4], directions, strict=True))
    np.testing.assert_allclose(slope, directional(g, list(weights[:4]), directions), rtol=1e-6)
    assert gx.shape == x.shape


def test_checkpoint_recomputes_and_gives_the_same_gradient():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 6)), rng.standard_normal((6, 6))
    runs = []

    def block(state, weights):
        runs.append(None)
        y = dnn.gelu(dnn.linear(state["x"], weights))
        return {"x": y, "sum": y.sum(), "n": 3}

    def f(x, w, block):
        state = block({"x": x}, w)
        state = block(state, w)
        return (state["x"] ** 2).sum() + state["sum"] * state["n"]

    expected = dnn.grad(f, (0, 1))(x, w, block)
    runs.clear()
    found = dnn.grad(f, (0, 1))(x, w, dnn.checkpoint(block))
    assert len(runs) == 4
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(have, want)
    np.testing.assert_array_equal(dnn.checkpoint(block)({"x": x}, w)["x"], block({"x": x}, w)["x"])


def test_checkpoint_names_arrays_that_are_no_arguments():
    def f(x, w):
        return dnn.checkpoint(lambda x: dnn.linear(x, w))(x).sum()

    with pytest.raises(dnn.UnsupportedError, match="none of its arguments"):
        dnn.grad(f, (0, 1))(np.ones((2, 3)), np.ones((4, 3)))


def test_checkpoint_keeps_the_options_of_the_first_run():
    seen = []

    def block(x):
        from dnnarray._options import current

        seen.append(current().deterministic)
        return x * x

    def f(x):
        with dnn.options(deterministic=True):
            return dnn.checkpoint(block)(x).sum()

    dnn.grad(f)(np.ones(3))
    assert seen == [True, True]


ERRORS = {
    "no scalar": (lambda x: x * 2, dnn.ShapeError, r"shape \(3,\); expected an array of shape \(\)"),
    "no array": (lambda x: "text", dnn.ShapeError, "returned str"),
    "a number of Python": (lambda x: float(x.sum()), dnn.ArrayTypeError, "stop_gradient"),
    "a truth value": (lambda x: x.sum() if x.sum() else x.max(), dnn.ArrayTypeError, "stop_gradient"),
    "numpy.asarray": (lambda x: np.asarray(x).sum(), dnn.ArrayTypeError, "stop_gradient"),
    "assignment": (lambda x: x.__setitem__(0, 1.0), dnn.UnsupportedError, "cannot be assigned to"),
    "a function without a rule": (
        lambda x: x.__array_namespace__().linalg.norm(x),
        dnn.UnsupportedError,
        "has no gradient here",
    ),
    "out=": (lambda x: dnn.relu(x, out=np.ones(3)).sum(), dnn.OptionError, "out= and workspace= cannot be given"),
    "a function in the place of an array": (lambda x: dnn.ctc_loss, dnn.ShapeError, "returned function"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_what_to_do(name):
    f, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        dnn.grad(f)(np.ones(3))


def test_errors_of_arguments():
    with pytest.raises(dnn.OptionError, match="argnums is 2"):
        dnn.grad(lambda x: x, 2)(np.ones(3))
    with pytest.raises(dnn.OptionError, match="argnums is -1"):
        dnn.grad(lambda x: x, -1)
    with pytest.raises(dnn.ArrayTypeError, match="argument 0 is a float without any floating array"):
        dnn.grad(lambda x: x)(3.0)
    with pytest.raises(dnn.OptionError, match=r"expected \(value, aux\)"):
        dnn.value_and_grad(lambda x: x.sum(), has_aux=True)(np.ones(3))


def test_an_array_kept_outside_is_an_error_when_it_is_used_again():
    kept = []

    def f(x):
        kept.append(x)
        return x.sum()

    dnn.grad(f)(np.ones(3))
    with pytest.raises(dnn.UnsupportedError, match="in a call that has ended"):
        kept[0] + 1


def test_comparisons_are_plain_and_control_flow_is_python():
    def f(x):
        return (x * 2 if (x > 0).all() else -x).sum()

    np.testing.assert_array_equal(dnn.grad(f)(np.ones(2)), [2.0, 2.0])
    np.testing.assert_array_equal(dnn.grad(f)(-np.ones(2)), [-1.0, -1.0])


def test_threads_do_not_meet():
    def work(n):
        x = np.full(50, float(n))
        return dnn.grad(lambda x: (dnn.relu(x) ** 2).sum())(x)

    with ThreadPoolExecutor(8) as pool:
        for n, g in enumerate(pool.map(work, range(64))):
            np.testing.assert_array_equal(g, np.full(50, 2.0 * n))


def test_memory_is_freed_as_the_backward_run_goes_on():
    """A chain of n steps keeps n intermediate arrays, and none of them once the call is over."""
    import tracemalloc

    x = np.ones(1 << 16)

    def chain(x):
        for _ in range(50):
            x = x * 1.01
        return x.sum()

    dnn.grad(chain)(x)
    tracemalloc.start()
    dnn.grad(chain)(x)
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 4 * x.nbytes
    assert peak < 60 * x.nbytes


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_an_input_is_not_kept_where_the_gradient_takes_the_result(name):
    kept = []

    def f(x):
        s = dnn.linear(x, np.eye(5))
        value = weakref.ref(s.value)
        y = getattr(dnn, name)(s)
        del s
        kept.append(value() is not None)
        return y.sum()

    x = np.full((3, 5), 0.5)
    y = getattr(dnn, name)(x)
    np.testing.assert_allclose(dnn.grad(f)(x), y * (1 - y) if name == "sigmoid" else 1 - y * y, rtol=1e-14)
    assert kept == [False]
