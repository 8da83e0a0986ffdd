"""Unpooling on a card beyond the shared cases: places named twice, planes of several blocks, elements away from home,
what is no position."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from tests.gpu.pooling import ORDERS, drawn, in_order
from tests.support import BFLOAT16

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


def test_unpooling_takes_the_last_of_those_that_name_a_place():
    rng = np.random.default_rng(2)
    x, indices = drawn((3, 16, 11, 9)), rng.integers(0, 150, (3, 16, 11, 9))
    expected = dnn.max_unpool(x, indices, (10, 15))
    for order in ORDERS.values():
        y = dnn.max_unpool(in_order(x, order), in_order(indices, order), (10, 15))
        np.testing.assert_array_equal(cupy.asnumpy(y), expected)
    grad = drawn(expected.shape)
    dx = dnn.max_unpool_backward(cupy.asarray(grad), cupy.asarray(x), cupy.asarray(indices), (10, 15))
    np.testing.assert_array_equal(cupy.asnumpy(dx), dnn.max_unpool_backward(grad, x, indices, (10, 15)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("size", [(101, 96), (96, 103), (400, 400), (1, 7)])
def test_unpooling_into_planes_of_one_block_or_of_several(size, order, dtype):
    rng = np.random.default_rng(3)
    x, indices = drawn((2, 12, 23, 17), dtype), rng.integers(0, math.prod(size), (2, 12, 23, 17))
    there = in_order(x, ORDERS[order]), in_order(indices, ORDERS[order])
    expected = dnn.max_unpool(x, indices, size)
    y = dnn.max_unpool(*there, size)
    np.testing.assert_array_equal(cupy.asnumpy(y), expected)
    assert all(bool((dnn.max_unpool(*there, size) == y).all()) for _ in range(3))
    grad = drawn(expected.shape, dtype, 1)
    dx = dnn.max_unpool_backward(in_order(grad, ORDERS[order]), *there, size)
    np.testing.assert_array_equal(cupy.asnumpy(dx), dnn.max_unpool_backward(grad, x, indices, size))


@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [(2, 2, 0), (3, 3, 1), ((1, 4), (1, 4), 0), (3, 2, 1), (3, 2, 0), (3, 1, 1), (5, 3, 2)],
)
@pytest.mark.parametrize(("size", "ceil"), [((45, 37), False), ((45, 37), True), ((152, 136), False)])
def test_unpooling_of_what_was_pooled(size, ceil, window, stride, padding, dtype, order):
    whole = drawn((3, 21 if size[0] < 100 else 8, *size), np.float32)
    x, indices = dnn.max_pool_with_indices(whole, window, stride=stride, padding=padding, ceil_mode=ceil)
    x, far, near = x.astype(dtype), indices.copy(), indices.copy()
    far[1, 5, 0, 0], far[2, 3, -1, -1] = math.prod(size) - 1, 0  # out of the sight of the block that owns the place
    near[1, 5, :, 0] = np.maximum(near[1, 5, :, 0] - size[1], 0)  # a row up, which for some is another block's
    near[2, 2, :, -1] = np.minimum(near[2, 2, :, -1] + size[1], math.prod(size) - 1)
    for places in (indices, far, near):
        y = dnn.max_unpool(in_order(x, ORDERS[order]), in_order(places, ORDERS[order]), size)
        np.testing.assert_array_equal(cupy.asnumpy(y), dnn.max_unpool(x, places, size))


def test_unpooling_leaves_out_what_is_no_position():
    x, indices = cupy.ones((1, 1, 4), np.float32), cupy.asarray([[[-1, 2, 99, 2**40]]])
    assert cupy.asnumpy(dnn.max_unpool(x, indices, 5)).tolist() == [[[0, 0, 1, 0, 0]]]
    grad = cupy.full((1, 1, 5), 3, np.float32)
    assert cupy.asnumpy(dnn.max_unpool_backward(grad, x, indices, 5)).tolist() == [[[0, 3, 0, 0]]]
