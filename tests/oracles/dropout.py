"""Dropout, alone and fused, by definition, in float64; Philox on Python integers, a number at a time."""

import math

import numpy as np


def philox_block(counter, key):
    """The four words of Philox4x32-10 for a counter of four and a key of two words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def philox_number(seed, i):
    """Number i of the stream of a seed."""
    counter = (i // 4 % 2**32, i // 4 >> 32, 0, 0)
    return philox_block(counter, (seed % 2**32, seed >> 32))[i % 4]


def keep(shape, p, seed, offset=0):
    """1 where an element is kept, 0 where it is dropped."""
    numbers = [philox_number(seed, offset + e) for e in range(math.prod(shape))]
    return np.array([float(n >= math.floor(p * 2**32)) for n in numbers]).reshape(shape)


def dropout(x, p=0.5, seed=0, offset=0):
    return x * 0 if p == 1 else x * keep(x.shape, p, seed, offset) / (1 - p)


def bias_dropout_add(x, bias, residual, p, seed, offset=0):
    return dropout(x + bias, p, seed, offset) + residual


ORACLES = {"dropout": dropout, "bias_dropout_add": bias_dropout_add}
