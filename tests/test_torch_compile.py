"""Calls inside `torch.compile`: the graph breaks there, the library itself is never traced, and the results are those
of a plain call."""

import functools
import subprocess
import sys

import numpy as np
import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, which differ between versions


def _block(x):
    return torch.relu(dnn.conv(x * 2, x.new_ones(4, 3, 3, 3))).sum() + 1


def _two_calls(x):
    return dnn.max_pool2d(dnn.relu(x), 2) * 2


def _inside_options(x):
    with dnn.options(deterministic=True):
        y = dnn.relu(x * 2)
    return y + 1


def _settings(x):
    dnn.set_options(deterministic=True)
    y = dnn.relu(x)
    dnn.set_options(deterministic=False)
    return y + 1


def _gradient(x):
    _, pullback = dnn.vjp(dnn.max_pool2d, x * 3, kernel_size=2)
    return pullback(x.new_ones(x.shape[0], 3, 4, 4))[0] * 2


def _several_results(x):
    result = dnn.max_pool_with_indices(x, 2)
    return result.y * 2, result.indices + 1


def _given_out(x):
    y = torch.empty_like(x)
    dnn.relu(x, out=y)
    return y * 2


def _repeated(x):
    for _ in range(5):
        x = dnn.gelu(x) * 1.5
    return x


def _nested(x):
    weights = dnn.RNNWeights(x.new_ones(12, 8), x.new_ones(12, 3))
    return dnn.lstm(x.reshape(-1, 8, 8), (weights,)).y * 2


@functools.wraps(dnn.relu)
def _wrapper(x):
    return dnn.relu(x)


def _questions(x):
    return _wrapper(x) * len(dnn.algorithms("relu", x)) * dnn.infer("relu", x).output.shape[0]


def _by_numpy(x):
    return torch.from_numpy(dnn.relu(x.numpy())) * 2


def _refused(x):
    try:
        dnn.conv(x, x[:, :1, 0])
    except dnn.ShapeError:
        return x + 1


class _Module(torch.nn.Module):
    def forward(self, x):
        return dnn.softmax(x * 2, axis=1) + 1


_FUNCTIONS = [
    _block,
    _two_calls,
    _inside_options,
    _settings,
    _gradient,
    _several_results,
    _given_out,
    _repeated,
    _nested,
    _questions,
    _by_numpy,
    _refused,
    _Module(),
    dnn.relu,
    dnn.layer_norm,
]


@pytest.mark.parametrize("function", _FUNCTIONS, ids=lambda f: getattr(f, "__name__", "module"))
def test_a_compiled_function_gives_what_the_plain_one_gives(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager")
    for x in (torch.randn(2, 3, 8, 8), torch.randn(1, 3, 8, 8), torch.randn(2, 3, 8, 8, dtype=torch.float64)):
        got, expected = compiled(x), function(x)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, expected)), strict=True):
            assert torch.equal(a, b)


def test_each_call_is_one_break_and_nothing_of_the_library_is_traced():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(_block, backend="eager")
    for _ in range(3):
        compiled(torch.randn(2, 3, 8, 8))
    reasons = torch._dynamo.utils.counters["graph_break"]
    assert reasons
    assert all("dnnarray runs kernels of its own" in reason for reason in reasons)


def test_a_whole_graph_is_refused_with_the_reason():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="dnnarray runs kernels of its own"):
        torch.compile(_block, backend="eager", fullgraph=True)(torch.randn(2, 3, 8, 8))


_FIRST = """
import warnings
warnings.simplefilter("ignore")
{imports}

def step(x):
    return dnn.{call} * 2 + 1

@torch._dynamo.disable(recursive=False)
def by_a_library(x):  # what is not traced itself, but lets the tracer see the calls that it makes
    return step(x)

x = torch.arange(-8.0, 8.0).reshape(1, 1, 4, 4)
got = torch.compile(lambda x: {function}(x + 0) + 1, backend="eager")(x)
print(torch.equal(got, step(x) + 1))
"""


@pytest.mark.parametrize(
    ("imports", "function"),
    [("import torch\nimport dnnarray as dnn", "step"), ("import dnnarray as dnn\nimport torch", "by_a_library")],
    ids=["torch-first", "dnnarray-first"],
)
def test_the_very_first_call_may_be_under_the_tracer(imports, function):
    """In a process where no function has been written yet, whichever library is imported first."""
    text = _FIRST.format(imports=imports, function=function, call="relu(x)")
    assert (
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
        == "True"
    )


def test_a_function_that_left_for_another_process_is_still_marked():
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    copied = cloudpickle.loads(cloudpickle.dumps(_wrapper))
    torch._dynamo.reset()
    x = torch.randn(3)
    assert torch.equal(torch.compile(copied, backend="eager")(x), dnn.relu(x))


def test_the_mark_is_plain_true_without_a_tracer(monkeypatch):
    for name in ("torch._dynamo.trace_rules", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert dnn.relu._torchdynamo_disable
    assert np.array_equal(dnn.relu(np.array([-1.0, 1.0])), [0.0, 1.0])
