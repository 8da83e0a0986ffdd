"""The call frame of XLA's foreign function interface (FFI), read and answered through ctypes.

The structures are those of ``xla/ffi/api/c_api.h``, which jaxlib ships in ``jaxlib/include``. Only the fields in use
have a meaningful type; all others are addresses. The members of `Api` have kept their order since version 0.1 of the
interface, which is the version that the handlers declare."""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import ml_dtypes
import numpy as np

from dnnarray._errors import DeviceError

VERSION = (0, 1)
METADATA = 1  # the extension by which XLA asks for the version and the traits of a handler
EXECUTE = 3  # the only stage for which the handlers are registered
STRING = 4  # the type of a text among the attributes
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 3, 8, 12, 13  # error codes

DTYPES = {
    1: np.dtype(np.bool_),
    2: np.dtype(np.int8),
    3: np.dtype(np.int16),
    4: np.dtype(np.int32),
    5: np.dtype(np.int64),
    6: np.dtype(np.uint8),
    7: np.dtype(np.uint16),
    8: np.dtype(np.uint32),
    9: np.dtype(np.uint64),
    10: np.dtype(np.float16),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
    16: np.dtype(ml_dtypes.bfloat16),
}
_HEAD: list[Any] = [("struct_size", c_size_t), ("extension", c_void_p)]


class Extension(Structure):
    """The beginning of every extension."""

    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p)]


class Version(Structure):
    _fields_ = [*_HEAD, ("major", c_int), ("minor", c_int)]


class Metadata(Structure):
    _fields_ = [("struct_size", c_size_t), ("version", Version), ("traits", c_uint32), ("state_type", c_int64)]


class MetadataExtension(Structure):
    _fields_ = [("base", Extension), ("metadata", POINTER(Metadata))]


class Buffer(Structure):
    """An array: its dimensions, and the address of its memory, which is in C order."""

    _fields_ = [*_HEAD, ("type", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", c_void_p)]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple((c_int64 * self.rank).from_address(self.dims)) if self.rank else ()

    @property
    def dtype(self) -> np.dtype | None:
        return DTYPES.get(self.type)


class Buffers(Structure):
    """The arguments, or the results."""

    _fields_ = [*_HEAD, ("size", c_int64), ("types", c_void_p), ("entries", c_void_p)]

    def addresses(self) -> list[int]:
        """Where each `Buffer` is."""
        return (c_size_t * self.size).from_address(self.entries)[:] if self.size else []

    def all(self) -> list[Buffer]:
        return [Buffer.from_address(address) for address in self.addresses()]


_DATA, _RANK = Buffer.data.offset, Buffer.rank.offset


def memory_of(address: int) -> int | None:
    """The address of the memory of the `Buffer` at an address; an object for the buffer would take twice as long."""
    return c_void_p.from_address(address + _DATA).value


def rank_of(address: int) -> int:
    """The number of axes of the `Buffer` at an address."""
    return c_int64.from_address(address + _RANK).value


class Text(Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class Attributes(Structure):
    _fields_ = [*_HEAD, ("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("entries", c_void_p)]

    def text(self) -> bytes:
        """The value of the only attribute, a text."""
        if self.size != 1 or c_int.from_address(self.types).value != STRING:
            raise DeviceError(
                f"the call has {self.size} attributes; expected the description of a call of dnnarray, which is a text."
            )
        text = Text.from_address(c_void_p.from_address(self.entries).value or 0)
        return ctypes.string_at(text.data, text.length)


class ErrorArguments(Structure):
    _fields_ = [*_HEAD, ("message", c_char_p), ("code", c_int)]


class MessageArguments(Structure):
    _fields_ = [*_HEAD, ("error", c_void_p), ("message", c_char_p)]


class DestroyArguments(Structure):
    _fields_ = [*_HEAD, ("error", c_void_p)]


class StreamArguments(Structure):
    _fields_ = [*_HEAD, ("context", c_void_p), ("stream", c_void_p)]


class AllocateArguments(Structure):
    _fields_ = [*_HEAD, ("context", c_void_p), ("size", c_size_t), ("alignment", c_size_t), ("data", c_void_p)]


class FreeArguments(Structure):
    _fields_ = [*_HEAD, ("context", c_void_p), ("size", c_size_t), ("data", c_void_p)]


def _function(arguments: Any) -> Any:
    """The type of a function of the interface: it takes a structure and gives an error, or nothing."""
    return CFUNCTYPE(c_void_p, POINTER(arguments))


class Api(Structure):
    """XLA's functions."""

    _fields_ = [
        *_HEAD,
        ("version", Version),
        ("internal", c_void_p),
        ("error_create", _function(ErrorArguments)),
        ("error_message", _function(MessageArguments)),
        ("error_destroy", _function(DestroyArguments)),
        ("handler_register", c_void_p),
        ("stream_get", _function(StreamArguments)),
        ("type_register", c_void_p),
        ("context_get", c_void_p),
        ("state_set", c_void_p),
        ("state_get", c_void_p),
        ("memory_allocate", _function(AllocateArguments)),
        ("memory_free", _function(FreeArguments)),
    ]


class Frame(Structure):
    """One call of a handler."""

    _fields_ = [
        *_HEAD,
        ("api", POINTER(Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Buffers),
        ("results", Buffers),
        ("attributes", Attributes),
    ]

    def answer_metadata(self) -> bool:
        """Whether XLA asks for the handler's version and traits, which are then filled in."""
        address = self.extension
        while address:
            extension = Extension.from_address(address)
            if extension.type == METADATA:
                metadata = MetadataExtension.from_address(address).metadata.contents
                metadata.version.major, metadata.version.minor = VERSION
                metadata.traits = 0
                return True
            address = extension.next
        return False

    def error(self, code: int, message: str) -> int:
        """An error of XLA, which takes the message over."""
        arguments = ErrorArguments(ctypes.sizeof(ErrorArguments), None, message.encode(), code)
        created: int = self.api.contents.error_create(byref(arguments))
        return created

    def stream(self) -> int:
        """The handle of the CUDA stream on which the call has to work; 0 is the default stream."""
        arguments = StreamArguments(ctypes.sizeof(StreamArguments), None, self.context, None)
        self._check(self.api.contents.stream_get(byref(arguments)))
        return arguments.stream or 0

    def allocate(self, size: int, alignment: int) -> int:
        """Memory of XLA's own on the device of the call, which is given back by `free` when everything that uses it is
        queued."""
        arguments = AllocateArguments(ctypes.sizeof(AllocateArguments), None, self.context, size, alignment, None)
        self._check(self.api.contents.memory_allocate(byref(arguments)))
        return arguments.data or 0

    def free(self, address: int, size: int) -> None:
        arguments = FreeArguments(ctypes.sizeof(FreeArguments), None, self.context, size, address)
        self._check(self.api.contents.memory_free(byref(arguments)))

    def _check(self, error: int | None) -> None:
        """Raise what a function of XLA reports; the error is ours to destroy."""
        if not error:
            return
        api = self.api.contents
        told = MessageArguments(ctypes.sizeof(MessageArguments), None, error, None)
        api.error_message(byref(told))
        message = (told.message or b"").decode(errors="replace")
        api.error_destroy(byref(DestroyArguments(ctypes.sizeof(DestroyArguments), None, error)))
        raise DeviceError(f"XLA reports: {message}")


HANDLER = CFUNCTYPE(c_void_p, c_void_p)


def host_array(address: int | None, shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """The memory of `size` bytes at an address as an array, without a copy."""
    if not size:
        return np.empty(shape, dtype)  # of which XLA gives no address
    memory: Any = (ctypes.c_char * size).from_address(address or 0)
    return np.ndarray(shape, dtype, memory)
