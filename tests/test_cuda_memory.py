"""No block asks for more shared memory than a device has, and no grid is too large, whatever the extents; needs no
GPU."""

from dataclasses import replace

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda import norm, pool, softmax
from dnnarray._select import Device
from dnnarray._spec import Spec

_DEVICES = {
    "sm_75": Device("made-up T4", "cuda", 40, {"float32": 8e12}, 0.3e12, 4e-6, (7, 5), 65_536),
    "sm_86": Device("made-up A10", "cuda", 72, {"float32": 30e12}, 0.6e12, 4e-6, (8, 6), 101_376),
    "sm_90a": Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448),
}


def _problem(op, specs, options):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})


def _check(problem, methods, device):
    for method in methods:
        for here in (device, replace(device, aligned=False)):
            for plan in method.run(problem, here, here.aligned).plans if method.rejects(problem, here) is None else ():
                assert plan.shared_memory <= device.shared_memory
                assert 0 not in plan.grid


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("side", [45, 63, 65, 90, 95, 110, 127, 128, 156, 157, 221])
def test_planes_of_pooling_fit(side, dtype, device):
    """Several planes make whole vectors of 16 bytes where one of odd extent does not: two to eight of them may be too
    large together."""
    for outer in (1, 5000):
        _check(
            _problem("max_pool", (Spec((outer, 2, side, side), dtype),), {"kernel_size": 5}),
            pool.ALGORITHMS["max_pool"],
            device,
        )


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("max_pool", {"kernel_size": 5, "stride": 2}),
        ("avg_pool", {"kernel_size": 5, "stride": 2}),
        ("adaptive_max_pool", {"output_size": 13}),
        ("adaptive_avg_pool", {"output_size": 13}),
    ],
)
@pytest.mark.parametrize("space", [(14, 16), (57, 59), (221, 224), (17, 4096), (20, 40_000)])
def test_bands_of_pooling_fit(space, op, options, dtype, device):
    for outer in (1, 5000):
        x = Spec((outer, 2, *space), dtype)
        y = _problem(op, (x,), options).outputs[0]
        for name, specs in ((op, (x,)), (f"{op}_backward", (y, x)), (f"{op}_backward", (y, x, Spec(y.shape, "int64")))):
            if len(specs) < 3 or "max" in op:
                _check(_problem(name, specs, options), pool.ALGORITHMS[name], device)


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("size", [(1, 1), (28, 28), (111, 113), (180, 182), (400, 300)])
def test_marks_of_unpooling_fit(size, layout, dtype, device):
    shape = (2, 20, 13, 13) if layout == "channels_first" else (2, 13, 13, 20)
    problem = _problem(
        "max_unpool", (Spec(shape, dtype), Spec(shape, "int64")), {"output_size": size, "layout": layout}
    )
    _check(problem, pool.ALGORITHMS["max_unpool"], device)


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("op", ["softmax", "softmax_backward"])
@pytest.mark.parametrize("extent", [1, 24, 25, 32, 33, 500, 5000])
def test_columns_of_softmax_fit(extent, op, device):
    x = Spec((3, extent, 64), "float32")
    problem = find(op).problem((x, x, None) if op.endswith("backward") else (x,), {"axis": 1})
    _check(problem, softmax.ALGORITHMS[op], device)


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize(
    ("op", "shape"), [("layer_norm", (2**31 + 8, 1)), ("group_norm", (2**31, 1, 1)), ("instance_norm", (2, 2**30, 2))]
)
def test_statistics_of_their_own_for_very_many(op, shape, device):
    row = Spec((shape[1],), "float16")
    problem = _problem(op, (Spec(shape, "float16"), row, row), {"num_groups": 1} if op == "group_norm" else {})
    for method in norm.ALGORITHMS[op]:
        if method.rejects(problem, device) is None:
            assert all(plan.grid[0] < 2**31 for plan in method.run(problem, device, True).plans)
