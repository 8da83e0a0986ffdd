"""The errors a user can meet. Each is also a standard exception, so ``except ValueError`` keeps working."""

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


def fail(error: type[Exception], op: str, argument: str, got: object, expected: str, fix: str | None = None) -> NoReturn:
    """Raise `error` with the one message form of the project: function, argument, got, expected, likely fix."""
    message = f"{op}: {argument} is {got}; expected {expected}."
    raise error(f"{message} {fix}" if fix else message)
