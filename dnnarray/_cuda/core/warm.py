"""The warm call: everything that a call does once its problem is known, as one function written for that problem and
for the arrays of one library.

A launch costs the driver 3 us and a new array 1 us; loops over inputs and results, with a method for each step, would
cost as much again. So what `Prepared.call` does is written out as source text, in which the numbers of the problem have
names, for the state that nearly all calls are in: nothing to copy, all memory on the plan's device and as aligned as
the plan has it. Memory of the other alignment is handed to the text for that, results that are to lie otherwise to
another. In any other state the function does nothing and returns None, and `Prepared.call` does the work."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from cupy.cuda.memory import OutOfMemoryError

from dnnarray._cuda.core.dialect import VECTOR, Dialect, Shape
from dnnarray._cuda.core.launch import Launches, written
from dnnarray._engine.outputs import Output
from dnnarray._problems.base import leaves
from dnnarray._spec import Spec, lies

_OTHERWISE = "otherwise"  # in the scope of a text: the call for memory that is not as aligned as this one has it


def compile_call(
    shape: Shape, pack: Callable[..., Any] | None, launches: Launches, dialect: Dialect, anywhere: bool = False
) -> Callable[..., Any]:
    """``call(runtime, out, workspace, *arrays)`` gives what the public function returns, or None.

    The caller's results `anywhere` in memory are for a text of its own, which is written when some that do not lie as
    planned are first met."""
    arguments, taken_apart = _arguments(shape)
    given = f"(runtime, out, workspace, {', '.join(arguments)})"
    inputs, results = _inputs(shape), [f"q{k}" for k in shape.results]
    lines = [
        f"def call{given}:",
        *(f"    {line}" for line in taken_apart),
        *(f"    {line}" for i in range(len(inputs)) for line in dialect.read(i)),
        *([f"    if {_odd(inputs)}: return {_OTHERWISE}{given}"] if shape.aligned and inputs else []),
        *(
            f"    {line}"
            for line in (
                _find_anywhere(shape, pack, dialect) if anywhere else _make_or_find(shape, pack, dialect, given)
            )
        ),
        *(
            [f"    if {_odd(results)}: return {_OTHERWISE}{given}"]
            if shape.aligned
            else _not_aligned(shape, [*inputs, *results])
        ),
        *(f"    {line}" for line in _take_scratch(shape, dialect)),
        *launches.lines([*inputs, *results, *(["s"] if shape.workspace else [])], dialect.stream),
        *(f"    if w{k} is not r{k}: copy(w{k}, r{k})" for k in shape.results if anywhere),
        f"    return {_result(shape, pack, 'w' if anywhere else 'r')}",
    ]
    call: Callable[..., Any]
    scope = launches.scope | dialect.scope | _scope(shape, pack, dialect)
    if anywhere:
        scope |= {"copy": dialect.copy}
        scope |= {
            f"reach{k}": lru_cache(maxsize=64)(partial(_reach, o, dialect.unit or o.dtype.itemsize))
            for k, o in enumerate(shape.outputs)
        }
    else:
        scope["elsewhere"] = _Later(lambda: compile_call(shape, pack, launches, dialect, True), lambda: call)
    call = written("call", lines, scope)
    return call


class _Later:
    """A call whose text is written when it is first met."""

    def __init__(self, write: Callable[[], Callable[..., Any]], beside: Callable[[], Callable[..., Any]]) -> None:
        self._write, self._beside = write, beside
        self._call: Callable[..., Any] | None = None

    def __call__(self, *given: Any) -> Any:
        call = self._call = self._call or self._write()
        hand_on(call, _scope_of(self._beside())[_OTHERWISE])
        return call(*given)


def _scope(shape: Shape, pack: Callable[..., Any] | None, dialect: Dialect) -> dict[str, Any]:
    """What the lines of this module speak of."""
    scope = {
        "OutOfMemoryError": OutOfMemoryError,
        "pack": pack,
        "several": (tuple, list),
        "leaves": leaves,
        _OTHERWISE: _nothing,
    }
    scope |= {"own_scratch": dialect.own_scratch, "bytes_scratch": shape.workspace}
    scope |= {f"bytes_in{i}": span(spec) for i, spec in enumerate(shape.given)}
    return scope | {f"bytes_out{k}": span(output.spec) for k, output in enumerate(shape.outputs)}


def _scope_of(call: Any) -> dict[str, Any]:
    """What the text of a call speaks of."""
    found: dict[str, Any] = call.__globals__
    return found


def hand_on(call: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Let `call`, for aligned memory, give what is not aligned to `other`."""
    _scope_of(call)[_OTHERWISE] = other


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
    return [
        f"    if not ({_odd(pointers)}): return None",
        *([f"    if {' or '.join(wide)}: return None"] if wide else []),
    ]


def _make_or_find(shape: Shape, pack: Callable[..., Any] | None, dialect: Dialect, given: str) -> list[str]:
    """The results: new ones, or the caller's where they lie as planned and apart from everything else. The slow way
    finds out what is wrong with others."""
    lines, spans, inputs = _unpack_users_own(shape, pack), _spans(shape), len(shape.given)
    for k in shape.results:
        lines += [f"if {dialect.unlike(k)}: return None", f"if {dialect.elsewhere(k)}: return elsewhere{given}"]
        lines += dialect.address(f"r{k}", f"q{k}")
    for k in shape.results:
        same = [i for i in range(inputs) if (i, k) in shape.in_place]
        lines += _apart(spans[inputs + k], [span for i, span in enumerate(spans[: inputs + k]) if i not in same])
        lines += [
            f"if q{k} != p{i} and q{k} < p{i} + bytes_in{i} and p{i} < q{k} + bytes_out{k}: return None" for i in same
        ]
    return [
        "if out is None:",
        "    try:",
        *(f"        {line}" for k in shape.results for line in dialect.make(k)),
        "    except OutOfMemoryError: return None",
        "else:",
        *(f"    {line}" for line in lines),
    ]


def _unpack_users_own(shape: Shape, pack: Callable[..., Any] | None) -> list[str]:
    if pack is None:
        return ["r0 = out"]
    return [
        "if not isinstance(out, several): return None",
        "found = [one for one in out if one is not None]",
        f"if len(found) != {len(shape.outputs)}: return None",
        f"{''.join(f'r{k}, ' for k in shape.results)}= found",
    ]


def _find_anywhere(shape: Shape, pack: Callable[..., Any] | None, dialect: Dialect) -> list[str]:
    """The caller's results as ``w{k}``, from ``b{k}`` to before ``e{k}``, and where they do not lie as planned new ones
    to be copied from."""
    lines = _unpack_users_own(shape, pack)
    for k in shape.results:
        lines += [
            f"if {dialect.unlike(k)}: return None",
            f"w{k} = r{k}",
            f"reach = reach{k}({dialect.strides(f'w{k}')})",
            "if reach is None: return None",
            *dialect.address(f"w{k}", f"q{k}"),
            f"b{k}, e{k} = q{k} + reach[0], q{k} + reach[1]",
            *(f"if b{k} < p{i} + bytes_in{i} and p{i} < e{k}: return None" for i in range(len(shape.given))),
            *(f"if b{k} < e{j} and b{j} < e{k}: return None" for j in range(k)),
            "if not reach[2]:",
            "    try:",
            *(f"        {line}" for line in dialect.make(k)),
            "    except OutOfMemoryError: return None",
        ]
    return lines


def _spans(shape: Shape) -> list[tuple[str, str]]:
    """Address and bytes of the inputs and results."""
    return [
        *((f"p{i}", f"bytes_in{i}") for i in range(len(shape.given))),
        *((f"q{k}", f"bytes_out{k}") for k in shape.results),
    ]


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


def _result(shape: Shape, pack: Callable[..., Any] | None, name: str) -> str:
    found = iter(shape.results)
    flat = [
        "None" if i in shape.absent else f"{name}{next(found)}" for i in range(len(shape.outputs) + len(shape.absent))
    ]
    return flat[0] if pack is None else f"pack({', '.join(flat)})"


def _reach(output: Output, unit: int, strides: tuple[int, ...]) -> tuple[int, int, bool] | None:
    """Bytes from the first element to where the memory begins and to where it ends, and whether that is as planned;
    None where elements share a place."""
    shape, itemsize = output.shape, output.dtype.itemsize
    if 0 in shape:
        return 0, 0, True
    if any(n > 1 and not s for n, s in zip(shape, strides, strict=True)):
        return None
    steps = [(n - 1) * s * unit for n, s in zip(shape, strides, strict=True)]
    planned = lies(shape, output.strides, tuple([s * unit for s in strides]))
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize, planned


@lru_cache(maxsize=4096)
def span(spec: Spec) -> int:
    """Bytes from the first element to the end of the last, for strides that do not go backwards."""
    strides = spec.strides or spec.c_strides
    return (
        (1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True))) * spec.dtype.itemsize
        if spec.size
        else 0
    )
