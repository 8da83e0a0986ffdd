"""Frozen data classes that cost nothing to define.

`dataclasses.dataclass(frozen=True)` compiles six functions for each class, a millisecond in all, and the first call of
an operation imports a hundred classes. Here the fields are found by `dataclasses` (so that its `fields`, `replace` and
`field` work as ever), and the six functions are these."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = ..., eq: bool = ...) -> Any: ...
@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: Any = None, /, *, kw_only: bool = False, eq: bool = True) -> Any:
    """What ``@dataclasses.dataclass(frozen=True, kw_only=..., eq=...)`` does to a class; no ``__post_init__``, no
    default factories."""
    return _made(cls, kw_only, eq) if cls is not None else lambda decorated: _made(decorated, kw_only, eq)


def _made(cls: Any, kw_only: bool, eq: bool) -> Any:
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    cls._shown = tuple(f.name for f in dataclasses.fields(cls) if f.repr)
    cls._compared = tuple(f.name for f in dataclasses.fields(cls) if f.compare)
    methods = [_initialiser(cls), _repr, _setattr, _delattr, *([_eq, _hash] if eq else [])]
    for method in methods:
        name = f"__{method.__name__[1:]}__"
        if name not in vars(cls) or (name == "__hash__" and vars(cls)[name] is None):
            setattr(cls, name, method)
    return cls


def changed(record: T, **values: Any) -> T:
    """What `dataclasses.replace` gives, in a third of its time; of records all of whose fields are arguments."""
    found, cls = record.__dict__, cast(Any, type(record))
    return cast(T, cls(**{name: found[name] for name in cls.__dataclass_fields__} | values))


def _initialiser(cls: Any) -> Any:
    """``__init__``: values given all one way, or in order without the last ones, go straight into the instance, as most
    do."""
    found = [f for f in dataclasses.fields(cls) if f.init]
    positional = tuple(f.name for f in found if not f.kw_only)
    accepted = frozenset(f.name for f in found)
    defaults = {f.name: f.default for f in found if f.default is not dataclasses.MISSING}
    most = len(positional)
    endings = {
        n: tuple(defaults[name] for name in positional[n:])
        for n in range(most + 1)
        if defaults.keys() >= {*positional[n:]}
    }
    if most < len(accepted):
        endings.clear()  # some go by name alone

    def _init(self: Any, *args: Any, **named: Any) -> None:
        ending = None if named else endings.get(len(args))
        if ending is not None:
            self.__dict__.update(zip(positional, args + ending))  # noqa: B905 as many of both, and asking takes as long as all the rest
        elif not args and named.keys() == accepted:
            self.__dict__.update(named)
        else:
            self.__dict__.update(completed(self, args, named))

    def completed(self: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The fields' values where not all are given in one way; the errors where they do not fit."""
        if len(args) > most:
            raise TypeError(f"{type(self).__name__} takes {most} positional arguments, got {len(args)}")
        given = dict(zip(positional, args, strict=False))
        if twice := given.keys() & named.keys():
            raise TypeError(f"{type(self).__name__} got {', '.join(sorted(twice))} twice")
        values = {**defaults, **given, **named}
        if values.keys() != accepted:
            missing, unknown = sorted(accepted - values.keys()), sorted(values.keys() - accepted)
            raise TypeError(
                f"{type(self).__name__} lacks {missing}" if missing else f"{type(self).__name__} has no {unknown}"
            )
        return values

    return _init


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self._shown)})"


def _values(self: Any) -> tuple[Any, ...]:
    found = self.__dict__
    return tuple([found[n] for n in self._compared])


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _setattr(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r} of a {type(self).__name__}")


def _delattr(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete {name!r} of a {type(self).__name__}")
