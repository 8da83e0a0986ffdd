"""Which kernels pooling and its gradients are planned with, and how far a thread walks; no GPU."""

import pytest

from dnnarray._cuda.pool import ALGORITHMS
from dnnarray._operation import find
from dnnarray._spec import FLOAT16, FLOAT32, Spec
from tests.test_kernels import _DEVICES, _backward_problem, _planned

_H200 = _DEVICES["sm_90a"]


def _plans(op, shape, dtype=FLOAT32, **options):
    """The launches of the forward, then those of the gradient."""
    x, operation = Spec(shape, dtype), find(op)
    _, forward = _planned(op, x, **options)
    bound, chosen = operation.bind((x,), options)
    static = {n: v for n, v in chosen.items() if n in operation.static}
    problems = {op: forward, f"{op}_backward": _backward_problem(find(f"{op}_backward"), operation, forward.outputs[0], bound, static)}
    return [plan for name, problem in problems.items() for plan in ALGORITHMS[name][0].run(problem, _H200, True).plans]


def _sources(*arguments, **options):
    return [plan.kernel.source for plan in _plans(*arguments, **options)]


@pytest.mark.parametrize("size", [3, (4, 2), 5])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_thread_sees_all_of_a_small_window(size, layout):
    options = {"kernel_size": size, "stride": 2, "padding": 1, "layout": layout}
    assert _sources("max_pool", (2, 16, 16, 16), **options) == ["pool/strips.cu", "pool/strips.cu", "pool/tiles.cu"]
    assert _sources("avg_pool", (2, 16, 16, 16), **options) == ["pool/strips.cu", "pool/tiles.cu"]


def test_other_windows_and_larger_norms_have_other_kernels():
    assert "pool/strips.cu" not in _sources("max_pool", (2, 16, 16, 16), kernel_size=6, stride=2)
    assert "pool/strips.cu" in _sources("lp_pool", (2, 16, 16, 16), kernel_size=3, stride=2)
    assert not {"pool/strips.cu", "pool/tiles.cu"} & set(_sources("lp_pool", (2, 16, 16, 16), kernel_size=5, stride=2))


@pytest.mark.parametrize("size", [(2, 2), (3, 1), (3, 2), (5, 2), (6, 2)])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_gradient_of_a_largest_magnitude_reads_taps_as_they_were_numbered(size, layout):
    options = {"kernel_size": size[0], "stride": size[1], "layout": layout, "p": float("inf")}
    _, saving, reading = _plans("lp_pool", (2, 16, 16, 16), **options)
    assert reading.kernel.source == "pool/gather.cu"
    assert reading.kernel.config.small == (saving.kernel.source == "pool/strips.cu")


@pytest.mark.parametrize(
    ("size", "stride", "layout", "rows"),
    [(3, 1, "channels_first", 4), (3, 2, "channels_first", 2), (2, 1, "channels_first", 2), (5, 1, "channels_first", 4),
     (3, 1, "channels_last", 4), (5, 1, "channels_last", 2)],
)  # fmt: skip
def test_a_thread_walks_further_where_windows_share_more(size, stride, layout, rows):
    options = {"kernel_size": size, "stride": stride, "layout": layout}
    large = _plans("avg_pool", (64, 64, 112, 112) if layout == "channels_first" else (64, 112, 112, 64), FLOAT16, **options)
    assert [plan.kernel.config.steps for plan in large] == [rows, rows]
    assert [plan.kernel.config.steps for plan in _plans("avg_pool", (1, 16, 16, 16), FLOAT16, **options)] == [1, 1]
