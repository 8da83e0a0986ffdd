"""What tests of pooling on a card share: arrays in any order of memory, and forward and gradient beside the CPU engine
in float64."""

import numpy as np
import pytest

from dnnarray._call.operation import find
from tests.support import as_float64, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

ORDERS = {
    "channels-first": (0, 1, 2, 3),
    "channels-last": (0, 2, 3, 1),
    "reversed": (3, 2, 1, 0),
    "mixed": (2, 0, 3, 1),
}


def in_order(array, order):
    there = cupy.ascontiguousarray(cupy.asarray(array).transpose(order))
    return there.transpose(np.argsort(order))


def drawn(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def leaves_of(tree):
    return tree if isinstance(tree, tuple) else (tree,)


def results(tree):
    return [cupy.asnumpy(a) for a in leaves_of(tree)]


def both_ways(op, x, options, order=(0, 1, 2, 3), reduction=64):
    """Forward and gradient agree with the CPU engine in float64."""
    there = in_order(x, order)
    wide = as_float64(x)
    actual, expected = call(op, (there,), options), call(op, (wide,), options)
    for a, e in zip(results(actual), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert_close(a, e, reduction, note=op)
    head = expected[0] if isinstance(expected, tuple) else expected
    grad = drawn(head.shape, x.dtype, 1)
    backward = f"{find(op).base}_backward"
    dx = call(backward, (in_order(grad, order), there), options)
    # The stride of an axis of extent 1 says nothing.
    assert [s for s, n in zip(dx.strides, dx.shape, strict=True) if n > 1] == [
        s for s, n in zip(there.strides, there.shape, strict=True) if n > 1
    ]
    assert_close(cupy.asnumpy(dx), call(backward, (as_float64(grad), wide), options), reduction, note=backward)
