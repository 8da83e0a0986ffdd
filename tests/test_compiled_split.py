"""Products of float32 in three pieces on the matrix unit, beside float64: shapes, strides, numbers that the pieces
cannot hold, machines without the unit."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.operation import find
from dnnarray._cpu import matrix_unit, threads
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.support import DTYPES, assert_close, call_by

_REASON = compiler.missing() or matrix_unit.missing()
needs_unit = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
needs_numba = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
_ROOT = Path(dnn.__file__).parents[1]
_SIZES = (1, 15, 16, 17, 31, 33, 127, 129, 263, 300)
_DEPTHS = (1, 2, 31, 33, 127, 129, 257, 1000)
_ACTIVATIONS = {"relu": lambda y: np.maximum(y, 0), None: lambda y: y}


def _normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def _split(op, arrays, out=None, workspace=None, **options):
    operation = find(op)
    bound, chosen = operation.bind(arrays, options)
    return dispatch(operation, bound, tuple(chosen[n] for n in operation.static), (), out, workspace, "split_gemm")


def _product(x, weight, bias=None, residual=None, activation=None):
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    for term in (bias, residual):
        y = y if term is None else y + term.astype(np.float64)
    return _ACTIVATIONS[activation](y)


def _gradients(grad, x, weight, bias=None, residual=None, activation=None):
    slope, x, weight = (a.astype(np.float64) for a in (grad, x, weight))
    if activation is not None:
        slope = slope * (_product(x, weight, bias, residual) > 0)
    return slope @ weight, slope.T @ x, slope.sum(0), slope


def _unaligned(array):
    copy = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _strided(array):
    """The same numbers, elements two apart on every axis."""
    wide = np.zeros([2 * n for n in array.shape], array.dtype)[(slice(None, None, 2),) * array.ndim]
    wide[...] = array
    return wide


_LYING = {
    "turned": lambda a: np.ascontiguousarray(a.T).T,
    "rows backwards": lambda a: a[::-1].copy()[::-1],
    "columns backwards": lambda a: a[:, ::-1].copy()[:, ::-1],
    "turned and backwards": lambda a: np.ascontiguousarray(a.T[::-1, ::-1]).T[::-1, ::-1],
    "every other": _strided,
    "part of longer rows": lambda a: np.pad(a, ((1, 2), (3, 5)))[1:-2, 3:-5],
    "unaligned": _unaligned,
}


# --- linear layers ----------------------------------------------------------------------------------------------------


@needs_unit
@pytest.mark.parametrize("rows", _SIZES)
def test_linear_layers_of_all_sizes(rows):
    for number, (columns, depth) in enumerate((c, k) for c in _SIZES for k in _DEPTHS):
        x, weight, bias, residual = (
            _normal(rows, depth),
            _normal(columns, depth, seed=1),
            _normal(columns),
            _normal(rows, columns),
        )
        options = {"activation": (None, "relu")[number % 2]}
        given = (x, weight, (None, bias)[number // 2 % 2], (None, residual)[number // 3 % 2])
        y = _split("linear", given, **options)
        assert_close(y, _product(*given, **options), depth, note=f"{rows} {columns} {depth}")


@needs_unit
@pytest.mark.parametrize("rows", _SIZES)
def test_gradients_of_linear_layers_of_all_sizes(rows):
    for number, (columns, depth) in enumerate((c, k) for c in _SIZES for k in (1, 31, 33, 129, 300)):
        grad, x, weight, bias = (
            _normal(rows, columns),
            _normal(rows, depth),
            _normal(columns, depth, seed=1),
            _normal(columns),
        )
        options = {"activation": (None, "relu")[number % 2]}
        got = _split("linear_backward", (grad, x, weight, bias, grad), **options)
        for a, e, terms in zip(
            got, _gradients(grad, x, weight, bias, grad, **options), (columns, rows, rows, 1), strict=True
        ):
            assert_close(a, e, terms, note=f"{rows} {columns} {depth}")


@needs_unit
@pytest.mark.parametrize("depth", (16, 64, 200, 448, 1000, 4096))
def test_products_round_no_more_than_numpys(depth):
    x, weight = _normal(300, depth), _normal(263, depth)
    exact = _product(x, weight)
    own, numpys = (np.sqrt(((y - exact) ** 2).mean()) for y in (_split("linear", (x, weight)), x @ weight.T))
    assert own <= numpys


@needs_unit
@pytest.mark.parametrize("lying", _LYING)
def test_linear_layers_of_matrices_that_lie_otherwise(lying):
    lay = _LYING[lying]
    for rows, columns, depth in ((33, 47, 61), (1, 17, 129), (64, 1, 32), (16, 16, 1), (300, 129, 256)):
        grad, x, weight = _normal(rows, columns), _normal(rows, depth), _normal(columns, depth, seed=1)
        out = lay(np.full((rows, columns), np.nan, np.float32))
        for given in ((lay(x), weight), (x, lay(weight)), (lay(x), lay(weight))):
            assert _split("linear", given, out=out) is out
            assert_close(out, _product(x, weight), depth, note=str(out.shape))
        outs = tuple(lay(np.full(a.shape, np.nan, np.float32)) for a in (x, weight))
        _split("linear_backward", (lay(grad), lay(x), lay(weight)), out=outs)
        for a, e, terms in zip(outs, _gradients(grad, x, weight), (columns, rows), strict=False):
            assert_close(a, e, terms, note=str(a.shape))


@needs_unit
def test_rows_that_are_one_row_and_axes_before_the_rows():
    x, weight = np.broadcast_to(_normal(129), (40, 129)), _normal(33, 129)
    assert_close(_split("linear", (x, weight)), _product(x, weight), 129)
    x = _normal(3, 5, 7, 129)[:, ::2]
    assert_close(_split("linear", (x, weight)), _product(x, weight), 129)
    assert_close(_split("linear", (x[0, 0, 0], weight)), _product(x[0, 0, 0], weight), 129)


@needs_unit
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
def test_linear_layers_stay_within_their_arrays(at_end):
    for rows, columns, depth in ((33, 47, 61), (32, 48, 128), (17, 16, 32), (16, 33, 160), (1, 1, 1)):
        grad, x, weight = _normal(rows, columns), _normal(rows, depth), _normal(columns, depth, seed=1)
        placed = [
            guarded.like(a, at_end)
            for a in (grad, x, weight, np.zeros_like(grad), np.zeros_like(x), np.zeros_like(weight))
        ]
        assert_close(_split("linear", placed[1:3], out=placed[3]), _product(x, weight), depth)
        got = _split("linear_backward", placed[:3], out=tuple(placed[4:]))
        for a, e, terms in zip(got[:2], _gradients(grad, x, weight), (columns, rows), strict=False):
            assert_close(a, e, terms)


# --- windows of one pixel ---------------------------------------------------------------------------------------------

_IMAGES = {
    "many images of 49 pixels": (33, 37, 29, (7, 7)),
    "images of 5 pixels": (40, 17, 16, (5,)),
    "images of a pixel": (19, 33, 65, (1, 1)),
    "strips that end with images": (3, 64, 32, (4, 8)),
    "one row": (2, 45, 21, (301,)),
    "volumes": (3, 31, 33, (3, 5, 7)),
    "one image": (1, 1000, 17, (9, 11)),
    "one channel": (5, 1, 1, (13, 17)),
    "many of both": (2, 300, 263, (14, 14)),
}


def _window(k, c, space):
    return (k, c, *(1,) * len(space))


def _laid(array, layout):
    """A channels-first array in this layout."""
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout == "channels_last" else array


def _mixed(x, weight, layout, transposed=False):
    """The sum over channels in float64, x and result in this layout."""
    channel = -1 if layout == "channels_last" else 1
    matrix = weight.astype(np.float64).reshape(weight.shape[0], -1)
    y = np.moveaxis(x.astype(np.float64), channel, -1) @ (matrix if transposed else matrix.T)
    return np.moveaxis(y, -1, channel)


@needs_unit
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", _IMAGES)
def test_windows_of_one_pixel(name, layout):
    n, c, k, space = _IMAGES[name]
    x, grad, residual = (_laid(_normal(n, m, *space, seed=s), layout) for m, s in ((c, 0), (k, 1), (k, 2)))
    weight, bias, back = _laid(_normal(*_window(k, c, space)), layout), _normal(k), _normal(c)
    shift, shift_back = (b if layout == "channels_last" else b.reshape(-1, *(1,) * len(space)) for b in (bias, back))
    plain = _mixed(x, weight, layout)
    assert_close(_split("conv", (x, weight), layout=layout), plain, c)
    got = _split("conv", (x, weight, bias, residual), layout=layout, activation="relu")
    assert_close(got, np.maximum(plain + shift + residual, 0), c)
    expected = _mixed(grad, weight, layout, transposed=True)
    assert_close(_split("conv_backward_input", (grad, weight), input_shape=x.shape, layout=layout), expected, k)
    got = _split("conv_transpose", (grad, weight, back), layout=layout, activation="relu")
    assert_close(got, np.maximum(expected + shift_back, 0), k)


_LAID = {
    "as it is": lambda a: a,
    "turned": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    "turned the other way": lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, -1, 1)), 1, -1),
    "images backwards": lambda a: a[::-1].copy()[::-1],
    "channels or rows backwards": lambda a: a[:, ::-1].copy()[:, ::-1],
    "columns or channels backwards": lambda a: a[..., ::-1].copy()[..., ::-1],
    "every other": _strided,
    "unaligned": _unaligned,
}


@needs_unit
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("lying", _LAID)
def test_windows_of_one_pixel_on_arrays_that_lie_otherwise(lying, layout):
    lay = _LAID[lying]
    for n, c, k, space in ((5, 33, 17, (7, 9)), (3, 16, 1, (1, 1)), (1, 1, 40, (4, 4))):
        x, weight = _laid(_normal(n, c, *space), layout), _laid(_normal(*_window(k, c, space)), layout)
        expected = _mixed(x, weight, layout)
        for given in (x, lay(x)):
            for like in _LAID.values():
                out = like(np.full(expected.shape, np.nan, np.float32))
                assert _split("conv", (given, lay(weight)), layout=layout, out=out) is out
                assert_close(out, expected, c, note=f"{given.strides} {out.strides}")


@needs_unit
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", _IMAGES)
def test_windows_of_one_pixel_stay_within_their_arrays(name, layout, at_end):
    n, c, k, space = _IMAGES[name]
    x, weight = _laid(_normal(n, c, *space), layout), _laid(_normal(*_window(k, c, space)), layout)
    expected = _mixed(x, weight, layout)
    placed = [guarded.like(a, at_end) for a in (x, weight, np.zeros(expected.shape, np.float32))]
    assert_close(_split("conv", placed[:2], layout=layout, out=placed[2]), expected, c)


@needs_unit
def test_other_windows_are_refused():
    x, weight = _normal(2, 8, 9, 9), _normal(6, 8, 1, 1)
    wrong = [{"stride": 2}, {"padding": 1}]
    for options in wrong:
        with pytest.raises(dnn.UnsupportedError, match="windows of one pixel"):
            dnn.conv(x, weight, **options, algorithm="split_gemm")
    for weight in (_normal(6, 8, 3, 3), _normal(6, 8, 1, 2)):
        with pytest.raises(dnn.UnsupportedError, match="windows of one pixel"):
            dnn.conv(x, weight, algorithm="split_gemm")
    with pytest.raises(dnn.UnsupportedError, match="in one group"):
        dnn.conv(x, _normal(6, 4, 1, 1), groups=2, algorithm="split_gemm")


# --- threads and processes --------------------------------------------------------------------------------------------


def _calls():
    x, weight, image, window = _normal(300, 257), _normal(263, 257), _normal(9, 70, 7, 7), _normal(129, 70, 1, 1)
    return {
        "linear": lambda: _split("linear", (x, weight)),
        "linear_backward": lambda: _split("linear_backward", (x @ weight.T, x, weight))[:2],
        "conv": lambda: _split("conv", (image, window)),
        "conv_transpose": lambda: _split("conv_transpose", (image, window.swapaxes(0, 1))),
    }


def _bits(result):
    return [a.tobytes() for a in (result if isinstance(result, tuple) else (result,))]


@needs_unit
@pytest.mark.parametrize("name", _calls())
def test_the_number_of_threads_does_not_change_a_bit(name, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)  # every call is spread
    found = []
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.append(_bits(_calls()[name]()))
    assert found[0] == found[1] == found[2]


@needs_unit
def test_callers_with_threads_of_their_own_get_right_results(monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)
    calls = list(_calls().values())
    expected = [_bits(call()) for call in calls]
    wrong = []

    def repeat(call, right):
        wrong.extend(1 for _ in range(30) if _bits(call()) != right)

    callers = [threading.Thread(target=repeat, args=pair) for pair in zip(calls * 2, expected * 2, strict=True)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


_PROCESSES = """
import multiprocessing, os, sys
import numpy as np
import dnnarray as dnn
from tests.support import call_by

def product(name):
    x = np.random.default_rng(0).standard_normal((700, 300), dtype=np.float32)
    return call_by("split_gemm", "linear", (x, x), {}).tobytes()

if __name__ == "__main__":
    dnn.set_options(threads=2)
    right = product(None)
    child = os.fork()
    if child == 0:
        os._exit(0 if product(None) == right else 1)
    print(os.waitpid(child, 0)[1])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(product, range(2)) == [right] * 2)
"""


@needs_unit
def test_forked_and_spawned_processes_compute_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_PROCESSES)
    assert _python(script) == ["0", "True"]


def _python(*arguments, **environment):
    """What a fresh interpreter prints."""
    variables = os.environ | {"PYTHONPATH": str(_ROOT)} | environment
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, env=variables, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- numbers ----------------------------------------------------------------------------------------------------------

_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = {
    "nan": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "largest": _LARGEST,
    "minus largest": -_LARGEST,
    "first that the pieces cannot hold": 2.0**128 - 2.0**119,
    "last that they can": float(np.nextafter(np.float32(2.0**128 - 2.0**119), np.float32(0))),
    "1e-35": 1e-35,
    "1e-40": 1e-40,
    "least": 2.0**-149,
    "0": 0.0,
    "-0": -0.0,
    "2^-102": 2.0**-102,
}


def _as_exact(got, x, weight, depth):
    """Each row by itself agrees with float64 rounded to float32: NaN and infinity at the same places, and rows of small
    numbers as exact as others."""
    exact = _product(x, weight)
    expected = exact.astype(np.float32).astype(np.float64)
    for row in range(len(got)):
        if np.abs(exact[row][np.isfinite(exact[row])]).max(initial=0) < 2.0**-126:
            np.testing.assert_allclose(got[row], exact[row], rtol=0, atol=depth * 2.0**-149)
        else:
            assert_close(got[row], expected[row], depth, note=f"row {row}")


@needs_unit
@pytest.mark.parametrize("name", _NUMBERS)
@pytest.mark.parametrize("where", ["a row", "an element", "a column", "everywhere"])
def test_numbers_that_pieces_hold_and_do_not(name, where):
    x, weight = _normal(37, 129), _normal(33, 129)
    place = {"a row": np.s_[5], "an element": np.s_[32, 128], "a column": np.s_[:, 128], "everywhere": np.s_[:]}[where]
    with np.errstate(all="ignore"):
        for array in (x, weight):
            kept = array.copy()
            array[place] = _NUMBERS[name]
            got, ordinary = _split("linear", (x, weight)), call_by("gemm", "linear", (x, weight), {})
            np.testing.assert_array_equal(np.isnan(got), np.isnan(ordinary))
            np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(ordinary), ordinary, 0))
            if np.isfinite(ordinary).all():
                _as_exact(got, x, weight, 129)
            array[...] = kept


@needs_unit
@pytest.mark.parametrize(
    "power",
    [-149, -140, -127, -120, -110, -108, -107, -105, -104, -103, -102, -101, -91, -90, -70, -64, -63, -52, -51, -50],
)
def test_sizes_from_the_least_to_the_ordinary(power):
    """Each size beside numbers that lift the product to ordinary ones, leave it, make it subnormal, and cancel; some
    rows of it beside large ones."""
    rng = np.random.default_rng(power + 200)
    drawn = [(rng.choice([-1, 1], (40, 131)) * rng.uniform(1, 2, (40, 131))).astype(np.float32) for _ in range(2)]
    for other in (0, 60, 100, *(min(-power - less, 100) for less in (0, 95, 100, 130))):
        for rows in (slice(None), slice(3, 20), slice(0, 0, 1)):
            x, weight = drawn[0].copy(), drawn[1] * np.float32(2.0**other)
            x[rows] *= np.float32(2.0**power)
            _as_exact(_split("linear", (x, weight)), x, weight, 131)
            _as_exact(_split("linear", (weight, x)), weight, x, 131)
    x = drawn[0] * np.float32(2.0**power)
    x[:, 66:], x[:, 65] = -x[:, :65], 0
    weight = np.tile(drawn[1][:, :1], (1, 131))
    assert np.abs(_split("linear", (x, weight))).max() <= 16 * 2.0**-23 * np.sqrt(131) * 4 * 2.0**power


@needs_unit
def test_products_of_small_numbers_are_not_lost():
    """1e-20 * 1e-20 is a float32, 1e-40, which the unit takes for 0: beside zeros, which are no reason to doubt, and
    alone."""
    for rows, columns, depth in ((32, 32, 32), (33, 17, 31), (5, 1, 300)):
        x, weight = np.full((rows, depth), 1e-20, np.float32), np.full((columns, depth), 1e-20, np.float32)
        x[1:3] = 0
        got = _split("linear", (x, weight))
        np.testing.assert_array_equal(got, call_by("gemm", "linear", (x, weight), {}))
        assert (got[0] > 0).all()
        assert (got[1] == 0).all()


@needs_unit
def test_zeros_go_by_the_unit(monkeypatch):
    """Rows and columns of zeros, as behind a relu, are no reason to do the work twice; beside small numbers they are
    none for what is right."""
    from dnnarray._cpu.compiled import linear

    x, weight = np.maximum(_normal(300, 129), 0), _normal(33, 129)
    x[7], weight[32] = 0, 0
    done, usual = [], linear.multiply
    monkeypatch.setattr(linear, "multiply", lambda *arrays: done.append(usual(*arrays)) or done[-1])
    got = _split("linear", (x, weight))
    assert_close(got, _product(x, weight), 129)
    assert (got[7] == 0).all()
    assert (got[:, 32] == 0).all()
    assert done == [True]
    x[8] = 1e-25
    assert_close(_split("linear", (x, weight)), _product(x, weight), 129)
    assert done == [True, False]
    x[7], weight[32] = 1, 1
    assert_close(_split("linear", (x, weight)), _product(x, weight), 129)
    assert done == [True, False, True]


@needs_unit
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-40, _LARGEST])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_numbers_in_images_and_gradients(layout, value):
    x, weight = _laid(_normal(5, 33, 7, 7), layout), _laid(_normal(17, 33, 1, 1), layout)
    for array in (x, weight):
        kept = array.copy()
        array[(array.shape[0] - 1, *(n // 2 for n in array.shape[1:]))] = value
        got, ordinary = (dnn.conv(x, weight, layout=layout, algorithm=a) for a in ("split_gemm", "gemm"))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(ordinary))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(ordinary))
        finite = np.isfinite(ordinary)
        with np.errstate(all="ignore"):
            assert_close(got[finite], _mixed(x, weight, layout)[finite], 33)
        array[...] = kept


@needs_unit
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_types_arrive_widened(dtype):
    x, weight = _normal(37, 129).astype(dtype), _normal(33, 129).astype(dtype)
    y = _split("linear", (x, weight))
    assert y.dtype == dtype
    assert_close(y, _product(x, weight), 129)
    image, window = x[:, :128].reshape(37, 2, 8, 8), weight[:2, :2].reshape(2, 2, 1, 1)
    assert_close(_split("conv", (image, window)), _mixed(image, window, "channels_first"), 2)


# --- memory and refusals ----------------------------------------------------------------------------------------------


@needs_unit
def test_the_workspace_that_infer_tells_is_enough_and_less_is_an_error():
    for op, arrays, expected in (
        ("linear", (_normal(70, 129), _normal(33, 129)), _product(_normal(70, 129), _normal(33, 129))),
        (
            "conv",
            (_normal(5, 33, 7, 7), _normal(17, 33, 1, 1)),
            _mixed(_normal(5, 33, 7, 7), _normal(17, 33, 1, 1), "channels_first"),
        ),
    ):
        _split(op, arrays)  # a call compiles; what it would take is told only then
        told = dnn.infer(op, *arrays, algorithm="split_gemm").workspace
        assert told == {a.name: a.workspace for a in dnn.algorithms(op, *arrays)}["split_gemm"]
        memory = np.full(told + 64, 7, np.uint8)
        for start in (0, 1, 63):
            assert_close(_split(op, arrays, workspace=memory[start : start + told]), expected, 129)
        assert (memory[told + 63 :] == 7).all()
        with pytest.raises(dnn.WorkspaceError, match=rf"^{op}: workspace"):
            _split(op, arrays, workspace=memory[: told - 1])
    arrays = _normal(70, 33), _normal(70, 129), _normal(33, 129)
    _split("linear_backward", arrays)
    told = dnn.infer("linear_backward", *arrays, algorithm="split_gemm").workspace
    got = _split("linear_backward", arrays, workspace=np.empty(told, np.uint8))
    assert_close(got.weight, _gradients(*arrays)[1], 70)


@needs_unit
def test_float64_is_refused():
    x, weight, image, window = (
        a.astype(np.float64) for a in (_normal(5, 7), _normal(3, 7), _normal(2, 3, 4, 4), _normal(5, 3, 1, 1))
    )
    for op, arrays in (("linear", (x, weight)), ("conv", (image, window))):
        with pytest.raises(dnn.UnsupportedError, match="float64: the matrix unit multiplies float32 in pieces"):
            _split(op, arrays)
        assert "float64: the matrix unit" in str(dnn.explain(op, *arrays))
    assert dnn.warmup("linear", dtypes=["float64"]) == 0


@needs_unit
@pytest.mark.parametrize("rows, columns, depth", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_there_is_nothing_to_multiply(rows, columns, depth):
    x, weight = _normal(rows, depth), _normal(columns, depth)
    with pytest.raises(dnn.UnsupportedError, match="there is nothing to multiply"):
        _split("linear", (x, weight))
    np.testing.assert_array_equal(dnn.linear(x, weight), np.zeros((rows, columns)))
    image, window = _normal(rows, depth, 5), _normal(columns, depth, 1)
    np.testing.assert_array_equal(_split("conv", (image, window)), np.zeros((rows, columns, 5)))
    with pytest.raises(dnn.UnsupportedError, match="there is nothing to multiply"):
        _split("linear_backward", (_normal(rows, columns), x, weight))


# --- machines without the unit ----------------------------------------------------------------------------------------

_NAMED = """
import sys, numpy as np, dnnarray as dnn
from dnnarray._cpu import matrix_unit
from dnnarray._cpu.compiled import compiler
print(matrix_unit.missing().split()[0], "NUMBA_CPU_NAME" in matrix_unit.missing())
x = np.random.default_rng(0).standard_normal((400, 500), dtype=np.float32)
y = dnn.linear(x, x)
compiler.settle()
np.testing.assert_allclose(dnn.linear(x, x), x.astype(float) @ x.T.astype(float), atol=1e-3)
print(dnn.warmup("linear", "linear_backward"), "NUMBA_CPU_NAME" in str(dnn.explain("linear", x, x)))
image, window = x[:25].reshape(5, 25, 10, 10), x[0].reshape(20, 25, 1, 1)
print("NUMBA_CPU_NAME" in str(dnn.explain("conv", image, window)), [a.name for a in dnn.algorithms("linear", x, x)])
print("dnnarray._cpu.compiled.split_tile" in sys.modules)
"""


@needs_numba
@pytest.mark.parametrize(
    "variables",
    [
        {"NUMBA_CPU_NAME": "x86-64"},
        {"NUMBA_CPU_FEATURES": "+avx2,+fma"},
        {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
    ],
    ids=str,
)
def test_the_processor_that_numba_is_told_to_compile_for_has_no_unit(variables, tmp_path):
    found = _python("-c", _NAMED, DNNARRAY_CACHE_DIR=str(tmp_path), **variables)
    assert found == ["the", "True", "0", "True", "True", "['gemm']", "False"]


class _System:
    """Stands where `ctypes` is: a system call that fails."""

    def __init__(self, number):
        self.number = number

    def CDLL(self, name, use_errno):  # noqa: N802 - the name of what it stands for
        assert use_errno
        return self

    def syscall(self, *arguments):
        assert arguments == (158, 0x1023, 18)
        return -1

    def get_errno(self):
        return self.number


@pytest.fixture
def asked_anew():
    """What was found of this machine is looked for once more, and again behind the test."""
    matrix_unit._found.cache_clear()
    yield
    matrix_unit._found.cache_clear()


@pytest.fixture
def linux(monkeypatch, asked_anew):
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(matrix_unit.sys, "platform", "linux")
    monkeypatch.setattr(matrix_unit.platform, "machine", lambda: "x86_64")


def test_a_system_that_does_not_give_its_permission(monkeypatch, linux):
    monkeypatch.setattr(matrix_unit, "_flags", lambda: {"amx_tile", "amx_bf16", "fma"})
    for number in (errno.EPERM, errno.EINVAL, errno.ENOSPC):
        matrix_unit._found.cache_clear()
        monkeypatch.setattr(matrix_unit, "ctypes", _System(number))
        assert (
            matrix_unit.missing() == f"the system does not let this process use the matrix unit ({os.strerror(number)})"
        )
        assert matrix_unit.refuses("float32") == matrix_unit.missing()


def test_processors_without_the_unit(monkeypatch, linux, tmp_path):
    reason, usual = "this processor has no matrix unit (amx-bf16)", Path.open
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(
        matrix_unit.Path, "open", lambda path, **named: usual(told if str(path) == "/proc/cpuinfo" else path, **named)
    )
    monkeypatch.setattr(matrix_unit, "ctypes", None)  # which is not asked
    for text in (
        None,
        "",
        "flags\t: fpu avx2 fma\n",
        "flags : avx512f amx_tile amx_int8\n",
        "processor : 0\nmodel : amx_tile amx_bf16\n",
    ):
        matrix_unit._found.cache_clear()
        if text is not None:
            told.write_text(text)
        assert matrix_unit.missing() == reason
    told.write_text("processor\t: 0\nflags\t\t: fpu amx_tile amx_bf16\n\nflags : fpu\n")
    monkeypatch.setattr(matrix_unit, "ctypes", _System(errno.EPERM))
    matrix_unit._found.cache_clear()
    assert matrix_unit.missing().startswith("the system does not let")


def test_other_systems(monkeypatch, linux):
    reason = "the matrix unit (amx-bf16) is used on x86-64 under Linux alone"
    for place, name, value in (
        (matrix_unit.sys, "platform", "darwin"),
        (matrix_unit.platform, "machine", lambda: "aarch64"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, name, value)
            matrix_unit._found.cache_clear()
            assert matrix_unit.missing() == reason


@needs_numba
def test_nothing_is_compiled_where_the_unit_is_missing(monkeypatch):
    from dnnarray._cpu.compiled import kernel

    reason, built, usual = "no unit here", [], kernel.Kernel._have

    def have(kernel, *asked, **named):
        built.append(kernel.run.py_func.__name__)
        return usual(kernel, *asked, **named)

    monkeypatch.setattr(matrix_unit, "missing", lambda: reason)
    monkeypatch.setattr(compiler, "_units", {})
    monkeypatch.setattr(kernel.Kernel, "_have", have)
    dnn._call.dispatch.forget()
    x, weight = _normal(400, 500), _normal(300, 500)
    assert dnn.warmup("linear", "linear_backward", dtypes=["float32", "float64"]) == 0
    assert built == []
    dnn.warmup("conv")
    assert built
    assert not {"pack_columns", "multiply_images"} & {name for name in built if name != "pack_columns"}
    for op, arrays in (("linear", (x, weight)), ("conv", (_normal(5, 33, 7, 7), _normal(17, 33, 1, 1)))):
        assert reason in str(dnn.explain(op, *arrays))
        assert "split_gemm" not in [a.name for a in dnn.algorithms(op, *arrays)]
        with pytest.raises(dnn.UnsupportedError, match=reason):
            _split(op, arrays)
    assert_close(dnn.linear(x, weight), _product(x, weight), 500)
    compiler.settle()
    assert_close(dnn.linear(x, weight), _product(x, weight), 500)
    assert "multiply_images" not in built
    dnn._call.dispatch.forget()
