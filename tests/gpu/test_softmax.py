"""Softmax on a card: rows of every length, columns of every extent, special values, the same bits at every run."""

import numpy as np
import pytest

from tests.gpu.test_activation import check
from tests.support import BFLOAT16, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_DTYPES = pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name
)
_OPS = pytest.mark.parametrize("op", ["softmax", "log_softmax", "softmin"])


def _arrays(dtype, *shape):
    rng = np.random.default_rng(sum(shape))
    x, g = ((rng.standard_normal(shape) * s).astype(dtype) for s in (3, 1))
    return x, g


def _check(op, dtype, shape, axis, order=None):
    x, g = _arrays(dtype, *shape)
    n = shape[axis]
    check(op, (x,), {"axis": axis}, n, order)
    y = np.asarray(call(op, (x,), {"axis": axis}))
    check(f"{op}_backward", (g, x, None), {"axis": axis}, n, order)
    check(f"{op}_backward", (g, x, y), {"axis": axis}, n, order)


_EXTENTS = [
    1,
    2,
    3,
    7,
    8,
    16,
    31,
    32,
    63,
    64,
    100,
    128,
    255,
    256,
    257,
    384,
    500,
    512,
    768,
    1000,
    1001,
    1024,
    2048,
    2049,
    3000,
    4096,
]


@_OPS
@_DTYPES
@pytest.mark.parametrize("extent", _EXTENTS)
def test_rows(op, dtype, extent):
    # One row of a few elements may be all but saturated: its gradient is what is left of a difference, and nothing
    # beside it is larger.
    for rows in (1, 5, 67) if extent > 3 else (8, 67):
        _check(op, dtype, (rows, extent), -1)


@_OPS
@_DTYPES
@pytest.mark.parametrize("extent", [5000, 8192, 10_007, 16_384, 32_001, 50_257, 65_536, 128_256])
def test_long_rows(op, dtype, extent):
    _check(op, dtype, (3, extent), -1)


@_OPS
@_DTYPES
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 2), 0),
        ((4, 21, 33), 1),
        ((2, 5, 8), 1),
        ((1, 1000, 3), 1),
        ((2, 300, 256), 1),
        ((7, 1, 40), 1),
        ((513, 300), 0),
        ((2, 19, 16, 16), 1),
    ],
    ids=str,
)
def test_columns(op, dtype, shape, axis):
    _check(op, dtype, shape, axis)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    ("shape", "axis"), [((300, 20_011), -1), ((9, 262_144), -1), ((3, 32, 1000), 1), ((2, 1100, 264), 1)], ids=str
)
def test_the_same_bits_every_run_and_any_alignment(dtype, shape, axis):
    x, g = (cupy.asarray(a) for a in _arrays(dtype, *shape))
    y = call("softmax", (x,), {"axis": axis})
    first = call("softmax_backward", (g, x, y), {"axis": axis})
    assert cupy.asnumpy(call("softmax_backward", (g, x, y), {"axis": axis})).tobytes() == cupy.asnumpy(first).tobytes()
    assert cupy.asnumpy(call("softmax", (x,), {"axis": axis})).tobytes() == cupy.asnumpy(y).tobytes()
    shifted = cupy.empty(x.size + 1, x.dtype)[1:].reshape(shape)
    shifted[...] = x
    np.testing.assert_allclose(
        *(cupy.asnumpy(call("softmax", (a,), {"axis": axis})).astype(np.float64) for a in (shifted, x)), rtol=1e-2
    )


@_OPS
def test_memory_orders(op):
    for axis in range(3):
        for order in ((0, 2, 1), (1, 0, 2), (2, 0, 1)):
            _check(op, np.float32, (4, 12, 20), axis, order)


@_OPS
@pytest.mark.parametrize("shape", [(7, 9), (7, 300), (7, 50_000)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_special_values_as_on_the_host(op, shape, axis, dtype):
    x, g = _arrays(dtype, *shape)
    lines = x if axis == 1 else x.T[:7]
    lines[0, :] = -np.inf
    lines[1, 3] = -np.inf
    lines[2, 1:] = -np.inf
    lines[3, 2] = np.inf
    lines[4, 0] = np.nan
    lines[5, -1] = np.nan
    lines[6, :] = 1e4
    for which, arrays in ((op, (x,)), (f"{op}_backward", (g, x, None))):
        expected = np.asarray(call(which, arrays, {"axis": axis})).astype(np.float64)
        actual = cupy.asnumpy(
            call(which, tuple(None if a is None else cupy.asarray(a) for a in arrays), {"axis": axis})
        ).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))
        finite = np.isfinite(expected)
        np.testing.assert_allclose(
            actual[finite], expected[finite], rtol=1e-4 if dtype == np.float32 else 2e-2, atol=1e-5
        )
