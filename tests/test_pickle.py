"""What is public travels to other processes and other threads of work: pickle, cloudpickle, joblib, copies."""

import copy
import multiprocessing
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import telemetry
from dnnarray._call.operation import operations
from tests.registry import FIRST
from tests.support import call

cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")

_PICKLERS = {"pickle": pickle, "cloudpickle": cloudpickle}
_X = np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 3, 4, 4)


@pytest.fixture(params=_PICKLERS)
def through(request):
    pickler = _PICKLERS[request.param]
    return lambda value: pickler.loads(pickler.dumps(value))


@pytest.mark.parametrize("name", ["dnnarray", *(n for n in dnn.__all__ if n != "__version__")])
def test_every_public_name_pickles_as_itself(name, through):
    value = dnn if name == "dnnarray" else getattr(dnn, name)
    assert through(value) is value
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value


@pytest.mark.parametrize("name", sorted(operations()))
def test_an_operation_is_one_object_everywhere(name, through):
    operation = operations()[name]
    assert through(operation) is operation
    assert copy.deepcopy(operation) is operation


@pytest.mark.parametrize("case", [c for c in FIRST if c.op in operations()], ids=str)
def test_results_keep_their_type(case, through):
    result = call(case.op, case.draw(np.dtype("float32")), case.options)
    copied = through(result)
    assert type(copied) is type(result)
    if isinstance(result, tuple):
        assert copied._fields == result._fields


@pytest.mark.parametrize(
    "make",
    [
        lambda: dnn.Spec((2, 3), "bfloat16", (3, 1)),
        lambda: dnn.algorithms("conv", dnn.Spec((1, 2, 5, 5), "float32"), dnn.Spec((2, 2, 3, 3), "float32")),
        lambda: dnn.infer("max_pool_with_indices", dnn.Spec((1, 2, 5, 5), "float32"), kernel_size=2),
    ],
    ids=["spec", "algorithms", "inference"],
)
def test_descriptions_are_equal_after_the_journey(make, through):
    assert through(make()) == make()


def test_a_report_says_the_same_after_the_journey(through):
    report = dnn.explain("conv", dnn.Spec((1, 2, 5, 5), "float32"), dnn.Spec((2, 2, 3, 3), "float32"))
    assert str(through(report)) == str(report)
    assert str(through(checked := dnn.check())) == str(checked)


def test_options_in_force_are_one_object_everywhere(through):
    with dnn.options(workspace_limit="3MB", threads=2) as inside:
        assert through(inside) is inside
    block = through(dnn.options(workspace_limit="3MB", threads=2))
    with block as again:
        assert again is inside


def test_recurrent_weights_pickle(through):
    weights = dnn.RNNWeights(*(np.ones((3, 2), np.float32) for _ in range(2)))
    copied = through(weights)
    assert type(copied) is dnn.RNNWeights
    assert np.array_equal(copied.w_ih, weights.w_ih)
    assert copied.b_ih is None


def _wrong_calls():
    w = np.ones((2, 3, 3, 3), np.float32)
    return [
        lambda: dnn.conv(_X, w, stride=0),
        lambda: dnn.conv(_X, w[:, :2]),
        lambda: dnn.conv(_X, w.astype(np.float64)),
        lambda: dnn.relu([1.0]),
        lambda: dnn.relu(_X, workspace=np.zeros(3)),
        lambda: dnn.vjp("one_hot", np.zeros(2, np.int64), 3),
        lambda: dnn.Spec((-1,), "float32"),
    ]


@pytest.mark.parametrize("wrong", _wrong_calls())
def test_errors_arrive_with_their_message(wrong, through):
    with pytest.raises(Exception) as caught:
        wrong()
    copied = through(caught.value)
    assert type(copied) is type(caught.value)
    assert str(copied) == str(caught.value)


@pytest.mark.parametrize(
    "error",
    ["ShapeError", "DTypeError", "ArrayTypeError", "OptionError", "UnsupportedError", "WorkspaceError", "DeviceError"],
)
def test_errors_made_by_hand_keep_their_arguments(error, through):
    made = getattr(dnn, error)("first", 2)
    assert through(made).args == ("first", 2)


def _module(name, text):
    module = types.ModuleType(name)
    exec(text, module.__dict__)  # noqa: S102 - the text of a test
    sys.modules[name] = module
    return module


def test_a_module_that_is_pickled_by_value_refers_to_the_package_by_name(monkeypatch):
    """What a notebook or a script on another machine is: the function travels as code, the package as its name."""
    text = (
        "import dnnarray as dnn\nfrom dnnarray import telemetry\n\ndef work(x):\n    return dnn.relu(x) + "
        "len(telemetry.snapshot())\n"
    )
    module = _module("a_script_of_the_user", text)
    cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps(module.work)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["a_script_of_the_user"]
    assert len(data) < 2000
    assert np.array_equal(pickle.loads(data)(_X), dnn.relu(_X) + len(telemetry.snapshot()))


_SCRIPT = """
import numpy as np
import dnnarray as dnn
from joblib import Parallel, delayed

def work(n):
    with dnn.options(deterministic=True):
        y, pullback = dnn.vjp("relu", np.full(3, n - 2.0))
    return dnn.conv1d(y.reshape(1, 1, 3), np.ones((1, 1, 3))).item(), dnn.telemetry.snapshot()

print([Parallel(n_jobs=2)(delayed(work)(n) for n in range(5))[n][0] for n in range(5)])
"""


def test_joblib_runs_functions_of_a_script():
    pytest.importorskip("joblib", reason="joblib is not installed")
    shown = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[0.0, 0.0, 0.0, 3.0, 6.0]"


def test_processes_of_the_standard_library_take_public_functions():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(dnn.relu, (_X,)), dnn.relu(_X))
        assert np.array_equal(pool.apply(dnn.max_pool2d, (_X, 2)), dnn.max_pool2d(_X, 2))


def test_dask_runs_functions_that_refer_to_the_package():
    dask = pytest.importorskip("dask", reason="dask is not installed")
    graph = [dask.delayed(lambda n: dnn.relu(np.full(3, n - 1.0)).sum())(n) for n in range(3)]
    assert dask.compute(*graph, scheduler="processes", num_workers=1) == (0.0, 0.0, 3.0)
