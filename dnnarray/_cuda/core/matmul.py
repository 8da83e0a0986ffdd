"""Matrix products by cuBLAS: a `MatMul` of a plan as a call that takes the pointers of one call."""

from __future__ import annotations

from ctypes import CDLL, c_int, c_longlong, c_void_p
from functools import lru_cache
from typing import Any

import numpy as np
from cupy.cuda.device import get_cublas_handle
from cupy_backends.cuda.libs import cublas

from dnnarray._cuda.core.plan import MatMul, Matrix
from dnnarray._errors import DeviceError
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

_TYPES = {FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, BFLOAT16: 14}  # cudaDataType_t
_NORMAL, _TRANSPOSED = 0, 1  # cublasOperation_t
_DEFAULT = -1  # cublasGemmAlgo_t: the library's own choice
# cublasComputeType_t: what the sums are kept in, and what float32 operands may be rounded to.
_FLOAT64 = 70
_FLOAT32 = {"highest": 68, "high": 77, "medium": 75}


class Product:
    """One planned product.

    cuBLAS counts by columns: a row-major matrix is to it the transposed one, so it is asked for ``c^T = b^T a^T``.
    """

    def __init__(self, plan: MatMul) -> None:
        compute = (
            _FLOAT64 if plan.dtype == FLOAT64 else _FLOAT32[plan.precision if plan.dtype == FLOAT32 else "highest"]
        )
        scale = np.float64 if plan.dtype == FLOAT64 else np.float32
        self._scales = np.array(
            [plan.alpha, plan.beta], scale
        )  # host memory that every call reads: kept as long as the plan
        first = self._scales.ctypes.data
        self._alpha, self._beta = first, first + self._scales.itemsize
        self._a, self._b, self._c = plan.a, plan.b, plan.c
        self._offsets = tuple(matrix.array.offset for matrix in (plan.a, plan.b, plan.c))
        self._shape = _operation(plan.b), _operation(plan.a), plan.n, plan.m, plan.k
        self._operand, self._result = _TYPES[plan.dtype], _TYPES[plan.result]
        self._tail = plan.batch, compute, _DEFAULT

    def __call__(self, stream: int, pointers: Any, extra: int) -> None:
        """Queue the product; CuPy sets its current stream, which is the caller's, for the library."""
        a, b, c = self._a, self._b, self._c
        a_offset, b_offset, c_offset = self._offsets
        arguments = (
            get_cublas_handle(), *self._shape, self._alpha,
            pointers[b.array.index] + b_offset, self._operand, b.row, b.batch,
            pointers[a.array.index] + a_offset, self._operand, a.row, a.batch,
            self._beta, pointers[c.array.index] + c_offset, self._result, c.row, c.batch, *self._tail,
        )  # fmt: skip
        try:
            cublas.gemmStridedBatchedEx(*arguments)
        except NotImplementedError:  # CuPy refuses cuBLAS while a graph is captured; the library itself does not mind
            _captured(arguments, stream)


# The argument types of cublasGemmStridedBatchedEx: handles and pointers, 64-bit strides, and int for everything else.
_SIGNATURE: Any = [
    c_void_p,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_void_p,
    c_void_p,
    c_int,
    c_int,
    c_longlong,
    c_void_p,
    c_int,
    c_int,
    c_longlong,
    c_void_p,
    c_void_p,
    c_int,
    c_int,
    c_longlong,
    c_int,
    c_int,
    c_int,
]


@lru_cache(maxsize=1)
def _library() -> Any:
    """The cuBLAS that CuPy has loaded."""
    library = CDLL(f"libcublas.so.{cublas.getVersion(get_cublas_handle()) // 10_000}")
    library.cublasGemmStridedBatchedEx.argtypes = _SIGNATURE
    library.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]
    return library


def _captured(arguments: tuple[Any, ...], stream: int) -> None:
    library = _library()
    status = library.cublasSetStream_v2(arguments[0], stream) or library.cublasGemmStridedBatchedEx(*arguments)
    if status:
        raise DeviceError(f"a matrix product could not be captured in the graph: cuBLAS gave status {status}.")


def _operation(matrix: Matrix) -> int:
    return _TRANSPOSED if matrix.transposed else _NORMAL
