"""Convolution on a card: every algorithm on every case, blocks of images, layouts, precision classes, determinism."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call import dispatch as _dispatch
from dnnarray._call.operation import find
from dnnarray._cuda.conv import ALGORITHMS, gemm, tma_tiling, wgrad
from dnnarray._problems.base import leaves
from tests.registry import CASES, ORACLES
from tests.support import BFLOAT16, as_float64, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_CASES = [
    c for c in CASES if find(c.op).base in ("conv", "conv_backward_input", "conv_backward_weight", "conv_transpose")
]
_NAMES = sorted({m.name for table in ALGORITHMS.values() for m in table} - {"gather"})
_EXACT = [n for n in _NAMES if not n.endswith(("_tf32", "_bf16"))]


def _there(arrays, last):
    def put(a):
        if a is None:
            return None
        there = cupy.asarray(a)
        if not last or a.ndim < 3:
            return there
        order = (0, *range(2, a.ndim), 1)
        return cupy.ascontiguousarray(there.transpose(order)).transpose(np.argsort(order))

    return tuple(map(put, arrays))


def _back(tree):
    return [cupy.asnumpy(a) for a in leaves(tree)]


@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("case", _CASES, ids=str)
def test_every_algorithm(case, dtype, name):
    """Forward and gradients, in both memories."""
    arrays = case.draw(np.dtype(dtype))
    oracle = leaves(ORACLES[find(case.op).base](*as_float64(arrays), **case.options))
    base, asked = f"{find(case.op).base}_backward", False
    for last in (False, True):
        there = _there(arrays, last)
        if _does(name, case.op, there, case.options):
            asked = True
            actual = _back(call(case.op, there, case.options | {"algorithm": name}))
            for a, e in zip(actual, oracle, strict=True):
                assert_close(a, np.asarray(e), case.reduction, case.condition, f"{case} last={last}")
        grad = np.random.default_rng(3).standard_normal(np.shape(oracle[0])).astype(dtype)
        given = (*_there((grad,), last), *there)
        if base in ALGORITHMS and _does(name, base, given, case.options):
            asked = True
            actual = _back(call(base, given, case.options | {"algorithm": name}))
            expected = leaves(call(base, (grad.astype(np.float64), *as_float64(arrays)), case.options))
            for a, e in zip(actual, expected, strict=True):
                assert_close(a, e, max(case.reduction, e.size), case.condition, f"{case} last={last}")
    if not asked:
        pytest.skip(f"{name} does not do it")


def _does(name, op, arrays, options):
    try:
        return name in [a.name for a in dnn.algorithms(op, *arrays, **options)]
    except dnn.UnsupportedError:
        return False


_SHAPES = {  # x, weight, options
    "3x3": ((5, 24, 19, 23), (40, 24, 3, 3), {"padding": 1}),
    "strided": ((4, 17, 31, 29), (33, 17, 3, 5), {"stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "pointwise": ((3, 72, 17, 13), (56, 72, 1, 1), {}),
    "groups": ((3, 48, 15, 14), (64, 12, 3, 3), {"groups": 4, "padding": 1, "dilation": 2}),
    "first-layer": ((3, 3, 45, 37), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    "groups-16": ((3, 64, 15, 14), (64, 16, 3, 3), {"groups": 4, "padding": 1, "dilation": 2}),
    "wide": ((2, 72, 13, 11), (328, 72, 3, 3), {"padding": 1}),
    "phases": ((4, 16, 31, 29), (32, 16, 3, 5), {"stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "holes": ((4, 24, 18, 17), (40, 24, 1, 2), {"stride": 2}),
    "1d": ((4, 32, 301), (48, 32, 5), {"padding": 2, "stride": 2}),
    "3d": ((2, 16, 9, 11, 10), (24, 16, 3, 3, 3), {"padding": 1}),
    "channels-129": ((2, 129, 9, 9), (131, 129, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("scratch", [None, 100_000], ids=["whole", "blocks"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("shape", _SHAPES)
def test_larger_shapes(shape, name, last, scratch, monkeypatch):
    if scratch:
        if name != "gemm":
            pytest.skip("only the products work in blocks")
        monkeypatch.setattr(gemm, "_SCRATCH", scratch)
    x_shape, w_shape, options = _SHAPES[shape]
    rng = np.random.default_rng(0)
    for dtype in (np.float32, BFLOAT16):
        x, w, b = (rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, w_shape[0]))
        wide = [a.astype(np.float64) for a in (x, w, b)]
        expected = dnn.conv(*wide, activation="gelu", **options)
        there = _there((x, w, b), last)
        try:
            y = dnn.conv(*there, activation="gelu", algorithm=name, **options)
        except (dnn.UnsupportedError, dnn.OptionError) as error:
            pytest.skip(str(error))
        assert_close(cupy.asnumpy(y), expected, math.prod(w_shape[1:]))
        if dtype is BFLOAT16:
            plain = dnn.conv(*there[:2], algorithm=name, **options)
            assert_close(cupy.asnumpy(plain), dnn.conv(*wide[:2], **options), math.prod(w_shape[1:]))
        grad = rng.standard_normal(expected.shape).astype(dtype)
        activation = {"activation": "relu"} if dtype is BFLOAT16 else {}
        expected = dnn.conv_backward(grad.astype(np.float64), *wide, **options, **activation)
        if name not in [m.name for m in ALGORITHMS["conv_backward"]]:
            continue
        there_grad = _there((grad,), last)[0]
        try:
            actual = dnn.conv_backward(there_grad, *there, algorithm=name, **options, **activation)
        except dnn.UnsupportedError as error:  # it takes the forward of a shape and not its gradients
            if not any(words in str(error) for words in ("its kernels do not take", "the gradient of the weight")):
                raise
            continue
        for a, e in zip(actual, expected, strict=True):
            assert_close(cupy.asnumpy(a), e, e.size)
        again = dnn.conv_backward(there_grad, *there, algorithm=name, **options, **activation)
        assert all((a == b).all() for a, b in zip(actual, again, strict=True)), "the same bits at every run"


_ONE_INPUT = [
    (2, 64, 64, 9, 1, 1, 1),
    (3, 128, 72, 17, 1, 1, 1),
    (2, 128, 192, 14, 0, 1, 1),
    (2, 64, 128, 15, 2, 2, 1),
    (4, 128, 128, 12, 1, 1, 2),
    (1, 192, 64, 57, 1, 1, 1),
    (1, 64, 8, 131, 1, 1, 1),
    (2, 96, 40, 33, 1, 1, 1),
]
_TILES = {f"{t.m}x{t.n}": t for t in wgrad._TILES}


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("batch", "channels", "outs", "extent", "padding", "dilation", "groups"), _ONE_INPUT)
@pytest.mark.parametrize("way", ["one input for all taps", *_TILES])
def test_weight_gradient_by_the_copy_engine(
    way, batch, channels, outs, extent, padding, dilation, groups, dtype, monkeypatch
):
    _wgrad_by(way, monkeypatch)
    options = {"padding": padding, "dilation": dilation, "groups": groups, "flip": extent % 2 == 0}
    _check_weight_gradient((batch, channels, extent, extent), (outs, channels // groups, 3, 3), options, dtype)


@pytest.mark.parametrize("way", ["one input for all taps", "256x192", "64x256"])
@pytest.mark.parametrize("stride", [1, (2, 1, 1)])
def test_weight_gradient_by_the_copy_engine_in_three_dimensions(way, stride, monkeypatch):
    _wgrad_by(way, monkeypatch)
    _check_weight_gradient((2, 72, 9, 14, 13), (72, 72, 3, 3, 3), {"padding": 1, "stride": stride}, BFLOAT16)


@pytest.mark.parametrize("way", ["one input for all taps", "128x128"])
@pytest.mark.parametrize("groups", [1, 2])
def test_infinities_of_an_image_meet_no_zeros_of_its_raster(way, groups, monkeypatch):
    """The taps that do not see an edge stay finite where infinities lie on it, and those that see one of NaN are
    NaN."""
    _wgrad_by(way, monkeypatch)
    rng = np.random.default_rng(0)
    x, grad = (rng.standard_normal((2, 128, 9, 11)).astype(BFLOAT16) for _ in range(2))
    x[0, 3, 4, 10], x[1, 70, 0, 5], x[1, 5, 8, 0], x[0, 127, 8, 10] = np.inf, -np.inf, np.inf, np.nan
    shape, options = (128, 128 // groups, 3, 3), {"padding": 1, "groups": groups}
    expected = dnn.conv_backward_weight(
        grad.astype(np.float64), x.astype(np.float64), weight_shape=shape, algorithm="direct", **options
    )
    assert not np.isfinite(expected).all()
    assert np.isfinite(expected).reshape(128, -1, 9)[:, 3].any()
    actual = dnn.conv_backward_weight(
        *_there((grad, x), True), weight_shape=shape, algorithm="implicit_tma_sm90", **options
    )
    assert_close(cupy.asnumpy(actual), expected, 2 * 99)


@pytest.mark.parametrize("way", _TILES)
@pytest.mark.parametrize("shape", ["pointwise", "strided", "1d", "wide", "channels-129"])
def test_weight_gradient_by_windows(way, shape, monkeypatch):
    _wgrad_by(way, monkeypatch)
    _check_weight_gradient(*_SHAPES[shape], BFLOAT16)


_THIN = {  # input, weight, options
    "7x7/2": ((3, 3, 45, 67), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "3x3": ((2, 1, 33, 40), (32, 1, 3, 3), {"padding": 1}),
    "5x5/2 cropped": ((2, 4, 31, 50), (96, 4, 5, 5), {"stride": 2, "padding": ((2, 0), (0, 3)), "flip": True}),
    "dilated": ((2, 2, 37, 41), (32, 2, 3, 5), {"dilation": (2, 3), "padding": (5, 1)}),
    "4x4/4": ((2, 3, 64, 65), (64, 3, 4, 4), {"stride": 4}),
}


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", _THIN)
def test_input_gradient_of_few_channels(shape, dtype):
    x_shape, w_shape, options = _THIN[shape]
    rng = np.random.default_rng(0)
    y_shape = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    grad, w = (rng.standard_normal(s).astype(dtype) for s in (y_shape, w_shape))
    expected = dnn.conv_backward_input(grad.astype(np.float64), w.astype(np.float64), input_shape=x_shape, **options)
    there = _there((grad, w), True)
    actual = dnn.conv_backward_input(*there, input_shape=x_shape, algorithm="implicit_gemm_sm90", **options)
    assert_close(cupy.asnumpy(actual), expected, w_shape[0] * math.prod(w_shape[2:]))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("shape", [*_THIN, "11x11/4", "wide"])
def test_convolution_of_few_channels(shape, fused, dtype):
    more = {
        "11x11/4": ((2, 3, 67, 67), (72, 3, 11, 11), {"stride": 4, "padding": 2}),
        "wide": ((1, 1, 9, 401), (136, 1, 2, 9), {"padding": 4}),
    }
    x_shape, w_shape, options = (_THIN | more)[shape]
    rng = np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, w_shape[0]))
    given, options = ((x, w, bias), options | {"activation": "gelu"}) if fused else ((x, w), options)
    expected = dnn.conv(*(a.astype(np.float64) for a in given), **options)
    actual = dnn.conv(*_there(given, True), algorithm="implicit_gemm_sm90", **options)
    assert_close(cupy.asnumpy(actual), expected, math.prod(w_shape[1:]))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", _THIN)
def test_weight_gradient_of_few_channels(shape, dtype):
    """The weight in the order of the images, and in C order."""
    x_shape, w_shape, options = _THIN[shape]
    grad, x, expected = _check_weight_gradient(x_shape, w_shape, options, dtype)
    actual = dnn.conv_backward(
        grad, x, cupy.zeros(w_shape, grad.dtype), algorithm="implicit_tma_sm90", **options
    ).weight
    assert_close(cupy.asnumpy(actual), expected, grad.size // w_shape[0])


def _wgrad_by(way, monkeypatch):
    if way in _TILES:
        monkeypatch.setattr(wgrad, "_TILES", (_TILES[way],))
    monkeypatch.setattr(wgrad, "wgrad_split", wgrad.tma_split if way in _TILES else wgrad.halo_split)
    _dispatch.forget()


def _check_weight_gradient(x_shape, w_shape, options, dtype):
    rng = np.random.default_rng(0)
    y_shape = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    grad, x = (rng.standard_normal(s).astype(dtype) for s in (y_shape, x_shape))
    options = options | {"weight_shape": w_shape}
    expected = dnn.conv_backward_weight(grad.astype(np.float64), x.astype(np.float64), **options)
    there = _there((grad, x), True)
    first, again = (dnn.conv_backward_weight(*there, algorithm="implicit_tma_sm90", **options) for _ in range(2))
    assert_close(cupy.asnumpy(first), expected, math.prod(y_shape) // y_shape[1])
    assert cupy.asnumpy(first).tobytes() == cupy.asnumpy(again).tobytes()
    return *there, expected


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("shape", ["3x3", "pointwise", "wide", "strided", "3d"])
def test_residual(shape, name, dtype):
    """Several tiles, the last ones beyond the ends, with everything that an epilogue can have."""
    x_shape, w_shape, options = _SHAPES[shape]
    rng = np.random.default_rng(0)
    y_shape = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    arrays = [rng.standard_normal(s).astype(dtype) for s in (x_shape, w_shape, w_shape[0], y_shape)]
    x, w, bias, residual = (a.astype(np.float64) for a in arrays)
    expected = dnn.conv(x, w, bias, residual=residual, activation="relu", **options)
    x, w, bias, residual = _there(arrays, True)
    try:
        y = dnn.conv(x, w, bias, residual=residual, activation="relu", algorithm=name, **options)
    except (dnn.UnsupportedError, dnn.OptionError) as error:
        pytest.skip(str(error))
    assert_close(cupy.asnumpy(y), expected, math.prod(w_shape[1:]))


# x, weight, options: several tiles, extents whose products 8, 4, 2 and 1 divide, panels of channels beyond the last one
_PANELS = {
    "56": ((3, 64, 56, 24), (72, 64, 3, 3), {"padding": 1}),
    "14": ((9, 128, 14, 14), (136, 128, 3, 3), {"padding": 1}),
    "6x9": ((7, 72, 8, 11), (264, 72, 3, 3), {}),
    "7": ((33, 64, 7, 7), (64, 64, 3, 3), {"padding": 1}),
    "pointwise": ((5, 64, 20, 10), (256, 64, 1, 1), {}),
    "strided": ((5, 64, 23, 24), (320, 64, 3, 3), {"padding": 1, "stride": 2}),
    "groups": ((3, 192, 11, 12), (192, 64, 3, 3), {"padding": 1, "groups": 3}),
    "3d": ((2, 64, 5, 6, 7), (64, 64, 3, 3, 3), {"padding": 1}),
    "5x5": ((2, 64, 21, 18), (64, 64, 5, 5), {"padding": 2}),
    "deep": ((3, 256, 9, 10), (320, 256, 3, 3), {"padding": 1}),
}


def _tiles_take(monkeypatch, seconds):
    """Tiles by windows and rasters take made-up times, by the stages for which a row is brought once: 1 for windows."""
    fastest = tma_tiling._fastest

    def made_up(g, units, rows, blocks, reach, taps, *fits):
        return seconds(taps), fastest(g, units, rows, blocks, reach, taps, *fits)[1]

    monkeypatch.setattr(tma_tiling, "_fastest", made_up)


_WAYS = [(way, t) for way in ("windows", "raster") for t in tma_tiling._TILES] + [("held", t) for t in tma_tiling._HELD]


@pytest.mark.parametrize(("way", "tile"), _WAYS, ids=lambda v: v if isinstance(v, str) else v.name)
@pytest.mark.parametrize("shape", _PANELS)
def test_ends_of_tiles(shape, way, tile, monkeypatch):
    """Results and residuals in panels, in both memories, by every tile; of shapes without a raster, by windows."""
    monkeypatch.setattr(tma_tiling, "_TILES", (tile,) if way != "held" else tma_tiling._TILES)
    _tiles_take(monkeypatch, lambda taps: math.inf if way == "held" else 1 / taps)
    if way == "windows":
        monkeypatch.setattr(tma_tiling, "raster", lambda g: None)
    if way == "raster":
        monkeypatch.setattr(tma_tiling, "_holding", lambda *_: None)
    if way == "held":
        monkeypatch.setattr(tma_tiling, "_HELD", (tile,))
    _dispatch.forget()
    x_shape, w_shape, options = _PANELS[shape]
    rng = np.random.default_rng(0)
    y_shape = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    x, w, b, residual = (rng.standard_normal(s).astype(BFLOAT16) for s in (x_shape, w_shape, w_shape[0], y_shape))
    wide, added = [a.astype(np.float64) for a in (x, w, b)], residual.astype(np.float64)
    plain = dnn.conv(*wide[:2], **options)
    shifted = plain + wide[2].reshape(-1, *[1] * (x.ndim - 2))
    gradient = dnn.conv_backward_input(added, wide[1], input_shape=x_shape, **options)
    options, terms = options | {"algorithm": "implicit_tma_sm90"}, math.prod(w_shape[1:])
    for last in (True, False):
        *given, more = _there((x, w, b, residual), last)
        assert_close(cupy.asnumpy(dnn.conv(*given[:2], **options)), plain, terms)
        assert_close(cupy.asnumpy(dnn.conv(*given, activation="relu", **options)), np.maximum(shifted, 0), terms)
        assert_close(
            cupy.asnumpy(dnn.conv(*given, residual=more, activation="relu", **options)),
            np.maximum(shifted + added, 0),
            terms,
        )
        back = dnn.conv_backward_input(more, given[1], input_shape=x_shape, **options)
        assert_close(cupy.asnumpy(back), gradient, w_shape[0] * math.prod(w_shape[2:]))


@pytest.mark.parametrize("tile", tma_tiling._TILES[:-1], ids=lambda t: t.name)
@pytest.mark.parametrize("channels", [128, 256])
def test_residuals_of_many_tiles(channels, tile, monkeypatch):
    """Residuals that come between the operands, of several tiles of each block, the last ones of fewer panels."""
    monkeypatch.setattr(tma_tiling, "_TILES", (tile,))
    monkeypatch.setattr(tma_tiling, "raster", lambda g: None)
    _check_residual((18, channels, 24, 41), tile.n + 64)


def test_residuals_of_planes():
    """Several tiles of each block, as many as hold a pixel: places behind the last one are in none."""
    _check_residual((3, 64, 9, 70, 70), 64)


@pytest.mark.parametrize("tile", tma_tiling._HELD, ids=lambda t: t.name)
@pytest.mark.parametrize("outs", [64, 136])
def test_residuals_by_turns(outs, tile, monkeypatch):
    """Several tiles of each warpgroup where the weight is held."""
    monkeypatch.setattr(tma_tiling, "_HELD", (tile,))
    _tiles_take(monkeypatch, lambda taps: math.inf)
    _check_residual((40, 64, 48, 49), outs)


def _check_residual(x_shape, outs):
    _dispatch.forget()
    n, channels, *space = x_shape
    rng = np.random.default_rng(0)
    w_shape, y_shape = (outs, channels, *[3] * len(space)), (n, outs, *space)
    x, w, b, residual = (rng.standard_normal(s).astype(BFLOAT16) for s in (x_shape, w_shape, outs, y_shape))
    expected = dnn.conv(
        *(a.astype(np.float32) for a in (x, w, b)), residual=residual.astype(np.float32), padding=1, activation="relu"
    )
    x, w, b, residual = _there((x, w, b, residual), True)
    for _ in range(3):
        y = dnn.conv(x, w, b, residual=residual, padding=1, activation="relu", algorithm="implicit_tma_sm90")
        assert_close(cupy.asnumpy(y), expected.astype(np.float64), math.prod(w_shape[1:]))


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", _EXACT)
@pytest.mark.parametrize("activation", [None, "relu"])
def test_transposed(name, activation, dtype):
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(dtype) for s in ((3, 40, 9, 11), (40, 24, 4, 4), 24))
    options = {"stride": 2, "padding": 1, "activation": activation}
    wide = [a.astype(np.float64) for a in (x, w, b)]
    there = _there((x, w, b), True)
    expected = dnn.conv_transpose(*wide, **options)
    try:
        y = dnn.conv_transpose(*there, algorithm=name, **options)
    except (dnn.UnsupportedError, dnn.OptionError) as error:
        pytest.skip(str(error))
    assert_close(cupy.asnumpy(y), expected, 40 * 16)
    grad = rng.standard_normal(expected.shape).astype(dtype)
    actual = dnn.conv_transpose_backward(_there((grad,), True)[0], *there, algorithm=name, **options)
    for a, e in zip(actual, dnn.conv_transpose_backward(grad.astype(np.float64), *wide, **options), strict=True):
        assert_close(cupy.asnumpy(a), e, e.size)


_ROUNDED = [("gemm_tf32", 2e-3), ("gemm_bf16", 2e-2), ("parts_sm90_tf32", 2e-3), ("parts_sm90_bf16", 2e-2)]


@pytest.mark.parametrize(("name", "eps"), _ROUNDED)
def test_rounded_operands(name, eps):
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal((4, 32, 14, 14)).astype(np.float32),
        rng.standard_normal((48, 32, 3, 3)).astype(np.float32),
    )
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), padding=1)
    y = cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), padding=1, algorithm=name))
    error = np.abs(y - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < eps
