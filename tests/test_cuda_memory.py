"""No block asks for more shared memory than a device has, and no grid is too large, whatever the extents; needs no GPU."""

import pytest

from dnnarray._cuda import norm, pool, softmax
from dnnarray._operation import find
from dnnarray._select import Device
from dnnarray._spec import Spec

_DEVICES = {
    "sm_75": Device("made-up T4", "cuda", 40, {"float32": 8e12}, 0.3e12, 4e-6, (7, 5), 65_536),
    "sm_86": Device("made-up A10", "cuda", 72, {"float32": 30e12}, 0.6e12, 4e-6, (8, 6), 101_376),
    "sm_90a": Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448),
}


def _check(problem, methods, device):
    for method in methods:
        for aligned in (True, False):
            for plan in method.run(problem, device, aligned).plans:
                assert plan.shared_memory <= device.shared_memory
                assert 0 not in plan.grid


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("side", [45, 63, 65, 90, 95, 110, 127, 128, 156, 157, 221])
def test_planes_of_pooling_fit(side, dtype, device):
    """Several planes make whole vectors of 16 bytes where one of odd extent does not: two to eight of them may be too large together."""
    operation = find("max_pool")
    for outer in (1, 5000):
        bound, chosen = operation.bind((Spec((outer, 2, side, side), dtype),), {"kernel_size": 5})
        problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
        _check(problem, pool.ALGORITHMS["max_pool"], device)


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("extent", [1, 24, 25, 32, 33, 500, 5000])
def test_columns_of_softmax_fit(extent, op, device):
    x = Spec((3, extent, 64), "float32")
    problem = find(op).problem((x, x, None) if op.endswith("backward") else (x,), {"axis": 1})
    _check(problem, softmax.ALGORITHMS[op], device)


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize(("op", "shape"), [("layer_norm", (2**31 + 8, 1)), ("group_norm", (2**31, 1, 1)), ("instance_norm", (2, 2**30, 2))])
def test_statistics_of_their_own_for_very_many(op, shape, device):
    operation = find(op)
    row = Spec((shape[1],), "float16")
    bound, chosen = operation.bind((Spec(shape, "float16"), row, row), {"num_groups": 1} if op == "group_norm" else {})
    problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
    for method in norm.ALGORITHMS[op]:
        if method.rejects(problem, device) is None:
            assert all(plan.grid[0] < 2**31 for plan in method.run(problem, device, True).plans)
