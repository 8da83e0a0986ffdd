"""Recurrent networks on a card: sizes that fill tiles and sizes that do not, every kind of cell, the same bits at every
run."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves, tree_map
from tests.support import BFLOAT16, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
_KINDS = pytest.mark.parametrize("kind", _GATES)


def _network(rng, dtype, kind, features, hidden, layers, directions, bias=True):
    def draw(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(dtype)

    rows = _GATES[kind] * hidden
    widths = [features if k < directions else directions * hidden for k in range(layers * directions)]
    vectors = (draw(rows), draw(rows)) if bias else (None, None)
    return [dnn.RNNWeights(draw(rows, width), draw(rows, hidden), *vectors) for width in widths]


def _agree(op, arrays, options, reduction):
    """The results on the card, twice with the same bits, against the CPU engine's in float64."""
    there = tuple(tree_map(cupy.asarray, a) for a in arrays)
    actual = [cupy.asnumpy(a) for a in leaves(call(op, there, options))]
    again = [cupy.asnumpy(a) for a in leaves(call(op, there, options))]
    exact = tuple(tree_map(lambda a: a if a.dtype == np.int64 else a.astype(np.float64), a) for a in arrays)
    expected = leaves(call(op, exact, options))
    for a, b, e in zip(actual, again, expected, strict=True):
        assert a.tobytes() == b.tobytes()
        assert_close(a, e, max(reduction, e.size), 1.0, op)


def _check(
    kind,
    dtype,
    steps,
    batch,
    features,
    hidden,
    layers=1,
    directions=1,
    *,
    states=True,
    lengths=False,
    bias=True,
    gradient=True,
    **options,
):
    rng = np.random.default_rng(steps + batch + hidden)
    weights = _network(rng, dtype, kind, features, hidden, layers, directions, bias)
    options |= {"bidirectional": True} if directions == 2 else {}
    x = rng.standard_normal((steps, batch, features)).astype(dtype)
    x = x.swapaxes(0, 1).copy() if options.get("layout") == "NTC" else x
    first = [
        rng.standard_normal((layers * directions, batch, hidden)).astype(dtype) / 2 if states else None
        for _ in range(1 + (kind == "lstm"))
    ]
    counts = rng.integers(0, steps + 1, batch) if lengths else None
    arrays = (x, weights, *(a if a is None else a.astype(dtype) for a in first), counts)
    reduction = (features + hidden) * steps
    _agree(kind, arrays, options, reduction)
    if gradient:
        shape = (*x.shape[:2], directions * hidden)
        grad = (
            rng.standard_normal(shape).astype(dtype),
            *(rng.standard_normal((layers * directions, batch, hidden)).astype(dtype) for _ in first),
        )
        _agree(f"{kind}_backward", (grad, *arrays), options, reduction)


@_KINDS
@_DTYPES
@pytest.mark.parametrize("hidden", [16, 32, 48, 64, 80, 128])
@pytest.mark.parametrize("batch", [1, 3, 8, 20, 70])
def test_tiles(kind, dtype, hidden, batch):
    _check(kind, dtype, 5, batch, 24, hidden)


@_KINDS
@_DTYPES
def test_both_directions_and_layers(kind, dtype):
    _check(kind, dtype, 9, 33, 40, 64, 2, 2)


@_KINDS
@_DTYPES
def test_lengths_and_dropout(kind, dtype):
    _check(kind, dtype, 9, 21, 40, 48, 3, 2, lengths=True, dropout=0.3, seed=5, layout="NTC", states=False)


@_KINDS
@_DTYPES
@pytest.mark.parametrize("reverse", [False, True])
def test_one_step_and_no_bias(kind, dtype, reverse):
    _check(kind, dtype, 1, 5, 16, 32, bias=False, reverse=reverse)


@_DTYPES
def test_relu(dtype):
    _check("rnn", dtype, 6, 12, 20, 64, 2, activation="relu")


@_DTYPES
def test_clip(dtype):
    _check("lstm", dtype, 6, 12, 20, 64, 2, cell_clip=0.3)


@_KINDS
@_DTYPES
@pytest.mark.parametrize(("hidden", "directions"), [(512, 2), (1024, 1)])
def test_large(kind, dtype, hidden, directions):
    _check(kind, dtype, 4, 64, 64, hidden, 1, directions)


@_DTYPES
def test_more_sequences_than_run_at_once(dtype):
    _check("lstm", dtype, 2, 300, 16, 512, 1, 2)


@_KINDS
@_DTYPES
def test_many_steps(kind, dtype):
    _check(kind, dtype, 300, 5, 16, 32, gradient=False)


@_KINDS
@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_gradients_of_any_magnitude(kind, scale):
    """float16 holds from 6e-8 to 65504; gradients between the steps are float32."""
    rng = np.random.default_rng(0)
    weights = _network(rng, np.float16, kind, 16, 32, 1, 1)
    weights = [dnn.RNNWeights(*(w if k < 2 else None for k, w in enumerate(entry))) for entry in weights]
    x = rng.standard_normal((4, 8, 16)).astype(np.float16)
    factor = scale if scale < 1 else 1.0
    grad = (rng.standard_normal((4, 8, 32)) * factor * 50).astype(np.float16)
    grad[0] *= 1 if scale < 1 else 300
    there = tree_map(cupy.asarray, (grad, x, tuple(weights)))
    actual = [cupy.asnumpy(a).astype(np.float64) for a in leaves(getattr(dnn, f"{kind}_backward")(*there))]
    exact = tree_map(lambda a: a.astype(np.float64), (grad, x, tuple(weights)))
    expected = leaves(getattr(dnn, f"{kind}_backward")(*exact))
    for a, e in zip(actual, expected, strict=True):
        inside = np.abs(e) < 65000
        np.testing.assert_allclose(a[inside], e[inside], rtol=2e-3, atol=1e-7 + 1e-5 * np.abs(e).max())


@_DTYPES
def test_unaligned_memory(dtype):
    rng = np.random.default_rng(1)
    weights = _network(rng, dtype, "lstm", 16, 32, 1, 1)
    x = rng.standard_normal((4, 3, 16)).astype(dtype)

    def shifted(a):
        memory = cupy.empty(a.size + 1, a.dtype)[1:]
        memory[...] = cupy.asarray(a).ravel()
        return memory.reshape(a.shape)

    actual = dnn.lstm(
        shifted(x), [dnn.RNNWeights(*(None if w is None else shifted(w) for w in entry)) for entry in weights]
    )
    expected = dnn.lstm(
        x.astype(np.float64),
        [dnn.RNNWeights(*(None if w is None else w.astype(np.float64) for w in e)) for e in weights],
    )
    for a, e in zip(actual, expected, strict=True):
        assert_close(cupy.asnumpy(a), e, 48 * 4)


@_KINDS
def test_a_network_can_be_captured_in_a_graph(kind):
    rng = np.random.default_rng(2)
    weights = tree_map(cupy.asarray, tuple(_network(rng, np.float16, kind, 16, 32, 2, 1)))
    x = cupy.asarray(rng.standard_normal((4, 3, 16)).astype(np.float16))
    out = getattr(dnn, kind)(x, weights)
    kept = [a.copy() for a in out if a is not None]
    memory = cupy.empty(1 << 22, np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        getattr(dnn, kind)(x, weights, out=tuple(out), workspace=memory)
        for a in out:
            a.fill(9)
        stream.begin_capture()
        getattr(dnn, kind)(x, weights, out=tuple(out), workspace=memory)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    for a, b in zip(out, kept, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(a), cupy.asnumpy(b))


def test_an_infinite_gradient_stays_with_its_sequence():
    rng = np.random.default_rng(4)
    x, weights = rng.standard_normal((5, 8, 24)).astype("float16"), _network(rng, "float16", "lstm", 24, 64, 1, 1, True)
    grad = rng.standard_normal((5, 8, 64)).astype("float16")
    broken = grad.copy()
    broken[-1, 3] = np.inf
    there = tuple(tree_map(cupy.asarray, w) for w in weights)
    whole, other = (
        cupy.asnumpy(dnn.lstm_backward((cupy.asarray(g), None, None), cupy.asarray(x), there)[0])
        for g in (grad, broken)
    )
    rest = [n for n in range(8) if n != 3]
    np.testing.assert_allclose(
        other[:, rest].astype(np.float64), whole[:, rest].astype(np.float64), rtol=2e-2, atol=1e-3
    )


def test_two_streams_at_once():
    """Launches whose blocks wait for each other, side by side and in a graph."""
    rng = np.random.default_rng(5)
    x = cupy.asarray(rng.standard_normal((200, 64, 64)).astype("float16"))
    weights = tuple(tree_map(cupy.asarray, w) for w in _network(rng, "float16", "lstm", 64, 512, 1, 1, True))
    expected = cupy.asnumpy(dnn.lstm(x, weights)[0]).tobytes()
    streams, results = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)], []
    for _ in range(10):
        for stream in streams:
            with stream:
                results.append(dnn.lstm(x, weights)[0])
    for stream in streams:
        stream.synchronize()
    assert all(cupy.asnumpy(y).tobytes() == expected for y in results)
