"""Random numbers by index: Philox4x32-10, on NumPy arrays.

J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

A seed of 64 bits names a stream of 32-bit numbers. Number i is word i % 4 of the block whose counter is (low, high, 0, 0), low and
high being the halves of i // 4, under the key (low, high) of the seed's halves. Element e (flat index in C order) of an array takes
number offset + e, and is kept with probability 1 - p where the number is at least floor(p 2^32): p = 0 keeps all, p = 1 none. So
a part of an array that starts at element e, with offset + e as its own offset, gets the same numbers as in the whole, on any engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key between two rounds
_ROUNDS = 10
_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_COUNTERS = 8192  # in a block of work: the intermediate arrays stay in the cache


def philox(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """The four output words of each counter; words are held in uint64, so that a product of two keeps its high half."""
    a, b, c, d = (word.copy() for word in counter)
    first, second = np.empty_like(a), np.empty_like(a)
    k, m = key
    for _ in range(_ROUNDS):
        np.multiply(a, _MULTIPLIERS[0], out=first)
        np.multiply(c, _MULTIPLIERS[1], out=second)
        np.right_shift(second, _HALF, out=a)
        a ^= b
        a ^= np.uint64(k)
        np.right_shift(first, _HALF, out=c)
        c ^= d
        c ^= np.uint64(m)
        b, second = np.bitwise_and(second, _WORD, out=second), b
        d, first = np.bitwise_and(first, _WORD, out=first), d
        k, m = (k + _WEYL[0]) & 0xFFFFFFFF, (m + _WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def numbers(seed: int, start: int, count: int) -> np.ndarray:
    """Numbers `start` to ``start + count - 1`` of the stream of `seed`, as uint32."""
    return _stream(seed, start, count, np.dtype(np.uint32), lambda words, out: np.copyto(out, words, casting="same_kind"))


def bernoulli_keep(seed: int, start: int, count: int, p: float) -> np.ndarray:
    """For `count` elements from element `start` of the stream: True with probability 1 - p."""
    threshold = _threshold(p)
    return _stream(seed, start, count, np.dtype(np.bool_), lambda words, out: np.greater_equal(words, threshold, out=out))


def keep_mask(seed: int, indices: np.ndarray, p: float) -> np.ndarray:
    """`bernoulli_keep` for elements in any order: `indices` holds their places in the stream, any integer dtype, 0 or more."""
    flat = indices.reshape(-1)
    result = np.empty(flat.size, np.bool_)
    threshold = _threshold(p)
    for i in range(0, flat.size, _COUNTERS):
        part = flat[i : i + _COUNTERS].astype(np.uint64)
        words = _block(part >> np.uint64(2), seed)
        chosen = np.choose((part & np.uint64(3)).astype(np.intp), words)
        np.greater_equal(chosen, threshold, out=result[i : i + _COUNTERS])
    return result.reshape(indices.shape)


def _stream(seed: int, start: int, count: int, dtype: np.dtype, convert: Callable[[np.ndarray, np.ndarray], Any]) -> np.ndarray:
    """`count` numbers from number `start`, each turned into `dtype` by ``convert(words, out)``."""
    skip = start % 4
    blocks = -(-(skip + count) // 4)
    result = np.empty((blocks, 4), dtype)
    for i in range(0, blocks, _COUNTERS):
        rows = result[i : i + _COUNTERS]
        words = _block(np.arange(len(rows), dtype=np.uint64) + np.uint64(start // 4 + i), seed)
        for column, word in enumerate(words):
            convert(word, rows[:, column])
    return result.reshape(-1)[skip : skip + count]


def _block(counters: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """The four words of the blocks with these 64-bit counters."""
    zero = np.zeros_like(counters)
    return philox((counters & _WORD, counters >> _HALF, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))


def _threshold(p: float) -> np.uint64:
    return np.uint64(math.floor(p * 2**32))
