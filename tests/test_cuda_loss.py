"""Which kernel a loss is planned for; those for rows that are too long for the cases compile. Needs NVRTC for the
latter, no GPU."""

from dataclasses import replace

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda import loss
from dnnarray._cuda.core import module
from dnnarray._options import DEFAULT
from dnnarray._select import choose
from dnnarray._spec import BFLOAT16, FLOAT32, FLOAT64, INT64, Spec
from tests.problems import planned
from tests.test_kernels import _DEVICES

_H200 = _DEVICES["sm_90a"]


def _plans(op, shape, dtype, device=_H200, aligned=True, **options):
    z, target = Spec(shape, dtype), Spec((shape[0], *shape[2:]), INT64)
    grad = Spec((), dtype)
    name, problem = planned(op, *((grad,) if op.endswith("backward") else ()), z, target, **options)
    assert find(op).base == name
    device = replace(device, aligned=aligned)
    return choose(problem, device, DEFAULT, loss.ALGORITHMS[name]).run(problem, device, aligned).plans


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "symbol"),
    [
        ("cross_entropy", (64, 4096), BFLOAT16, "cross_entropy_rows_bf16_int64_sum_16x8_32"),
        ("cross_entropy", (64, 4096), FLOAT32, "cross_entropy_rows_f32_int64_sum_16x4_64"),
        ("cross_entropy", (64, 50_257), BFLOAT16, "cross_entropy_rows_bf16_int64_sum_4x8_512_ragged"),
        ("cross_entropy", (2, 21, 64, 64), BFLOAT16, "cross_entropy_columns_bf16_int64_sum_22x4_kept"),
        ("cross_entropy", (2, 22, 64, 64), FLOAT32, "cross_entropy_columns_f32_int64_sum_22x2_kept"),
        ("cross_entropy", (2, 24, 64, 64), BFLOAT16, "cross_entropy_columns_bf16_int64_sum_8x4"),
        ("cross_entropy", (2, 21, 64, 64), FLOAT64, "cross_entropy_columns_f64_int64_sum_7x1"),
        ("cross_entropy_backward", (64, 4096), BFLOAT16, "cross_entropy_backward_rows_bf16_int64_x8_16_32"),
        ("cross_entropy_backward", (64, 50_257), BFLOAT16, "cross_entropy_backward_cluster_bf16_int64_1"),
        ("cross_entropy_backward", (64, 128_256), FLOAT32, "cross_entropy_backward_cluster_f32_int64_8"),
        ("cross_entropy_backward", (64, 50_257), FLOAT64, "cross_entropy_backward_rows_f64_int64_x2_4_512_ragged_long"),
        ("cross_entropy_backward", (2, 21, 64, 64), BFLOAT16, "cross_entropy_backward_columns_bf16_int64_22x4_kept"),
        ("nll_loss_backward", (64, 1001), FLOAT32, "nll_backward_f32x4_int64_32_ragged"),
        ("nll_loss_backward", (2, 21, 64, 64), BFLOAT16, "nll_backward_bf16x8_int64_columns"),
    ],
)
def test_the_kernel_of_a_size(op, shape, dtype, symbol):
    assert symbol in {plan.kernel.symbol for plan in _plans(op, shape, dtype)}


def test_no_row_on_the_chip_without_whole_vectors_or_clusters_large_enough():
    for options in ({"aligned": False}, {"device": _DEVICES["sm_80"]}):
        assert "backward_rows" in _plans("cross_entropy_backward", (64, 262_144), FLOAT32, **options)[-1].kernel.symbol


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("classes", [16_385, 40_000, 56_000, 113_000, 300_000, 460_000, 900_000])
def test_a_block_asks_for_no_more_shared_memory_than_there_is(classes, device):
    for dtype in (FLOAT32, BFLOAT16):
        for plan in _plans("cross_entropy_backward", (8, classes), dtype, device):
            assert plan.shared_memory <= device.shared_memory - 1024


@pytest.mark.parametrize("rows", [1, 1000, 1025, 100_000, 10_000_000])
def test_a_warp_adds_up_the_weights_of_labels(rows):
    """In no more than four turns, as the kernels of the gradients do it beside their rows."""
    labels, _ = _plans("cross_entropy_backward", (rows, 5), FLOAT32)
    assert 1 <= labels.grid[0] <= 128


@pytest.mark.parametrize("architecture", _DEVICES)
def test_kernels_of_long_rows_compile(architecture):
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    for op in ("cross_entropy", "cross_entropy_backward"):
        for dtype in (FLOAT32, BFLOAT16):
            kernel = _plans(op, (8, 128_256), dtype, _DEVICES[architecture])[
                -1 if op.endswith("backward") else 0
            ].kernel
            code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
            assert code.startswith(b"\x7fELF")
            assert "0 bytes spill stores" in log
