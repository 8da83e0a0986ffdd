"""Calls on tensors in the memory of the processor: found again by the public function itself, with the numbers of NumPy
arrays, in PyTorch's own memory."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call import dispatch as _dispatch
from dnnarray._problems.base import leaves, tree_map
from tests.registry import FIRST
from tests.support import BFLOAT16, FLOAT32, call

torch = pytest.importorskip("torch", reason="torch is not installed")


def _tensor(array):
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        if array.dtype == BFLOAT16
        else torch.from_numpy(array)
    )


def _numbers(tensor):
    return tensor.view(torch.int16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


@pytest.fixture
def general(monkeypatch):
    """The names of the operations whose calls went the general way."""
    seen, run = [], _dispatch._run

    def counted(config, op, *rest):
        seen.append(op.name)
        return run(config, op, *rest)

    monkeypatch.setattr(_dispatch, "_run", counted)
    return seen


def _can_be_warm(arrays):
    """A Python integer among the arrays has no key."""
    return all(isinstance(leaf, np.ndarray) for leaf in leaves(arrays))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=lambda d: d.name)
@pytest.mark.parametrize("case", [c for c in FIRST if FLOAT32 in c.dtypes], ids=str)
def test_warm_calls_give_the_numbers_of_numpy_arrays(general, case, dtype):
    if dtype not in case.dtypes:
        pytest.skip("not of this dtype")
    arrays = case.draw(dtype)
    tensors = tuple(tree_map(lambda a: _tensor(np.array(a)) if isinstance(a, np.ndarray) else a, a) for a in arrays)
    expected = call(case.op, arrays, case.options)
    for _ in range(3):
        call(case.op, tensors, case.options)
    met = len(general)
    found = call(case.op, tensors, case.options)
    assert len(general) == met or not _can_be_warm(arrays)
    assert type(found) is (torch.Tensor if isinstance(expected, np.ndarray) else type(expected))
    for have, want in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_array_equal(_numbers(have), want)
        assert have.data_ptr() % 64 == 0  # as PyTorch aligns its own memory, and NumPy does not


def test_a_result_lies_in_memory_as_the_input_does():
    x = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for _ in range(3):
        y = dnn.relu(x)
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(y, torch.relu(x))
        z = dnn.relu(x[:, :, ::2, 1:])
        assert torch.equal(z, torch.relu(x[:, :, ::2, 1:]))
        assert torch.equal(dnn.relu(x[0, 0, 0, 0]), torch.relu(x[0, 0, 0, 0]))
        assert dnn.relu(x[:0]).shape == (0, 3, 4, 5)


def test_a_tensor_that_requires_grad_is_refused_each_time_and_taken_without_grad_mode():
    plain, leaf = torch.tensor([-1.0, 2.0]), torch.nn.Parameter(torch.tensor([-1.0, 2.0]))
    for _ in range(3):
        assert dnn.relu(plain).tolist() == [0, 2]
        with pytest.raises(dnn.ArrayTypeError, match="detach"):
            dnn.relu(leaf)
        with torch.no_grad():
            y = dnn.relu(leaf)
        assert type(y) is torch.Tensor
        assert not y.requires_grad
        with torch.inference_mode():
            assert dnn.relu(leaf).tolist() == [0, 2]


def test_what_is_no_plain_memory_gets_the_same_error_after_a_plain_tensor():
    x = torch.tensor([-1.0, 2.0])
    for _ in range(3):
        dnn.relu(x)
    for _ in range(2):
        with pytest.raises(dnn.DeviceError, match="shares no memory"):
            dnn.relu(x.to("meta"))
        with pytest.raises(dnn.ArrayTypeError, match="sparse"):
            dnn.relu(x.to_sparse())
        with pytest.raises((dnn.ArrayTypeError, dnn.DeviceError)):
            torch.vmap(dnn.relu)(torch.ones(3, 2))
        assert dnn.relu(torch.imag(torch.conj(torch.tensor([1 + 2j, 1 - 3j])))).tolist() == [0, 3]
        with pytest.raises(dnn.ArrayTypeError, match="one namespace"):
            dnn.linear(x[None], np.ones((2, 2), np.float32))


def test_a_default_device_does_not_move_results():
    x = torch.randn(2, 3, 4, 4)
    with torch.device("meta"):
        for _ in range(3):
            assert dnn.relu(x).device.type == "cpu"
            assert dnn.max_pool(x, 2).device.type == "cpu"


def test_out_and_workspace_are_taken_after_warm_calls():
    x, out = torch.tensor([-1.0, 2.0]), torch.empty(2)
    for _ in range(3):
        dnn.relu(x)
        assert dnn.relu(x, out=out) is out
        assert out.tolist() == [0, 2]
    assert dnn.relu(x, out=x) is x
    assert x.tolist() == [0, 2]


def test_a_result_beyond_all_memory_is_a_workspace_error():
    x = torch.zeros(1).expand(1 << 45)
    for _ in range(2):
        with pytest.raises(dnn.WorkspaceError, match="relu: the result"):
            dnn.relu(x)


def test_a_gradient_that_reads_fewer_arrays_than_its_family_stays_right():
    grad, x = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 8, 8)
    expected = dnn.avg_pool_backward(grad.numpy(), x.numpy(), 2)
    for _ in range(4):
        assert (dnn.avg_pool_backward(grad, x, 2).numpy() == expected).all()
