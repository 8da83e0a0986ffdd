"""What softmax and the losses do with a row: its largest element, and the exponentials of the differences from it with
their sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.memory import fetch_run
from dnnarray._cpu.compiled.scalar import exp, fma, from_order_key, order_key

_RUN = 1024  # products whose sum is taken in the dtype; sums of sums, and of exponentials, are float64
_FETCHED = 256  # elements beside which the next row is brought near: so many lines at a time wait for no others


@device
def row_max(x: Any) -> Any:
    """The largest of x. A NaN may be passed over: the exponentials of the row are NaN then, and so is their sum."""
    peak = order_key(x[0])
    for i in range(len(x)):
        key = order_key(x[i])
        peak = key if key > peak else peak
    return from_order_key(peak)


@device
def row_min(x: Any) -> Any:
    """The smallest of x; of NaN as in `row_max`."""
    low = order_key(x[0])
    for i in range(len(x)):
        key = order_key(x[i])
        low = key if key < low else low
    return from_order_key(low)


@device(sums=True, counted=False)
def exponentials(x: Any, peak: Any, y: Any, ahead: Any) -> Any:
    """y = exp(x - peak); returns the sum. `ahead` is where the next row lies, as for all that follow here."""
    total = 0.0
    for first in range(0, len(x), _FETCHED):
        x_, y_ = x[first : first + _FETCHED], y[first : first + _FETCHED]
        fetch_run(ahead, first, x_)
        for i in range(len(y_)):
            e = exp(x_[i] - peak)
            y_[i] = e
            total += np.float64(e)
    return total


@device(sums=True, counted=False)
def falling_exponentials(x: Any, low: Any, y: Any, ahead: Any) -> Any:
    """y = exp(low - x); returns the sum."""
    total = 0.0
    for first in range(0, len(x), _FETCHED):
        x_, y_ = x[first : first + _FETCHED], y[first : first + _FETCHED]
        fetch_run(ahead, first, x_)
        for i in range(len(y_)):
            e = exp(low - x_[i])
            y_[i] = e
            total += np.float64(e)
    return total


@device(sums=True, counted=False)
def exponential_sum(x: Any, peak: Any, ahead: Any) -> Any:
    """The sum of exp(x - peak)."""
    total = 0.0
    for first in range(0, len(x), _FETCHED):
        x_ = x[first : first + _FETCHED]
        fetch_run(ahead, first, x_)
        for i in range(len(x_)):
            total += np.float64(exp(x_[i] - peak))
    return total


@device(sums=True, counted=False)
def dot(a: Any, b: Any) -> Any:
    """The sum of a b."""
    total = 0.0
    for first in range(0, len(a), _RUN):
        a_, b_ = a[first : first + _RUN], b[first : first + _RUN]
        part = a.dtype.type(0)
        for i in range(len(a_)):
            part += a_[i] * b_[i]
        total += part
    return total


@device
def scale(y: Any, factor: Any) -> Any:
    """y times a float64 number, in place: by its rounded value and what that lacks, or all of a row would be off by the
    same."""
    near = y.dtype.type(factor)
    rest = y.dtype.type(factor - np.float64(near))
    for i in range(len(y)):
        y[i] = fma(y[i], near, y[i] * rest)
