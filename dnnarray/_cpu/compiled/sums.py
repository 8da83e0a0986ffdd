"""Sums over a row for kernels, so that long rows lose nothing: in float64, or by short runs in vectors of the dtype
whose sums are float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.memory import fetch_run

_RUN, _FETCHED = 1024, 256  # as in `rows`


@device(sums=True, counted=False)
def row_sum(x: Any) -> Any:
    """The sum of x: terms of both signs leave little of it, and every rounding would be large beside that."""
    total = 0.0
    for i in range(len(x)):
        total += np.float64(x[i])
    return total


@device(sums=True, counted=False)
def row_moments(x: Any, mean: Any, ahead: Any) -> Any:
    """The sums of x - mean and of its squares, which may leave the range of float32, while the row at `ahead` is
    brought near."""
    total, squares = 0.0, 0.0
    for first in range(0, len(x), _FETCHED):
        run = x[first : first + _FETCHED]
        fetch_run(ahead, first, run)
        for i in range(len(run)):
            d = np.float64(run[i]) - np.float64(mean)
            total += d
            squares += d * d
    return total, squares


@device(sums=True, counted=False)
def row_products(g: Any, x: Any, mean: Any, rstd: Any) -> Any:
    """The sums of g and of g u, with u = (x - mean) rstd."""
    total, along = 0.0, 0.0
    for first in range(0, len(x), _RUN):
        g_, x_ = g[first : first + _RUN], x[first : first + _RUN]
        part = x.dtype.type(0)
        product = x.dtype.type(0)
        for i in range(len(x_)):
            part += g_[i]
            product += g_[i] * ((x_[i] - mean) * rstd)
        total += part
        along += product
    return total, along


@device(sums=True, counted=False)
def weighted_products(g: Any, weight: Any, x: Any, mean: Any, rstd: Any) -> Any:
    """`row_products` of g times weight."""
    total, along = 0.0, 0.0
    for first in range(0, len(x), _RUN):
        g_, x_, w_ = g[first : first + _RUN], x[first : first + _RUN], weight[first : first + _RUN]
        part = x.dtype.type(0)
        product = x.dtype.type(0)
        for i in range(len(x_)):
            h = g_[i] * w_[i]
            part += h
            product += h * ((x_[i] - mean) * rstd)
        total += part
        along += product
    return total, along
