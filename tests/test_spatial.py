"""What is special about the spatial family: errors, NaN and infinity, drawn shapes and options, PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu.spatial import resize as spatial_resize
from dnnarray._problems import spatial_resize as problems
from tests.oracles import spatial as oracles
from tests.support import DTYPES, assert_close

_DRAWN = settings(max_examples=60, deadline=None, derandomize=True)
_X = np.ones((1, 2, 3, 4))
_GRID = np.zeros((1, 2, 2, 2))
_BOX = np.array([[0.0, 0, 0, 2, 2]])
_TABLE = np.ones((3, 2))


def _rng(seed=0):
    return np.random.default_rng(seed)


# --- errors
# ------------------------------------------------------------------------------------------------------------

_ERRORS = [
    (lambda: dnn.grid_sample(_X[0], _GRID), dnn.ShapeError, "grid_sample: x is 3-dimensional"),
    (lambda: dnn.grid_sample(_X, _GRID[0]), dnn.ShapeError, r"grid_sample: grid is of shape \(2, 2, 2\)"),
    (lambda: dnn.grid_sample(_X, np.zeros((2, 2, 2, 2))), dnn.ShapeError, r"grid .* expected \(1, \*, \*, 2\)"),
    (lambda: dnn.grid_sample(_X, np.zeros((1, 2, 2, 3))), dnn.ShapeError, "grid_sample: grid"),
    (lambda: dnn.grid_sample(_X[:, :, :0], _GRID), dnn.ShapeError, "spatial extents of 1 or more"),
    (lambda: dnn.grid_sample(_X, _GRID.astype("f4")), dnn.DTypeError, "grid_sample: grid is float32; expected float64"),
    (lambda: dnn.grid_sample(_X.astype(int), _GRID.astype(int)), dnn.DTypeError, "grid_sample: x is int64"),
    (lambda: dnn.grid_sample(_X, _GRID, mode="cubic"), dnn.OptionError, "grid_sample: mode is 'cubic'"),
    (lambda: dnn.grid_sample(_X, _GRID, padding_mode="wrap"), dnn.OptionError, "grid_sample: padding_mode"),
    (
        lambda: dnn.grid_sample(_X, _GRID, align_corners=1),
        dnn.OptionError,
        "grid_sample: align_corners is 1; expected True or False",
    ),
    (
        lambda: dnn.grid_sample(np.ones((1, 1, 2, 2, 2)), np.zeros((1, 1, 1, 1, 3)), mode="bicubic"),
        dnn.UnsupportedError,
        "grid_sample: mode is 'bicubic' for a 5-dimensional x",
    ),
    (lambda: dnn.grid_sample_backward(_X, _X, _GRID), dnn.ShapeError, "grid_sample_backward: grad"),
    (lambda: dnn.affine_grid(np.ones((2, 3)), (1, 1, 2, 2)), dnn.ShapeError, "affine_grid: theta is 2-dimensional"),
    (
        lambda: dnn.affine_grid(np.ones((1, 2, 3)), (2, 1, 2, 2)),
        dnn.ShapeError,
        r"affine_grid: theta .* expected \(2, 2, 3\)",
    ),
    (
        lambda: dnn.affine_grid(np.ones((1, 2, 3)), (1, 1, 2, 2, 2)),
        dnn.ShapeError,
        r"affine_grid: theta .* expected \(1, 3, 4\)",
    ),
    (lambda: dnn.affine_grid(np.ones((1, 2, 3)), (2, 2)), dnn.OptionError, "affine_grid: shape"),
    (lambda: dnn.affine_grid(np.ones((1, 2, 3)), (1, 1, 0, 2)), dnn.OptionError, "affine_grid: shape is 0"),
    (lambda: dnn.affine_grid(np.ones((1, 2, 3), int), (1, 1, 2, 2)), dnn.DTypeError, "affine_grid: theta is int64"),
    (
        lambda: dnn.affine_grid_backward(_GRID, np.ones((1, 2, 3)), (1, 1, 2, 3)),
        dnn.ShapeError,
        "affine_grid_backward: grad",
    ),
    (lambda: dnn.interpolate(_X), dnn.OptionError, "interpolate: size is None, and so is scale; expected exactly one"),
    (lambda: dnn.interpolate(_X, size=2, scale=2.0), dnn.OptionError, "interpolate: size is 2 beside scale 2.0"),
    (lambda: dnn.interpolate(_X, size=0), dnn.OptionError, "interpolate: size is 0"),
    (lambda: dnn.interpolate(_X, size=(2, 2, 2)), dnn.OptionError, "interpolate: size"),
    (lambda: dnn.interpolate(_X, scale=(2.0,)), dnn.OptionError, "interpolate: scale .* 2 of them"),
    (lambda: dnn.interpolate(_X, scale=-1.0), dnn.OptionError, "interpolate: scale is -1.0"),
    (lambda: dnn.interpolate(_X, scale=math.nan), dnn.OptionError, "interpolate: scale is nan"),
    (lambda: dnn.interpolate(_X, scale=0.1), dnn.OptionError, "interpolate: scale is 0.1"),
    (lambda: dnn.interpolate(_X, size=2, mode="bilinear"), dnn.OptionError, "interpolate: mode is 'bilinear'"),
    (
        lambda: dnn.interpolate(_X, size=2, align_corners=True),
        dnn.OptionError,
        "interpolate: align_corners is True with mode='nearest'",
    ),
    (lambda: dnn.interpolate(_X, size=2, mode="area", antialias=True), dnn.OptionError, "interpolate: antialias"),
    (lambda: dnn.interpolate(_X, size=2, layout="NCHW"), dnn.OptionError, "interpolate: layout"),
    (lambda: dnn.interpolate(_X[0, 0], size=2), dnn.ShapeError, "interpolate: x is 2-dimensional"),
    (lambda: dnn.interpolate(_X[:, :, :0], size=2), dnn.ShapeError, "interpolate: x .* spatial extents of 1 or more"),
    (lambda: dnn.interpolate(_X.astype(int), size=2), dnn.DTypeError, "interpolate: x is int64"),
    (lambda: dnn.interpolate_backward(_X, _X, size=2), dnn.ShapeError, "interpolate_backward: grad"),
    (lambda: dnn.roi_align(_X[0], _BOX, output_size=2), dnn.ShapeError, "roi_align: x is 3-dimensional"),
    (lambda: dnn.roi_align(_X, _BOX[:, :4], output_size=2), dnn.ShapeError, "roi_align: boxes"),
    (lambda: dnn.roi_align(_X[:, :, :, :0], _BOX, output_size=2), dnn.ShapeError, "roi_align: x"),
    (lambda: dnn.roi_align(_X, _BOX.astype("f4"), output_size=2), dnn.DTypeError, "roi_align: boxes is float32"),
    (lambda: dnn.roi_align(_X, _BOX, output_size=0), dnn.OptionError, "roi_align: output_size"),
    (lambda: dnn.roi_align(_X, _BOX, output_size=2, spatial_scale=0), dnn.OptionError, "roi_align: spatial_scale"),
    (lambda: dnn.roi_align(_X, _BOX, output_size=2, sampling_ratio=-1), dnn.OptionError, "roi_align: sampling_ratio"),
    (lambda: dnn.roi_align(_X, _BOX, output_size=2, aligned="no"), dnn.OptionError, "roi_align: aligned"),
    (lambda: dnn.roi_align(_X, _BOX, output_size=2, mode="mean"), dnn.OptionError, "roi_align: mode"),
    (
        lambda: dnn.roi_align(_X, _BOX + 1, output_size=2),
        dnn.OptionError,
        "roi_align: boxes .* batch indices .* from 0 to 0",
    ),
    (
        lambda: dnn.roi_align(_X, _BOX - 1, output_size=2),
        dnn.OptionError,
        "roi_align: boxes .* batch index outside of x",
    ),
    (lambda: dnn.roi_align(_X[:0], _BOX, output_size=2), dnn.OptionError, "roi_align: boxes .* x has no images"),
    (
        lambda: dnn.roi_align(_X, _BOX * [[1, 1, 1, 1, np.nan]], output_size=2),
        dnn.OptionError,
        "roi_align: boxes .* nan",
    ),
    (
        lambda: dnn.roi_align(_X, _BOX * [[1, 1, 1, 1, 1e9]], output_size=2),
        dnn.OptionError,
        "roi_align: boxes .* 16,777,216 pixels",
    ),
    (lambda: dnn.roi_align_backward(_X, _X, _BOX, output_size=2), dnn.ShapeError, "roi_align_backward: grad"),
    (lambda: dnn.pixel_shuffle(_X, 2), dnn.ShapeError, "pixel_shuffle: x .* divisible by 4, not 2"),
    (lambda: dnn.pixel_shuffle(_X[0, 0], 2), dnn.ShapeError, "pixel_shuffle: x is 2-dimensional"),
    (lambda: dnn.pixel_shuffle(_X, 0), dnn.OptionError, "pixel_shuffle: factor is 0"),
    (lambda: dnn.pixel_shuffle(_X, 1.5), dnn.OptionError, "pixel_shuffle: factor is 1.5"),
    (lambda: dnn.pixel_shuffle(_X, 1, layout="last"), dnn.OptionError, "pixel_shuffle: layout"),
    (
        lambda: dnn.pixel_shuffle_backward(_X, _X.astype("f4"), 1),
        dnn.DTypeError,
        "pixel_shuffle_backward: grad is float64",
    ),
    (lambda: dnn.pixel_unshuffle(_X, 2), dnn.ShapeError, "pixel_unshuffle: x .* divisible by 2, not 3"),
    (lambda: dnn.pixel_unshuffle(_X, -1), dnn.OptionError, "pixel_unshuffle: factor"),
    (lambda: dnn.pixel_unshuffle_backward(_X, _X[..., :3], 3), dnn.ShapeError, "pixel_unshuffle_backward: grad"),
    (lambda: dnn.channel_shuffle(_X, 3), dnn.ShapeError, "channel_shuffle: x .* divisible by 3, not 2"),
    (lambda: dnn.channel_shuffle(_X, True), dnn.OptionError, "channel_shuffle: groups is True"),
    (lambda: dnn.channel_shuffle_backward(_X[:, :1], _X, 2), dnn.ShapeError, "channel_shuffle_backward: grad"),
    (lambda: dnn.embedding(np.array([0.0]), _TABLE), dnn.DTypeError, "embedding: indices is float64"),
    (lambda: dnn.embedding(np.array([True]), _TABLE), dnn.DTypeError, "embedding: indices is bool"),
    (lambda: dnn.embedding(np.array([0]), _TABLE.astype(int)), dnn.DTypeError, "embedding: weight is int64"),
    (lambda: dnn.embedding(np.array([0]), _TABLE[0]), dnn.ShapeError, "embedding: weight is 1-dimensional"),
    (
        lambda: dnn.embedding(np.array([0, 3]), _TABLE),
        dnn.OptionError,
        "embedding: indices .* the index 3; expected indices from 0 to 2",
    ),
    (lambda: dnn.embedding(np.array([0, -1]), _TABLE), dnn.OptionError, "embedding: indices .* the index -1"),
    (
        lambda: dnn.embedding(np.array([0]), _TABLE[:0]),
        dnn.OptionError,
        "embedding: indices .* the index 0; expected no indices .weight has 0 rows",
    ),
    (lambda: dnn.embedding(np.array([0]), _TABLE, padding_index=3), dnn.OptionError, "embedding: padding_index is 3"),
    (lambda: dnn.embedding_backward(_TABLE, np.array([0]), _TABLE), dnn.ShapeError, "embedding_backward: grad"),
    (lambda: dnn.embedding_backward(_TABLE[:1], np.array([5]), _TABLE), dnn.OptionError, "embedding_backward: indices"),
    (lambda: dnn.one_hot(np.array([2]), 2), dnn.OptionError, "one_hot: indices .* the index 2; .*num_classes is 2"),
    (lambda: dnn.one_hot(np.array([-1]), 2), dnn.OptionError, "one_hot: indices .* the index -1"),
    (lambda: dnn.one_hot(np.array([0]), 0), dnn.OptionError, "one_hot: num_classes is 0"),
    (lambda: dnn.one_hot(np.array([0.0]), 2), dnn.DTypeError, "one_hot: indices is float64"),
    (lambda: dnn.vjp("one_hot", np.array([0]), num_classes=2), dnn.UnsupportedError, "one_hot: has no gradient"),
]


@pytest.mark.parametrize(("call", "error", "message"), _ERRORS, ids=[message for _, _, message in _ERRORS])
def test_a_wrong_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_named_arguments_among_the_positional_ones_may_be_given_either_way():
    x = _rng().standard_normal((1, 4, 3, 3))
    np.testing.assert_array_equal(dnn.pixel_shuffle(x, 2), dnn.pixel_shuffle(x, factor=2))
    np.testing.assert_array_equal(dnn.channel_shuffle(x, 2), dnn.channel_shuffle(x, groups=2))
    np.testing.assert_array_equal(dnn.one_hot(np.array([1]), 2), dnn.one_hot(np.array([1]), num_classes=2))
    theta = np.ones((1, 2, 3))
    np.testing.assert_array_equal(dnn.affine_grid(theta, [1, 1, 2, 3]), dnn.affine_grid(theta, shape=(1, 1, 2, 3)))


# --- NaN and infinity
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample_treats_nan_and_infinite_coordinates_as_pytorch(mode, padding_mode, align_corners):
    torch = pytest.importorskip("torch")
    x = np.arange(12.0, dtype=np.float32).reshape(1, 1, 3, 4) + 1
    grid = np.array([[[[np.nan, 0], [0, np.nan], [np.inf, 0], [-np.inf, 0], [0, np.inf], [0.25, 0.5]]]], np.float32)
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    expected = torch.nn.functional.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), **options).numpy()
    np.testing.assert_allclose(dnn.grid_sample(x, grid, **options), expected, rtol=1e-6)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_grid_sample_does_not_spread_nan_beyond_its_taps(padding_mode):
    x = np.ones((1, 1, 4, 4))
    x[0, 0, 0, 0] = np.nan
    grid = np.array([[[[5.0, 5.0], [0.9, 0.9], [-0.75, -0.75]]]])
    y = dnn.grid_sample(x, grid, padding_mode=padding_mode)
    assert np.isfinite(y[0, 0, 0, 1])
    assert np.isnan(y[0, 0, 0, 2])
    if padding_mode == "zeros":
        assert y[0, 0, 0, 0] == 0
    grad = np.ones((1, 1, 1, 3))
    grad[..., 0] = np.nan
    pixels = dnn.grid_sample_backward(grad, np.ones_like(x), grid, padding_mode=padding_mode).x
    assert np.isnan(pixels).sum() == (0 if padding_mode == "zeros" else 1)


@pytest.mark.parametrize("mode", ["nearest", "nearest_exact", "linear", "cubic", "area"])
def test_interpolate_keeps_infinity_and_nan_where_they_are_read(mode):
    x = np.ones((1, 1, 12))
    x[..., 0] = np.inf
    y = dnn.interpolate(x, size=5, mode=mode)
    assert y[0, 0, 0] == (1 if mode == "nearest_exact" else np.inf)
    np.testing.assert_allclose(y[0, 0, 2:], 1, rtol=1e-15)
    x[..., 0] = np.nan
    y = dnn.interpolate(x, size=5, mode=mode)
    assert np.isnan(y[0, 0, 0]) == (mode != "nearest_exact")
    np.testing.assert_allclose(y[0, 0, 2:], 1, rtol=1e-15)


def test_interpolate_windows_of_unequal_length_keep_infinity():
    x = np.ones((1, 1, 7))
    x[..., 2] = -np.inf
    np.testing.assert_array_equal(dnn.interpolate(x, size=3, mode="area")[0, 0], [-np.inf, -np.inf, 1])
    shrunk = dnn.interpolate(x, size=3, mode="linear", antialias=True)[0, 0]
    assert shrunk[0] == -np.inf
    assert np.isfinite(shrunk[2])


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("factor", [2, 3, 4])
def test_interpolate_by_whole_factors_keeps_rows_apart(factor, mode):
    """The rows of a block are added as one run of memory: what one of them ends with must not reach the next."""
    x = np.random.default_rng(0).standard_normal((20, 11, 13))
    x[0, :, -1], x[1, :, 0], x[2, 5] = np.inf, np.nan, -np.inf
    y = dnn.interpolate(x, size=13 * factor, mode=mode)
    out = np.empty((20, 11, 26 * factor))[..., ::2]
    np.testing.assert_array_equal(dnn.interpolate(x, size=13 * factor, mode=mode, out=out), y)
    for row in np.ndindex(20, 11):
        alone = dnn.interpolate(x[row][None, None], size=13 * factor, mode=mode)[0, 0]
        np.testing.assert_allclose(y[row], alone, rtol=1e-14, atol=1e-14)


def test_interpolate_backward_gives_zero_where_nothing_was_read():
    grad = np.array([[[np.inf, 1.0]]])
    gradient = dnn.interpolate_backward(grad, np.ones((1, 1, 9)), size=2, mode="linear")[0, 0]
    np.testing.assert_array_equal(gradient[[0, 3, 4, 5, 8]], 0)
    assert np.isinf(gradient).any()


def test_roi_align_samples_outside_do_not_read_the_first_pixel():
    x = np.ones((1, 1, 4, 4))
    x[0, 0, 0, 0] = np.nan
    boxes = np.array([[0.0, 10, 10, 12, 12], [0, 0, 0, 1, 1], [0, 2, 2, 4, 4]])
    for mode in ("avg", "max"):
        y = dnn.roi_align(x, boxes, output_size=1, mode=mode)[:, 0, 0, 0]
        assert y[0] == 0
        assert np.isnan(y[1])
        assert np.isfinite(y[2])


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_of_a_huge_box_ends_soon_and_is_right(mode):
    x = _rng().standard_normal((1, 2, 4, 5))
    boxes = np.array([[0.0, -30.0, -20.0, 40.0, 50.0]])
    expected = oracles.roi_align(x, boxes, output_size=3, mode=mode)
    condition = 32.0  # the mean of values of both signs is smaller than they are
    assert_close(dnn.roi_align(x, boxes, output_size=3, mode=mode), expected, 576, condition)
    far = boxes * [[1, 2e4, 2e4, 2e4, 2e4]]
    assert np.isfinite(dnn.roi_align(x, far, output_size=3, mode=mode)).all()


# --- drawn shapes and options against the loops
# --------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
    st.integers(0, 3),
    st.sampled_from(["bilinear", "nearest", "bicubic"]),
    st.sampled_from(["zeros", "border", "reflection"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
@_DRAWN
def test_grid_sample_drawn(space, channels, mode, padding_mode, align_corners, seed):
    mode = "bilinear" if mode == "bicubic" and len(space) == 3 else mode
    rng = _rng(seed)
    x, grid = rng.standard_normal((2, channels, *space)), rng.uniform(-2, 2, (2, *space, len(space)))
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    assert_close(dnn.grid_sample(x, grid, **options), oracles.grid_sample(x, grid, **options), 16, 8)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.floats(0.3, 3.0)), min_size=1, max_size=3),
    st.sampled_from(["nearest", "nearest_exact", "linear", "cubic", "area"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@_DRAWN
def test_interpolate_drawn(axes, mode, by_scale, align_corners, antialias, channels_last):
    smooth = mode in ("linear", "cubic")
    space = tuple(n for n, _, _ in axes)
    options = {"mode": mode, "align_corners": align_corners and smooth, "antialias": antialias and smooth}
    if by_scale:
        options["scale"] = tuple(max(s, 1.0 / n) for n, _, s in axes)
    else:
        options["size"] = tuple(m for _, m, _ in axes)
    options["layout"] = "channels_last" if channels_last else "channels_first"
    x = _rng(1).standard_normal((2, *space, 2) if channels_last else (2, 2, *space))
    assert_close(dnn.interpolate(x, **options), oracles.interpolate(x, **options), 256, 4)


@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["avg", "max"]),
    st.integers(0, 2**32 - 1),
)
@_DRAWN
def test_roi_align_drawn(space, output_size, sampling_ratio, aligned, mode, seed):
    rng = _rng(seed)
    x = rng.standard_normal((2, 2, *space))
    boxes = np.concatenate([rng.integers(0, 2, (4, 1)), rng.uniform(-3, 12, (4, 4))], 1)
    options = {
        "output_size": output_size,
        "sampling_ratio": sampling_ratio,
        "aligned": aligned,
        "mode": mode,
        "spatial_scale": 0.5,
    }
    assert_close(dnn.roi_align(x, boxes, **options), oracles.roi_align(x, boxes, **options), 256, 8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 2), st.booleans())
@_DRAWN
def test_shuffles_undo_each_other(space, factor, channels, channels_last):
    options = {"layout": "channels_last"} if channels_last else {}
    large = tuple(factor * n for n in space)
    x = _rng().standard_normal((2, *large, channels) if channels_last else (2, channels, *large))
    small = dnn.pixel_unshuffle(x, factor, **options)
    np.testing.assert_array_equal(dnn.pixel_shuffle(small, factor, **options), x)
    np.testing.assert_array_equal(dnn.pixel_unshuffle_backward(small, x, factor, **options), x)
    mixed = dnn.channel_shuffle(small, factor, **options)
    np.testing.assert_array_equal(dnn.channel_shuffle_backward(mixed, small, factor, **options), small)


@given(st.lists(st.integers(0, 4), max_size=3), st.integers(1, 6), st.integers(0, 3), st.integers(0, 2**32 - 1))
@_DRAWN
def test_embedding_and_its_gradient_drawn(shape, rows, length, seed):
    rng = _rng(seed)
    indices, weight = rng.integers(0, rows, shape), rng.standard_normal((rows, length))
    y, pullback = dnn.vjp("embedding", indices, weight, padding_index=-1)
    np.testing.assert_array_equal(y, weight[indices])
    grad = rng.standard_normal(y.shape)
    expected = oracles.one_hot(indices, rows).reshape(indices.size, rows).T @ grad.reshape(indices.size, length)
    expected[-1] = 0
    first, second = pullback(grad)
    assert first is None
    assert_close(second, expected, 64)
    np.testing.assert_array_equal(dnn.one_hot(indices, rows), oracles.one_hot(indices, rows))


# --- blocks: results do not depend on how the work is cut
# ------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 40, 1000])
def test_blocks_do_not_change_the_result(monkeypatch, block):
    from dnnarray._cpu.spatial import common as spatial_common
    from dnnarray._cpu.spatial import lookup as spatial_lookup
    from dnnarray._cpu.spatial import roi as spatial_roi

    x, grid = _rng(1).standard_normal((3, 2, 5, 4)), _rng(2).uniform(-1.2, 1.2, (3, 4, 5, 2))
    boxes = np.concatenate([_rng(3).integers(0, 3, (9, 1)), _rng(4).uniform(-1, 6, (9, 4))], 1)
    indices, weight = _rng(5).integers(0, 6, 30), _rng(6).standard_normal((6, 3))
    calls = [
        ("grid_sample", (x, grid), {"mode": "bicubic"}),
        ("interpolate", (x,), {"size": (7, 3), "mode": "linear"}),
        ("roi_align", (x, boxes), {"output_size": 2}),
        ("roi_align", (x, boxes), {"output_size": 2, "mode": "max"}),
        ("embedding", (indices, weight), {}),
    ]

    def results():
        for op, arrays, options in calls:
            y, pullback = dnn.vjp(op, *arrays, **options)
            yield from (y, *(g for g in pullback(_rng(7).standard_normal(y.shape)) if g is not None))

    whole = list(results())
    for module in (spatial_common, spatial_roi, spatial_lookup):
        monkeypatch.setattr(module, "BLOCK", block)
    for got, expected in zip(results(), whole, strict=True):
        assert_close(got, expected, 16)


@pytest.mark.parametrize("extents", [(9, 27), (17, 34), (70, 140), (33, 132), (61, 47), (90, 100), (5, 5)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_resampling_by_any_way_is_resampling_by_gathers(extents, mode, dtype, monkeypatch):
    """Matrix products along the last axis and sums of shifted products along others; also beside infinity and NaN."""
    source, target = extents
    x = _rng(8).standard_normal((2, 3, source, source)).astype(dtype)
    strange = x.copy()
    strange[0, 0, 1, 2], strange[1, 2, 4, 4] = np.inf, np.nan
    grad = _rng(9).standard_normal((2, 3, target, target)).astype(dtype)

    def run(op, *arrays):
        specs = [dnn.Spec(a.shape, a.dtype) for a in arrays]
        build = getattr(problems, op)
        problem = build(
            op,
            *specs,
            size=(target, target),
            scale=None,
            mode=mode,
            align_corners=False,
            antialias=False,
            layout="channels_first",
        )
        out = np.empty(problem.outputs[0].shape, dtype)
        with np.errstate(all="ignore"):
            spatial_resize._interpolate(problem, (out,), None, *arrays)
        return out

    def results():
        return run("interpolate", x), run("interpolate", strange), run("interpolate_backward", grad, x)

    monkeypatch.setattr(spatial_resize, "_SMALL", 0)
    found = results()
    monkeypatch.setattr(spatial_resize, "_SMALL", 1 << 30)
    for got, expected in zip(found, results(), strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
        assert_close(got[np.isfinite(got)], expected[np.isfinite(got)], 16)


# --- special rules
# ---------------------------------------------------------------------------------------------------------------


def test_embedding_padding_row_has_no_gradient_whatever_arrives():
    grad = np.array([[np.nan, 1.0], [2.0, 3.0]])
    gradient = dnn.embedding_backward(grad, np.array([1, 0]), np.zeros((3, 2)), padding_index=1)
    np.testing.assert_array_equal(gradient, [[2.0, 3.0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(
        dnn.embedding_backward(grad, np.array([1, 0]), np.zeros((3, 2)), padding_index=-2), gradient
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_a_padding_row_that_is_met_often_has_no_gradient(dtype, order):
    """Sums of hundreds of terms continue in a wider dtype."""
    indices, grad = np.repeat([1, 2, 1, 0], 300), np.ones((1200, 5), dtype)
    out = np.empty((3, 5), dtype, order=order)
    dnn.embedding_backward(grad, indices, np.zeros((3, 5), dtype), padding_index=1, out=out)
    np.testing.assert_array_equal(out.astype(float), [[300] * 5, [0] * 5, [300] * 5])


def test_gradients_accumulate_halves_in_float32():
    grad = np.full((4096, 1), 1.0, np.float16)
    gradient = dnn.embedding_backward(grad, np.zeros(4096, np.int64), np.zeros((1, 1), np.float16))
    assert gradient.dtype == np.float16
    assert gradient[0, 0] == 4096


def test_roi_align_max_sends_a_tie_to_one_pixel():
    x = np.ones((1, 1, 4, 4))
    gradient = dnn.roi_align_backward(
        np.ones((1, 1, 1, 1)), x, np.array([[0.0, 0, 0, 2, 2]]), output_size=1, mode="max"
    )
    assert (gradient != 0).sum() == 1


def test_grid_sample_takes_planes_for_few_channels_and_pixels_for_many():
    def first(channels):
        x, grid = dnn.Spec((2, channels, 64, 64), "float32"), dnn.Spec((2, 64, 64, 2), "float32")
        return next(a.name for a in dnn.algorithms("grid_sample", x, grid) if a.name != "pixel_vectors")

    assert (first(1), first(3), first(16), first(256)) == ("planes", "planes", "pixels", "pixels")
    with pytest.raises(dnn.OptionError, match="grid_sample: algorithm"):
        dnn.grid_sample(_X, _GRID, algorithm="voxels")


def test_roi_align_reads_the_batch_index_as_a_whole_number():
    x = _rng().standard_normal((2, 1, 4, 4))
    np.testing.assert_array_equal(
        dnn.roi_align(x, np.array([[1.5, 0, 0, 2, 2]]), output_size=2), dnn.roi_align(x[1:], _BOX, output_size=2)
    )


def test_results_keep_channels_last_memory():
    x = np.moveaxis(_rng().standard_normal((2, 5, 6, 3)), -1, 1)
    for y in (
        dnn.grid_sample(x, np.zeros((2, 3, 3, 2))),
        dnn.interpolate(x, scale=2.0, mode="linear"),
        dnn.roi_align(x, _BOX, output_size=2),
        dnn.grid_sample_backward(np.ones((2, 3, 3, 3)), x, np.zeros((2, 3, 3, 2))).x,
    ):
        assert np.moveaxis(y, 1, -1).flags.c_contiguous


# --- PyTorch
# ---------------------------------------------------------------------------------------------------------------------


def _both(torch, mine, theirs, *arrays, gradients=True):
    """Both forwards and both gradients of all floating arrays, float64."""
    y, pullback = mine(*arrays)
    tensors = [torch.from_numpy(a).requires_grad_(a.dtype.kind == "f") for a in arrays]
    t = theirs(*tensors)
    grad = _rng(9).standard_normal(y.shape)
    np.testing.assert_allclose(y, t.detach().numpy(), rtol=1e-12, atol=1e-12)
    if not gradients:
        return
    t.backward(torch.from_numpy(grad))
    for got, tensor in zip(pullback(grad), tensors, strict=True):
        if got is not None:
            np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-10, atol=1e-11)


_SAMPLED = [(mode, space) for mode in ("bilinear", "nearest", "bicubic") for space in ((5, 7), (1, 4), (3, 4, 5))]


@pytest.mark.parametrize(("mode", "space"), [s for s in _SAMPLED if s != ("bicubic", (3, 4, 5))], ids=str)
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_grid_sample_agrees_with_pytorch(mode, padding_mode, align_corners, space):
    torch = pytest.importorskip("torch")
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    x, grid = (
        _rng(1).standard_normal((2, 3, *space)),
        _rng(2).uniform(-2.5, 2.5, (2, *(4, 3, 2)[: len(space)], len(space))),
    )
    _both(
        torch,
        lambda *arrays: dnn.vjp("grid_sample", *arrays, **options),
        lambda *tensors: torch.nn.functional.grid_sample(*tensors, **options),
        x,
        grid,
    )


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 1, 3), (2, 1, 3, 4, 5)], ids=str)
def test_affine_grid_agrees_with_pytorch(shape, align_corners):
    torch = pytest.importorskip("torch")
    rank = len(shape) - 2
    _both(
        torch,
        lambda theta: dnn.vjp("affine_grid", theta, shape=shape, align_corners=align_corners),
        lambda theta: torch.nn.functional.affine_grid(theta, shape, align_corners),
        _rng(1).standard_normal((2, rank, rank + 1)),
    )


_TORCH_MODES = {
    "nearest": {1: "nearest", 2: "nearest", 3: "nearest"},
    "nearest_exact": {1: "nearest-exact", 2: "nearest-exact", 3: "nearest-exact"},
    "linear": {1: "linear", 2: "bilinear", 3: "trilinear"},
    "cubic": {2: "bicubic"},
    "area": {1: "area", 2: "area", 3: "area"},
}
_TORCH_RESIZES = [
    (mode, rank, align_corners, antialias, target)
    for mode, ranks in _TORCH_MODES.items()
    for rank in ranks
    for align_corners in ((False, True) if mode in ("linear", "cubic") else (False,))
    for antialias in ((False, True) if mode in ("linear", "cubic") and rank == 2 else (False,))
    for target in (
        {"size": (3, 8, 5)[:rank]},
        {"size": (11, 3, 1)[:rank]},
        {"scale": (1.7, 0.6, 2.5)[:rank]},
        {"scale": (1.1, 1.5, 0.5)[:rank]},
    )
    # PyTorch computes "nearest" by a scale in float32 and copies kept extents in 2-D and 3-D, not in 1-D; here the
    # scale always counts.
    if not (mode == "nearest" and target.get("scale", (0,))[0] == 1.1 and rank > 1)
]


@pytest.mark.parametrize(("mode", "rank", "align_corners", "antialias", "target"), _TORCH_RESIZES, ids=str)
def test_interpolate_agrees_with_pytorch(mode, rank, align_corners, antialias, target):
    torch = pytest.importorskip("torch")
    options = {"mode": mode, "align_corners": align_corners, "antialias": antialias} | target
    named = {
        "mode": _TORCH_MODES[mode][rank],
        "antialias": antialias,
        "size": target.get("size"),
        "scale_factor": target.get("scale"),
    }
    if mode in ("linear", "cubic"):
        named["align_corners"] = align_corners
    _both(
        torch,
        lambda x: dnn.vjp("interpolate", x, **options),
        lambda x: torch.nn.functional.interpolate(x, **named),
        _rng(1).standard_normal((2, 2, *(7, 6, 4)[:rank])),
        # For an extent that a scale keeps, PyTorch's gradients of these are not those of its own forward.
        gradients=not ((antialias or mode == "nearest") and target.get("scale", (0,))[0] == 1.1),
    )


def test_shuffles_and_embedding_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x = _rng(1).standard_normal((2, 8, 4, 6))
    for mine, theirs, number in (
        ("pixel_shuffle", functional.pixel_shuffle, {"factor": 2}),
        ("pixel_unshuffle", functional.pixel_unshuffle, {"factor": 2}),
        ("channel_shuffle", functional.channel_shuffle, {"groups": 4}),
    ):
        _both(torch, lambda a, m=mine, n=number: dnn.vjp(m, a, **n), lambda a, t=theirs, n=number: t(a, *n.values()), x)
    indices = _rng(2).integers(0, 5, (3, 4))
    _both(
        torch,
        lambda i, w: dnn.vjp("embedding", i, w, padding_index=2),
        lambda i, w: functional.embedding(i, w, padding_idx=2),
        indices,
        _rng(3).standard_normal((5, 3)),
    )
    np.testing.assert_array_equal(dnn.one_hot(indices, 5), functional.one_hot(torch.from_numpy(indices), 5).numpy())


def test_more_samples_than_anyone_waits_for_are_refused():
    with pytest.raises(dnn.OptionError, match="roi_align: sampling_ratio is 1025; expected an integer from 0 to 1024"):
        dnn.roi_align(np.zeros((1, 1, 4, 4)), np.zeros((1, 5)), output_size=2, sampling_ratio=1025)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("view", [lambda a: a[..., ::2], lambda a: a[..., 4::-1]], ids=["every-other", "backwards"])
def test_embedding_writes_into_strided_memory_whatever_the_rank_of_the_indices(shape, view):
    weight, indices = np.arange(35.0).reshape(7, 5), np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    memory = np.full((*shape, 9), 99.0)
    assert dnn.embedding(indices, weight, out=view(memory)) is not None
    np.testing.assert_array_equal(view(memory), weight[indices])
