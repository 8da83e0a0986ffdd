"""Algorithms whose kernels Numba compiles, as entries of the ALGORITHMS tables.

This file imports no Numba: a table can name a compiled algorithm where Numba is missing, and `rejects` then says so.
The kernels and the functions that call them (drivers) stand in ``compiled/<module>.py``, imported when they are first
wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

from dnnarray import _cache
from dnnarray._cpu.compiled import compiler
from dnnarray._cpu.compiled.compiler import PENDING, Unit, build
from dnnarray._options import Options
from dnnarray._problems.base import Problem, leaves
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method, rank
from dnnarray._spec import FLOAT32, FLOAT64, FLOATING

__all__ = [
    "PENDING",
    "Compiled",
    "Unit",
    "arithmetic",
    "await_better",
    "build",
    "compile_now",
    "look_on_disk",
    "method",
    "numpy_cost",
    "units",
]
_WORTH = 1 << 17  # bytes that a call must move before it starts a compiler in the background
_DRIVER_CALLS = 3  # NumPy calls that are worth as much as a driver and the start of its kernel


@frozen
class Compiled:
    """The `run` of a compiled algorithm: the driver of this name in ``compiled/<module>.py``."""

    module: str
    driver: str
    accepts: Callable[[Any, Device], str | None]
    target: Callable[[str], str | None] = lambda dtype: (
        None
    )  # why its kernels cannot be compiled for a dtype on this machine

    def __call__(self, problem: Problem, outputs: Any, scratch: Any, *arrays: Any, **runtime: Any) -> None:
        self.function(problem, outputs, scratch, *arrays, **runtime)

    def direct(self, problem: Problem) -> Callable[[Iterable[Any], Iterable[Any]], bool] | None:
        """``start(arrays, outputs)`` for arrays that lie as the problem says: the kernels without anything that depends
        on the problem alone. It says whether it could, having done nothing where not; None where the driver has no plan
        for such arrays."""
        plan = self.function.direct
        if plan is None or (run := plan(problem)) is None:
            return None

        def start(arrays: Iterable[Any], outputs: Iterable[Any]) -> bool:
            for array in arrays:
                if array is not None and not array.flags.aligned:
                    return False
            try:
                run(*arrays, *outputs)
            except MemoryError:  # for scratch memory: another algorithm may need less
                return False
            return True

        return start

    @cached_property
    def function(self) -> Any:
        """The driver; its `kernels` are what must be compiled first."""
        return getattr(import_module(self.path), self.driver)

    @property
    def path(self) -> str:
        """The module's full name."""
        return f"dnnarray._cpu.compiled.{self.module}"

    def unit(self, problem: Problem) -> Unit:
        return compiler.unit(self, arithmetic(problem))

    def rejects(self, problem: Problem, device: Device) -> str | None:
        return compiler.missing() or self.accepts(problem, device) or self.unit(problem).reason()

    def awaited(self, problem: Problem, device: Device) -> Unit | None:
        """What the compiler has still to do before this algorithm can run the problem; None where there is nothing that
        would help."""
        if compiler.missing() or self.accepts(problem, device):
            return None
        unit = self.unit(problem)
        return unit if unit.state in (compiler.NEW, PENDING) else None


def arithmetic(problem: Problem) -> str:
    """The dtype that the kernels compute in: float64 for float64, float32 for it and the half types, which arrive
    widened."""
    dtypes = [s.dtype for s in (*leaves(problem.inputs), *problem.outputs) if s is not None and s.dtype in FLOATING]
    return FLOAT64.name if FLOAT64 in dtypes else FLOAT32.name


def compiled_cost(problem: Problem, device: Device) -> Cost:
    """The definition's own operations and bytes."""
    return Cost(problem.flops, problem.bytes, launches=_DRIVER_CALLS)


def numpy_cost(calls: int) -> Callable[[Problem, Device], Cost]:
    """What the NumPy entry beside a compiled one is predicted to take: so many calls, each over blocks in the cache, on
    one core."""
    return lambda problem, device: Cost(problem.flops, 2 * problem.bytes, launches=calls)


def method(
    name: str,
    module: str,
    driver: str,
    summary: str,
    *,
    accepts: Callable[[Any, Device], str | None] = lambda problem, device: None,
    target: Callable[[str], str | None] = lambda dtype: None,
    cost: Callable[[Any, Device], Cost] = compiled_cost,
    **attributes: Any,
) -> Method:
    """A table's entry. `accepts(problem, device)` gives None, or why the kernels cannot do this problem,
    `target(dtype)` the same of all problems that compute in this dtype; the rest is as in `Method`."""
    run = Compiled(module, driver, accepts, target)
    return Method(name, run, summary, rejects=run.rejects, cost=cost, **attributes)


def _awaited(table: Iterable[Method], problem: Problem, device: Device) -> dict[str, Unit]:
    """What the compiler has still to do for the algorithms of a table, by their names."""
    runs = {entry.name: entry.run for entry in table if isinstance(entry.run, Compiled)}
    return {name: unit for name, run in runs.items() if (unit := run.awaited(problem, device)) is not None}


def await_better(
    table: Sequence[Method], problem: Problem, device: Device, options: Options, chosen: Method
) -> Unit | None:
    """Start the compiler on what the options allow and would be predicted to be faster than the algorithm that was
    chosen; gives the unit to wait for."""
    if problem.bytes < _WORTH or not (units := _awaited(table, problem, device)):
        return None
    asked: dict[str, Any] = {"rejects": lambda problem, device: None}
    if options.workspace_limit is None:
        asked["workspace"] = lambda problem: (
            0
        )  # no matter: to tell it some import Numba, and a first call does not wait
    as_if_ready = [replace(entry, **asked) for entry in table if entry.name in units]
    best = rank(problem, device, options, [chosen, *as_if_ready])[0].method
    if best is chosen:
        return None
    units[best.name].request()
    return units[best.name]


def compile_now(table: Sequence[Method], problem: Problem, device: Device, name: str | None = None) -> None:
    """Wait for the compiler: of the algorithm that a caller names, or of all that are to be measured."""
    units = _awaited(table, problem, device).items()
    compiler.build([unit for entry, unit in units if name is None or str(name) == entry])


def look_on_disk(table: Sequence[Method], problem: Problem, device: Device) -> None:
    """Before a question about a problem: load what a call would load, and look for what it would not."""
    if _cache.holds(_cache.KERNELS, ""):  # else there is no need to import Numba
        for unit in _awaited(table, problem, device).values():
            if problem.bytes < _WORTH:
                unit.look()
            else:
                unit.load()


def units(tables: Iterable[Sequence[Method]], dtypes: Iterable[str]) -> list[Unit]:
    """What the compiled algorithms of these tables need in these dtypes; none where Numba is missing."""
    if compiler.missing():
        return []
    runs = dict.fromkeys(m.run for table in tables for m in table if isinstance(m.run, Compiled))
    return [compiler.unit(run, dtype) for run in runs for dtype in dtypes]
