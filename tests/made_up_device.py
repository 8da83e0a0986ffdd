"""A device that is not there: its driver only writes down what it is asked for, its memory is addresses that nobody
reads."""

from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import cupy
import numpy as np
from cupy.cuda.memory import MemoryPointer, UnownedMemory

from dnnarray._call import arrays as _arrays
from dnnarray._call import body as _body
from dnnarray._call.dispatch import forget
from dnnarray._call.operation import operations
from dnnarray._cuda import engine
from dnnarray._cuda.core import dialect, launch
from dnnarray._select import Device

_STEP = 1 << 28  # bytes between two allocations
_RATES = dict.fromkeys(("float32", "float64", "tf32_mma", "bfloat16_mma", "float16_mma"), 1e13)
_FACTS = Device("none", "cuda", 132, _RATES, 4e12, 4e-6, (9, 0), 232_448, 1 << 36)


class MadeUp:
    """The device's driver and memory.

    Attributes
    ----------
    launched : what the driver was given with each launch
    copied : (to, from) of each copy into memory other than planned
    general : the names of the operations that went the general way, call by call
    """

    def __init__(self):
        self.launched, self.copied, self.general = [], [], []
        self._addresses = count(1 << 32, _STEP)

    def allocate(self, size):
        return MemoryPointer(UnownedMemory(next(self._addresses), size, None, 0), 0)

    def array(self, like, offset=0, spread=False):
        """An array of the shape and dtype of another, `offset` bytes behind where an allocation begins, and every
        second place along each axis if `spread`."""
        like = np.asarray(like)
        shape = tuple(2 * n for n in like.shape) if spread else like.shape
        memory = self.allocate(int(np.prod(shape)) * like.dtype.itemsize + offset) + offset
        whole = cupy.ndarray(shape, like.dtype, memory)
        strides = whole.strides if spread else ()
        return cupy.ndarray(like.shape, like.dtype, memory, tuple(2 * s for s in strides)) if spread else whole


@contextmanager
def made_up_device(monkeypatch):
    """Everything that speaks to a device speaks to a `MadeUp` one."""
    made = MadeUp()
    monkeypatch.setattr(engine, "getDevice", lambda: 0)
    monkeypatch.setattr(engine, "current_place", lambda: 0)
    for module in (engine, dialect):
        monkeypatch.setattr(module, "alone", lambda: False)
    monkeypatch.setattr(engine, "get_current_stream", lambda device=0: SimpleNamespace(ptr=7))
    monkeypatch.setattr(engine, "facts", lambda index: _FACTS)
    monkeypatch.setattr(engine.module, "load", lambda kernels, *_: [SimpleNamespace(ptr=1)] * len(kernels))
    monkeypatch.setattr(launch, "_allow_shared", lambda *_: None)
    monkeypatch.setattr(launch, "_enter", lambda: None)
    monkeypatch.setattr(launch.overlap, "possible", lambda: False)
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(launch, "launchKernel", lambda *given: made.launched.append(given))
    monkeypatch.setattr(launch, "launchCooperativeKernel", lambda *given: made.launched.append(given))
    monkeypatch.setattr(launch, "_by_library", lambda step: lambda *given: made.launched.append(given))
    monkeypatch.setattr(launch, "Encoded", lambda *_: SimpleNamespace(move=lambda address: address))
    monkeypatch.setattr(dialect, "elementwise_copy", lambda source, to: made.copied.append((to, source)))
    monkeypatch.setattr(_arrays, "_cuda_engine", lambda where: engine)
    monkeypatch.setattr(_arrays, "NATIVE", {*_arrays.NATIVE, cupy.ndarray})
    kinds = {"numpy": _body.KINDS["numpy"], "cupy": engine.kind.__wrapped__()}
    for module in (_arrays, _body):
        monkeypatch.setattr(module, "KINDS", kinds)
    call = engine.Prepared.call

    def general(self, *given):
        made.general.append(self.problem.op)
        return call(self, *given)

    monkeypatch.setattr(engine.Prepared, "call", general)
    forget()
    with cupy.cuda.using_allocator(made.allocate):
        yield made
    monkeypatch.undo()
    forget()
    for op in operations().values():  # their texts speak of the device that was made up
        if [op.function.__globals__.pop(f"_{name}") for name in kinds if f"_{name}" in op.function.__globals__]:
            _body.write(op, op.function, op.function.__signature__)
