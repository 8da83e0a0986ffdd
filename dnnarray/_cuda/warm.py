"""The warm call: everything that a call does once its problem is known, as one function written for that problem and for the arrays of one library.

A launch costs the driver 3 us and a new array 1 us; loops over inputs and results, with a method for each step, would cost as much again. So what
`Prepared.call` does is written out as source text, in which the numbers of the problem have names, for the state that nearly all calls are in: nothing to
copy, all memory on the plan's device and as aligned as the plan has it. In any other state the function does nothing and returns None, and
`Prepared.call` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda.memory import OutOfMemoryError, alloc

from dnnarray._cuda.launch import Launches, written
from dnnarray._outputs import Output
from dnnarray._records import frozen
from dnnarray._spec import Spec

if TYPE_CHECKING:
    from dnnarray._arrays import Direct

# Steps of CuPy's own constructor, where they are known. It takes longer for each axis that it is told of, and a view in another order of axes longer than all.
_BY_STEPS = all(hasattr(cupy.ndarray, step) for step in ("_init", "_set_shape_and_strides"))
_NEAR = 1 << 31  # bytes up to which CuPy's kernels count with 32 bits, which an array is told when it is made


def empty(output: Output) -> Any:
    """A new array for a result. It owns its memory whatever the order of its axes."""
    if output.inverse is None:
        return cupy.ndarray(output.shape, output.dtype)
    return cupy.ndarray(output.shape, output.dtype, alloc(output.spec.nbytes), output.strides)


@frozen
class Shape:
    """What the text is written from: the inputs (None where absent), results, bytes of scratch memory, device, and whether all is aligned."""

    inputs: tuple[Spec | None, ...]
    outputs: tuple[Output, ...]
    absent: tuple[int, ...]
    workspace: int
    device: int
    aligned: bool

    @property
    def given(self) -> list[int]:
        """The places of the inputs that are there."""
        return [i for i, spec in enumerate(self.inputs) if spec is not None]


@frozen
class Dialect:
    """How the text speaks of arrays of one library.

    Attributes
    ----------
    scope : what the lines below speak of
    read : ``read(i)`` finds the address ``p{i}`` of the input ``a{i}``, where it may be taken
    make : ``make(k)`` makes the result ``r{k}`` and finds its address ``q{k}``
    check : finds the address ``q0`` of ``out`` where it is as planned
    scratch : finds the address ``s`` of new scratch memory, which ``scratch`` keeps
    """

    scope: dict[str, Any]
    read: Callable[[int], list[str]]
    make: Callable[[int], list[str]]
    check: list[str]
    scratch: list[str]


def compile_call(shape: Shape, pack: Callable[..., Any] | None, launches: Launches, vector: int, dialect: Dialect) -> Callable[..., Any]:
    """``call(runtime, out, *arrays)`` gives what the public function returns, or None."""
    scope = launches.scope | dialect.scope | {"OutOfMemoryError": OutOfMemoryError, "pack": pack}
    scope |= {f"bytes_out{k}": span(output.spec) for k, output in enumerate(shape.outputs)}
    scope |= {f"bytes_in{i}": span(spec) for i, spec in enumerate(shape.inputs) if spec is not None}
    lines = [
        f"def call(runtime, out, {', '.join(f'a{i}' for i in range(len(shape.inputs)))}):",
        *(f"    {line}" for i in shape.given for line in dialect.read(i)),
        "    if out is None:",
        "        try:",
        *(f"            {line}" for k in range(len(shape.outputs)) for line in dialect.make(k)),
        "        except OutOfMemoryError: return None",
        "    else:",
        *(f"        {line}" for line in _take_users_own(shape, dialect)),
        *_launch(shape, launches, vector, dialect),
        f"    return {_result(shape, pack)}",
    ]
    return written("call", lines, scope)


def on_cupy(shape: Shape) -> Dialect:
    """CuPy's arrays."""
    scope = {"Array": cupy.ndarray, "blank": cupy.ndarray.__base__.__new__, "alloc": alloc, "workspace": shape.workspace}
    for k, output in enumerate(shape.outputs):
        scope |= {f"shape{k}": output.shape, f"strides{k}": output.strides, f"dtype{k}": output.dtype, f"kind{k}": output.dtype.type}
        scope |= {f"empty{k}": partial(empty, output), f"lies{k}": partial(_lies, output)}
    here = f"if m.device_id != {shape.device}: return None"
    return Dialect(
        scope=scope,
        read=lambda i: [f"m = a{i}.data", here, f"p{i} = m.ptr"],
        make=lambda k: _new_on_cupy(shape.outputs[k], k),
        check=[
            f"if type(out) is not Array or out.dtype is not dtype0 or out.shape != shape0 or {_elsewhere(shape.outputs[0])}: return None",
            *("m = out.data", here, "q0 = m.ptr"),
        ],
        scratch=["scratch = alloc(workspace)", "s = scratch.ptr"],
    )


def _new_on_cupy(output: Output, k: int) -> list[str]:
    """What `empty` makes. CuPy finds the scalar type sooner than the dtype itself, and no order sooner than the name of one."""
    if not (_BY_STEPS and 0 < output.spec.nbytes <= _NEAR):
        return [f"r{k} = empty{k}()", f"q{k} = r{k}.data.ptr"]
    return [
        f"m = alloc(bytes_out{k})",
        f"r{k} = blank(Array)",
        f"r{k}._init((), kind{k}, m, None, None)",
        f"r{k}._set_shape_and_strides(shape{k}, strides{k}, True, True)",
        f"q{k} = m.ptr",
    ]


def _elsewhere(output: Output) -> str:
    """Whether ``out`` lies in memory otherwise than planned; its strides take as long to get as its shape."""
    if output.spec.strides is None:
        return "not out._c_contiguous"
    return "out.strides != strides0" + " and not lies0(out.strides)" * (1 in output.shape)


def _lies(output: Output, strides: tuple[int, ...]) -> bool:
    """Whether these are the planned strides along the axes that have more than one place."""
    return all(a == b or n == 1 for a, b, n in zip(strides, output.strides, output.shape, strict=True))


def by_addresses(shape: Shape, way: Direct) -> Dialect:
    """Arrays of another library, of which all but the address stands in the key that the call was found by."""
    made = [partial(way.empty, output, shape.device) for output in shape.outputs]
    scratch = partial(way.empty, Output(Spec((shape.workspace,), np.dtype(np.uint8))), shape.device)
    scope = {"pointer": way.pointer, "key": way.key, "key0": way.key(made[0]()), "make_scratch": scratch}
    return Dialect(
        scope=scope | {f"make{k}": make for k, make in enumerate(made)},
        read=lambda i: [f"p{i} = pointer(a{i})"],
        make=lambda k: [f"r{k} = make{k}()", f"q{k} = pointer(r{k})"],
        check=["if key(out) != key0: return None", "q0 = pointer(out)"],
        scratch=["scratch = make_scratch()", "s = pointer(scratch)"],
    )


def _take_users_own(shape: Shape, dialect: Dialect) -> list[str]:
    """The caller's results where they lie as planned and apart from everything else; the slow way finds out what is wrong with others."""
    if len(shape.outputs) != 1:
        return ["return None"]
    lines = [*dialect.check, "r0 = out"]
    for i in shape.given:
        spec = shape.inputs[i]
        if spec is not None and shape.outputs[0].spec.size:
            lines.append(f"if q0 < p{i} + bytes_in{i} and p{i} < q0 + bytes_out0: return None")
    return lines


@lru_cache(maxsize=4096)
def span(spec: Spec) -> int:
    """Bytes from the first element to the end of the last, for strides that do not go backwards."""
    strides = spec.strides or spec.c_strides
    return (1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True))) * spec.dtype.itemsize if spec.size else 0


def _launch(shape: Shape, launches: Launches, vector: int, dialect: Dialect) -> list[str]:
    pointers = [f"p{i}" for i in shape.given] + [f"q{k}" for k in range(len(shape.outputs))]
    lines = []
    if shape.workspace:
        # Kept alive until the launches are queued.
        lines += ["    try:", *(f"        {line}" for line in dialect.scratch), "    except OutOfMemoryError: return None"]
        pointers.append("s")
    odd = " or ".join(f"{p} % {vector}" for p in pointers)
    lines.append(f"    if {odd if shape.aligned else f'not ({odd})'}: return None")
    if not shape.aligned:  # addresses that are no multiple of an element's size are an error, which the slow way raises
        specs = [*(shape.inputs[i] for i in shape.given), *(output.spec for output in shape.outputs)]
        wide = [(p, spec.dtype.itemsize) for p, spec in zip(pointers, specs, strict=False) if spec is not None and spec.dtype.itemsize > 1]
        if wide:
            lines.append(f"    if {' or '.join(f'{p} % {n}' for p, n in wide)}: return None")
    return lines + launches.lines(pointers)


def _result(shape: Shape, pack: Callable[..., Any] | None) -> str:
    found = iter(range(len(shape.outputs)))
    flat = ["None" if i in shape.absent else f"r{next(found)}" for i in range(len(shape.outputs) + len(shape.absent))]
    return flat[0] if pack is None else f"pack({', '.join(flat)})"
