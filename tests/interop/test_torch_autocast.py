"""dnnarray's operators under `torch.autocast`: the dtypes are those of PyTorch's own operators."""

import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch")
door = pytest.importorskip("dnnarray.interop.torch")
from dnnarray.interop.torch import autocast  # noqa: E402 - where PyTorch is there

_DTYPES = [torch.bfloat16, torch.float16]


def _lower():
    x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    q = torch.randn(1, 2, 5, 4)
    cell = dnn.RNNWeights(torch.randn(9, 3), torch.randn(9, 3))
    yield "conv", lambda: door.conv(x, w, torch.randn(4))
    yield "conv2d", lambda: door.conv2d(x.bfloat16(), w)
    yield "linear", lambda: door.linear(x, torch.randn(5, 6))
    yield "attention", lambda: door.attention(q, q, q)
    yield "gru", lambda: door.gru(torch.randn(4, 2, 3), [cell]).y


def _full(dtype):
    x = torch.randn(4, 6).to(dtype)
    yield "layer_norm", lambda: door.layer_norm(x, torch.ones(6))
    yield "softmax", lambda: door.softmax(x)
    yield "cross_entropy", lambda: door.cross_entropy(x, torch.tensor([0, 1, 2, 3]))
    yield "linear_cross_entropy", lambda: door.linear_cross_entropy(x, torch.randn(5, 6), torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("number", range(5), ids=[n for n, _ in _lower()])
def test_products_take_the_dtype_of_autocast(number, dtype):
    _, call = list(_lower())[number]
    with torch.autocast("cpu", dtype):
        assert call().dtype is dtype
        with torch.autocast("cpu", enabled=False):
            assert door.relu(torch.ones(2)).dtype is torch.float32


@pytest.mark.parametrize("number", range(4), ids=[n for n, _ in _full(torch.float32)])
def test_sums_are_computed_in_float32(number):
    _, call = list(_full(torch.bfloat16))[number]
    with torch.autocast("cpu", torch.bfloat16):
        assert call().dtype is torch.float32


def test_float64_and_what_has_no_rule_stay():
    x, w = torch.randn(2, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert door.linear(x, w).dtype is torch.float64
        assert door.relu(x.bfloat16()).dtype is torch.bfloat16
        assert door.grid_sample(torch.ones(1, 1, 2, 2).bfloat16(), torch.zeros(1, 1, 1, 2)).dtype is torch.float32


def test_gradients_have_the_dtypes_of_their_tensors():
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = door.cross_entropy(door.linear(x, w), torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert x.grad.dtype is w.grad.dtype is torch.float32
    wanted = torch.autograd.grad(torch.nn.functional.cross_entropy(x @ w.T, torch.tensor([0, 1, 2, 3])), w)[0]
    torch.testing.assert_close(w.grad, wanted, rtol=0.05, atol=0.02)


def test_a_compiled_function_has_the_same_dtypes():
    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = door.conv(x, w, padding=1)
            return y, door.softmax(y, axis=1)

    torch._dynamo.reset()
    x, w = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    found = torch.compile(f, fullgraph=True, backend="aot_eager")(x, w)
    assert [t.dtype for t in found] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(found, f(x, w))


def test_the_lists_name_operations_that_there_are():
    names = autocast.LOWER | autocast.FULL | autocast.WIDEST
    assert names <= set(door.__all__)
    assert len(names) == len(autocast.LOWER) + len(autocast.FULL) + len(autocast.WIDEST)
