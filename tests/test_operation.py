"""The mechanism itself: binding, remembering, vjp, infer, foreign arrays, specs."""

import enum
import inspect
import pickle
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call import dispatch as _dispatch
from dnnarray._call import operation as _operation
from dnnarray._call import torch as _torch
from dnnarray._options import DEFAULT
from dnnarray._spec import Spec

X = np.array([-1.0, 2.0], np.float32)


def test_signatures_are_those_written():
    written = "(x: 'ArrayT', /, *, out: 'Array | None' = None, workspace: 'Array | None' = None) -> 'ArrayT'"
    assert str(inspect.signature(dnn.relu)) == written
    with pytest.raises(TypeError, match="unexpected keyword"):
        dnn.relu(X, slope=1)
    with pytest.raises(TypeError, match="positional"):
        dnn.relu(x=X)


def test_public_functions_can_be_pickled():
    assert pickle.loads(pickle.dumps(dnn.relu)) is dnn.relu


def test_true_is_not_taken_for_one_after_one_was_seen():
    x, w = np.ones((1, 1, 4, 4)), np.ones((1, 1, 1, 1))
    dnn.conv(x, w, stride=1)
    with pytest.raises(dnn.OptionError, match="stride is True"):
        dnn.conv(x, w, stride=True)


def test_lists_and_arrays_as_options_are_taken_for_tuples():
    x, w = np.ones((1, 1, 5, 5)), np.ones((1, 1, 1, 1))
    expected = dnn.conv(x, w, stride=(1, 2))
    np.testing.assert_array_equal(dnn.conv(x, w, stride=[1, 2]), expected)
    np.testing.assert_array_equal(dnn.conv(x, w, stride=np.array([1, 2])), expected)


class _Layout(enum.StrEnum):
    LAST = "channels_last"


def test_texts_and_truth_values_of_other_types_are_taken_for_plain_ones():
    q = np.ones((1, 1, 3, 2))
    assert np.array_equal(dnn.attention(q, q, q, causal=np.True_), dnn.attention(q, q, q, causal=True))
    x = np.arange(8.0).reshape(1, 4, 2)
    for layout in (np.str_("channels_last"), _Layout.LAST):
        assert np.array_equal(dnn.max_pool(x, 2, layout=layout), dnn.max_pool(x, 2, layout="channels_last"))
    for wrong in (1, np.int64(1), np.str_("left")):
        with pytest.raises(dnn.OptionError, match=r"causal is .*expected one of False, True"):
            dnn.attention(q, q, q, causal=wrong)


def test_a_mistyped_operation_gets_names_like_it():
    with pytest.raises(dnn.OptionError, match=r"op is 'sofmax'.*Did you mean 'softmax'"):
        dnn.vjp("sofmax", np.ones(3))
    with pytest.raises(dnn.OptionError, match=r"dir\(dnnarray\) lists them"):
        dnn.infer("zzzzz")


def test_unhashable_options_get_the_named_error():
    with pytest.raises(dnn.OptionError, match="conv: stride"):
        dnn.conv(np.ones((1, 1, 4, 4)), np.ones((1, 1, 1, 1)), stride={})


def test_the_memory_of_decisions_is_bounded(monkeypatch):
    monkeypatch.setattr(_dispatch, "_CACHE_SIZE", 8)
    _dispatch.forget()
    for n in range(40):
        dnn.relu(np.zeros(n))
    assert len(_dispatch._prepared) <= 8
    assert len(dnn.relu.operation.calls) <= 8


def test_threads_share_decisions():
    _dispatch.forget()
    failures = []

    def work():
        for n in range(1, 60):
            if not np.array_equal(dnn.relu(np.full(n, -1.0)), np.zeros(n)):
                failures.append(n)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


@pytest.mark.parametrize("bad", [[1.0], (1.0,), 1.0, "x", None, object()], ids=lambda v: type(v).__name__)
def test_what_is_no_array_is_refused(bad):
    with pytest.raises(dnn.ArrayTypeError, match="relu: x"):
        dnn.relu(bad)


def test_the_message_for_a_list_says_what_to_do():
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: x is list \[1, 2\]; expected an array.*numpy.asarray"):
        dnn.relu([1, 2])


def test_masked_arrays_are_refused_and_other_subclasses_taken():
    with pytest.raises(dnn.ArrayTypeError, match="filled"):
        dnn.relu(np.ma.masked_array([1.0], [True]))
    assert type(dnn.relu(np.zeros(3).view(np.recarray))) is np.ndarray


@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.complex64, object, "U1"])
def test_dtypes_that_are_not_floating_are_refused(dtype):
    with pytest.raises(dnn.DTypeError, match="relu: x is"):
        dnn.relu(np.zeros(2, dtype))


def test_out_must_not_overlap():
    x = np.zeros(10)
    assert dnn.relu(x, out=x) is x  # the same array is no overlap; see test_in_place
    with pytest.raises(dnn.OptionError, match="memory shared"):
        dnn.relu(x[:5], out=x[2:7])
    interleaved = np.zeros(10)
    assert dnn.relu(interleaved[::2], out=interleaved[1::2]).base is interleaved
    with pytest.raises(dnn.OptionError, match="2 arrays; expected 1"):
        dnn.relu(x, out=(np.zeros(10), np.zeros(10)))
    with pytest.raises(dnn.ArrayTypeError, match="out"):
        dnn.relu(x, out="x")


def test_workspace_is_checked():
    with pytest.raises(dnn.ArrayTypeError, match="uint8"):
        dnn.relu(X, workspace=np.zeros(4))
    with pytest.raises(dnn.OptionError, match="strided"):
        dnn.relu(X, workspace=np.zeros(8, np.uint8)[::2])
    memory = np.zeros(1 << 20, np.uint8)
    x = memory[-4096:].view(np.float64).reshape(1, 2, 16, 16)
    weight = np.ones((2, 2, 3, 3))
    needed = dnn.infer("conv", x, weight).workspace
    assert 0 < needed < memory.nbytes - x.nbytes
    dnn.conv(x, weight, workspace=memory)
    with pytest.raises(dnn.OptionError, match="workspace is memory shared with an input"):
        dnn.conv(x, weight, workspace=memory[-needed:])


def test_vjp_takes_a_function_or_a_name_and_refuses_the_rest():
    assert dnn.vjp(dnn.relu, X)[0] is not None
    with pytest.raises(dnn.OptionError, match="no_such"):
        dnn.vjp("no_such", X)
    with pytest.raises(dnn.OptionError, match="public function"):
        dnn.vjp(len, X)
    with pytest.raises(TypeError, match="unknown or repeated argument 'speed'"):
        dnn.vjp("relu", X, speed=1)
    with pytest.raises(TypeError, match="takes 1 arrays"):
        dnn.vjp("relu", X, X)
    with pytest.raises(dnn.UnsupportedError, match="no gradient"):
        dnn.vjp("one_hot", np.zeros(2, np.int64), 3)


def test_vjp_gives_one_entry_per_array_passed():
    x, w, r = np.ones((1, 2, 3, 3)), np.ones((4, 2, 1, 1)), np.ones((1, 4, 3, 3))
    y, pullback = dnn.vjp("conv", x, w)
    assert [g.shape for g in pullback(y)] == [x.shape, w.shape]
    y, pullback = dnn.vjp("conv", x, w, None)
    assert pullback(y)[2] is None
    y, pullback = dnn.vjp("conv", x, w, residual=r)
    assert [g.shape for g in pullback(y)] == [x.shape, w.shape, r.shape]


_IMAGE = np.linspace(-1, 1, 96).reshape(1, 6, 4, 4)
_PARAMETERS = np.linspace(1, 2, 6)
_BOTH_WAYS = {  # the arguments by position, and the same with every option by name
    "dropout": (("dropout", _IMAGE, 0.5), ("dropout", _IMAGE), {"p": 0.5}, {"seed": 3}),
    "softmax": (("softmax", _IMAGE, 1), ("softmax", _IMAGE), {"axis": 1}, {}),
    "pool": (("max_pool", _IMAGE, (2, 2)), ("max_pool", _IMAGE), {"kernel_size": (2, 2)}, {"stride": 1}),
    "an array as option": (("max_pool", _IMAGE, np.array([2, 2])), ("max_pool", _IMAGE), {"kernel_size": 2}, {}),
    "a number of numpy": (("group_norm", _IMAGE, np.int64(3)), ("group_norm", _IMAGE), {"num_groups": 3}, {}),
    "alone": (("group_norm", _IMAGE, 3), ("group_norm", _IMAGE), {"num_groups": 3}, {"eps": 1e-3}),
    "among arrays": (
        ("group_norm", _IMAGE, 3, _PARAMETERS, _PARAMETERS),
        ("group_norm", _IMAGE, _PARAMETERS, _PARAMETERS),
        {"num_groups": 3},
        {},
    ),
    "among arrays, one omitted": (
        ("group_norm", _IMAGE, 3, None, _PARAMETERS),
        ("group_norm", _IMAGE, None, _PARAMETERS),
        {"num_groups": 3},
        {},
    ),
    "two": (
        ("fold", _IMAGE.reshape(1, 6, 16)[:, :4], (5, 5), 2),
        ("fold", _IMAGE.reshape(1, 6, 16)[:, :4]),
        {"output_size": (5, 5), "kernel_size": 2},
        {},
    ),
    "the second by name": (
        ("fold", _IMAGE.reshape(1, 6, 16)[:, :4], (5, 5)),
        ("fold", _IMAGE.reshape(1, 6, 16)[:, :4]),
        {"output_size": (5, 5)},
        {"kernel_size": 2},
    ),
}


@pytest.mark.parametrize("name", _BOTH_WAYS)
def test_options_stand_in_their_places_or_go_by_name(name):
    by_position, by_name, options, others = _BOTH_WAYS[name]
    y, pullback = dnn.vjp(*by_position, **others)
    expected, pullback_by_name = dnn.vjp(*by_name, **options, **others)
    np.testing.assert_array_equal(y, expected)
    gradients, named_gradients = (pull(np.ones_like(y)) for pull in (pullback, pullback_by_name))
    assert len(gradients) == len(named_gradients) == len(by_name) - 1
    for a, b in zip(gradients, named_gradients, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)
    assert dnn.infer(*by_position, **others).output == dnn.infer(*by_name, **options, **others).output
    assert dnn.algorithms(*by_position, **others) == dnn.algorithms(*by_name, **options, **others)


@pytest.mark.parametrize("question", [dnn.vjp, dnn.infer, dnn.explain], ids=lambda f: f.__name__)
def test_values_that_have_no_place_are_refused(question):
    with pytest.raises(TypeError, match="group_norm: missing num_groups; give it by name"):
        question("group_norm", _IMAGE, _PARAMETERS)
    with pytest.raises(TypeError, match=r"group_norm: takes 3 arrays .* got 5"):
        question("group_norm", _IMAGE, 3, _PARAMETERS, _PARAMETERS, _PARAMETERS)
    with pytest.raises(dnn.ArrayTypeError, match="group_norm: weight is "):
        question("group_norm", _IMAGE, 3, 4)
    with pytest.raises(dnn.ArrayTypeError, match="group_norm: weight is "):
        question("group_norm", _IMAGE, 3, num_groups=3)
    with pytest.raises(TypeError, match="relu: takes 1 arrays"):
        question("relu", _IMAGE, 1)
    with pytest.raises(TypeError, match="unknown or repeated argument 'weight'"):
        question("group_norm", _IMAGE, 3, _PARAMETERS, weight=_PARAMETERS)


def test_gradients_asked_about_take_arrays_in_signature_order():
    pooled = dnn.max_pool_with_indices(_IMAGE, 2)
    by_name = dnn.infer("max_pool_backward", pooled.y, _IMAGE, pooled.indices, kernel_size=2)
    assert by_name == dnn.infer("max_pool_backward", pooled.y, _IMAGE, 2, pooled.indices)
    assert by_name.output.shape == _IMAGE.shape


def test_the_pullback_checks_its_gradient():
    _, pullback = dnn.vjp("relu", X)
    with pytest.raises(dnn.ShapeError, match="relu_backward: grad"):
        pullback(np.ones(3, np.float32))
    with pytest.raises(dnn.DTypeError, match="relu_backward: grad"):
        pullback(np.ones(2))


def test_spec_forms():
    assert Spec([2, 3], "bfloat16").dtype == ml_dtypes.bfloat16
    assert Spec((2, 3), np.float32, (3, 1)) == Spec((2, 3), "float32")
    assert Spec((2, 3), "float32", (1, 2)).axis_order() == (1, 0)
    assert Spec((2, 3), "float32", (6, 2)).axis_order() is None
    assert Spec((2, 3, 4), "float32", (12, 1, 3)).like().strides == (12, 1, 3)
    assert Spec((2, 3, 4), "float32", (12, 1, 3)).like((2, 5, 4)).strides == (20, 1, 5)
    with pytest.raises(dnn.ShapeError, match="Spec: shape"):
        Spec((2, -1), "float32")
    with pytest.raises(dnn.ShapeError, match="Spec: shape"):
        Spec((2.5,), "float32")
    with pytest.raises(dnn.DTypeError, match="Spec: dtype"):
        Spec((2,), "float33")


def test_infer_refuses_what_the_call_would_refuse():
    with pytest.raises(dnn.DTypeError, match="relu: x"):
        dnn.infer("relu", Spec((2,), "int32"))
    with pytest.raises(dnn.ArrayTypeError, match=r"dnnarray.Spec"):
        dnn.infer("relu", [1, 2])


def test_torch_tensors_that_require_grad_are_refused_and_bfloat16_is_borrowed():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    leaf = torch.tensor([-1.0, 2.0], requires_grad=True)
    with pytest.raises(dnn.ArrayTypeError, match="detach"):
        dnn.relu(leaf)
    with torch.no_grad():
        assert dnn.relu(leaf).tolist() == [0.0, 2.0]
    half = torch.tensor([-1.0, 2.0], dtype=torch.bfloat16)
    assert dnn.relu(half).dtype is torch.bfloat16
    out = torch.empty(2)
    assert dnn.relu(torch.tensor([-1.0, 3.0]), out=out) is out
    assert out.tolist() == [0.0, 3.0]


def test_torch_inputs_are_borrowed_not_copied():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.zeros(4)
    assert np.shares_memory(_torch.host_door().take(tensor), tensor.numpy())


def test_jax_tracers_are_refused():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with pytest.raises(dnn.ArrayTypeError, match="tracer"):
        jax.jit(dnn.relu)(jax.numpy.ones(3))


def test_an_array_without_axes_is_taken_for_a_number():
    np.testing.assert_array_equal(dnn.softmax(np.eye(3), axis=np.array(0)), dnn.softmax(np.eye(3), axis=0))


@pytest.mark.parametrize("wrong", [None, 3, [1.0], (), "x"], ids=str)
def test_questions_name_the_argument_that_is_no_array(wrong):
    with pytest.raises(dnn.ArrayTypeError, match="softmax: x is "):
        dnn.infer("softmax", wrong)
    if wrong is not None:
        with pytest.raises(dnn.ArrayTypeError, match="max_pool2d: x is "):
            dnn.vjp("max_pool2d", wrong, kernel_size=2)


def test_out_whose_elements_share_memory_is_refused():
    shared = np.lib.stride_tricks.as_strided(np.zeros(2, np.float32), (2,), (0,))
    with pytest.raises(dnn.OptionError, match="relu: out is broadcast"):
        dnn.relu(X, out=shared)


def test_lists_among_the_options_are_planned_once(monkeypatch):
    x = np.ones((1, 1, 4, 6), np.float32)
    expected = dnn.max_pool(x, [2, 2], stride=[2, 2])
    monkeypatch.setattr(_dispatch, "prepare", None)
    np.testing.assert_array_equal(dnn.max_pool(x, [2, 2], stride=[2, 2]), expected)
    np.testing.assert_array_equal(dnn.max_pool(x, np.array([2, 2]), stride=[2, 2]), expected)


def test_plans_are_made_where_the_arrays_live(monkeypatch):
    where = ["elsewhere"]

    @contextmanager
    def at(place):
        where.append(place)
        yield
        where.pop()

    engine = SimpleNamespace(place=lambda array: "there", at=at, prepare=lambda *_: where[-1])
    monkeypatch.setattr(_dispatch, "_prepared", {})
    relu = _operation.find("relu")
    assert _dispatch.prepare(engine, DEFAULT, relu, None, (), (X,)) == "there"


def test_many_threads_may_make_the_first_call():
    def scale(x, /, *, by=2.0, out=None):
        """Not called."""

    for _ in range(20):
        function = _operation.operation(lambda *_, **__: None)(scale)
        seen, start = [], threading.Barrier(8)

        def call(function=function, seen=seen, start=start):
            start.wait()
            try:
                function()
            except TypeError as error:
                seen.append(str(error))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert seen == ["scale() missing 1 required positional argument: 'x'"] * 8
    del _operation._registry["scale"]


def test_signature_and_documentation_stand_before_the_first_call():
    code = (
        "import inspect, dnnarray as dnn; print(inspect.signature(dnn.relu)); print(dnn.relu.__doc__[:4]); "
        "print(dnn.relu.__name__)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0] == str(inspect.signature(dnn.relu))
    assert shown[1:] == [dnn.relu.__doc__[:4], "relu"]
