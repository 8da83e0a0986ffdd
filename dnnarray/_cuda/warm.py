"""The warm call: everything that a call does once its problem is known, as one function written for that problem and for the arrays of one library.

A launch costs the driver 3 us and a new array 1 us; loops over inputs and results, with a method for each step, would cost as much again. So what
`Prepared.call` does is written out as source text, in which the numbers of the problem have names, for the state that nearly all calls are in: nothing to
copy, all memory on the plan's device and as aligned as the plan has it. Memory of the other alignment is handed to the text for that, results that are to
lie otherwise to `Elsewhere`. In any other state the function does nothing and returns None, and `Prepared.call` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import Any

from cupy.cuda.memory import OutOfMemoryError

from dnnarray._cuda.dialect import VECTOR, Dialect, Shape
from dnnarray._cuda.launch import Launches, written
from dnnarray._problems.base import leaves
from dnnarray._spec import Spec

_OTHERWISE = "otherwise"  # in the scope of a text: the call for memory that is not as aligned as this one has it


def compile_call(shape: Shape, pack: Callable[..., Any] | None, launches: Launches, dialect: Dialect) -> Callable[..., Any]:
    """``call(runtime, out, workspace, *arrays)`` gives what the public function returns, or None."""
    elsewhere = Elsewhere(shape, pack, dialect)
    scope = launches.scope | dialect.scope | {"OutOfMemoryError": OutOfMemoryError, "pack": pack, "several": (tuple, list)}
    scope |= {f"bytes_out{k}": span(output.spec) for k, output in enumerate(shape.outputs)}
    scope |= {f"bytes_in{i}": span(spec) for i, spec in enumerate(shape.given)}
    scope |= {
        "leaves": leaves,
        "elsewhere": elsewhere,
        "own_scratch": dialect.own_scratch,
        "bytes_scratch": shape.workspace,
        _OTHERWISE: _nothing,
    }
    arguments, taken_apart = _arguments(shape)
    given = f"(runtime, out, workspace, {', '.join(arguments)})"
    inputs, results = _inputs(shape), [f"q{k}" for k in shape.results]
    lines = [
        f"def call{given}:",
        *(f"    {line}" for line in taken_apart),
        *(f"    {line}" for i in range(len(inputs)) for line in dialect.read(i)),
        *([f"    if {_odd(inputs)}: return {_OTHERWISE}{given}"] if shape.aligned and inputs else []),
        "    if out is None:",
        "        try:",
        *(f"            {line}" for k in shape.results for line in dialect.make(k)),
        "        except OutOfMemoryError: return None",
        "    else:",
        *(f"        {line}" for line in _take_users_own(shape, pack, dialect, given)),
        *([f"    if {_odd(results)}: return {_OTHERWISE}{given}"] if shape.aligned else _not_aligned(shape, [*inputs, *results])),
        *(f"    {line}" for line in _take_scratch(shape, dialect)),
        *launches.lines([*inputs, *results, *(["s"] if shape.workspace else [])], dialect.stream),
        f"    return {_result(shape, pack)}",
    ]
    elsewhere.call = call = written("call", lines, scope)
    return call


def hand_on(call: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Let `call`, for aligned memory, give what is not aligned to `other`."""
    call.__globals__[_OTHERWISE] = other  # type: ignore[attr-defined]


def _nothing(*given: Any) -> None:
    """What stands for a call that is not written yet."""


def _arguments(shape: Shape) -> tuple[list[str], list[str]]:
    """The names of the arguments, and lines that find the arrays in nested ones."""
    names, lines, found = [], [], 0
    for j, spec in enumerate(shape.inputs):
        arrays = [f"a{found + i}" for i in range(len(leaves(spec)))]
        found += len(arrays)
        if isinstance(spec, Spec):
            names += arrays
        else:
            names.append(f"other{j}")
            lines += [f"{', '.join(arrays)}, = leaves(other{j})"] if arrays else []
    return names, lines


def _inputs(shape: Shape) -> list[str]:
    return [f"p{i}" for i in range(len(shape.given))]


def _odd(pointers: list[str]) -> str:
    return " or ".join(f"{p} % {VECTOR}" for p in pointers)


def _not_aligned(shape: Shape, pointers: list[str]) -> list[str]:
    """Addresses that are no multiple of an element's size are an error, which the slow way raises."""
    specs = [*shape.given, *(output.spec for output in shape.outputs)]
    wide = [f"{p} % {spec.dtype.itemsize}" for p, spec in zip(pointers, specs, strict=True) if spec.dtype.itemsize > 1]
    return [f"    if not ({_odd(pointers)}): return None", *([f"    if {' or '.join(wide)}: return None"] if wide else [])]


def _take_users_own(shape: Shape, pack: Callable[..., Any] | None, dialect: Dialect, given: str) -> list[str]:
    """The caller's results where they lie as planned and apart from everything else; the slow way finds out what is wrong with others."""
    lines = ["r0 = out"]
    if pack is not None:
        lines = [
            "if not isinstance(out, several): return None",
            "found = [one for one in out if one is not None]",
            f"if len(found) != {len(shape.outputs)}: return None",
            f"{''.join(f'r{k}, ' for k in shape.results)}= found",
        ]
    lines += [line for k in shape.results for line in dialect.check(k, f"return elsewhere{given}")]
    spans = _spans(shape)
    inputs = len(shape.given)
    return [*lines, *(line for k in shape.results for line in _apart(spans[inputs + k], spans[: inputs + k]))]


def _spans(shape: Shape) -> list[tuple[str, str]]:
    """Address and bytes of the inputs and results."""
    return [*((f"p{i}", f"bytes_in{i}") for i in range(len(shape.given))), *((f"q{k}", f"bytes_out{k}") for k in shape.results)]


def _apart(one: tuple[str, str], others: list[tuple[str, str]]) -> list[str]:
    """Nothing is done where the memory of one array touches that of another."""
    a, n = one
    return [f"if {a} < {b} + {m} and {b} < {a} + {n}: return None" for b, m in others]


def _take_scratch(shape: Shape, dialect: Dialect) -> list[str]:
    if not shape.workspace:
        return ["if workspace is not None and own_scratch(workspace) is None: return None"]
    return [
        "if workspace is None:",
        "    try:",
        *(f"        {line}" for line in dialect.scratch),  # kept alive until the launches are queued
        "    except OutOfMemoryError: return None",
        "else:",
        "    s = own_scratch(workspace)",
        "    if s is None: return None",
        *(f"    {line}" for line in _apart(("s", "bytes_scratch"), _spans(shape))),
    ]


def _result(shape: Shape, pack: Callable[..., Any] | None) -> str:
    found = iter(shape.results)
    flat = ["None" if i in shape.absent else f"r{next(found)}" for i in range(len(shape.outputs) + len(shape.absent))]
    return flat[0] if pack is None else f"pack({', '.join(flat)})"


class Elsewhere:
    """A call whose results belong into memory other than planned: into new arrays as planned, and from there."""

    def __init__(self, shape: Shape, pack: Callable[..., Any] | None, dialect: Dialect) -> None:
        self._shape, self._pack, self._dialect = shape, pack, dialect
        self.call: Callable[..., Any] = _nothing

    def __call__(self, runtime: tuple[Any, ...], out: Any, workspace: Any, *arrays: Any) -> Any:
        """What the public function returns, or None."""
        dialect = self._dialect
        given = [out] if self._pack is None else [one for one in out if one is not None]
        planned = [look(one) for look, one in zip(dialect.planned, given, strict=True)]
        if False in planned or all(planned) or not self._apart(given, arrays):
            return None
        try:
            targets = [one if there else new() for one, there, new in zip(given, planned, dialect.new, strict=True)]
        except OutOfMemoryError:
            return None
        if self.call(runtime, targets[0] if self._pack is None else targets, workspace, *arrays) is None:
            return None
        for one, target in zip(given, targets, strict=True):
            if one is not target:
                dialect.copy(one, target)
        return out if self._pack is None else self._packed(given)

    def _packed(self, results: list[Any]) -> Any:
        assert self._pack is not None
        found, absent = iter(results), self._shape.absent
        return self._pack(*(None if i in absent else next(found) for i in range(len(results) + len(absent))))

    def _apart(self, results: list[Any], arrays: tuple[Any, ...]) -> bool:
        """Whether each result has memory of its own for each element, apart from the inputs and the other results."""
        address, taken = self._dialect.address, []
        for one, output in zip(results, self._shape.outputs, strict=True):
            if (reach := _reach(output.shape, self._dialect.strides(one), output.dtype.itemsize)) is None:
                return False
            start = address(one)
            taken.append((start + reach[0], start + reach[1]))
        inputs = [((start := address(array)), start + span(spec)) for array, spec in zip(leaves(arrays), self._shape.given, strict=True)]
        return not any(a < d and c < b for (a, b), (c, d) in [*combinations(taken, 2), *((r, i) for r in taken for i in inputs)])


@lru_cache(maxsize=4096)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int] | None:
    """Bytes from the first element to where the memory begins and to where it ends; None where elements share a place."""
    if 0 in shape:
        return 0, 0
    if any(n > 1 and not s for n, s in zip(shape, strides, strict=True)):
        return None
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


@lru_cache(maxsize=4096)
def span(spec: Spec) -> int:
    """Bytes from the first element to the end of the last, for strides that do not go backwards."""
    strides = spec.strides or spec.c_strides
    return (1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True))) * spec.dtype.itemsize if spec.size else 0
