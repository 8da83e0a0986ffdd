"""The CUDA engine: chooses among a family's ALGORITHMS, plans the launches once per problem, and runs them on CuPy arrays."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import get_current_stream

from dnnarray import _observe
from dnnarray._cuda import module
from dnnarray._cuda.device import architecture, facts
from dnnarray._cuda.plan import Array, Plan
from dnnarray._errors import UnsupportedError, WorkspaceError
from dnnarray._options import Options
from dnnarray._outputs import Output, check_workspace, users_own
from dnnarray._problems.base import Problem, leaves
from dnnarray._select import Device, Method, choose, tuning

if TYPE_CHECKING:
    from dnnarray._operation import Operation

NAME = "cuda"
ARRAY = cupy.ndarray
_VECTOR = 16  # bytes that the widest loads of a thread need their addresses to be a multiple of


def device() -> Device:
    """The current device."""
    return facts(cupy.cuda.runtime.getDevice())


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
        self._arch = architecture(device())
        self._launches: dict[bool, list[_Launch]] = {}
        self._nested = any(isinstance(spec, tuple) for spec in problem.inputs)
        self._copied = [i for i, spec in enumerate(leaves(problem.inputs)) if spec.axis_order() is None]

    def call(self, arrays: tuple[Any, ...], runtime: tuple[Any, ...], out: Any, workspace: Any) -> tuple[Any, ...]:
        """Launch on the caller's current stream and return the flat results, None where a result is absent."""
        inputs = leaves(arrays) if self._nested else [a for a in arrays if a is not None]
        for i in self._copied:
            _observe.note_layout_copy()
            inputs[i] = cupy.ascontiguousarray(inputs[i])
        results = self._allocate() if out is None else users_own(self.problem, self.outputs, out, inputs, ARRAY, _overlap)
        pointers = [a.data.ptr for a in inputs] + [r.data.ptr for r in results]
        if self.workspace:
            scratch = self._scratch(workspace)
            pointers.append(scratch.data.ptr)
        if self.config.telemetry:
            _observe.note_algorithm(self.problem, self.method.name, self.workspace)
        bits = 0
        for p in pointers:
            bits |= p
        launches = self._launches.get(bits % _VECTOR == 0)
        stream = get_current_stream()
        for launch in self._plan(bits % _VECTOR == 0) if launches is None else launches:
            launch(pointers, runtime, stream)
        for i in self.absent:
            results.insert(i, None)
        return tuple(results)

    def _plan(self, aligned: bool) -> list[_Launch]:
        plans = self.method.run(self.problem, device(), aligned)
        launches = [_Launch(plan, module.load(plan.kernel, self.device, self._arch)) for plan in plans]
        self._launches[aligned] = launches
        return launches

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


class _Launch:
    """A planned kernel with its function; turns pointers and numbers into launch arguments."""

    def __init__(self, plan: Plan, function: Any) -> None:
        self._function, self._grid, self._block, self._shared = function, plan.grid, (plan.block, 1, 1), plan.shared_memory
        self._template = [0 if type(a) is Array else a for a in plan.arguments]
        self._slots = [(i, a.index, a.offset) for i, a in enumerate(plan.arguments) if type(a) is Array]

    def __call__(self, pointers: list[int], runtime: tuple[Any, ...], stream: Any) -> None:
        arguments = self._template.copy()
        for slot, index, offset in self._slots:
            arguments[slot] = pointers[index] + offset
        self._function(self._grid, self._block, tuple(arguments), self._shared, stream)


def _overlap(a: Any, b: Any) -> bool:
    """Whether two arrays can touch the same bytes; exact for dense ones, on the safe side for others."""
    first, second = a.data.ptr, b.data.ptr
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return first < second + b.nbytes and second < first + a.nbytes
    return bool(cupy.may_share_memory(a, b))


def _first(*results: Any) -> Any:
    return results[0]
