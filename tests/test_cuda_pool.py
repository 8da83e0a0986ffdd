"""Which kernels pooling and its gradients are planned with, and how far a thread walks; no GPU."""

from dataclasses import replace

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda.pool import ALGORITHMS, argmax_gradient, norm_gradient_channels_last
from dnnarray._cuda.pool.geometry import geometry_of
from dnnarray._options import DEFAULT
from dnnarray._select import choose
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT64, Spec
from tests.problems import Call, planned
from tests.test_kernels import _DEVICES

_H200 = _DEVICES["sm_90a"]


def _program(op, problem, device=_H200, aligned=True):
    """What the chosen algorithm plans."""
    here = replace(device, aligned=aligned)
    return choose(problem, here, DEFAULT, ALGORITHMS[op]).run(problem, here, aligned)


def _plans(op, shape, dtype=FLOAT32, **options):
    """The launches of the forward, then those of the gradient."""
    call = Call(op, *find(op).bind((Spec(shape, dtype),), options))
    calls = call, call.backward(call.problem().outputs[0])
    return [plan for c in calls for plan in _program(c.op, c.problem()).plans]


def _forward(op, shape, dtype=FLOAT32, **options):
    _, problem = planned(op, Spec(shape, dtype), **options)
    return _program(op, problem).plans


def _sources(*arguments, **options):
    return [plan.kernel.source for plan in _plans(*arguments, **options)]


@pytest.mark.parametrize("size", [3, (4, 2), 4])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_thread_sees_all_of_a_small_window(size, layout):
    options = {"kernel_size": size, "stride": 2, "padding": 1, "layout": layout}
    two = ["pool/small_windows.cu", "pool/small_windows_gradient.cu"]
    assert _sources("max_pool", (2, 16, 16, 16), **options) == ["pool/small_windows.cu", *two]
    assert _sources("avg_pool", (2, 16, 16, 16), **options) == two


def _gradient_sources(shape, dtype, size, stride, layout="channels_first", given=False, aligned=True):
    options = {"kernel_size": size, "stride": stride, "layout": layout}
    x = Spec(shape, dtype)
    _, forward = planned("max_pool", x, **options)
    y = forward.outputs[0]
    _, problem = planned("max_pool_backward", y, x, *[Spec(y.shape, INT64)] * given, **options)
    return [
        plan.kernel.source.removeprefix("pool/")
        for plan in _program("max_pool_backward", problem, aligned=aligned).plans
    ]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_one_launch_is_the_gradient_of_maxima_where_many_windows_lie_over_an_element(layout, given):
    def one(size, stride, dtype=FLOAT16, shape=(2, 16, 16, 16), aligned=True):
        return _gradient_sources(shape, dtype, size, stride, layout, given, aligned) == ["argmax_gradient.cu"]

    assert all(one(size, 1, dtype) for size in (3, 4, 5, (2, 3)) for dtype in (FLOAT16, FLOAT32))
    assert all(one(size, stride, dtype) for size, stride in ((5, 2), ((5, 3), (2, 1))) for dtype in (FLOAT16, FLOAT32))
    assert one(2, 1) == one(2, 1, FLOAT32) == (not given)
    assert one(3, 2) == ((layout == "channels_last") == given)
    others = {
        "two launches are faster": (3, 2, FLOAT32),
        "gaps": ((2, 5), (3, 1)),
        "nothing shared along one axis": ((1, 5), 1),
        "far apart": (5, 3),
    }
    assert not any(one(*other) for other in others.values())
    assert not one(3, 1, FLOAT64)
    assert not one(3, 1, aligned=False)
    assert not one(3, 1, shape=(2, 15, 15, 15))


def _ring(shape, size, stride, dtype=FLOAT16, aligned=True, device=_H200):
    """The launch for windows that threads share, None where it is another."""
    x, options = (
        Spec(shape, dtype),
        {"kernel_size": size, "stride": stride, "padding": (size - stride) // 2, "layout": "channels_last"},
    )
    _, forward = planned("max_pool", x, **options)
    _, problem = planned("max_pool_backward", forward.outputs[0], x, **options)
    plans = _program("max_pool_backward", problem, device, aligned).plans
    return plans[0] if plans[0].kernel.source == "pool/argmax_gradient_tma.cu" else None


def test_threads_share_windows_where_a_block_has_all_of_a_row():
    image = (64, 112, 112, 64)
    for size, stride in ((2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 2)):
        plan = _ring(image, size, stride)
        assert plan.block == 14 * 32
        assert 0.75 * _H200.units <= plan.grid[0] <= _H200.units
        assert plan.shared_memory <= _H200.shared_memory
    assert _ring((64, 56, 56, 64), 3, 1).block == 7 * 32
    assert _ring((4, 224, 224, 64), 3, 1).block == 16 * 32  # two blocks, which overlap
    others = {
        "too few blocks": {"shape": (1, 112, 112, 64)},
        "lanes without channels": {"shape": (64, 112, 112, 96)},
        "threads without columns": {"shape": (64, 112, 84, 64)},
        "unaligned": {"aligned": False},
        "another device": {"device": replace(_H200, capability=(8, 0))},
        "float64": {"dtype": FLOAT64},
    }
    for other in others.values():
        assert _ring(**{"shape": image, "size": 3, "stride": 1} | other) is None


def _runs(shape, size, stride, dtype=FLOAT16, given=False, aligned=True, device=_H200, padding=None):
    """The launch by long runs of rows, None where it is another."""
    x, options = (
        Spec(shape, dtype),
        {"kernel_size": size, "stride": stride, "padding": (size - stride + 1) // 2 if padding is None else padding},
    )
    _, forward = planned("max_pool", x, **options)
    y = forward.outputs[0]
    _, problem = planned("max_pool_backward", y, x, *[Spec(y.shape, INT64)] * given, **options)
    plan = _program("max_pool_backward", problem, device, aligned).plans[0]
    return plan if "gradient_bulk" in plan.kernel.source else None


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, FLOAT32], ids=lambda d: d.name)
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (5, 1), (3, 2), (4, 2), (5, 2)])
def test_blocks_that_stay_fetch_long_runs_of_a_plane(size, stride, dtype):
    plan = _runs((64, 64, 112, 112), size, stride, dtype)
    if (size, stride) == (5, 1) and dtype != FLOAT32:  # more instructions than memory waits for
        assert plan is None
        return
    blocks = plan.grid[0] // _H200.units
    assert plan.grid[0] == blocks * _H200.units
    few = _runs(
        (1, 64, 112, 112), size, stride, dtype
    )  # the same way, so that sums do not depend on the batch, by tiles that are less high
    assert (few.kernel.config.columns, few.kernel.config.lanes) == (
        plan.kernel.config.columns,
        plan.kernel.config.lanes,
    )
    assert 2 * 64 <= few.grid[0] <= _H200.units * few.kernel.config.blocks
    assert blocks * (plan.shared_memory + 1024) <= _H200.shared_memory + 1024
    assert plan.kernel.config.lanes * plan.kernel.config.columns >= 112


def test_long_runs_are_left_to_others():
    planes = (64, 64, 112, 112)
    assert _runs(planes, 3, 1, given=True).kernel.source == "pool/indices_gradient_bulk.cu"
    assert _runs((4, 64, 224, 224), 3, 1) is not None  # several tiles of a plane
    assert _runs((8, 64, 224, 224), 3, 1, FLOAT32).kernel.config.columns == 8  # a lane for 4 would be one of 56
    assert _runs((64, 64, 56, 56), 3, 1).block == 32  # 4 strips of 8 lanes each
    others = {
        "rows of an odd number of bytes": {"shape": (64, 64, 112, 108)},
        "small planes": {"shape": (256, 256, 24, 24)},
        "idle lanes": {"shape": (64, 64, 112, 160)},
        "rows for too many lanes": {"shape": (64, 64, 112, 264)},
        "high planes": {"shape": (4, 4, 4104, 112)},
        "windows that end before the row does": {"padding": 0},
        "two launches are faster": {"size": 3, "stride": 2, "given": True},
        "unaligned": {"aligned": False},
        "another device": {"device": replace(_H200, capability=(8, 0))},
        "float64": {"dtype": FLOAT64},
    }
    for other in others.values():
        assert _runs(**{"shape": planes, "size": 3, "stride": 1} | other) is None


@pytest.mark.parametrize(
    ("blocks", "rows", "slots", "strips"), [(64, 113, 132, 2), (64, 113, 264, 4), (1000, 113, 132, 1), (1, 8, 132, 2)]
)
def test_strips_fill_a_device_in_whole_turns(blocks, rows, slots, strips):
    assert argmax_gradient.strips_by_rounds(blocks, rows, 6, slots) == strips


def test_a_thread_of_one_launch_takes_whole_vectors():
    def settings(width, dtype, given):
        options = {"kernel_size": 3, "stride": 1, "padding": 1}
        x = Spec((64, 64, 112, width), dtype)
        _, problem = planned("max_pool_backward", x, x, *[Spec(x.shape, INT64)] * given, **options)
        (plan,) = _program("max_pool_backward", problem, _DEVICES["sm_80"]).plans
        assert plan.shared_memory == 3 * (plan.kernel.config.columns + (1 if given else 2)) * 4 * 128
        return plan.kernel.config.columns, plan.kernel.config.piece

    assert settings(112, FLOAT16, False) == (8, 8)
    assert settings(108, FLOAT16, False) == (4, 4)
    assert settings(112, FLOAT32, False) == (4, 4)
    assert settings(108, FLOAT32, False) == (4, 4)
    assert settings(112, FLOAT16, True) == settings(112, FLOAT32, True) == (4, 4)


def test_other_windows_and_larger_norms_have_other_kernels():
    assert "pool/small_windows.cu" not in _sources("max_pool", (2, 16, 16, 16), kernel_size=6, stride=2)
    assert "pool/small_windows.cu" in _sources("lp_pool", (2, 16, 16, 16), kernel_size=3, stride=2)
    assert not {"pool/small_windows.cu", "pool/small_windows_gradient.cu"} & set(
        _sources("lp_pool", (2, 16, 16, 16), kernel_size=5, stride=2)
    )


@pytest.mark.parametrize("size", [(2, 2), (3, 1), (3, 2), (5, 2), (6, 2)])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_gradient_of_a_largest_magnitude_reads_taps_as_they_were_numbered(size, layout):
    options = {"kernel_size": size[0], "stride": size[1], "layout": layout, "p": float("inf")}
    _, saving, reading = _plans("lp_pool", (2, 16, 16, 16), **options)
    assert reading.kernel.source == "pool/gather.cu"
    assert reading.kernel.config.small == (saving.kernel.source == "pool/small_windows.cu")


@pytest.mark.parametrize(
    ("size", "stride", "layout", "rows"),
    [(3, 1, "channels_first", 4), (3, 2, "channels_first", 2), (2, 1, "channels_first", 2), (5, 1, "channels_first", 4),
     (3, 1, "channels_last", 4), (5, 1, "channels_last", 2)],
)  # fmt: skip
def test_a_thread_walks_further_where_windows_share_more(size, stride, layout, rows):
    options = {"kernel_size": size, "stride": stride, "layout": layout}
    large = _plans(
        "avg_pool", (64, 64, 112, 112) if layout == "channels_first" else (64, 112, 112, 64), FLOAT16, **options
    )
    assert [plan.kernel.config.steps for plan in large] == [rows, rows]
    assert [plan.kernel.config.steps for plan in _plans("avg_pool", (1, 16, 16, 16), FLOAT16, **options)] == [1, 1]


@pytest.mark.parametrize(("dtype", "rows"), [(FLOAT32, 4), (FLOAT16, 1)])
def test_large_maxima_of_floats_walk_four_rows_those_of_halves_one(dtype, rows):
    forward = _plans("max_pool", (64, 64, 112, 112), dtype, kernel_size=5, stride=2, padding=2)[0]
    assert forward.kernel.config.steps == rows


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0), (1, 2, 0)])
@pytest.mark.parametrize("shape", [(2, 9, 11, 24), (64, 112, 112, 64), (3, 57, 5, 136), (1, 1, 1, 8), (2, 130, 140, 8)])
def test_cells_cover_all_elements_once(shape, size, stride, padding):
    if min(shape[1:3]) + 2 * padding < size:
        return
    x, options = (
        Spec(shape, FLOAT16),
        {"kernel_size": size, "stride": stride, "padding": padding, "layout": "channels_last"},
    )
    y = planned("avg_pool", x, **options)[1].outputs[0]
    g = geometry_of(x, planned("avg_pool", x, **options)[1].axes, "channels_last")
    plan = norm_gradient_channels_last.plan(replace(planned("avg_pool_backward", y, x, **options)[1], p=2.0), True, g)
    a = plan.arguments
    inner, cells, rows, (lanes, chunks, tiles, strips) = (
        a.inner,
        a.cells,
        a.rows,
        (d[0] for d in (a.lanes, a.chunks, a.tiles, a.strips)),
    )
    _, h, w = g.axes
    aside = (w.window - 1) // w.stride_used
    assert plan.grid[0] == g.outer * chunks * tiles * strips
    assert lanes * chunks >= inner > lanes * (chunks - 1)
    assert cells + aside <= plan.block // lanes
    for axis, count in ((h, rows * strips), (w, cells * tiles)):
        skipped = axis.before // axis.stride_used
        assert skipped * axis.stride_used <= axis.before
        assert (skipped + count) * axis.stride_used - axis.before >= axis.extent
    assert rows <= 60


def test_means_of_windows_that_move_by_one_element_slide():
    options = {"kernel_size": 3, "stride": 1, "padding": 1}
    for shape, layout in (((2, 16, 16, 16), "channels_first"), ((2, 16, 13, 3), "channels_last")):
        assert _sources("avg_pool", shape, **options, layout=layout) == ["pool/stride_one.cu"] * 2
    assert (
        _sources("avg_pool", (2, 16, 16, 16), kernel_size=3, stride=1, layout="channels_last")
        == ["pool/stride_one.cu"] * 2
    )
    for changed in ({"stride": 2}, {"stride": (1, 2)}, {"kernel_size": 5, "padding": 2}, {"padding": 0}):
        assert "pool/stride_one.cu" not in _sources("avg_pool", (2, 16, 16, 16), **(options | changed))
    assert "pool/stride_one.cu" not in _sources("avg_pool", (2, 16, 16, 13), **options)  # no vectors along the row
    assert "pool/stride_one.cu" not in _sources(
        "avg_pool", (2, 8, 7, 7), dtype="float64", **options
    )  # nor two elements beside one
    assert "pool/stride_one.cu" not in _sources("max_pool", (2, 16, 16, 16), **options)


def test_means_that_slide_walk_where_there_are_many():
    for layout, shape, across in (("channels_first", (64, 64, 112, 112), 1), ("channels_last", (64, 112, 112, 64), 2)):
        for plan in _plans("avg_pool", shape, FLOAT16, kernel_size=3, stride=1, padding=1, layout=layout):
            config = plan.kernel.config
            assert (config.steps, config.across) == (4, across)
            assert plan.grid[0] * plan.block * config.steps * config.wide * across == 64 * 64 * 112 * 112
    assert _plans("avg_pool", (1, 8, 8, 8), kernel_size=3, stride=1, padding=1)[0].kernel.config.steps == 1


def test_large_means_in_channels_last_memory_go_by_columns():
    shape, last = (64, 112, 112, 64), {"layout": "channels_last"}
    assert (
        _sources("adaptive_avg_pool", shape, output_size=13, **last)[0] == "pool/separable_channels_last.cu"
    )  # uneven
    assert (
        _sources("adaptive_avg_pool", shape, output_size=7, **last)[0] == "pool/separable_channels_last.cu"
    )  # 16 columns each
    assert _sources("avg_pool", shape, kernel_size=7, stride=2, **last)[0] == "pool/separable_channels_last.cu"
    assert _sources("adaptive_avg_pool", shape, output_size=14, **last)[0] == "pool/direct.cu"  # in registers by rows
    assert _sources("adaptive_max_pool", shape, output_size=13, **last)[0] == "pool/direct.cu"
    assert _plans("adaptive_avg_pool", shape, FLOAT16, output_size=13, **last)[0].grid[0] == 64 * 13
    few = _plans("adaptive_avg_pool", (1, 112, 112, 64), FLOAT16, output_size=13, **last)[0]
    assert few.grid[0] == 13 * 8  # a vector of channels a block
    assert (
        _sources("avg_pool", (1, 8, 40_000, 8), kernel_size=(5, 30), stride=1, **last)[0] == "pool/direct.cu"
    )  # no room for a row


def test_short_planes_of_halves_go_by_twos():
    def pairs(shape, dtype):
        return _plans("adaptive_avg_pool", shape, dtype, output_size=1)[0].kernel.config.pairs

    assert pairs((64, 2048, 7, 7), FLOAT16)
    assert pairs((64, 2048, 7, 7), BFLOAT16)
    assert not pairs((64, 2048, 7, 7), FLOAT32)
    assert not pairs((64, 2048, 8, 9), FLOAT16)


@pytest.mark.parametrize(
    ("dtype", "stride", "rows"), [(FLOAT16, 2, 2), (BFLOAT16, 2, 3), (FLOAT32, 2, 2), (FLOAT16, 1, 4)]
)
def test_gradients_of_norms_walk_further_where_that_pays(dtype, stride, rows):
    config = _plans("lp_pool", (64, 64, 112, 112), dtype, kernel_size=3, stride=stride)[1].kernel.config
    assert config.steps == rows
    assert config.at_once == (stride == 2 and dtype != FLOAT16)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", ["max_pool", "max_pool_with_indices"])
def test_large_maxima_in_channels_last_memory_pass_through_a_ring(op, dtype):
    large, last = {"kernel_size": 5, "stride": 2, "padding": 2}, {"layout": "channels_last"}
    plan = _plans(op, (64, 112, 112, 64), dtype, **large, **last)[0]
    assert plan.kernel.source == "pool/pipelined_rows.cu"
    config, columns = plan.kernel.config, plan.shared_memory // (plan.kernel.config.groups * 2 * 128)
    tile = (columns - 3) // 2
    assert plan.block == config.threads == -(-tile // config.across * config.lanes // 32) * 32
    assert tile % config.across == 0
    chunks = 64 * dtype.itemsize // 128
    assert plan.grid[0] % (64 * chunks * -(-56 // tile)) == 0  # as many strips of each plane
    assert _sources(op, (1, 12, 12, 64), dtype=dtype, **large, **last)[0] == "pool/small_windows.cu"  # too few blocks
    assert _sources(op, (64, 112, 112, 60), dtype=dtype, **large, **last)[0] == (
        "pool/pipelined_rows.cu" if dtype == FLOAT32 else "pool/small_windows.cu"
    )
    assert _sources(op, (64, 112, 112, 64), dtype=dtype, kernel_size=3, stride=2, **last)[0] == "pool/small_windows.cu"
    assert _sources(op, (64, 112, 112, 64), dtype=dtype, kernel_size=5, stride=3, **last)[0] == "pool/small_windows.cu"


def test_places_are_found_by_vectors_as_wide_as_rows_allow():
    config = _plans("max_pool_with_indices", (64, 64, 112, 112), FLOAT16, kernel_size=5, stride=2, padding=2)[
        0
    ].kernel.config
    assert (config.wide, config.group) == (8, 4)
    config = _plans("max_pool_with_indices", (64, 64, 112, 112), FLOAT16, kernel_size=3, stride=1, padding=1)[
        0
    ].kernel.config
    assert (config.wide, config.group) == (4, 4)


def test_means_of_whole_planes_have_a_gradient_of_their_own():
    assert _sources("adaptive_avg_pool", (8, 16, 7, 7), output_size=1)[-1] == "pool/global_gradient.cu"
    assert (
        _sources("adaptive_avg_pool", (8, 7, 7, 16), output_size=1, layout="channels_last")[-1]
        == "pool/tiling_gradient.cu"
    )


def test_small_windows_of_a_norm_take_one_launch_back():
    for p in (1.0, 2.0):
        assert _sources("lp_pool", (2, 16, 16, 16), kernel_size=3, stride=2, p=p) == [
            "pool/small_windows.cu",
            "pool/norm_gradient.cu",
        ]
        last = _sources("lp_pool", (2, 16, 16, 16), kernel_size=3, stride=2, p=p, layout="channels_last")
        assert last == ["pool/small_windows.cu", "pool/norm_gradient_channels_last.cu"]
    assert _sources("lp_pool", (2, 16, 16, 16), kernel_size=3, stride=2, p=3.0)[-1] == "pool/gather.cu"


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_gradients_of_means_walk_down_where_two_rows_of_windows_meet_at_the_most(layout):
    shape, options = ((2, 16, 56, 56) if layout == "channels_first" else (2, 56, 56, 16)), {"layout": layout}
    assert _sources("adaptive_avg_pool", shape, output_size=13, **options)[1] == "pool/mean_gradient.cu"
    assert _sources("adaptive_avg_pool", shape, output_size=40, **options)[1] == "pool/mean_gradient.cu"
    assert _sources("avg_pool", shape, kernel_size=8, stride=4, **options)[1] == "pool/mean_gradient.cu"
    assert _sources("avg_pool", shape, kernel_size=9, stride=4, **options)[1] != "pool/mean_gradient.cu"


def test_many_given_places_become_taps_first():
    def sources(batch, layout, stride, dtype=FLOAT64):
        shape = (batch, 32, 32, 64) if layout == "channels_last" else (batch, 64, 32, 32)
        return _gradient_sources(shape, dtype, 3, stride, layout, given=True)

    assert sources(64, "channels_last", 1) == ["indices_to_taps.cu", "small_windows_gradient.cu"]
    assert sources(1, "channels_last", 1) == ["small_windows_gradient.cu"]  # too few for two launches
    assert sources(64, "channels_first", 1) == ["small_windows_gradient.cu"]  # a thread reads each place once
    assert sources(640, "channels_last", 2, FLOAT32) == [
        "small_windows_gradient.cu"
    ]  # nor more than four times where few windows meet


def test_neighbours_lend_halves_beside_large_windows_only():
    for dtype, size, layout, lends in (
        (FLOAT16, 5, "channels_first", True),
        (FLOAT16, 3, "channels_first", False),
        (FLOAT32, 5, "channels_first", False),
        (FLOAT16, 5, "channels_last", False),
    ):
        for op in ("max_pool", "avg_pool"):
            forward = _plans(op, (2, 16, 16, 16), dtype, kernel_size=size, stride=2, padding=1, layout=layout)[0]
            assert forward.kernel.config.lends == lends


def test_windows_that_begin_and_end_with_vectors_need_no_shared_memory():
    assert _sources("adaptive_avg_pool", (2, 16, 50, 112), output_size=(13, 14))[0] == "pool/vector_windows.cu"
    assert (
        _sources("adaptive_avg_pool", (2, 16, 50, 112), output_size=(13, 16))[0] == "pool/separable.cu"
    )  # seven columns
    assert (
        _sources("max_pool", (2, 16, 50, 66), kernel_size=(6, 4))[0] == "pool/vector_windows.cu"
    )  # two columns are left over
    assert _sources("max_pool", (2, 16, 50, 66), kernel_size=(6, 4), ceil_mode=True)[0] == "pool/separable.cu"


def test_places_of_large_windows_are_found_by_long_runs_of_rows():
    options, planes = {"kernel_size": 5, "stride": 2, "padding": 2}, (64, 64, 112, 112)
    (plan,) = _forward("max_pool_with_indices", planes, **options)
    assert plan.kernel.source == "pool/bulk_argmax.cu"
    assert plan.grid[0] % _H200.units == 0
    others = {
        "few tiles": {"shape": (1, 8, 112, 112)},
        "lanes without columns": {"shape": (64, 64, 112, 144)},
        "a window short of the end": {"padding": 1},
        "small windows": {"kernel_size": 3, "padding": 1},
        "half types": {"dtype": FLOAT16},
        "channels-last memory": {"shape": (64, 112, 112, 64), "layout": "channels_last"},
    }
    for other in others.values():
        given = {"shape": planes, "dtype": FLOAT32, **options} | other
        (plan,) = _forward("max_pool_with_indices", given.pop("shape"), given.pop("dtype"), **given)
        assert plan.kernel.source != "pool/bulk_argmax.cu"


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("size", [0, (0, 3), (3, 0)])
@pytest.mark.parametrize("op", ["adaptive_avg_pool", "adaptive_max_pool", "adaptive_max_pool_with_indices"])
def test_a_gradient_of_no_windows_is_zeros(op, size, layout):
    """Of places that are given too; no kernel divides by an extent of 0."""
    x = Spec((2, 4, 5, 6), FLOAT16)
    made = find(op).bind((x,), {"output_size": size, "layout": layout})
    grad = Call(op, *made).problem().outputs[0]
    given = (Spec(grad.shape, INT64),) if "max" in op else ()
    for indices in {(), given}:
        problem = planned(f"{op}_backward", grad, x, *indices, output_size=size, layout=layout)[1]
        assert [plan.kernel.source for plan in _program(f"{op}_backward", problem).plans] == ["common/zero.cu"]
        assert choose(problem, _H200, DEFAULT, ALGORITHMS[f"{op}_backward"]).workspace(problem) == 0


@pytest.mark.parametrize("op", [op for op in ALGORITHMS if op.endswith("_pool")])
def test_an_algorithm_is_called_as_its_kernel_is(op):
    """So that `explain` and a profiler say the same; of a gradient that takes two launches, the second."""
    for size, stride in ((2, 2), (3, 1), (3, 2), (5, 2), (7, 3), (16, 16)):
        for layout in ("channels_first", "channels_last"):
            call = Call(op, *find(op).bind((Spec((8, 16, 16, 16), FLOAT16),), _windows(op, size, stride, layout)))
            for c in (call, call.backward(call.problem().outputs[0])):
                method = choose(c.problem(), _H200, DEFAULT, ALGORITHMS[c.op])
                source = method.run(c.problem(), _H200, True).plans[-1].kernel.source
                assert method.name.startswith(source.removeprefix("pool/").removesuffix(".cu"))


def _windows(op, size, stride, layout):
    return {"layout": layout} | (
        {"output_size": size} if op.startswith("adaptive") else {"kernel_size": size, "stride": stride}
    )


@pytest.mark.parametrize("op", ALGORITHMS)
def test_some_algorithm_takes_any_problem(op):
    """The last of the table; what is too large for one is too large for all."""
    forward = op.removesuffix("_backward")
    given = {"output_size": (6, 8)} if "unpool" in op else _windows(op, 2, 1, "channels_first")
    arrays = (Spec((2, 3, 4, 6), FLOAT32), *[Spec((2, 3, 4, 6), INT64)] * ("unpool" in op))
    call = Call(forward, *find(forward).bind(arrays, given))
    problem = (call if forward == op else call.backward(call.problem().outputs[0])).problem()
    for device in (_H200, replace(_H200, aligned=False), _DEVICES["sm_80"]):
        assert ALGORITHMS[op][-1].rejects(problem, device) is None
