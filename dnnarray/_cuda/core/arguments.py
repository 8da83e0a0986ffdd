"""`Arguments`: the record of what a kernel is called with, whose annotated fields become the fields of a struct in C++.

A plan fills the record by name and the kernel reads the generated ``struct Arguments`` by name, so that a field renamed on one side does not compile. The
offsets are computed here, by the rules of C++, and the generated text asserts them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, get_type_hints

from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import Array, Block, Parameter, Runtime, Struct, TensorMap
from dnnarray._records import frozen

MOST = 8  # parameters of an entry
_MAP, _LINE = 128, 64  # bytes of a tensor map, and what its address is a multiple of


@frozen
class Pointer:
    """The kind of a field that is an array; `element` is the type of its elements in C++, for a type of the settings ``Config::<name>``."""

    element: str
    const: bool

    def layout(self, value: Any) -> tuple[str, str, int, int]:
        """Type and array bounds in C++, bytes and alignment."""
        return f"{'const ' * self.const}{self.element}*", "", 8, 8


@frozen
class Number:
    """The kind of a field that is a number, or an array of them where it is `several`; `code` is the number's in `struct`."""

    type: str
    code: str
    several: bool = False

    def layout(self, value: Any) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        size = struct.calcsize(self.code)
        return (self.type, f"[{len(value)}]", size * len(value), size) if self.several else (self.type, "", size, size)


@frozen
class Nested:
    """The kind of a field that is a struct of the kernels' vocabulary; `code` are its members in `struct`, all of one size."""

    type: str
    code: str

    def layout(self, value: Any) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return self.type, "", struct.calcsize(self.code), struct.calcsize(self.code[-1])


@frozen
class Option:
    """The kind of a field that is a run-time option of the operation."""

    def layout(self, value: Any) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return "unsigned long long", "", 8, 8


@frozen
class Map:
    """The kind of a field that is a tensor map."""

    def layout(self, value: Any) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return "dnnarray::TensorMap", "", _MAP, _LINE


# What fields are annotated with. A family whose kernel reads elements of another type than ``Config::Element`` adds aliases of its own. An array that is
# absent is None, and a null pointer in the kernel.
In = Annotated[Array | None, Pointer("Config::Element", True)]
Out = Annotated[Array | None, Pointer("Config::Element", False)]
InArithmetic = Annotated[Array | None, Pointer("dnnarray::arithmetic_t<Config::Element>", True)]  # what partial sums are kept in
OutArithmetic = Annotated[Array | None, Pointer("dnnarray::arithmetic_t<Config::Element>", False)]
Extent = Annotated[int, Number("long long", "q")]
Extents = Annotated[Sequence[int], Number("long long", "q", True)]
Words = Annotated[Sequence[int], Number("unsigned long long", "Q", True)]  # several numbers in each
Int = Annotated[int, Number("int", "i")]
Unsigned = Annotated[int, Number("unsigned", "I")]
Float = Annotated[float, Number("float", "f")]
Double = Annotated[float, Number("double", "d")]
Doubles = Annotated[Sequence[float], Number("double", "d", True)]
Seed = Annotated[Runtime | None, Option()]
Box = Annotated[TensorMap, Map()]

# Structs of numbers; a kernel that takes one includes the header that declares it.
Strided = Annotated[Sequence[int], Nested("dnnarray::Strided", "9q")]
Channels = Annotated[Sequence[int], Nested("dnnarray::ChannelView", "4q")]

Kind = Pointer | Number | Nested | Option | Map


@frozen
class Arguments:
    """Base of the records that kernels are called with.

    The kernel takes ``const __grid_constant__ Arguments a``. With ``class ...(Arguments, restrict=True)`` the struct holds all but the arrays, which stand
    before it as parameters of their own, in the order of the fields: the compiler reads an array through the non-coherent cache, and moves its loads over
    stores, only where a parameter is a ``__restrict__`` pointer. An entry with more arrays than parameters names those that are: ``restrict=("x", "weight")``.
    """

    _restrict: ClassVar[bool | tuple[str, ...]] = False

    def __init_subclass__(cls, *, restrict: bool | tuple[str, ...] = False) -> None:
        cls._restrict = restrict or cls._restrict

    @property
    def struct(self) -> Struct:
        """The text that the kernel is compiled with."""
        return self._layout.struct

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the driver is given: the pointers that are parameters of their own, then the struct."""
        layout = self._layout
        data, alone = bytearray(layout.size), []
        words: list[tuple[int, Array | Runtime]] = []
        maps: list[tuple[int, TensorMap]] = []
        cls: Any = type(self)
        for (name, kind), offset in zip(_kinds(cls).items(), layout.offsets, strict=True):
            value = getattr(self, name)
            if offset is None:
                alone.append(0 if value is None else value)
            elif isinstance(kind, (Number, Nested)):
                values = value if isinstance(kind, Nested) or kind.several else (value,)
                code = kind.code if isinstance(kind, Nested) else f"{len(values)}{kind.code}"
                struct.pack_into(f"<{code}", data, offset, *values)
            elif isinstance(kind, Map):
                maps.append((offset, value))
            elif value is not None:
                words.append((offset, value))
        return *alone, Block(bytes(data), tuple(words), tuple(maps))

    @property
    def _layout(self) -> _Layout:
        cls: Any = type(self)
        return _layout(cls, tuple([kind.layout(getattr(self, name)) for name, kind in _kinds(cls).items()]))


def stands_alone(cls: Any, name: str, kind: Kind) -> bool:
    """Whether a field is a parameter of its own."""
    return isinstance(kind, Pointer) and (name in cls._restrict if isinstance(cls._restrict, tuple) else cls._restrict)


@cache
def _kinds(cls: Any) -> dict[str, Kind]:
    """The kind of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name].__metadata__[0] for f in fields(cls)}


@frozen
class _Layout:
    """The struct of a record: its text, the offset of each field, None for a parameter of its own, and its bytes."""

    struct: Struct
    offsets: tuple[int | None, ...]
    size: int


@lru_cache(maxsize=1024)
def _layout(cls: Any, layouts: tuple[tuple[str, str, int, int], ...]) -> _Layout:
    """Each field at the next multiple of its alignment, the whole a multiple of the largest."""
    members: list[str] = []
    checks: list[str] = []
    alone: list[str] = []
    offsets: list[int | None] = []
    size, widest = 0, 1
    for (name, kind), (type_, bounds, bytes_, alignment) in zip(_kinds(cls).items(), layouts, strict=True):
        if stands_alone(cls, name, kind):
            alone.append(type_)
            offsets.append(None)
            continue
        size, widest = round_up(size, alignment), max(widest, alignment)
        members.append(f"  {type_} {name}{bounds};\n")
        # offsetof as NVRTC spells it without headers: NVRTC 13.0 does not know __builtin_offsetof.
        offset = f"__INTADDR__(&(((Arguments*)0)->{name}))"
        checks.append(f"static_assert({offset} == {size} && sizeof(Arguments::{name}) == {bytes_});\n")
        offsets.append(size)
        size += bytes_
    size = round_up(size, widest)
    assert len(alone) < MOST, f"{cls.__name__}: {len(alone)} parameters beside the struct"
    checks.append(f"static_assert(sizeof(Arguments) == {size});\n")
    text = f"struct Arguments {{\n{''.join(members)}}};\n{''.join(checks)}"
    return _Layout(Struct(text, f"void({', '.join((*alone, 'Arguments'))})"), tuple(offsets), size)
