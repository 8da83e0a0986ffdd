"""The compiled algorithms beside their oracles: threads, forks, caches, the compiler in the background, a missing or
broken Numba."""

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import blas, compiled, engine, threads
from dnnarray._cpu.compiled import compiler
from tests.support import DTYPES, call_by

needs_numba = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
_ROOT = Path(dnn.__file__).parents[1]
_RNG = np.random.default_rng(0)


def _python(code, **environment):
    """What a fresh interpreter prints."""
    variables = os.environ | {"PYTHONPATH": str(_ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# --- the pool for NumPy -----------------------------------------------------------------------------------------------


def test_split_covers_the_range_in_order():
    for total, parts in ((10, 3), (2, 8), (1, 1), (7, 7), (0, 4)):
        found = threads.split(total, parts)
        assert [i for a, b in found for i in range(a, b)] == list(range(total))
        assert len(found) <= max(min(parts, total), 1)


def test_the_pool_does_every_part_and_hands_errors_over():
    done = np.zeros(1000)
    with dnn.options(threads=4):
        threads.run(lambda a, b, out: out.__setitem__(slice(a, b), np.arange(a, b)), 1000, done, work=10**9)
        np.testing.assert_array_equal(done, np.arange(1000))
        with pytest.raises(ZeroDivisionError):
            threads.run(lambda a, b: 1 // (a - a), 1000, work=10**9)
        seen = []
        threads.run(lambda a, b: threads.run(lambda c, d: seen.append((c, d)), 10, work=10**9), 4, work=10**9)
    assert len(seen) == 4  # inside of a part there is no second team: each inner range is done as a whole
    assert set(seen) == {(0, 10)}


def _normal(*shape):
    return np.random.default_rng(5).standard_normal(shape, dtype=np.float32)


_WIDE, _HEADS, _IMAGES, _MANY = (
    _normal(427, 1031),
    _normal(2, 3, 200, 16),
    _normal(3, 7, 60, 61),
    _normal(4, 24, 60, 62),
)
_NUMPY_CALLS = {
    "gelu": ("elementwise", (_WIDE,), {}),
    "gelu_backward": ("elementwise", (_WIDE, _WIDE[::-1].copy()), {}),
    "silu": ("elementwise", (_WIDE,), {}),
    "softmax": ("blocked", (_WIDE,), {}),
    "softmax_backward": ("blocked", (_WIDE, _WIDE[::-1].copy()), {}),
    "layer_norm": ("two_pass", (_WIDE, _WIDE[0], _WIDE[1]), {}),
    "attention": ("blocked", (_HEADS, _HEADS, _HEADS), {"causal": True}),
    "attention_backward": ("blocked", (_HEADS, _HEADS, _HEADS, _HEADS), {"causal": True}),
    "interpolate": ("separable", (_IMAGES,), {"scale": 2.0, "mode": "linear"}),
    "swiglu": ("elementwise", (_WIDE, _WIDE[::-1].copy()), {}),
    "layer_norm_backward": ("two_pass", (_WIDE, _WIDE[::-1].copy(), _WIDE[0], _WIDE[1]), {}),
    "rms_norm": ("two_pass", (_WIDE, _WIDE[0]), {}),
    "batch_norm_train": ("two_pass", (_MANY,), {}),
    "batch_norm_train_backward": ("two_pass", (_MANY[::-1].copy(), _MANY), {}),
    "max_pool": ("axis_by_axis", (_MANY,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "max_pool_backward": ("scatter", (_MANY[:, :, ::2, ::2].copy(), _MANY), {"kernel_size": 2}),
    "avg_pool": ("axis_by_axis", (_MANY,), {"kernel_size": 3, "stride": 2}),
    "grid_sample": ("pixels", (_MANY, np.tanh(_normal(4, 30, 31, 2))), {}),
    "conv": ("depthwise", (_MANY, _normal(24, 1, 3, 3)), {"padding": 1, "groups": 24}),
}


@pytest.mark.parametrize("op", _NUMPY_CALLS)
def test_the_number_of_threads_does_not_change_a_bit_of_what_numpy_gives(op):
    algorithm, arrays, options = _NUMPY_CALLS[op]
    found = []
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.append(_bits(call_by(algorithm, op, arrays, options)))
    assert found[0] == found[1] == found[2]


def test_large_calls_hold_the_blas_at_one_thread(monkeypatch):
    if blas.threads() is None:
        pytest.skip("the BLAS behind NumPy does not say how many threads it takes")
    held, product = [], np.matmul
    monkeypatch.setattr(
        np, "matmul", lambda *a, **options: held.append(blas._functions()[0]()) or product(*a, **options)
    )
    before, rows = blas.threads(), np.ones((256, 256), np.float32)
    call_by("gemm", "linear", (rows, rows), {})
    assert set(held) == {1}
    assert blas.threads() == blas._functions()[0]() == before


def test_the_blas_is_held_at_one_thread_inside_regions_only():
    before = blas.threads()
    with blas.single_threaded, blas.single_threaded:
        assert blas.threads() == before
    assert blas.threads() == before


def test_the_number_of_threads_follows_the_option_and_is_checked():
    with dnn.options(threads=3):
        assert threads.count() == 3
    assert 1 <= threads.count() <= threads.cores()
    for wrong in (0, -1, True, 1.5, "2", 5000):
        with pytest.raises(dnn.OptionError, match="threads"):
            dnn.set_options(threads=wrong)


@pytest.mark.skipif(not find_spec("threadpoolctl") or blas.threads() is None, reason="threadpoolctl is not installed")
def test_the_number_of_threads_follows_threadpoolctl():
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1):
        assert threads.count() == 1


# --- a missing or broken Numba ----------------------------------------------------------------------------------------


def test_without_numba_everything_works_and_explain_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(compiler, "_absent", lambda: compiler.NOT_INSTALLED)
    x = _RNG.standard_normal((300, 400), dtype=np.float32)
    text = str(dnn.explain("softmax", x))
    assert "pip install 'dnnarray[cpu]'" in text
    assert [a.name for a in dnn.algorithms("softmax", x)] == ["blocked"]
    with pytest.raises(dnn.UnsupportedError, match="Numba is not installed"):
        dnn._call.dispatch.dispatch(dnn.softmax.operation, (x,), (-1,), (), None, None, "rows")
    (item,) = [i for i in dnn.check().items if i.name == "Numba"]
    assert item.ok
    assert "dnnarray[cpu]" in item.mend
    assert dnn.warmup("softmax") == 0


def test_numba_switched_off_is_not_called_missing(monkeypatch):
    monkeypatch.setattr(compiler, "_absent", lambda: compiler.SWITCHED_OFF)
    assert "DNNARRAY_NUMBA=0" in str(dnn.explain("softmax", dnn.Spec((300, 400), "float32")))
    (item,) = [i for i in dnn.check().items if i.name == "Numba"]
    assert item.ok
    assert item.found.startswith("DNNARRAY_NUMBA=0 switches Numba off")


def test_a_numba_that_cannot_be_imported_is_reported_and_not_needed(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('made for another Python')")
    code = """
import numpy as np, dnnarray as dnn
from dnnarray._cpu.compiled import compiler
x = np.random.default_rng(0).standard_normal((300, 400), dtype=np.float32)
for _ in range(3):
    dnn.softmax(x); compiler.settle()
(item,) = [i for i in dnn.check().items if i.name == "Numba"]
explained = str(dnn.explain("softmax", x))
print(item.ok, "made for another Python" in item.found, dnn.warmup("softmax"), "cannot be imported" in explained)
"""
    assert _python(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{_ROOT}", DNNARRAY_NUMBA="1") == [
        "False",
        "True",
        "0",
        "True",
    ]


# --- the compiler in the background -----------------------------------------------------------------------------------

# The costs of two cores: with many, NumPy is predicted to be the fastest for so small an array.
_BACKGROUND = """
import sys, numpy as np, dnnarray as dnn
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler
threads.cores = lambda: 2
x = np.random.default_rng(0).standard_normal((300, 400), dtype=np.float32)
def algorithm():
    dnn.telemetry.reset()
    with dnn.options(telemetry=True):
        dnn.softsign(x)
    return list(dnn.telemetry.snapshot()["softsign"]["algorithms"])[0]
dnn.softsign(x[:2, :2])
print("numba" in sys.modules, compiler._background._members)
with compiler._loading:  # what is compiled cannot be loaded for as long as this takes
    before = dnn.softsign(x)
    print(algorithm())
compiler.settle()
print(algorithm())
np.testing.assert_allclose(dnn.softsign(x), before, rtol=1e-6)
"""


@needs_numba
def test_numpy_answers_while_the_compiler_works_and_the_remembered_call_changes_over(tmp_path):
    found = _python(_BACKGROUND, DNNARRAY_CACHE_DIR=str(tmp_path / "cache"))
    assert found == ["False", "[]", "elementwise", "single_pass"]
    assert list((tmp_path / "cache" / "kernels").glob("activation.softsign-*.kernel"))


@needs_numba
def test_a_cache_folder_that_cannot_be_written_is_replaced(tmp_path):
    blocked, temporary = tmp_path / "file", tmp_path / "tmp"
    blocked.write_text("not a folder")
    temporary.mkdir()
    found = _python(_BACKGROUND, DNNARRAY_CACHE_DIR=str(blocked), TMPDIR=str(temporary))
    assert found[3] == "single_pass"
    assert list(temporary.glob("dnnarray-*/kernels/activation.softsign-*.kernel"))


@needs_numba
def test_warmup_compiles_counts_and_draws(capsys):
    assert dnn.warmup("relu", "one_hot", dtypes=["float16", "float32"], progress=True) == 1
    assert "1/1" in capsys.readouterr().err
    assert (
        dnn.warmup("relu", dtypes=["bfloat16"])
        == dnn.warmup("relu", dtypes="bfloat16")
        == dnn.warmup("relu", dtypes=np.float16)
        == 1
    )
    with pytest.raises(dnn.OptionError):
        dnn.warmup("no_such_operation")
    with pytest.raises(dnn.DTypeError, match="int8"):
        dnn.warmup("relu", dtypes=["int8"])
    with pytest.raises(dnn.DTypeError, match="warmup: dtypes is 'floaty'"):
        dnn.warmup("relu", dtypes=["floaty"])


# --- threads ----------------------------------------------------------------------------------------------------------

_CALLS = {
    "gelu": lambda x, w: dnn.gelu(x),
    "layer_norm": lambda x, w: dnn.layer_norm(x, w, w),
    "layer_norm_backward": lambda x, w: dnn.layer_norm_backward(x * 2, x, w, w),
    "softmax": lambda x, w: dnn.softmax(x),
    "batch_norm_train": lambda x, w: dnn.batch_norm_train(x.reshape(7, 61, 1031), w[:61], w[:61]),
    "max_pool": lambda x, w: dnn.max_pool(x.reshape(7, 61, 1031), kernel_size=3, stride=2, padding=1),
}


def _bits(result):
    return [np.asarray(r).tobytes() for r in (result if isinstance(result, tuple) else (result,)) if r is not None]


@needs_numba
@pytest.mark.parametrize("name", _CALLS)
def test_the_number_of_threads_does_not_change_a_bit(name):
    dnn.warmup(name, "max_pool")
    x, w = _RNG.standard_normal((427, 1031), dtype=np.float32), _RNG.standard_normal(1031, dtype=np.float32)
    found = []
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.append(_bits(_CALLS[name](x, w)))
    assert found[0] == found[1] == found[2]


_PLACES = np.random.default_rng(6).uniform(-1.2, 1.2, (5, 33, 32, 2)).astype(np.float32)
_PICTURES, _QUERY, _KEYS = _normal(5, 20, 40, 41), _normal(2, 4, 1, 64), _normal(2, 4, 700, 64)
_CHANNELS, _NUMBERS = np.abs(_normal(20)) + 1, np.random.default_rng(7).integers(0, 427, (60, 11))
_STRAIGHT = {
    "relu": (lambda x: dnn.relu(x), _WIDE),
    "gelu_backward": (lambda x: dnn.gelu_backward(x, x), _WIDE),
    "softmax": (lambda x: dnn.softmax(x), _WIDE),
    "softmax_backward": (lambda x: dnn.softmax_backward(x, x), _WIDE),
    "layer_norm": (lambda x: dnn.layer_norm(x, x[0], x[1]), _WIDE),
    "layer_norm_backward": (lambda x: dnn.layer_norm_backward(x, x, x[0], x[1]), _WIDE),
    "rms_norm_backward": (lambda x: dnn.rms_norm_backward(x, x, x[0]), _WIDE),
    "group_norm": (lambda x: dnn.group_norm(x, num_groups=5), _PICTURES),
    "batch_norm": (lambda x: dnn.batch_norm(x, _CHANNELS, _CHANNELS), _PICTURES),
    "batch_norm_train_backward": (
        lambda x: dnn.batch_norm_train_backward(x, x, mean=_CHANNELS, rstd=_CHANNELS),
        _PICTURES,
    ),
    "max_pool": (lambda x: dnn.max_pool(x, kernel_size=3, stride=2), _PICTURES),
    "avg_pool": (lambda x: dnn.avg_pool(x, kernel_size=2), _PICTURES),
    "interpolate": (lambda x: dnn.interpolate(x, scale=2, mode="linear"), _PICTURES),
    "grid_sample": (lambda x: dnn.grid_sample(x, _PLACES), _PICTURES),
    "embedding": (lambda x: dnn.embedding(_NUMBERS, x), _WIDE),
    "attention": (lambda x: dnn.attention(_QUERY, x, x), _KEYS),
}


def _unaligned(array):
    copy = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@needs_numba
@pytest.mark.parametrize("name", _STRAIGHT)
def test_warm_calls_go_straight_to_the_kernels_and_give_the_same_bits(name, monkeypatch):
    """Every other one goes from the end of each part to its beginning. Arrays whose elements lie across words take the
    way that looks at each.

    The algorithm is the first compiled one of the table, as if it had been measured to be the fastest: which one is
    predicted to be depends on the processor."""
    dnn.warmup(name)
    dnn._call.dispatch.forget()
    chosen = next(
        entry for entry in engine.methods(getattr(dnn, name).operation) if isinstance(entry.run, compiled.Compiled)
    )
    monkeypatch.setattr(engine, "_measured", lambda *_: {chosen.name: 1e-3})
    looked, usual = [], compiled.Compiled.__call__
    monkeypatch.setattr(
        compiled.Compiled, "__call__", lambda run, *given, **named: looked.append(run) or usual(run, *given, **named)
    )
    call, x = _STRAIGHT[name]
    with dnn.options(threads=2):
        first = _bits(call(x))
        assert looked == [chosen.run]
        assert [_bits(call(x)) for _ in range(4)] == [first] * 4
        assert looked == [chosen.run]
        assert _bits(call(_unaligned(x))) == first
        assert looked == [chosen.run] * 2
    with dnn.options(threads=1):
        assert [_bits(call(x)) for _ in range(3)] == [first] * 3


@needs_numba
def test_grids_are_sampled_image_by_image_or_all_at_once():
    """Images that the threads do not share evenly go by rows; the bits are those of each image alone."""
    dnn.warmup("grid_sample")
    with dnn.options(threads=1):
        alone = np.concatenate([dnn.grid_sample(_PICTURES[i : i + 1], _PLACES[i : i + 1]) for i in range(5)])
    for count in (1, 2, 3, 8):
        for images in (1, 3, 4, 5):
            with dnn.options(threads=count):
                np.testing.assert_array_equal(dnn.grid_sample(_PICTURES[:images], _PLACES[:images]), alone[:images])


@needs_numba
def test_callers_with_threads_of_their_own_get_right_results():
    dnn.warmup("softmax")
    data = [_RNG.standard_normal((300, 700), dtype=np.float32) for _ in range(4)]
    expected = [_bits(dnn.softmax(x)) for x in data]
    wrong = []

    def call(x, right):
        wrong.extend(1 for _ in range(30) if _bits(dnn.softmax(x)) != right)

    callers = [threading.Thread(target=call, args=pair) for pair in zip(data, expected, strict=True)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@needs_numba
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes_too():
    code = """
import os, numpy as np, dnnarray as dnn
dnn.warmup("softmax")
x = np.random.default_rng(0).standard_normal((3000, 400), dtype=np.float32)
dnn.set_options(threads=2)
right = dnn.softmax(x)
child = os.fork()
if child == 0:
    os._exit(0 if (dnn.softmax(x) == right).all() and dnn.gelu(x).size else 1)
print(os.waitpid(child, 0)[1])
"""
    assert _python(code) == ["0"]


# --- values that the generic cases do not draw ------------------------------------------------------------------------


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_of_rows_with_infinity_and_nan(dtype):
    dnn.warmup("softmax", dtypes=[dtype])
    x = np.zeros((5, 70000), dtype)
    x[0, 3], x[1, 4], x[2, :], x[3, 5], x[4, 6] = np.inf, -np.inf, -np.inf, np.nan, -np.nan
    y = dnn.softmax(x)
    assert [bool(np.isnan(row).any()) for row in y] == [True, False, True, True, True]
    assert y[1, 4] == 0
    np.testing.assert_allclose(y[1].sum(), 1, rtol=1e-5)


@needs_numba
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layer_norm_far_from_zero(dtype):
    dnn.warmup("layer_norm", dtypes=[dtype])
    x = (_RNG.standard_normal((64, 4099)) + 1e4).astype(dtype)
    wide = x.astype(np.longdouble)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(dnn.layer_norm(x), expected.astype(np.float64), rtol=0, atol=200 * np.finfo(dtype).eps)


@needs_numba
def test_tanh_in_float32_is_rounded_once():
    dnn.warmup("tanh", dtypes=["float32"], progress=False)
    x = np.linspace(-10, 10, 300_001, dtype=np.float32)
    assert np.abs(dnn.tanh(x) - np.tanh(x.astype(np.float64))).max() <= 3.0e-8


# --- dropout: the same bits -------------------------------------------------------------------------------------------

_DROPPED = {
    "dropout": lambda x: (x,),
    "dropout_backward": lambda x: (x, x),
    "bias_dropout_add": lambda x: (x, x[0] + 1, x[::-1].copy()),
    "bias_dropout_add_backward": lambda x: (x, x, x[0], x),
}
_OFFSETS = [
    0,
    1,
    29,
    2**34 - 130,
    2**34 + 3,
    2**64 - 1,
]  # inside of a group, before and behind a counter of more than 32 bits, the largest
_LENGTHS = [
    1,
    3,
    4,
    5,
    15,
    17,
    31,
    32,
    33,
    127,
    255,
    256,
    257,
    1031,
]  # around a block of four, the vector, a group, a run


@needs_numba
@pytest.mark.parametrize("offset", _OFFSETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_keeps_what_numpy_keeps_whatever_the_place_in_the_stream(dtype, offset):
    for op, given in _DROPPED.items():
        for length in (*_LENGTHS, *_RNG.integers(1, 2000, 3)):
            arrays = given(_RNG.standard_normal((3, length)).astype(dtype))
            options = {"p": float(_RNG.uniform()), "seed": int(_RNG.integers(2**64, dtype=np.uint64)), "offset": offset}
            assert _bits(call_by("vector_philox", op, arrays, options)) == _bits(call_by("philox", op, arrays, options))


@needs_numba
@pytest.mark.parametrize("p", [0.0, 2**-33, 0.3, 1 - 2**-33, 1.0])
@pytest.mark.parametrize("op", _DROPPED)
def test_dropout_keeps_what_numpy_keeps_whatever_the_threads(op, p):
    arrays, options = _DROPPED[op](_WIDE), {"p": p, "seed": 2**64 - 5, "offset": 2**34 + 3}
    expected = _bits(call_by("philox", op, arrays, options))
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            assert [_bits(call_by("vector_philox", op, arrays, options)) for _ in range(2)] == [expected] * 2


@needs_numba
def test_dropout_writes_nothing_beside_its_result():
    memory, options = np.full(400, 7, np.float32), {"p": 0.5, "seed": 1, "offset": 2**34 + 3}
    for first, last in ((0, 0), (5, 6), (5, 36), (5, 37), (6, 262), (6, 263), (3, 390)):
        memory[...] = 7
        x = np.ones(last - first, np.float32)
        out = memory[first:last]
        call_by("vector_philox", "dropout", (x,), options, out)
        np.testing.assert_array_equal(out, call_by("philox", "dropout", (x,), options))
        assert (memory[:first] == 7).all()
        assert (memory[last:] == 7).all()
