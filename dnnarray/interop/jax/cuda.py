"""Running a `Call` on memory of a CUDA device, on XLA's stream.

Results are XLA's buffers, and scratch memory is XLA's own. The handler is not declared compatible with command buffers
(CUDA graphs of XLA's): scratch memory belongs to one call, and the first call of a kind compiles kernels."""

from __future__ import annotations

import logging
from functools import lru_cache, partial
from typing import Any

import numpy as np
from cupy.cuda.runtime import pointerGetAttributes

from dnnarray._cuda import engine
from dnnarray._errors import DeviceError
from dnnarray._options import CURRENT
from dnnarray.interop.jax.call import Call
from dnnarray.interop.jax.frame import Frame
from dnnarray.interop.jax.run import execute

_ALIGNMENT = 256  # of XLA's own buffers, and what the kernels' vectors ask at the most
_logger = logging.getLogger("dnnarray")


def on_device(frame: Frame) -> None:
    """Queue a call on XLA's stream and return: nothing here waits for the device, unless a seed lies in its memory."""
    addresses = [b.data for buffers in (frame.arguments, frame.results) for b in buffers.all() if b.data]
    if not addresses:
        return  # no array has an element
    index = pointerGetAttributes(addresses[0]).device
    with engine.at(index), engine.on_stream(frame.stream()):
        execute(frame, partial(_view, index), partial(_compute, frame, index))


def _view(index: int, address: int | None, shape: tuple[int, ...], dtype: np.dtype, size: int) -> Any:
    steps = np.cumprod([dtype.itemsize, *shape[:0:-1]])[::-1] if shape else ()
    return engine.view(address or 0, shape, dtype, tuple(map(int, steps)), None, index)


def _compute(frame: Frame, index: int, call: Call, flat: list[Any], out: list[Any]) -> None:
    """Run a call on CuPy arrays under the options that were in force when it was traced."""
    arrays, runtime = call.fill(flat, engine.number), call.runtime(flat, _number)
    token = CURRENT.set(call.settings)
    try:
        if call.settings.observed:
            call.observed(arrays, runtime, out)
            return
        prepared = call.prepared.get(index)
        if prepared is None:
            prepared = call.prepared[index] = call.prepare(engine, arrays)
        address = _scratch(frame, prepared.workspace)
        try:
            workspace = (
                _view(index, address, (prepared.workspace,), np.dtype(np.uint8), prepared.workspace)
                if address
                else None
            )
            prepared.call(arrays, runtime, out, workspace)
        finally:
            if address:
                frame.free(address, prepared.workspace)  # in the order of the stream: what is queued has it to the end
    finally:
        CURRENT.reset(token)


def _scratch(frame: Frame, size: int) -> int:
    """The address of scratch memory of XLA's; 0 where none is needed, or XLA has none left and the engine looks for
    less."""
    try:
        return frame.allocate(size, _ALIGNMENT) if size else 0
    except DeviceError:
        return 0


def _number(array: Any) -> int:
    """A seed or an offset out of the device's memory."""
    _warn_of_wait()
    return _read(array)


def _read(array: Any) -> int:
    return int(array.get())


@lru_cache(maxsize=1)
def _warn_of_wait() -> None:
    _logger.warning(
        "a seed or an offset that is an array of JAX lies in the memory of the device: each call waits for the "
        "device to read it. A Python "
        "integer is part of the program, and costs nothing."
    )
