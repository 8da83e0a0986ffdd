"""Sums of millions of terms in float32, in every operation that has one, by every algorithm and in both memory orders,
against float64.

A sum of one term after the other loses digits in proportion to its length: 2**25 ones give 2**24. Here no error may
exceed that of a pairwise sum whose leaves are 16 terms: (16 + log2(terms)) / 2 ulp of the sum of the magnitudes of the
terms. Terms are of one sign, so that this sum is the result itself; where they are not, `condition` says how much
larger the terms are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import tree_map
from tests.long_sums import FIRST, LAST, images, ones, parameters, rows, sequences, windows
from tests.support import call_by, candidates, flat

_ROWS = [*images.ROWS, *windows.ROWS, *rows.ROWS, *parameters.ROWS, *sequences.ROWS]


def _lying(tree: Any, order: str) -> Any:
    """Arrays with channels on axis 1 in memory of this order."""

    def one(a: np.ndarray) -> np.ndarray:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) if order == LAST and a.ndim > 2 else a

    return tree_map(one, tree)


def allowed(terms: int) -> float:
    """Relative to the sum of the magnitudes."""
    return (16 + math.log2(terms)) * 2.0**-24


def _assert_close(found: np.ndarray, exact: Any, terms: int, condition: float, note: str) -> None:
    assert found.shape == np.shape(exact), f"{note}: shape {found.shape}"
    error, size = float(np.abs(found - exact).max()), float(np.abs(exact).max())
    note = f"{note}: error {error:.2e} of {terms} terms that make {size:.2e}"
    assert error <= allowed(terms) * condition * size, note


@pytest.mark.parametrize("row", _ROWS, ids=str)
def test_long_sums_round_no_worse_than_pairwise(row):
    arrays = row.arrays()
    exact = row.exact(*arrays)
    for order in row.orders:
        given = tuple(_lying(a, order) for a in arrays)
        for name in candidates(row.op, given, row.options):
            results = flat(call_by(name, row.op, given, row.options))
            for i, (found, right) in enumerate(zip(results, exact, strict=False)):
                if right is not None:
                    _assert_close(found, right, row.terms, row.condition, f"{row} by {name}, {order}, result {i}")


@pytest.mark.parametrize("last", [False, True], ids=[FIRST, LAST])
def test_as_many_terms_as_fill_half_a_gigabyte(last):
    """2**27 of them: the mean of equal numbers is the number."""
    x = np.full((1, 8192, 8192, 2) if last else (1, 2, 8192, 8192), 0.1, np.float32)
    x = x.transpose(0, 3, 1, 2) if last else x
    np.testing.assert_allclose(dnn.adaptive_avg_pool(x, 1), np.float32(0.1), rtol=allowed(1 << 26))
    np.testing.assert_allclose(
        dnn.bias_activation_backward(x, x, ones(2), activation="relu", needs=("bias",)).bias,
        np.float64(x[0, 0, 0, 0]) * (1 << 26),
        rtol=allowed(1 << 26),
    )


def test_rows_of_ones_are_counted_exactly():
    x = ones(1, 8192, 4096, 2).transpose(0, 3, 1, 2)
    assert (dnn.adaptive_avg_pool(x, 1) == 1).all()
