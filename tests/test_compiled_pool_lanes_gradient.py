"""Gradients of pooling whose channels lie side by side, compiled: those of NumPy's scatter, and nothing read or written
beside the arrays."""

import importlib
import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from dnnarray._problems.pool import AdaptiveAxis, Axis
from tests import guarded
from tests.oracles.pool import ORACLES
from tests.support import call_by

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")

_CHANNELS = (1, 3, 5, 17, 64, 83)
# Shapes (N, *space) and options.
_CASES = {
    "side by side": ((1, 8, 10), {"kernel_size": 2}),
    "side by side, a pixel left": ((2, 9, 11), {"kernel_size": 2}),
    "3 by 2": ((2, 15, 17), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "3 by 1": ((1, 7, 6), {"kernel_size": 3, "stride": 1, "padding": 1}),
    "cut at the end": ((2, 10, 9), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "cut at the end, padded": ((1, 8, 7), {"kernel_size": (3, 2), "stride": 2, "padding": (0, 1), "ceil_mode": True}),
    "dilation of rows": ((2, 13, 7), {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (3, 1), "padding": (2, 1)}),
    "dilation": ((2, 20, 19), {"kernel_size": 4, "stride": 3, "dilation": 2, "padding": 1}),
    "stride beside dilation": ((1, 25, 13), {"kernel_size": 3, "stride": (2, 4), "dilation": (4, 3), "padding": 3}),
    "pixels of no window": ((2, 11, 12), {"kernel_size": 2, "stride": (5, 3)}),
    "windows of nothing": ((1, 1, 4), {"kernel_size": 2, "dilation": (4, 1), "padding": (2, 0)}),
    "windows larger than the image": ((2, 4, 5), {"kernel_size": (5, 7), "stride": 1, "padding": (2, 3)}),
    "pixels of many windows": ((2, 12, 13), {"kernel_size": (6, 7), "stride": 1, "padding": 3}),
    "uneven padding": ((1, 9, 8), {"kernel_size": 3, "stride": 2, "padding": ((0, 2), (2, 1))}),
    "one axis": ((2, 37), {"kernel_size": 5, "stride": 2, "padding": 2}),
    "one row": ((3, 1, 21), {"kernel_size": (1, 3), "stride": 2}),
    "many rows": ((5, 40, 6), {"kernel_size": 3, "stride": 2, "padding": 1}),
}
_ADAPTIVE = {
    "adaptive": ((2, 9, 11), {"output_size": (4, 3)}),
    "adaptive, one window": ((3, 8, 5), {"output_size": 1}),
    "adaptive, more windows than pixels": ((1, 5, 4), {"output_size": (7, 9)}),
    "adaptive, one axis": ((2, 23), {"output_size": 6}),
}


def _data(shape, dtype, seed=0):
    """Few numbers, so that many are equal; some are NaN or infinite."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(dtype)
    kinds = rng.random(shape)
    x[kinds < 0.05] = np.nan
    x[(kinds >= 0.05) & (kinds < 0.2)] = -np.inf
    x[kinds > 0.97] = np.inf
    x[(x == 0) & (kinds > 0.5)] = -0.0
    return x


def _gradient(shape, dtype):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def _assert_sums(found, expected, note=""):
    """Sums of up to 42 numbers of size 1, each addition off by up to 4 eps, which NumPy may add in float64 instead; a
    place that nothing goes to holds 0."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=64 * np.finfo(expected.dtype).eps, err_msg=note)
    assert not found[expected == 0].any(), note


def _case(name, channels, dtype, layout="channels_last"):
    """(prefix of the functions' names, x, options)."""
    shape, options = (_CASES | _ADAPTIVE)[name]
    return "adaptive_" * (name in _ADAPTIVE), _data((*shape, channels), dtype), {**options, "layout": layout}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*_CASES, *_ADAPTIVE])
def test_maxima_are_those_of_numpy(name, dtype):
    for channels in _CHANNELS:
        prefix, x, options = _case(name, channels, dtype)
        forward, backward = f"{prefix}max_pool_with_indices", f"{prefix}max_pool_backward"
        expected = call_by("axis_by_axis", forward, (x,), options)
        found = call_by("taps", forward, (x,), options)
        np.testing.assert_array_equal(found.y, expected.y)
        np.testing.assert_array_equal(found.indices, expected.indices)
        grad = _gradient(expected.y.shape, dtype)
        for given in ({}, {"indices": expected.indices}, {"indices": expected.indices.astype(np.int32)}):
            a, b = (call_by(way, backward, (grad, x), options | given) for way in ("scatter", "taps"))
            _assert_sums(b, a, f"{channels} channels, {list(given)}")


def _means(grad, x, options):
    """The gradient of the mean by its definition, in float64."""
    space, rank = x.shape[1:-1], x.ndim - 2
    out = np.zeros(x.shape)

    def per_axis(value):
        return value if isinstance(value, tuple) else (value,) * rank

    window, pads = per_axis(options["kernel_size"]), per_axis(options.get("padding", 0))
    stride = per_axis(options.get("stride", window))
    pads = [p if isinstance(p, tuple) else (p, p) for p in pads]
    for place in np.ndindex(grad.shape[1:-1]):
        starts = [i * s - p[0] for i, s, p in zip(place, stride, pads, strict=True)]
        ends = [start + w for start, w in zip(starts, window, strict=True)]
        inside = tuple(slice(max(a, 0), max(min(b, n), 0)) for a, b, n in zip(starts, ends, space, strict=True))
        padded = math.prod(min(b, n + p[1]) - a for a, b, n, p in zip(starts, ends, space, pads, strict=True))
        count = (
            padded if options.get("count_include_pad", True) else math.prod(max(s.stop - s.start, 0) for s in inside)
        )
        share = grad[(slice(None), *place)].astype(np.float64) / max(count, 1)
        out[(slice(None), *inside)] += share.reshape(len(share), *(1,) * rank, -1)
    return out


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n, (_, options) in _CASES.items() if "dilation" not in options])
def test_means_are_those_of_the_definition(name, dtype, padded, layout):
    """Channels first are planes, as well."""
    shape, options = _CASES[name]
    for channels in _CHANNELS:
        options = {**options, "count_include_pad": padded}
        x = np.zeros((*shape, channels), dtype)
        y = dnn.avg_pool(x, layout="channels_last", **options)
        grad = _gradient(y.shape, dtype)
        arrays = (grad, x) if layout == "channels_last" else tuple(np.moveaxis(a, -1, 1).copy() for a in (grad, x))
        found = call_by("taps", "avg_pool_backward", arrays, options | {"layout": layout})
        found = found if layout == "channels_last" else np.moveaxis(found, 1, -1)
        np.testing.assert_allclose(found, _means(grad, x, options), rtol=0, atol=1e-6 if dtype == "float32" else 1e-15)


@pytest.mark.parametrize("name", _ADAPTIVE)
def test_adaptive_means_are_those_of_numpy(name):
    for channels in _CHANNELS[1:]:
        _, x, options = _case(name, channels, "float64")
        grad = _gradient(dnn.adaptive_avg_pool(x, **options).shape, "float64")
        a, b = (call_by(way, "adaptive_avg_pool_backward", (grad, x), options) for way in ("axis_by_axis", "taps"))
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-14)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", _CHANNELS)
def test_nothing_is_read_or_written_beside_the_arrays(channels, dtype, at_end):
    for name in (
        "3 by 2",
        "cut at the end, padded",
        "dilation",
        "uneven padding",
        "one axis",
        "windows of nothing",
        "pixels of many windows",
    ):
        _, x, options = _case(name, channels, dtype)
        y, indices = dnn.max_pool_with_indices(x, **options)
        grad = _gradient(y.shape, dtype)
        x, grad, places = (guarded.like(a, at_end) for a in (x, grad, indices))
        out, named, best = (guarded.like(np.full_like(a, 7), at_end) for a in (x, indices, y))
        call_by("taps", "max_pool_with_indices", (x,), options, (best, named))
        np.testing.assert_array_equal(named, indices)
        for given in ({}, {"indices": places}):
            call_by("taps", "max_pool_backward", (grad, x), options | given, out)
            _assert_sums(out, call_by("scatter", "max_pool_backward", (grad, x), options | given))
        if "dilation" not in options:
            call_by("taps", "avg_pool_backward", (grad, x), options, out)
            first = {**options, "layout": "channels_first"}
            planes = [guarded.like(np.moveaxis(a, -1, 1).copy(), at_end) for a in (grad, x)]
            plane = guarded.like(np.full_like(planes[1], 7), at_end)
            call_by("taps", "avg_pool_backward", tuple(planes), first, plane)
            np.testing.assert_allclose(np.moveaxis(plane, 1, -1), out, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["3 by 2", "many rows", "dilation", "pixels of many windows", "one axis", "adaptive", "adaptive, one window"],
)
def test_the_number_of_threads_changes_no_bit(name):
    """On images large enough for threads, and twice, since every other call goes from its end to its beginning."""
    shape, options = (_CASES | _ADAPTIVE)[name]
    prefix, options = "adaptive_" * (name in _ADAPTIVE), {**options, "layout": "channels_last"}
    x = np.random.default_rng(2).standard_normal((shape[0], *(6 * n + 1 for n in shape[1:]), 67)).astype(np.float32)
    x = np.repeat(x, 3, axis=0)
    y, indices = call_by("axis_by_axis", f"{prefix}max_pool_with_indices", (x,), options)
    grad = _gradient(y.shape, "float32")
    calls = [("max_pool_backward", options), ("max_pool_backward", options | {"indices": indices})]
    calls += [("avg_pool_backward", options)] * ("dilation" not in options)
    for op, named in calls:
        expected = None
        for threads in (1, 2, 3, 2, 3):
            with dnn.options(threads=threads):
                found = call_by("taps", prefix + op, (grad, x), named)
            expected = found if expected is None else expected
            np.testing.assert_array_equal(found, expected)
        if op == "max_pool_backward":
            _assert_sums(expected, call_by("scatter", prefix + op, (grad, x), named))


def test_channels_last_in_memory_alone():
    """Arrays N C H W whose memory is N H W C, their gradients in either order, and results that lie apart."""
    _, x, options = _case("3 by 2", 19, "float32")
    options["layout"] = "channels_first"
    x = np.moveaxis(x, -1, 1)
    y, indices = dnn.max_pool_with_indices(x, **options)
    grad = np.moveaxis(_gradient(np.moveaxis(y, 1, -1).shape, "float32"), -1, 1)
    for given in ({}, {"indices": indices}, {"indices": np.ascontiguousarray(indices)}):
        expected = call_by("scatter", "max_pool_backward", (grad, x), options | given)
        for g in (grad, np.ascontiguousarray(grad)):
            found = call_by("taps", "max_pool_backward", (g, x), options | given)
            assert found.strides == x.strides
            _assert_sums(found, expected)
            out = np.full((*x.shape, 2), np.nan, np.float32)
            call_by("taps", "max_pool_backward", (g, x), options | given, out[..., 0])
            np.testing.assert_array_equal(out[..., 0], found)
            assert np.isnan(out[..., 1]).all()


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_given_places_may_lie_outside_of_their_windows(dtype):
    _, x, options = _case("3 by 2", 19, "float32")
    _, indices = dnn.max_pool_with_indices(x, **options)
    grad, rng = _gradient(indices.shape, "float32"), np.random.default_rng(3)
    strange = indices.copy()
    strange[1, 3, 2, 18] = 0
    nowhere = indices.copy()
    nowhere[0, 0, 0, :5] = -1
    for places in (rng.integers(0, 15 * 17, indices.shape).astype(dtype), strange, nowhere):
        a, b = (
            call_by(way, "max_pool_backward", (grad, x), options | {"indices": places}) for way in ("scatter", "taps")
        )
        _assert_sums(b, a)


@pytest.mark.parametrize("wrong", [15 * 17, -2, 2**32, 2**63 - 1])
def test_a_place_outside_of_the_image_is_an_error(wrong):
    _, x, options = _case("3 by 2", 19, "float32")
    _, indices = dnn.max_pool_with_indices(x, **options)
    indices[1, 3, 2, 18] = wrong
    out = np.full_like(x, 7)
    with pytest.raises(dnn.OptionError, match=r"indices is .* expected flat spatial positions from -1 to 254"):
        call_by(
            "taps",
            "max_pool_backward",
            (_gradient(indices.shape, "float32"), x),
            options | {"indices": indices},
            out,
        )
    assert (out == 7).all()


def test_tables_of_windows():
    """Each table beside what the definition counts."""
    pool_pixels = importlib.import_module("dnnarray._cpu.compiled.pool.pixels")
    rng = np.random.default_rng(4)
    drawn = [
        Axis(
            *(int(rng.integers(low, high)) for low, high in ((1, 30), (1, 12), (1, 9), (1, 7), (1, 7), (0, 9), (0, 9)))
        )
        for _ in range(500)
    ]
    drawn += [AdaptiveAxis(n, o) for n in range(1, 12) for o in range(1, 12)]
    for axis in drawn:
        meets = [list(range(max(a, a % axis.dilation if a < 0 else a), b, axis.dilation)) for a, b in axis.bounds()]
        belongs = [[p for p, found in enumerate(meets) if i in found] for i in range(axis.extent)]
        for table, expected in ((pool_pixels.inputs(axis), meets), (pool_pixels.windows(axis), belongs)):
            assert [list(range(first, first + count * step, step)) for first, count, step in table.tolist()] == expected


@pytest.mark.parametrize("name", _CASES)
def test_close_to_the_definition(name):
    """Places and maxima are the oracle's; gradients go to its places, and are those of its means for each element by
    itself."""
    shape, options = _CASES[name]
    rng, options = np.random.default_rng(8), options | {"layout": "channels_last"}
    x = rng.standard_normal((*shape, 5))
    best, places = ORACLES["max_pool_with_indices"](x, **options)
    found = call_by("taps", "max_pool_with_indices", (x,), options)
    np.testing.assert_array_equal(found[0], best)
    np.testing.assert_array_equal(found[1], places)
    grad, expected = rng.standard_normal(best.shape), np.zeros((len(x), math.prod(shape[1:]), 5))
    flat, where = (a.reshape(len(x), -1, 5) for a in (grad, places))
    for n, i, c in np.ndindex(flat.shape):
        if where[n, i, c] >= 0:
            expected[n, where[n, i, c], c] += flat[n, i, c]
    for arrays, op in (((grad, x), "max_pool_backward"), ((grad, x, places), "max_pool_with_indices_backward")):
        got = call_by("taps", op, arrays, options)
        np.testing.assert_allclose(np.asarray(got).reshape(expected.shape), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "name", ["side by side", "3 by 2", "3 by 1", "cut at the end, padded", "uneven padding", "one axis"]
)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_the_gradient_of_a_mean_is_that_of_each_element(name, layout):
    shape, options = _CASES[name]
    options = {k: v for k, v in options.items() if k != "dilation"} | {"layout": layout}
    channels = 2
    x = np.zeros((1, channels, *shape[1:]) if layout == "channels_first" else (1, *shape[1:], channels))
    grad = np.random.default_rng(9).standard_normal(ORACLES["avg_pool"](x, **options).shape)
    expected = np.empty(x.size)
    for i, unit in enumerate(np.eye(x.size)):
        expected[i] = (ORACLES["avg_pool"](unit.reshape(x.shape), **options) * grad).sum()
    found = call_by("taps", "avg_pool_backward", (grad, x), options)
    np.testing.assert_allclose(found, expected.reshape(x.shape), rtol=0, atol=1e-13)
