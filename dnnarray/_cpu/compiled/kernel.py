"""`@kernel` and `@device`: functions for Numba. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Protocol, cast, get_type_hints

import numba
import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from dnnarray._cpu import threads
from dnnarray._cpu.compiled import store
from dnnarray._cpu.compiled.spread import LEADING, over_threads, publish
from dnnarray._records import frozen

# What the arithmetic of sums may do: be taken in any order, which is what lets a reduction use vectors, and fuse a
# product with a sum. Everything else is done as it is written, so that an element's result does not depend on its
# place; NaN, infinity and signed zeros keep their meaning.
_SUMS = frozenset({"contract", "reassoc"})
# that a part is cut into where it is done from its end to its beginning: many in what a core's cache holds, each long
# enough to be a stream
_PIECES = 16
_LONG = 32 * threads.GRAIN  # work that is worth waking threads for
_njit: Any = njit  # whose own types leave out the options that begin with a line


@frozen
class Place:
    """An array among a kernel's parameters: C-contiguous with this rank; `dtype` None is the dtype that the kernel is
    compiled for."""

    ndim: int
    written: bool = False
    dtype: str | None = None

    def numba_type(self, dtype: str) -> types.Type:
        element = numba.from_dtype(np.dtype(self.dtype or dtype))
        return types.Array(element, self.ndim, "C", readonly=not self.written)


In1 = Annotated[Any, Place(1)]
In2 = Annotated[Any, Place(2)]
In3 = Annotated[Any, Place(3)]
In4 = Annotated[Any, Place(4)]
Out1 = Annotated[Any, Place(1, written=True)]
Out2 = Annotated[Any, Place(2, written=True)]
Out3 = Annotated[Any, Place(3, written=True)]
Out4 = Annotated[Any, Place(4, written=True)]
Integers1 = Annotated[Any, Place(1, dtype="int64")]
Integers2 = Annotated[Any, Place(2, dtype="int64")]
Integers3 = Annotated[Any, Place(3, dtype="int64")]
OutIntegers1 = Annotated[Any, Place(1, written=True, dtype="int64")]
OutIntegers2 = Annotated[Any, Place(2, written=True, dtype="int64")]
OutIntegers3 = Annotated[Any, Place(3, written=True, dtype="int64")]
Doubles2 = Annotated[Any, Place(2, dtype="float64")]
OutDoubles1 = Annotated[Any, Place(1, written=True, dtype="float64")]
OutDoubles2 = Annotated[Any, Place(2, written=True, dtype="float64")]


class Function:
    """A function for Numba with parameters of known types: annotations say what each is, `In1` ..., ``int``, ``float``
    (float64), ``bool``."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.run: Any = _njit(nogil=True, error_model="numpy", **options)(function)
        hints = get_type_hints(function, include_extras=True)
        self._places = [_place(hint) for name, hint in hints.items() if name != "return"]

    def build(self, dtype: str) -> None:
        """Load what was compiled before for this dtype, or compile it now."""
        self._have(dtype, compile_too=True)

    def load(self, dtype: str) -> bool:
        """Load what was compiled before; False where something is missing."""
        return self._have(dtype, compile_too=False)

    def name(self, dtype: str) -> str:
        """Of the file that its machine code is kept in."""
        return store.file_name(*self._functions(dtype)[0])

    def on_disk(self, dtype: str) -> bool:
        """Whether `load` would find it all."""
        return all(store.on_disk(*each) for each in self._functions(dtype))

    def _functions(self, dtype: str) -> list[tuple[Any, tuple[Any, ...]]]:
        """What is compiled for it, with the types of the parameters."""
        return [(self.run, self._types(dtype))]

    def _have(self, dtype: str, compile_too: bool) -> bool:
        return store.have(self.run, self._types(dtype), compile_too)

    def _types(self, dtype: str) -> tuple[Any, ...]:
        return tuple(p.numba_type(dtype) if isinstance(p, Place) else p for p in self._places)


class Kernel(Function):
    """A `Function` ``(start, stop, ...)`` over a part of a range.

    Calling it with the length of the range in the place of start and stop does the whole of it, spread over threads
    where that pays. What a part writes must not depend on where the parts begin and end."""

    def __init__(self, function: Callable[..., None], sums: bool, counted: bool, streams: bool) -> None:
        super().__init__(function, fastmath=set(_SUMS) if sums else False, _nrt=counted)
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._spread = _njit(nogil=True, error_model="numpy", _nrt=False)(
            over_threads(function, self._name, len(self._places) - 2)
        )
        self._pieces, self._next = (_PIECES if streams else 1), 1

    def _functions(self, dtype: str) -> list[tuple[Any, tuple[Any, ...]]]:
        return [*super()._functions(dtype), (self._spread, (*LEADING, *self._types(dtype)[2:]))]

    def _have(self, dtype: str, compile_too: bool) -> bool:
        """The kernel first: the linker must know it before its way over threads is loaded."""
        if not super()._have(dtype, compile_too):
            return False
        publish(self._name, self._types(dtype), self.run)
        return all(store.have(*each, compile_too) for each in self._functions(dtype))

    def __call__(self, total: int, *arguments: Any, work: int = 0) -> None:
        """All of range(total); `work` is what it amounts to, in elements of a light operation: with little of it one
        thread does it alone."""
        parts = min(threads.worth(work), total)
        if parts < 2:
            self.run(0, total, *arguments)
        elif _team is None:
            threads.run(self.run, total, *arguments, work=work)
        else:
            pieces, self._next = self._next, self._pieces + 1 - self._next
            self._spread(_team(parts), parts, work >= _LONG, total, pieces, *arguments)


_team: Callable[[int], int] | None = None  # the address of a team with threads for so many parts


def join(team: Callable[[int], int]) -> None:
    """Have a team run the kernels from now on."""
    global _team
    _team = team


def _place(hint: Any) -> Any:
    scalars = {int: types.intp, float: types.float64, bool: types.boolean}
    return scalars[hint] if hint in scalars else hint.__metadata__[0]


def kernel(
    function: Callable[..., None] | None = None, *, sums: bool = False, counted: bool = True, streams: bool = False
) -> Any:
    """Make a module-level function a `Kernel`. `sums` lets its own sums (not those of functions that it calls) be taken
    in any order.

    `counted=False`: a slice of an array counts no reference, which costs an atomic operation on a number that all
    threads share; such a function makes no arrays. `streams`: its time is that of memory. Every other call goes from
    the end of each part to its beginning, and so meets first what the call before it (the same on other data, or the
    one that made its data) left in the caches."""
    if function is None:
        return partial(kernel, sums=sums, counted=counted, streams=streams)
    return Kernel(function, sums, counted, streams)


def native(function: Callable[..., Any]) -> Function:
    """Make a module-level function a `Function` that makes no arrays."""
    return Function(function, _nrt=False)


def device(function: Callable[..., Any] | None = None, *, sums: bool = False, counted: bool = True) -> Any:
    """A function that kernels of any module call; it is compiled into them. With ``counted=False`` (as above) it
    returns no arrays either."""
    if function is None:
        return partial(device, sums=sums, counted=counted)
    return _njit(
        nogil=True, error_model="numpy", forceinline=True, fastmath=set(_SUMS) if sums else False, _nrt=counted
    )(function)


@cast(Any, intrinsic)
def wide(typing: Any) -> Any:
    """Let the loops of the function in which this stands use the longest vectors: LLVM takes half of them on processors
    that some of its users found slowed by the whole."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        set.add(
            builder.function.attributes, '"prefer-vector-width"="512"'
        )  # llvmlite's own `add` knows no attributes that have values
        return context.get_dummy_value()

    return types.void(), generate


class Driver(Protocol):
    """The Python function behind a table's entry, the kernels that it calls, and `planned`'s short way of a warm call
    where it has one."""

    kernels: tuple[Function, ...]
    direct: Callable[[Any], Callable[..., None] | None] | None

    def __call__(self, *arguments: Any, **named: Any) -> None: ...


def driver(*kernels: Function) -> Callable[[Callable[..., None]], Driver]:
    """Make a function a `Driver` of these kernels."""

    def mark(function: Callable[..., None]) -> Driver:
        marked = cast(Driver, function)
        marked.kernels, marked.direct = kernels, None
        return marked

    return mark
