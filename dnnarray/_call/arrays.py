"""Which engine an array belongs to, and borrowing arrays of other namespaces without a copy.

A `Door` is one namespace: `take` turns its array into the engine's own (NumPy, CuPy) over the same memory, `give` turns
a result of the engine back. Well-known namespaces have their own door; everything else passes through DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, cast

import numpy as np

from dnnarray._call.body import KINDS
from dnnarray._engine.doors import Door, as_it_is
from dnnarray._engine.protocol import DeviceEngine, Engine
from dnnarray._errors import ArrayTypeError, DeviceError, OptionError, fail
from dnnarray._problems.base import leaves, tree_map
from dnnarray._records import frozen
from dnnarray._spec import INT64, Spec, as_dtype

_DLPACK_CPU, _DLPACK_CUDA = 1, 2


def _take_numpy(array: Any) -> np.ndarray:
    if isinstance(array, np.ma.MaskedArray):
        raise ArrayTypeError("a masked array has no meaning here; fill it first, with .filled(value)")
    return np.asarray(array)


def _take_jax_cpu(array: Any) -> np.ndarray:
    tracer = sys.modules["jax"].core.Tracer
    if isinstance(array, tracer):
        raise ArrayTypeError(
            "a JAX tracer (inside jit, grad or vmap) holds no data; use the functions of dnnarray.interop.jax there"
        )
    return np.asarray(array)


def _give_jax_cpu(array: np.ndarray) -> Any:
    jax = sys.modules["jax"]
    if array.dtype == INT64 and not jax.config.jax_enable_x64:
        array = array.astype(np.int32)  # JAX without x64 has no int64; it would truncate with a warning
    return jax.numpy.asarray(array)


def _take_jax_cuda(array: Any) -> Any:
    return _cuda().from_dlpack(array)


def _give_jax_cuda(array: Any) -> Any:
    jax = sys.modules["jax"]
    if array.dtype == INT64 and not jax.config.jax_enable_x64:
        array = array.astype(np.int32)  # JAX without x64 has no int64
    return jax.dlpack.from_dlpack(array)


def _dlpack_door(array: Any, take: Callable[[Any], Any], holds: bool = False) -> Door:
    """By DLPack there and back. An array that knows of no namespace has no way back: its results are the engine's own
    arrays."""
    namespace = getattr(array, "__array_namespace__", None)
    give = namespace().from_dlpack if namespace else _left_as_it_is
    return Door(type(array).__module__.partition(".")[0], take, give, holds=holds)


def _left_as_it_is(array: Any) -> Any:
    """Not `as_it_is`, which says that an array is the engine's own and need not be held, ordered or looked after."""
    return array


NUMPY = Door("numpy", _take_numpy, as_it_is)
_CUPY = Door("cupy", as_it_is, as_it_is)
# The engines' own array types. CuPy's joins when its first array arrives.
NATIVE: set[type] = {np.ndarray}
_JAX_CPU = Door("jax", _take_jax_cpu, _give_jax_cpu)
_JAX_CUDA = Door("jax", _take_jax_cuda, _give_jax_cuda, holds=True)


def _dlpack_device(array: Any, where: str) -> tuple[int, int]:
    try:
        device_type, index = array.__dlpack_device__()
    except (ValueError, TypeError, RuntimeError, BufferError) as error:  # a torch tensor on "meta", for example
        raise DeviceError(f"{where} is {_describe(array)} that shares no memory: {error}.") from None
    kind = getattr(device_type, "value", device_type)
    if kind not in (_DLPACK_CPU, _DLPACK_CUDA):
        raise DeviceError(
            f"{where} lives on DLPack device type {kind}; expected memory of the CPU (1) or of a CUDA device (2)."
        )
    return kind, index


def _family(array: Any) -> str:
    cls: Any = type(array)
    return _family_of_class(cls)


@lru_cache(maxsize=256)
def _family_of_class(cls: Any) -> str:
    """The namespace a class belongs to: numpy, cupy, torch, jax, dlpack (any other array), or none."""
    top = {base.__module__.partition(".")[0] for base in cls.__mro__}
    if issubclass(cls, (np.ndarray, np.generic)):
        return "numpy"
    for name, modules in (("cupy", {"cupy"}), ("torch", {"torch"}), ("jax", {"jax", "jaxlib"})):
        if top & modules and hasattr(cls, "__dlpack__"):
            return name
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        return "dlpack"
    return "none"


def _is_cuda(array: Any, where: str) -> bool:
    family = _family(array)
    if family == "numpy":
        return False
    if family == "torch" and array.is_cuda:
        return True
    return family == "cupy" or _dlpack_device(array, where)[0] == _DLPACK_CUDA


def _door(array: Any, where: str) -> tuple[Door, Engine]:
    family = _family(array)
    if family == "none":
        raise ArrayTypeError(
            f"{where} is {_describe(array)}; expected an array (NumPy, CuPy, PyTorch, JAX or another that speaks "
            f"DLPack). Convert it first, for example with numpy.asarray(..., dtype='float32'), or dtype='int64' where "
            f"it holds indices or lengths."
        )
    if family == "jax" and isinstance(array, sys.modules["jax"].core.Tracer):
        return _JAX_CPU, _cpu()  # its take() says what is wrong
    if _is_cuda(array, where):
        return _cuda_door(array, family, where)
    if family == "dlpack":
        return _dlpack_door(array, np.from_dlpack), _cpu()
    if family == "torch":
        return _torch().host_door(), _cpu()
    return {"numpy": NUMPY, "jax": _JAX_CPU}[family], _cpu()


def _torch() -> ModuleType:
    """A module of its own, which needs torch. Its arrays are a kind of their own from the first one on."""
    from dnnarray._call import torch as _torch

    KINDS.setdefault("torch", _torch.kind())
    return _torch


def _cpu() -> Engine:
    from dnnarray._cpu import engine

    return engine


def _cuda_door(array: Any, family: str, where: str) -> tuple[Door, Engine]:
    engine = _cuda_engine(f"{where} lives on a CUDA device.")
    NATIVE.add(engine.ARRAY)
    KINDS.setdefault("cupy", engine.kind())
    if family == "dlpack":
        return _dlpack_door(array, engine.from_dlpack, holds=True), engine
    if family == "torch":
        if not engine.alone():
            KINDS["torch"] = _torch().kind(engine)
        return _torch().door(engine), engine
    return {"cupy": _CUPY, "jax": _JAX_CUDA}[family], engine


def _cuda() -> DeviceEngine:
    from dnnarray._cuda import engine

    return engine


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text}" if len(text) <= 40 else f"a {type(value).__name__}"


@frozen
class Borrowed:
    """The arrays of one call as the engine sees them, and the way back."""

    arrays: tuple[Any, ...]
    door: Door
    engine: Engine

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the engine works on the device of the arrays and in order with what their library has
        queued there."""
        way, engine = self.door.direct, self.engine
        place = engine.place(next(iter(leaves(self.arrays))))
        with engine.at(place), self.device_engine.on_stream(way.stream(place)) if way else nullcontext():
            yield

    @property
    def device_engine(self) -> DeviceEngine:
        """The engine of arrays that lie on a device with streams."""
        return cast(DeviceEngine, self.engine)


def borrow(op: str, names: tuple[str, ...], arrays: tuple[Any, ...], nested: frozenset[str] = frozenset()) -> Borrowed:
    """All `arrays` of a call through the one door of their namespace. A `Spec` behind the first of them stays as it is.

    Raises
    ------
    ArrayTypeError
        An entry is no array, or entries belong to different namespaces or devices.
    """
    found: list[tuple[str, Any, Door, Engine]] = []

    def visit(name: str, value: Any) -> Any:
        if type(value) is Spec and found:
            return value
        door, engine = _door(value, f"{op}: {name}")
        found.append((name, value, door, engine))
        return _through(door, op, name, value)

    def visit_argument(name: str, value: Any) -> Any:
        if name in nested:
            return tree_map(partial(visit, name), value)
        return None if value is None else visit(name, value)

    taken = tuple(map(visit_argument, names, arrays))
    if not found:
        raise ArrayTypeError(f"{op}: {names[0]} is None; expected an array.")
    first, door, engine = found[0][0], found[0][2], found[0][3]
    for name, _, other, other_engine in found[1:]:
        if other.namespace != door.namespace or other_engine is not engine:
            raise ArrayTypeError(
                f"{op}: {name} is an array of {other.namespace} and {first} of {door.namespace}; expected one "
                "namespace and one device "
                f"in a call. Convert one of them first."
            )
    return Borrowed(taken, door, engine)


def take_beside(op: str, name: str, door: Door, array: Any) -> Any:
    """An array that the engine writes to (`out`, `workspace`) through the door that the inputs came by."""
    namespace = _door(array, f"{op}: {name}")[0].namespace
    if namespace != door.namespace:
        raise ArrayTypeError(
            f"{op}: {name} is an array of {namespace}; expected one of {door.namespace}, as the inputs are."
        )
    if namespace == "jax":
        fail(
            OptionError,
            op,
            name,
            "an array of JAX, which never changes",
            "no array",
            "Use the result that is returned.",
        )
    if namespace == "torch" and (array.is_neg() or array.is_conj()):  # to borrow it would copy it
        fail(
            OptionError,
            op,
            name,
            "a tensor whose memory holds other values",
            "plain memory",
            "Pass its .resolve_neg().resolve_conj().",
        )
    return _through(door, op, name, array)


def _through(door: Door, op: str, name: str, value: Any) -> Any:
    """``door.take(value)``; what the array's own library refuses is named too."""
    try:
        return door.take(value)
    except ArrayTypeError as error:
        raise ArrayTypeError(f"{op}: {name}: {error}.") from None
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArrayTypeError(f"{op}: {name} is {_describe(value)} that cannot be borrowed: {error}") from error


def engine_view(array: Any) -> Any:
    """An array of any namespace as the engine's own; None for what is no array, or none that a call would take."""
    try:
        return _door(array, "the array")[0].take(array)
    except (ArrayTypeError, DeviceError):
        return None


def native_byte_order(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Byte-swapped arrays converted, all others as they are."""

    def convert(array: Any) -> Any:
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    return tuple(tree_map(convert, array) for array in arrays)


def like_array(value: Any) -> bool:
    """Whether a value that may be an option stands for an array; NumPy's numbers do not."""
    described = hasattr(value, "shape") and hasattr(value, "dtype")
    return not isinstance(value, np.generic) and (described or hasattr(value, "__dlpack__"))


def spec_of(array: Any, where: str = "the argument") -> Spec:
    """The `Spec` of an array of any namespace, or a `Spec` itself; `where` names it in the message where it is
    neither."""
    if isinstance(array, Spec):
        return array
    if isinstance(array, (np.ndarray, np.generic)):
        # a void of no bytes has no strides to speak of; its dtype is refused later
        itemsize = array.dtype.itemsize or 1
        # a call takes its copy, which has no gaps and no negative strides
        lies = array if array.dtype.isnative else np.empty_like(array)
        return Spec(array.shape, array.dtype, tuple(s // itemsize for s in lies.strides))
    if not (hasattr(array, "shape") and hasattr(array, "dtype")):
        view = engine_view(array)  # what speaks DLPack and nothing else
        if view is None:
            raise ArrayTypeError(f"{where} is {_describe(array)}; expected an array or a dnnarray.Spec.")
        return spec_of(view, where)
    return Spec(tuple(array.shape), as_dtype(array.dtype), _element_strides(array, where))


def _element_strides(array: Any, where: str) -> tuple[int, ...] | None:
    """Strides in elements: PyTorch counts so, CuPy in bytes; other namespaces do not tell."""
    if callable(stride := getattr(array, "stride", None)):
        return tuple(stride())
    if isinstance(strides := getattr(array, "strides", None), tuple):
        itemsize = array.dtype.itemsize
        if any(s % itemsize for s, n in zip(strides, array.shape, strict=True) if n > 1):
            raise ArrayTypeError(
                f"{where} has strides of {strides} bytes; expected multiples of its {itemsize} bytes an element."
            )
        return tuple(s // itemsize for s in strides)
    return None


def engine_of(arrays: tuple[Any, ...], specs_on: str = "cpu") -> Engine:
    """The engine that would run a call on these arrays; for Specs alone, the one that `specs_on` names."""
    for array in leaves(arrays):
        if not isinstance(array, Spec):
            return _door(array, "the array")[1]
    return _cpu() if specs_on == "cpu" else _cuda_engine("specs_on='cuda' asks for a CUDA device.")


def _cuda_engine(where: str) -> DeviceEngine:
    try:
        engine = _cuda()
        engine.current_place()  # where CuPy loads without a driver, or with one too old, it fails here
        return engine
    except (ImportError, RuntimeError) as error:
        from dnnarray._cuda.core.requirements import problem

        reason = problem() or f"the CUDA engine does not load: {error}."
        raise DeviceError(f"{where} {reason} dnnarray.check() says more.") from error
