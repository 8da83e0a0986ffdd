"""Frozen data classes that cost nothing to define.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, a millisecond in all, and the first call of an operation imports a hundred
classes. Here the fields are found by `dataclasses` (so that its `fields`, `replace` and `field` work as ever), and the six functions are these. The text of
an ``__init__`` is compiled once for each number of fields, and only where a record is made.
"""

from __future__ import annotations

import builtins
import dataclasses
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast, dataclass_transform, overload

from dnnarray._source import function

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = ..., eq: bool = ...) -> Any: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: Any = None, /, *, kw_only: bool = False, eq: bool = True) -> Any:
    """What ``@dataclasses.dataclass(frozen=True, kw_only=..., eq=...)`` does to a class; no ``__post_init__``, no default factories."""
    return _made(cls, kw_only, eq) if cls is not None else lambda decorated: _made(decorated, kw_only, eq)


def _made(cls: Any, kw_only: bool, eq: bool) -> Any:
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    cls._shown = tuple(f.name for f in dataclasses.fields(cls) if f.repr)
    compared = [f.name for f in dataclasses.fields(cls) if f.compare]
    cls._compared = staticmethod(attrgetter(*compared) if compared else lambda record: ())
    methods = [_initialiser(cls), _repr, _setattr, _delattr, *([_eq, _hash] if eq else [])]
    for method in methods:
        name = f"__{method.__name__[1:]}__"
        if name not in vars(cls) or (name == "__hash__" and vars(cls)[name] is None):
            setattr(cls, name, method)
    return cls


def changed(record: T, **values: Any) -> T:
    """What `dataclasses.replace` gives, in a fifth of its time; of records all of whose fields are arguments."""
    found, cls = record.__dict__, cast(Any, type(record))
    fields = cls.__dataclass_fields__
    taken = {name: found[name] for name in fields} | values
    if len(taken) > len(fields):
        raise TypeError(f"{cls.__name__} has no {sorted(values.keys() - fields.keys())}")
    made = object.__new__(cls)
    made.__dict__.update(taken)
    return cast(T, made)


def _initialiser(cls: Any) -> Any:
    """The ``__init__`` of a class, which puts the real one in its place when the first record is made: most classes that are imported have none."""

    def _init(self: Any, *args: Any, **named: Any) -> None:
        cls.__init__ = _written(cls)
        cls.__init__(self, *args, **named)

    return _init


def _written(cls: Any) -> Any:
    """An ``__init__`` with the parameters of a class, from the text for so many: to rename what a function calls its variables takes a microsecond."""
    found = [f for f in dataclasses.fields(cls) if f.init]
    positional, named = [f for f in found if not f.kw_only], [f for f in found if f.kw_only]
    model = _text_for(len(positional), len(named))
    names = {f"a{i}": f.name for i, f in enumerate(positional)} | {f"b{i}": f.name for i, f in enumerate(named)}
    code = model.replace(
        co_varnames=tuple(names.get(name, name) for name in model.co_varnames),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in model.co_consts),
    )
    made = FunctionType(code, {"__builtins__": builtins, "__name__": __name__}, f"{cls.__name__}.__init__")
    made.__defaults__ = tuple(f.default for f in positional if f.default is not dataclasses.MISSING)
    made.__kwdefaults__ = {f.name: f.default for f in named if f.default is not dataclasses.MISSING}
    return made


@cache
def _text_for(positional: int, named: int) -> CodeType:
    """The code of an ``__init__`` that takes so many arguments and keeps them under their names."""
    first, others = [f"a{i}" for i in range(positional)], [f"b{i}" for i in range(named)]
    header = ", ".join(("self", *first, *(["*"] if named else []), *others))
    lines = [f"def init({header}):", "    values = self.__dict__", *(f"    values['{n}'] = {n}" for n in (*first, *others))]
    found: CodeType = function("init", "\n".join(lines), {}, __name__).__code__
    return found


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self._shown)})"


def _eq(self: Any, other: Any) -> Any:
    return self._compared(self) == self._compared(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _setattr(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r} of a {type(self).__name__}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete {name!r} of a {type(self).__name__}")
