"""Attention and rotary embedding on a card: sizes of several tiles, every memory order, the same bits at every run."""

import numpy as np
import pytest

from tests.gpu.test_activation import check
from tests.support import BFLOAT16

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)


def _draw(dtype, *shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return tuple(rng.standard_normal(s).astype(dtype) for s in shapes)


_ROTARY = [
    ((2, 5, 33, 64), (33, 32), "BHSD", None),
    ((2, 33, 5, 64), (33, 32), "BSHD", None),
    ((2, 33, 5, 64), (33, 32), "BHSD", (0, 2, 1, 3)),
    ((3, 7, 19, 128), (3, 19, 64), "BHSD", None),
    ((2, 6, 40, 80), (40, 24), "BHSD", None),
    ((2, 9, 17, 24), (17, 12), "BSHD", None),
    ((1, 4, 1, 256), (4, 128), "BSHD", None),
    ((2, 3, 4, 34), (4, 17), "BHSD", None),
    ((40, 32, 3, 16), (3, 8), "BHSD", None),
]


@_DTYPES
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "table", "layout", "order"), _ROTARY, ids=str)
def test_rotary(shape, table, layout, order, interleaved, dtype):
    if order:
        shape = tuple(shape[a] for a in order)
    x, grad, cos, sin = _draw(dtype, shape, shape, table, table)
    if np.dtype(dtype).itemsize == 2 and len(table) == 3:
        cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    options = {"interleaved": interleaved, "layout": layout}
    check("rotary_embedding", (x, cos, sin), options, 2, order)
    check("rotary_embedding_backward", (grad, x, cos, sin), options, shape[0] * max(shape[1:3]), order)
