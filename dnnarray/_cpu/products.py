"""Matrix products on the engine's own threads, and in float32 with long sums that are added up in parts: rounding grows
with the terms that are added one after the other.

`spread` cuts large products itself, and leaves them not to the threads of the BLAS: those spin on for a while after a
product, and whatever is then spread over the same cores waits for them (a call of 0.3 ms took 7, for a tenth of a
second). The engine holds the BLAS at one thread."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from dnnarray._cpu import blas, threads
from dnnarray._cpu.sums import of_rows
from dnnarray._cpu.sums import total as sum_of

_CHAIN = (
    200  # terms in a row, at most, of what asks for no other number; OpenBLAS by itself takes 320, or 448 with AVX-512
)
_WORTH = 1 << 20  # multiply-adds, below which a second call costs more
_WORTH_AT_ONCE = 1 << 14  # the same where all parts are one call
_FEW = 1 << 18  # numbers of all parts of a product, which are made at once
_SHARE = 1 << 22  # that a thread gets at the least: what wakes it is dear
LONG, _LONG_BY_VECTOR = 1 << 14, 1 << 12  # terms from which on the sums of parts are added up in float64
_FEW_ROWS = 64  # that a product of a vector adds one after the other
_HELD = 1 << 22  # of these sums, at a time

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], object]  # of matrices a and b, written to a third


def parts_of(terms: int, most: int = _CHAIN) -> int:
    """The fewest parts that have `most` terms at the most."""
    return max(-(-terms // most), 1)


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray, most: int = _CHAIN, add: bool = False) -> np.ndarray:
    """``np.matmul(a, b, out=out)``, or added to what is there, rounded less; of matrices of other types or memory as
    NumPy does it."""
    terms = a.shape[-1]
    if terms >= 2 * _long(out) and out.dtype in (np.float32, np.float64) and a.ndim == 2:
        return _multiply_long(a, b, out, most, add)
    parts = parts_of(terms, min(most, _CHAIN) if 1 in out.shape[-2:] else most)
    at_once = not add and out.size * parts <= _FEW
    if terms < _LONG_BY_VECTOR and out.size * terms < (_WORTH_AT_ONCE if at_once else _WORTH):
        parts = 1
    if parts > 1:
        a, b = blas.taken(a), blas.taken(b)
        parts = parts if blas.can_add(a, b, out) else 1
    if add and parts == 1:
        out += a @ b
        return out
    if parts > 1 and at_once:
        return _multiply_at_once(a, b, out, parts)
    edges = [terms * i // parts for i in range(parts + 1)]
    if not add:
        np.matmul(a[..., : edges[1]], b[..., : edges[1], :], out=out)
    for start, stop in pairwise(edges if add else edges[1:]):
        blas.add_product(a[:, start:stop], b[start:stop], out)
    return out


def whole(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """`multiply` whose sums are in parts only where they are long."""
    return multiply(a, b, out, LONG)


def _long(out: np.ndarray) -> int:
    """The terms of a part of a long sum. Products with a vector add more of them one after the other."""
    return _LONG_BY_VECTOR if 1 in out.shape[-2:] else LONG


def _multiply_long(a: np.ndarray, b: np.ndarray, out: np.ndarray, most: int, add: bool) -> np.ndarray:
    """`multiply` of long sums, whose error would grow with the number of parts that are added up in the dtype."""
    terms, length, step = a.shape[1], _long(out), max(_HELD // max(out.shape[1], 1), 1)
    for first in range(0, len(a), step):
        rows = slice(first, first + step)
        part = np.empty_like(out[rows])
        total = out[rows].astype(np.float64) if add else np.zeros(part.shape)
        for start in range(0, terms, length):
            span = slice(start, start + length)
            total += multiply(a[rows, span], b[span], part, most)
        out[rows] = total
    return out


def weighted_rows(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """``weights @ rows`` of a vector and a matrix, in float64 from sums of a few rows."""
    whole = len(rows) // _FEW_ROWS * _FEW_ROWS
    parts = np.matmul(weights[:whole].reshape(-1, 1, _FEW_ROWS), rows[:whole].reshape(-1, _FEW_ROWS, rows.shape[1]))
    return np.add.reduce(parts[:, 0], axis=0, dtype=np.float64) + np.matmul(weights[whole:], rows[whole:])


def _multiply_at_once(a: np.ndarray, b: np.ndarray, out: np.ndarray, parts: int) -> np.ndarray:
    """The product with its sums in parts, where a call for each part would take longer than the part."""
    (rows, terms), columns = a.shape, b.shape[1]
    (down, along), (of_b, across) = a.strides, b.strides
    length, view = terms // parts, np.lib.stride_tricks.as_strided
    left = view(a, (parts, rows, length), (length * along, down, along), writeable=False)
    right = view(b, (parts, length, columns), (length * of_b, of_b, across), writeable=False)
    of_rows(np.matmul(left, right), out)
    if length * parts < terms:
        blas.add_product(a[:, length * parts :], b[length * parts :], out)
    return out


def spread(a: np.ndarray, b: np.ndarray, out: np.ndarray, product: Product = multiply) -> np.ndarray:
    """``product(a, b, out)`` of two matrices, in parts along the longer side of the result."""
    work = out.size * a.shape[-1]
    if work < 2 * _SHARE:
        product(a, b, out)
        return out
    parts, (rows, columns) = min(threads.count(), max(work // _SHARE, 1)), out.shape
    spans = [slice(*span) for span in threads.split(max(rows, columns), parts)]
    if rows >= columns:
        items = [(a[span], b, out[span]) for span in spans]
    else:
        items = [(a, b[:, span], out[:, span]) for span in spans]
    threads.each(product, items, work=work)
    return out


def multiply_stack(a: np.ndarray, b: np.ndarray, out: np.ndarray, most: int) -> None:
    """``np.matmul(a, b, out=out)`` of stacks of matrices, rounded less."""
    if out.dtype != np.float32 or a.shape[-1] <= min(most, _long(out)):
        np.matmul(a, b, out=out)
        return
    stack = out.shape[:-2]
    a, b = (np.broadcast_to(m, (*stack, *m.shape[-2:])) for m in (a, b))
    if out.strides[-1] != out.itemsize:  # its columns are dense: the BLAS adds to rows
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    for i in np.ndindex(*stack):
        multiply(a[i], b[i], out[i], most)


def multiply_pixels(a: np.ndarray, b: np.ndarray, out: np.ndarray, most: int) -> None:
    """`multiply_stack` whose terms are the pixels of an image.

    Where a result is a single row or column, as in a depthwise convolution, the BLAS adds all pixels one after the
    other, and the error grows with their number. Such products are sums of products of a few pixels."""
    terms = a.shape[-1]
    if out.dtype != np.float32 or 1 not in out.shape[-2:] or terms < 2 * _FEW_ROWS:
        multiply_stack(a, b, out, most)
        return
    whole = terms // _FEW_ROWS * _FEW_ROWS
    left = a[..., :whole].reshape(*a.shape[:-1], -1, _FEW_ROWS).swapaxes(-3, -2)
    right = b[..., :whole, :].reshape(*b.shape[:-2], -1, _FEW_ROWS, b.shape[-1])
    parts = np.matmul(left, right)
    out[...] = sum_of(parts, (parts.ndim - 3,))[..., 0, :, :]
    if whole < terms:
        out += np.matmul(a[..., whole:], b[..., whole:, :])
