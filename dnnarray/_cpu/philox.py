"""Random numbers by index: Philox4x32-10, on NumPy arrays.

J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

A seed of 64 bits names a stream of 32-bit numbers. Number i is word i % 4 of the block whose counter is (low, high, 0,
0), low and high being the halves of i // 4, under the key (low, high) of the seed's halves. Element e (flat index in C
order) of an array takes number offset + e, and is kept with probability 1 - p where the number is at least floor(p
2^32): p = 0 keeps all, p = 1 none. So a part of an array that starts at element e, with offset + e as its own offset,
gets the same numbers as in the whole, on any engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key between two rounds
ROUNDS = 10
# Constants are arrays without axes: NumPy takes them faster than its own scalars, which is what small calls spend their
# time on.
_FIRST, _SECOND = (np.array(m, np.uint64) for m in MULTIPLIERS)
_WORD = np.array(0xFFFFFFFF, np.uint64)
_HALF = np.array(32, np.uint64)
_COUNTERS = 8192  # in a block of work: the intermediate arrays stay in the cache


def philox(counter: tuple[np.ndarray, ...], key: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """The four output words of each counter; words are held in uint64, so that a product of two keeps its high half."""
    a, b, c, d = (word.copy() for word in counter)
    first, second = np.empty_like(a), np.empty_like(a)
    for k, m in _schedule(key):
        np.multiply(a, _FIRST, out=first)
        np.multiply(c, _SECOND, out=second)
        np.right_shift(second, _HALF, out=a)
        np.bitwise_xor(a, b, out=a)
        np.bitwise_xor(a, k, out=a)
        np.right_shift(first, _HALF, out=c)
        np.bitwise_xor(c, d, out=c)
        np.bitwise_xor(c, m, out=c)
        b, second = np.bitwise_and(second, _WORD, out=second), b
        d, first = np.bitwise_and(first, _WORD, out=first), d
    return a, b, c, d


@lru_cache(maxsize=64)
def _schedule(key: tuple[int, int]) -> tuple[tuple[np.ndarray, ...], ...]:
    """The two words of the key of each round."""
    words = [[(k + r * w) & 0xFFFFFFFF for k, w in zip(key, WEYL, strict=True)] for r in range(ROUNDS)]
    return tuple(tuple(np.array(word, np.uint64) for word in pair) for pair in words)


def numbers(seed: int, start: int, count: int) -> np.ndarray:
    """Numbers `start` to ``start + count - 1`` of the stream of `seed`, as uint32."""
    return _stream(
        seed, start, count, np.dtype(np.uint32), lambda words, out: np.copyto(out, words, casting="same_kind")
    )


def bernoulli_keep(seed: int, start: int, count: int, p: float) -> np.ndarray:
    """For `count` elements from element `start` of the stream: True with probability 1 - p."""
    threshold = keep_threshold(p)
    return _stream(
        seed, start, count, np.dtype(np.bool_), lambda words, out: np.greater_equal(words, threshold, out=out)
    )


def keep_mask(seed: int, indices: np.ndarray, p: float) -> np.ndarray:
    """`bernoulli_keep` for elements in any order: `indices` holds their places in the stream, any integer dtype, 0 or
    more."""
    flat = indices.reshape(-1)
    result = np.empty(flat.size, np.bool_)
    threshold = keep_threshold(p)
    for i in range(0, flat.size, _COUNTERS):
        part = flat[i : i + _COUNTERS].astype(np.uint64)
        words = _block(part >> np.uint64(2), seed)
        chosen = np.choose((part & np.uint64(3)).astype(np.intp), words)
        np.greater_equal(chosen, threshold, out=result[i : i + _COUNTERS])
    return result.reshape(indices.shape)


def keep_rows(seed: int, starts: np.ndarray, count: int, p: float) -> np.ndarray:
    """`bernoulli_keep` for many rows: `count` elements from each of `starts` (uint64), along a new last axis.

    Each block of four numbers is computed once a row, where `keep_mask` computes it for each of its numbers.
    """
    skip = (starts & np.uint64(3)).astype(np.intp)
    first = int(skip.max(initial=0))
    blocks = -(-(first + count) // 4)
    words = _block((starts >> np.uint64(2))[..., None] + np.arange(blocks, dtype=np.uint64), seed)
    kept = np.empty((*words[0].shape, 4), np.bool_)
    threshold = keep_threshold(p)
    for n, word in enumerate(words):
        np.greater_equal(word, threshold, out=kept[..., n])
    kept = kept.reshape(*starts.shape, blocks * 4)
    if (skip == first).all():
        return kept[..., first : first + count]
    return np.take_along_axis(kept, skip[..., None] + np.arange(count), axis=-1)


def _stream(
    seed: int, start: int, count: int, dtype: np.dtype, convert: Callable[[np.ndarray, np.ndarray], Any]
) -> np.ndarray:
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


def keep_threshold(p: float) -> np.uint64:
    """The least number whose element is kept."""
    return np.uint64(math.floor(p * 2**32))
