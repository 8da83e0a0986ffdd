"""`Arguments`: the record of what a kernel is called with, whose annotated fields become the fields of a struct in C++.

A plan fills the record by name and the kernel reads the generated ``struct Arguments`` by name, so that a field renamed
on one side does not compile. The offsets are computed here, by the rules of C++, and the generated text asserts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache, lru_cache
from struct import Struct as Packing
from struct import calcsize
from typing import Annotated, Any, ClassVar, cast, get_type_hints

from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import Array, Block, Parameter, Runtime, Struct, TensorMap
from dnnarray._records import frozen

MOST = 8  # parameters of an entry
_MAP, _LINE = 128, 64  # bytes of a tensor map, and what its address is a multiple of


@frozen
class Pointer:
    """The kind of a field that is an array; `element` is the type of its elements in C++, for a type of the settings
    ``Config::<name>``."""

    element: str
    const: bool

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """Type and array bounds in C++, bytes and alignment; `count` is how many numbers there are where there are
        several."""
        return f"{'const ' * self.const}{self.element}*", "", 8, 8


@frozen
class Number:
    """The kind of a field that is a number, or an array of them where it is `several`; `code` is the number's in
    `struct`."""

    type: str
    code: str
    several: bool = False

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        size = calcsize(self.code)
        return (self.type, f"[{count}]", size * count, size) if self.several else (self.type, "", size, size)


@frozen
class Nested:
    """The kind of a field that is a struct of the kernels' vocabulary; `code` are its members in `struct`, all of one
    size."""

    type: str
    code: str

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return self.type, "", calcsize(self.code), calcsize(self.code[-1])


@frozen
class Option:
    """The kind of a field that is a run-time option of the operation."""

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return "unsigned long long", "", 8, 8


@frozen
class Map:
    """The kind of a field that is a tensor map."""

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        return "dnnarray::TensorMap", "", _MAP, _LINE


# What fields are annotated with. A family whose kernel reads elements of another type than ``Config::Element`` adds
# aliases of its own. An array that is absent is None, and a null pointer in the kernel.
In = Annotated[Array | None, Pointer("Config::Element", True)]
Out = Annotated[Array | None, Pointer("Config::Element", False)]
InArithmetic = Annotated[
    Array | None, Pointer("dnnarray::arithmetic_t<Config::Element>", True)
]  # what partial sums are kept in
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
Box = Annotated[TensorMap | None, Map()]  # zeros where there is none, which the kernel must not use

# Structs of numbers; a kernel that takes one includes the header that declares it.
Strided = Annotated[Sequence[int], Nested("dnnarray::Strided", "9q")]
Channels = Annotated[Sequence[int], Nested("dnnarray::ChannelView", "4q")]


@frozen
class Part:
    """The kind of a field that is a record itself: a struct that a header of the kernels declares under the name
    `type`, with the same members.

    The generated text asserts the offset of each member by its name. No field of the record is several numbers.
    """

    type: str
    record: Any

    def layout(self, count: int) -> tuple[str, str, int, int]:
        """As `Pointer.layout`."""
        inner: _Layout = _layout(self.record, ())
        return self.type, "", inner.packed.size, inner.alignment


Kind = Pointer | Number | Nested | Option | Map | Part


@frozen
class Arguments:
    """Base of the records that kernels are called with.

    The kernel takes ``const __grid_constant__ Arguments a``. With ``class ...(Arguments, restrict=True)`` the struct
    holds all but the arrays, which stand before it as parameters of their own, in the order of the fields: the compiler
    reads an array through the non-coherent cache, and moves its loads over stores, only where a parameter is a
    ``__restrict__`` pointer. An entry with more arrays than parameters names those that are: ``restrict=("x",
    "weight")``."""

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
        layout, values = self._layout, self._values
        numbers: list[Any] = []
        for name, several in layout.numbers:
            if several:
                numbers += values[name]
            else:
                numbers.append(values[name])
        data = layout.packed.pack(*numbers)
        words = tuple([(offset, values[name]) for name, offset in layout.words if values[name] is not None])
        maps = tuple([(offset, values[name]) for name, offset in layout.maps if values[name] is not None])
        return *[values[name] or 0 for name in layout.alone], Block(data, words, maps)

    @property
    def _values(self) -> dict[str, Any]:
        """The fields by name, those of a record inside as ``part.name``."""
        own, cls = self.__dict__, cast(Any, type(self))
        if not (parts := _parts(cls)):
            return own
        inner = {f"{part}.{name}": value for part in parts for name, value in own[part].__dict__.items()}
        return own | inner

    @property
    def _layout(self) -> _Layout:
        cls: Any = type(self)
        return _layout(cls, tuple([len(self.__dict__[name]) for name in _several(cls)]))


def stands_alone(cls: Any, name: str, kind: Kind) -> bool:
    """Whether a field is a parameter of its own."""
    return isinstance(kind, Pointer) and (name in cls._restrict if isinstance(cls._restrict, tuple) else cls._restrict)


@cache
def _kinds(cls: Any) -> dict[str, Kind]:
    """The kind of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name].__metadata__[0] for f in fields(cls)}


@cache
def _several(cls: Any) -> tuple[str, ...]:
    """The fields that are several numbers, how many of them a record says."""
    return tuple(name for name, kind in _kinds(cls).items() if isinstance(kind, Number) and kind.several)


@cache
def _parts(cls: Any) -> tuple[str, ...]:
    """The fields that are records themselves."""
    return tuple([name for name, kind in _kinds(cls).items() if isinstance(kind, Part)])


@frozen
class _Layout:
    """The struct of a record.

    Attributes
    ----------
    struct : the text that the kernel is compiled with
    packed : the bytes of the struct, with gaps for what a call writes
    alignment : what the struct begins at a multiple of
    places : the fields, those of a record inside too, with their offsets and bytes
    numbers : the fields in `packed`, each with whether it is several numbers
    words, maps : the fields that a call writes, with their offsets
    alone : the fields that are parameters of their own
    """

    struct: Struct
    packed: Packing
    alignment: int
    places: tuple[tuple[str, int, int], ...]
    numbers: tuple[tuple[str, bool], ...]
    words: tuple[tuple[str, int], ...]
    maps: tuple[tuple[str, int], ...]
    alone: tuple[str, ...]

    def inside(self, part: str, start: int) -> dict[str, list[Any]]:
        """The fields as those of a record that has this one as its field `part`, from the offset `start` on."""
        moved = {
            name: [(f"{part}.{n}", start + at, *rest) for n, at, *rest in getattr(self, name)]
            for name in ("places", "words", "maps")
        }
        return moved | {"numbers": [(f"{part}.{n}", several) for n, several in self.numbers]}


@lru_cache(maxsize=1024)
def _layout(cls: Any, counts: tuple[int, ...]) -> _Layout:
    """Each field at the next multiple of its alignment, the whole a multiple of the largest; `counts` belong to the
    fields that are `_several`."""
    how_many = dict(zip(_several(cls), counts, strict=True))
    members, types = "", []
    packed, size, widest = "<", 0, 1
    found: dict[str, list[Any]] = {"places": [], "numbers": [], "words": [], "maps": [], "alone": []}
    for name, kind in _kinds(cls).items():
        count = how_many.get(name, 1)
        type_, bounds, bytes_, alignment = kind.layout(count)
        if stands_alone(cls, name, kind):
            types.append(type_)
            found["alone"].append(name)
            continue
        offset, widest = round_up(size, alignment), max(widest, alignment)
        packed += f"{offset - size}x"
        found["places"].append((name, offset, bytes_))
        if isinstance(kind, Part):
            inner = _layout(kind.record, ())
            packed += inner.packed.format[1:]
            for sort, fields_ in inner.inside(name, offset).items():
                found[sort] += fields_
        elif isinstance(kind, (Number, Nested)):
            packed += kind.code if isinstance(kind, Nested) else f"{count}{kind.code}"
            found["numbers"].append((name, isinstance(kind, Nested) or kind.several))
        else:
            packed += f"{bytes_}x"
            found["maps" if isinstance(kind, Map) else "words"].append((name, offset))
        members += f"  {type_} {name}{bounds};\n"
        size = offset + bytes_
    assert len(types) < MOST, f"{cls.__name__}: {len(types)} parameters beside the struct"
    whole = round_up(size, widest)
    text = (
        f"struct Arguments {{\n{members}}};\n{_checks(found['places'])}static_assert(sizeof(Arguments) == {whole});\n"
    )
    made = Struct(text, f"void({', '.join((*types, 'Arguments'))})")
    return _Layout(made, Packing(f"{packed}{whole - size}x"), widest, *(tuple(names) for names in found.values()))


def _checks(places: Sequence[tuple[str, int, int]]) -> str:
    """Assertions that each field has its offset and size: offsetof as NVRTC spells it without headers, since NVRTC 13.0
    does not know __builtin_offsetof."""
    return "".join(
        f"static_assert(__INTADDR__(&(((Arguments*)0)->{name})) == {offset} && sizeof(Arguments::{name}) == "
        f"{bytes_});\n"
        for name, offset, bytes_ in places
    )
