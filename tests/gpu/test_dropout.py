"""Dropout on a card: the same elements as on the host, for every size, offset and memory order."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.gpu.test_activation import check, lying
from tests.support import BFLOAT16

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_DTYPES = pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name
)
_OFFSETS = [0, 1, 2, 3, 5, 2**34 + 3, 2**64 - 1]


@_DTYPES
@pytest.mark.parametrize("offset", _OFFSETS)
def test_the_same_elements_as_on_the_host(offset, dtype):
    for n in (1, 2, 3, 7, 8, 9, 1001, 4096):
        x = np.ones(n + 1, dtype)
        for start in (0, 1):
            for p in (0.0, 0.3, 0.5, 1.0):
                expected = dnn.dropout(x[start : start + n], p=p, seed=99, offset=offset)
                actual = dnn.dropout(cupy.asarray(x)[start : start + n], p=p, seed=99, offset=offset)
                np.testing.assert_array_equal(cupy.asnumpy(actual), expected)


@_DTYPES
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_elements_are_counted_in_c_order(order, dtype):
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 7)).astype(dtype)
    y = dnn.dropout(lying(cupy.asarray(x), order), p=0.4, seed=5, offset=3)
    np.testing.assert_array_equal(cupy.asnumpy(y), dnn.dropout(x, p=0.4, seed=5, offset=3))


@_DTYPES
@pytest.mark.parametrize("shape", [(1,), (5, 7), (300, 64), (33, 5, 24), (2, 3, 1001), (1000, 3)], ids=str)
def test_with_bias_and_residual(shape, dtype):
    rng = np.random.default_rng(1)
    x, r, g = (rng.standard_normal(shape).astype(dtype) for _ in range(3))
    b = rng.standard_normal(shape[-1]).astype(dtype)
    for order in (None, tuple(reversed(range(len(shape)))), (0, 2, 1) if len(shape) == 3 else None):
        for offset in (0, 6):
            options = {"p": 0.25, "seed": 2**63 + 1, "offset": offset}
            check("bias_dropout_add", (x, b, r), options, order=order)
            check("bias_dropout_add_backward", (g, x, b, r), options, x.size // shape[-1], order)


def test_a_residual_in_another_order():
    rng = np.random.default_rng(2)
    x, r, g = (cupy.asarray(rng.standard_normal((3, 4, 5)).astype(np.float32)) for _ in range(3))
    b = cupy.asarray(rng.standard_normal(5).astype(np.float32))
    expected = dnn.bias_dropout_add_backward(*map(cupy.asnumpy, (g, x, b, r)), p=0.5, seed=1)
    for arrays in ((g, lying(x, (1, 0, 2)), b, r), (g, x, b, lying(r, (2, 0, 1)))):
        for a, e in zip(dnn.bias_dropout_add_backward(*arrays, p=0.5, seed=1), expected, strict=True):
            np.testing.assert_allclose(cupy.asnumpy(a), e, rtol=1e-5, atol=1e-5)


@pytest.mark.heavy
def test_more_than_two_to_the_32_numbers():
    n = 2**32 + 24
    x = cupy.ones(n, np.float16)
    y = dnn.dropout(x, p=0.5, seed=7, offset=1)
    np.testing.assert_array_equal(
        cupy.asnumpy(y[-1000:]), dnn.dropout(np.ones(1000, np.float16), p=0.5, seed=7, offset=1 + n - 1000)
    )
