"""The errors a user can meet. Each is also a standard exception, so ``except ValueError`` keeps working."""

from collections.abc import Iterable
from typing import NoReturn


class ShapeError(ValueError):
    """An array has the wrong rank, an extent that does not fit, or a size for which the result is undefined."""


class DTypeError(TypeError):
    """An array has a dtype that the function does not take, or arrays that must agree have different ones."""


class ArrayTypeError(TypeError):
    """An argument is no array, or arrays of different namespaces or devices meet in one call."""


class OptionError(ValueError):
    """An option, or the values inside an index array, are outside what the function allows."""


class UnsupportedError(NotImplementedError):
    """The request is meaningful, but no algorithm here does it; the message says what does."""


class WorkspaceError(MemoryError):
    """The scratch memory that is given or allowed, or the memory of the machine or the device, is too small."""


class DeviceError(RuntimeError):
    """A device, driver or compiler that the call needs is missing or too old."""


def closest(name: object, known: Iterable[object], count: int = 1) -> str | None:
    """A question that names what a misspelt name may have meant, the likeliest first; None where nothing is like it."""
    from difflib import get_close_matches  # few programs make such mistakes

    spelt = {str(k).lower(): k for k in known if isinstance(k, str)}
    found = [repr(spelt[s]) for s in get_close_matches(name.lower(), spelt, n=count)] if isinstance(name, str) else []
    return f"Did you mean {', '.join(found)}?" if found else None


def fail_choice(op: str, argument: str, got: object, choices: Iterable[object]) -> NoReturn:
    """Raise the error for a value that is none of the `choices`."""
    known = tuple(choices)
    fail(OptionError, op, argument, repr(got), f"one of {', '.join(map(repr, known))}", closest(got, known))


def fail(
    error: type[Exception], op: str, argument: str, got: object, expected: str, fix: str | None = None
) -> NoReturn:
    """Raise `error` with the one message form of the project: function, argument, got, expected, likely fix."""
    message = f"{op}: {argument} is {got}; expected {expected}."
    raise error(f"{message} {fix}" if fix else message)
