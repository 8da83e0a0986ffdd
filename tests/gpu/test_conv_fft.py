"""Convolution by Fourier transforms on a card: windows, tiles, chunks, memory orders, NaN, determinism, capture."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import assert_close
from tests.test_cuda_fft import CALLS

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Also small images in several tiles."""
    from dnnarray._cuda.conv import fft

    monkeypatch.setattr(fft, "_FACTORS", (2,))
    dnn._call.dispatch.forget()
    yield
    dnn._call.dispatch.forget()


def _in_memory(array, last):
    array = cupy.asarray(array)
    if not last:
        return array
    order = (0, *range(2, array.ndim), 1)
    return cupy.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def _forced(op, algorithm, *arrays, **options):
    if algorithm == "fft_tiled" and algorithm not in [a.name for a in dnn.algorithms(op, *arrays, **options)]:
        pytest.skip("the image is one tile")
    return getattr(dnn, op)(*arrays, algorithm=algorithm, **options)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("algorithm", ["fft", "fft_tiled"])
@pytest.mark.parametrize("name", CALLS)
def test_forward_and_gradients(name, algorithm, last):
    x_shape, w_shape, options = CALLS[name]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), algorithm="direct", **options)
    y = _forced("conv", algorithm, _in_memory(x, last), cupy.asarray(w), **options)
    taps = int(np.prod(w_shape[2:]))
    assert_close(cupy.asnumpy(y), expected, w_shape[1] * taps)
    grad = rng.standard_normal(expected.shape).astype(np.float32)
    wide, there = (grad.astype(np.float64), x.astype(np.float64), w.astype(np.float64)), _in_memory(grad, last)
    dx = _forced("conv_backward_input", algorithm, there, cupy.asarray(w), input_shape=x.shape, **options)
    exact = dnn.conv_backward_input(wide[0], wide[2], input_shape=x.shape, algorithm="direct", **options)
    assert_close(cupy.asnumpy(dx), exact, w_shape[0] // options.get("groups", 1) * taps)
    dw = _forced("conv_backward_weight", algorithm, there, _in_memory(x, last), weight_shape=w.shape, **options)
    exact = dnn.conv_backward_weight(wide[0], wide[1], weight_shape=w.shape, algorithm="direct", **options)
    assert_close(cupy.asnumpy(dw), exact, expected.size // expected.shape[1])


@pytest.mark.parametrize("algorithm", ["fft", "fft_tiled"])
def test_in_chunks(algorithm, monkeypatch):
    from dnnarray._cuda.conv import fft

    monkeypatch.setattr(fft, "_WEIGHT", 1)
    monkeypatch.setattr(fft, "_IMAGES", 1)
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((3, 4, 50, 52)).astype(np.float32), rng.standard_normal((6, 2, 7, 7)).astype(np.float32)
    options = {"groups": 2, "padding": 3, "algorithm": algorithm}
    wide = x.astype(np.float64), w.astype(np.float64)
    expected = dnn.conv(*wide, groups=2, padding=3)
    assert_close(cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), **options)), expected, 98)
    dw = dnn.conv_backward_weight(
        cupy.asarray(expected.astype(np.float32)), cupy.asarray(x), weight_shape=w.shape, **options
    )
    exact = dnn.conv_backward_weight(
        expected.astype(np.float32).astype(np.float64), wide[0], weight_shape=w.shape, groups=2, padding=3
    )
    assert_close(cupy.asnumpy(dw), exact, 3 * 50 * 52)


@pytest.mark.parametrize("algorithm", ["fft", "fft_tiled"])
def test_nan_and_infinity_stay_where_the_definition_puts_them(algorithm):
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((2, 3, 60, 60)).astype(np.float32), rng.standard_normal((4, 3, 7, 7)).astype(np.float32)
    x[0, 1, 0, 5], x[1, 2, 31, 33] = np.nan, np.inf
    expected = dnn.conv(x, w, algorithm="direct")
    y = cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), algorithm=algorithm))
    assert np.array_equal(np.isnan(y), np.isnan(expected))
    assert np.array_equal(np.isinf(y), np.isinf(expected))
    grad = np.ones_like(expected)
    dw = cupy.asnumpy(
        dnn.conv_backward_weight(cupy.asarray(grad), cupy.asarray(x), weight_shape=w.shape, algorithm=algorithm)
    )
    assert np.array_equal(
        np.isnan(dw), np.isnan(dnn.conv_backward_weight(grad, x, weight_shape=w.shape, algorithm="direct"))
    )


def test_epilogue_all_gradients_determinism_and_capture():
    rng = np.random.default_rng(3)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 64, 64), (8, 8, 9, 9), (8,)))
    options = {"padding": 4, "activation": "gelu"}
    there = [cupy.asarray(a) for a in (x, w, b)]
    expected = dnn.conv(*(a.astype(np.float64) for a in (x, w, b)), residual=x.astype(np.float64), **options)
    y = dnn.conv(*there, residual=there[0], algorithm="fft", **options)
    assert_close(cupy.asnumpy(y), expected, 648)
    grads = [dnn.conv_backward(there[0], *there, algorithm="fft_tiled", **options) for _ in range(2)]
    exact = dnn.conv_backward(*(a.astype(np.float64) for a in (x, x, w, b)), **options)
    for a, again, e in zip(*grads, exact, strict=True):
        assert_close(cupy.asnumpy(a), e, 2 * 64 * 64 * 81)
        assert cupy.array_equal(a, again)
    size = dnn.infer("conv", there[0], there[1], algorithm="fft", padding=4).workspace
    out, memory = cupy.empty_like(there[0]), cupy.empty(size, "uint8")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        dnn.conv(*there[:2], padding=4, algorithm="fft", out=out, workspace=memory)
        stream.begin_capture()
        dnn.conv(*there[:2], padding=4, algorithm="fft", out=out, workspace=memory)
        graph = stream.end_capture()
        out[...] = 0
        graph.launch(stream)
    stream.synchronize()
    assert_close(cupy.asnumpy(out), dnn.conv(x.astype(np.float64), w.astype(np.float64), padding=4), 648)
