"""Shuffles and look-ups on a card beyond the shared cases: sizes, memory orders, element sizes, heavy rows, indices
that name nothing."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_SHUFFLES = [
    ("pixel_shuffle", {"factor": 2}, (2, 16, 7, 9)),
    ("pixel_shuffle", {"factor": 3}, (1, 36, 8, 8)),
    ("pixel_unshuffle", {"factor": 2}, (2, 8, 16, 32)),
    ("pixel_unshuffle", {"factor": 3}, (2, 3, 9, 15)),
    ("pixel_shuffle", {"factor": 4}, (1, 32, 6, 12)),
    ("pixel_unshuffle", {"factor": 4}, (1, 2, 8, 48)),
    ("channel_shuffle", {"groups": 4}, (2, 32, 8, 8)),
    ("channel_shuffle", {"groups": 3}, (2, 9, 5, 7)),
    ("pixel_shuffle", {"factor": 2}, (2, 128, 66, 96)),
    ("pixel_unshuffle", {"factor": 2}, (3, 16, 130, 192)),
]
_ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 3, 0, 2)]


@pytest.mark.parametrize("order", _ORDERS, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize(("op", "options", "shape"), _SHUFFLES)
def test_shuffles(op, options, shape, dtype, order):
    host = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
    there = cupy.ascontiguousarray(cupy.asarray(host).transpose(order)).transpose(np.argsort(order))
    expected = call(op, (host,), options)
    np.testing.assert_array_equal(cupy.asnumpy(call(op, (there,), options)), expected)
    if dtype.startswith("float"):
        back = call(f"{op}_backward", (cupy.asarray(expected), there), options)
        np.testing.assert_array_equal(cupy.asnumpy(back), host)


def test_a_shuffle_of_unaligned_memory():
    whole = cupy.arange(2 * 16 * 8 * 8 + 1, dtype=np.float16)
    x = whole[1:].reshape(2, 16, 8, 8)
    np.testing.assert_array_equal(cupy.asnumpy(dnn.pixel_shuffle(x, 2)), dnn.pixel_shuffle(cupy.asnumpy(x), 2))


@pytest.mark.heavy
def test_a_shuffle_of_more_than_two_to_the_31_elements():
    x = cupy.arange(4 * 32_768 * 16_400, dtype=np.int8).reshape(1, 4, 32_768, 16_400)
    y = dnn.pixel_shuffle(x, 2)
    assert all((y[0, 0, i::2, j::2] == x[0, 2 * i + j]).all() for i in range(2) for j in range(2))
    assert (dnn.pixel_unshuffle(y, 2) == x).all()


@pytest.mark.heavy
def test_a_gradient_of_more_than_two_to_the_31_elements():
    grad, indices = cupy.ones((2**21 + 5, 1031), np.float16), cupy.arange(2**21 + 5) % 3
    dw = dnn.embedding_backward(grad, indices, cupy.zeros((4, 1031), np.float16))
    assert cupy.asnumpy(dw[:, 7]).tolist() == [np.inf, np.inf, np.inf, 0]
    dw = dnn.embedding_backward(grad * np.float16(2**-7), indices, cupy.zeros((4, 1031), np.float16))
    np.testing.assert_array_equal(
        cupy.asnumpy(dw[:, 1030]), np.float16([699_053 / 128, 699_052 / 128, 699_052 / 128, 0])
    )


@pytest.mark.parametrize("length", [1, 3, 8, 64, 100, 768, 1031])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.float64], ids=lambda d: np.dtype(d).name)
def test_embedding_and_its_gradient(length, dtype):
    rng = np.random.default_rng(length)
    weight = rng.standard_normal((500, length)).astype(dtype)
    indices = np.minimum(rng.zipf(1.3, (40, 53)) - 1, 499)
    grad = rng.standard_normal((*indices.shape, length)).astype(dtype)
    w, i, g = cupy.asarray(weight), cupy.asarray(indices), cupy.asarray(grad)
    np.testing.assert_array_equal(cupy.asnumpy(dnn.embedding(i, w)), weight[indices])
    dw = dnn.embedding_backward(g, i, w, padding_index=3)
    expected = dnn.embedding_backward(grad.astype(np.float64), indices, weight.astype(np.float64), padding_index=3)
    assert_close(cupy.asnumpy(dw), expected, indices.size)
    assert all((dw == dnn.embedding_backward(g, i, w, padding_index=3)).all() for _ in range(3))


@pytest.mark.parametrize("rows", [1, 2, 70_001])
def test_a_gradient_of_few_and_of_many_rows(rows):
    rng = np.random.default_rng(0)
    indices, grad = rng.integers(0, rows, 5000), rng.standard_normal((5000, 24)).astype(np.float32)
    expected = dnn.embedding_backward(grad.astype(np.float64), indices, np.zeros((rows, 24)))
    dw = dnn.embedding_backward(cupy.asarray(grad), cupy.asarray(indices), cupy.zeros((rows, 24), np.float32))
    assert_close(cupy.asnumpy(dw), expected, 5000)


@pytest.mark.parametrize("kind", ["one row", "two rows", "few", "skewed", "borders"])
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_rows_that_many_entries_name(kind, dtype):
    rng = np.random.default_rng(0)
    count, rows = 70_013, 300
    indices = {
        "one row": np.full(count, 7),
        "two rows": rng.integers(0, 2, count) * 299,
        "few": rng.integers(0, 30, count),
        "skewed": np.minimum(rng.zipf(1.2, count) - 1, rows - 1),
        "borders": np.repeat(np.arange(rows), rng.choice([0, 1, 31, 32, 33, 64, 1000, 2047, 2048, 2049], rows))[:count],
    }[kind]
    rng.shuffle(indices)
    grad = rng.standard_normal((indices.size, 40)).astype(dtype)
    expected = dnn.embedding_backward(grad.astype(np.float64), indices, np.zeros((rows, 40)))
    arrays = cupy.asarray(grad), cupy.asarray(indices), cupy.zeros((rows, 40), dtype)
    dw = dnn.embedding_backward(*arrays)
    assert_close(cupy.asnumpy(dw), expected, indices.size)
    assert all((dw == dnn.embedding_backward(*arrays)).all() for _ in range(3))


@pytest.mark.parametrize("rows", [255, 256, 511, 512, 65_535, 65_536, 262_143, 262_144, 300_000])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_tables_with_keys_of_any_number_of_digits(rows, dtype):
    rng = np.random.default_rng(rows)
    indices = rng.integers(0, min(rows, np.iinfo(dtype).max), 9001).astype(dtype)
    grad = rng.integers(-9, 9, (9001, 2)).astype(np.float32)
    expected = dnn.embedding_backward(grad, indices, np.zeros((rows, 2), np.float32))
    dw = dnn.embedding_backward(cupy.asarray(grad), cupy.asarray(indices), cupy.zeros((rows, 2), np.float32))
    np.testing.assert_array_equal(cupy.asnumpy(dw), expected)


def test_gradients_in_unaligned_memory():
    rng = np.random.default_rng(0)
    indices, grad = rng.integers(0, 50, 3000), rng.integers(-9, 9, 3000 * 8 + 1).astype(np.float32)
    expected = dnn.embedding_backward(grad[1:].reshape(3000, 8), indices, np.zeros((50, 8), np.float32))
    dw = dnn.embedding_backward(
        cupy.asarray(grad)[1:].reshape(3000, 8), cupy.asarray(indices), cupy.zeros((50, 8), np.float32)
    )
    np.testing.assert_array_equal(cupy.asnumpy(dw), expected)


def test_a_table_in_fortran_order():
    rng = np.random.default_rng(0)
    indices, grad = rng.integers(0, 37, 300), rng.standard_normal((300, 8)).astype(np.float32)
    weight = cupy.asarray(rng.standard_normal((37, 8)).astype(np.float32), order="F")
    np.testing.assert_array_equal(
        cupy.asnumpy(dnn.embedding(cupy.asarray(indices), weight)), cupy.asnumpy(weight)[indices]
    )
    dw = dnn.embedding_backward(cupy.asarray(grad), cupy.asarray(indices), weight)
    assert_close(cupy.asnumpy(dw), dnn.embedding_backward(grad.astype(np.float64), indices, np.zeros((37, 8))), 300)


def test_an_index_that_names_no_row():
    weight, indices = cupy.ones((3, 4), np.float32), cupy.asarray([0, -1, 3, 2**40, 2])
    y = cupy.asnumpy(dnn.embedding(indices, weight))
    assert np.isnan(y).all(1).tolist() == [False, True, True, True, False]
    dw = dnn.embedding_backward(cupy.ones((5, 4), np.float32), indices, weight)
    assert cupy.asnumpy(dw)[:, 0].tolist() == [1, 0, 1]
    assert cupy.asnumpy(dnn.one_hot(indices, 3)).sum(1).tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("classes", [1, 2, 7, 1000])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_one_hot(classes, dtype):
    indices = np.random.default_rng(0).integers(0, min(classes, 100), (13, 11)).astype(dtype)
    np.testing.assert_array_equal(
        cupy.asnumpy(dnn.one_hot(cupy.asarray(indices), classes)), dnn.one_hot(indices, classes)
    )
