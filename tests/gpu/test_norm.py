"""Norms on a card: sizes of every kernel, both memory layouts, large offsets, the same bits from run to run."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.dispatch import forget
from dnnarray._cuda.norm import ALGORITHMS, channel_tile, folded_shared, staying_rows
from dnnarray._cuda.norm import folded as folded_plans
from dnnarray._problems.base import leaves, tree_map
from tests.support import BFLOAT16, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_DTYPES = [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


def _draw(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _check(name, arrays, reduction, **options):
    """Against the CPU engine in float64, and against itself."""
    there = tree_map(cupy.asarray, arrays)
    named = {n: cupy.asarray(a) if isinstance(a, np.ndarray) else a for n, a in options.items()}
    first, second = (leaves(call(name, there, named)) for _ in range(2))
    wide = {n: a.astype(np.float64) if isinstance(a, np.ndarray) else a for n, a in options.items()}
    expected = leaves(call(name, tree_map(lambda a: a.astype(np.float64), arrays), wide))
    for a, b, e in zip(first, second, expected, strict=True):
        assert cupy.asnumpy(a).tobytes() == cupy.asnumpy(b).tobytes()
        assert_close(cupy.asnumpy(a), e, reduction, note=name)


def _of_samples(x, groups, last):
    """Mean and rstd (samples, groups) of x, for half types in float32: what group norm and instance norm save."""
    exact = np.moveaxis(x.astype(np.float64), -1 if last else 1, 1).reshape(x.shape[0], groups, -1)
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    return {"mean": exact.mean(2).astype(dtype), "rstd": (1 / np.sqrt(exact.var(2) + 1e-5)).astype(dtype)}


@pytest.fixture(params=["any", "channels"])
def algorithm(request, monkeypatch):
    """All algorithms to choose from, or that for what does not fit on chip only."""
    for op, table in ALGORITHMS.items():
        monkeypatch.setitem(ALGORITHMS, op, tuple(m for m in table if m.name == request.param) or table)
    forget()
    yield request.param
    forget()


@pytest.mark.parametrize("columns", [1, 7, 64, 100, 513, 768, 1000, 2048, 4095, 4096, 8192, 12288, 16384, 16385, 40000])
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_rows_of_any_length(columns, dtype):
    rows = 37
    x, grad, w, b = (
        _draw((rows, columns), dtype),
        _draw((rows, columns), dtype, 1),
        _draw(columns, dtype, 2),
        _draw(columns, dtype, 3),
    )
    _check("layer_norm", (x, w, b), columns, return_stats=True)
    _check("add_rms_norm", (x, grad, w), columns)
    if columns > 1:  # of one value the gradient is 0, and what is left is rounding
        _check("layer_norm_backward", (grad, x, w, b), max(columns, rows))
        _check("rms_norm_backward", (grad, x, w), max(columns, rows))
        _check("add_layer_norm_backward", (grad, x, grad[::-1].copy(), w, b), max(columns, rows))


@pytest.mark.parametrize(("rows", "columns"), [(1, 8200), (65, 16_384), (66, 12_288), (67, 16_376), (300, 9_000)])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_long_rows_of_half_types(rows, columns, dtype):
    """One row, a row for each pair of blocks, one more; vectors that are missing; statistics saved, with and without a
    bias."""
    x, grad, w, b = (
        _draw((rows, columns), dtype),
        _draw((rows, columns), dtype, 1),
        _draw(columns, dtype, 2),
        _draw(columns, dtype, 3),
    )
    exact = x.astype(np.float64)
    saved = {
        "mean": exact.mean(1, keepdims=True).astype(np.float32),
        "rstd": (1 / np.sqrt(exact.var(1, keepdims=True) + 1e-5)).astype(np.float32),
    }
    _check("layer_norm_backward", (grad, x, w, b), max(rows, columns), **saved)
    _check("layer_norm_backward", (grad, x, w, None), max(rows, columns), **saved)
    _check("rms_norm_backward", (grad, x, w), max(rows, columns), rstd=saved["rstd"])


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(1500, 1056), (1100, 4096), (900, 5000), (300, 16_384), (41, 65_536), (150, 131_072), (5, 131_072)],
)
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
def test_rows_that_share_blocks(rows, columns, dtype):
    """Several rows for each block that stays, the last ones missing; statistics saved and not; parameters of either
    dtype, or none."""
    x, grad, w, b = (
        _draw((rows, columns), dtype),
        _draw((rows, columns), dtype, 1),
        _draw(columns, dtype, 2),
        _draw(columns, np.float32, 3),
    )
    exact = x.astype(np.float64)
    mean = exact.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    saved = {"mean": mean.astype(np.float32), "rstd": rstd.astype(np.float32)}
    _check("layer_norm", (x, w, b), columns, return_stats=True)
    _check("layer_norm_backward", (grad, x, w, b), max(rows, columns), **saved)
    _check("layer_norm_backward", (grad, x, None, None), max(rows, columns))
    _check("add_rms_norm_backward", ((grad, x), x, grad[::-1].copy(), w), max(rows, columns))
    _check("rms_norm_backward", (grad, x, b), max(rows, columns))
    root = np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
    _check("rms_norm_backward", (grad, x, w), max(rows, columns), rstd=(1 / root).astype(np.float32))


@pytest.mark.parametrize("columns", [8, 64, 96, 768, 1000, 1024])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16], ids=str)
def test_gradients_of_short_rows(columns, dtype):
    rows = 70_003 if columns < 100 else 6_007
    x, grad, w = _draw((rows, columns), dtype), _draw((rows, columns), dtype, 1), _draw(columns, dtype, 2)
    _check("layer_norm_backward", (grad, x, w, w), rows)
    _check("rms_norm_backward", (grad, x, w), rows)


@pytest.mark.parametrize("shape", [(5, 7), (3, 40_000)], ids=str)
def test_means_whose_squares_overflow(shape):
    """Threads that have no values must not bring the square of a mean into the variance."""
    x = np.full(shape, 1e160)
    assert not cupy.asnumpy(dnn.layer_norm(cupy.asarray(x), axis=0)).any()


@pytest.mark.parametrize("rows", [1, 5, 37])
@pytest.mark.parametrize("columns", [8, 64, 128])
def test_warps_with_rows_missing_that_find_the_statistics(rows, columns):
    x, grad, w = (_draw(s, np.float16, i) for i, s in enumerate(((rows, columns), (rows, columns), (columns,))))
    _check("layer_norm_backward", (grad, x, w, w), max(rows, columns))


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 8), (5, 37), (128, 512), (300, 96), (512, 20), (97, 1000), (33, 4104), (64, 8192)]
)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_small_gradients_whose_statistics_were_saved(rows, columns, dtype):
    """Blocks of rows beside blocks of columns; parameters of either dtype, memory that is not aligned, a NaN."""
    x, grad, w = _draw((rows, columns), dtype), _draw((rows, columns), dtype, 1), _draw(columns, dtype, 2)
    exact, kind = (
        x.astype(np.float64),
        np.promote_types(dtype, np.float32) if dtype != BFLOAT16 else np.dtype(np.float32),
    )
    saved = {
        "mean": exact.mean(1, keepdims=True).astype(kind),
        "rstd": (1 / np.sqrt(exact.var(1, keepdims=True) + 1e-5)).astype(kind),
    }
    root = {"rstd": (1 / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)).astype(kind)}
    _check("layer_norm_backward", (grad, x, w, w.astype(kind)), max(rows, columns), **saved)
    _check("layer_norm_backward", (grad, x, None, w), max(rows, columns), **saved)
    _check("rms_norm_backward", (grad, x, w.astype(kind)), max(rows, columns), **root)
    _check("layer_norm_backward", (grad, x, w, w.astype(kind)), max(rows, columns))
    _check("layer_norm_backward", (grad, x, w, None), max(rows, columns), rstd=saved["rstd"])
    _check("rms_norm_backward", (grad, x, w.astype(kind)), max(rows, columns))
    there = {n: cupy.asarray(a) for n, a in saved.items()}
    odd = [
        cupy.concatenate([cupy.zeros(1, a.dtype), a.ravel()])[1:].reshape(a.shape) for a in map(cupy.asarray, (grad, x))
    ]
    expected = call(
        "layer_norm_backward", (cupy.asarray(grad), cupy.asarray(x), cupy.asarray(w), cupy.asarray(w)), there
    )
    for a, e in zip(
        leaves(call("layer_norm_backward", (*odd, cupy.asarray(w), cupy.asarray(w)), there)),
        leaves(expected),
        strict=True,
    ):
        assert_close(cupy.asnumpy(a), cupy.asnumpy(e).astype(np.float64), max(rows, columns))
    odd[0][rows // 2, columns // 2] = np.nan
    spoilt = leaves(call("layer_norm_backward", (*odd, cupy.asarray(w), cupy.asarray(w)), there))
    found = [np.isnan(cupy.asnumpy(a).astype(np.float64)) for a in spoilt]
    assert found[0].any(1).tolist() == [i == rows // 2 for i in range(rows)]
    assert all(f.tolist() == [i == columns // 2 for i in range(columns)] for f in found[1:])


@pytest.mark.parametrize("columns", [4, 16, 96, 512, 768, 1024, 4096])
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_rows_far_from_zero_with_an_outlier_first(columns, dtype):
    """Rows that leave no thread without a value: the first one is what all others are taken from."""
    x = _draw((5, columns), np.float64) + 30
    x[1, 0], x[2, :] = 3000, 17.5
    x = x.astype(dtype)
    _check("layer_norm", (x,), columns, return_stats=True)
    _check("add_layer_norm", (x, x[::-1].copy()), columns)


@pytest.mark.parametrize(
    "shape", [(3, 12, 7, 7), (2, 64, 7, 7), (2, 40, 3, 1), (5, 8, 2, 3), (1, 32, 2, 1), (2, 8, 31, 33)], ids=str
)
@pytest.mark.parametrize("dtype", _DTYPES[1:], ids=str)
def test_groups_as_rows(shape, dtype, monkeypatch):
    """Borders of images within vectors, several of them; parameters of either dtype."""
    monkeypatch.setitem(ALGORITHMS, "group_norm", tuple(m for m in ALGORITHMS["group_norm"] if m.name == "rows"))
    forget()
    x, w, b = _draw(shape, dtype), _draw(shape[1], dtype, 1), _draw(shape[1], np.float32, 2)
    for groups in (g for g in (1, 2, 5) if shape[1] % (4 * g) == 0):
        _check(
            "group_norm",
            (x, w, b),
            x.size // shape[0] // groups,
            num_groups=groups,
            activation="relu",
            return_stats=True,
        )
        _check("group_norm", (x, None, w), x.size // shape[0] // groups, num_groups=groups)
    forget()


@pytest.mark.parametrize(
    "shape", [(16, 600, 7, 7), (64, 536, 7, 7), (3, 1064, 3, 3), (70, 2400, 1, 1), (1, 600, 7, 9)], ids=str
)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", _DTYPES[2:], ids=str)
def test_channels_in_the_registers_of_blocks(shape, last, dtype, monkeypatch):
    """Several pieces a thread, fewer pieces than threads, blocks with fewer channels; both kinds of parameters; far
    from zero; memory that is not aligned."""
    for op in ("batch_norm_train", "batch_norm_train_backward"):
        monkeypatch.setitem(
            ALGORITHMS, op, tuple(m for m in ALGORITHMS[op] if m.name.startswith(("channel_tile", "channels")))
        )
    monkeypatch.setattr(channel_tile, "_SHARED", 1 << 20)
    monkeypatch.setattr(folded_plans, "_SMALL", 1 << 60)  # which would be faster for some
    forget()
    n, channels, *space = shape
    shape = (n, *space, channels) if last else shape
    options = {"layout": "channels_last" if last else "channels_first"}
    x, r = _draw(shape, dtype) + dtype.type(3), _draw(shape, dtype, 1)
    w, b = np.abs(_draw(channels, dtype, 4)) + dtype.type(1), _draw(channels, np.float32, 5)
    count = x.size // channels
    _check("batch_norm_train", (x, w, b, b, np.abs(b)), count, **options)
    _check("batch_norm_train", (x, None, w), count, residual=r, activation="relu", **options)
    there = cupy.asarray(x)
    odd = cupy.concatenate([cupy.zeros(1, there.dtype), there.ravel()])[1:].reshape(shape)
    for a, e in zip(
        leaves(dnn.batch_norm_train(odd, **options)), leaves(dnn.batch_norm_train(there, **options)), strict=True
    ):
        assert_close(cupy.asnumpy(a), cupy.asnumpy(e).astype(np.float64), count)
    axes, exact = tuple(i for i in range(x.ndim) if i != (x.ndim - 1 if last else 1)), x.astype(np.float64)
    saved = {
        "mean": exact.mean(axes).astype(np.float32),
        "rstd": (1 / np.sqrt(exact.var(axes) + 1e-5)).astype(np.float32),
    }
    if last and count > 7 * 256:
        return forget()  # pairs of pieces are more than a block holds
    grad = _draw(shape, dtype, 6)
    _check("batch_norm_train_backward", (grad, x, w, b), count, **saved, **options)
    _check("batch_norm_train_backward", (grad, x, None, w), count, **saved, **options)
    _check("batch_norm_train_backward", (grad, x, b, None), count, **saved, **options)
    forget()


def _small_shapes():
    """A few that are at a limit of the kernel for small arrays, and some that are drawn."""
    yield from (
        (2, 32, 14, 14),
        (1, 7, 3, 3),
        (16, 8, 28, 18),
        (3, 300, 5, 7),
        (2, 530, 9, 11),
        (16, 512, 3, 3),
        (3, 12, 5, 1),
        (7, 16, 9, 17),
    )
    draw = np.random.default_rng(11)
    for _ in range(3):
        yield (
            int(draw.integers(1, 17)),
            int(draw.integers(8, 200)),
            int(draw.integers(1, 15)),
            int(draw.integers(1, 15)),
        )


@pytest.mark.parametrize("shape", list(_small_shapes()), ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", _DTYPES[1:], ids=str)
def test_small_statistics_in_the_registers_of_blocks(shape, last, dtype):
    """One to four channels a block, and clusters; statistics saved and not; both kinds of parameters; far from zero;
    memory that is not aligned."""
    n, channels, *space = shape
    shape, options = (n, *space, channels) if last else shape, {"layout": "channels_last" if last else "channels_first"}
    x, r, grad = _draw(shape, dtype) + dtype.type(3), _draw(shape, dtype, 1), _draw(shape, dtype, 2)
    w, b = np.abs(_draw(channels, dtype, 4)) + dtype.type(1), _draw(channels, np.float32, 5)
    count, axes, exact = x.size // channels, tuple(i for i in range(4) if i != (3 if last else 1)), x.astype(np.float64)
    saved = {
        "mean": exact.mean(axes).astype(np.float32),
        "rstd": (1 / np.sqrt(exact.var(axes) + 1e-5)).astype(np.float32),
    }
    _check("batch_norm_train", (x, w, b, b, np.abs(b)), count, **options)
    _check("batch_norm_train", (x, None, w), count, residual=r, activation="relu", **options)
    for given in ({}, saved):
        _check("batch_norm_train_backward", (grad, x, w, b), count, **given, **options)
        _check("batch_norm_train_backward", (grad, x, b, w), count, residual=r, activation="silu", **given, **options)
    for groups in (g for g in (1, 3, 4, 15, channels) if channels % g == 0 and np.prod(space) * channels > g):
        values = x.size // groups
        _check("group_norm", (x, w, b), values // n, num_groups=groups, activation="relu", return_stats=True, **options)
        _check("group_norm_backward", (grad, x, b, None), values, num_groups=groups, eps=1e-3, **options)
        _check(
            "group_norm_backward", (grad, x, w, b), values, num_groups=groups, **_of_samples(x, groups, last), **options
        )
    if np.prod(space) > 1:
        _check("instance_norm", (x, b, w), count // n, return_stats=True, **options)
        for given in ({}, _of_samples(x, channels, last)):
            _check("instance_norm_backward", (grad, x, w, w), count, **given, **options)
    there = {n: cupy.asarray(a) for n, a in {"x": x, "grad": grad, "w": w}.items()}
    odd = {n: cupy.concatenate([cupy.zeros(1, a.dtype), a.ravel()])[1:].reshape(a.shape) for n, a in there.items()}
    for a, e in zip(
        *(leaves(dnn.batch_norm_train_backward(m["grad"], m["x"], m["w"], **options)) for m in (odd, there)),
        strict=True,
    ):
        assert_close(cupy.asnumpy(a), cupy.asnumpy(e).astype(np.float64), count)


@pytest.mark.parametrize("last", [False, True])
def test_batch_indices_that_are_missing_bring_no_nan_where_eps_is_zero(last):
    shape, options = (3, 4, 4, 8) if last else (3, 8, 4, 4), {"layout": "channels_last" if last else "channels_first"}
    x, grad, w = (_draw(s, np.float32, i) for i, s in enumerate((shape, shape, (8,))))
    _check("group_norm_backward", (grad, x, w, w), 3 * 32, num_groups=4, eps=0.0, **options)


@pytest.fixture(params=["_LITTLE", "_MANY", "_TALL", "_WIDE", "_HUGE"])
def folded(request, monkeypatch):
    """Batch norm of arrays of any size in two launches, with the settings of each size."""
    how = getattr(folded_shared, request.param)
    monkeypatch.setattr(folded_plans, "_SMALL", 0)
    monkeypatch.setattr(folded_shared, "_settings", lambda v, x: how)
    for op in ("batch_norm_train", "batch_norm_train_backward"):
        monkeypatch.setitem(ALGORITHMS, op, tuple(m for m in ALGORITHMS[op] if m.name in ("folded", "channels")))
    forget()
    yield
    forget()


_FOLDED = [
    (4, 24, 24, 255),
    (3, 33, 33, 67),
    (2, 20, 20, 96),
    (1, 7, 7, 1021),
    (9, 31, 31, 80),
    (5, 9, 13, 11),
    (2, 5, 7, 2056),
    (2, 9, 1, 31),
    (17, 28, 28, 36),
]


@pytest.mark.parametrize("shape", _FOLDED, ids=str)
@pytest.mark.parametrize("dtype", _DTYPES[1:], ids=str)
def test_medium_arrays_in_two_launches(shape, dtype, folded):
    """Channels that are whole vectors and not, rows that are whole folds and not, few and many; far from zero, and with
    a first value far from the others."""
    channels, count, options = shape[-1], int(np.prod(shape[:-1])), {"layout": "channels_last"}
    x, r, grad = _draw(shape, dtype) + dtype.type(3), _draw(shape, dtype, 1), _draw(shape, dtype, 2)
    x[0, 0, 0] = dtype.type(30)
    w, b = np.abs(_draw(channels, dtype, 4)) + dtype.type(1), _draw(channels, np.float32, 5)
    exact = x.astype(np.float64)
    saved = {
        "mean": exact.mean((0, 1, 2)).astype(np.float32),
        "rstd": (1 / np.sqrt(exact.var((0, 1, 2)) + 1e-5)).astype(np.float32),
    }
    _check("batch_norm_train", (x, w, b, b, np.abs(b)), count, **options)
    _check("batch_norm_train", (x, None, w), count, residual=r, activation="relu", **options)
    _check("batch_norm_train", (x, b, None), count, activation="gelu", **options)
    _check("batch_norm_train_backward", (grad, x, w, b), count, **saved, **options)
    _check("batch_norm_train_backward", (grad, x, None, w), count, residual=r, **saved, **options)
    _check("batch_norm_train_backward", (grad, x, b, None), count, activation="gelu", **saved, **options)
    _check("batch_norm_train_backward", (grad, x, b, w), count, residual=r, activation="silu", **saved, **options)


def test_medium_arrays_in_two_launches_far_from_zero(folded):
    x = (1e4 + _draw((6, 16, 24, 67), np.float64)).astype(np.float32)
    exact = leaves(dnn.batch_norm_train(x.astype(np.float64), layout="channels_last"))[0]
    y = leaves(dnn.batch_norm_train(cupy.asarray(x), layout="channels_last"))[0]
    np.testing.assert_allclose(cupy.asnumpy(y), exact, rtol=0, atol=5e-6)


def test_gradients_over_many_rows():
    x, grad, w = _draw((3000, 96), np.float32), _draw((3000, 96), np.float32, 1), _draw(96, np.float32, 2)
    _check("layer_norm_backward", (grad, x, w, w), 3000)


@pytest.mark.parametrize("rows", [1, 47])
@pytest.mark.parametrize("vectors", [8_193, 25_000, 32_768])
@pytest.mark.parametrize("dtype", _DTYPES[1:], ids=str)
def test_long_rows_in_clusters_that_stay(rows, vectors, dtype, monkeypatch):
    monkeypatch.setattr(staying_rows, "_ROWS", 0)
    for op in ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm"):
        monkeypatch.setitem(ALGORITHMS, op, tuple(m for m in ALGORITHMS[op] if m.name != "cluster_rows"))
    forget()
    columns = vectors * 16 // dtype.itemsize
    x, residual = _draw((rows, columns), dtype) + dtype.type(3), _draw((rows, columns), dtype, 1)
    x[-1, -1] = 100
    weight, bias = _draw((columns,), dtype, 2), _draw((columns,), dtype, 3)
    _check("layer_norm", (x, weight, bias), columns, return_stats=True)
    _check("layer_norm", (x, None, bias), columns)
    _check("rms_norm", (x, weight), columns, return_stats=True)
    if dtype == np.float32:
        _check("add_layer_norm", (x, residual, weight, bias), columns)
        _check("add_rms_norm", (x, residual, weight), columns)
    forget()


@pytest.mark.parametrize("axis", [0, 1, (0, 2), (0, 1)])
def test_any_axes(axis):
    x, grad = _draw((40, 33, 65), np.float32), _draw((40, 33, 65), np.float32, 1)
    extents = [x.shape[i] for i in np.atleast_1d(axis)]
    w = _draw(extents, np.float32, 2)
    _check("layer_norm", (x, w, w), int(np.prod(extents)), axis=axis, return_stats=True)
    _check("layer_norm_backward", (grad, x, w, w), x.size // w.size * w.size, axis=axis)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("shape", [(3, 17, 13, 11), (2, 40, 6, 8), (2, 9, 4, 16)], ids=str)
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_local_response_norm(shape, layout, dtype):
    x, grad = _draw(shape, dtype), _draw(shape, dtype, 1)
    usual = (
        {"size": 5},
        {"size": 4, "alpha": 2.0, "beta": 1.3, "k": 2.0},
        {"size": 3, "alpha": 1.0, "beta": 0.5},
        {"size": 9},
    )
    for options in (*usual, {"size": 7, "alpha": 3.0, "beta": 1.0}, {"size": 5, "alpha": 3.0, "k": 0.0}):
        _check("local_response_norm", (x,), 5, layout=layout, **options)
        _check("local_response_norm_backward", (grad, x), 25, layout=layout, **options)


_SHAPES = [(8, 64, 28, 28), (4, 3, 31, 17), (2, 256, 7, 7), (33, 40), (1, 8, 50_000), (5, 24, 4, 5, 6)]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
def test_channels_of_any_shape(shape, last, algorithm, dtype):
    channels, space = shape[1], int(np.prod(shape[2:]))
    shape = (shape[0], *shape[2:], channels) if last else shape
    layout = "channels_last" if last else "channels_first"
    x, grad, r = (_draw(shape, dtype, s) for s in range(3))
    w, b = np.abs(_draw(channels, dtype, 4)) + dtype.type(1), _draw(channels, dtype, 5)
    count, same = x.size // channels, {"layout": layout}
    _check("batch_norm_train", (x, w, b, b, w), count, residual=r, activation="relu", **same)
    for activation in ("gelu", "relu"):  # whose gradient a half type rounds, or holds
        _check("batch_norm_train_backward", (grad, x, w, b), count, residual=r, activation=activation, **same)
    axes = tuple(i for i in range(x.ndim) if i != (x.ndim - 1 if last else 1))
    exact = x.astype(np.float64)
    saved = {
        "mean": exact.mean(axes).astype(np.float32),
        "rstd": (1 / np.sqrt(exact.var(axes) + 1e-5)).astype(np.float32),
    }
    if dtype != np.float64:
        _check("batch_norm_train_backward", (grad, x, w, b), count, **saved, **same)
    _check("batch_norm_backward", (grad, x, b, w, w, b), count, **same)
    _check("batch_norm", (x, b, w, w, b), 1, layout=layout, residual=r, activation="gelu")
    groups = 4 if channels % 4 == 0 else 1
    _check(
        "group_norm",
        (x, w, b),
        space * channels // groups,
        num_groups=groups,
        activation="gelu",
        return_stats=True,
        **same,
    )
    for given in ({}, _of_samples(x, groups, last)):
        _check("group_norm_backward", (grad, x, w, b), x.size // channels, num_groups=groups, **given, **same)
    if space > 1:
        _check("instance_norm", (x, w, b), space, return_stats=True, **same)
        for given in ({}, _of_samples(x, channels, last)):
            _check("instance_norm_backward", (grad, x, w, b), count, **given, **same)


@pytest.mark.parametrize("shape", [(4, 65, 5, 5), (8, 131, 56, 56), (2, 7, 300, 300)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_running_statistics_move_on_where_they_are(shape, last, algorithm):
    n, channels, *space = shape
    x = cupy.asarray(_draw((n, *space, channels) if last else shape, np.float32))
    mean, var = cupy.asarray(_draw(channels, np.float32, 1)), cupy.asarray(np.abs(_draw(channels, np.float32, 2)))
    options = {"layout": "channels_last" if last else "channels_first"}
    for _ in range(3):
        apart = dnn.batch_norm_train(x, None, None, mean.copy(), var.copy(), **options)
        out = (cupy.empty_like(x), cupy.empty_like(mean), cupy.empty_like(mean), mean, var)
        result = dnn.batch_norm_train(x, None, None, mean, var, out=out, **options)
        assert result.running_mean is mean
        for a, b in zip(result, apart, strict=True):
            np.testing.assert_array_equal(cupy.asnumpy(a), cupy.asnumpy(b))


def test_channels_last_memory_under_a_channels_first_shape():
    host = _draw((4, 6, 5, 16), np.float32)
    last = cupy.asarray(host).transpose(0, 3, 1, 2)
    first = cupy.ascontiguousarray(last)
    for name, options in (("batch_norm_train", {}), ("group_norm", {"num_groups": 4}), ("instance_norm", {})):
        a, b = (leaves(getattr(dnn, name)(x, **options))[0] for x in (last, first))
        assert a.strides == last.strides
        np.testing.assert_allclose(cupy.asnumpy(a), cupy.asnumpy(b), atol=2e-6)


@pytest.mark.parametrize("name", ["batch_norm_train", "layer_norm", "group_norm", "instance_norm"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_data_far_from_zero_is_right_in_float32(name, layout):
    x = (1e4 + _draw((6, 64, 16, 24), np.float64)).astype(np.float32)
    options = {"layer_norm": {"axis": (1, 2, 3)}, "group_norm": {"num_groups": 4}}.get(name, {})
    if name != "layer_norm":
        options["layout"] = layout
    exact = leaves(getattr(dnn, name)(x.astype(np.float64), **options))[0]
    y = leaves(getattr(dnn, name)(cupy.asarray(x), **options))[0]
    np.testing.assert_allclose(cupy.asnumpy(y), exact, rtol=0, atol=5e-6)


def test_long_sums_keep_their_accuracy():
    x = np.random.default_rng(3).random((4, 200_000, 3)).astype(np.float32)
    result = dnn.batch_norm_train(cupy.asarray(x), layout="channels_last")
    exact = x.astype(np.float64)
    np.testing.assert_allclose(cupy.asnumpy(result.mean), exact.mean((0, 1)), rtol=2e-7)
    np.testing.assert_allclose(cupy.asnumpy(result.rstd), 1 / np.sqrt(exact.var((0, 1)) + 1e-5), rtol=5e-7)


@pytest.mark.heavy
def test_more_than_two_to_the_31_elements():
    x = cupy.ones((2**25 + 1, 64), np.float16)
    x[-1, :32] = -1
    y = dnn.layer_norm(x)
    np.testing.assert_allclose(cupy.asnumpy(y[-1]), np.repeat([-1, 1], 32), atol=1e-3)
    assert float(cupy.abs(y[:-1]).max()) == 0
    y = dnn.batch_norm(x, cupy.zeros(64, np.float16), cupy.ones(64, np.float16), eps=0.0)
    assert cupy.asnumpy(y[-1]).tolist() == [-1] * 32 + [1] * 32


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_the_gradient_of_x_by_given_statistics_does_not_meet_the_mean(algorithm, dtype, layout, activation):
    """NaN in a mean or infinity in x is in the gradients that depend on them: without an activation neither in that of
    x nor in that of the mean."""
    shape = (2, 3, 4, 2) if layout == "channels_last" else (2, 2, 3, 4)
    grad, x, bias = _draw(shape, dtype), _draw(shape, dtype, 1), _draw((2,), dtype, 2)
    x.flat[5] = np.inf
    mean, variance = np.array([np.nan, 0.5], dtype), np.array([1.25, 0.5], dtype)
    options = {"layout": layout, "activation": activation}
    expected = dnn.batch_norm_backward(
        *(a.astype(np.float64) for a in (grad, x, mean, variance)), None, bias.astype(np.float64), **options
    )
    result = dnn.batch_norm_backward(*map(cupy.asarray, (grad, x, mean, variance)), None, cupy.asarray(bias), **options)
    assert activation is not None or np.isfinite(expected.x).all()
    for actual, right in zip(leaves(result), leaves(expected), strict=True):
        assert_close(cupy.asnumpy(actual), right, 24)
