"""What the arguments of `vjp`, `infer` and their like stand for: found once for all calls of one form."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from dnnarray._call import arrays as _arrays
from dnnarray._call.body import MISSING
from dnnarray._errors import closest
from dnnarray._records import frozen

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation

_MOST = 4096
_bindings: dict[tuple, Binding] = {}


@frozen(eq=False)
class Binding:
    """What the arguments of calls of one form stand for.

    Attributes
    ----------
    places : the parameters that the values given by position are for, in their order
    arrays : all array parameters of the operation in signature order
    defaults : the options that may be left out
    missing : those that may not, and are; what the function takes to tell that
    passed : the arrays that are given, those by position first
    """

    places: tuple[str, ...]
    arrays: tuple[str, ...]
    defaults: dict[str, Any]
    missing: dict[str, Any]
    passed: tuple[str, ...]

    def bound(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arrays in signature order, None where left out, and everything else by name; without what is required and
        missing."""
        options = self.defaults | dict(zip(self.places, values, strict=True)) | named
        return tuple([options.pop(n, None) for n in self.arrays]), options


def binding_of(operation: Operation, values: tuple[Any, ...], named: dict[str, Any]) -> Binding:
    """What the arguments of a call stand for. It is looked at once for all calls that have values of the same types and
    the same names."""
    key = (operation, *map(type, values), *named)
    found = _bindings.get(key)
    if found is None:
        if len(_bindings) >= _MOST:
            _bindings.clear()
        found = _bindings[key] = _bind(operation, values, named)
    return found


def _bind(operation: Operation, values: tuple[Any, ...], named: dict[str, Any]) -> Binding:
    placed = _place(operation, values, named)
    known = (*operation.arrays, *operation.defaults)
    for name in named:
        if name in placed or name not in known:
            hint = f" {fix}" if name not in known and (fix := closest(name, known)) else ""
            raise TypeError(
                f"{operation.name}: unknown or repeated argument {name!r}; it takes {', '.join(known)}.{hint}"
            )
    given = (*placed, *named)
    missing = [n for n in operation.static if n not in given and operation.defaults[n] is inspect.Parameter.empty]
    if missing:
        raise TypeError(
            f"{operation.name}: missing {', '.join(missing)}; give {'it' if len(missing) == 1 else 'them'} by name."
        )
    defaults = {n: d for n, d in operation.defaults.items() if d is not inspect.Parameter.empty}
    passed = tuple(n for names in (placed, named) for n in operation.arrays if n in names)
    required = dict.fromkeys((n for n in operation.runtime if n not in given and n not in defaults), MISSING)
    return Binding(tuple(placed), operation.arrays, defaults, required, passed)


def _place(operation: Operation, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The parameters that values given by position are for: all arrays in signature order, and the options that stand
    among them.

    Such an option may be left to its name: an array (or None, for one that is omitted) in its place is the next array.
    What is no array, behind all arrays, is the next option."""
    parameters = operation.function.__signature__.parameters  # type: ignore[attr-defined]
    positional = [n for n in operation.defaults if parameters[n].kind is not inspect.Parameter.KEYWORD_ONLY]
    open_ = [n for n in parameters if n in operation.arrays or (n in positional and n not in named)]
    behind = [n for n in operation.static if n not in positional and n not in named]
    given: dict[str, Any] = {}
    for value in values:
        array = value is None or _arrays.like_array(value)
        while array and open_ and open_[0] in positional and any(n in operation.arrays for n in open_):
            open_.pop(0)
        names = open_ or ([] if array else behind)
        if not names:
            raise TypeError(
                f"{operation.name}: takes {len(operation.arrays)} arrays ({', '.join(operation.arrays)}), got "
                f"{len(values)}."
            )
        given[names.pop(0)] = value
    return given
