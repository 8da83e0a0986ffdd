"""Compiled convolution and attention: nothing is read or written beyond an array, any number of threads gives the same bits."""

import ctypes
import mmap
import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0


class Guarded:
    """Arrays that end, or begin, at a page that must not be touched."""

    def __init__(self):
        self._maps = []

    def like(self, array, at_end):
        pages = -(-array.nbytes // _PAGE)
        memory = mmap.mmap(-1, (pages + 2) * _PAGE)
        self._maps.append(memory)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for page in (0, pages + 1):
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page * _PAGE), _PAGE, _NO_ACCESS):
                pytest.skip("this system does not protect pages")
        first = (pages + 1) * _PAGE - array.nbytes if at_end else _PAGE
        placed = np.frombuffer(memory, array.dtype, array.size, first).reshape(array.shape)
        placed[...] = array
        return placed


_CONVOLUTIONS = {
    "rows of 7": ((2, 5, 7, 7), (7, 5, 3, 3), {"padding": 1}),
    "rows of 17, stride": ((1, 3, 17, 19), (13, 3, 3, 5), {"padding": (1, 2), "stride": 2}),
    "no padding": ((3, 4, 9, 11), (6, 4, 3, 3), {}),
    "dilation": ((1, 4, 13, 13), (6, 4, 3, 3), {"dilation": 3}),
    "one pixel": ((2, 37, 5, 3), (19, 37, 1, 1), {}),
    "depthwise": ((2, 6, 23, 23), (6, 1, 5, 5), {"groups": 6, "padding": 2}),
    "grouped": ((2, 8, 14, 14), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "one axis": ((2, 3, 67), (5, 3, 3), {}),
    "three axes": ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), {"padding": 1}),
}


def _drawn(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", _CONVOLUTIONS)
def test_convolution_stays_within_its_arrays(name, dtype, at_end):
    *shapes, options = _CONVOLUTIONS[name]
    x, weight = _drawn(shapes, dtype)
    expected = dnn.conv(x, weight, **options, algorithm="gemm")
    guarded = Guarded()
    out = guarded.like(np.zeros_like(expected), at_end)
    dnn.conv(guarded.like(x, at_end), guarded.like(weight, at_end), **options, algorithm="shifted", out=out)
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(out, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("queries", [1, 5, 33])
def test_attention_stays_within_its_arrays(queries, at_end):
    dnn.warmup("attention", progress=False)
    q, k, v = _drawn(((1, 4, queries, 13), (1, 2, 41, 13), (1, 2, 41, 7)))
    guarded = Guarded()
    out = guarded.like(np.zeros((1, 4, queries, 7), np.float32), at_end)
    dnn.attention(*(guarded.like(a, at_end) for a in (q, k, v)), causal=True, out=out)
    expected = dnn.attention(*(a.astype(np.float64) for a in (q, k, v)), causal=True)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["rows of 7", "grouped", "three axes"])
def test_threads_do_not_change_a_bit_of_a_convolution(name):
    *shapes, options = _CONVOLUTIONS[name]
    shapes = [(8, *shapes[0][1:]), shapes[1]]
    x, weight = _drawn(shapes)
    results = []
    for threads in (1, 2, 8):
        with dnn.options(threads=threads):
            results.append(dnn.conv(x, weight, **options, algorithm="shifted"))
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_callers_on_several_threads_do_not_meet():
    x, weight = _drawn(((8, 16, 28, 28), (24, 16, 3, 3)))
    expected, found = dnn.conv(x, weight, padding=1, algorithm="shifted"), []

    def call():
        found.extend(np.array_equal(dnn.conv(x, weight, padding=1, algorithm="shifted"), expected) for _ in range(10))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert found == [True] * 40


def test_the_tile_follows_the_target():
    tile = pytest.importorskip("dnnarray._cpu.compiled.tile")
    assert [tile.vector_bytes(f) for f in ("+sse2,+avx,+avx512f", "+sse2,+avx2,+avx", "+sse2", "+neon", "-avx512f,+avx")] == [
        64,
        32,
        16,
        16,
        32,
    ]
    assert tile.shape_of(32, "+sse2,+avx") == (6, 2)
    assert tile.shape_of(64, "+sse2,+avx512f") == tile.shape_of(16, "+neon") == (8, 3)
