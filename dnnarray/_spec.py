"""`Spec`: what is known of an array without its data. Problems and selection see arrays only through it."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from dnnarray._errors import DTypeError, ShapeError, closest, fail

FLOAT64 = np.dtype(np.float64)
FLOAT32 = np.dtype(np.float32)
FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INT64 = np.dtype(np.int64)
INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)
FLOATING = frozenset({FLOAT64, FLOAT32, FLOAT16, BFLOAT16})
HALF = frozenset({FLOAT16, BFLOAT16})
_NAMES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)  # for "did you mean"


def as_dtype(value: Any) -> np.dtype:
    """The NumPy dtype for a dtype, a type, a name (``"bfloat16"``) or a dtype of another namespace
    (``torch.bfloat16``)."""
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, str):
        name = value
    elif isinstance(value, type):
        return _dtype(value)
    else:
        name = str(value).rpartition(".")[2]
    return BFLOAT16 if name == "bfloat16" else _dtype(name)


def _dtype(value: Any) -> np.dtype:
    try:
        return np.dtype(value)
    except (TypeError, ValueError, SyntaxError):
        fix = closest(value, _NAMES) or 'For example "float32".'
        fail(DTypeError, "Spec", "dtype", repr(value), "the name of a dtype or a dtype object", fix)


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype) -> str:
    """The dtype's name, which NumPy puts together anew each time."""
    return str(dtype.name)


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape, dtype and memory order of an array, without data.

    It stands for an array in `infer`, `algorithms` and the like, and in a call for an array of which no value is read,
    such as the input of an average pooling in its gradient. For one that is read it is an `ArrayTypeError`.

    Parameters
    ----------
    shape : tuple of int
        The extents, each 0 or more.
    dtype : dtype or str
        Anything that names a dtype: ``"float32"``, ``numpy.float32``, ``torch.bfloat16``.
    strides : tuple of int, optional
        Elements (not bytes) between neighbours along each axis; None (the default) says C-contiguous.

    Raises
    ------
    ShapeError
        An extent is negative or no integer, or `strides` are not one integer for each axis.
    DTypeError
        `dtype` names no dtype.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.Spec((2, 3), "float32").size
    6
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        try:
            shape = tuple(operator.index(n) for n in self.shape)
        except TypeError:
            fail(ShapeError, "Spec", "shape", repr(self.shape), "a tuple of integers")
        if any(n < 0 for n in shape):
            fail(ShapeError, "Spec", "shape", shape, "extents of 0 or more")
        object.__setattr__(self, "shape", shape)
        dtype = as_dtype(self.dtype)
        # Byte-swapped arrays are converted on the way in: the problems know native ones only.
        object.__setattr__(self, "dtype", dtype if dtype.isnative else dtype.newbyteorder("="))
        if self.strides is not None:
            try:
                strides = tuple(operator.index(s) for s in self.strides)
            except TypeError:
                fail(ShapeError, "Spec", "strides", repr(self.strides), "a tuple of integers")
            if len(strides) != len(shape):
                fail(ShapeError, "Spec", "strides", strides, f"one stride for each of the {len(shape)} axes")
            object.__setattr__(self, "strides", None if strides == _c_strides(shape) else strides)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def c_strides(self) -> tuple[int, ...]:
        """The strides in elements of this shape in C order."""
        return _c_strides(self.shape)

    def axis_order(self) -> tuple[int, ...] | None:
        """The axes from the slowest to the fastest if the memory is dense, else None."""
        return _axis_order(self.shape, self.strides)

    def like(self, shape: tuple[int, ...] | None = None, dtype: np.dtype | None = None) -> Spec:
        """A result in the memory order of this array (C order where this array is not dense).

        `shape` must have as many axes as this array; channels-last memory under a channels-first shape stays so.
        """
        shape = self.shape if shape is None else shape
        order = self.axis_order() if len(shape) == self.ndim else None
        strides = None
        if order is not None and order != tuple(range(self.ndim)):
            packed = _c_strides(tuple(shape[i] for i in order))
            strides = tuple(packed[order.index(i)] for i in range(self.ndim))
        return Spec(shape, self.dtype if dtype is None else dtype, strides)

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


@lru_cache(maxsize=4096)
def _axis_order(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if strides is None:
        return tuple(range(len(shape)))
    ndim = len(shape)
    # Of axes with one stride the longer one is the slower. Those of extent 1 follow it in turn, from the last axis on
    # to the first: images of one channel in channels-last memory keep the order of their strides, and in C order
    # theirs.
    longer = {strides[i]: i for i in reversed(range(ndim)) if shape[i] > 1}
    order = sorted(range(ndim), key=lambda i: (-strides[i], (i - longer.get(strides[i], 0)) % ndim))
    packed = _c_strides(tuple(shape[i] for i in order))
    dense = all(shape[i] == 1 or strides[i] == s for i, s in zip(order, packed, strict=True))
    return tuple(order) if dense else None


@lru_cache(maxsize=4096)
def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def lies(shape: tuple[int, ...], planned: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether these are the planned strides along the axes that have more than one place."""
    return all(a == b or n == 1 for a, b, n in zip(strides, planned, shape, strict=True))


def drawn(spec: Spec) -> np.ndarray:
    """An array for a Spec whose algorithms are to be measured: normal numbers, or zeros of a dtype that is not
    floating."""
    if spec.dtype in FLOATING:
        return np.random.default_rng(0).standard_normal(spec.shape).astype(spec.dtype)
    return np.zeros(spec.shape, spec.dtype)
