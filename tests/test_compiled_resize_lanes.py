"""Compiled resizing of any memory order: beside the definition in float64 and NumPy's algorithm, the same bits by any
number of threads, nothing read or written beside the arrays."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.oracles import spatial as oracles
from tests.support import call_by

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")

_CHANNELS = (1, 3, 5, 17, 64)
_TOLERANCE = {"float32": 3e-7, "float64": 1e-15}  # of the largest number, for each axis and tap

# Extents of the source and options.
_CASES = {
    "nearest, twice": ((5, 6), {"scale": 2.0}),
    "nearest, a third": ((11, 10), {"size": (4, 3)}),
    "nearest, exact": ((7, 9), {"size": (13, 5), "mode": "nearest_exact"}),
    "nearest, by a scale": ((9, 13), {"scale": (1.7, 0.6)}),
    "linear, twice": ((9, 21), {"scale": 2.0, "mode": "linear"}),
    "linear, half": ((18, 70), {"scale": 0.5, "mode": "linear"}),
    "linear, corners": ((9, 8), {"size": (17, 5), "mode": "linear", "align_corners": True}),
    "linear, one element": ((1, 7), {"size": (3, 1), "mode": "linear"}),
    "linear, one axis of two": ((6, 7), {"size": (6, 19), "mode": "linear"}),
    "linear, the other axis": ((6, 7), {"size": (13, 7), "mode": "linear"}),
    "linear, far fewer": ((23, 37), {"size": (3, 4), "mode": "linear"}),
    "linear, antialias": ((23, 17), {"size": (5, 6), "mode": "linear", "antialias": True}),
    "cubic, twice": ((5, 40), {"scale": 2.0, "mode": "cubic"}),
    "cubic, half": ((12, 90), {"scale": 0.5, "mode": "cubic"}),
    "cubic, corners": ((7, 6), {"size": (10, 11), "mode": "cubic", "align_corners": True}),
    "cubic, antialias": ((19, 11), {"size": (6, 15), "mode": "cubic", "antialias": True}),
    "area": ((13, 10), {"size": (4, 7), "mode": "area"}),
    "nothing changes": ((4, 5), {"scale": 1.0, "mode": "linear"}),
    "long rows in blocks": ((3, 901), {"size": (5, 1777), "mode": "linear"}),
    "one row of blocks": ((701,), {"scale": 3.0, "mode": "linear"}),
    "one axis, nearest": ((29,), {"size": 67}),
    "one axis, half": ((70,), {"scale": 0.5, "mode": "cubic"}),
    "three axes, linear": ((4, 5, 6), {"size": (7, 9, 11), "mode": "linear"}),
    "three axes, blocks": ((3, 4, 350), {"size": (5, 3, 640), "mode": "linear"}),
    "three axes, nearest": ((4, 5, 6), {"size": (7, 2, 9)}),
    "three axes, fewer": ((9, 8, 7), {"size": (3, 4, 2), "mode": "cubic"}),
    "three axes, planes as they are": ((3, 5, 6), {"size": (3, 9, 4), "mode": "area"}),
    "three axes, antialias": ((9, 7, 11), {"size": (4, 10, 3), "mode": "linear", "antialias": True}),
}


def _drawn(name, channels, dtype, layout="channels_last"):
    """x, the gradient of the result, and options."""
    space, options = _CASES[name]
    options = {**options, "layout": layout}
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, *space, channels) if layout == "channels_last" else (2, channels, *space)).astype(dtype)
    result = dnn.infer("interpolate", x, **options).output.shape
    return x, rng.standard_normal(result).astype(dtype), options


def _gradient(x, grad, options):
    """The sums that the definition's results take from each element of x, for x of one image and channel."""
    found = np.empty(x.size)
    for i in range(x.size):
        unit = np.zeros(x.size)
        unit[i] = 1
        found[i] = (oracles.interpolate(unit.reshape(x.shape), **options) * grad).sum()
    return found.reshape(x.shape)


def _assert_near(found, exact, name):
    dtype = found.dtype.name
    taps = {"nearest": 1, "linear": 2, "cubic": 4}.get(_CASES[name][1].get("mode", "nearest"), 8)
    bound = _TOLERANCE[dtype] * taps * len(_CASES[name][0]) * max(np.abs(exact).max(), 1)
    np.testing.assert_allclose(found, exact, rtol=0, atol=bound)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("channels", _CHANNELS)
@pytest.mark.parametrize("name", _CASES)
def test_channels_last_close_to_the_definition_and_within_its_arrays(name, channels, at_end):
    for dtype in ("float32", "float64"):
        x, grad, options = _drawn(name, channels, dtype)
        _compare_guarded(name, x, grad, options, at_end)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("name", [name for name, (space, _) in _CASES.items() if len(space) < 3])
def test_planes_close_to_the_definition_and_within_its_arrays(name, at_end):
    for dtype in ("float32", "float64"):
        x, grad, options = _drawn(name, 3, dtype, "channels_first")
        _compare_guarded(name, x, grad, options, at_end)


def _compare_guarded(name, x, grad, options, at_end):
    exact = oracles.interpolate(x.astype(np.float64), **options)
    slopes = call_by("separable", "interpolate_backward", (grad.astype(np.float64), x.astype(np.float64)), options)
    placed = [guarded.like(a, at_end) for a in (x, grad)]
    y, dx = (guarded.like(np.full(a.shape, np.nan, x.dtype), at_end) for a in (exact, slopes))
    call_by("planes", "interpolate", (placed[0],), options, out=y)
    call_by("planes", "interpolate_backward", (placed[1], placed[0]), options, out=dx)
    _assert_near(y, exact, name)
    _assert_near(dx, slopes, name)


@pytest.mark.parametrize("name", [name for name, (space, _) in _CASES.items() if np.prod(space) < 400])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_gradient_is_that_of_the_definition(name, layout):
    if layout == "channels_first" and len(_CASES[name][0]) == 3:
        pytest.skip("planes have two axes")
    x, grad, options = _drawn(name, 1, "float64", layout)
    x, grad = x[:1], grad[:1]
    _assert_near(call_by("planes", "interpolate_backward", (grad, x), options), _gradient(x, grad, options), name)


@pytest.mark.parametrize("channels", [1, 5, 64])
@pytest.mark.parametrize(
    "name", ["linear, twice", "cubic, half", "nearest, a third", "long rows in blocks", "three axes, linear", "area"]
)
def test_any_order_of_memory_gives_the_same(name, channels):
    """Channels-last memory under either layout gives the same bits; an `out` in another order, and half types, are
    taken too."""
    x, grad, options = _drawn(name, channels, "float32")
    y, dx = (
        call_by("planes", op, a, options) for op, a in (("interpolate", (x,)), ("interpolate_backward", (grad, x)))
    )
    first = {**options, "layout": "channels_first"}
    views = [np.moveaxis(a, -1, 1) for a in (x, grad)]
    found = call_by("planes", "interpolate", (views[0],), first)
    assert np.moveaxis(found, 1, -1).flags.c_contiguous
    np.testing.assert_array_equal(np.moveaxis(found, 1, -1), y)
    np.testing.assert_array_equal(
        np.moveaxis(call_by("planes", "interpolate_backward", (views[1], views[0]), first), 1, -1), dx
    )
    out = np.zeros(found.shape, np.float32)
    call_by("planes", "interpolate", (views[0],), first, out=out)
    np.testing.assert_array_equal(np.moveaxis(out, 1, -1), y)
    half = x.astype(np.float16)
    np.testing.assert_array_equal(
        call_by("planes", "interpolate", (half,), options),
        call_by("planes", "interpolate", (half.astype(np.float32),), options).astype(np.float16),
    )


@pytest.mark.parametrize("name", ["linear, twice", "cubic, half", "one axis, nearest", "area"])
def test_planes_under_the_layout_channels_last_give_the_same(name):
    x, grad, options = _drawn(name, 5, "float32", "channels_first")
    last = {**options, "layout": "channels_last"}
    for op, arrays in (("interpolate", (x,)), ("interpolate_backward", (grad, x))):
        expected = call_by("planes", op, arrays, options)
        found = call_by("planes", op, tuple(np.moveaxis(a, 1, -1) for a in arrays), last)
        np.testing.assert_array_equal(np.moveaxis(found, -1, 1), expected)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    "options", [{"scale": 2.0, "mode": "linear"}, {"scale": 0.5, "mode": "cubic"}, {"size": (9, 700)}]
)
def test_any_number_of_threads_gives_the_same_bits(options, layout):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 90, 60, 24) if layout == "channels_last" else (3, 24, 90, 60)).astype(np.float32)
    options = {**options, "layout": layout}
    found = []
    for threads in (1, 2, 3, 3):
        with dnn.options(threads=threads):
            y = call_by("planes", "interpolate", (x,), options)
            found.append((y.tobytes(), call_by("planes", "interpolate_backward", (y, x), options).tobytes()))
    assert len(set(found)) == 1


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", [name for name, (space, _) in _CASES.items() if np.prod(space) < 1000])
def test_what_is_no_number_reaches_what_reads_it_and_nothing_else(name, layout):
    if layout == "channels_first" and len(_CASES[name][0]) == 3:
        pytest.skip("planes have two axes")
    x, grad, options = _drawn(name, 5, "float64", layout)
    for op, arrays in (("interpolate", [x]), ("interpolate_backward", [grad, x])):
        strange = arrays[0].copy()
        strange.reshape(-1)[strange.size // 3], strange.reshape(-1)[strange.size // 2 + 1] = np.inf, np.nan
        found, expected = (call_by(a, op, (strange, *arrays[1:]), options) for a in ("planes", "separable"))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


def test_nothing_is_read_where_nothing_was_taken():
    """The gradient of elements without any tap is 0 beside infinity."""
    x, grad = np.ones((1, 9, 8, 3)), np.full((1, 2, 3, 3), np.inf)
    dx = call_by("planes", "interpolate_backward", (grad, x), {"size": (2, 3), "layout": "channels_last"})
    assert np.isinf(dx).sum() == 18
    assert (dx == 0).sum() == dx.size - 18


# --- bilinear sampling of channels that lie side by side
# ----------------------------------------------------------------


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border"])
@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("channels", _CHANNELS)
def test_sampling_close_to_the_definition_and_within_its_arrays(channels, align_corners, padding_mode, at_end):
    rng = np.random.default_rng(2)
    options = {"padding_mode": padding_mode, "align_corners": align_corners}
    for dtype, tolerance in (("float32", 3e-6), ("float64", 1e-14)):
        x, grid = (
            rng.standard_normal((3, 7, 9, channels)).astype(dtype),
            rng.uniform(-1.4, 1.4, (3, 5, 61, 2)).astype(dtype),
        )
        first = np.moveaxis(guarded.like(x, at_end), -1, 1)
        out = np.moveaxis(guarded.like(np.full((3, 5, 61, channels), np.nan, dtype), at_end), -1, 1)
        call_by("pixel_vectors", "grid_sample", (first, guarded.like(grid, at_end)), options, out=out)
        exact = oracles.grid_sample(np.moveaxis(x, -1, 1).astype(np.float64), grid.astype(np.float64), **options)
        np.testing.assert_allclose(out, exact, rtol=0, atol=tolerance)


def test_sampling_gives_the_same_bits_in_any_order_of_memory_and_by_any_number_of_threads():
    """Also beside infinity, outside of the image and at places that are NaN."""
    rng = np.random.default_rng(3)
    x, grid = (
        rng.standard_normal((5, 33, 40, 24)).astype(np.float32),
        rng.uniform(-1.3, 1.3, (5, 70, 31, 2)).astype(np.float32),
    )
    x[1, 4, 5, 6], x[2, 7, 8] = np.inf, np.nan
    grid[3, 2, 1, 0], grid[4, 5, 6] = np.nan, np.nan
    last, found = np.moveaxis(x, -1, 1), []
    for threads in (1, 2, 3, 3):
        with dnn.options(threads=threads):
            y = call_by("pixel_vectors", "grid_sample", (last, grid), {})
            assert np.moveaxis(y, 1, -1).flags.c_contiguous
            found.append(y.tobytes())
    assert len(set(found)) == 1
    np.testing.assert_array_equal(call_by("pixel_vectors", "grid_sample", (np.ascontiguousarray(last), grid), {}), y)
