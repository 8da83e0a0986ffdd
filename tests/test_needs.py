"""``needs=``: every subset of the gradients of every operation is what the whole set holds."""

from itertools import combinations

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find, operations
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import FLOAT32, FLOAT64
from tests.registry import CASES
from tests.stage import new_candidates, new_cases
from tests.support import as_float64, assert_close, call_by, flat

_SEVERAL = [op.name for op in operations().values() if "needs" in op.defaults and op.name == op.base]
_CASES = [c for c in CASES if c.gradient and f"{find(c.op).base}_backward" in _SEVERAL]
_MOST = 15  # subsets of the fields of a case; beyond, each field by itself and all but each


def _subsets(fields):
    sizes = range(1, len(fields)) if 2 ** len(fields) <= _MOST + 2 else (1, len(fields) - 1)
    return [chosen for size in sizes for chosen in combinations(fields, size)]


def _backward(case, dtype):
    """Name, arrays in signature order and options of the gradient of a case."""
    arrays = case.draw(dtype)
    operation = find(case.op)
    backward = find(f"{operation.base}_backward")
    bound, chosen = operation.bind(arrays, case.options)
    output = operation.call(bound, chosen)
    rng = np.random.default_rng(5)
    head = output[0] if isinstance(output, tuple) else output
    grad = rng.standard_normal(head.shape).astype(head.dtype)
    named = dict(zip(operation.arrays, bound, strict=True)) | chosen
    kept = {n: v for n, v in named.items() if n in backward.arrays or n in backward.defaults}
    taken, rest = backward.bind((grad,), kept)
    return backward.name, taken, rest


def _returns_a_tuple(case):
    name, arrays, options = _backward(case, FLOAT64)
    specs = tree_map(lambda a: dnn.Spec(a.shape, a.dtype), arrays)
    return isinstance(dnn.infer(name, *specs, **options).output, tuple)


def _fields(gradients):
    """The fields that are there, by name; none of a result that is a single array."""
    return {n: g for n, g in gradients._asdict().items() if leaves(g)} if hasattr(gradients, "_asdict") else {}


@pytest.mark.parametrize("name", _SEVERAL)
def test_every_operation_with_several_gradients_has_a_case(name):
    assert any(f"{find(c.op).base}_backward" == name for c in _CASES)


def test_every_operation_with_several_gradients_takes_needs():
    assert {f"{find(c.op).base}_backward" for c in CASES if c.gradient and _returns_a_tuple(c)} == set(_SEVERAL)


_X, _WEIGHT, _GRAD = np.ones((3, 4)), np.ones((5, 4)), np.ones((3, 5))


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ("weight", r"'weight'; expected a tuple of names of arrays. Write needs=\('weight',\)"),
        ((), r"\(\); expected a tuple of names"),
        (3, "3; expected a tuple of names"),
        ((None,), r"\(None,\); expected .* which are x, weight, bias"),
        (("x", "wieght"), "Did you mean 'weight'"),
        (("residual",), "which are x, weight, bias"),
        (("bias",), "expected one name or more of the arrays given, which are x, weight"),
    ],
)
def test_names_that_are_none_are_errors(needs, words):
    with pytest.raises(dnn.OptionError, match=f"linear_backward: needs is .*{words}"):
        dnn.linear_backward(_GRAD, _X, _WEIGHT, needs=needs)


def test_a_list_and_an_array_that_was_not_given():
    assert dnn.linear_backward(_GRAD, _X, _WEIGHT, needs=["bias", "x"])[1:] == (None, None)


def test_results_that_are_not_wanted_have_no_out():
    out = np.empty((5, 4))
    found = dnn.linear_backward(_GRAD, _X, _WEIGHT, needs=("weight",), out=(out,))
    assert found.weight is out
    with pytest.raises(dnn.OptionError, match="out is 2 arrays; expected 1"):
        dnn.linear_backward(_GRAD, _X, _WEIGHT, needs=("weight",), out=(np.empty((3, 4)), out))


def test_vjp_leaves_out_what_is_not_needed():
    _, pullback = dnn.vjp("linear", _X, _WEIGHT, np.ones(5), needs=("bias", "x"))
    x, weight, bias = pullback(_GRAD)
    assert weight is None
    np.testing.assert_array_equal(x, _GRAD @ _WEIGHT)
    np.testing.assert_array_equal(bias, _GRAD.sum(0))
    _, pullback = dnn.vjp("relu", _X, needs=("x",))
    np.testing.assert_array_equal(pullback(_X)[0], _X)


@pytest.mark.parametrize(("op", "needs"), [("linear", ("y",)), ("linear", "x"), ("relu", ("weight",)), ("relu", ())])
def test_vjp_names_what_it_does_not_know(op, needs):
    with pytest.raises(dnn.OptionError, match=f"{op}: needs is "):
        dnn.vjp(op, *([_X] if op == "relu" else [_X, _WEIGHT]), needs=needs)


@pytest.mark.parametrize("case", new_cases(_CASES), ids=str)
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32], ids=str)
def test_every_subset_is_what_the_whole_holds(case, dtype):
    if dtype not in case.dtypes:
        pytest.skip("the case has other dtypes")
    name, arrays, options = _backward(case, dtype)
    whole = _exact(case, name, arrays, options)
    fields = _fields(whole)
    for needs in _subsets(tuple(fields)):
        asked = options | {"needs": needs}
        for algorithm in new_candidates(name, arrays, asked):
            found = call_by(algorithm, name, arrays, asked)
            _same(case, found, {n: fields[n] for n in needs}, f"{needs} by {algorithm}")


def _exact(case, name, arrays, options):
    """All gradients, in float64."""
    return find(name).call(as_float64(arrays), options)


def _same(case, found, expected, note):
    assert set(_fields(found)) == set(expected), note
    for field, exact in expected.items():
        for got, wanted in zip(flat(getattr(found, field)), flat(exact), strict=True):
            assert_close(got, wanted, max(case.reduction, wanted.size), case.condition, f"{case} {note}: {field}")
