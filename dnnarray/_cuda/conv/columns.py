"""How the columns of im2col lie in memory, and what a thread moves of them at once."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import vector_length
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen


@frozen
class Columns:
    """How columns lie: whether their channels run fastest, and the steps, in elements, along their axes."""

    last: bool
    image: int
    pixel: int
    group: int
    channel: int
    tap: int


def channels_at_once(dtype: np.dtype, aligned: bool, g: Geometry, last: bool, strides: tuple[int, ...]) -> int:
    """Channels that a thread moves at once: neighbours in the image and in the columns."""
    if not last or (strides[1] != 1 and g.c * g.groups > 1):
        return 1
    return vector_length(dtype, aligned, g.c)
