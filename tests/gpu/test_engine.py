"""The CUDA engine on a card: every case of every operation it has, against the float64 oracle; memory, streams,
capture."""

import zlib
from functools import partial

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from tests.registry import CASES, ORACLES
from tests.support import BFLOAT16, FLOAT32, FLOAT64, as_float64, assert_close, call, call_by

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


def _has(op):
    from dnnarray._cuda import engine

    try:
        return bool(engine.methods(find(op)))
    except dnn.UnsupportedError:
        return False


def _there(tree):
    return tree_map(cupy.asarray, tree)


def _back(tree):
    return [cupy.asnumpy(a) for a in leaves(tree)]


_HERE = [c for c in CASES if _has(c.op)]
_DIFFERENTIABLE = [c for c in _HERE if c.gradient and _has(f"{find(c.op).base}_backward")]
_FIRST = list({c.op: c for c in reversed(_HERE)}.values())


def _rounds(op, arrays, options):
    """The algorithms that may do it, the chosen one first: whether each rounds in between."""
    return {a.name: a.rounds for a in dnn.algorithms(op, *arrays, **options)}


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in _HERE for d in c.dtypes], ids=str)
def test_every_algorithm_agrees_with_the_oracle(case, dtype):
    arrays = case.draw(dtype)
    there = tuple(map(_there, arrays))
    try:
        rounds = _rounds(case.op, there, case.options)
    except dnn.UnsupportedError as error:
        pytest.skip(str(error))
    expected = [np.asarray(r) for r in leaves(ORACLES[find(case.op).base](*as_float64(arrays), **case.options))]
    for name in rounds:
        for a, e in zip(_back(call_by(name, case.op, there, case.options)), expected, strict=True):
            assert_close(a, e, case.reduction, case.condition, f"{case} by {name}", rounds[name])


def _gradients(case, arrays, grad):
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    absent = (None,) * (len(output) - 1) if isinstance(output, tuple) else None
    return pullback((grad, *absent) if absent is not None else grad)


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in _DIFFERENTIABLE for d in c.dtypes], ids=str)
def test_gradients_agree_with_the_cpu_engine_in_float64(case, dtype):
    """By `vjp`, which saves statistics for the gradient, and by every algorithm of the gradient, which then works them
    out."""
    arrays = case.draw(dtype)
    results = call(case.op, arrays, case.options)
    head = leaves(results)[0]
    grad = np.array(np.random.default_rng(3).standard_normal(head.shape), head.dtype)
    there, grad_there = tuple(map(_there, arrays)), _there(grad)
    expected = leaves(_gradients(case, as_float64(arrays), grad.astype(np.float64)))
    backward, ways, rounds = f"{find(case.op).base}_backward", {}, {}
    if case.op == find(case.op).base and not isinstance(results, tuple):
        given = (grad_there, *there)
        rounds = _rounds(backward, given, case.options)
        ways = {n: partial(call_by, n, backward, given, case.options) for n in rounds}
    # The pullback runs what is chosen for forward and gradient.
    ways["vjp"] = lambda: _gradients(case, there, grad_there)
    rounds["vjp"] = any(rounds.values()) or any(_rounds(case.op, there, case.options).values())
    for way, run in ways.items():
        for a, e in zip(_back(run()), expected, strict=True):
            assert_close(a, e, max(case.reduction, e.size), case.condition, f"{case} by {way}", rounds[way])


def _lying(tree, rng):
    """The arrays with their axes in any order in memory."""

    def turned(array):
        order = rng.permutation(array.ndim)
        return cupy.asarray(np.array(array.transpose(order), order="C")).transpose(np.argsort(order).tolist())

    return tree_map(turned, tree)


@pytest.mark.parametrize("case", [c for c in _HERE if FLOAT32 in c.dtypes], ids=str)
def test_every_algorithm_in_other_memory_orders(case):
    arrays, rng = case.draw(FLOAT32), np.random.default_rng(zlib.crc32(f"{case} turned".encode()))
    calls, kept = [(case.op, arrays)], call(case.op, arrays, case.options)
    head = leaves(kept)[0]
    if case in _DIFFERENTIABLE and case.op == find(case.op).base and not isinstance(kept, tuple):
        calls.append((f"{case.op}_backward", (np.array(rng.standard_normal(head.shape), head.dtype), *arrays)))
    for op, given in calls:
        expected = leaves(call(op, as_float64(given), case.options))
        for _ in range(2):
            there = tuple(_lying(a, rng) for a in given)
            for name in _rounds(op, there, case.options):
                for a, e in zip(_back(call_by(name, op, there, case.options)), expected, strict=True):
                    assert_close(
                        a, np.asarray(e), max(case.reduction, np.size(e)), case.condition, f"{case}: {op} by {name}"
                    )
    if case in _DIFFERENTIABLE and isinstance(kept, tuple):  # a gradient by the algorithms that are chosen
        grad = np.array(rng.standard_normal(head.shape), head.dtype)
        expected = leaves(_gradients(case, as_float64(arrays), grad.astype(np.float64)))
        there = tuple(_lying(a, rng) for a in arrays)
        try:
            actual = _back(_gradients(case, there, cupy.asarray(grad)))
        except dnn.UnsupportedError as error:  # axes of batch, channels and space that are interleaved
            assert "copy x to C order" in str(error)  # noqa: PT017 - other memory orders have an algorithm
            return
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, np.asarray(e), max(case.reduction, np.size(e)), case.condition, f"{case}: pullback")


_SIZES = [1, 2, 3, 31, 127, 128, 129, 1023, 4096, 4097, 100_003]


@pytest.mark.parametrize("n", _SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, FLOAT64], ids=lambda d: np.dtype(d).name)
def test_any_size_and_any_alignment(n, dtype):
    host = np.random.default_rng(n).standard_normal(n + 1).astype(dtype)
    whole = cupy.asarray(host)
    for start in (0, 1):
        x = whole[start : start + n]
        np.testing.assert_array_equal(
            cupy.asnumpy(dnn.relu(x)), np.maximum(host[start : start + n], np.zeros(1, dtype))
        )


@pytest.mark.heavy
def test_more_than_two_to_the_31_elements():
    n = 2**31 + 4099
    x = cupy.full(n, -1, np.float16)
    x[-5:] = 3
    x[0] = 2
    y = dnn.relu(x)
    assert float(y[:-5].astype(np.float32).sum()) == 2.0
    assert cupy.asnumpy(y[-5:]).tolist() == [3] * 5


@pytest.mark.parametrize("order", ["F", "strided", "reversed", "broadcast"])
def test_any_memory(order):
    host = np.random.default_rng(0).standard_normal((6, 5, 7)).astype(np.float32)
    x = {
        "F": lambda: cupy.asarray(host, order="F"),
        "strided": lambda: cupy.asarray(np.repeat(host, 2, axis=1))[:, ::2],
        "reversed": lambda: cupy.asarray(host[::-1])[::-1],
        "broadcast": lambda: cupy.broadcast_to(cupy.asarray(host[:1]), host.shape),
    }[order]()
    np.testing.assert_array_equal(cupy.asnumpy(dnn.relu(x)), np.maximum(cupy.asnumpy(x), 0))


def test_a_call_with_out_can_be_captured_in_a_graph():
    x = cupy.asarray(np.linspace(-1, 1, 1000, dtype=np.float32))
    y = cupy.empty_like(x)
    dnn.relu(x, out=y)
    y.fill(9)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        dnn.relu(x, out=y)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(y), np.maximum(cupy.asnumpy(x), 0))


def test_a_workspace_that_is_not_needed_or_at_an_odd_address():
    x, w = cupy.asarray(np.ones((2, 8, 9, 9), np.float32)), cupy.asarray(np.ones((8, 8, 3, 3), np.float32))
    scratch = cupy.empty((64 << 20) + 1, cupy.uint8)
    for memory in (scratch, scratch[1:]):
        np.testing.assert_array_equal(cupy.asnumpy(dnn.relu(x, workspace=memory)), np.ones(x.shape))
    np.testing.assert_array_equal(
        cupy.asnumpy(dnn.conv(x, w, algorithm="gemm", workspace=scratch)), np.full((2, 8, 7, 7), 72)
    )
    with pytest.raises(dnn.OptionError, match="aligned to 16 bytes"):
        dnn.conv(x, w, algorithm="gemm", workspace=scratch[1:])


def test_host_arrays_do_not_mix_with_device_arrays():
    x = cupy.zeros(3)
    with pytest.raises(dnn.ArrayTypeError, match="relu_backward"):
        dnn.relu_backward(np.zeros(3), x)
    with pytest.raises(dnn.ArrayTypeError, match="out"):
        dnn.relu(x, out=np.zeros(3))
    with pytest.raises(dnn.OptionError, match="memory shared"):
        dnn.relu(x[:-1], out=x[1:])
