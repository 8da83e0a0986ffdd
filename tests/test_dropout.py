"""Dropout and its random numbers: known answers of Philox, slices, memory orders, statistics, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu import philox
from dnnarray._cpu.blocks import BLOCK
from tests.oracles.dropout import philox_block, philox_number
from tests.support import BFLOAT16

# Counter, key and result: the vectors for philox4x32 with 10 rounds in kat_vectors of Random123.
_KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), _KNOWN)
def test_known_answers_of_philox(counter, key, result):
    words = philox.philox(tuple(np.array([c], np.uint64) for c in counter), key)
    assert tuple(int(w[0]) for w in words) == result
    assert philox_block(counter, key) == result


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 + 2, 2**34 - 2, 2**64 - 5])
def test_numbers_are_the_words_of_the_stream(start):
    seed = 0xDEADBEEF12345678
    expected = [philox_number(seed, start + i) for i in range(11)]
    np.testing.assert_array_equal(philox.numbers(seed, start, 11), np.array(expected, np.uint32))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 70000), st.integers(0, 50), st.floats(0, 1))
def test_parts_of_the_stream_agree(seed, start, skip, count, p):
    whole = philox.numbers(seed, start, skip + count)
    np.testing.assert_array_equal(philox.numbers(seed, start + skip, count), whole[skip:])
    kept = philox.bernoulli_keep(seed, start + skip, count, p)
    np.testing.assert_array_equal(kept, whole[skip:] >= p * 2.0**32 // 1)
    places = np.arange(start + skip, start + skip + count)
    np.testing.assert_array_equal(philox.keep_mask(seed, places[::-1], p), kept[::-1])


def test_keep_mask_takes_a_grid_of_any_size():
    places = np.add.outer(1000 * np.arange(200, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    whole = philox.bernoulli_keep(3, 0, 200_000, 0.4)
    np.testing.assert_array_equal(philox.keep_mask(3, places, 0.4), whole[places])


def test_a_slice_with_its_own_offset_equals_the_slice_of_the_whole():
    x = np.random.default_rng(0).standard_normal(3 * BLOCK)
    whole = dnn.dropout(x, p=0.3, seed=9, offset=11)
    for first, last in ((0, 1), (1, 5), (6, 40), (BLOCK - 3, 2 * BLOCK + 2), (3 * BLOCK - 1, 3 * BLOCK)):
        np.testing.assert_array_equal(dnn.dropout(x[first:last], p=0.3, seed=9, offset=11 + first), whole[first:last])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_memory_order_and_dtype_do_not_change_the_mask(dtype):
    x = np.ones((3, 5, 60, 70), dtype)
    expected = dnn.dropout(np.ones(x.shape), p=0.25, seed=1) == 0
    for memory in (x, np.moveaxis(np.ones((3, 60, 70, 5), dtype), -1, 1), x[::-1, :, ::-1], np.asfortranarray(x)):
        y = dnn.dropout(memory, p=0.25, seed=1)
        np.testing.assert_array_equal(y == 0, expected)
        np.testing.assert_array_equal(y[y != 0], np.asarray(1 / 0.75, dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_of_dropped_elements_is_p(p):
    n = 1 << 18
    dropped = (dnn.dropout(np.ones(n, np.float32), p=p, seed=12345) == 0).sum()
    assert abs(dropped - n * p) < 5 * np.sqrt(n * p * (1 - p))


def test_seeds_and_offsets_matter():
    x = np.ones(256)
    results = [dnn.dropout(x, seed=s, offset=o) for s, o in ((0, 0), (1, 0), (2**32, 0), (0, 1), (0, 256))]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert 64 < (a != b).sum() < 192


def test_nan_and_infinity_as_in_pytorch():
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    np.testing.assert_array_equal(dnn.dropout(x, p=1.0, seed=0), [np.nan, np.nan, np.nan, 0])
    np.testing.assert_array_equal(dnn.dropout(x, p=0.0, seed=0), x)


def test_gradient_of_the_fused_form():
    x, bias, residual = np.ones((200, 301)), np.zeros(301), np.zeros((200, 301))
    grad = np.random.default_rng(1).standard_normal(x.shape)
    mask = dnn.dropout(x, p=0.4, seed=8, offset=3)
    gradients = dnn.bias_dropout_add_backward(grad, x, bias, residual, p=0.4, seed=8, offset=3)
    np.testing.assert_array_equal(gradients.x, grad * mask)
    np.testing.assert_allclose(gradients.bias, (grad * mask).sum(axis=0), rtol=1e-11)
    np.testing.assert_array_equal(gradients.residual, grad)


def test_arguments_are_checked():
    x = np.ones((2, 3))
    with pytest.raises(dnn.DTypeError, match="dropout: x is int64; expected float64, float32"):
        dnn.dropout(np.arange(3), seed=0)
    for bad in (-0.1, 1.5, np.nan, "half", True):
        with pytest.raises(dnn.OptionError, match=r"dropout: p is .*; expected a finite number from 0 to 1"):
            dnn.dropout(x, p=bad, seed=0)
    for bad in (-1, 2**64, 1.5, None, True):
        with pytest.raises(dnn.OptionError, match=r"dropout: seed is .*; expected an integer"):
            dnn.dropout(x, seed=bad)
        with pytest.raises(dnn.OptionError, match=r"dropout: offset is .*; expected an integer"):
            dnn.dropout(x, seed=0, offset=bad)
    with pytest.raises(TypeError, match="seed"):
        dnn.dropout(x)
    with pytest.raises(dnn.ShapeError, match=r"dropout_backward: grad is of shape \(3,\); expected \(2, 3\)"):
        dnn.dropout_backward(np.ones(3), x, seed=0)


def test_arguments_of_the_fused_form_are_checked():
    x, bias = np.ones((2, 3)), np.ones(3)
    with pytest.raises(dnn.ShapeError, match=r"bias_dropout_add: bias is of shape \(2,\); expected \(3,\)"):
        dnn.bias_dropout_add(x, np.ones(2), x, p=0.5, seed=0)
    with pytest.raises(dnn.ShapeError, match="bias_dropout_add: residual is of shape"):
        dnn.bias_dropout_add(x, bias, x[0], p=0.5, seed=0)
    with pytest.raises(dnn.DTypeError, match="bias_dropout_add: bias is float32; expected float64"):
        dnn.bias_dropout_add(x, bias.astype(np.float32), x, p=0.5, seed=0)
    with pytest.raises(dnn.ShapeError, match="bias_dropout_add: x is 0-dimensional"):
        dnn.bias_dropout_add(np.ones(()), bias, np.ones(()), p=0.5, seed=0)
    with pytest.raises(dnn.OptionError, match=r"bias_dropout_add: p is 2.0"):
        dnn.bias_dropout_add(x, bias, x, p=2, seed=0)
    with pytest.raises(dnn.ShapeError, match="bias_dropout_add_backward: grad"):
        dnn.bias_dropout_add_backward(x[0], x, bias, x, p=0.5, seed=0)
