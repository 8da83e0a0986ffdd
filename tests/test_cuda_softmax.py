"""Which kernel a softmax is planned for, and that those for sizes too large for the cases compile; needs NVRTC, no GPU."""

import pytest

from dnnarray._cuda.core import module
from dnnarray._cuda.softmax import softmax as plan
from dnnarray._operation import find
from dnnarray._spec import Spec
from tests.test_kernels import _DEVICES


def _kernel(op, shape, dtype, axis=-1, saved=False, architecture="sm_90a", aligned=True):
    operation, x = find(op), Spec(shape, dtype)
    specs = (x, x, x if saved else None) if op.endswith("_backward") else (x,)
    (launch,) = plan(operation.problem(specs, {"axis": axis}), _DEVICES[architecture], aligned).plans
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
        ((7, 21, 64), 1, "softmax_cluster_columns_bf16_1x256x256"),
        ((7, 21, 1), 1, "softmax_rows_bf16x1_16x2"),
    ],
    ids=str,
)
def test_the_kernel_follows_from_the_extent(shape, axis, symbol):
    assert _kernel("softmax", shape, "bfloat16", axis).symbol.removesuffix("_ahead") == symbol


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("extent", [4096, 16384, 128256])
def test_kernels_for_long_rows_compile(architecture, dtype, extent):
    for op, saved in (("softmax", False), ("log_softmax_backward", False), ("softmax_backward", True)):
        kernel = _kernel(op, (4, extent), dtype, saved=saved, architecture=architecture)
        assert module.compile_kernel(kernel, architecture).startswith(b"\x7fELF")
