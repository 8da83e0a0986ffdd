"""What float32 numbers become where half types are multiplied in their place, by numerics class."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import SHORT
from dnnarray._records import frozen
from dnnarray._spec import BFLOAT16, FLOAT16


@frozen
class Numerics:
    """What float32 numbers become: so many parts of a half type, moved into its range by a power of two where it has a
    smaller one."""

    dtype: np.dtype
    parts: int
    scaled: bool

    @property
    def words(self) -> str:
        """For symbols."""
        return f"{SHORT[self.dtype]}x{self.parts}"


NUMERICS = {
    "highest": Numerics(FLOAT16, 2, True),
    "high": Numerics(FLOAT16, 1, True),
    "medium": Numerics(BFLOAT16, 1, False),
}
