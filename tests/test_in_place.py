"""Results written over inputs: the same array gives what other memory would, any other overlap is an error, and nothing
is ever a wrong number."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.introspect import question
from dnnarray._call.operation import find, lookup
from dnnarray._problems.base import leaves, tree_map
from tests.registry import CASES, FIRST
from tests.stage import new_candidates, new_cases
from tests.support import BFLOAT16, DTYPES, FLOAT32, FLOAT64, call_by, candidates, flat

_DEFAULTS = {"gelu": {"approximate": "none"}}


def _calls(case, dtype):
    """The calls of a case: the operation and its gradient, each with arrays in signature order and options."""
    arrays = case.draw(dtype)
    yield case.op, arrays, case.options
    if (backward := lookup(f"{case.op}_backward")) is None:
        return
    results = flat(_run(None, case.op, arrays, case.options))
    if not results or results[0].dtype not in DTYPES:
        return
    named = dict(zip(find(case.op).arrays, arrays, strict=False))
    rng = np.random.default_rng(3)
    grads = tuple(rng.standard_normal(r.shape).astype(r.dtype) for r in results)
    given = (grads if "grad" in backward.nested else grads[0], *(named.get(n) for n in backward.arrays[1:]))
    yield backward.name, given, {n: v for n, v in case.options.items() if n in backward.defaults}


def _run(algorithm, op, arrays, options, out=None):
    return call_by(algorithm, op, arrays, options, out)


def _problem(op, arrays, options):
    return question(op, arrays, dict(options)).problem


_IN_PLACE = [
    c
    for c in CASES
    if any(_problem(*given).in_place for given in _calls(c, FLOAT64 if FLOAT64 in c.dtypes else c.dtypes[0]))
]


def _plain(array):
    return array.copy()


def _every_other(array):
    wide = np.zeros(tuple(2 * n for n in array.shape), array.dtype)
    wide[(..., *(slice(None, None, 2) for _ in array.shape))] = array
    return wide[(..., *(slice(None, None, 2) for _ in array.shape))]


def _transposed(array):
    return array.T.copy().T


def _check_over(op, arrays, options, memory):
    """Each result that may lie over an input does so, one at a time, by every algorithm."""
    problem = _problem(op, arrays, options)
    for i, j in problem.in_place:
        if i >= len(arrays) or arrays[i] is None or problem.outputs[j] is None:
            continue
        moved = tuple(tree_map(memory, a) for a in arrays)
        for algorithm in new_candidates(op, moved, options):
            expected = flat(_run(algorithm, op, moved, options))
            given = [tree_map(memory, a) for a in arrays]
            out, places = (
                [np.empty_like(e) for e in expected],
                [k for k, spec in enumerate(problem.outputs) if spec is not None],
            )
            out[places.index(j)] = given[i]
            kept = [None if a is None or n == i else tree_map(np.copy, a) for n, a in enumerate(given)]
            result = _run(algorithm, op, tuple(given), options, tuple(out) if len(out) > 1 else out[0])
            assert leaves(result)[places.index(j)] is given[i]
            for got, one in zip(out, expected, strict=True):
                np.testing.assert_array_equal(got, one, err_msg=f"{op} {algorithm}: result {j} over input {i}")
            for after, before in zip(given, kept, strict=True):
                if before is not None:
                    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("memory", [_plain, _every_other, _transposed], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("case", new_cases(_IN_PLACE), ids=str)
def test_a_result_over_an_input_is_what_it_would_be_elsewhere(case, memory):
    for given in _calls(case, FLOAT64 if FLOAT64 in case.dtypes else case.dtypes[0]):
        _check_over(*given, memory)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != FLOAT64], ids=str)
@pytest.mark.parametrize("case", [c for c in new_cases(FIRST) if c in _IN_PLACE], ids=str)
def test_a_result_over_an_input_in_every_dtype(case, dtype):
    if dtype in case.dtypes:
        for given in _calls(case, dtype):
            _check_over(*given, _plain)


def test_what_may_be_overwritten():
    """The elementwise operations with their gradients, and running statistics."""
    found = {c.op for c in _IN_PLACE}
    assert {
        "relu",
        "gelu",
        "prelu",
        "swiglu",
        "bias_activation",
        "dropout",
        "bias_dropout_add",
        "batch_norm_train",
    } <= found
    assert not found & {"conv", "softmax", "linear", "max_pool", "layer_norm"}


def _shifted(size, dtype):
    """An array and others that touch its memory without being it."""
    base = np.linspace(-2, 2, 3 * size).astype(dtype)
    x = base[size : 2 * size]
    yield x, base[size + 1 : 2 * size + 1]
    yield x, base[size - 1 : 2 * size - 1]
    yield x, x[::-1]
    yield x[: size // 2], x[::2][: size // 2]
    yield base[::2][:size], base[:size]


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: dnn.relu(x, out=out),
        lambda x, out: dnn.relu_backward(x, x.copy(), out=out),
        lambda x, out: dnn.relu_backward(x.copy(), x, out=out),
        lambda x, out: dnn.swiglu(x, x, out=out),
        lambda x, out: dnn.dropout(x, p=0.5, seed=1, out=out),
        lambda x, out: dnn.softmax(x, axis=0, out=out),
    ],
)
def test_any_other_overlap_is_an_error_and_changes_nothing(call, dtype):
    for x, out in _shifted(64, dtype):
        before = x.copy()
        with pytest.raises(dnn.OptionError, match="out is memory shared with an input"):
            call(x, out)
        np.testing.assert_array_equal(x, before)


def test_a_transposed_view_of_an_input_is_an_error():
    x = np.arange(9.0).reshape(3, 3)
    with pytest.raises(dnn.OptionError, match="not a part of it or a view that lies otherwise"):
        dnn.relu(x, out=x.T)
    with pytest.raises(dnn.OptionError, match="memory shared with an input"):
        dnn.bias_activation(x, x[0], activation="relu", out=x)
    with pytest.raises(dnn.OptionError, match="memory shared with another output"):
        dnn.swiglu_backward(x.copy(), x.copy(), x.copy(), out=(x, x))
    with pytest.raises(dnn.OptionError, match=r"memory shared with an input; expected memory of its own\.$"):
        dnn.softmax(x, axis=0, out=x)


def test_one_array_may_be_two_inputs_and_the_result():
    x = np.linspace(-3, 3, 24).reshape(4, 6)
    expected = dnn.swiglu(x, x)
    assert dnn.swiglu(x, x, out=x) is x
    np.testing.assert_array_equal(x, expected)


def test_both_gradients_of_a_gated_unit_may_replace_their_arrays():
    gate, x, grad = (np.random.default_rng(i).standard_normal((5, 7)) for i in range(3))
    expected = dnn.geglu_backward(grad, gate, x)
    dnn.geglu_backward(grad, gate, x, out=(gate, x))
    np.testing.assert_array_equal(gate, expected.gate)
    np.testing.assert_array_equal(x, expected.x)
    crossed = [a.copy() for a in (grad, gate, x)]
    expected = dnn.geglu_backward(*crossed)
    dnn.geglu_backward(*crossed, out=(crossed[2], crossed[1]))  # each over the other's
    np.testing.assert_array_equal(crossed[2], expected.gate)
    np.testing.assert_array_equal(crossed[1], expected.x)


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_running_statistics_are_moved_on_where_they_are(dtype, strided):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((4, 3, 5)).astype(dtype)
    statistics = FLOAT32 if dtype == BFLOAT16 else dtype
    memory = _every_other if strided else _plain
    mean, var = (memory(rng.uniform(0.5, 1.5, 3).astype(statistics)) for _ in range(2))
    y, batch_mean, batch_rstd = np.empty_like(x), np.empty(3, statistics), np.empty(3, statistics)
    for _ in range(3):
        expected = dnn.batch_norm_train(x, None, None, mean, var)
        result = dnn.batch_norm_train(x, None, None, mean, var, out=(y, batch_mean, batch_rstd, mean, var))
        assert result.running_mean is mean
        for got, one in zip((y, batch_mean, batch_rstd, mean, var), expected, strict=True):
            np.testing.assert_array_equal(got, one)


def test_running_statistics_that_change_places_are_an_error():
    x, mean, var = np.ones((4, 3)), np.zeros(3), np.ones(3)
    for out in ((np.empty((4, 3)), np.empty(3), np.empty(3), var, mean), (x, np.empty(3), np.empty(3), mean, var)):
        with pytest.raises(dnn.OptionError, match="memory shared with an input"):
            dnn.batch_norm_train(x, None, None, mean, var, out=out)


def test_one_running_statistic_alone_may_be_overwritten():
    x, var = np.random.default_rng(5).standard_normal((4, 3)), np.ones(3)
    expected = dnn.batch_norm_train(x, None, None, None, var)
    dnn.batch_norm_train(x, None, None, None, var, out=(np.empty((4, 3)), np.empty(3), np.empty(3), var))
    np.testing.assert_array_equal(var, expected.running_var)


def test_tensors_are_overwritten_too():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.linspace(-1, 1, 10)
    expected = dnn.gelu(x)
    assert dnn.gelu(x, out=x) is x
    assert torch.equal(x, expected)
    with pytest.raises(dnn.OptionError, match="memory shared with an input"):
        dnn.gelu(x[1:], out=x[:-1])


def test_an_empty_array_may_be_its_own_result():
    x = np.empty((0, 3))
    assert dnn.relu(x, out=x) is x


@pytest.mark.parametrize("name", ["relu", "gelu", "mish"])
def test_large_arrays_are_overwritten_by_all_threads(name):
    """More elements than a block and than a thread takes."""
    x = np.random.default_rng(6).standard_normal(1 << 20).astype(FLOAT32)
    grad = x[::-1].copy()
    expected, slopes = (
        _run("elementwise", op, given, _DEFAULTS.get(name, {}))
        for op, given in ((name, (x,)), (f"{name}_backward", (grad, x)))
    )
    with dnn.options(threads=4):
        _run("elementwise", f"{name}_backward", (grad, x), _DEFAULTS.get(name, {}), grad)
        _run("elementwise", name, (x,), _DEFAULTS.get(name, {}), x)
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(grad, slopes)


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((5, 3), "channels_first"), ((4, 3, 5, 7), "channels_first"), ((4, 5, 7, 16), "channels_last")],
)
@pytest.mark.parametrize("step", [1, -2])
def test_training_moves_both_running_statistics_on_where_they_are(shape, layout, dtype, step):
    """Three batches in a row, by every algorithm; the statistics are each or every other element of an array, forwards
    or backwards."""
    rng = np.random.default_rng(6)
    axis = 1 if layout == "channels_first" else len(shape) - 1
    channels, others = shape[axis], tuple(i for i in range(len(shape)) if i != axis)
    batches = [(rng.standard_normal(shape) + k).astype(dtype) for k in range(3)]
    wide = FLOAT32 if dtype == BFLOAT16 else dtype
    options, level = {"layout": layout, "momentum": 0.3}, 1e-12 if dtype == FLOAT64 else 1e-5
    for name in candidates("batch_norm_train", (batches[0], None, None, *np.ones((2, channels), wide)), options):
        mean, var = (np.full(channels * abs(step), value, wide)[::step] for value in (0.5, 2.0))
        expected_mean, expected_var = np.full(channels, 0.5), np.full(channels, 2.0)
        for x in batches:
            apart = _run(name, "batch_norm_train", (x, None, None, mean.copy(), var.copy()), options)
            y, found, rstd = np.empty_like(apart.y), np.empty_like(apart.mean), np.empty_like(apart.rstd)
            result = _run(name, "batch_norm_train", (x, None, None, mean, var), options, (y, found, rstd, mean, var))
            assert result.running_mean is mean
            assert result.running_var is var
            for a, b in zip(result, apart, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=name)
            exact = x.astype(np.float64)
            expected_mean = 0.7 * expected_mean + 0.3 * exact.mean(others)
            expected_var = 0.7 * expected_var + 0.3 * exact.var(others, ddof=1)
        np.testing.assert_allclose(mean, expected_mean, rtol=level, atol=level, err_msg=name)
        np.testing.assert_allclose(var, expected_var, rtol=level, atol=level, err_msg=name)
