"""Every case by every algorithm from and to every address that its dtype allows, against the float64 oracle, on a card.

A load or a store that an address does not allow ends the context, and with it all that comes behind: the call that
ended it is named, and the rest is skipped."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from tests.gpu.test_engine import _DIFFERENTIABLE, _HERE
from tests.registry import ORACLES
from tests.support import as_float64, assert_close, call, call_by, gradient_call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_VECTOR = 16  # bytes of the widest loads of a thread
_ODD_ARRAY = "an array begins at an address that is no multiple of 16 bytes"
_ended: list[str] = []  # the call that ended this process's context


@pytest.fixture(autouse=True)
def _context():
    if _ended:
        pytest.skip(f"the context ended in {_ended[0]}")


def _run(note, run):
    """The results on the host, once all that was queued is done; None where `run` gives none."""
    from cupy_backends.cuda.api.driver import CUDADriverError
    from cupy_backends.cuda.api.runtime import CUDARuntimeError

    try:
        results = run()
        found = None if results is None else [cupy.asnumpy(a) for a in leaves(results)]
        cupy.cuda.Device().synchronize()
        return found
    except (CUDADriverError, CUDARuntimeError) as error:
        try:
            cupy.cuda.Device().synchronize()
        except CUDARuntimeError:
            _ended.append(note)
        pytest.fail(f"{note}: {error}")


def _at(offset, shape, dtype):
    """Memory for an array that begins so many bytes behind where an allocation does, or at the next address that its
    dtype allows."""
    first = -(-offset // dtype.itemsize) * dtype.itemsize
    size = int(np.prod(shape)) * dtype.itemsize
    memory = cupy.empty(first + size, np.uint8)
    assert memory.data.ptr % 256 == 0
    return cupy.ndarray(shape, dtype, memory.data + first)


def _there(tree, offset):
    def placed(array):
        found = _at(offset, array.shape, array.dtype)
        found[...] = cupy.asarray(array)
        return found

    return tree_map(placed, tree)


def _offsets(arrays):
    """One element up to one behind a whole vector."""
    smallest = min(a.dtype.itemsize for a in leaves(arrays))
    return range(smallest, _VECTOR + smallest + 1, smallest)


def _check(op, arrays, options, expected, reduction, condition):
    """Inputs, results and both at each offset; scratch memory where threads can load it at once, and nowhere else."""
    there = tuple(_there(a, 0) for a in arrays)
    try:
        algorithms = dnn.algorithms(op, *there, **options)
    except dnn.UnsupportedError as error:
        pytest.skip(str(error))
    specs = [s for s in dnn.infer(op, *there, **options).outputs if s is not None]
    for offset in _offsets(arrays):
        moved = tuple(_there(a, offset) for a in arrays)
        for algorithm in algorithms:
            for given, out_at in ((moved, None), (there, offset), (moved, offset)):
                note = (
                    f"{op} by {algorithm.name}, {leaves(arrays)[0].dtype}, inputs at "
                    f"{offset if given is moved else 0}, results at {out_at}"
                )
                out = None if out_at is None else [_at(out_at, s.shape, s.dtype) for s in specs]
                out = out[0] if out and len(out) == 1 else out and tuple(out)
                found = _run(
                    note,
                    lambda given=given, out=out, name=algorithm.name, at=offset: _by_name(
                        name, op, given, options, out, at
                    ),
                )
                if found is not None:
                    _compare(note, found, expected, reduction, condition, algorithm.rounds)
            if algorithm.workspace:
                _check_scratch(op, algorithm, moved, options, expected, (reduction, condition), offset)


def _by_name(name, op, arrays, options, out, offset):
    """The results of a named algorithm; None where it says that it needs aligned arrays, which the offset is not."""
    try:
        return call_by(name, op, arrays, options, out)
    except dnn.UnsupportedError as error:
        if offset % _VECTOR and _ODD_ARRAY in str(error):
            return None
        raise


def _check_scratch(op, algorithm, arrays, options, expected, allowed, offset):
    workspace = _at(offset, (algorithm.workspace,), np.dtype(np.uint8))
    note = f"{op} by {algorithm.name}, inputs and scratch memory at {offset}"
    workspace[...] = 0xFF
    if offset % _VECTOR:
        with pytest.raises(
            (dnn.OptionError, dnn.UnsupportedError), match=f"workspace is at an odd address|{_ODD_ARRAY}"
        ):
            call_by(algorithm.name, op, arrays, options, None, workspace)
        return
    found = _run(note, lambda: call_by(algorithm.name, op, arrays, options, None, workspace))
    _compare(note, found, expected, *allowed, algorithm.rounds)


def _compare(note, found, expected, reduction, condition, rounds):
    for actual, right in zip(found, expected, strict=True):
        assert_close(actual, np.asarray(right), reduction, condition, note, rounds)


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in _HERE for d in c.dtypes], ids=str)
def test_every_case_from_every_address(case, dtype):
    arrays = case.draw(dtype)
    expected = leaves(ORACLES[find(case.op).base](*as_float64(arrays), **case.options))
    _check(case.op, arrays, case.options, expected, case.reduction, case.condition)


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in _DIFFERENTIABLE for d in c.dtypes], ids=str)
def test_every_gradient_from_every_address(case, dtype):
    op, given, options = gradient_call(case, case.draw(dtype))
    expected = leaves(call(op, as_float64(given), options))
    longest = max(case.reduction, *(np.size(e) for e in expected))
    _check(op, given, options, expected, longest, case.condition)


_LAST = {"layout": "channels_last"}
_PARTICULAR = (
    ("interpolate", ((1, 6, 4, 2),), {"mode": "nearest", "scale": (1.0, 2.0), **_LAST}, 1),
    ("interpolate", ((1, 8, 1, 8),), {"mode": "nearest", "scale": (2, 2), **_LAST}, 1),
    ("linear", ((64, 48), (40, 48)), {}, 48),
    ("linear", ((64, 48), (40, 48), (40,), (64, 40)), {"activation": "gelu"}, 50),
    ("linear_backward", ((64, 40), (64, 48), (40, 48), (40,)), {"activation": "gelu"}, 64),
    (
        "conv_backward_weight",
        ((4, 28, 28, 64), (4, 28, 28, 64)),
        {"weight_shape": (64, 3, 3, 64), "padding": 1, **_LAST},
        3136,
    ),
)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("op", "shapes", "options", "reduction"), _PARTICULAR)
def test_particular_calls_from_every_address(op, shapes, options, reduction, dtype):
    """Pairs of channels, products of even extents with passes behind them, parts of a weight gradient."""
    rng = np.random.default_rng(1)
    arrays = tuple(rng.standard_normal(shape).astype(dnn.Spec((), dtype).dtype) for shape in shapes)
    expected = leaves(call(op, as_float64(arrays), options))
    _check(op, arrays, options, expected, reduction, 1.0)


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in _DIFFERENTIABLE for d in c.dtypes], ids=str)
def test_deterministic_gradients_have_the_same_bits_from_every_address(case, dtype):
    op, given, options = gradient_call(case, case.draw(dtype))
    with dnn.options(deterministic=True):
        try:
            first = _run(op, lambda: call(op, tuple(_there(a, 0) for a in given), options))
        except dnn.UnsupportedError as error:
            pytest.skip(str(error))
        for offset in _offsets(given):
            moved = tuple(_there(a, offset) for a in given)
            for a, b in zip(
                _run(f"{op} at {offset}", lambda moved=moved: call(op, moved, options)), first, strict=True
            ):
                assert a.tobytes() == b.tobytes(), f"{op} at {offset}"
