"""The launches of a planned problem: what the driver reads is laid out once, and a call writes its pointers and
goes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import get_current_stream
from cupy_backends.cuda.api.driver import (
    CUDADriverError,
    funcGetAttribute,
    funcSetAttribute,
    launchCooperativeKernel,
    launchKernel,
)

from dnnarray import _source
from dnnarray._cuda.core import overlap
from dnnarray._cuda.core.buffer import Buffer
from dnnarray._cuda.core.fourier import Fourier
from dnnarray._cuda.core.plan import Array, MatMul, Plan, Runtime, Step, Transform
from dnnarray._cuda.core.tensor_map import Encoded

if TYPE_CHECKING:
    from dnnarray._cuda.core.matmul import Product

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SIZE = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: what the kernel declares itself
_WITHOUT_ASKING = 48 << 10  # bytes of shared memory that a block gets, both kinds together
_thread = threading.local()
_lock = threading.Lock()
_shared: dict[int, int] = {}  # by function: bytes of dynamic shared memory that it may use by now


class Launches:
    """The steps of a problem for one alignment of its memory.

    The driver takes for each launch the addresses of its argument values, which lie in a `Buffer`. A call takes one
    that no other thread is using, since the driver works with the interpreter's lock released, and writes its pointers
    and run-time options into it.

    Attributes
    ----------
    copied : the inputs to be copied before the launches, each with its order of axes
    moved : the arrays that steps take at aligned addresses alone, whatever the call's are
    workspace : bytes of scratch memory
    scope : what the text of `lines` speaks of
    """

    __slots__ = ("_buffer", "_functions", "_overlapping", "_plans", "_queue", "copied", "moved", "scope", "workspace")

    def __init__(
        self,
        plans: tuple[Step, ...],
        functions: list[Any],
        count: int,
        copied: list[tuple[int, tuple[int, ...]]],
        device: int = -1,
        moved: tuple[int, ...] = (),
        workspace: int = 0,
    ) -> None:
        self.copied, self.moved, self.workspace = copied, moved, workspace
        self._plans, self._functions = plans, functions  # the code stays loaded as long as it can be called
        kernels = [plan for plan in plans if isinstance(plan, Plan)]
        for plan, function in zip(kernels, functions, strict=True):
            _allow_shared(function, plan.shared_memory)
        self._buffer = Buffer(plans, count)
        free: list[Any] = []
        self.scope: dict[str, Any] = {
            "_thread": _thread, "_enter": _enter, "_take": free.pop, "_put": free.append, "_new": self._new,
            "_stream": get_current_stream, "_device": device, "_send": overlap.send(), "_refused": _refused,
        }  # fmt: skip
        self.scope |= {
            f"_offset{word}": place.offset for word, place in self._buffer.written if isinstance(place, Array)
        }
        self.scope |= {f"_offset{word}": described.array.offset for word, _, described in self._buffer.maps}
        self._overlapping = [k for k in range(len(plans)) if _overlaps(plans, k) and overlap.possible()]
        code = iter(functions)
        for k, step in enumerate(plans):
            if not isinstance(step, Plan):
                self.scope[f"_step{k}"] = _by_library(step)
            elif k in self._overlapping:
                described = overlap.Described(step)
                self.scope |= {
                    f"_known{k}": described.known,
                    f"_describe{k}": described.describe,
                    f"_code{k}": overlap.reference(next(code).ptr),
                }
            else:
                self.scope[f"_step{k}"] = _launcher(step, next(code).ptr)
        self._queue: Callable[..., None] | None = None

    @property
    def ours(self) -> bool:
        """Whether all steps are kernels of our own, which are told their stream; a library may take CuPy's current
        one."""
        return all(isinstance(plan, Plan) for plan in self._plans)

    def lines(self, pointers: list[str], stream: str = "_stream(_device).ptr") -> list[str]:
        """The steps as source text, for a function that has the pointers under these names and the run-time options in
        ``runtime``."""
        # `_refused` finds out what a thread lacks
        heard = len(self._overlapping) == len(self._plans) and not self._buffer.maps
        text = [
            *([] if heard else ["try: _thread.has_context", "except AttributeError: _enter()"]),
            "try: _buffer = _take()",
            "except IndexError: _buffer = _new()",
            "_words = _buffer[0]",
            *(f"_words[{word}] = {self._value(word, value, pointers)}" for word, value in self._buffer.written),
            f"_handle = {stream}",  # CuPy's of a device that is named, which saves it asking for that
        ]
        for i, (word, _, described) in enumerate(self._buffer.maps):
            text.append(f"_at = {pointers[described.array.index]} + _offset{word}")
            text.append(f"if _words[{word}] != _at: _words[{word}] = _buffer[-1][{i}].move(_at)")
        for k in range(len(self._plans)):
            if k in self._overlapping:
                text += [f"try: _launch = _known{k}[_handle]", f"except KeyError: _launch = _describe{k}(_handle)"]
                text.append(
                    f"if _status := _send(_launch, _code{k}, _buffer[{k + 1}], None): _refused(_status, _launch, "
                    f"_code{k}, _buffer[{k + 1}])"
                )
            else:
                text.append(f"_step{k}(_handle, _buffer[{k + 1}], 0)")
        return ["    " + line for line in (*text, "_put(_buffer)")]

    @staticmethod
    def _value(word: int, value: Array | Runtime, pointers: list[str]) -> str:
        """What a call writes into a word, as source text."""
        if isinstance(value, Runtime):
            return f"runtime[{value.index}]"
        if value.index >= len(
            pointers
        ):  # scratch of no bytes, for arrays without elements: there is no memory, and nothing is read from it
            return "0"
        return f"{pointers[value.index]} + _offset{word}" if value.offset else pointers[value.index]

    def queue(self, pointers: list[int], runtime: tuple[Any, ...]) -> None:
        """Put all steps on the current stream."""
        if self._queue is None:
            names = [f"p{i}" for i in range(len(pointers))]
            self._queue = written(
                "queue", [f"def queue({''.join(f'{n}, ' for n in names)}runtime):", *self.lines(names)], self.scope
            )
        self._queue(*pointers, runtime)

    def _new(self) -> tuple[Any, ...]:
        """The words of a call, then for each step what it is called with beside the stream, last the tensor maps."""
        memory, addresses = self._buffer.make()
        arguments, given = iter(addresses), []
        for k, plan in enumerate(self._plans):
            if isinstance(plan, Plan):
                given.append(overlap.reference(next(arguments)) if k in self._overlapping else next(arguments))
            else:
                given.append(memory.data)
        return memory.data, *given, [Encoded(m, memory[first:].ctypes.data) for _, first, m in self._buffer.maps]


def _by_library(step: MatMul | Transform) -> Product | Fourier:
    if isinstance(step, Transform):
        return Fourier(step)
    from dnnarray._cuda.core.matmul import Product  # loads cuBLAS, which most first calls do not need

    return Product(step)


def written(name: str, lines: list[str], scope: dict[str, Any]) -> Any:
    """The function `name` of a source text, in which `scope` is known."""
    return _source.function(name, "\n".join(lines), scope, __name__)


def _enter() -> None:
    """A thread that never spoke to the device has no context yet."""
    cupy.cuda.Device().use()
    _thread.has_context = True


def _refused(status: int, *launch: Any) -> None:
    """What the driver says against a launch, as CuPy would raise it. In a new thread it may be that there is no
    context: once more with one."""
    if not hasattr(_thread, "has_context"):
        _enter()
        status = overlap.send()(*launch, None)
    if status:
        raise CUDADriverError(status)


def _allow_shared(function: Any, dynamic: int) -> None:
    """Raise the limit of a kernel's shared memory where a launch needs more; never lower it, since other launches of
    the kernel may count on it."""
    with _lock:
        allowed = _shared.get(function.ptr, _WITHOUT_ASKING - funcGetAttribute(_STATIC_SIZE, function.ptr))
        if dynamic > allowed:
            funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, dynamic)
            _shared[function.ptr] = dynamic


def _overlaps(plans: tuple[Step, ...], k: int) -> bool:
    """Whether a launch may begin before what its stream was given has ended: behind another kernel of its program, or
    where the program is small."""
    plan = plans[k]
    if not isinstance(plan, Plan):
        return False
    if k > 0:
        return (plan.early or plan.ahead) and isinstance(plans[k - 1], Plan)
    alone = not any(
        isinstance(step, Plan) and step.early for step in plans
    )  # those read at once what stood before their program
    return plan.ahead and alone


def _launcher(plan: Plan, function: int) -> Callable[[int, int, int], None]:
    """What queues a launch behind all that its stream was given."""
    launch = _launch_together if plan.cooperative else launchKernel
    return partial(launch, function, *plan.grid, plan.block, 1, 1, plan.shared_memory)


def _launch_together(*arguments: int) -> None:
    """All blocks at once; this call of the driver does not have the last argument of the ordinary one."""
    launchCooperativeKernel(*arguments[:-1])
