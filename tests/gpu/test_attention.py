"""Attention and rotary embedding on a card: sizes of several tiles, every memory order, the same bits at every run."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._options import Options
from dnnarray._problems.base import tree_map
from dnnarray._spec import Spec
from tests.gpu.test_activation import check, lying
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_DTYPES = pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name
)


def _draw(dtype, *shapes):
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return tuple(rng.standard_normal(s).astype(dtype) for s in shapes)


_ROTARY = [
    ((2, 5, 33, 64), (33, 32), "BHSD", None),
    ((2, 33, 5, 64), (33, 32), "BSHD", None),
    ((2, 33, 5, 64), (33, 32), "BHSD", (0, 2, 1, 3)),
    ((2, 5, 16, 12), (12, 8), "BHSD", (0, 1, 3, 2)),
    ((3, 7, 19, 128), (3, 19, 64), "BHSD", None),
    ((2, 6, 40, 80), (40, 24), "BHSD", None),
    ((2, 17, 9, 24), (17, 12), "BSHD", None),
    ((1, 4, 1, 256), (4, 128), "BSHD", None),
    ((2, 3, 4, 34), (4, 17), "BHSD", None),
    ((40, 32, 3, 16), (3, 8), "BHSD", None),
    ((1, 3, 70, 64), (70, 32), "BHSD", None),
    ((3, 50, 7, 40), (50, 16), "BSHD", None),
    ((2, 0, 5, 16), (5, 8), "BHSD", None),
]


@_DTYPES
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "table", "layout", "order"), _ROTARY, ids=str)
def test_rotary(shape, table, layout, order, interleaved, dtype):
    if order:
        shape = tuple(shape[a] for a in order)
    x, grad, cos, sin = _draw(dtype, shape, shape, table, table)
    if np.dtype(dtype).itemsize == 2 and len(table) == 3:
        cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    options = {"interleaved": interleaved, "layout": layout}
    check("rotary_embedding", (x, cos, sin), options, 2, order)
    check("rotary_embedding_backward", (grad, x, cos, sin), options, shape[0] * max(shape[1:3]), order)


def _scaled_error(actual, expected):
    actual, expected = np.asarray(actual).astype(np.float64), np.asarray(expected)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite])
    return np.abs(actual[finite] - expected[finite]).max(initial=0) / max(
        np.abs(expected[finite]).max(initial=0), 1e-30
    )


_LENGTHS = {"q_lengths": np.array([100, 140]), "kv_lengths": np.array([130, 77], np.int32)}
_HALF = [
    ("plain", (1, 2, 1, 70, 150, 64, 64), {}, {}),
    ("long", (2, 4, 2, 300, 517, 128, 128), {}, {}),
    ("causal", (1, 2, 2, 150, 170, 128, 128), {}, {"causal": True}),
    ("upper_left", (1, 2, 2, 150, 170, 128, 128), {}, {"causal": "upper_left", "window": (40, None)}),
    ("odd_widths", (1, 2, 2, 140, 70, 96, 40), {}, {"causal": True, "layout": "BSHD"}),
    ("wide", (1, 1, 1, 70, 100, 256, 200), {}, {"causal": True}),
    ("lengths", (2, 2, 2, 140, 130, 64, 64), {"sink": (2,), **_LENGTHS}, {"window": (30, 2)}),
    ("decode", (2, 8, 2, 1, 900, 64, 64), {}, {"causal": True}),
    ("few_queries", (2, 8, 2, 3, 1100, 128, 128), {}, {"causal": True}),
    ("capped", (1, 2, 1, 70, 80, 64, 64), {"alibi_slopes": (2,)}, {"softcap": 2.0, "causal": True}),
    ("bias", (1, 2, 1, 70, 80, 64, 64), {"bias": (2, 1, 80)}, {}),
    ("dropout", (1, 2, 1, 70, 81, 64, 64), {}, {"dropout": 0.3, "seed": 5, "offset": 3}),
]


def _arrays_of(sizes, others, options, dtype):
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    rng = np.random.default_rng(keys)
    shapes = [(batch, heads, queries, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, value_width)]
    if options.get("layout") == "BSHD":
        shapes = [(b, s, h, d) for b, h, s, d in shapes]
    qkv = tuple(rng.standard_normal(s).astype(dtype) for s in shapes)
    return qkv, {n: rng.standard_normal(a).astype(dtype) if isinstance(a, tuple) else a for n, a in others.items()}


def _by(algorithm, name, arrays, more, options):
    """The results of an operation by the algorithm of this name, whatever the selection would take."""
    from dnnarray._cuda import engine

    operation = find(name)
    arrays, chosen = operation.bind(arrays, more | options)
    specs = tree_map(lambda a: Spec(a.shape, a.dtype), arrays)
    problem = operation.problem(specs, {n: v for n, v in chosen.items() if n in operation.static})
    runtime = tuple(chosen.get(n) or 0 for n in operation.runtime)
    try:
        prepared = engine.prepare(operation, problem, Options(), algorithm)
    except dnn.UnsupportedError as error:
        pytest.skip(str(error))
    return prepared.call(arrays, runtime, None, None)


def _there(tree):
    return {n: cupy.asarray(a) for n, a in tree.items()}


def _wide(array):
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("algorithm", ["mma", "wgmma", "mma_decode"])
@pytest.mark.parametrize(("sizes", "others", "options"), [c[1:] for c in _HALF], ids=[c[0] for c in _HALF])
def test_tensor_cores(sizes, others, options, algorithm, dtype):
    """Not farther from the truth than roundings of the weights, which the exact algorithm does not have; the lse not
    even that."""
    qkv, more = _arrays_of(sizes, others, options, dtype)
    results = [
        _by(algorithm, "attention", tuple(map(cupy.asarray, qkv)), _there(more), options | {"return_lse": True})
        for _ in range(2)
    ]
    expected = dnn.attention(*map(_wide, qkv), **{n: _wide(a) for n, a in more.items()}, **options, return_lse=True)
    for first, second, e in zip(*results, expected, strict=True):
        assert cupy.asnumpy(first).tobytes() == cupy.asnumpy(second).tobytes()
        assert_close(cupy.asnumpy(first), e, sizes[4], rounds=True)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("algorithm", ["mma", "wgmma"])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("sizes", "others", "options"),
    [c[1:] for c in _HALF if c[0] != "wide"],
    ids=[c[0] for c in _HALF if c[0] != "wide"],
)
def test_gradients_on_tensor_cores(sizes, others, options, saved, algorithm, dtype):
    (q, k, v), more = _arrays_of(sizes, others, options, dtype)
    shape = (*q.shape[:3], v.shape[3])
    grad = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    wide = {n: _wide(a) for n, a in more.items()}
    y, lse = dnn.attention(*map(_wide, (q, k, v)), **wide, **options, return_lse=True)
    kept = {"output": y.astype(dtype), "lse": lse.astype(np.float32)} if saved else {}
    arrays = tuple(map(cupy.asarray, (grad, q, k, v)))
    results = [
        _by(f"{algorithm}_backward", "attention_backward", arrays, _there(more | kept), options) for _ in range(2)
    ]
    expected = dnn.attention_backward(*map(_wide, (grad, q, k, v)), **wide, **options)
    for first, second, e in zip(*results, expected, strict=True):
        if e is not None:
            assert cupy.asnumpy(first).tobytes() == cupy.asnumpy(second).tobytes()
            assert_close(cupy.asnumpy(first), e, max(q.size, k.size), rounds=True)


def _live(x, lengths):
    """x (B, S, E), zeros past the end of each sequence."""
    return (
        x
        if lengths is None
        else np.where(np.arange(x.shape[1])[:, None] < lengths[:, None, None], x, 0).astype(x.dtype)
    )


def _step_by_step(arrays, grad, more, heads, **options):
    """Attention with its projections, or its gradients, by the operations that it consists of: each rounds its result
    to the arrays' dtype."""
    x, w, b, length = arrays[:3], arrays[3:7], arrays[7:], more.get("kv_lengths")
    if grad is not None:
        x = tuple(map(_live, x, (more.get("q_lengths"), length, length)))
    first = tuple(zip(x, w[:3], b[:3], strict=True))
    flat = tuple(dnn.linear(*layer) for layer in first)
    q, k, v = (y.reshape(*y.shape[:2], n, -1) for y, n in zip(flat, heads, strict=True))
    y, lse = dnn.attention(q, k, v, layout="BSHD", return_lse=True, **more, **options)
    joined = y.reshape(*y.shape[:2], -1)
    if grad is None:
        return (dnn.linear(joined, w[3], b[3]),)
    last = dnn.linear_backward(grad, joined, w[3], b[3])
    core = dnn.attention_backward(last.x.reshape(y.shape), q, k, v, layout="BSHD", output=y, lse=lse, **more, **options)
    layers = [
        dnn.linear_backward(g.reshape(f.shape), *layer) for g, f, layer in zip(core[:3], flat, first, strict=True)
    ]
    results = [*layers, last]
    return (*(r.x for r in layers), *(r.weight for r in results), *(r.bias for r in results), core.bias, core.sink)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("algorithm", ["mma", "wgmma"])
@pytest.mark.parametrize("backward", [False, True])
def test_projections_on_tensor_cores(backward, algorithm, dtype):
    """At most twice as far from the truth as the same computation step by step in the same dtype, and a rounding of the
    result."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return (rng.standard_normal(shape) * 0.3).astype(dtype)

    inputs = draw(2, 170, 32), draw(2, 180, 24), draw(2, 180, 24)
    weights = draw(64, 32), draw(32, 24), draw(32, 24), draw(48, 64)
    arrays = (*inputs, *weights, draw(64), draw(32), None, draw(48))
    more, options = (
        {"sink": draw(4), "kv_lengths": np.array([180, 60])},
        {"num_heads": 4, "num_kv_heads": 2, "causal": True},
    )
    grad = draw(2, 170, 48) if backward else None
    plain = _step_by_step(arrays, grad, more, (4, 2, 2), causal=True)
    name = "multi_head_attention"
    if grad is not None:
        name, arrays = f"{name}_backward", (grad, *arrays)
    there = tuple(None if a is None else cupy.asarray(a) for a in arrays)
    actual = _by(f"multi_head_{algorithm}", name, there, _there(more), options)
    expected = getattr(dnn, name)(
        *(None if a is None else _wide(a) for a in arrays), **{n: _wide(a) for n, a in more.items()}, **options
    )
    rounding = 2.0**-8 if dtype == BFLOAT16 else 2.0**-11
    for a, p, e in zip(actual, plain, expected if backward else (expected,), strict=True):
        assert (a is None) == (p is None) == (e is None)
        if e is not None:
            assert _scaled_error(cupy.asnumpy(a), e) <= 2 * _scaled_error(p, e) + rounding


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_memory_that_is_not_aligned(dtype):
    (q, k, v), _ = _arrays_of((2, 4, 2, 70, 90, 64, 64), {}, {}, dtype)

    def shifted(a):
        whole = cupy.empty(a.size + 1, dtype)
        whole[1:] = cupy.asarray(a).reshape(-1)
        return whole[1:].reshape(a.shape)

    expected = cupy.asnumpy(dnn.attention(*map(cupy.asarray, (q, k, v)), causal=True)).astype(np.float64)
    actual = cupy.asnumpy(dnn.attention(*map(shifted, (q, k, v)), causal=True))
    assert _scaled_error(actual, expected) < (1e-5 if dtype == np.float32 else 2.0**-7)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (3, 2, 1, 0), (0, 1, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_memory_orders(order, dtype):
    arrays, _ = _arrays_of((2, 4, 2, 70, 90, 64, 64), {}, {}, dtype)
    there = tuple(lying(cupy.asarray(a), order) for a in arrays)
    expected = np.asarray(dnn.attention(*map(_wide, arrays)))
    actual = dnn.attention(*there)
    assert _scaled_error(cupy.asnumpy(actual), expected) < (1e-5 if dtype == np.float32 else 2.0**-7)
    grad = cupy.ones_like(actual)
    gradients = dnn.attention_backward(grad, *there)
    references = dnn.attention_backward(np.ones(expected.shape), *map(_wide, arrays))
    for a, e in zip(gradients, references, strict=True):
        if e is not None:
            assert _scaled_error(cupy.asnumpy(a), e) < (1e-5 if dtype == np.float32 else 2.0**-6)
