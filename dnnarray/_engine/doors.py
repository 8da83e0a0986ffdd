"""How arrays of other libraries reach an engine and how its results go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._records import frozen


@frozen
class Direct:
    """Functions by which a warm call uses another library's arrays on a CUDA device through their addresses.

    Attributes
    ----------
    pointer : ``pointer(array)`` is the address of its first element
    like : ``like(array)`` is a new array of the same shape, dtype and memory order, which is dense
    maker : ``maker(output, place)()`` makes a result in the library's own memory
    fits : ``fits(output, place)(array)`` says whether it is one that a result may be written to, wherever it lies
    strides : ``strides(array)`` in elements
    copy : ``copy(to, array)``
    scratch : ``scratch(bytes, place)(array)`` is the address of an array that will do for so much scratch memory, else
        None
    stream : ``stream(place)`` is the handle of the library's current stream, on which the engine has to work
    """

    pointer: Callable[[Any], int]
    like: Callable[[Any], Any]
    maker: Callable[[Any, Any], Callable[[], Any]]
    fits: Callable[[Any, Any], Callable[[Any], bool]]
    strides: Callable[[Any], tuple[int, ...]]
    copy: Callable[[Any, Any], Any]
    scratch: Callable[[int, Any], Callable[[Any], int | None]]
    stream: Callable[[Any], int]


@frozen
class Views:
    """Functions by which a warm call uses NumPy views of another library's arrays in host memory; the checks of the
    first call on such arrays are not repeated.

    Attributes
    ----------
    view : ``view(dtype)(array)`` is the engine's array, of that dtype or of any (None), over the memory of one that
        `Door.take` would take
    maker : ``maker(output, inputs)(arrays)`` makes a result in the library's own memory; `inputs` are the specs of the
        call's `arrays`
    """

    view: Callable[[np.dtype | None], Callable[[Any], Any]]
    maker: Callable[[Any, tuple[Any, ...]], Callable[[tuple[Any, ...]], Any]]


@frozen
class Door:
    """Conversion between the arrays of one library and those of an engine, without a copy.

    Attributes
    ----------
    namespace : the library's name
    take : ``take(array)`` is the engine's array over the same memory
    give : ``give(result)`` is a result of the engine as an array of the library
    direct, views : what warm calls go by on a CUDA device, and on the processor; without it they take the general way
    holds : whether borrowed memory has to be held until the device is done: its library reuses it in the order of
        streams of its own
    """

    namespace: str
    take: Callable[[Any], Any]
    give: Callable[[Any], Any]
    direct: Direct | None = None
    views: Views | None = None
    holds: bool = False

    @property
    def native(self) -> bool:
        """Whether results need no way back: they are the engine's own arrays."""
        return self.give is as_it_is and self.direct is None and self.views is None


def as_it_is(array: Any) -> Any:
    return array
