"""What the call layer asks of an engine, and what an engine knows of an operation.

The modules `dnnarray._cpu.engine` and `dnnarray._cuda.engine` implement `Engine`; an engine of another device is a
module or an object with the same functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dnnarray._engine.kinds import Kind
from dnnarray._engine.outputs import Output
from dnnarray._options import Options
from dnnarray._problems.base import Problem

if TYPE_CHECKING:
    from dnnarray._select import Device, Method


class Called(Protocol):
    """The part of an operation that an engine knows: its names, its arguments, and the check of its values."""

    @property
    def name(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def arrays(self) -> tuple[str, ...]: ...
    @property
    def runtime(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> Callable[..., None] | None: ...


class Prepared(Protocol):
    """A problem whose algorithm is chosen; it can be called any number of times on arrays of the same specs."""

    @property
    def problem(self) -> Problem: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    @property
    def pack(self) -> Callable[..., Any] | None: ...

    def call(self, arrays: tuple[Any, ...], runtime: tuple[Any, ...], out: Any, workspace: Any) -> Sequence[Any]:
        """The results as the engine's own arrays, in `out` where that is given."""

    def with_stand_ins(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arrays with one of the engine's own in the place of each `Spec`."""


class Engine(Protocol):
    """Chooses among the algorithms of an operation on one kind of device, and runs the chosen one."""

    def device(self) -> Device:
        """The current device, as the selection sees it."""

    def device_for(self, arrays: Any) -> Device:
        """The current device, with what a choice for these arrays depends on beside their specs."""

    def place(self, array: Any) -> Any:
        """The device on which an array lies, as far as plans depend on it."""

    def current_place(self) -> Any:
        """The device on which a call runs."""

    def at(self, place: Any) -> AbstractContextManager[Any]:
        """A context in which the engine works on that device."""

    def methods(self, op: Called) -> tuple[Method, ...]:
        """The algorithms of an operation."""

    def number(self, value: int) -> Any:
        """A Python integer as a 0-d array of the engine."""

    def prepare(self, op: Called, problem: Problem, config: Options, algorithm: str | None) -> Any:
        """The problem with its chosen algorithm, a `Prepared`."""

    def make_ready(self, op: Called, problem: Problem) -> None:
        """Compile what has to be compiled before algorithms can be measured."""

    def look_on_disk(self, op: Called, problem: Problem) -> None:
        """Load what earlier processes have compiled, where a choice depends on it."""

    def measure(
        self,
        op: Called,
        problem: Problem,
        arrays: tuple[Any, ...],
        runtime: tuple[Any, ...],
        candidates: list[Method],
    ) -> dict[str, float]:
        """Milliseconds by algorithm; a `Spec` among the arrays is given drawn data."""


class DeviceEngine(Engine, Protocol):
    """An engine of a device with streams and memory of its own."""

    ARRAY: type

    def kind(self) -> Kind:
        """How the body of a public function looks up calls on the engine's own arrays."""

    def alone(self) -> bool:
        """Whether the machine has a single such device."""

    def view(
        self,
        pointer: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        strides: tuple[int, ...],
        owner: Any,
        index: int,
    ) -> Any:
        """Memory of another library as an array of the engine; `strides` in bytes. `owner` is kept alive with it."""

    def from_dlpack(self, array: Any) -> Any:
        """An array of any library over the same memory, in order with what its library has queued."""

    def hold(self, arrays: Any) -> None:
        """Keep arrays alive until the work queued so far on the current stream is done."""

    def on_stream(self, pointer: int) -> AbstractContextManager[Any]:
        """A context in which the stream with this handle is the current one."""
