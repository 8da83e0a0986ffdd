"""The warm call: everything that a call on CuPy arrays does once its problem is known, as one function written for that problem.

A launch costs the driver 3 us and a new array 1 us; loops over inputs and results, with a method for each step, would cost as much again. So what
`Prepared.call` does is written out as source text, in which the numbers of the problem have names, for the state that nearly all calls are in: nothing to
copy, all memory on the plan's device and as aligned as the plan has it. In any other state the function does nothing and returns None, and
`Prepared.call` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import cupy
from cupy.cuda.memory import OutOfMemoryError, alloc

from dnnarray._cuda.launch import Launches, written
from dnnarray._outputs import Output
from dnnarray._records import frozen
from dnnarray._spec import Spec

# Steps of CuPy's own constructor, where they are known. It takes longer for each axis that it is told of, and a view in another order of axes longer than all.
_BY_STEPS = all(hasattr(cupy.ndarray, step) for step in ("_init", "_set_shape_and_strides"))
_NEAR = 1 << 31  # bytes up to which CuPy's kernels count with 32 bits, which an array is told when it is made
_ARRAYS = {"Array": cupy.ndarray, "blank": cupy.ndarray.__base__.__new__, "alloc": alloc}


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


def compile_call(shape: Shape, pack: Callable[..., Any] | None, launches: Launches, vector: int) -> Callable[..., Any]:
    """``call(runtime, out, *arrays)`` gives what the public function returns, or None."""
    scope = launches.scope | _ARRAYS | {"OutOfMemoryError": OutOfMemoryError, "pack": pack}
    for k, output in enumerate(shape.outputs):
        scope |= _known_of(output, k)
    scope |= {f"bytes_in{i}": span(spec) for i, spec in enumerate(shape.inputs) if spec is not None}
    scope["workspace"] = shape.workspace
    lines = [
        f"def call(runtime, out, {', '.join(f'a{i}' for i in range(len(shape.inputs)))}):",
        *_read_inputs(shape),
        "    if out is None:",
        "        try:",
        *(f"            {line}" for k, output in enumerate(shape.outputs) for line in _new_result(output, k)),
        "        except OutOfMemoryError: return None",
        "    else:",
        *_take_users_own(shape),
        *_launch(shape, launches, vector),
        f"    return {_result(shape, pack)}",
    ]
    return written("call", lines, scope)


def _known_of(output: Output, k: int) -> dict[str, Any]:
    return {
        f"shape{k}": output.shape, f"strides{k}": output.strides, f"bytes_out{k}": span(output.spec),
        f"dtype{k}": output.dtype, f"kind{k}": output.dtype.type, f"empty{k}": partial(empty, output),
    }  # fmt: skip


def _new_result(output: Output, k: int) -> list[str]:
    """What `empty` makes, and its address. CuPy finds the scalar type sooner than the dtype itself, and no order sooner than the name of one."""
    if not (_BY_STEPS and 0 < output.spec.nbytes <= _NEAR):
        return [f"r{k} = empty{k}()", f"q{k} = r{k}.data.ptr"]
    return [
        f"m = alloc(bytes_out{k})",
        f"r{k} = blank(Array)",
        f"r{k}._init((), kind{k}, m, None, None)",
        f"r{k}._set_shape_and_strides(shape{k}, strides{k}, True, True)",
        f"q{k} = m.ptr",
    ]


def _read_inputs(shape: Shape) -> list[str]:
    lines = []
    for i in shape.given:
        lines += [f"    m = a{i}.data", f"    if m.device_id != {shape.device}: return None", f"    p{i} = m.ptr"]
    return lines


def _take_users_own(shape: Shape) -> list[str]:
    """The caller's results where they lie as planned and apart from everything else; the slow way finds out what is wrong with others."""
    if len(shape.outputs) != 1:
        return ["        return None"]
    output = shape.outputs[0]
    elsewhere = "not r0._c_contiguous" if output.spec.strides is None else "r0.strides != strides0"  # strides take as long as the shape
    lines = [
        "        r0 = out",
        f"        if type(r0) is not Array or r0.dtype is not dtype0 or {elsewhere} or r0.shape != shape0: return None",
        "        m = r0.data",
        f"        if m.device_id != {shape.device}: return None",
        "        q0 = m.ptr",
    ]
    for i in shape.given:
        spec = shape.inputs[i]
        if spec is not None and output.spec.size:
            lines.append(f"        if q0 < p{i} + bytes_in{i} and p{i} < q0 + bytes_out0: return None")
    return lines


@lru_cache(maxsize=4096)
def span(spec: Spec) -> int:
    """Bytes from the first element to the end of the last, for strides that do not go backwards."""
    strides = spec.strides or spec.c_strides
    return (1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True))) * spec.dtype.itemsize if spec.size else 0


def _launch(shape: Shape, launches: Launches, vector: int) -> list[str]:
    pointers = [f"p{i}" for i in shape.given] + [f"q{k}" for k in range(len(shape.outputs))]
    lines = []
    if shape.workspace:
        lines += [
            "    try: scratch = alloc(workspace)",  # kept alive until the launches are queued
            "    except OutOfMemoryError: return None",
            "    s = scratch.ptr",
        ]
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
