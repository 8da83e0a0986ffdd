"""Call frames of XLA's FFI that no XLA has made: the handlers are called with them as XLA would."""

import ctypes

from dnnarray.interop.jax.frame import (
    DTYPES,
    EXECUTE,
    STRING,
    Api,
    Attributes,
    Buffer,
    Buffers,
    Extension,
    Frame,
    Metadata,
    MetadataExtension,
    Text,
    Version,
)

_CODES = {dtype: code for code, dtype in DTYPES.items()}


class MadeUpFrame:
    """A call of a handler with XLA's functions, which write down what they are asked for.

    Attributes
    ----------
    errors : (code, message) of each error that was made
    allocated, freed : (address, bytes) of scratch memory
    room : bytes of scratch memory that there are
    """

    def __init__(self, text, arguments=(), results=(), stage=EXECUTE, stream=7, room=1 << 40):
        self.errors, self.allocated, self.freed, self.room, self._stream = [], [], [], room, stream
        self._kept = []
        self._api = self._functions()
        described = text.encode()
        memory = ctypes.create_string_buffer(described, len(described))
        value = Text(ctypes.addressof(memory), len(described))
        types, entries = (ctypes.c_int * 1)(STRING), (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self._kept += [memory, value, types, entries]
        self.frame = Frame(
            ctypes.sizeof(Frame),
            None,
            ctypes.pointer(self._api),
            11,
            stage,
            self._buffers(arguments),
            self._buffers(results),
            Attributes(ctypes.sizeof(Attributes), None, 1, ctypes.addressof(types), None, ctypes.addressof(entries)),
        )

    @property
    def address(self):
        return ctypes.addressof(self.frame)

    def _buffers(self, described):
        """Buffers of (address, shape, dtype)."""
        made = []
        for address, shape, dtype in described:
            dims = (ctypes.c_int64 * len(shape))(*shape)
            self._kept.append(dims)
            made.append(Buffer(ctypes.sizeof(Buffer), None, _CODES[dtype], address, len(shape), ctypes.addressof(dims)))
        entries = (ctypes.c_void_p * len(made))(*map(ctypes.addressof, made))
        self._kept += [*made, entries]
        return Buffers(ctypes.sizeof(Buffers), None, len(made), None, ctypes.addressof(entries))

    def _functions(self):
        fields = dict(Api._fields_)

        def create(arguments):
            self.errors.append((arguments.contents.code, arguments.contents.message.decode()))
            return len(self.errors)

        def message(arguments):
            arguments.contents.message = b"no memory is left"

        def destroy(arguments):
            self.errors.append(("destroyed", arguments.contents.error))

        def stream(arguments):
            assert arguments.contents.context == 11
            arguments.contents.stream = self._stream

        def allocate(arguments):
            if arguments.contents.size > self.room:
                return 99
            arguments.contents.data = (1 << 50) + arguments.contents.alignment * len(self.allocated)
            self.allocated.append((arguments.contents.data, arguments.contents.size))
            return None

        def free(arguments):
            self.freed.append((arguments.contents.data, arguments.contents.size))

        given = {"error_create": create, "error_message": message, "error_destroy": destroy}
        given |= {"stream_get": stream, "memory_allocate": allocate, "memory_free": free}
        return Api(ctypes.sizeof(Api), None, Version(), None, **{n: fields[n](f) for n, f in given.items()})

    def ask_for_metadata(self):
        """The frame becomes the one by which XLA asks for version and traits; the answer is in what this returns."""
        metadata = Metadata(ctypes.sizeof(Metadata), Version(), 7, 0)
        asked = MetadataExtension(Extension(ctypes.sizeof(Extension), 1, None), ctypes.pointer(metadata))
        other = Extension(ctypes.sizeof(Extension), 5, ctypes.addressof(asked))
        self.frame.extension = ctypes.addressof(other)
        self._kept += [metadata, asked, other]
        return metadata
