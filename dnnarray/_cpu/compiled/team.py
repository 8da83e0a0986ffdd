"""The threads of compiled kernels, for parts that are Python functions (NumPy on large blocks, matrix products). Imports Numba.

OpenMP's threads wait busily for some milliseconds after a kernel. Whatever is then given to other threads shares the cores with them, and takes several
milliseconds more: one team does everything.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.kernel import at_work, kernel, omp_is_safe

_Part = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)
_known = threading.local()


@cast(Any, intrinsic)
def _call(typing: Any, function: Any, part: Any) -> Any:
    """Call the C function at an address with the number of a part."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [arguments[1].type])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@kernel
def call_parts(start: int, stop: int, function: int) -> None:
    for part in range(start, stop):
        _call(function, part)


def serve(function: Callable[..., Any], parts: list[tuple[int, int]], arguments: tuple[Any, ...]) -> bool | None:
    """Run the parts; False where the team is at work already, None where it cannot be used."""
    if not omp_is_safe():
        return None
    if at_work():
        return False
    errors: list[BaseException] = []

    def run(part: int) -> None:
        try:
            _keep_state()
            function(*parts[part], *arguments)
        except BaseException as error:  # handed to the caller
            errors.append(error)

    called = _Part(run)
    call_parts(len(parts), ctypes.cast(called, ctypes.c_void_p).value, work=len(parts) * threads.GRAIN)
    if errors:
        raise errors[0]
    return True


def _keep_state() -> None:
    """A thread that Python has not made is forgotten by it, with all that it keeps for itself, as soon as a function ends, unless it holds on to its state."""
    if not hasattr(_known, "state"):
        _known.state = ctypes.pythonapi.PyGILState_Ensure()


def start() -> None:
    """Have this team do what is spread over threads from now on."""
    call_parts.build("float32")  # as every other dtype: it has no arrays
    threads.join(serve)
