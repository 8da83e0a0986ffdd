"""The CUDA engine: chooses among a family's ALGORITHMS, plans the launches once per problem, and runs them on CuPy
arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import get_current_stream
from cupy.cuda.memory import MemoryPointer, OutOfMemoryError, UnownedMemory
from cupy_backends.cuda.api.runtime import getDevice

from dnnarray._cuda.core import module
from dnnarray._cuda.core.device import alone, architecture, facts
from dnnarray._cuda.core.dialect import VECTOR, Dialect, Shape, alike, by_addresses, copy_elements, empty, on_cupy
from dnnarray._cuda.core.launch import Launches
from dnnarray._cuda.core.plan import Plan, Program, moved_by
from dnnarray._cuda.core.warm import compile_call, hand_on, span
from dnnarray._engine import counters
from dnnarray._engine.kinds import Kind
from dnnarray._engine.outputs import Memory, Output, check_apart, check_workspace, pairs_in_place, users_own
from dnnarray._errors import ArrayTypeError, OptionError, UnsupportedError, WorkspaceError, fail
from dnnarray._options import Options
from dnnarray._problems.base import Problem, leaves, tree_map
from dnnarray._records import changed, frozen
from dnnarray._select import Device, Method, choose, tuning
from dnnarray._spec import Spec, drawn, lies

if TYPE_CHECKING:
    from dnnarray._engine.doors import Direct
    from dnnarray._engine.protocol import Called

ARRAY = cupy.ndarray
_NOTHING = nullcontext()


def device() -> Device:
    """The current device."""
    return facts(getDevice())


def device_for(arrays: Any) -> Device:
    """The current device, as a choice for these arrays sees it; a `Spec` stands for an array that begins where an
    allocation does."""
    return _with(device(), all(array.data.ptr % VECTOR == 0 for array in leaves(arrays) if isinstance(array, ARRAY)))


def place(array: Any) -> int:
    """Where an array lives, as far as plans depend on it."""
    return array.data.device_id


def at(place: int) -> Any:
    """A context in which the device with this index is the current one."""
    return _NOTHING if getDevice() == place else cupy.cuda.Device(place)


current_place = getDevice


@lru_cache(maxsize=1)
def kind() -> Kind:
    """How the text of a public function speaks of CuPy's arrays.

    CuPy finds the flag of C order in a quarter of the time of the strides. It leaves open the strides along axes of one
    place, of which the first says nothing of the others' order."""
    entries = "{n}.shape, {n}.dtype, {n}._c_contiguous or {n}.strides"
    return Kind(
        "cupy", frozenset((ARRAY,)), "0" if alone() else "_device()", entries, {"_device": current_place}, _vague
    )


def _vague(array: Any) -> bool:
    return array._c_contiguous and 1 in array.shape[1:]


def methods(op: Called) -> tuple[Method, ...]:
    """The entries of the ALGORITHMS table for an operation."""
    try:
        return import_module(f"dnnarray._cuda.{op.family}").ALGORITHMS[op.base]
    except (ImportError, KeyError):
        raise UnsupportedError(
            f"{op.name}: the CUDA engine does not have this operation yet; move the arrays to the host "
            "(cupy.asnumpy) to use the CPU engine."
        ) from None


def view(
    pointer: int, shape: tuple[int, ...], dtype: np.dtype, strides: tuple[int, ...], owner: Any, index: int
) -> Any:
    """Memory of another library as a CuPy array; `strides` in bytes. `owner` is kept alive with it."""
    span = (
        dtype.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 not in shape
        else 0
    )
    return ARRAY(shape, dtype, MemoryPointer(UnownedMemory(pointer, span, owner, index), 0), strides)


def from_dlpack(array: Any) -> Any:
    """An array of any library over the same memory, in order with what its library has queued."""
    return cupy.from_dlpack(array)


_held: list[tuple[Any, Any]] = []  # events, each with the arrays that may go when it has happened
_holding = Lock()


def hold(arrays: Any) -> None:
    """Keep arrays of another library until the work queued so far on the current stream is done."""
    if get_current_stream().is_capturing():
        return  # the graph outlives the call in any case: its arrays are the caller's to keep
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    with _holding:
        _held[:] = [*((e, a) for e, a in _held if not e.done), (event, arrays)]


def number(value: int) -> Any:
    """A Python integer as a 0-d array, made on the device so that it may be done in a CUDA graph too."""
    return cupy.full((), value, np.int64)


def on_stream(pointer: int) -> Any:
    """A context in which the stream with this handle is the current one."""
    return _NOTHING if get_current_stream().ptr == pointer else cupy.cuda.Stream.from_external(_Handle(pointer))


@frozen
class _Handle:
    """A stream as the CUDA stream protocol wants it: (version, handle)."""

    pointer: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


def prepare(op: Called, problem: Problem, config: Options, algorithm: str | None) -> Prepared:
    """Choose the algorithm for a problem; what comes back can be called any number of times."""
    table = methods(op)
    here = device()
    measured = tuning.measured(problem, here, config) if len(table) > 1 else None
    return Prepared(op, problem, choose(problem, here, config, table, algorithm, measured), config, algorithm)


def make_ready(op: Called, problem: Problem) -> None:
    """What an algorithm may wait for before it is measured: nothing, kernels are compiled when they are loaded."""


def look_on_disk(op: Called, problem: Problem) -> None:
    """What earlier processes have compiled changes no choice here."""


def measure(
    op: Called, problem: Problem, arrays: tuple[Any, ...], runtime: tuple[Any, ...], candidates: list[Method]
) -> dict[str, float]:
    """Milliseconds on the device by algorithm: the median of repeats between events, after a first run. A Spec among
    the arrays is given drawn data."""
    data = tuple(tree_map(_data, a) for a in arrays)
    return {m.name: _device_time(Prepared(op, problem, m, Options(), m.name), data, runtime) for m in candidates}


def _data(array: Any) -> Any:
    """A Spec or an array of the host as an array of the engine's own that begins where an allocation does."""
    if isinstance(array, Spec):
        itemsize = array.dtype.itemsize
        memory = cupy.asarray(drawn(Spec((span(array) // itemsize,), array.dtype)))
        return ARRAY(
            array.shape, array.dtype, memory.data, tuple(s * itemsize for s in array.strides or array.c_strides)
        )
    if array is None or (isinstance(array, ARRAY) and array.data.ptr % VECTOR == 0):
        return array
    return cupy.array(array)  # a copy begins where an allocation does: times are remembered for memory that is aligned


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
    """A problem with its planned launches: those for aligned memory at once, since they also tell how much scratch
    memory is needed.

    `algorithm` is the name of the method where the caller has decided on it.
    """

    def __init__(
        self, op: Called, problem: Problem, method: Method, config: Options, algorithm: str | None = None
    ) -> None:
        self.op, self.problem, self.method, self.config, self._algorithm = op, problem, method, config, algorithm
        self._program: Program | None = method.run(problem, device(), True)
        self.workspace = _workspace_of(problem, method, self._program)
        self.outputs = [Output(spec) for spec in problem.outputs if spec is not None]
        self.absent = [i for i, spec in enumerate(problem.outputs) if spec is None]
        self.pack = problem.returns
        self.device = getDevice()
        self.warm: Callable[..., Any] | None = None  # what `compile_call` gives for CuPy's arrays
        self._specs = leaves(problem.inputs)
        self._in_place = pairs_in_place(problem)
        self._nested = any(isinstance(spec, tuple) for spec in problem.inputs)
        self._plain = not self._nested and all(spec is not None for spec in problem.inputs)
        self._telemetry = config.telemetry
        self._shapes: dict[bool, Shape] = {}  # by alignment, where calls are usual and their launches ready
        self._texts: dict[Any, dict[bool, Callable[..., Any]]] = {}  # of calls, by library and alignment
        self._ready: list[Launches | None] = [None, None]  # for memory that is not aligned, and that is
        self._methods: dict[bool, Method] = {}  # likewise

    def call(self, arrays: tuple[Any, ...], runtime: tuple[Any, ...], out: Any, workspace: Any) -> Sequence[Any]:
        """Launch on the caller's current stream and return the flat results, None where a result is absent."""
        if getDevice() != self.device:
            with at(self.device):
                return self.call(arrays, runtime, out, workspace)
        inputs: Any = arrays
        if not self._plain:
            inputs = leaves(arrays) if self._nested else [a for a in arrays if a is not None]
        if out is None:
            results = targets = self._allocate()
        else:
            results, over = self._users_own(out, inputs)
            apart = [] if self.method.in_place else over
            direct = [
                j not in apart and _as_planned(r, o) for j, (r, o) in enumerate(zip(results, self.outputs, strict=True))
            ]
            targets = (
                results
                if all(direct)
                else [r if d else empty(o) for r, o, d in zip(results, self.outputs, direct, strict=True)]
            )
        self._launch_or_with_less(inputs, targets, runtime, workspace)
        if targets is not results:
            for result, target in zip(results, targets, strict=True):
                if target is not result:
                    counters.note_layout_copy()
                    result[...] = target
        return self._placed(results) if self.absent else results

    def by_addresses(self, way: Direct) -> Callable[..., Any] | None:
        """What `warm` is, for another library's arrays by their addresses alone."""
        return self._compile(way, partial(by_addresses, way=way), lambda call: self._on_its_stream(way, call))

    def _on_its_stream(self, way: Direct, call: Callable[..., Any]) -> Callable[..., Any]:
        def on_its_stream(*given: Any) -> Any:
            with on_stream(way.stream(self.device)):
                return call(*given)

        return on_its_stream

    def _compile(
        self, library: Any, dialect: Callable[[Shape], Dialect], on_its_stream: Callable[[Any], Any] | None = None
    ) -> Callable[..., Any] | None:
        """The call for arrays of a library, of all alignments that are ready. Steps by cuBLAS and its like go on the
        stream that is CuPy's current one."""
        texts = self._texts.setdefault(library, {})
        calls = {}
        for aligned, shape in self._shapes.items():
            ready = self._ready[aligned]
            assert ready is not None
            if aligned not in texts:
                texts[aligned] = compile_call(shape, self.pack, ready, dialect(shape))
            calls[aligned] = texts[aligned] if ready.ours or on_its_stream is None else on_its_stream(texts[aligned])
        if len(calls) > 1:
            hand_on(texts[True], calls[False])
        return calls.get(True) or calls.get(False)

    def with_stand_ins(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """An array in the place of each `Spec`: without memory where no launch is given its address, else with numbers
        that enter no result."""
        place = itertools.count()

        def stand_in(array: Any) -> Any:
            index = next(place)
            if not isinstance(array, Spec):
                return array
            if index in self._touched:
                return self._allocated(lambda: empty(Output(array.like())), "array in the place of a Spec")
            return view(0, array.shape, array.dtype, (0,) * array.ndim, None, self.device)

        with at(self.device):
            return tuple(tree_map(stand_in, array) for array in arrays)

    @cached_property
    def _touched(self) -> frozenset[int]:
        """The places of all arrays whose addresses a launch is given, aligned or not."""
        here, found = device(), set[int]()
        for aligned in (True, False):
            with suppress(
                UnsupportedError, WorkspaceError
            ):  # without an algorithm at odd addresses a call there says so
                program = self._method(here, aligned).run(self.problem, _with(here, aligned), aligned)
                found.update(array.index for plan in program.plans for array in plan.arrays)
        return frozenset(found)

    def _placed(self, results: list[Any]) -> list[Any]:
        """The results with None where one is absent."""
        filled = iter(results)
        return [None if i in self.absent else next(filled) for i in range(len(self.problem.outputs))]

    def _launch_or_with_less(self, inputs: Any, targets: Any, runtime: tuple[Any, ...], workspace: Any) -> None:
        """Launch; where there is no memory for the scratch, by the fastest algorithm that needs less."""
        try:
            self._launch(inputs, targets, runtime, workspace)
        except WorkspaceError:
            if workspace is not None or not self.workspace or (less := self._with_less()) is None:
                raise
            less._launch_or_with_less(inputs, targets, runtime, None)

    def _with_less(self) -> Prepared | None:
        """The same problem by an algorithm that needs less scratch memory, None where there is none."""
        try:
            return prepare(self.op, self.problem, replace(self.config, workspace_limit=self.workspace - 1), None)
        except (UnsupportedError, WorkspaceError):
            return None

    def _launch(self, inputs: Any, targets: Any, runtime: tuple[Any, ...], workspace: Any) -> None:
        given = [*inputs, *targets]
        pointers = self._addresses(given)
        if not (aligned := not any(pointer % VECTOR for pointer in pointers)):
            self._check_addresses(given)
        as_aligned = aligned or self.config.deterministic  # other launches would sum in another order
        ready = self._ready[as_aligned] or self._prepare(as_aligned)
        if self._telemetry:
            counters.note_algorithm(self.problem, self._methods[as_aligned].name, ready.workspace)
        if ready.workspace or workspace is not None:
            scratch = self._scratch(
                workspace, ready.workspace
            )  # kept until all is queued; the pool reuses memory in stream order
            if ready.workspace:  # launches that need none do not take a caller's either
                if workspace is not None:
                    check_apart(self.problem.op, scratch[: ready.workspace], given, _overlap)
                pointers += self._addresses([scratch])
        copies = []  # kept alive likewise
        for i, order in ready.copied:
            counters.note_layout_copy()
            copies.append(self._dense(inputs[i].transpose(order)))
            pointers[i] = copies[-1].data.ptr
        odd = ready.moved if aligned or not as_aligned else range(len(given))
        moved = {i: self._elsewhere(given[i], i < len(inputs)) for i in odd if pointers[i] % VECTOR}
        for i, array in moved.items():
            pointers[i] = array.data.ptr
        ready.queue(pointers, runtime)
        for i, array in moved.items():
            if i >= len(inputs):
                copy_elements(array, given[i])

    def _elsewhere(self, array: Any, filled: bool) -> Any:
        """An aligned array for one that is not, lying as it does; `filled` with its numbers."""
        counters.note_layout_copy()
        copy = self._allocated(lambda: alike(array), "copy of an array that is not aligned")
        if filled:
            copy_elements(array, copy)
        return copy

    def _addresses(self, arrays: list[Any]) -> list[int]:
        other = next((a.data.device_id for a in arrays if a.data.device_id != self.device), None)
        if other is not None:
            raise ArrayTypeError(
                f"{self.problem.op}: the arrays live on CUDA devices {self.device} and {other}; expected one device."
            )
        return [array.data.ptr for array in arrays]

    def _check_addresses(self, given: list[Any]) -> None:
        for array in given:
            if array.data.ptr % array.dtype.itemsize and array.size:
                expected = f"multiples of its {array.dtype.itemsize} bytes an element, as where an allocation begins"
                fail(ArrayTypeError, self.problem.op, "an array", f"at the address {array.data.ptr:#x}", expected)

    def _prepare(self, aligned: bool) -> Launches:
        here = device()
        method = self._methods[aligned] = self._method(here, aligned)
        program = (self._program if aligned else None) or method.run(self.problem, _with(here, aligned), aligned)
        orders = program.orders or tuple(tuple(range(s.ndim)) for s in self._specs)
        given = enumerate(zip(self._specs, orders, self.problem.reads, strict=True))
        copied = [
            (i, order) for i, (spec, order, read) in given if read and order is not None and not _lies(spec, order)
        ]
        plans = tuple(plan for plan in program.plans if not isinstance(plan, Plan) or 0 not in plan.grid)
        functions = module.load(
            [plan.kernel for plan in plans if isinstance(plan, Plan)], self.device, architecture(here)
        )
        count, workspace = len(self._specs) + len(self.outputs), _workspace_of(self.problem, method, program)
        moved = () if aligned else moved_by(plans, count)
        self._ready[aligned] = ready = Launches(
            plans, functions, count + bool(workspace), copied, self.device, moved, workspace
        )
        if aligned:
            self._program = None
        # A family's problems may share a form that has more inputs than this operation takes; those are None.
        inputs, beyond = self.problem.inputs[: len(self.op.arrays)], self.problem.inputs[len(self.op.arrays) :]
        usual = not (copied or moved or self._telemetry or any(map(_backwards, self._specs)))
        if usual and len(inputs) == len(self.op.arrays) and all(spec is None for spec in beyond):
            self._shapes[aligned] = Shape(
                inputs, tuple(self.outputs), tuple(self.absent), workspace, self.device, aligned, self._over()
            )
            self.warm = self._compile(ARRAY, on_cupy)
        return ready

    def _method(self, here: Device, aligned: bool) -> Method:
        """The algorithm for memory of this alignment.

        That for odd addresses may be another, but none that needs results apart from inputs where the first does not,
        and none that needs more scratch memory, unless all those that do not need it want aligned memory."""
        if aligned:
            return self.method
        found = self._chosen(here, self.config)
        if found is self.method or found.workspace(self.problem) <= self.workspace:
            return found
        try:
            return self._chosen(here, replace(self.config, workspace_limit=self.workspace))
        except WorkspaceError:
            return found

    def _chosen(self, here: Device, config: Options) -> Method:
        """The algorithm for memory at odd addresses."""
        table = [m for m in methods(self.op) if m.in_place or not self.method.in_place]
        measured = tuning.measured(self.problem, here, self.config) if len(table) > 1 else None
        return choose(self.problem, _with(here, False), config, table, self._algorithm, measured)

    def _users_own(self, out: Any, inputs: list[Any]) -> tuple[list[Any], list[int]]:
        return users_own(self.problem, self.outputs, out, inputs, _MEMORY, self._in_place)

    def _over(self) -> frozenset[tuple[int, int]]:
        """The pairs of an input and a result in one place that launches may be given: they lie alike, and the algorithm
        works in place."""
        if not self.method.in_place:
            return frozenset()
        lying = {i: spec.strides or spec.c_strides for i, spec in enumerate(self._specs)}
        return frozenset(
            (i, j) for i, j in self._in_place if lies(self.outputs[j].shape, self.outputs[j].element_strides, lying[i])
        )

    def _allocate(self) -> list[Any]:
        return self._allocated(lambda: list(map(empty, self.outputs)), "result")

    def _scratch(self, workspace: Any, needed: int) -> Any:
        if workspace is not None:
            checked = check_workspace(self.problem.op, workspace, needed, ARRAY)
            if (
                needed or self.workspace
            ) and checked.data.ptr % VECTOR:  # launches at odd addresses may need more or less
                fix = "Begin it where an allocation begins."
                fail(
                    OptionError,
                    self.problem.op,
                    "workspace",
                    "at an odd address",
                    f"memory aligned to {VECTOR} bytes",
                    fix,
                )
            return checked
        return self._allocated(lambda: ARRAY((needed,), np.uint8), "workspace")

    def _dense(self, array: Any) -> Any:
        return self._allocated(lambda: cupy.ascontiguousarray(array), "copy of an input in another memory order")

    def _allocated(self, allocate: Callable[[], Any], what: str) -> Any:
        """What `allocate` gives; where memory runs out, once more after what the pool keeps for later went back to the
        device."""
        with suppress(OutOfMemoryError):
            return allocate()
        cupy.get_default_memory_pool().free_all_blocks()
        try:
            return allocate()
        except OutOfMemoryError as error:
            raise WorkspaceError(
                f"{self.problem.op}: the device has no memory for the {what}: {error} Free arrays that are not "
                "needed any more, or "
                f"set options(workspace_limit=...) to choose an algorithm that needs less."
            ) from error


@lru_cache(maxsize=64)
def _with(device: Device, aligned: bool) -> Device:
    """The device as one whose arrays are all aligned, or not."""
    return device if aligned else changed(device, aligned=False)


def _workspace_of(problem: Problem, method: Method, program: Program) -> int:
    """Bytes of scratch memory that the launches take."""
    return method.workspace(problem) if program.workspace is None else program.workspace


def _backwards(spec: Spec) -> bool:
    return any(s < 0 for s in spec.strides or ())


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


_MEMORY = Memory(ARRAY, _overlap, lambda array: array.data.ptr)
