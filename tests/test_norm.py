"""Norms: blocks, large offsets, saved statistics, NaN, drawn shapes, and PyTorch."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu import sums
from dnnarray._cpu.norm import blocks as norm_blocks
from dnnarray._cpu.norm import folded as norm_folded
from tests.cases.norm import CASES
from tests.oracles.norm import ORACLES
from tests.support import (
    BFLOAT16,
    FLOAT32,
    FLOAT64,
    assert_close,
    call,
    call_by,
    candidates,
    check_forward,
    check_same_gradient,
    flat,
    gradients_of,
)

_RNG = np.random.default_rng(5)
_X = _RNG.standard_normal((2, 6, 3, 2))
_ROWS = _RNG.standard_normal((4, 6))
_C = np.ones(6)


# --- meaning ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks so small that every case is cut along every axis that may be."""
    monkeypatch.setattr(norm_blocks, "BLOCK", 6)
    monkeypatch.setattr(norm_blocks, "_RUN", 2)
    norm_blocks._piece.cache_clear()
    yield
    norm_blocks._piece.cache_clear()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_do_not_change_the_result(case, tiny_blocks):
    check_forward(case, FLOAT64, ORACLES[case.op])


@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=str)
def test_blocks_do_not_change_the_gradient(case, request):
    """The gradient of a single block is held to finite differences in ``test_backward.py``."""
    whole = gradients_of(case)
    request.getfixturevalue("tiny_blocks")
    check_same_gradient(case, whole)


@pytest.mark.parametrize("shape", [(5, 7, 9), (1, 40, 3), (3, 1, 50), (2, 2, 2)])
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_boxes_cover_every_element_once(shape, axes, tiny_blocks):
    for array in (np.zeros(shape, int), np.zeros(shape[::-1], int).T):
        for box in norm_blocks.boxes(array, axes):
            array[box] += 1
            kept = [array[box].shape[i] == array.shape[i] for i in range(3) if i not in axes]
            assert all(kept)
        assert (array == 1).all()


def test_a_small_array_is_one_box_and_pieces_stay_near_the_limit():
    assert list(norm_blocks.boxes(np.zeros((3, 4)), (0, 1))) == [norm_blocks.WHOLE]
    array = np.zeros((64, 64, 64, 3), np.float32)
    pieces = [array[box].size for box in norm_blocks.boxes(array, (0, 1))]
    assert max(pieces) <= norm_blocks.BLOCK
    assert sum(pieces) == array.size


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", ["batch_norm_train", "layer_norm", "group_norm", "instance_norm", "add_layer_norm"])
def test_data_far_from_zero_is_right_in_float32(name, layout):
    rng = np.random.default_rng(2)
    x = (1e4 + rng.standard_normal((6, 64, 16, 24))).astype(np.float32)
    options = {"layer_norm": {"axis": (1, 2, 3)}, "group_norm": {"num_groups": 4}}.get(name, {})
    arrays = (x, np.zeros_like(x)) if name.startswith("add") else (x,)
    if "layer" not in name:
        options["layout"] = layout
    exact = flat(call(name, tuple(a.astype(np.float64) for a in arrays), options))[0]
    y = flat(call(name, arrays, options))[0]
    np.testing.assert_allclose(
        y, exact, rtol=0, atol=5e-6
    )  # of values up to 5; rounding the mean alone would give 5e-4


def test_given_statistics_far_from_zero_are_right_in_float32():
    x = (1e4 + np.random.default_rng(2).standard_normal((6, 5, 16))).astype(np.float32)
    mean, variance = x.mean((0, 2)), x.var((0, 2), dtype=np.float64).astype(np.float32)
    exact = dnn.batch_norm(*(a.astype(np.float64) for a in (x, mean, variance)))
    np.testing.assert_allclose(dnn.batch_norm(x, mean, variance), exact, rtol=0, atol=2e-6)


def test_long_sums_keep_their_accuracy():
    x = np.random.default_rng(3).random((4, 200_000, 3)).astype(np.float32)
    result = dnn.batch_norm_train(x, layout="channels_last")
    exact = x.astype(np.float64)
    np.testing.assert_allclose(result.mean, exact.mean((0, 1)), rtol=2e-7)
    np.testing.assert_allclose(result.rstd, 1 / np.sqrt(exact.var((0, 1)) + 1e-5), rtol=5e-7)


def test_long_rows_keep_their_accuracy():
    x = np.random.default_rng(3).random((3, 500_000)).astype(np.float32)
    result = dnn.layer_norm(x, return_stats=True)
    exact = dnn.layer_norm(x.astype(np.float64), return_stats=True)
    np.testing.assert_allclose(result.mean, exact.mean, rtol=2e-7)
    np.testing.assert_allclose(result.rstd, exact.rstd, rtol=5e-7)
    np.testing.assert_allclose(result.y, exact.y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 2), (0, 2, 3), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_sums_over_any_axes_of_any_memory(order, axes):
    rng = np.random.default_rng(1)
    shape = (5, 1, 30, 9)
    array = rng.standard_normal([shape[i] for i in order]).transpose(np.argsort(order))
    assert array.shape == shape
    factor = rng.standard_normal([n if i in axes else 1 for i, n in enumerate(shape)])
    for part in (array, array[:, :, ::2], array[:0], np.broadcast_to(array[:1], shape)):
        of = factor[:, :, : part.shape[2] if 2 in axes else 1][: part.shape[0] if 0 in axes else 1]
        for a, e in ((sums.total(part, axes), part), (sums.total(part, axes, of), part * of)):
            np.testing.assert_allclose(a, e.sum(axes, keepdims=True), rtol=1e-12, atol=1e-12)
        squares = sums.total(part, axes, part)
        np.testing.assert_allclose(squares, (part * part).sum(axes, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "arrays", "options"),
    [
        ("batch_norm", (_C, _C), {}),
        ("batch_norm_train", (), {}),
        ("layer_norm", (), {"axis": (1, 3)}),
        ("rms_norm", (), {"axis": 1}),
        ("group_norm", (), {"num_groups": 2}),
        ("instance_norm", (), {}),
        ("local_response_norm", (), {"size": 3}),
    ],
)
def test_the_result_has_the_memory_order_of_x(name, arrays, options):
    x = np.moveaxis(np.random.default_rng(1).standard_normal((2, 5, 4, 6)), -1, 1)
    y = flat(call(name, (x, *arrays), options))[0]
    assert y.strides == x.strides
    np.testing.assert_allclose(
        y, flat(call(name, (np.ascontiguousarray(x), *arrays), options))[0], rtol=1e-12, atol=1e-13
    )


def test_running_statistics_are_new_arrays_and_independent_of_each_other():
    mean, var = np.zeros(6), np.ones(6)
    result = dnn.batch_norm_train(_X, None, None, mean, var, momentum=0.25)
    assert not mean.any()
    assert (var == 1).all()
    np.testing.assert_allclose(result.running_mean, 0.25 * _X.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(result.running_var, 0.75 + 0.25 * _X.var((0, 2, 3), ddof=1), rtol=1e-13)
    alone = dnn.batch_norm_train(_X, running_var=var, momentum=0.25)
    assert alone.running_mean is None
    np.testing.assert_array_equal(alone.running_var, result.running_var)


def test_an_empty_batch_leaves_the_running_statistics_alone():
    mean, var = _RNG.standard_normal(6), _RNG.random(6)
    result = dnn.batch_norm_train(np.ones((0, 6, 3)), None, None, mean, var, eps=0.25)
    np.testing.assert_array_equal(result.running_mean, mean)
    np.testing.assert_array_equal(result.running_var, var)
    np.testing.assert_array_equal(result.rstd, np.full(6, 2.0))
    gradients = dnn.batch_norm_train_backward(np.ones((0, 6, 3)), np.ones((0, 6, 3)), _C, _C)
    assert gradients.x.shape == (0, 6, 3)
    assert not gradients.weight.any()
    assert not gradients.bias.any()


@pytest.mark.parametrize(
    "x", [np.ones((0, 6, 3)), np.ones((2, 0, 3)), np.ones((2, 6, 0))], ids=["batch", "channels", "space"]
)
def test_gradients_of_nothing_are_zero(x):
    c = np.ones(x.shape[1])
    results = [
        dnn.batch_norm_backward(x, x, c, c, c, c, residual=x),
        dnn.batch_norm_train_backward(x, x, c, c, activation="relu", residual=x),
        dnn.layer_norm_backward(x, x, np.ones(x.shape[1:]), np.ones(x.shape[1:]), axis=(1, 2)),
        dnn.rms_norm_backward(x, x, np.ones(x.shape[2])),
        dnn.add_layer_norm_backward((x, x), x, x, np.ones(x.shape[2])),
        dnn.group_norm_backward(x, x, c, c, num_groups=2),
        dnn.instance_norm_backward(x, x, c, c),
        (dnn.local_response_norm_backward(x, x, 3),),
    ]
    for gradients in results:
        assert all(not g.any() for g in gradients if g is not None)


def test_float32_parameters_beside_a_half_array_keep_their_dtype():
    x, c = _X.astype(BFLOAT16), _C.astype(np.float32)
    result = dnn.batch_norm_train(x, c, c, c, c)
    assert [r.dtype for r in result] == [BFLOAT16, FLOAT32, FLOAT32, FLOAT32, FLOAT32]
    assert [g.dtype for g in dnn.batch_norm_train_backward(x, x, c, c, mean=result.mean, rstd=result.rstd)] == [
        BFLOAT16,
        FLOAT32,
        FLOAT32,
    ]
    half = dnn.batch_norm_train(x, *(a.astype(BFLOAT16) for a in (c, c, c, c)))
    assert [r.dtype for r in half] == [BFLOAT16, FLOAT32, FLOAT32, BFLOAT16, BFLOAT16]


@pytest.mark.parametrize("given_statistics", [("mean",), ("rstd",), ("mean", "rstd")])
def test_saved_statistics_give_the_same_gradients(given_statistics):
    rng = np.random.default_rng(8)
    x, grad, w = rng.standard_normal((5, 7)), rng.standard_normal((5, 7)), rng.standard_normal(7)
    layer = dnn.layer_norm(x, w, w, return_stats=True)._asdict()
    batch = dnn.batch_norm_train(x, w, w)._asdict()
    for backward, saved in ((dnn.layer_norm_backward, layer), (dnn.batch_norm_train_backward, batch)):
        some = {n: saved[n] for n in given_statistics}
        for a, b in zip(backward(grad, x, w, w, **some), backward(grad, x, w, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


_SAMPLES = {"group_norm": {"num_groups": 4}, "instance_norm": {}}  # norms with statistics for each sample


@pytest.mark.parametrize("op", _SAMPLES)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("shape", [(3, 8, 5), (2, 16, 7, 23), (2, 12, 3, 2, 3)], ids=str)
@pytest.mark.parametrize("given_statistics", [("mean",), ("rstd",), ("mean", "rstd")])
def test_saved_statistics_of_samples_give_the_same_gradients(op, layout, shape, given_statistics):
    rng = np.random.default_rng(9)
    options, channels = _SAMPLES[op] | {"layout": layout}, shape[1]
    shape = shape if layout == "channels_first" else (shape[0], *shape[2:], channels)
    x, grad, w = rng.standard_normal(shape) + 0.5, rng.standard_normal(shape), rng.standard_normal(channels)
    for name in candidates(op, (x, w, w), options | {"return_stats": True}):
        result = call_by(name, op, (x, w, w), options | {"return_stats": True})
        for a, b in zip(result, ORACLES[op](x, w, w, return_stats=True, **options), strict=True):
            assert_close(a, b, x.size, note=name)
    saved = {n: getattr(result, n) for n in given_statistics}
    arrays = (grad, x, w, w, saved.get("mean"), saved.get("rstd"))
    expected = getattr(dnn, f"{op}_backward")(*arrays[:4], **options)
    for name in candidates(f"{op}_backward", arrays, options):
        for a, b in zip(call_by(name, f"{op}_backward", arrays, options), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12, err_msg=name)


def test_saved_statistics_are_used():
    """Twice the rstd is another gradient: what is passed is taken, not found again."""
    x, grad = _ROWS, _ROWS[::-1]
    rstd = dnn.rms_norm(x, return_stats=True).rstd
    assert not np.allclose(dnn.rms_norm_backward(grad, x, rstd=2 * rstd).x, dnn.rms_norm_backward(grad, x).x)
    saved = dnn.group_norm(_X, 3, return_stats=True)
    arrays, options = (np.roll(_X, 1), _X, None, None, saved.mean, 2 * saved.rstd), {"num_groups": 3}
    expected = dnn.group_norm_backward(*arrays[:2], **options).x
    for name in candidates("group_norm_backward", arrays, options):
        assert not np.allclose(call_by(name, "group_norm_backward", arrays, options).x, expected)


def test_vjp_keeps_the_form_of_the_output():
    y, _ = dnn.vjp("layer_norm", _ROWS)
    assert isinstance(y, np.ndarray)
    output, pullback = dnn.vjp("layer_norm", _ROWS, return_stats=True)
    assert isinstance(output, dnn.LayerNormOutput)
    assert pullback((np.ones_like(_ROWS), None, None))[0].shape == _ROWS.shape
    trained, pullback = dnn.vjp("batch_norm_train", _ROWS, _C, _C, _C, _C)
    assert isinstance(trained, dnn.BatchNormOutput)
    assert [g is None for g in pullback(_ROWS)] == [False, False, False, True, True]


@pytest.mark.parametrize("name", ["add_layer_norm", "add_rms_norm"])
def test_gradients_of_one_or_both_results_of_an_addition(name):
    rng = np.random.default_rng(4)
    x, r, gy, gs = rng.standard_normal((4, 3, 6))
    backward = getattr(dnn, f"{name}_backward")
    of_y, of_sum, of_both = backward(gy, x, r, _C), backward((None, gs), x, r, _C), backward([gy, gs], x, r, _C)
    np.testing.assert_array_equal(backward((gy, None), x, r, _C).x, of_y.x)
    np.testing.assert_array_equal(of_sum.x, gs)
    np.testing.assert_array_equal(of_sum.weight, np.zeros(6))
    np.testing.assert_allclose(of_both.x, of_y.x + gs, rtol=1e-13)
    for gradients in (of_y, of_sum, of_both):
        np.testing.assert_array_equal(gradients.x, gradients.residual)


def test_a_half_sum_is_normalised_before_it_is_rounded():
    x, r = (a.astype(np.float16) for a in np.random.default_rng(6).standard_normal((2, 3, 50)))
    wide = x.astype(np.float64) + r.astype(np.float64)
    result = dnn.add_layer_norm(x, r, None, None)
    np.testing.assert_array_equal(result.sum, x + r)
    assert_close(result.y, dnn.layer_norm(wide), 50)


def test_even_windows_lean_to_the_lower_channels():
    x = np.array([[1.0, 2.0, 4.0]])
    y = dnn.local_response_norm(x, 2, alpha=2.0, beta=1.0, k=0.0)
    np.testing.assert_allclose(y, [[1 / 1, 2 / 5, 4 / 20]], rtol=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_statistics_only(bad):
    x = _X.copy()
    x[0, 1, 2, 0] = bad
    for y, spoiled in (
        (dnn.batch_norm_train(x).y, (slice(None), 1)),
        (dnn.instance_norm(x), (0, 1)),
        (dnn.group_norm(x, 2), (0, slice(0, 3))),
        (dnn.layer_norm(x, axis=(2, 3)), (0, 1)),
    ):
        expected = np.zeros(x.shape, bool)
        expected[spoiled] = True
        np.testing.assert_array_equal(np.isnan(y), expected)


def test_constant_data_is_zero_and_without_eps_nan():
    x = np.full((3, 5), 0.1, np.float32)
    assert not dnn.layer_norm(x).any()
    assert np.isnan(dnn.layer_norm(x, eps=0.0)).all()
    assert np.isnan(dnn.batch_norm_train(x, eps=0.0).y).all()


def test_memory_beyond_the_results_is_bounded():
    x = np.ones((16, 64, 64, 64), np.float32)
    out = np.empty_like(x)
    calls = [
        lambda: dnn.layer_norm(x, np.ones(64, np.float32), out=out),
        lambda: dnn.group_norm(x, 2, out=out),
        lambda: dnn.instance_norm(x, layout="channels_last", out=out),
        lambda: dnn.local_response_norm(x, 5, out=out),
        lambda: dnn.batch_norm_train_backward(x, x, activation="relu", out=(out,)),
    ]
    for each in calls:
        tracemalloc.start()
        each()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < x.nbytes / 4


# --- drawn shapes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e-3, 0.7, -40.0, 1e6])
@pytest.mark.parametrize("extents", [(3, 1), (3, 7), (2, 4, 300), (2, 6, 33, 40)])
def test_equal_values_become_zero(extents, value):
    x = np.full(extents, value, np.float32)
    assert not dnn.layer_norm(x, eps=0.1).any()
    if x.ndim > 2:
        assert not dnn.group_norm(x, num_groups=2, eps=0.1).any()
        assert not dnn.batch_norm_train(x, eps=0.1)[0].any()


@st.composite
def _axis_calls(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    signed = tuple(a - len(shape) if draw(st.booleans()) else a for a in axes)
    return shape, signed, tuple(shape[i] for i in sorted(axes)), draw(st.booleans()), draw(st.booleans())


@settings(max_examples=60, deadline=None)
@given(_axis_calls(), st.sampled_from([1e-5, 0.1, 2.0]), st.integers(0, 99))
@example(((2, 2), (1,), (2,), False, False), 1e-5, 1)  # two sums of 1 and more that differ by 0.02
def test_norms_over_drawn_axes(drawn, eps, seed):
    shape, axis, extents, with_weight, with_bias = drawn
    rng = np.random.default_rng(seed)
    x, r = rng.standard_normal((2, *shape))
    w = rng.standard_normal(extents) if with_weight else None
    b = rng.standard_normal(extents) if with_bias else None
    calls = {"layer_norm": (x, w, b), "rms_norm": (x, w), "add_layer_norm": (x, r, w, b), "add_rms_norm": (x, r, w)}
    for name, arrays in calls.items():
        options = {"axis": axis, "eps": eps}
        total = x + r if name.startswith("add") else x
        spread = total.var(axis) if "layer" in name else np.mean(total**2, axis)
        # Few values may lie close together: what each of them rounds by grows with rstd, and a bias may leave little of
        # it.
        size = (np.abs(x) + np.abs(r)).max() / math.sqrt(spread.min() + eps) * (1 if w is None else np.abs(w).max())
        for i, (a, e) in enumerate(
            zip(flat(call(name, arrays, options)), flat(ORACLES[name](*arrays, **options)), strict=True)
        ):
            left = np.abs(e).max()
            assert_close(a, e, x.size, condition=1 if i or not left else max(size / left, 1), note=name)


@st.composite
def _channel_calls(draw):
    groups, members = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    space = draw(st.lists(st.integers(1, 4), min_size=0, max_size=3))
    n, c = draw(st.integers(0, 3)), groups * members
    layout = draw(st.sampled_from(["channels_first", "channels_last"]))
    return ((n, c, *space) if layout == "channels_first" else (n, *space, c)), c, groups, layout


@settings(max_examples=60, deadline=None)
@given(_channel_calls(), st.sampled_from([None, "relu", "gelu"]), st.booleans(), st.integers(0, 99))
@example(((1, 1), 1, 1, "channels_first"), "gelu", True, 3)  # bias and residual leave 0.002 of terms of 0.5 and more
def test_norms_over_drawn_channels(drawn, activation, affine, seed):
    shape, c, groups, layout = drawn
    rng = np.random.default_rng(seed)
    x, mean, variance = rng.standard_normal(shape), rng.standard_normal(c), rng.random(c) + 0.1
    w, b = (rng.standard_normal(c), rng.standard_normal(c)) if affine else (None, None)
    residual = rng.standard_normal(shape) if affine else None
    calls = [
        ("batch_norm", (x, mean, variance, w, b, residual), {"activation": activation}),
        ("group_norm", (x, w, b), {"num_groups": groups, "activation": activation}),
        ("local_response_norm", (x,), {"size": groups, "alpha": 0.3}),
    ]
    if x.size != c:
        calls.append(("batch_norm_train", (x, w, b, mean, variance, residual), {"activation": activation}))
    for name, arrays, options in calls:
        options |= {"layout": layout}
        for a, e in zip(flat(call(name, arrays, options)), flat(ORACLES[name](*arrays, **options)), strict=True):
            # Few values may lie close together, and rstd grows to 1 / sqrt(eps); what is added rounds to its own size,
            # whatever it leaves.
            added = max((np.abs(term).max(initial=0) for term in (b, residual) if term is not None), default=0)
            left = np.abs(e).max(initial=0)
            assert_close(a, e, max(x.size, 1), condition=4 * max(added / left, 1) if left else 4, note=name)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _torch_calls():
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    c6 = np.random.default_rng(1).random((4, 6)) + 0.5
    w, b, mean, var = c6
    return {
        "batch_norm": ((_X, mean, var, w, b), {}, lambda x, m, v, w, b: f.batch_norm(x, m, v, w, b)),
        "batch_norm_train": ((_X, w, b), {}, lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True)),
        "layer_norm": ((_ROWS, w, b), {}, lambda x, w, b: f.layer_norm(x, (6,), w, b)),
        "rms_norm": ((_ROWS, w), {"eps": 1e-4}, lambda x, w: f.rms_norm(x, (6,), w, eps=1e-4)),
        "group_norm": ((_X, w, b), {"num_groups": 3}, lambda x, w, b: f.group_norm(x, 3, w, b)),
        "instance_norm": ((_X, w, b), {}, lambda x, w, b: f.instance_norm(x, weight=w, bias=b)),
        **{
            f"local_response_norm {size}": (
                (_X,),
                {"size": size, "alpha": 0.5},
                lambda x, size=size: f.local_response_norm(x, size, 0.5),
            )
            for size in (2, 3, 5)
        },
    }


@pytest.mark.parametrize(
    "name",
    ["batch_norm", "batch_norm_train", "layer_norm", "rms_norm", "group_norm", "instance_norm"]
    + [f"local_response_norm {size}" for size in (2, 3, 5)],
)
def test_pytorch_agrees(name):
    torch = pytest.importorskip("torch")
    arrays, options, function = _torch_calls()[name]
    fixed = (1, 2) if name == "batch_norm" else ()  # PyTorch has no gradient for given statistics
    tensors = [torch.tensor(a, requires_grad=i not in fixed) for i, a in enumerate(arrays)]
    expected = function(*tensors)
    grad = np.random.default_rng(9).standard_normal(expected.shape)
    expected.backward(torch.tensor(grad))
    output, pullback = dnn.vjp(name.partition(" ")[0], *arrays, **options)
    np.testing.assert_allclose(flat(output)[0], expected.detach().numpy(), rtol=1e-11, atol=1e-12)
    for i, (gradient, tensor) in enumerate(zip(pullback(grad), tensors, strict=True)):
        if i not in fixed:
            np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_pytorch_moves_the_running_statistics_alike(momentum):
    torch = pytest.importorskip("torch")
    mean, var = torch.zeros(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    result = dnn.batch_norm_train(_X, None, None, mean.numpy().copy(), var.numpy().copy(), momentum=momentum)
    torch.nn.functional.batch_norm(torch.tensor(_X), mean, var, training=True, momentum=momentum)
    np.testing.assert_allclose(result.running_mean, mean.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.running_var, var.numpy(), rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_pytorch_spreads_nan_and_infinity_alike(bad):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    x = _ROWS.copy()
    x[1, 2] = bad
    t = torch.tensor(x)
    one = np.ones(6)
    pairs = [
        (dnn.layer_norm(x), f.layer_norm(t, (6,))),
        (dnn.rms_norm(x, eps=1e-5), f.rms_norm(t, (6,), eps=1e-5)),
        (dnn.batch_norm_train(x).y, f.batch_norm(t, None, None, training=True)),
        (dnn.batch_norm(x, 0 * one, one), f.batch_norm(t, torch.tensor(0 * one), torch.tensor(one))),
        (dnn.group_norm(x, 2), f.group_norm(t, 2)),
        (dnn.local_response_norm(x[..., None], 3), f.local_response_norm(t[..., None], 3)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-12)


# --- data near and far from 0
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "batch_norm_train", "group_norm", "instance_norm"])
@pytest.mark.parametrize("means", [(0, 0), (0.9, -0.9), (0.5, 300), (40, 40)], ids=["at", "near", "mixed", "far"])
def test_rows_of_any_mean(op, means, monkeypatch):
    """Statistics in one pass where that loses nothing, and in two passes, agree; also in several blocks."""
    rng = np.random.default_rng(0)
    shape, channels = ((6, 131), 131) if op in ("layer_norm", "rms_norm") else ((4, 6, 12, 13), 6)
    x = rng.standard_normal(shape)
    x[: len(x) // 2] += means[0]
    x[len(x) // 2 :] += means[1]
    parameters = [rng.standard_normal(channels) for _ in range(1 if op == "rms_norm" else 2)]
    options = {"num_groups": 3} if op == "group_norm" else {}
    grad = rng.standard_normal(shape)

    def results():
        y, pullback = dnn.vjp(op, x, *parameters, **options)
        return [a for a in (*(y if isinstance(y, tuple) else (y,)), *pullback(grad)) if a is not None]

    monkeypatch.setattr(norm_folded, "_SMALL", 1 << 30)
    expected = results()
    monkeypatch.setattr(norm_folded, "_SMALL", 0)
    for block in (1 << 17, 400):
        monkeypatch.setattr(norm_folded, "_BLOCK", block)
        for got, right in zip(results(), expected, strict=True):
            assert_close(got, right, 512, condition=1 + max(map(abs, means)) ** 2)


def test_a_statistic_of_very_many_elements_is_not_taken_in_one_block(monkeypatch):
    x = np.random.default_rng(0).standard_normal((2, 3, 40, 40))
    expected = dnn.batch_norm_train(x).y
    monkeypatch.setattr(norm_folded, "_LARGE", 3000)
    monkeypatch.setattr(norm_folded, "_moments", None)
    norm_folded._form.cache_clear()
    assert_close(dnn.batch_norm_train(x).y, expected, 3200)
    norm_folded._form.cache_clear()


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 3, 500), (0, 2)), ((1, 200, 200), (0, 2)), ((2, 3, 40, 50), (0, 2, 3)), ((1, 5000), (1,))]
)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_parameters_along_normalised_axes_around_one_that_is_kept(name, shape, axis):
    """Large enough for the ways that take both sums in one pass; an axis of extent 1 has any stride."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    x = np.lib.stride_tricks.as_strided(
        x, shape, tuple(8 if n == 1 else s for n, s in zip(shape, x.strides, strict=True))
    )
    weight = rng.standard_normal(tuple(shape[i] for i in axis))
    along = np.expand_dims(weight, tuple(i for i in range(len(shape)) if i not in axis))
    centred = x - x.mean(axis, keepdims=True) * (name == "layer_norm")
    scale = 1 / np.sqrt((centred**2).mean(axis, keepdims=True) + (1e-5 if name == "layer_norm" else 1e-6))
    y, pullback = dnn.vjp(name, x, weight, axis=axis)
    np.testing.assert_allclose(y, centred * scale * along, atol=1e-12)
    grad = rng.standard_normal(shape)
    kept = next(i for i in range(len(shape)) if i not in axis)
    np.testing.assert_allclose(pullback(grad)[1], (grad * centred * scale).sum(kept), atol=1e-9)
