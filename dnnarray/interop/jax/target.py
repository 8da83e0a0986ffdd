"""The handlers that XLA calls, and the custom call of an operation: by XLA's FFI, or by `jax.pure_callback` where JAX
has no FFI."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax

from dnnarray._errors import UnsupportedError, WorkspaceError
from dnnarray.interop.jax import run
from dnnarray.interop.jax.axes import shape_varying
from dnnarray.interop.jax.call import Call
from dnnarray.interop.jax.frame import (
    EXECUTE,
    HANDLER,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Frame,
)

NAME = "dnnarray"
_logger = logging.getLogger("dnnarray")


def _on_cuda(frame: Frame) -> None:
    from dnnarray.interop.jax import cuda  # which needs CuPy

    cuda.on_device(frame)


def _answer(frame: Frame, execute: Callable[[Frame], None]) -> int | None:
    """Run a call; an exception becomes an error of XLA, which JAX raises where the result is waited for."""
    try:
        if frame.answer_metadata() or frame.stage != EXECUTE:
            return None
        execute(frame)
    except BaseException as error:  # nothing may leave by way of XLA's own code
        return frame.error(_code_of(error), f"{type(error).__name__}: {error}")
    return None


def _code_of(error: BaseException) -> int:
    if isinstance(error, (WorkspaceError, MemoryError)):
        return RESOURCE_EXHAUSTED
    if isinstance(error, UnsupportedError):
        return UNIMPLEMENTED
    return INVALID_ARGUMENT if isinstance(error, (ValueError, TypeError)) else INTERNAL


def _handler(execute: Callable[[Frame], None]) -> Any:
    return HANDLER(lambda address: _answer(Frame.from_address(address), execute))


HANDLERS = {"cpu": _handler(run.on_host), "CUDA": _handler(_on_cuda)}


@lru_cache(maxsize=1)
def registered() -> bool:
    """Whether XLA knows the handlers; the first call registers them."""
    ffi = getattr(jax, "ffi", None)
    if ffi is None:
        _logger.warning(
            "jax %s has no jax.ffi: the functions of dnnarray.interop.jax go through jax.pure_callback, which "
            "copies arrays and runs on "
            "the CPU. jax 0.5 or newer has it.",
            jax.__version__,
        )
        return False
    for platform, handler in HANDLERS.items():
        ffi.register_ffi_target(NAME, ffi.pycapsule(ctypes.cast(handler, ctypes.c_void_p).value), platform=platform)
    return True


def emit(call: Call, flat: Sequence[Any]) -> list[Any]:
    """Trace a call: its results, of which int64 is narrowed where JAX has no 64-bit integers."""
    shapes = [shape_varying(spec.shape, spec.dtype, flat) for spec in call.outputs]
    if registered():
        made = jax.ffi.ffi_call(NAME, shapes, vmap_method="expand_dims")(*flat, call=call.text)
    else:
        made = jax.pure_callback(partial(run.on_numpy, call.text), shapes, *flat, vmap_method="expand_dims")
    return [jax.lax.convert_element_type(r, jax.dtypes.canonicalize_dtype(r.dtype)) for r in made]
