"""Words of memory that several threads share, waiting, and calls of an address, for functions that Numba compiles.
Imports Numba."""

from __future__ import annotations

import os
import platform
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD = 8  # bytes
_LLVM_WORD, _ORDER = ir.IntType(64), "seq_cst"
_MACHINE = platform.machine().lower()
_X86, _ARM = _MACHINE in ("x86_64", "amd64"), _MACHINE in ("aarch64", "arm64")

# Python's own binary semaphores, which ask for no interpreter: (lock, whether to wait), and its counterpart.
acquire_lock = types.ExternalFunction("PyThread_acquire_lock", types.int32(types.intp, types.int32))
release_lock = types.ExternalFunction("PyThread_release_lock", types.void(types.intp))


def _pointer(builder: ir.IRBuilder, address: Any) -> Any:
    return builder.inttoptr(address, _LLVM_WORD.as_pointer())


@cast(Any, intrinsic)
def load(typing: Any, address: Any) -> Any:
    """The word at an address, as all threads agree on it."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(builder, arguments[0]), _ORDER, WORD)

    return types.int64(types.int64), generate


@cast(Any, intrinsic)
def store(typing: Any, address: Any, value: Any) -> Any:
    """Write the word at an address for all threads to see."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _pointer(builder, arguments[0]), _ORDER, WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@cast(Any, intrinsic)
def add(typing: Any, address: Any, value: Any) -> Any:
    """Add to the word at an address; gives what was there."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, arguments[0]), arguments[1], _ORDER)

    return types.int64(types.int64, types.int64), generate


@cast(Any, intrinsic)
def replace(typing: Any, address: Any, expected: Any, value: Any) -> Any:
    """Write the word at an address if it is what is expected; gives whether it was."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        address, expected, value = arguments
        return builder.extract_value(builder.cmpxchg(_pointer(builder, address), expected, value, _ORDER, _ORDER), 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@cast(Any, intrinsic)
def relax(typing: Any) -> Any:
    """Let a waiting core rest for some cycles."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        if _X86:
            kind = ir.FunctionType(ir.VoidType(), ())
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), ())
        elif _ARM:
            kind = ir.FunctionType(ir.VoidType(), (ir.IntType(32),))
            builder.call(
                cgutils.get_or_insert_function(builder.module, kind, "llvm.aarch64.hint"), (ir.IntType(32)(1),)
            )
        return context.get_dummy_value()

    return types.void(), generate


@cast(Any, intrinsic)
def give_way(typing: Any) -> Any:
    """Let another thread have this core if one wants it."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        if os.name == "posix":
            kind = ir.FunctionType(ir.IntType(32), ())
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), ())
        return context.get_dummy_value()

    return types.void(), generate


@cast(Any, intrinsic)
def ticks(typing: Any) -> Any:
    """A clock that runs at the same rate on all cores."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_LLVM_WORD, ())
        if _ARM:  # the counter of cycles is the system's alone
            return builder.asm(kind, "mrs $0, cntvct_el0", "=r", (), side_effect=True)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.readcyclecounter"), ())

    return types.int64(), generate


@cast(Any, intrinsic)
def call(typing: Any, function: Any, context: Any, part: Any) -> Any:
    """Call the C function ``(context, part)`` at an address."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), (_LLVM_WORD, _LLVM_WORD))
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate
