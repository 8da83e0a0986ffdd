"""Values of a running model: tensors of ONNX as arrays, array namespaces, and where an array lies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from onnx import TensorProto, helper, numpy_helper

from dnnarray._errors import DeviceError, OptionError

# Integer constants of up to so many elements stay in the memory of the processor: they are shapes, axes and the like.
_SMALL = 1024
HALF = frozenset(("float16", "bfloat16"))
FLOATING = frozenset(("float64", "float32", *HALF))


def is_array(value: Any) -> bool:
    """Whether a value is an array and no sequence, no absent value."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def arrays_in(values: Iterable[Any]) -> Iterable[Any]:
    """All arrays among values, those in sequences too."""
    for value in values:
        if isinstance(value, list):
            yield from arrays_in(value)
        elif is_array(value):
            yield value


def on_host(array: Any) -> bool:
    """Whether an array lies in the memory of the processor."""
    return isinstance(array, (np.ndarray, np.generic))


def namespace(*values: Any) -> Any:
    """The Array API namespace of the arrays among `values`: of a device's where there is one."""
    found = list(arrays_in(values))
    return array_namespace(next((a for a in found if not on_host(a)), found[0] if found else np.empty(0)))


def host(array: Any) -> np.ndarray:
    """An array in the memory of the processor. That waits for the device where it is a device's."""
    return array if on_host(array) else array.get()


def integers(array: Any) -> tuple[int, ...]:
    """The numbers of an array as Python's integers: an argument that shapes depend on."""
    return tuple(int(n) for n in host(array).reshape(-1))


def number(array: Any) -> Any:
    """The one element of an array as a number of Python."""
    return host(array).reshape(-1)[0].item()


def dtype_of(code: int) -> np.dtype:
    """The dtype that ONNX numbers `code`."""
    if code == TensorProto.UNDEFINED:
        raise OptionError("onnx: a dtype is UNDEFINED; expected one of the dtypes of onnx.TensorProto.")
    return np.dtype(helper.tensor_dtype_to_np_dtype(code))


def array_of(tensor: Any) -> np.ndarray:
    """A tensor of a model as an array."""
    if isinstance(tensor, TensorProto):
        array = np.asarray(numpy_helper.to_array(tensor))
        array.flags.writeable = False  # an output may be what the model holds
        return array
    values, places = array_of(tensor.values), array_of(tensor.indices)  # a SparseTensorProto
    dense = np.zeros(tuple(tensor.dims), values.dtype)
    if places.ndim == 1:
        dense.reshape(-1)[places] = values
    else:
        dense[tuple(places.T)] = values
    return dense


def floating(array: Any) -> bool:
    """Whether an array is of a dtype that dnnarray's functions take."""
    return str(array.dtype) in FLOATING


def widened(array: Any) -> Any:
    """An array of half type in float32, any other as it is."""
    return array.astype(np.float32) if str(array.dtype) in HALF else array


class Place:
    """Where a model runs: the memory of the processor, or a CUDA device.

    Parameters
    ----------
    device : "CPU", "CUDA" or "CUDA:1", as ONNX's backends name devices
    """

    def __init__(self, device: str = "CPU") -> None:
        kind, _, index = device.partition(":")
        if (
            kind not in ("CPU", "CUDA")
            or not (index.isdecimal() or not index)
            or (kind == "CPU" and index not in ("", "0"))
        ):
            raise OptionError(f"onnx: device is {device!r}; expected 'CPU', 'CUDA' or 'CUDA:<number>'.")
        self.device, self.index, self._cupy = device, int(index or 0), None
        if kind == "CUDA":
            self._cupy = _cupy(self.index)

    @property
    def cuda(self) -> bool:
        return self._cupy is not None

    def current(self) -> Any:
        """A context in which new arrays lie here."""
        from contextlib import nullcontext

        return self._cupy.cuda.Device(self.index) if self._cupy else nullcontext()

    def taken(self, value: Any) -> Any:
        """A value with its arrays here; texts stay in the memory of the processor."""
        if isinstance(value, list):
            return [self.taken(v) for v in value]
        if self._cupy is None or not is_array(value) or not on_host(value) or value.dtype == object:
            return value
        return self._cupy.asarray(value)

    def constant(self, array: np.ndarray) -> Any:
        """What a model holds, where its steps expect it."""
        return array if array.dtype.kind in "iub" and array.size <= _SMALL else self.taken(array)

    @staticmethod
    def given_back(value: Any) -> Any:
        """A value with its arrays in the memory of the processor."""
        return (
            [Place.given_back(v) for v in value]
            if isinstance(value, list)
            else host(value)
            if is_array(value)
            else value
        )


def _cupy(index: int) -> Any:
    from dnnarray._cuda.core.requirements import problem

    if reason := problem():
        raise DeviceError(f"onnx: device 'CUDA' is not there: {reason} dnnarray.check() says more.")
    import cupy

    if index >= (count := cupy.cuda.runtime.getDeviceCount()):
        raise DeviceError(f"onnx: device 'CUDA:{index}' is not there; there are {count} CUDA devices, numbered from 0.")
    return cupy
