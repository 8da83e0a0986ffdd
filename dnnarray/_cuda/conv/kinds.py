"""What an algorithm asks of the numbers and of the device whatever the extents are."""

from __future__ import annotations

import numpy as np

from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, name_of


@frozen
class Kind:
    """The dtypes of the first operand that it takes, as a set and in words, and the device: a capability at least, or
    none but `only`."""

    dtypes: frozenset[np.dtype]
    words: str
    least: tuple[int, int] | None = None
    only: tuple[int, int] | None = None

    def refuses(self, dtype: np.dtype, device: Device) -> str | None:
        """Why, or None."""
        if self.only and device.capability != self.only:
            return f"a device without its matrix instructions (sm_{self.only[0]}{self.only[1]}a)"
        if self.least and (device.capability is None or device.capability < self.least):
            return f"a device without its matrix instructions (sm_{self.least[0]}{self.least[1]})"
        return None if dtype in self.dtypes else f"{name_of(dtype)} arrays; it takes {self.words}"


_SINGLE, _HALF, _AMPERE, _HOPPER = frozenset({FLOAT32}), "float16 and bfloat16", (8, 0), (9, 0)
SINGLE = Kind(_SINGLE, "float32")
AMPERE_SINGLE, AMPERE_HALF = Kind(_SINGLE, "float32", _AMPERE), Kind(HALF, _HALF, _AMPERE)
AMPERE_BOTH = Kind(HALF | _SINGLE, f"float32, {_HALF}", _AMPERE)
HOPPER_SINGLE, HOPPER_HALF = Kind(_SINGLE, "float32", only=_HOPPER), Kind(HALF, _HALF, only=_HOPPER)
