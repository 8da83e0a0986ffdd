"""Names for the types in public signatures.

The result of an operation is an array of the caller's own namespace, so a signature carries the type of its first array
through to its result: a type checker sees that ``dnn.conv(x, weight)`` is a ``numpy.ndarray`` when ``x`` is one. Every
other array may have another dtype (labels, lengths, float32 parameters beside a half-precision input), which array
libraries express as another type, so these arrays are `Array`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar

ArrayT = TypeVar("ArrayT")  # the first array of a call, and what comes back
Array: TypeAlias = Any  # any array that follows the Array API standard or speaks DLPack

Ints: TypeAlias = SupportsIndex | Sequence[SupportsIndex]  # one for all spatial axes, or one for each
Axes: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...]
Padding: TypeAlias = (
    SupportsIndex
    | Sequence[SupportsIndex | tuple[SupportsIndex, SupportsIndex]]
    | Literal["valid", "same", "same_lower"]
)
Layout: TypeAlias = Literal["channels_first", "channels_last"]
HeadLayout: TypeAlias = Literal["BHSD", "BSHD"]
SequenceLayout: TypeAlias = Literal["TNC", "NTC"]
Causal: TypeAlias = bool | Literal["lower_right", "upper_left"]
Window: TypeAlias = tuple[SupportsIndex | None, SupportsIndex | None]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
