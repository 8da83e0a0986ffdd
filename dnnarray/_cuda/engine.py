"""The CUDA engine: chooses among a family's ALGORITHMS, plans the launches once per problem, and runs them on CuPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import get_current_stream

from dnnarray import _observe
from dnnarray._cuda import module
from dnnarray._cuda.device import architecture, facts
from dnnarray._cuda.matmul import Product
from dnnarray._cuda.plan import Array, MatMul, Plan, Runtime
from dnnarray._errors import ArrayTypeError, UnsupportedError, WorkspaceError
from dnnarray._options import Options
from dnnarray._outputs import Output, check_workspace, users_own
from dnnarray._problems.base import Problem, leaves
from dnnarray._select import Device, Method, choose, tuning
from dnnarray._spec import Spec

if TYPE_CHECKING:
    from dnnarray._operation import Operation

ARRAY = cupy.ndarray
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED = 16 << 10  # bytes of shared memory a block gets without asking, beside 32 KB for the kernel's own variables
_VECTOR = 16  # bytes that the widest loads of a thread need their addresses to be a multiple of


def device() -> Device:
    """The current device."""
    return facts(cupy.cuda.runtime.getDevice())


def place(array: Any) -> int:
    """Where an array lives, as far as plans depend on it."""
    return array.data.device_id


def methods(op: Operation) -> tuple[Method, ...]:
    """The entries of the ALGORITHMS table for an operation."""
    try:
        return import_module(f"dnnarray._cuda.{op.family}").ALGORITHMS[op.base]
    except (ImportError, KeyError):
        raise UnsupportedError(
            f"{op.name}: the CUDA engine does not have this operation yet; move the arrays to the host (cupy.asnumpy) to use the CPU engine."
        ) from None


def prepare(op: Operation, problem: Problem, config: Options, algorithm: str | None) -> Prepared:
    """Choose the algorithm for a problem; what comes back can be called any number of times."""
    table = methods(op)
    here = device()
    measured = tuning.lookup(here, tuning.key_of(problem, here, config)) if len(table) > 1 else None
    chosen = choose(problem, here, config, table, algorithm, measured)
    return Prepared(op, problem, chosen.method, chosen.algorithm.workspace, config)


def measure(
    op: Operation, problem: Problem, arrays: tuple[Any, ...], runtime: tuple[Any, ...], candidates: list[Method]
) -> dict[str, float]:
    """Milliseconds on the device by algorithm: the median of repeats between events, after a first run."""
    return {m.name: _device_time(Prepared(op, problem, m, m.workspace(problem), Options()), arrays, runtime) for m in candidates}


def _device_time(prepared: Prepared, arrays: tuple[Any, ...], runtime: tuple[Any, ...], repeats: int = 15) -> float:
    prepared.call(arrays, runtime, None, None)
    times = []
    for _ in range(repeats):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        prepared.call(arrays, runtime, None, None)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(times))


class Prepared:
    """A problem with its planned launches."""

    def __init__(self, op: Operation, problem: Problem, method: Method, workspace: int, config: Options) -> None:
        self.op, self.problem, self.method, self.workspace, self.config = op, problem, method, workspace, config
        self.outputs = [Output(spec) for spec in problem.outputs if spec is not None]
        self.absent = [i for i, spec in enumerate(problem.outputs) if spec is None]
        self.pack = problem.returns or _first
        self.device = cupy.cuda.runtime.getDevice()
        self._specs = leaves(problem.inputs)
        self._nested = any(isinstance(spec, tuple) for spec in problem.inputs)
        self._ready: dict[bool, _Ready] = {}

    def call(self, arrays: tuple[Any, ...], runtime: tuple[Any, ...], out: Any, workspace: Any) -> tuple[Any, ...]:
        """Launch on the caller's current stream and return the flat results, None where a result is absent."""
        if cupy.cuda.runtime.getDevice() != self.device:
            with cupy.cuda.Device(self.device):
                return self.call(arrays, runtime, out, workspace)
        inputs = leaves(arrays) if self._nested else [a for a in arrays if a is not None]
        results = self._allocate() if out is None else self._users_own(out, inputs)
        targets = (
            results
            if out is None
            else [r if _as_planned(r, o) else o.empty(cupy.empty) for r, o in zip(results, self.outputs, strict=True)]
        )
        self._launch(inputs, targets, runtime, workspace)
        for result, target in zip(results, targets, strict=True):
            if target is not result:
                _observe.note_layout_copy()
                result[...] = target
        if self.absent:
            filled = iter(results)
            return tuple(None if i in self.absent else next(filled) for i in range(len(self.problem.outputs)))
        return tuple(results)

    def _launch(self, inputs: list[Any], targets: list[Any], runtime: tuple[Any, ...], workspace: Any) -> None:
        if self.config.telemetry:
            _observe.note_algorithm(self.problem, self.method.name, self.workspace)
        memory = [*inputs, *targets]
        if self.workspace or workspace is not None:
            memory.append(self._scratch(workspace))
        pointers, bits = [], 0
        for array in memory:
            data = array.data
            if data.device_id != self.device:
                raise ArrayTypeError(
                    f"{self.problem.op}: the arrays live on CUDA devices {self.device} and {data.device_id}; expected one device."
                )
            bits |= data.ptr
            pointers.append(data.ptr)
        aligned = bits % _VECTOR == 0
        ready = self._ready.get(aligned) or self._prepare(aligned)
        copies = []  # kept alive until the launches are queued; the pool reuses their memory in stream order
        for i, order in ready.copied:
            _observe.note_layout_copy()
            copies.append(cupy.ascontiguousarray(inputs[i].transpose(order)))
            pointers[i] = copies[-1].data.ptr
        stream = get_current_stream()
        for launch in ready.launches:
            launch(pointers, runtime, stream)

    def _prepare(self, aligned: bool) -> _Ready:
        here = device()
        program = self.method.run(self.problem, here, aligned)
        orders = program.orders or tuple(tuple(range(s.ndim)) for s in self._specs)
        copied = [(i, order) for i, (s, order) in enumerate(zip(self._specs, orders, strict=True)) if not _lies(s, order)]
        launches = [self._launcher(plan, architecture(here)) for plan in program.plans]
        self._ready[aligned] = _Ready(launches, copied)
        return self._ready[aligned]

    def _launcher(self, plan: Plan | MatMul, target: str) -> Callable[..., None]:
        return Product(plan) if isinstance(plan, MatMul) else _Launch(plan, module.load(plan.kernel, self.device, target))

    def _users_own(self, out: Any, inputs: list[Any]) -> list[Any]:
        return users_own(self.problem, self.outputs, out, inputs, ARRAY, _overlap)

    def _allocate(self) -> list[Any]:
        try:
            return [o.empty(cupy.empty) for o in self.outputs]
        except cupy.cuda.memory.OutOfMemoryError:
            cupy.get_default_memory_pool().free_all_blocks()
        try:
            return [o.empty(cupy.empty) for o in self.outputs]
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise WorkspaceError(f"{self.problem.op}: the device has no memory for the result: {error}") from error

    def _scratch(self, workspace: Any) -> Any:
        if workspace is not None:
            return check_workspace(self.problem.op, workspace, self.workspace, ARRAY)
        return cupy.empty(self.workspace, np.uint8)


@dataclass(frozen=True)
class _Ready:
    """The launches of a problem for one alignment, and the inputs to be copied before them, each with its order."""

    launches: list[Callable[..., None]]
    copied: list[tuple[int, tuple[int, ...]]]


class _Launch:
    """A planned kernel with its function; turns pointers and numbers into launch arguments."""

    def __init__(self, plan: Plan, function: Any) -> None:
        self._function, self._grid, self._block, self._shared = function, plan.grid, (plan.block, 1, 1), plan.shared_memory
        if plan.shared_memory > _STATIC_SHARED:
            cupy.cuda.driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, plan.shared_memory)
        self._template: list[Any] = [0 if type(a) in (Array, Runtime) else a for a in plan.arguments]
        self._slots = [(i, a.index, a.offset) for i, a in enumerate(plan.arguments) if type(a) is Array]
        self._runtime = [(i, a.index) for i, a in enumerate(plan.arguments) if type(a) is Runtime]

    def __call__(self, pointers: list[int], runtime: tuple[Any, ...], stream: Any) -> None:
        arguments = self._template.copy()
        for slot, index, offset in self._slots:
            arguments[slot] = pointers[index] + offset
        for slot, index in self._runtime:
            arguments[slot] = np.uint64(runtime[index])
        self._function(self._grid, self._block, tuple(arguments), self._shared, stream)


def _lies(spec: Spec, order: tuple[int, ...]) -> bool:
    """Whether the array is dense with its axes in this order; axes of extent 1 may stand anywhere."""
    step = 1
    strides = spec.strides or Spec(spec.shape, spec.dtype).c_strides
    for axis in reversed(order):
        if spec.shape[axis] != 1 and strides[axis] != step:
            return spec.size == 0
        step *= spec.shape[axis]
    return True


def _as_planned(array: Any, output: Output) -> bool:
    """Whether a caller's output lies in memory as the launches write it."""
    if array.strides == output.strides:
        return True
    order = output.spec.axis_order() or tuple(range(array.ndim))
    return _lies(Spec(array.shape, array.dtype, tuple(s // array.dtype.itemsize for s in array.strides)), order)


def _overlap(a: Any, b: Any) -> bool:
    """Whether two arrays can touch the same bytes; exact for dense ones, on the safe side for others."""
    first, second = a.data.ptr, b.data.ptr
    if a._c_contiguous and b._c_contiguous:  # the public flags object costs five times as much
        return first < second + b.nbytes and second < first + a.nbytes
    return bool(cupy.may_share_memory(a, b))


def _first(*results: Any) -> Any:
    return results[0]
