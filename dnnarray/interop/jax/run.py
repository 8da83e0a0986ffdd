"""Running a `Call`: on the memory that XLA hands to the handlers, and on NumPy arrays for `jax.pure_callback`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import engine
from dnnarray._errors import DeviceError
from dnnarray._options import CURRENT
from dnnarray.interop.jax import batch
from dnnarray.interop.jax.call import Call, read
from dnnarray.interop.jax.frame import Buffer, Frame, host_array, memory_of, rank_of

_calls: dict[bytes, Call] = {}
_MOST_CALLS = 4096
_MOST_PLACES = 16  # that are kept for a call


def call_of(frame: Frame) -> Call:
    """The call that XLA makes."""
    text = frame.attributes.text()
    call = _calls.get(text)
    if call is None:
        call = read(text.decode())
        _check(call, frame)
        if len(_calls) >= _MOST_CALLS:
            _calls.clear()
        _calls[text] = call
    return call


def _check(call: Call, frame: Frame) -> None:
    """XLA and the text agree on the arrays. What is checked here once is relied on in later calls."""
    for specs, buffers in ((call.inputs, frame.arguments.all()), (call.outputs, frame.results.all())):
        found = [
            (buffer.dtype, buffer.shape[buffer.rank - spec.ndim :])
            for spec, buffer in zip(specs, buffers, strict=False)
        ]
        if len(specs) != len(buffers) or found != [(spec.dtype, spec.shape) for spec in specs]:
            described = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in found)
            raise DeviceError(
                f"{call.operation.name}: XLA gives {len(buffers)} arrays ({described}); expected "
                f"{', '.join(map(str, specs))}."
            )


def execute(frame: Frame, view: Callable[..., Any], run: batch.Run) -> None:
    """Run a call by `run` on the arrays that ``view(address, shape, dtype, bytes)`` makes of XLA's buffers."""
    call = call_of(frame)
    given, results = frame.arguments.addresses(), frame.results.addresses()
    if rank_of(results[0]) != call.rank:
        batch.run(call, [_any_shape(view, a) for a in given], [_any_shape(view, a) for a in results], run)
        return
    places = tuple([memory_of(address) for address in (*given, *results)])
    arrays = call.seen.get(places)
    if arrays is None:
        arrays = _arrays_at(call, places, view)
    run(call, *arrays)


def _arrays_at(call: Call, places: tuple[int | None, ...], view: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    """The arrays of a call and its results at these addresses. XLA comes back to the same ones: a view says where an
    array is, and owns nothing."""
    known = [*call.memory_in, *call.memory_out]
    views = [view(place, *memory) for place, memory in zip(places, known, strict=True)]
    arrays = views[: len(call.memory_in)], views[len(call.memory_in) :]
    if len(call.seen) >= _MOST_PLACES:
        call.seen.clear()
    call.seen[places] = arrays
    return arrays


def _any_shape(view: Callable[..., Any], address: int) -> Any:
    buffer = Buffer.from_address(address)
    shape, dtype = buffer.shape, buffer.dtype
    assert dtype is not None
    return view(buffer.data, shape, dtype, math.prod(shape) * dtype.itemsize)


def on_host(frame: Frame) -> None:
    """Run a call on memory of the processor, without a copy."""
    execute(frame, host_array, compute)


def compute(call: Call, flat: list[Any], out: list[Any]) -> None:
    """Run a call on NumPy arrays, whose results are `out`, under the options that were in force when it was traced."""
    arrays, runtime = call.fill(flat, np.asarray), call.runtime(flat, int)
    token = CURRENT.set(call.settings)
    try:
        if call.settings.observed:
            call.observed(arrays, runtime, out)
            return
        prepared = call.prepared.get("cpu")
        if prepared is None:
            prepared = call.prepared["cpu"] = call.prepare(engine, arrays)
        prepared.into(out, arrays, runtime)
    finally:
        CURRENT.reset(token)


def on_numpy(text: str, *flat: Any) -> list[np.ndarray]:
    """Run a call for `jax.pure_callback`: the results are new arrays."""
    call = read(text)
    given = [np.asarray(array) for array in flat]
    axes = given[0].ndim - call.inputs[0].ndim
    prefix = np.broadcast_shapes(*(array.shape[:axes] for array in given))
    out = [np.empty((*prefix, *spec.shape), spec.dtype) for spec in call.outputs]
    if axes:
        batch.run(call, given, out, compute)
    else:
        compute(call, given, out)
    return out
