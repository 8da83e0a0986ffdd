"""How the text of a warm call speaks of the arrays of one library: CuPy's own, and those whose addresses are enough
(`Direct`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda.memory import alloc

from dnnarray._cuda.core.device import alone
from dnnarray._cuda.core.extents import round_up
from dnnarray._engine.outputs import Output
from dnnarray._problems.base import leaves
from dnnarray._records import frozen
from dnnarray._spec import Spec, lies

if TYPE_CHECKING:
    from dnnarray._engine.doors import Direct

VECTOR = 16  # bytes that the widest loads of a thread need their addresses to be a multiple of
# Steps of CuPy's own constructor, where they are known. It takes longer for each axis that it is told of, and a view in
# another order of axes longer than all.
_BY_STEPS = all(hasattr(cupy.ndarray, step) for step in ("_init", "_set_shape_and_strides"))
# What `cupy.copyto` ends in, where it is known: 2 us less.
elementwise_copy: Callable[[Any, Any], Any] = getattr(cupy._core, "elementwise_copy", None) or (
    lambda array, to: cupy.copyto(to, array)
)
_NEAR = 1 << 31  # bytes up to which CuPy's kernels count with 32 bits, which an array is told when it is made


@frozen
class Shape:
    """What the text is written from: the inputs (None where absent, a tuple where nested), results, bytes of scratch
    memory, device, whether all is aligned, and the pairs (input, result) of those that are there which may be the same
    memory."""

    inputs: tuple[Any, ...]
    outputs: tuple[Output, ...]
    absent: tuple[int, ...]
    workspace: int
    device: int
    aligned: bool
    in_place: frozenset[tuple[int, int]] = frozenset()

    @property
    def given(self) -> list[Spec]:
        """The inputs that are there; the text has the array of the i-th as ``a{i}`` and its address as ``p{i}``."""
        return leaves(self.inputs)

    @property
    def results(self) -> range:
        """The numbers of the results; the text has the k-th as ``r{k}`` and its address as ``q{k}``."""
        return range(len(self.outputs))


@frozen
class Dialect:
    """How the text speaks of arrays of one library.

    Attributes
    ----------
    scope : what the texts below speak of
    read : ``read(i)`` finds the address ``p{i}`` of the input ``a{i}``, where it may be taken
    make : ``make(k)`` makes the result ``r{k}`` and finds its address ``q{k}``
    unlike : ``unlike(k)`` says whether the caller's own ``r{k}`` can be no result, wherever it lies
    elsewhere : ``elsewhere(k)`` says whether it lies otherwise than planned
    address : ``address(array, name)`` finds the address of a result
    strides : ``strides(array)``
    unit : the bytes that `strides` count in, None for bytes an element
    scratch : finds the address ``s`` of new scratch memory, which ``scratch`` keeps
    stream : the stream's handle
    own_scratch : a function: the address of scratch memory that a caller gave, None where it will not do
    copy : a function: ``copy(to, array)``
    """

    scope: dict[str, Any]
    read: Callable[[int], list[str]]
    make: Callable[[int], list[str]]
    unlike: Callable[[int], str]
    elsewhere: Callable[[int], str]
    address: Callable[[str, str], list[str]]
    strides: Callable[[str], str]
    unit: int | None
    scratch: list[str]
    stream: str
    own_scratch: Callable[[Any], int | None]
    copy: Callable[[Any, Any], Any]


def empty(output: Output) -> Any:
    """A new array for a result. It owns its memory whatever the order of its axes."""
    if output.inverse is None:
        return cupy.ndarray(output.shape, output.dtype)
    return cupy.ndarray(output.shape, output.dtype, alloc(output.spec.nbytes), output.strides)


def alike(array: Any) -> Any:
    """New memory in which an array lies as it does, with gaps and axes that run backwards, and begins at a multiple of
    `VECTOR`."""
    reaches = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True) if n]
    before = round_up(-sum(r for r in reaches if r < 0), VECTOR)
    memory = alloc(before + sum(r for r in reaches if r > 0) + array.dtype.itemsize)
    return cupy.ndarray(array.shape, array.dtype, memory + before, array.strides)


def copy_elements(array: Any, to: Any) -> None:
    """Copy an array to another of its shape and dtype, wherever the two lie."""
    elementwise_copy(array, to)


def on_cupy(shape: Shape) -> Dialect:
    """CuPy's arrays."""
    scope: dict[str, Any] = {
        "Array": cupy.ndarray,
        "blank": cupy.ndarray.__base__.__new__,
        "alloc": alloc,
        "lies": lies,
    }
    for k, output in enumerate(shape.outputs):
        scope |= {
            f"shape{k}": output.shape,
            f"strides{k}": output.strides,
            f"dtype{k}": output.dtype,
            f"kind{k}": output.dtype.type,
        }
        scope |= {f"empty{k}": partial(empty, output)}
    here = [] if alone() else [f"if m.device_id != {shape.device}: return None"]

    def elsewhere(k: int) -> str:
        output = shape.outputs[k]
        if output.spec.strides is None:  # strides take as long to get as the shape, the flag a quarter of that
            return f"not r{k}._c_contiguous"
        return _elsewhere(output, k, f"r{k}.strides")

    def address(array: str, name: str) -> list[str]:
        return [f"m = {array}.data", *here, f"{name} = m.ptr"]

    return Dialect(
        scope=scope,
        read=lambda i: address(f"a{i}", f"p{i}"),
        make=lambda k: _new_on_cupy(shape.outputs[k], k),
        unlike=lambda k: f"type(r{k}) is not Array or r{k}.dtype is not dtype{k} or r{k}.shape != shape{k}",
        elsewhere=elsewhere,
        address=address,
        strides=lambda array: f"{array}.strides",
        unit=1,
        scratch=["scratch = alloc(bytes_scratch)", "s = scratch.ptr"],
        stream="_stream(_device).ptr",  # of a device that is named, which saves CuPy asking for the current one
        own_scratch=_aligned(partial(_scratch_on_cupy, shape.workspace, shape.device)),
        copy=lambda to, array: elementwise_copy(array, to),
    )


def _new_on_cupy(output: Output, k: int) -> list[str]:
    """What `empty` makes. CuPy finds the scalar type sooner than the dtype itself, and no order sooner than the name of
    one."""
    if not (_BY_STEPS and 0 < output.spec.nbytes <= _NEAR):
        return [f"r{k} = empty{k}()", f"q{k} = r{k}.data.ptr"]
    made = [f"m = alloc(bytes_out{k})", f"r{k} = blank(Array)"]
    if len(output.shape) < 2:
        made.append(f"r{k}._init(shape{k}, kind{k}, m, None, None)")
    else:  # without axes an array is in both orders, C's and Fortran's
        otherwise = output.inverse is not None
        made += [
            f"r{k}._init((), kind{k}, m, None, None)",
            f"r{k}._set_shape_and_strides(shape{k}, strides{k}, {otherwise}, True)",
        ]
    return [*made, f"q{k} = m.ptr"]


def _elsewhere(output: Output, k: int, strides: str) -> str:
    """Along axes of one place strides do not matter."""
    return f"{strides} != strides{k}" + f" and not lies(shape{k}, strides{k}, {strides})" * (1 in output.shape)


def _scratch_on_cupy(needed: int, device: int, array: Any) -> int | None:
    """The address of scratch memory that is as `check_workspace` wants it, else None."""
    if (
        type(array) is not cupy.ndarray
        or array.dtype != np.uint8
        or array.ndim != 1
        or not array._c_contiguous
        or array.size < needed
    ):
        return None
    return array.data.ptr if array.data.device_id == device else None


def _aligned(address: Callable[[Any], int | None]) -> Callable[[Any], int | None]:
    """The address where threads can load it at once, else None."""

    def aligned(array: Any) -> int | None:
        found = address(array)
        return None if found is None or found % VECTOR else found

    return aligned


def by_addresses(shape: Shape, way: Direct) -> Dialect:
    """Arrays of another library, of which all but the address stands in the key that the call was found by."""
    given, scratch = shape.given, Output(Spec((shape.workspace,), np.dtype(np.uint8)))
    scope: dict[str, Any] = {
        "pointer": way.pointer,
        "like": way.like,
        "stream": way.stream,
        "strides_of": way.strides,
        "lies": lies,
    }
    scope |= {"make_scratch": way.maker(scratch, shape.device)}
    for k, output in enumerate(shape.outputs):
        scope |= {f"new{k}": way.maker(output, shape.device), f"fits{k}": way.fits(output, shape.device)}
        scope |= {f"shape{k}": output.shape, f"strides{k}": output.element_strides}

    def make(k: int) -> list[str]:
        spec = shape.outputs[k].spec
        model = given.index(spec) if spec in given and spec.axis_order() is not None else None
        return [f"r{k} = new{k}()" if model is None else f"r{k} = like(a{model})", f"q{k} = pointer(r{k})"]

    return Dialect(
        scope=scope,
        read=lambda i: [f"p{i} = pointer(a{i})"],
        make=make,
        unlike=lambda k: f"not fits{k}(r{k})",
        elsewhere=lambda k: _elsewhere(shape.outputs[k], k, f"strides_of(r{k})"),
        address=lambda array, name: [f"{name} = pointer({array})"],
        strides=lambda array: f"strides_of({array})",
        unit=None,
        scratch=["scratch = make_scratch()", "s = pointer(scratch)"],
        stream="stream(_device)",
        own_scratch=_aligned(way.scratch(shape.workspace, shape.device)),
        copy=way.copy,
    )
