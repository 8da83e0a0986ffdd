"""`split_gemm` of convolutions: windows of one pixel as matrix products on the matrix unit. Imports Numba."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnnarray._cpu.compiled.conv.drivers import by_definition, correlations, with_definition
from dnnarray._cpu.compiled.split_product import ITEM, fits, multiply, multiply_images, pack_columns, split_plan
from dnnarray._cpu.conv.blocks import Shape, Way
from dnnarray._cpu.conv.split import rejects, split_cost
from dnnarray._problems.conv_geometry import Geometry


def _matrices(image: np.ndarray, images: int) -> np.ndarray | None:
    """An image (N, 1, C, D, H, W) as so many matrices (images, pixels, channels) that `fits`, without a copy; None
    where it does not lie so."""
    n, _, c, *space = image.shape
    try:
        found = image[:, 0].transpose(0, 2, 3, 4, 1).reshape((images, n // images * math.prod(space), c), copy=False)
    except ValueError:
        return None
    return found if fits(found) else None


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """All images as one where both lie so; what does not lie as matrices at all goes by a copy."""
    images = 1 if _matrices(x, 1) is not None and _matrices(y, 1) is not None else g.n
    rows, out, columns = _matrices(x, images), _matrices(y, images), w.reshape(g.k, g.c)
    target = y if out is not None else np.empty(y.shape, y.dtype)
    rows = _matrices(x.copy(), images) if rows is None else rows
    out = _matrices(target, images) if out is None else out
    columns = columns if fits(columns) else columns.copy()
    assert rows is not None
    assert out is not None
    if not multiply(rows, columns, out, buffers[0].view(np.uint8)):
        by_definition(g, buffers[0], x, w, y)
    elif target is not y:
        y[...] = target


def _buffers(g: Geometry) -> Sequence[Shape]:
    return with_definition([(-(-split_plan(g.n * g.pixels, g.k, g.c).memory // ITEM),)], [g])


WAY = Way("split_gemm", "", rejects, _buffers, _forward, split_cost)
conv, conv_backward_input, conv_transpose = correlations(WAY, pack_columns, multiply_images)
