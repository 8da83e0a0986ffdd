"""How blocks of rows are planned for `interpolate`; no GPU."""

import pytest

from dnnarray._cuda.spatial import ALGORITHMS
from dnnarray._spec import FLOAT16, FLOAT32, FLOAT64, Spec
from tests.problems import planned
from tests.test_kernels import _DEVICES

_H200 = _DEVICES["sm_90a"]
_POLYPHASE = ("resize_walk", "resize_polyphase")


def _plans(op, source, target, dtype=FLOAT32, algorithms=("resize_rows",), **options):
    x, grad = Spec((16, 64, *source), dtype), Spec((16, 64, *target), dtype)
    _, problem = planned(op, *((grad, x) if op.endswith("backward") else (x,)), size=target, **options)
    methods = (m for m in ALGORITHMS[op] if m.name in algorithms and m.rejects(problem, _H200) is None)
    return next((m.run(problem, _H200, True).plans for m in methods), ())


def test_one_launch_fills_the_tables_of_all_axes():
    tables, _ = _plans("interpolate_backward", (9, 10, 11), (18, 20, 22), mode="linear")
    assert tables.grid[1] == 3


def test_small_arrays_need_no_table():
    (plan,) = _plans("interpolate", (14, 14), (28, 28), mode="linear")
    assert plan.kernel.config.computed
    assert len(_plans("interpolate", (128, 128), (256, 256), mode="linear")) == 2


@pytest.mark.parametrize(
    ("op", "mode", "target", "taps"),
    [
        ("interpolate", "nearest", 256, 1),
        ("interpolate", "cubic", 256, 4),
        ("interpolate_backward", "nearest", 256, 2),
        ("interpolate_backward", "linear", 256, 4),
        ("interpolate_backward", "cubic", 256, 8),
        ("interpolate_backward", "linear", 64, 1),
    ],
)
def test_taps_fetched_at_once(op, mode, target, taps):
    assert _plans(op, (128, 128), (target, target), mode=mode)[-1].kernel.config.batch == taps


@pytest.mark.parametrize("op", ["interpolate", "interpolate_backward"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_whole_factors_take_one_launch(op, mode):
    for target in ((28, 28), (7, 7), (56, 56)):
        (plan,) = _plans(op, (14, 14), target, algorithms=_POLYPHASE, mode=mode)
        config = plan.kernel.config
        assert config.factor_h == config.factor_w == max(target[0], 14) // min(target[0], 14)
        assert min(target[0], 14) % config.rows == 0 == min(target[0], 14) % config.columns


def test_loops_over_constant_weights_stay_short():
    for op, rows in (("interpolate", (4, 2)), ("interpolate_backward", (2, 1))):
        by_two, by_four = (
            _plans(op, (16, 16), (n, n), FLOAT16, algorithms=_POLYPHASE, mode="cubic")[0] for n in (32, 64)
        )
        assert (by_two.kernel.config.rows, by_four.kernel.config.rows) == rows


@pytest.mark.parametrize(
    ("height", "width", "walked"), [(8, 128, 4), (64, 128, 16), (1024, 128, 16), (64, 120, 16), (1024, 120, 32)]
)
def test_walks_are_as_long_as_leaves_threads_enough(height, width, walked):
    (plan,) = _plans(
        "interpolate_backward", (height, width), (2 * height, 2 * width), FLOAT16, algorithms=_POLYPHASE, mode="cubic"
    )
    assert plan.kernel.source == "spatial/resize_walk.cu"
    assert (plan.arguments.rows, plan.arguments.height) == (walked, height)


@pytest.mark.parametrize(
    ("dtype", "width", "walks", "shares"),
    [
        (FLOAT32, 128, True, True),
        (FLOAT16, 128, True, True),
        (FLOAT32, 96, False, False),
        (FLOAT16, 96, True, False),
        (FLOAT64, 128, False, False),
    ],
)
def test_warps_that_stand_in_one_row_read_each_others_elements(dtype, width, walks, shares):
    (plan,) = _plans("interpolate_backward", (128, width), (256, 2 * width), dtype, algorithms=_POLYPHASE, mode="cubic")
    assert (plan.kernel.source == "spatial/resize_walk.cu") == walks
    assert getattr(plan.kernel.config, "shared", False) == shares
    (plan,) = _plans("interpolate_backward", (4, width), (8, 2 * width), FLOAT32, algorithms=_POLYPHASE, mode="cubic")
    assert plan.kernel.source == "spatial/resize_polyphase.cu"  # too few rows for a walk of threads enough


@pytest.mark.parametrize(("op", "mode", "factor"), [("interpolate", "cubic", 2), ("interpolate_backward", "linear", 2)])
def test_threads_that_read_little_twice_do_not_walk(op, mode, factor):
    (plan,) = _plans(op, (16, 16), (16 * factor, 16 * factor), algorithms=_POLYPHASE, mode=mode)
    assert plan.kernel.source == "spatial/resize_polyphase.cu"


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ((42, 42), {"mode": "linear"}),
        ((28, 7), {"mode": "linear"}),
        ((14, 28), {"mode": "cubic"}),
        ((14, 14), {"mode": "nearest"}),
        ((28, 28), {"mode": "linear", "align_corners": True}),
        ((28, 28), {"mode": "cubic", "antialias": True}),
    ],
)
def test_other_factors_and_positions_are_left_to_the_tables(target, options):
    assert not _plans("interpolate", (14, 14), target, algorithms=_POLYPHASE, **options)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("width", [1, 31, 128, 1000, 5000, 10_000])
def test_blocks_hold_whole_groups_of_rows_in_shared_memory(width, dtype):
    for op in ("interpolate", "interpolate_backward"):
        for plan in _plans(op, (33, width), (70, 2 * width), dtype, mode="linear")[-1:]:
            config, here = plan.kernel.config, plan.arguments.here
            assert here % config.rows == 0
            assert plan.shared_memory <= 64 << 10
