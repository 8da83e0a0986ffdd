"""Float32 convolution in parts of half types on a card: how exact it is, magnitudes far apart, NaN and infinities."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cuda.conv import parts as conv_parts
from dnnarray._problems.base import leaves

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_NAME, _CLASSES = "parts_sm90", ("parts_sm90", "parts_sm90_tf32", "parts_sm90_bf16")


def _skip_elsewhere():
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("it takes sm_90a")


def _operations(x, w, grad, options, name):
    """Forward and both gradients on the device, in float64 where `name` is None."""
    chosen = options | ({"algorithm": name} if name else {})
    there = [a.astype(np.float64) if name is None else cupy.asarray(a) for a in (x, w, grad)]
    x, w, grad = there
    results = (
        dnn.conv(x, w, **chosen),
        dnn.conv_backward_input(grad, w, input_shape=x.shape, **chosen),
        dnn.conv_backward_weight(grad, x, weight_shape=w.shape, **chosen),
    )
    return [cupy.asnumpy(r) for r in results]


def _drawn(batch, channels, outs, extent, window, rng):
    pad = window // 2
    x, w, grad = (
        rng.standard_normal(s).astype(np.float32)
        for s in ((batch, channels, extent, extent), (outs, channels, window, window), (batch, outs, extent, extent))
    )
    return x, w, grad, {"padding": pad}


def _rms(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


@pytest.mark.parametrize(
    "shape", [(4, 64, 64, 28, 3), (2, 256, 72, 14, 3), (3, 40, 130, 17, 1), (1, 128, 128, 23, 5)], ids=str
)
def test_as_exact_as_sequential_float32(shape):
    """The error is below that of the definition with one fused multiply-add after another; of short sums, what 22 bits
    and a sum's places leave."""
    _skip_elsewhere()
    x, w, grad, options = _drawn(*shape, np.random.default_rng(0))
    exact = _operations(x, w, grad, options, None)
    plain, parts = (_operations(x, w, grad, options, name) for name in ("direct", _NAME))
    for e, by_definition, found in zip(exact[:2], plain[:2], parts[:2], strict=True):
        assert _rms(found, e) <= max(_rms(by_definition, e), 1.5e-7 * _rms(e, 0))
    assert _rms(parts[2], exact[2]) <= 2e-7 * _rms(exact[2], 0)  # the definition adds up in a tree there


@pytest.mark.parametrize("power", [-140, -60, 0, 60, 118])
def test_any_magnitude(power):
    """Each array has its own power of two."""
    _skip_elsewhere()
    x, w, grad, options = _drawn(2, 24, 40, 11, 3, np.random.default_rng(1))
    usual = _operations(x, w, grad, options, _NAME)
    scaled = _operations(
        np.ldexp(x, power).astype(np.float32), w, np.ldexp(grad, -7).astype(np.float32), options, _NAME
    )
    expected = [np.ldexp(r.astype(np.float64), p) for r, p in zip(usual, (power, -7, power - 7), strict=True)]
    for found, e in zip(scaled, expected, strict=True):
        scale = np.abs(e).max()
        assert np.abs(found - e).max() <= max(2.0**-22 * scale, 2.0**-149 * 600)


def test_magnitudes_far_apart():
    """An image 2^-26 of its neighbour keeps all its digits."""
    _skip_elsewhere()
    x, w, _, options = _drawn(2, 64, 64, 13, 3, np.random.default_rng(2))
    x[1] = np.ldexp(x[1], -26)
    y = cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), algorithm=_NAME, **options))
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options)
    for found, e in zip(y, expected, strict=True):
        assert _rms(found, e) <= 1e-6 * _rms(e, 0)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("outlier", [1.0, 2.0**30, 2.0**-30, np.inf], ids=str)
def test_large_arrays_whose_scale_is_guessed(outlier, layout):
    """The guess holds; it is too low, since one number is much larger than the sample; the sample has the only large
    number; infinity."""
    _skip_elsewhere()
    rng, options = np.random.default_rng(5), {"padding": 1}
    x, w, grad, _ = _drawn(5, 72, 40, 57, 3, rng)
    assert x.size >= conv_parts._SAMPLED
    if layout == "channels_last":
        x, w, grad = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w, grad))
        options |= {"layout": layout}
    x.reshape(-1)[x.size // 2 + 3 if outlier > 1 else 0] = outlier if outlier > 1 else 1 / outlier
    for found, e in zip(_operations(x, w, grad, options, _NAME), _operations(x, w, grad, options, None), strict=True):
        usual = np.isfinite(e)
        assert np.array_equal(np.isfinite(found), usual)
        assert np.abs(found[usual] - e[usual]).max() <= 2e-6 * np.abs(e[usual]).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", _CLASSES[:2])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_nan_and_infinity(name, bad, layout):
    """They reach what the definition says, as what it says."""
    _skip_elsewhere()
    rng = np.random.default_rng(3)
    x, w, grad, options = _drawn(2, 16, 24, 9, 3, rng)
    x[1, 3, 4, 5], grad[0, 2, 7, 4] = bad, bad
    w = np.abs(w) + 0.5
    if layout == "channels_last":
        x, w, grad = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w, grad))
        options |= {"layout": layout}
    exact, found = (_operations(x, w, grad, options, n) for n in (None, name))
    for f, e in zip(found, exact, strict=True):
        assert np.array_equal(np.isnan(f), np.isnan(e))
        assert np.array_equal(np.isposinf(f), np.isposinf(e))
        assert np.array_equal(np.isneginf(f), np.isneginf(e))


@pytest.mark.parametrize("name", _CLASSES)
def test_the_same_bits_at_every_run(name):
    _skip_elsewhere()
    x, w, grad, options = _drawn(3, 72, 56, 12, 3, np.random.default_rng(4))
    first, second = (_operations(x, w, grad, options, name) for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(leaves(first), leaves(second), strict=True))
