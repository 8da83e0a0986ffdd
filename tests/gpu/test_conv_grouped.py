"""Convolution of groups of few channels on a card: slabs of every kind, windows, strides, epilogues, both memories,
determinism."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_PROBLEMS = {  # batch, space, groups, channels of a group on both sides, window, options
    "four": (3, (17, 19), 32, 4, 4, (3, 3), {"padding": 1}),
    "four_large": (2, (56, 56), 32, 4, 4, (3, 3), {"padding": 1}),
    "two": (2, (11, 13), 12, 2, 2, (3, 3), {"padding": 1}),
    "three": (2, (9, 14), 8, 3, 3, (3, 3), {"padding": 1, "stride": 2}),
    "eight": (2, (15, 12), 16, 8, 8, (3, 3), {"padding": 1, "stride": 2}),
    "sixteen": (2, (14, 14), 8, 16, 16, (3, 3), {"padding": 1}),
    "twenty_four": (2, (14, 9), 3, 24, 24, (3, 3), {"padding": 2, "dilation": 2}),
    "thirty_two": (3, (7, 7), 6, 32, 32, (3, 3), {"padding": 1}),
    "forty": (1, (13, 8), 2, 40, 40, (3, 3), {"padding": 1}),
    "wider": (2, (10, 12), 8, 4, 8, (3, 3), {"padding": 1}),
    "narrower": (2, (10, 12), 8, 8, 2, (5, 5), {"padding": 2}),
    "multiplied": (2, (23, 8), 24, 1, 3, (3, 3), {"padding": 1}),
    "pointwise": (2, (9, 9), 4, 16, 16, (1, 1), {}),
    "uneven": (2, (12, 17), 4, 4, 4, (2, 5), {"padding": ((0, 2), (1, 3)), "stride": (1, 3), "dilation": (2, 1)}),
    "wide_window": (2, (30, 30), 8, 4, 4, (7, 7), {"padding": 3}),
    "row": (2, (133,), 8, 4, 4, (5,), {"padding": 2}),
    "space": (1, (6, 9, 11), 8, 4, 4, (3, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
    "space_dilated": (2, (7, 6, 9), 4, 8, 8, (2, 3, 3), {"padding": 1, "dilation": (2, 1, 1)}),
    "one_seven": (2, (21, 30), 24, 1, 1, (7, 7), {"padding": 3}),
    "one_seven_wide": (1, (9, 150), 40, 1, 1, (7, 7), {"padding": (0, 3)}),
    "one_five": (3, (12, 25), 16, 1, 1, (5, 5), {"padding": 4}),
    "two_five": (1, (5, 70), 8, 2, 2, (5, 5), {"padding": ((0, 7), (3, 0))}),
    "one_three": (2, (57, 33), 104, 1, 1, (3, 3), {"padding": 1}),
    "small_images": (9, (7, 7), 8, 16, 16, (3, 3), {"padding": 1}),
    "skipping": (2, (16, 16), 4, 4, 4, (2, 2), {"stride": 3}),
}
_OF_8_TO_32 = {  # for TMA
    "sixteen": _PROBLEMS["sixteen"],
    "thirty_two": _PROBLEMS["thirty_two"],
    "pointwise": _PROBLEMS["pointwise"],
    "small_images": _PROBLEMS["small_images"],
    "large": (2, (56, 57), 8, 16, 16, (3, 3), {"padding": 1}),
    "some_sixteens": (2, (9, 13), 3, 16, 16, (3, 3), {"padding": 1}),
    "two_thirty_twos": (5, (13, 9), 2, 32, 32, (3, 3), {"padding": ((1, 0), (2, 1))}),
    "three_thirty_twos": (1, (13, 9), 3, 32, 32, (3, 2), {"padding": 1, "dilation": (2, 3)}),
    "stepping": (2, (15, 22), 8, 16, 16, (3, 3), {"padding": 1, "stride": 2}),
    "stepping_32": (3, (15, 12), 4, 32, 32, (3, 5), {"padding": (1, 2), "stride": (2, 3)}),
    "skipping": (2, (16, 16), 4, 16, 16, (2, 2), {"stride": 3}),
    "flipped": (2, (10, 12), 4, 32, 32, (3, 3), {"padding": 1, "flip": True}),
    "dilated": (2, (14, 14), 8, 16, 16, (3, 3), {"padding": 2, "dilation": 2}),
    "row": (2, (133,), 8, 16, 16, (5,), {"padding": 2}),
    "space": (1, (6, 9, 11), 4, 16, 16, (3, 3, 3), {"padding": 1, "stride": (2, 1, 1)}),
    "eight": (2, (23, 31), 8, 8, 8, (3, 3), {"padding": 1}),
    "three_eights": (3, (12, 9), 3, 8, 8, (3, 3), {"padding": 1, "stride": 2}),
    "wide_eights": (1, (9, 30), 16, 8, 8, (1, 7), {"padding": (0, 3)}),
    "space_32": (2, (5, 6, 7), 2, 32, 32, (2, 3, 3), {"padding": 1}),
}
_NO_WEIGHT = ("some_sixteens", "three_thirty_twos", "three_eights")  # no multiple of 64 channels
_CALLS = [(f"{n}-grouped", p, "grouped") for n, p in _PROBLEMS.items()]
_CALLS += [(f"{n}-tma", p, "grouped_tma_sm90") for n, p in _OF_8_TO_32.items()]


def _there(array, last):
    if not last:
        return cupy.asarray(array)
    order = (0, *range(2, array.ndim), 1)
    return cupy.ascontiguousarray(cupy.asarray(array).transpose(order)).transpose(np.argsort(order))


def _drawn(problem, dtype, algorithm="grouped"):
    batch, space, groups, c, k, window, options = problem
    rng = np.random.default_rng(0)
    shapes = (batch, groups * c, *space), (groups * k, c, *window)
    options = options | {"groups": groups, "algorithm": algorithm}
    y = dnn.infer("conv", *(dnn.Spec(s, "float32") for s in shapes), **options | {"algorithm": None}).output.shape
    return [rng.standard_normal(s).astype(dtype) for s in (*shapes, (groups * k,), y)], options


def _wide(options):
    return {n: v for n, v in options.items() if n != "algorithm"}


_KINDS = [(np.float16, True), (BFLOAT16, True), (BFLOAT16, False), (np.float32, True)]


@pytest.mark.parametrize(
    ("dtype", "last"), _KINDS, ids=lambda v: ("first", "last")[v] if isinstance(v, bool) else np.dtype(v).name
)
@pytest.mark.parametrize(("problem", "algorithm"), [c[1:] for c in _CALLS], ids=[c[0] for c in _CALLS])
def test_maps(problem, algorithm, dtype, last):
    if dtype == np.float32 and (problem is _PROBLEMS["forty"] or algorithm != "grouped"):
        pytest.skip("slabs of float32 have 32 channels at the most, and none are for TMA")
    (x, w, bias, residual), options = _drawn(problem, dtype, algorithm)
    exact = [a.astype(np.float64) for a in (x, w, bias, residual)]
    tx, tw, tb, tr = (_there(a, last) if a.ndim > 2 else cupy.asarray(a) for a in (x, w, bias, residual))
    terms = math.prod(w.shape[1:])
    assert_close(cupy.asnumpy(dnn.conv(tx, tw, **options)), dnn.conv(*exact[:2], **_wide(options)), terms)
    fused = {"residual": tr, "activation": "relu"}
    expected = dnn.conv(*exact[:3], residual=exact[3], activation="relu", **_wide(options))
    assert_close(cupy.asnumpy(dnn.conv(tx, tw, tb, **fused, **options)), expected, terms)
    expected = dnn.conv_backward_input(exact[3], exact[1], input_shape=x.shape, **_wide(options))
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(tr, tw, input_shape=x.shape, **options)), expected, w.size // w.shape[1]
    )
    expected = dnn.conv_backward_weight(exact[3], exact[0], weight_shape=w.shape, **_wide(options))
    if algorithm not in {
        c.name for c in dnn.algorithms("conv_backward_weight", tr, tx, weight_shape=w.shape, **_wide(options))
    }:
        assert problem in (_OF_8_TO_32[n] for n in _NO_WEIGHT)
        return
    first, again = (cupy.asnumpy(dnn.conv_backward_weight(tr, tx, weight_shape=w.shape, **options)) for _ in range(2))
    assert_close(first, expected, residual.size // residual.shape[1])
    assert first.tobytes() == again.tobytes()


def test_float32_sums_by_items():
    """36 products in one chain would be off by 1.08e-7 of the result (root mean squares), in sums of four by
    0.71e-7."""
    (x, w, _, grad), options = _drawn(_PROBLEMS["four_large"], np.float32)
    tx, tw, tg = (_there(a, True) for a in (x, w, grad))
    pairs = (
        (dnn.conv(tx, tw, **options), dnn.conv(x.astype(np.float64), w.astype(np.float64), **_wide(options))),
        (
            dnn.conv_backward_input(tg, tw, input_shape=x.shape, **options),
            dnn.conv_backward_input(
                grad.astype(np.float64), w.astype(np.float64), input_shape=x.shape, **_wide(options)
            ),
        ),
    )
    for found, exact in pairs:
        error = np.sqrt(np.square(cupy.asnumpy(found) - exact).mean() / np.square(exact).mean())
        assert error < 0.85e-7


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=lambda d: np.dtype(d).name)
def test_all_gradients(dtype, activation):
    (x, w, bias, _), options = _drawn(_PROBLEMS["eight"], dtype)
    options |= {"activation": activation}
    y = dnn.conv(*(a.astype(np.float64) for a in (x, w, bias)), **_wide(options))
    grad = np.random.default_rng(1).standard_normal(y.shape).astype(dtype)
    expected = dnn.conv_backward(*(a.astype(np.float64) for a in (grad, x, w, bias)), **_wide(options))
    actual = dnn.conv_backward(_there(grad, True), _there(x, True), _there(w, True), cupy.asarray(bias), **options)
    for a, e in zip(actual, expected, strict=True):
        if e is not None:
            assert_close(cupy.asnumpy(a), e, e.size)


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("name", ["small_images", "two_thirty_twos", "stepping_32", "space"])
def test_all_gradients_by_the_copy_engine(name, activation):
    (x, w, bias, _), options = _drawn(_OF_8_TO_32[name], BFLOAT16, "grouped_tma_sm90")
    options |= {"activation": activation}
    y = dnn.conv(*(a.astype(np.float64) for a in (x, w, bias)), **_wide(options))
    grad = np.random.default_rng(1).standard_normal(y.shape).astype(BFLOAT16)
    expected = dnn.conv_backward(*(a.astype(np.float64) for a in (grad, x, w, bias)), **_wide(options))
    actual = dnn.conv_backward(_there(grad, True), _there(x, True), _there(w, True), cupy.asarray(bias), **options)
    for a, e in zip(actual, expected, strict=True):
        if e is not None:
            assert_close(cupy.asnumpy(a), e, e.size)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float16, 4), (BFLOAT16, 4), (np.float32, 4), (BFLOAT16, 8), (BFLOAT16, 16), (BFLOAT16, 32)]
)
def test_infinity_and_nan_stay_in_their_groups(dtype, size, layout):
    if dtype == np.float32 and layout == "channels_first":
        pytest.skip("float32 is taken channels-last only")
    shape, weight = (
        ((1, 64, 12, 12), (64, size, 3, 3)) if layout == "channels_first" else ((1, 12, 12, 64), (64, 3, 3, size))
    )
    name = "grouped" if size < 8 else "grouped_tma_sm90"
    x = np.random.default_rng(6).standard_normal(shape).astype(dtype)
    x[0, 2, 3, 5], x[0, 7, 8, 9], x[0, 11, 11, 11] = np.inf, np.nan, -np.inf
    w = np.abs(np.random.default_rng(7).standard_normal(weight)).astype(dtype)
    options = {"padding": 1, "groups": 64 // size, "layout": layout}
    here, there = (x.astype(np.float64), w.astype(np.float64)), (cupy.asarray(x), cupy.asarray(w))
    expected = dnn.conv(*here, **options, algorithm="direct")
    assert_close(cupy.asnumpy(dnn.conv(*there, **options, algorithm=name)), expected, 9 * size)
    added = np.where(np.isfinite(here[0]), here[0], 1.0)
    expected = dnn.conv(*here, residual=added, activation="relu", **options, algorithm="direct")
    actual = dnn.conv(*there, residual=cupy.asarray(added.astype(dtype)), activation="relu", **options, algorithm=name)
    assert_close(cupy.asnumpy(actual), expected, 9 * size)
    expected = dnn.conv_backward_input(*here, input_shape=shape, **options, algorithm="direct")
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(*there, input_shape=shape, **options, algorithm=name)), expected, 9 * size
    )
    grad = np.where(np.isfinite(here[0]), here[0], 1.0)
    expected = dnn.conv_backward_weight(grad, here[0], weight_shape=weight, **options, algorithm="direct")
    actual = dnn.conv_backward_weight(
        cupy.asarray(grad.astype(dtype)), there[0], weight_shape=weight, **options, algorithm=name
    )
    assert_close(cupy.asnumpy(actual), expected, 144)


@pytest.mark.parametrize("by_row", [False, True], ids=["each_tap", "each_row"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", ["large", "two_thirty_twos", "dilated", "space", "row", "eight"])
def test_windows_and_weights_of_the_copy_engine(name, last, by_row, monkeypatch):
    from dnnarray._cuda.conv import grouped_tma as way

    shared = way.shared_columns
    monkeypatch.setattr(way, "shared_columns", shared if by_row else lambda g: None)
    monkeypatch.setattr(way, "_STAGE", 1.0)  # then columns that can share a box do
    batch, *rest = _OF_8_TO_32[name]
    (x, w, bias, residual), options = _drawn(
        (batch + 1 + 2 * last + by_row, *rest), BFLOAT16, "grouped_tma_sm90"
    )  # not remembered
    exact = [a.astype(np.float64) for a in (x, w, bias, residual)]
    tx, tw, tr = _there(x, True), _there(w, last), _there(residual, True)
    fused = {"residual": tr, "activation": "relu"}
    expected = dnn.conv(*exact[:3], residual=exact[3], activation="relu", **_wide(options))
    assert_close(
        cupy.asnumpy(dnn.conv(tx, tw, cupy.asarray(bias), **fused, **options)), expected, math.prod(w.shape[1:])
    )
    expected = dnn.conv_backward_input(exact[3], exact[1], input_shape=x.shape, **_wide(options))
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(tr, tw, input_shape=x.shape, **options)), expected, w.size // w.shape[1]
    )


@pytest.mark.parametrize("name", ["eight", "pointwise", "halo", "row"])
def test_weight_gradients_of_groups_of_eight_by_the_copy_engine(name):
    problem = {
        "eight": _PROBLEMS["eight"],
        "pointwise": (2, (9, 9), 8, 8, 8, (1, 1), {}),
        "halo": (3, (9, 14), 24, 8, 8, (3, 3), {"padding": 1}),
        "row": (2, (133,), 8, 8, 8, (5,), {"padding": 2, "dilation": 3}),
    }[name]
    (x, w, _, grad), options = _drawn(problem, BFLOAT16, "grouped_tma_sm90")
    expected = dnn.conv_backward_weight(
        grad.astype(np.float64), x.astype(np.float64), weight_shape=w.shape, **_wide(options)
    )
    actual = dnn.conv_backward_weight(_there(grad, True), _there(x, True), weight_shape=w.shape, **options)
    assert_close(cupy.asnumpy(actual), expected, grad.size // grad.shape[1])
