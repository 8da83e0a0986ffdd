"""No public function goes the general way twice with the same kind of call: plain, with results or scratch memory of
the caller's."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

import dnnarray as dnn
from dnnarray._call import torch as _torch
from dnnarray._call.operation import find, operations
from dnnarray._problems.base import leaves, tree_map
from tests.made_up_device import made_up_device
from tests.registry import FIRST
from tests.support import FLOAT32, call

_CASES = FIRST
_DIFFERENTIABLE = [case for case in _CASES if case.gradient]


def _dtype(case):
    return FLOAT32 if FLOAT32 in case.dtypes else case.dtypes[0]


@pytest.fixture
def device(monkeypatch):
    with made_up_device(monkeypatch) as made:
        yield made


def _needs(op, arrays, options):
    """The specs of the results, and bytes of scratch memory."""
    inferred = dnn.infer(op, *arrays, **options)
    return [s for s in inferred.outputs if s is not None], inferred.workspace


def _results(device, op, arrays, options, **how):
    """The caller's own results, as the function returns them."""
    made = [
        device.array(np.broadcast_to(np.zeros((), s.dtype), s.shape), **how) for s in _needs(op, arrays, options)[0]
    ]
    return tuple(made) if isinstance(call(op, arrays, options), tuple) else made[0]


def _check(device, op, arrays, options):
    """Each form of a call goes the general way once at most, and gives what it should."""
    forms = {
        "plain": {},
        "out": {"out": _results(device, op, arrays, options)},
        "out elsewhere": {"out": _results(device, op, arrays, options, spread=True)},
        "out at an odd place": {"out": _results(device, op, arrays, options, offset=8)},
        "workspace": {"workspace": device.array(np.zeros(_needs(op, arrays, options)[1], np.uint8))},
    }
    slow = []
    for name, more in forms.items():
        result = call(op, arrays, options | more)
        before, launched = len(device.general), len(device.launched)
        again = call(op, arrays, options | more)
        if len(device.general) > before:
            slow.append(name)
        assert [(r.shape, r.dtype) for r in leaves(again)] == [(r.shape, r.dtype) for r in leaves(result)]
        assert len(device.launched) > launched
        if "out" in more:
            assert all(a is b for a, b in zip(leaves(again), leaves(more["out"]), strict=True))
    assert not slow


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_no_call_goes_the_general_way_twice(device, case):
    arrays = tuple(tree_map(device.array, a) for a in case.draw(_dtype(case)))
    for _ in range(2):
        call(case.op, arrays, case.options)
    _check(device, case.op, arrays, case.options)


def _backward_call(case, arrays):
    """The call of the gradient that `vjp` makes."""
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    grad = output[0] if isinstance(output, tuple) else output
    grads = (grad, *(None,) * (len(output) - 1)) if isinstance(output, tuple) else grad
    pullback(grads)
    backward = pullback.plan.backward
    options = {n: v for n, v in pullback.options.items() if n in backward.defaults}
    return backward.name, (pullback.plan.taken(grads), *pullback.arrays), options


@pytest.mark.parametrize("case", _DIFFERENTIABLE, ids=str)
def test_no_gradient_goes_the_general_way_twice(device, case):
    arrays = tuple(tree_map(device.array, a) for a in case.draw(_dtype(case)))
    _check(device, *_backward_call(case, arrays))


def test_each_operation_is_called_above():
    covered = {find(case.op).base for case in _CASES} | {f"{find(case.op).base}_backward" for case in _DIFFERENTIABLE}
    assert {op.base for op in operations().values()} <= covered


def test_scratch_memory_within_a_result_is_refused(device):
    case = next(c for c in _CASES if c.op == "conv")
    arrays = tuple(tree_map(device.array, a) for a in case.draw(FLOAT32))
    algorithm = next(a for a in dnn.algorithms("conv", *arrays, **case.options) if a.workspace > 0)
    options = case.options | {"algorithm": algorithm.name}
    (spec,) = (s for s in dnn.infer("conv", *arrays, **case.options).outputs if s is not None)
    out = device.array(np.zeros(spec.shape, spec.dtype))
    apart, within = (
        cupy_like(device.array(np.zeros(algorithm.workspace, np.uint8)), (1,), data) for data in (None, out.data)
    )
    for _ in range(3):
        assert call("conv", arrays, options | {"out": out, "workspace": apart}) is out
    with pytest.raises(dnn.OptionError, match="workspace is memory shared"):
        call("conv", arrays, options | {"out": out, "workspace": within})


@pytest.mark.parametrize("op", ["relu", "relu_backward", "dropout"])
@pytest.mark.parametrize("offset", [0, 4], ids=["aligned", "odd"])
def test_a_result_over_an_input_is_launched_there(device, op, offset):
    x, grad = (device.array(np.zeros((64, 8), np.float32), offset=offset) for _ in range(2))
    arrays, options = ((grad, x) if op == "relu_backward" else (x,)), ({"seed": 1} if op == "dropout" else {})
    for over in arrays:
        for _ in range(2):
            call(op, arrays, options | {"out": over})
        general, launched = len(device.general), len(device.launched)
        assert call(op, arrays, options | {"out": over}) is over
        assert (len(device.general), len(device.launched)) == (general, launched + 1)
    assert not device.copied


def test_a_result_that_overlaps_an_input_otherwise_is_refused_warm_and_cold(device):
    whole = device.array(np.zeros(256, np.float32))
    x, shifted, other = whole[:128], whole[4:132], device.array(np.zeros(128, np.float32))
    for _ in range(3):
        dnn.relu(x, out=x)
        dnn.relu(x, out=other)
        for wrong in (shifted, whole[:256:2], x[::-1]):
            with pytest.raises(dnn.OptionError, match="out is memory shared with an input"):
                dnn.relu(x, out=wrong)


@pytest.mark.parametrize("case", ["gated", "running statistics"])
def test_what_is_not_done_in_place_goes_through_other_memory(device, case, monkeypatch):
    """The launches never have an input among their results; what they wrote is copied."""
    copies = []
    monkeypatch.setattr(type(device.array(0)), "__setitem__", lambda *given: copies.append(given), raising=False)
    x, gate = (device.array(np.zeros((8, 6), np.float32)) for _ in range(2))
    if case == "gated":
        assert dnn.swiglu(gate, x, out=x) is x
        assert [c[0] is x for c in copies] == [True]
        return
    mean, var, *rest = (device.array(np.zeros(6, np.float32)) for _ in range(4))
    result = dnn.batch_norm_train(
        x, None, None, mean, var, out=(device.array(np.zeros((8, 6), np.float32)), *rest, mean, var)
    )
    assert result.running_mean is mean
    assert [c[0] is s for c, s in zip(copies, (mean, var), strict=True)] == [True, True]


@pytest.mark.parametrize("shape", [(4, 6, 1, 1), (1, 6, 5, 5), (4, 1, 3, 1), (1, 1, 1, 1)])
def test_arrays_of_one_shape_in_different_orders_keep_apart(device, shape):
    dense = device.array(np.zeros(shape, np.float32))
    item, (_, c, h, w) = dense.dtype.itemsize, shape
    last = cupy_like(dense, tuple(item * s for s in (c * h * w, 1, w * c, c)))
    for x in (dense, last, dense, last):
        results = [dnn.interpolate(x, size=(4, 4)) for _ in range(3)]
        expected = dnn.infer("interpolate", x, size=(4, 4)).output
        assert {r.strides for r in results} == {tuple(item * s for s in expected.strides or expected.c_strides)}
    before = len(device.general)
    for x in (dense, last):
        dnn.interpolate(x, size=(4, 4))
    assert len(device.general) == before


def cupy_like(array, strides, data=None):
    return type(array)(array.shape, array.dtype, data or array.data, strides)


@pytest.fixture
def tensors(device, monkeypatch):
    """Tensors of the host's memory that say they are on the device."""
    torch = pytest.importorskip("torch")
    host = torch.device("cpu")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
    monkeypatch.setattr(torch.Tensor, "device", SimpleNamespace(index=0), raising=False)
    monkeypatch.setattr(torch, "device", lambda *_: host)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    for remembered in (_torch.door, _torch.kind):
        remembered.cache_clear()
    yield torch
    monkeypatch.undo()
    for remembered in (_torch.door, _torch.kind):
        remembered.cache_clear()


@pytest.mark.parametrize("case", _CASES[::5], ids=str)
def test_no_call_on_tensors_goes_the_general_way_twice(device, tensors, case):
    torch = tensors
    arrays = tuple(tree_map(torch.tensor, a) for a in case.draw(_dtype(case)))
    for _ in range(3):
        results = call(case.op, arrays, case.options)
    specs, scratch = _needs(case.op, arrays, case.options)
    assert [tuple(r.shape) for r in leaves(results)] == [s.shape for s in specs]
    spread = tuple(
        torch.empty([2 * n for n in r.shape], dtype=r.dtype)[tuple([slice(None, None, 2)] * r.dim())]
        for r in leaves(results)
    )
    workspace = torch.empty(scratch + 16, dtype=torch.uint8)
    workspace = workspace[-workspace.data_ptr() % 16 :]
    for more in (
        {},
        {"out": results},
        {"out": spread if isinstance(results, tuple) else spread[0]},
        {"workspace": workspace},
    ):
        call(case.op, arrays, case.options | more)
        before = len(device.general)
        again = call(case.op, arrays, case.options | more)
        assert len(device.general) == before, more.keys()
        assert all(type(r) is torch.Tensor for r in leaves(again))
        if "out" in more:
            assert all(a is b for a, b in zip(leaves(again), leaves(more["out"]), strict=True))
