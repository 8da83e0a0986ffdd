"""Planning that needs no GPU: arrays as outer x channels x inner, orders of axes, the geometry of sums."""

import itertools

import numpy as np
import pytest

from dnnarray._cuda.common.channels import (
    Sums,
    View,
    channel_mode,
    lies,
    partial_bytes,
    strided,
    sums,
    too_scattered,
    view,
)
from dnnarray._spec import BFLOAT16, FLOAT32, FLOAT64, Spec


def _places(arguments, count):
    """What `struct Strided` gives for every index."""
    extents, strides = (1, *arguments[:4]), arguments[4:]
    result = np.zeros(count, int)
    rest = np.arange(count)
    for n, s in zip(reversed(extents[1:]), reversed(strides[1:]), strict=True):
        result += rest % n * s
        rest = rest // n
    return result + rest * strides[0]


@pytest.mark.parametrize("seen", [*itertools.permutations(range(4))])
@pytest.mark.parametrize("lying", [*itertools.permutations(range(4))])
def test_places_under_another_order_of_the_axes(seen, lying):
    shape = (2, 3, 1, 5)
    memory = np.arange(30).reshape([shape[a] for a in lying]).transpose(np.argsort(lying))
    arguments = strided(shape, seen, lying)
    np.testing.assert_array_equal(_places(arguments, 30), memory.transpose(seen).ravel())


def test_axes_that_stay_neighbours_count_as_one():
    assert strided((2, 3, 4), (0, 1, 2), (0, 1, 2)) == (1, 1, 1, 24, 0, 0, 0, 0, 1)
    assert strided((2,) * 6, (5, 4, 3, 2, 1, 0), range(6)) is None
    assert "ascontiguousarray" in too_scattered((2,) * 6, (5, 4, 3, 2, 1, 0), range(6))
    assert too_scattered((2,) * 6, (5, 0, 1, 2, 3, 4), range(6)) is None


def test_views():
    assert view((4, 3, 5, 7), (0, 1, 2, 3), [1]) == View(4, 3, 35)
    assert view((4, 3, 5, 7), (0, 2, 3, 1), [1]) == View(140, 3, 1)
    assert view((4, 3, 5, 7), (0, 1, 2, 3), [1, 2]) == View(4, 15, 7)
    assert view((4, 3, 5, 7), (0, 1, 2, 3), []) == View(1, 1, 420)
    assert view((4, 3, 5, 7), (0, 1, 2, 3), [1, 3]) is None
    assert view((4, 3, 1, 7), (0, 1, 2, 3), [1, 3]) == View(4, 21, 1)
    assert view((4, 1, 5), (0, 1, 2), [1]) == View(1, 1, 20)


def test_how_a_channel_runs_along_a_vector():
    assert [
        channel_mode(v, 4) for v in (View(2, 3, 8), View(2, 1, 7), View(2, 8, 1), View(2, 6, 1), View(2, 3, 7))
    ] == [0, 0, 1, 2, 2]
    assert [channel_mode(v, 4) for v in (View(2**20, 3, 2**10), View(2**29, 4, 1), View(2**30, 6, 1))] == [4, 5, 6]
    assert View(2**29, 4, 1).sizes == (2**31, 4, 0, 1, 0)


def test_dense_memory_orders():
    assert lies(Spec((2, 3, 4), "float32"), (0, 1, 2))
    assert lies(Spec((2, 1, 4), "float32"), (1, 0, 2))
    assert not lies(Spec((2, 3, 4), "float32"), (0, 2, 1))
    assert lies(Spec((2, 3, 4), "float32", (12, 1, 3)), (0, 2, 1))
    assert lies(Spec((0, 3, 4), "float32"), (0, 2, 1))


_VIEWS = [
    View(0, 3, 5),
    View(2, 0, 3),
    View(1, 1, 1),
    View(64, 256, 3136),
    View(64, 512, 49),
    View(16384, 4096, 1),
    View(1, 1, 2**33),
]
_VIEWS += [View(3, 2**20, 1), View(1, 2**20, 7), View(2**31, 5, 1), View(9, 7, 3)]


@pytest.mark.parametrize("v", _VIEWS, ids=str)
@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_sums_cover_the_array_once(v, dtype, aligned):
    s = sums(v, dtype, aligned)
    assert isinstance(s, Sums)
    assert s.view.size == v.size
    assert s.splits >= 1
    assert s.blocks < 2**31
    if s.columns:
        width = s.view.channels * s.view.inner
        assert width % s.vector == 0
        assert s.blocks == -(-width // (s.columns * s.vector)) * s.splits
    else:
        assert s.view.inner % s.vector == 0
        assert s.blocks == s.view.channels * s.splits
    assert partial_bytes(v, dtype) >= (8 if dtype == FLOAT64 else 4) * s.view.channels * s.parts
