"""`Call`: an operation on arrays of known shapes, written as a text and read back.

The text is the only attribute of the custom calls in XLA's programs. It says everything that there is to know, so that
an executable works in the process that compiled it and in any other that loads it from a cache or a file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax

import dnnarray
from dnnarray._call.dispatch import checked_runtime, prepare
from dnnarray._call.introspect import question
from dnnarray._call.operation import Operation, find
from dnnarray._options import DEFAULT, Options, current
from dnnarray._problems.base import Problem, tree_map
from dnnarray._select import choose
from dnnarray._spec import Spec, as_dtype
from dnnarray.interop import options as texts

_SETTINGS = (
    "deterministic",
    "autotune",
    "workspace_limit",
    "float32_precision",
    "telemetry",
    "check_finite",
    "threads",
    "record",
)


def write(
    operation: Operation, arrays: tuple[Any, ...], options: dict[str, Any], drawn: dict[str, Spec], settings: Options
) -> str:
    """The text of a call.

    Parameters
    ----------
    arrays : a `Spec` for each array in signature order, an int for a number, None where omitted, nested where the
        operation is
    options : everything else by name, but for the run-time options in `drawn`, which are arrays too
    """
    changed = {n: v for n in _SETTINGS if (v := getattr(settings, n)) != getattr(DEFAULT, n)}
    described = {n: _write_tree(spec) for n, spec in drawn.items()}
    return texts.write([operation.name, _write_tree(arrays), options, described, changed])


def _write_tree(tree: Any) -> Any:
    if isinstance(tree, Spec):
        return f"{tree.dtype.name}[{','.join(map(str, tree.shape))}]"
    if isinstance(tree, (tuple, list)):
        branches = [_write_tree(branch) for branch in tree]
        name = type(tree).__name__
        return {name: branches} if getattr(dnnarray, name, None) is type(tree) else branches
    return tree


def _read_tree(tree: Any) -> Any:
    if isinstance(tree, str):
        dtype, _, extents = tree[:-1].partition("[")
        return Spec(tuple(int(n) for n in extents.split(",") if n), as_dtype(dtype))
    if isinstance(tree, dict):
        ((name, branches),) = tree.items()
        return getattr(dnnarray, name)(*map(_read_tree, branches))
    return tuple(map(_read_tree, tree)) if isinstance(tree, list) else tree


@lru_cache(maxsize=4096)
def read(text: str) -> Call:
    """The call of a text."""
    return Call(text)


class Call:
    """An operation with everything but the data.

    Attributes
    ----------
    text : what `write` wrote
    operation, arrays, options, drawn : as `write` has them
    settings : the options of the library in force when the call was traced
    seen : arrays and results by the addresses of their memory
    prepared : what `prepare` gave, by the place
    inputs : a `Spec` for each array in the order of XLA's operands: the arrays, then the run-time options that are
        arrays
    """

    def __init__(self, text: str) -> None:
        self.text = text
        name, arrays, options, drawn, changed = json.loads(text)
        self.operation = find(name)
        self.arrays: tuple[Any, ...] = _read_tree(arrays)
        self.options = {n: texts.frozen(v) for n, v in options.items()}
        self.drawn: dict[str, Spec] = {n: _read_tree(spec) for n, spec in drawn.items()}
        self._changed = changed
        self.settings = _settings(changed)
        self.inputs = [*arrays_of(self.arrays), *self.drawn.values()]
        self.seen: dict[tuple[int | None, ...], tuple[list[Any], list[Any]]] = {}
        self.prepared: dict[Any, Any] = {}
        self._count = len(self.inputs) - len(self.drawn)

    @cached_property
    def problem(self) -> Problem:
        """The checked problem. A call that is wrong raises dnnarray's own errors here, and so does one that no
        algorithm of the engine runs."""
        operation = self.operation
        named = dict(zip(operation.arrays, self.arrays, strict=True)) | self.options | dict.fromkeys(self.drawn, 0)
        with dnnarray.options(**self._changed, specs_on=engine_name()):
            asked = question(operation.function, (), named)
            choose(
                asked.problem,
                asked.engine.device(),
                current(),
                asked.engine.methods(operation),
                asked.algorithm,
                asked.measured(),
            )
        checked_runtime(
            operation, asked.problem, tuple(0 if n in self.drawn else self.options[n] for n in operation.runtime)
        )
        return asked.problem

    def prepare(self, engine: Any, arrays: tuple[Any, ...]) -> Any:
        """The call with its algorithm, on an engine and the place where the arrays are."""
        options = tuple(self.options[n] for n in self.operation.static)
        return prepare(engine, self.settings, self.operation, self.options.get("algorithm"), options, arrays)

    @cached_property
    def outputs(self) -> list[Spec]:
        """The results that are present."""
        return [spec for spec in self.problem.outputs if spec is not None]

    @cached_property
    def rank(self) -> int:
        """The number of axes of the first result."""
        return self.outputs[0].ndim

    @cached_property
    def memory_in(self) -> list[tuple[Any, ...]]:
        """Shape, dtype and bytes of each input."""
        return [(s.shape, s.dtype, s.nbytes) for s in self.inputs]

    @cached_property
    def memory_out(self) -> list[tuple[Any, ...]]:
        """Shape, dtype and bytes of each result."""
        return [(s.shape, s.dtype, s.nbytes) for s in self.outputs]

    @cached_property
    def _places(self) -> list[int | None] | None:
        """Where each argument stands in XLA's order, None where it is omitted; nothing where an argument is nested or a
        number."""
        if any(not isinstance(tree, Spec | None) for tree in self.arrays):
            return None
        given = itertools.count()
        return [None if spec is None else next(given) for spec in self.arrays]

    def fill(self, flat: Sequence[Any], number: Callable[[int], Any] = int) -> tuple[Any, ...]:
        """The arrays in the form in which the operation takes them, from those in XLA's order; what is a number by
        `number`."""
        if self._places is not None:
            return tuple([None if place is None else flat[place] for place in self._places])
        given = iter(flat)
        return tuple(
            tree_map(lambda leaf: number(leaf) if type(leaf) is int else next(given), tree) for tree in self.arrays
        )

    def runtime(self, flat: Sequence[Any], number: Callable[[Any], int]) -> tuple[int | None, ...]:
        """The run-time options in their order, checked; `number` reads one that is an array."""
        if not self.operation.runtime:
            return ()
        given = dict(zip(self.drawn, flat[self._count :], strict=True))
        values = [number(given[n]) if n in given else self.options[n] for n in self.operation.runtime]
        return checked_runtime(self.operation, self.problem, tuple(values))

    def observed(self, arrays: tuple[Any, ...], runtime: tuple[int | None, ...], out: Sequence[Any]) -> None:
        """Run by the public function, which counts, times and looks at what the settings ask for."""
        named = dict(zip(self.operation.runtime, runtime, strict=True))
        self.operation.call(arrays, self.options | named | {"out": tuple(out)})

    def pack(self, results: Sequence[Any]) -> Any:
        """What the function returns, of the results that are present."""
        given = iter(results)
        placed = [None if spec is None else next(given) for spec in self.problem.outputs]
        return placed[0] if self.problem.returns is None else self.problem.returns(*placed)

    def changed(self, inputs: Sequence[Spec], options: dict[str, Any]) -> Call:
        """The same operation on arrays of other shapes, with other options."""
        drawn = dict(zip(self.drawn, inputs[self._count :], strict=True))
        return read(write(self.operation, self.fill(inputs), options, drawn, self.settings))


def arrays_of(tree: Any) -> list[Any]:
    """The entries of a nested argument that are arrays, in order."""
    return list(_arrays_of(tree))


def _arrays_of(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from _arrays_of(branch)
    elif tree is not None and type(tree) is not int:
        yield tree


def _settings(changed: dict[str, Any]) -> Options:
    if not changed:
        return DEFAULT
    with dnnarray.options(**changed):
        return current()


def engine_name() -> str:
    """The engine that serves the arrays which JAX makes by default."""
    return "cuda" if jax.default_backend() in ("gpu", "cuda") else "cpu"
