"""A failing call made simpler as long as it fails alike, and as Python text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from tests.fuzz.calls import Call
from tests.fuzz.drawer import Leaf
from tests.fuzz.judge import judge
from tests.fuzz.memory import dense, span
from tests.fuzz.verdict import Verdict

_SHORT = 40  # elements that are written out


def simplified(call: Call, failure: Verdict, place: Any) -> Call:
    """The call without what it fails without; the failure stays the same one, not another of its kind."""
    shrunk = not call.spoilt
    while shrunk:
        shrunk = False
        for simpler in _simpler(call):
            if judge(simpler, place).gist == failure.gist:
                call, shrunk = simpler, True
                break
    return call


def _simpler(call: Call) -> Iterator[Call]:
    """The call with one thing less."""
    for name in call.context:
        yield replace(call, context={n: v for n, v in call.context.items() if n != name})
    for flag in ("out", "workspace", "repeat"):
        if getattr(call, flag):
            yield replace(call, **{flag: False})
    if call.pages:
        yield replace(call, pages=None)
    if call.pick is not None:
        yield replace(call, pick=None)
    defaults = find(call.drawn.op).defaults
    for name, value in call.drawn.options.items():
        if (
            name in defaults
            and isinstance(defaults[name], (bool, int, float, str, type(None)))
            and value != defaults[name]
        ):
            yield replace(
                call, drawn=replace(call.drawn, options={n: v for n, v in call.drawn.options.items() if n != name})
            )
    required = find(call.drawn.op).required
    for i, array in enumerate(call.drawn.arrays):
        if isinstance(array, Leaf) and array.layout != dense(array.values.shape):
            yield _with(call, i, Leaf(array.values, dense(array.values.shape), array.role))
        if array is not None and find(call.drawn.op).arrays[i] not in required:
            yield _with(call, i, None)
        if isinstance(array, tuple) and any(leaf.layout != dense(leaf.values.shape) for leaf in leaves(array)):
            yield _with(call, i, tree_map(lambda leaf: Leaf(leaf.values, dense(leaf.values.shape), leaf.role), array))


def _with(call: Call, i: int, array: Any) -> Call:
    arrays = call.drawn.arrays
    return call.with_arrays((*arrays[:i], array, *arrays[i + 1 :]))


def text(call: Call, algorithm: str | None) -> str:
    """The call in Python. The values of larger arrays are those of `tests.fuzz.calls.draw`."""
    lines = ["import numpy as np, ml_dtypes, dnnarray as dnn"]
    if any(leaf.values.size > _SHORT for leaf in leaves(call.drawn.arrays) if isinstance(leaf, Leaf)):
        lines.append(f"from tests.fuzz.calls import draw; drawn = draw({call.id!r}, {call.engine!r}).drawn")
    names = []
    for name, array in zip(find(call.drawn.op).arrays, call.drawn.arrays, strict=False):
        names.append(_argument(name, array, f"drawn.arrays[{len(names)}]", lines))
    options = ", ".join(f"{n}={v!r}" for n, v in call.drawn.options.items())
    context = ", ".join(f"{n}={v!r}" for n, v in call.context.items())
    given = ", ".join([repr(call.drawn.op), *names, *([options] if options else [])])
    if context:
        lines.append(f"dnn.set_options({context})")
    if call.mode == "forward":
        lines.append(f"# by the algorithm {algorithm!r}" if algorithm else "# by the algorithm that is chosen")
        lines.append(
            f"from dnnarray._call.operation import find; op = find({call.drawn.op!r}); print(op.call(*op.bind("
            f"({', '.join(names)},), dict({options}))))"
        )
    else:
        lines.append(f"y, pullback = dnn.vjp({given})  # {call.mode}, algorithm {algorithm!r}")
    marks = ", ".join(flag for flag in ("out", "workspace", "repeat", "pages") if getattr(call, flag))
    if marks:
        lines.append(f"# with {marks}: python -m tests.fuzz --engine {call.engine} --replay {call.id}")
    return "\n".join(lines)


def _argument(name: str, array: Any, drawn: str, lines: list[str]) -> str:
    if array is None or isinstance(array, int):
        return repr(array)
    if isinstance(array, tuple):
        entries = [_argument(f"{name}{i}_", branch, f"{drawn}[{i}]", lines) for i, branch in enumerate(array)]
        return (
            f"dnn.{type(array).__name__}({', '.join(entries)})"
            if hasattr(array, "_fields")
            else f"({', '.join(entries)},)"
        )
    lines.extend(_made(name, array, drawn))
    return name


def _made(name: str, leaf: Leaf, drawn: str) -> list[str]:
    """Lines that make an array in memory like that of the leaf."""
    values, dtype = (
        leaf.values,
        f"ml_dtypes.{leaf.values.dtype}" if leaf.values.dtype.name == "bfloat16" else f"np.{leaf.values.dtype}",
    )
    short = values.size <= _SHORT
    content = f"np.array({_listed(values)}, {dtype}).reshape({values.shape})" if short else f"{drawn}.values"
    if leaf.layout == dense(values.shape):
        return [f"{name} = {content}"]
    low, high = span(values.shape, leaf.layout.strides)
    strides, item = tuple(s * values.itemsize for s in leaf.layout.strides), values.itemsize
    size, first = (high - low + 1) * item + leaf.layout.offset, leaf.layout.offset - low * item
    lines = [
        f"{name} = np.ndarray({values.shape}, {dtype}, np.zeros({size + 1}, np.uint8), {first}, {strides})",
        f"{name}[...] = {content}",
    ]
    return lines + ([f"{name}.flags.writeable = False"] if leaf.layout.readonly else [])


def _listed(values: np.ndarray) -> str:
    flat = values.reshape(-1).tolist()
    return "[" + ", ".join(f"{v:.9g}" if isinstance(v, float) else repr(v) for v in flat) + "]"
