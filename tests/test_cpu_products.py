"""Products of matrices whose sums are added up in parts."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import blas
from dnnarray._cpu.products import multiply, multiply_stack, parts_of, spread


def _error(found, exact):
    return np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))


@pytest.mark.parametrize(("terms", "parts"), [(0, 1), (1, 1), (200, 1), (201, 2), (400, 2), (401, 3), (1024, 6)])
def test_parts(terms, parts):
    assert parts_of(terms) == parts


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(129, 1024, 67), (64, 1531, 256), (2000, 641, 1), (1, 8191, 300)]
)
def test_close_to_float64(rows, terms, columns, turned):
    rng = np.random.default_rng(1)
    a, b = (np.ascontiguousarray(rng.standard_normal(s).astype(np.float32)) for s in ((rows, terms), (terms, columns)))
    a, b = (np.asfortranarray(m) if t else m for m, t in zip((a, b), turned, strict=True))
    out = np.full((rows, columns + 3), np.nan, np.float32)
    into = out[:, :columns]  # rows apart from each other in memory
    assert multiply(a, b, into) is into
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert _error(into, exact) < 4e-7
    assert np.isnan(out[:, columns:]).all()


def test_rounds_less_than_one_sum():
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((256, 2048), (2048, 256)))
    if not blas.can_add(a, b, np.empty((256, 256), np.float32)):
        pytest.skip("the BLAS behind NumPy does not add products")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert _error(multiply(a, b, np.empty((256, 256), np.float32)), exact) < 2.8e-7


@pytest.mark.parametrize("rows", [4, 256])
def test_adds_to_what_is_there(rows):
    rng = np.random.default_rng(5)
    a, b, out = (rng.standard_normal(s).astype(np.float32) for s in ((rows, 2048), (2048, 256), (rows, 256)))
    exact = out + a.astype(np.float64) @ b
    assert multiply(a, b, out, add=True) is out
    assert _error(out, exact) < (2.8e-7 if rows == 256 and blas.can_add(a, b, out) else 5e-7)


def test_parts_of_a_number_of_terms():
    assert [parts_of(n, 64) for n in (64, 65, 256, 1000)] == [1, 2, 4, 16]


@pytest.mark.parametrize("columns_dense", [False, True])
def test_stacks_round_less(columns_dense):
    """One matrix for all of a stack, results by rows or by columns."""
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((67, 1024), (3, 2, 1024, 101)))
    out = (
        np.full((3, 2, 101, 67), np.nan, np.float32).swapaxes(-1, -2)
        if columns_dense
        else np.full((3, 2, 67, 101), np.nan, np.float32)
    )
    multiply_stack(a, b, out, 128)
    assert _error(out, a.astype(np.float64) @ b) < (
        2.2e-7 if blas.can_add(a, b[0, 0], np.empty((67, 101), np.float32)) else 4e-7
    )


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.int64], ids=lambda d: np.dtype(d).name)
def test_other_types_as_numpy_does_them(dtype):
    a, b = np.arange(2000 * 600).reshape(2000, 600).astype(dtype), np.ones((600, 3), dtype)
    assert (multiply(a, b, np.empty((2000, 3), dtype)) == a @ b).all()


def test_memory_that_the_blas_does_not_take():
    """Strides that no leading dimension says, a result in Fortran order, and no rows at all."""
    rng = np.random.default_rng(3)
    a, b = (
        rng.standard_normal((300, 1400)).astype(np.float32)[:, ::2],
        rng.standard_normal((700, 40)).astype(np.float32),
    )
    assert not blas.can_add(a, b, np.empty((300, 40), np.float32))
    np.testing.assert_allclose(
        multiply(a, b, np.empty((300, 40), np.float32)), a.astype(np.float64) @ b, rtol=2e-4, atol=1e-4
    )
    out = np.empty((300, 40), np.float32, order="F")
    np.testing.assert_allclose(
        multiply(np.ascontiguousarray(a), b, out), a.astype(np.float64) @ b, rtol=2e-4, atol=1e-4
    )
    assert multiply(a[:0], b, np.empty((0, 40), np.float32)).shape == (0, 40)


def test_nan_and_infinity():
    a, b = np.ones((64, 1024), np.float32), np.ones((1024, 64), np.float32)
    a[3, 1000], a[5, 2] = np.nan, np.inf
    found = multiply(a, b, np.empty((64, 64), np.float32))
    assert np.isnan(found[3]).all()
    assert np.isposinf(found[5]).all()
    assert (np.delete(found, (3, 5), 0) == 1024).all()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(701, 331, 96), (96, 331, 701), (1, 4000, 9001), (9001, 4000, 1), (3, 5, 2), (0, 7, 600)],
)
def test_spread_over_threads(rows, terms, columns, count):
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((rows, terms), (terms, columns)))
    exact = a.astype(np.float64) @ b
    with dnn.options(threads=count):
        for product in (multiply, np.matmul):
            out = np.full((rows, columns), np.nan, np.float32)
            assert spread(a, b, out, product) is out
            np.testing.assert_allclose(out, exact, rtol=0, atol=4e-6 * np.sqrt(terms))


def test_large_products_are_cut_for_the_threads_of_the_engine():
    seen = []

    def product(a, b, out):
        seen.append(out.shape)
        np.matmul(a, b, out=out)

    a, b, out = (np.ones(s, np.float32) for s in ((2048, 256), (256, 512), (2048, 512)))
    with dnn.options(threads=2):
        spread(a, b, out, product)
    assert (out == 256).all()
    assert seen == [(1024, 512)] * 2


def test_an_error_in_a_part_reaches_the_caller():
    a = np.ones((4096, 512), np.float32)

    def product(a, b, out):
        raise ArithmeticError("in a part")

    before = blas.threads()
    with dnn.options(threads=2), pytest.raises(ArithmeticError, match="in a part"):
        spread(a, a.T, np.empty((4096, 4096), np.float32), product)
    assert blas.threads() == before
