"""Addresses and aligned memory for kernels that work on them; lines asked for ahead. Imports Numba."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnnarray._cpu.compiled.kernel import device

ALIGNMENT = 64  # bytes: a cache line, and the longest vector


def address(array: np.ndarray) -> int:
    """Where the first element of an array lies."""
    return array.__array_interface__["data"][0]


def aligned(rows: int, columns: int, dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose rows begin at cache lines; they may be a little longer than asked for."""
    line = ALIGNMENT // dtype.itemsize
    columns = -(-columns // line) * line
    memory = np.empty(rows * columns + line, dtype)
    first = -address(memory) % ALIGNMENT // dtype.itemsize
    return memory[first : first + rows * columns].reshape(rows, columns)


def behind(builder: ir.IRBuilder, address: Any, *steps: tuple[Any, Any]) -> Any:
    """In the IR: an address, and from there so many steps (count, bytes) on."""
    for count, step in steps:
        address = builder.add(address, builder.mul(count, step))
    return address


@cast(Any, intrinsic)
def fetch(typing: Any, address: Any) -> Any:
    """Have the cache line at an address brought near."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        pointer, integer = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], pointer), integer(0), integer(3), integer(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@device(counted=False)
def row_after(x: Any, row: Any, stop: Any) -> Any:
    """Where the next row of a matrix lies, for `fetch_run`; 0 where the rows to do end."""
    return x.ctypes.data + (row + 1) * x.shape[1] * x.itemsize if row + 1 < stop else 0


@device
def fetch_run(ahead: Any, first: Any, run: Any) -> Any:
    """Have as much of the row at `ahead` (0: none) brought near as there is in `run`, elements of another row from
    `first` on.

    A row that is worked on in several passes leaves memory idle in all but the first.
    """
    if ahead:
        for line in range(first * run.itemsize, (first + len(run)) * run.itemsize, ALIGNMENT):
            fetch(ahead + line)


@device(counted=False)
def fetch_after(x: Any, first: Any, count: Any, stop: Any) -> Any:
    """Have `count` elements of a flat array from `first` on brought near, but none from `stop` on."""
    fetch_run(x.ctypes.data, first, x[first : min(first + count, stop)])
