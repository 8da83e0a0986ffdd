"""`split_gemm` of linear layers: their matrix products on the matrix unit. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import linear as numpy_linear
from dnnarray._cpu import products
from dnnarray._cpu.compiled.kernel import Driver, driver
from dnnarray._cpu.compiled.split_product import fits, multiply, multiply_images, pack_columns


def _product(scratch: np.ndarray) -> products.Product:
    """Products with this memory beside them, on the BLAS where the pieces cannot hold the numbers."""

    def product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        rows, columns = (m if fits(m) else np.ascontiguousarray(m) for m in (a, b.T))
        target = out if fits(out) else np.empty(out.shape, out.dtype)
        if not multiply(rows[None], columns, target[None], scratch):
            products.spread(a, b, out)
        elif target is not out:
            out[...] = target

    return product


def _driver(operation: Callable[..., None]) -> Driver:
    @driver(pack_columns, multiply_images)
    def run(problem: Any, outputs: Any, scratch: np.ndarray, *arrays: Any) -> None:
        operation(_product(scratch), problem, outputs, *arrays)

    return run


linear = _driver(numpy_linear.linear)
linear_backward = _driver(numpy_linear.linear_backward)
