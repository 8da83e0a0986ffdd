"""Wrong arguments of every kind, one after the other, to every operation: a named error with the function's name comes
out, or a result.

Errors of NumPy or Python from inside would say nothing to the caller. Only a signature that does not fit may raise
Python's own `TypeError`."""

import inspect
import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find, operations
from dnnarray._cpu import memory
from tests.registry import FIRST
from tests.support import call

_NAMED = (
    dnn.ShapeError,
    dnn.DTypeError,
    dnn.ArrayTypeError,
    dnn.OptionError,
    dnn.UnsupportedError,
    dnn.WorkspaceError,
    dnn.DeviceError,
)
_CASES = FIRST
_ARRAYS = [
    None,
    "abc",
    b"1",
    3,
    2.5,
    True,
    [1, 2],
    [],
    (),
    {"a": 1},
    object,
    np.float32(3),
    np.array([["a"]]),
    np.zeros((2, 3), "V0"),
    np.array(None),
    np.zeros((2, 2), complex),
    np.ma.masked_array([1.0]),
    np.zeros(0),
    np.zeros(()),
    np.zeros((1,) * 40),
    np.zeros((2, 0, 3)),
    np.array(["x"], object),
    dnn.Spec((2,), "float32"),
]
_OPTIONS = [
    None,
    "abc",
    "",
    b"1",
    0,
    -1,
    3,
    10**12,
    10**30,
    -(10**30),
    10**400,
    2**63,
    2**64,
    2.5,
    1e300,
    5e-324,
    math.nan,
    math.inf,
    1j,
    True,
    [],
    (),
    (1,),
    [1, 2],
    (1, 2, 3),
    (-1, 1),
    (2.5, 1),
    (None, None),
    ((1, 2), (3, 4)),
    {"a": 1},
    object,
    np.float32(0.5),
    np.bool_(True),
    np.array(1),
    np.array(0.5),
    np.array([1, 2]),
    np.array([[1]]),
    np.array("a"),
    lambda: 3,
]


def _changed(array):
    """The array in other dtypes, ranks, extents, and with labels out of range."""
    if not isinstance(array, np.ndarray):
        return
    yield from (array.astype(d) for d in (np.float32, np.float16, np.int64, np.uint8, bool, complex, object))
    yield from (array[None], array[..., None], array.reshape(-1), array[:0] if array.ndim else array)
    for axis in range(array.ndim):
        yield np.concatenate([array, array], axis)
        yield np.take(array, [], axis)
    if array.dtype.kind in "iu":
        yield from (np.full(array.shape, n) for n in (-1, -100, 100, 2**62, -(2**63)))
        yield np.full(array.shape, 2**64 - 1, np.uint64)


def _broken(entries):
    """Nested arguments with one entry or one array of an entry replaced."""
    if not isinstance(entries, tuple):
        return
    yield from (entries[:-1], [*entries, None], (entries,), [None] * len(entries), entries[0])
    for i, entry in enumerate(entries):
        for wrong in ([1.0], None, "x", 3, np.zeros(2), np.zeros((2, 2), int)):
            yield (*entries[:i], wrong, *entries[i + 1 :])
            if isinstance(entry, tuple):
                yield (*entries[:i], (wrong, *entry[1:]), *entries[i + 1 :])


def _named_error_or_result(op, arrays, options):
    raised = None
    try:
        call(op, arrays, options)
    except (*_NAMED, TypeError) as error:
        raised = error
    assert raised is None or str(raised).startswith(f"{op}:" if isinstance(raised, _NAMED) else f"{op}()"), repr(raised)


def _every_wrong_argument(op, arrays, options):
    operation = find(op)
    arrays = (*arrays, *(None,) * (len(operation.arrays) - len(arrays)))
    for i, array in enumerate(arrays):
        for wrong in (*_ARRAYS, *_changed(array), *_broken(array)):
            _named_error_or_result(op, (*arrays[:i], wrong, *arrays[i + 1 :]), options)
    plain = {"out", "workspace", "algorithm"} & set(inspect.signature(operation.function).parameters)
    for name in (*operation.defaults, *sorted(plain)):
        for wrong in _OPTIONS:
            _named_error_or_result(op, arrays, options | {name: wrong})


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", _CASES, ids=str)
def test_wrong_arguments_meet_a_named_error(case):
    _every_wrong_argument(case.op, case.draw(), case.options)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("case", [c for c in _CASES if f"{find(c.op).base}_backward" in operations()], ids=str)
def test_wrong_arguments_of_gradients_meet_a_named_error(case):
    forward, backward = find(case.op), operations()[f"{find(case.op).base}_backward"]
    arrays = case.draw()
    result = call(case.op, arrays, case.options)
    given = dict(zip(forward.arrays, arrays, strict=False)) | {
        "grad": np.ones_like(result[0] if isinstance(result, tuple) else result)
    }
    options = {n: v for n, v in case.options.items() if n in backward.defaults}
    _every_wrong_argument(backward.name, tuple(given.get(n) for n in backward.arrays), options)


# --- the ways in beside a plain call
# ------------------------------------------------------------------------------------

_X = np.ones((1, 2, 3, 4))


def test_out_and_workspace_come_from_the_namespace_of_the_inputs():
    torch = pytest.importorskip("torch")
    with pytest.raises(dnn.ArrayTypeError, match="relu: out is an array of numpy; expected one of torch"):
        dnn.relu(torch.ones(3), out=np.zeros(3, np.float32))
    with pytest.raises(dnn.ArrayTypeError, match="relu: workspace is an array of numpy; expected one of torch"):
        dnn.relu(torch.ones(3), workspace=np.zeros(3, np.uint8))
    with pytest.raises(dnn.ArrayTypeError, match="relu: out: a torch tensor that requires grad"):
        dnn.relu(torch.ones(3), out=torch.zeros(3, requires_grad=True))


def test_tensors_without_memory_of_their_own_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(dnn.DeviceError, match=r"relu: x is Tensor .* that shares no memory"):
        dnn.relu(torch.ones(3, device="meta"))
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: x: a sparse torch tensor.*to_dense"):
        dnn.relu(torch.eye(2).to_sparse())
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: x: a torch tensor of torch\.float8_e5m2 has no counterpart"):
        dnn.relu(torch.ones(3).to(torch.float8_e5m2))


def test_a_tensor_is_no_option():
    """It could change in place, and the plan of a call is remembered by its options."""
    torch = pytest.importorskip("torch")
    with pytest.raises(dnn.OptionError, match="attention: scale is tensor"):
        dnn.attention(_X, _X, _X, scale=torch.tensor(0.5))


def test_an_array_of_one_number_is_an_option():
    np.testing.assert_array_equal(dnn.attention(_X, _X, _X, scale=np.array(0.5)), dnn.attention(_X, _X, _X, scale=0.5))


def test_byte_swapped_out_says_so():
    with pytest.raises(dnn.DTypeError, match="relu: out is byte-swapped float64; expected float64"):
        dnn.relu(_X, out=np.zeros(_X.shape, np.dtype(np.float64).newbyteorder()))


@pytest.mark.parametrize("classes", [10**13, 10**15, 10**18])
def test_results_beyond_memory_are_a_workspace_error(classes):
    """Also where the system would promise the memory and end the process when it is written to."""
    with pytest.raises(dnn.WorkspaceError, match=rf"one_hot: the result is of shape \(1, {classes}\)"):
        dnn.one_hot(np.zeros(1, int), classes)


@pytest.mark.parametrize("classes", [2**63, 2**70, 0, -1])
def test_classes_that_no_axis_can_have_are_an_option_error(classes):
    with pytest.raises(dnn.OptionError, match=r"one_hot: num_classes is .*; expected an integer from 1 to"):
        dnn.one_hot(np.zeros(1, int), classes)


def test_the_memory_that_there_is_bounds_results_and_workspace(monkeypatch):
    x, w = np.ones((1, 8, 40, 40), np.float32), np.ones((8, 8, 3, 3), np.float32)
    expected = dnn.conv(x, w, algorithm="direct")
    sizes = {a.name: a.workspace for a in dnn.algorithms("conv", x, w)}
    monkeypatch.setattr(memory, "most", lambda: sizes["fft"] - 1)
    np.testing.assert_allclose(
        dnn.conv(x, w, padding="valid", algorithm="fft"), expected, rtol=1e-5
    )  # by a smaller one
    out = np.empty((1, 8, 100, 100), np.float32)
    monkeypatch.setattr(memory, "most", lambda: out.nbytes - 1)
    with pytest.raises(dnn.WorkspaceError, match="interpolate: the result is of shape"):
        dnn.interpolate(x, size=100)
    assert dnn.interpolate(x, size=100, out=out) is out


def test_the_memory_that_there_is_is_found_out(monkeypatch, tmp_path):
    assert memory.most() > 2**20
    for name, content in {"max": "max", "limit": "12000", "swap": "345"}.items():
        (tmp_path / name).write_text(content + "\n")
    files = [("limit", "swap"), ("limit", "max"), ("none",)]
    monkeypatch.setattr(memory, "_LIMITS", tuple(tuple(str(tmp_path / f) for f in names) for names in files))
    assert memory.most.__wrapped__() == 12345


def test_a_seed_is_asked_for_before_any_work_but_not_by_infer():
    with pytest.raises(dnn.OptionError, match="attention: seed is None; expected an integer where dropout is above 0"):
        dnn.attention(_X, _X, _X, dropout=0.5, out="not looked at yet")
    assert dnn.infer("attention", _X, _X, _X, dropout=0.5).output.shape == _X.shape
    with pytest.raises(TypeError, match=r"dropout\(\) missing 1 required keyword-only argument: 'seed'"):
        dnn.vjp("dropout", _X)


def test_infer_takes_numbers_and_nested_arrays_only_where_the_call_does():
    spec = dnn.Spec((1, 2, 3, 4), "float32")
    assert dnn.infer("attention", spec, spec, spec, causal=True, causal_offset=1).output.shape == spec.shape
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: x is a tuple; expected an array or a dnnarray.Spec"):
        dnn.infer("relu", (spec,))
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: x is list \[1, 2\]; expected an array or a dnnarray.Spec"):
        dnn.algorithms("relu", [1, 2])


def test_infer_takes_byte_swapped_arrays_as_the_call_does():
    swapped = _X.astype(_X.dtype.newbyteorder())
    assert dnn.infer("relu", swapped).output.dtype == dnn.relu(swapped).dtype == _X.dtype


def test_infer_of_more_than_memory_holds():
    assert dnn.infer("relu", dnn.Spec((10**400,), "float32")).output.shape == (10**400,)


def test_a_pullback_without_a_gradient_names_the_argument():
    _, pullback = dnn.vjp("relu", _X)
    for nothing in (None, (), [None]):
        with pytest.raises(dnn.ArrayTypeError, match="relu_backward: grad is None"):
            pullback(nothing)


def test_check_finite_leaves_wrong_arguments_to_the_call():
    torch = pytest.importorskip("torch")
    with dnn.options(check_finite=True):
        with pytest.raises(dnn.ArrayTypeError, match="relu: x is str 'abc'"):
            dnn.relu("abc")
        assert dnn.relu(torch.ones(3, dtype=torch.bfloat16)).dtype is torch.bfloat16
        with pytest.raises(FloatingPointError, match="relu: the input x holds NaN"):
            dnn.relu(torch.full((3,), math.nan, dtype=torch.bfloat16))


@pytest.mark.parametrize(
    "wrong", [{"strides": "a"}, {"strides": 5}, {"strides": (1.5,)}, {"dtype": "f4,("}, {"shape": None}]
)
def test_a_spec_of_nonsense_is_a_named_error(wrong):
    with pytest.raises((dnn.ShapeError, dnn.DTypeError), match="Spec: "):
        dnn.Spec(**{"shape": (2,), "dtype": "float32"} | wrong)


def test_nested_arrays_of_one_engine_need_no_borrowing():
    """Lists and tuples of NumPy arrays give what arrays of another namespace give."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, weights = rng.standard_normal((2, 1, 3)), [[rng.standard_normal((8, 3)), rng.standard_normal((8, 2)), None]]
    expected = dnn.lstm(torch.from_numpy(x), [[torch.from_numpy(w) for w in weights[0][:2]]]).y.numpy()
    np.testing.assert_array_equal(dnn.lstm(x, weights).y, expected)
    with pytest.raises(dnn.ArrayTypeError, match=r"lstm: weights is an array of numpy and x of torch"):
        dnn.lstm(torch.from_numpy(x), weights)
