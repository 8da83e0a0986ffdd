"""The CPU engine: chooses among a family's ALGORITHMS and runs the winner on NumPy arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from dnnarray._cpu import blas, compiled, memory, threads, views
from dnnarray._engine import counters
from dnnarray._engine.outputs import Memory, Output, check_apart, check_workspace, pairs_in_place, users_own
from dnnarray._errors import UnsupportedError, WorkspaceError, fail
from dnnarray._options import Options
from dnnarray._problems.base import Problem, leaves, tree_map
from dnnarray._select import Device, Method, choose, tuning
from dnnarray._spec import FLOAT32, HALF, Spec, drawn

if TYPE_CHECKING:
    from dnnarray._engine.doors import Views
    from dnnarray._engine.protocol import Called

_GFLOPS_PER_CORE = (
    100e9  # float32 multiply-adds of one current core with 256- or 512-bit vectors, counted as two operations each
)
_BANDWIDTH_PER_CORE = (
    10e9  # bytes per second: memory channels come with cores, and what is best on two stays best on many
)
_NUMPY_CALL = 2e-6  # seconds that one NumPy call on small arrays costs
_MIN_REPEATS, _MAX_REPEATS, _MEASURE_SECONDS = 3, 100, 0.05  # how long autotune looks at one algorithm
# bytes of a problem, below which no product of it is large enough for a BLAS to start threads of its own
_MULTIPLIES = 1 << 15
_NOTHING = nullcontext()
_OVERLAP_WORK = 1000  # how hard to look for a real overlap of strided arrays before taking it for one


@lru_cache(maxsize=1)
def device() -> Device:
    """This machine's processor."""
    cores = threads.cores()
    peak = {"float32": cores * _GFLOPS_PER_CORE, "float64": cores * _GFLOPS_PER_CORE / 2}
    peak |= dict.fromkeys(("float16", "bfloat16"), peak["float32"])
    return Device(f"CPU ({cores} cores)", "cpu", cores, peak, cores * _BANDWIDTH_PER_CORE, _NUMPY_CALL)


def device_for(arrays: Any) -> Device:
    """The device, as a choice for these arrays sees it: the algorithms of this engine take arrays at any address."""
    return device()


def place(array: Any) -> str:
    """Where an array lives, as far as plans depend on it: one processor, one place."""
    return "cpu"


def current_place() -> str:
    """Where a call runs."""
    return "cpu"


def at(place: str) -> Any:
    """A context in which the engine works there: nothing to do."""
    return _NOTHING


def methods(op: Called) -> tuple[Method, ...]:
    """The entries of the ALGORITHMS table for an operation."""
    return import_module(f"dnnarray._cpu.{op.family}").ALGORITHMS[op.base]


def number(value: int) -> np.ndarray:
    """A Python integer as a 0-d array."""
    return np.asarray(value)


def prepare(op: Called, problem: Problem, config: Options, algorithm: str | None) -> Prepared:
    """Choose the algorithm for a problem; what comes back can be called any number of times."""
    table = methods(op)
    if algorithm is not None:
        compiled.compile_now(table, problem, device(), algorithm)
    chosen = choose(problem, device(), config, table, algorithm, _measured(problem, config, table))
    prepared = Prepared(op, problem, chosen, chosen.workspace(problem), config, table)
    return prepared.awaiting() if algorithm is None else prepared


def _measured(problem: Problem, config: Options, table: Sequence[Method]) -> dict[str, float] | None:
    """Milliseconds by algorithm from the tuning table."""
    return tuning.measured(problem, device(), config) if len(table) > 1 else None


def make_ready(op: Called, problem: Problem) -> None:
    """Have every algorithm compiled that may be measured."""
    compiled.compile_now(methods(op), problem, device())


def look_on_disk(op: Called, problem: Problem) -> None:
    """Know what earlier processes have compiled."""
    compiled.look_on_disk(methods(op), problem, device())


def measure(
    op: Called, problem: Problem, arrays: tuple[Any, ...], runtime: tuple[Any, ...], candidates: list[Method]
) -> dict[str, float]:
    """Milliseconds by algorithm: the best of several repeats after a first run. A Spec among the arrays is given drawn
    data."""
    data = tuple(tree_map(lambda a: drawn(a) if isinstance(a, Spec) else np.asarray(a), a) for a in arrays)
    return {
        m.name: _best_time(Prepared(op, problem, m, m.workspace(problem), Options(), candidates), data, runtime)
        for m in candidates
    }


def _best_time(prepared: Prepared, arrays: tuple[Any, ...], runtime: tuple[Any, ...]) -> float:
    prepared.call(arrays, runtime, None, None)
    best, spent, repeats = float("inf"), 0.0, 0
    while repeats < _MIN_REPEATS or (spent < _MEASURE_SECONDS and repeats < _MAX_REPEATS):
        start = time.perf_counter()
        prepared.call(arrays, runtime, None, None)
        last = time.perf_counter() - start
        best, spent, repeats = min(best, last), spent + last, repeats + 1
    return best * 1e3


class _Chosen(NamedTuple):
    """An algorithm and what it asks of the engine. Calls of other threads may choose anew: one call goes by one of
    these from its beginning."""

    method: Method
    workspace: int
    widen: bool


class Prepared:
    """A problem with its algorithm: everything about a call but the data."""

    def __init__(
        self, op: Called, problem: Problem, method: Method, workspace: int, config: Options, table: Sequence[Method]
    ) -> None:
        self.op, self.problem = op, problem
        self._config, self._table = config, table
        self.outputs = [Output(spec) for spec in problem.outputs if spec is not None]
        self._fits = sum(o.spec.nbytes for o in self.outputs) <= memory.most()
        self._absent = [i for i, spec in enumerate(problem.outputs) if spec is None]
        self._in_place, self._unread = pairs_in_place(problem), problem.unread
        self.pack = problem.returns
        specs = leaves(problem.inputs) + [s for s in problem.outputs if s is not None]
        self._multiplying = blas.single_threaded if problem.bytes >= _MULTIPLIES else _NOTHING
        self._half = any(s.dtype in HALF for s in specs)
        self._chosen = _Chosen(method, workspace, self._half and not method.native)
        self._direct: Any = (
            None  # the shortest way of a warm call, False where there is none; looked for once nothing is awaited
        )
        self._awaited: compiled.Unit | None = None  # what is being compiled and would be faster
        self._named = True  # by the caller: no other algorithm takes over

    def awaiting(self) -> Prepared:
        """Itself, free to change over, and having started the compiler on a faster algorithm where there is one."""
        self._named = False
        self._awaited = compiled.await_better(self._table, self.problem, device(), self._config, self._chosen.method)
        return self

    def call(self, arrays: tuple[Any, ...], runtime: tuple[Any, ...], out: Any, workspace: Any) -> tuple[Any, ...]:
        """Run on `arrays` and return the flat results, None where a result is absent."""
        if out is None and workspace is None:
            return self.into(None, arrays, runtime)
        chosen, scratch = self._ready(workspace)
        self._check_values(chosen, arrays)
        results, over = (self._new_results(), []) if out is None else self._users_own(out, arrays)
        targets = self._elsewhere(results, over) if over and not chosen.method.in_place else results
        if workspace is not None and chosen.workspace:
            check_apart(self.problem.op, workspace[: chosen.workspace], [*leaves(arrays), *results], _overlap)
        placed = self._run(chosen, arrays, runtime, targets, scratch)
        return placed if targets is results else self._written_over(results, targets)

    def into(self, results: list[Any] | None, arrays: tuple[Any, ...], runtime: tuple[Any, ...]) -> tuple[Any, ...]:
        """`call` with its results in new memory; None for memory of its own."""
        if self._direct and (found := self._straight(self._direct, arrays, results)) is not None:
            return found
        chosen, scratch = self._ready(None)
        self._check_values(chosen, arrays)
        placed = self._run(chosen, arrays, runtime, self._new_results() if results is None else results, scratch)
        if self._direct is None and self._awaited is None and chosen is self._chosen:
            self._direct = self._direct_by(chosen)
        return placed

    def _ready(self, workspace: Any) -> tuple[_Chosen, Any]:
        """The algorithm, with its scratch memory."""
        awaited = self._awaited
        if awaited is not None and awaited.state is not compiled.PENDING:
            self._change_over(workspace)
        chosen = self._chosen
        return self._with_scratch(chosen, workspace) if chosen.workspace or workspace is not None else (chosen, None)

    def _check_values(self, chosen: _Chosen, arrays: tuple[Any, ...]) -> None:
        if self.op.values is not None and not chosen.method.looks:
            self.op.values(self.problem, *arrays)

    def _run(
        self, chosen: _Chosen, arrays: tuple[Any, ...], runtime: tuple[Any, ...], results: list[Any], scratch: Any
    ) -> tuple[Any, ...]:
        """The results, computed, with None where one is absent."""
        if self._config.telemetry:
            counters.note_algorithm(self.problem, chosen.method.name, chosen.workspace)
        named = dict(zip(self.op.runtime, runtime, strict=True)) if runtime else {}
        placed = self.placed(results)
        with self._multiplying:
            if chosen.widen:
                _quiet(self._run_widened, chosen.method, arrays, named, results, scratch)
            else:
                _quiet(chosen.method.run, self.problem, placed, scratch, *arrays, **named)
        return placed

    def _straight(self, direct: Any, arrays: tuple[Any, ...], results: list[Any] | None) -> tuple[Any, ...] | None:
        """The results of `direct`; None where it could not take these arrays."""
        if self.op.values is not None:
            self.op.values(self.problem, *arrays)
        results = self._new_results() if results is None else results
        placed = self.placed(results)
        return placed if direct(arrays, placed) else None

    def _direct_by(self, chosen: _Chosen) -> Any:
        """What runs an algorithm with all that depends on the problem done, on arrays and results; False where it has
        no such thing."""
        method, draws = chosen.method, self.op.runtime and self.problem.needs_seed
        if chosen.widen or draws or self._config.telemetry:
            return False
        if isinstance(method.run, compiled.Compiled):
            return method.run.direct(self.problem) or False
        if chosen.workspace or method.looks or self.op.runtime or self._multiplying is not _NOTHING:
            return False
        run, problem = method.run, self.problem

        @np.errstate(all="ignore")
        def plain(arrays: tuple[Any, ...], outputs: tuple[Any, ...]) -> bool:
            run(problem, outputs, None, *arrays)
            return True

        return plain

    def with_stand_ins(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """An array in the place of each `Spec`."""
        return tuple(tree_map(lambda a: _stand_in(a, a.dtype) if isinstance(a, Spec) else a, array) for array in arrays)

    def warm(self, runtime: tuple[Any, ...], out: Any, workspace: Any, *arrays: Any) -> Any:
        """What the public function returns."""
        results = self.call(arrays, runtime, out, workspace)
        return results[0] if self.pack is None else self.pack(*results)

    def by_views(self, way: Views) -> Callable[..., Any]:
        """What `warm` is, for another library's arrays: views of them are computed with, and results are that library's
        own memory."""
        return views.by_views(self, way)

    def made(self, makers: Sequence[Callable[[tuple[Any, ...]], Any]], arrays: tuple[Any, ...]) -> list[Any]:
        """New memory of another library for all results."""
        try:
            if not self._fits:
                raise MemoryError
            return [make(arrays) for make in makers]
        except (MemoryError, RuntimeError):  # PyTorch's for what it cannot allocate
            self._no_memory(self.outputs)

    def _new_results(self, outputs: list[Output] | None = None) -> list[Any]:
        """New memory for all results, or for these."""
        wanted = self.outputs if outputs is None else outputs
        try:
            if not self._fits:
                raise MemoryError
            return [o.empty(np.empty) for o in wanted]
        except (MemoryError, ValueError):  # NumPy's ValueError: beyond what an address can reach
            self._no_memory(wanted)

    def _no_memory(self, outputs: list[Output]) -> NoReturn:
        shapes = " and ".join(str(o.shape) for o in outputs)
        fail(WorkspaceError, self.problem.op, "the result", f"of shape {shapes}", "a size that memory can hold")

    def placed(self, results: list[Any]) -> tuple[Any, ...]:
        """The results with None where one is absent."""
        if not self._absent:
            return tuple(results)
        filled = iter(results)
        return tuple(None if i in self._absent else next(filled) for i in range(len(self.problem.outputs)))

    def _run_widened(
        self, method: Method, arrays: tuple[Any, ...], named: dict[str, Any], results: list[Any], scratch: Any
    ) -> None:
        """Half types in and out, float32 in between."""
        wide = tuple(tree_map(_seen if i in self._unread else _widened, a) for i, a in enumerate(arrays))
        targets = [np.empty_like(r, dtype=FLOAT32) if r.dtype in HALF else r for r in results]
        method.run(self.problem, self.placed(targets), scratch, *wide, **named)
        for result, target in zip(results, targets, strict=True):
            if target is not result:
                result[...] = target

    def _users_own(self, out: Any, arrays: tuple[Any, ...]) -> tuple[list[Any], list[int]]:
        return users_own(self.problem, self.outputs, out, leaves(arrays), _MEMORY, self._in_place)

    def _elsewhere(self, results: list[Any], over: list[int]) -> list[Any]:
        """The results with new memory in the place of those that are inputs too."""
        new = dict(zip(over, self._new_results([self.outputs[j] for j in over]), strict=True))
        return [new.get(j, result) for j, result in enumerate(results)]

    def _written_over(self, results: list[Any], targets: list[Any]) -> tuple[Any, ...]:
        """The results, with what was written elsewhere copied to where the caller wants it."""
        for result, target in zip(results, targets, strict=True):
            if target is not result:
                result[...] = target
        return self.placed(results)

    def _with_scratch(self, chosen: _Chosen, workspace: Any) -> tuple[_Chosen, np.ndarray | None]:
        """The caller's scratch memory, checked, or our own; a smaller algorithm takes over where memory runs out."""
        if workspace is not None:
            given = getattr(workspace, "nbytes", 0)
            if not self._named and given < chosen.workspace:
                chosen = self._told_by_infer(given)
            return chosen, check_workspace(self.problem.op, workspace, chosen.workspace, np.ndarray)
        try:
            scratch = memory.scratch(chosen.workspace)
        except MemoryError:
            return self._fall_back(chosen)
        except ValueError:
            # more bytes than an address can count: an extent is a slip, and no other algorithm would end within a
            # lifetime
            fail(
                WorkspaceError,
                self.problem.op,
                "the workspace",
                f"of {chosen.workspace:,} bytes",
                "a size that memory can hold",
            )
        return (chosen, scratch) if chosen.workspace <= memory.most() else self._fall_back(chosen)

    def _told_by_infer(self, given: int) -> _Chosen:
        """The algorithm whose scratch memory `infer` tells now or told before anything was compiled, whichever of them
        fits."""
        chosen = self._take(self._best(self._config, self._table))  # what has been compiled or measured since
        if given < chosen.workspace:
            with suppress(
                WorkspaceError, UnsupportedError
            ):  # the options in force may leave nothing that is not compiled
                before = self._best(self._config, [m for m in self._table if not isinstance(m.run, compiled.Compiled)])
                if before.workspace(self.problem) <= given:
                    return self._take(before)
        return chosen

    def _fall_back(self, chosen: _Chosen) -> tuple[_Chosen, np.ndarray | None]:
        limit = chosen.workspace - 1
        smaller = [
            m for m in self._table if m.rejects(self.problem, device()) is None and m.workspace(self.problem) <= limit
        ]
        if not smaller:
            raise WorkspaceError(
                f"{self.problem.op}: no memory for {chosen.workspace:,} bytes of workspace, and no algorithm needs "
                "less."
            )
        chosen = self._take(choose(self.problem, device(), replace(self._config, workspace_limit=limit), smaller))
        return self._with_scratch(chosen, None) if chosen.workspace else (chosen, None)

    def _take(self, method: Method) -> _Chosen:
        self._direct = None
        self._chosen = chosen = _Chosen(method, method.workspace(self.problem), self._half and not method.native)
        return chosen

    def _best(self, config: Options, table: Sequence[Method]) -> Method:
        """What would be chosen of a table now."""
        return choose(
            self.problem, device(), config, table, measured=_measured(self.problem, self._config, self._table)
        )

    def _change_over(self, workspace: Any) -> None:
        """What was awaited has been compiled (or could not be): choose anew, within the caller's workspace if there is
        one."""
        given = None if workspace is None else getattr(workspace, "nbytes", 0)
        limits = [limit for limit in (self._config.workspace_limit, given) if limit is not None]
        config = replace(self._config, workspace_limit=min(limits)) if limits else self._config
        chosen = self._take(self._best(config, self._table))
        self._awaited = compiled.await_better(self._table, self.problem, device(), self._config, chosen.method)


@np.errstate(all="ignore")  # which takes less time than a context
def _quiet(run: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    run(*arguments, **named)


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any count is allowed
    except np.exceptions.TooHardError:
        return True


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


_MEMORY = Memory(np.ndarray, _overlap, _address)


def _stand_in(array: np.ndarray | Spec, dtype: np.dtype) -> np.ndarray:
    """An array of this shape without memory to speak of, where no value is read."""
    return np.broadcast_to(np.zeros((), dtype), array.shape)


def _seen(array: np.ndarray) -> np.ndarray:
    """What is seen of an array, of which no value is read, in the place of a copy in float32."""
    return _stand_in(array, FLOAT32) if array.dtype in HALF else array


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(FLOAT32) if array.dtype in HALF else array
