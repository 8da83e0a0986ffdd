"""Which kernel a softmax is planned for, and that those for sizes too large for the cases compile; needs NVRTC, no
GPU."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dnnarray._call.operation import find
from dnnarray._cuda.core import module
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import vector_length
from dnnarray._cuda.softmax import ALGORITHMS
from dnnarray._options import DEFAULT
from dnnarray._select import Device, choose
from dnnarray._spec import FLOAT64, Spec
from tests.test_kernels import _DEVICES

_MORE_DEVICES = [
    *_DEVICES.values(),
    Device("made-up T4", "cuda", 40, {"float32": 8e12, "float64": 0.25e12}, 0.3e12, 4e-6, (7, 5), 65_536),
    Device("made-up A10", "cuda", 72, {"float32": 30e12}, 0.6e12, 4e-6, (8, 6), 101_376),
]


def _problem(op, shape, dtype, axis=-1, saved=False, order=None):
    steps = Spec(tuple(shape[a] for a in order), dtype).c_strides if order else ()
    operation, x = (
        find(op),
        Spec(shape, dtype, tuple(steps[order.index(a)] for a in range(len(shape))) if order else None),
    )
    specs = (x, x, x if saved else None) if op.endswith("_backward") else (x,)
    return operation.problem(specs, {"axis": axis})


def _planned(problem, device):
    """The chosen algorithm and its launch, None where nothing is launched."""
    method = choose(problem, device, DEFAULT, ALGORITHMS[problem.op])
    plans = method.run(problem, device, device.aligned).plans
    assert len(plans) == (problem.result.size > 0)
    return method, plans[0] if plans else None


def _kernel(op, shape, dtype, axis=-1, saved=False, architecture="sm_90a"):
    launch = _planned(_problem(op, shape, dtype, axis, saved), _DEVICES[architecture])[1]
    assert launch.shared_memory <= _DEVICES[architecture].shared_memory
    return launch.kernel


@pytest.mark.parametrize(
    ("shape", "axis", "symbol"),
    [
        ((7, 64), -1, "softmax_rows_bf16x8_8x1"),
        ((7, 4096), -1, "softmax_rows_bf16x8_128x4"),
        ((7, 16384), -1, "softmax_cluster_rows_bf16_1x512"),
        ((7, 16392), -1, "softmax_cluster_rows_bf16_1x512"),
        ((7, 1001), -1, "softmax_rows_bf16x1_256x4"),
        ((7, 50257), -1, "softmax_cluster_rows_bf16_1x512"),
        ((7, 128256), -1, "softmax_cluster_rows_bf16_4x512"),
        ((7, 1_000_000), -1, "softmax_long_rows_bf16x8_1024"),
        ((7, 21, 64), 1, "softmax_cluster_columns_bf16_1x256x256"),
        ((7, 21, 63), 1, "softmax_columns_bf16x1_16"),
        ((7, 21, 1), 1, "softmax_rows_bf16x1_16x2"),
    ],
    ids=str,
)
def test_the_kernel_follows_from_the_extent(shape, axis, symbol):
    assert _kernel("softmax", shape, "bfloat16", axis).symbol.removesuffix("_ahead") == symbol


# --- the choice -------------------------------------------------------------------------------------------------------


def _expected(problem, device):
    """The algorithm that is to be chosen, by the rule that was measured to be the fastest on an H200."""
    x, order, rejects = (
        problem.result,
        order_of(problem.result),
        {m.name: m.rejects(problem, device) for m in ALGORITHMS[problem.op]},
    )
    place = order.index(problem.axis) if order else 0
    inner, extent = math.prod(x.shape[a] for a in order[place + 1 :]), x.shape[problem.axis] if order else 1
    if inner != 1:
        return "columns" if rejects["cluster_columns"] else "cluster_columns"
    vector = vector_length(x.dtype, device.aligned, extent)
    uneven = extent > 2048 and vector < vector_length(x.dtype, device.aligned)
    if (uneven or extent > 1024 * vector) and not rejects["cluster_rows"]:
        return "cluster_rows"
    return "long_rows" if uneven or rejects["rows"] else "rows"


def _extent(rng):
    few, even = int(rng.integers(0, 70)), int(rng.integers(1, 40)) << int(rng.integers(0, 14))
    bounds = [1023, 1024, 1025, 2047, 2048, 2049, 4096, 4104, 8192, 8200, 16_384, 16_392, 116_224, 131_072, 1_000_001]
    return (few, even, int(2 ** rng.uniform(0, 19)), int(rng.choice(bounds)))[rng.integers(0, 4)]


def _drawn(rng):
    ndim, op = int(rng.integers(0, 4)), str(rng.choice(list(ALGORITHMS)))
    shape = tuple(_extent(rng) if rng.random() < 0.6 else int(rng.integers(1, 6)) for _ in range(ndim))
    order = tuple(map(int, rng.permutation(ndim))) if rng.random() < 0.4 else None
    dtype, axis = str(rng.choice(["float64", "float32", "float16", "bfloat16"])), int(rng.integers(0, max(ndim, 1)))
    return _problem(op, shape, dtype, axis, bool(rng.integers(0, 2)), order)


def test_the_choice_among_the_kernels():
    rng, seen = np.random.default_rng(0), set()
    for problem in (_drawn(rng) for _ in range(1500)):
        for device in (here for d in _MORE_DEVICES for here in (d, replace(d, aligned=False))):
            method, launch = _planned(problem, device)
            assert method.name == _expected(problem, device), (problem, device.name, device.aligned)
            if launch is not None:
                assert launch.kernel.source == f"softmax/{method.name}.cu"
                seen.add(method.name)
    assert seen == {m.name for m in ALGORITHMS["softmax"]}


def test_memory_that_is_not_aligned_is_left_to_kernels_that_take_it():
    for shape, axis, names in (
        ((4, 16_384), -1, ("cluster_rows", "long_rows")),
        ((4, 21, 64), 1, ("cluster_columns", "columns")),
    ):
        problem, device = _problem("softmax", shape, "float16", axis), _DEVICES["sm_90a"]
        found = tuple(_planned(problem, replace(device, aligned=aligned))[0].name for aligned in (True, False))
        assert found == names


@pytest.mark.parametrize("method", ALGORITHMS["softmax_backward"], ids=lambda m: m.name)
def test_what_the_device_and_dtype_alone_rule_out_is_rejected_with_the_same_words(method):
    for device in (here for d in _MORE_DEVICES for here in (d, replace(d, aligned=False))):
        for dtype in ("float64", "float32", "float16"):
            for shape, axis in (((3, 40), 1), ((3, 40), 0)):
                problem = _problem("softmax_backward", shape, dtype, axis)
                reason = method.unfit and method.unfit(problem.result.dtype, device)
                assert not reason or method.rejects(problem, device)


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("extent", [4096, 16384, 128256])
def test_kernels_for_long_rows_compile(architecture, dtype, extent):
    for op, saved in (("softmax", False), ("log_softmax_backward", False), ("softmax_backward", True)):
        kernel = _kernel(op, (4, extent), dtype, saved=saved, architecture=architecture)
        assert module.compile_kernel(kernel, architecture).startswith(b"\x7fELF")


@pytest.mark.parametrize("dtype", [FLOAT64, "float32", "float16", "bfloat16"], ids=str)
def test_the_oldest_architecture_compiles_them(dtype):
    device = next(d for d in _MORE_DEVICES if d.capability == (7, 5))
    for shape, axis in (((4, 64), -1), ((4, 20_000), -1), ((4, 20, 64), 1)):
        kernel = _planned(_problem("softmax_backward", shape, dtype, axis), device)[1].kernel
        assert module.compile_kernel(kernel, "sm_75").startswith(b"\x7fELF")
