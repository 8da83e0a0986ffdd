"""No public function goes the general way twice with the same kind of call: plain, with results or scratch memory of the caller's."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

from dnnarray import _torch, infer
from dnnarray._problems.base import leaves, tree_map
from tests.made_up_device import made_up_device
from tests.registry import FIRST
from tests.support import FLOAT32, call

# Calls that go the general way each time, and why.
_GENERAL: dict[str, str] = {}
_CASES = [case for case in FIRST if FLOAT32 in case.dtypes]


@pytest.fixture
def device(monkeypatch):
    with made_up_device(monkeypatch) as made:
        yield made


def _outs(device, case, arrays, **how):
    """The caller's own results, as one array or a tuple."""
    specs = [s for s in infer(case.op, *arrays, **case.options).outputs if s is not None]
    made = tuple(device.array(np.broadcast_to(np.zeros((), s.dtype), s.shape), **how) for s in specs)
    return made[0] if len(made) == 1 and not isinstance(call(case.op, arrays, case.options), tuple) else made


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_no_call_goes_the_general_way_twice(device, case):
    arrays = tuple(tree_map(device.array, a) for a in case.draw(FLOAT32))
    for _ in range(2):
        call(case.op, arrays, case.options)
    workspace = device.array(np.zeros(infer(case.op, *arrays, **case.options).workspace, np.uint8))
    forms = {
        "plain": {},
        "out": {"out": _outs(device, case, arrays)},
        "out elsewhere": {"out": _outs(device, case, arrays, spread=True)},
        "out at an odd place": {"out": _outs(device, case, arrays, offset=8)},
        "workspace": {"workspace": workspace},
    }
    slow = []
    for name, more in forms.items():
        result = call(case.op, arrays, case.options | more)
        before = len(device.general)
        for _ in range(2):
            again = call(case.op, arrays, case.options | more)
        if len(device.general) > before:
            slow.append(name)
        assert [r.shape for r in leaves(again)] == [r.shape for r in leaves(result)]
        if "out" in more:
            assert all(a is b for a, b in zip(leaves(again), leaves(more["out"]), strict=True))
    assert not slow


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
    arrays = tuple(tree_map(torch.tensor, a) for a in case.draw(FLOAT32))
    for _ in range(3):
        results = call(case.op, arrays, case.options)
    specs = [s for s in infer(case.op, *arrays, **case.options).outputs if s is not None]
    assert [tuple(r.shape) for r in leaves(results)] == [s.shape for s in specs]
    spread = tuple(torch.empty([2 * n for n in r.shape], dtype=r.dtype)[tuple([slice(None, None, 2)] * r.dim())] for r in leaves(results))
    workspace = torch.empty(infer(case.op, *arrays, **case.options).workspace + 16, dtype=torch.uint8)
    workspace = workspace[-workspace.data_ptr() % 16 :]
    for more in ({}, {"out": results}, {"out": spread if isinstance(results, tuple) else spread[0]}, {"workspace": workspace}):
        call(case.op, arrays, case.options | more)
        before = len(device.general)
        again = call(case.op, arrays, case.options | more)
        assert len(device.general) == before, more.keys()
        assert all(type(r) is torch.Tensor for r in leaves(again))
        if "out" in more:
            assert all(a is b for a, b in zip(leaves(again), leaves(more["out"]), strict=True))
