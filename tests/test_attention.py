"""Attention: padding, NaN, block boundaries, drawn options, memory, PyTorch."""

import itertools
import time
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import dnnarray as dnn
from dnnarray._cpu import threads
from dnnarray._cpu.attention import blocks as attention_blocks
from dnnarray._cpu.compiled import compiler
from dnnarray._cpu.philox import bernoulli_keep
from tests.cases.attention import CASES
from tests.oracles.attention import ORACLES
from tests.support import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    assert_close,
    call,
    call_by,
    candidates,
    check_forward,
    check_same_gradient,
    flat,
    gradients_of,
)

RNG = np.random.default_rng(11)


def draw(*shape, dtype=FLOAT64):
    return RNG.standard_normal(shape).astype(dtype)


def qkv(dtype=FLOAT64):
    return draw(2, 4, 5, 3, dtype=dtype), draw(2, 2, 7, 3, dtype=dtype), draw(2, 2, 7, 2, dtype=dtype)


# --- special values ---------------------------------------------------------------------------------------------------


def test_a_key_with_nan_reaches_only_the_queries_that_see_it():
    q, k, v = draw(1, 1, 6, 3), draw(1, 1, 6, 3), draw(1, 1, 6, 2)
    k[0, 0, 3, 1] = np.nan
    y = dnn.attention(q, k, v, causal=True)
    assert np.isfinite(y[0, 0, :3]).all()
    assert np.isnan(y[0, 0, 3:]).all()


def test_an_infinite_score_gives_nan_and_an_infinite_value_stays():
    q, k, v = np.ones((1, 1, 1, 1)), np.array([np.inf, 1.0]).reshape(1, 1, 2, 1), np.ones((1, 1, 2, 1))
    assert np.isnan(dnn.attention(q, k, v)).all()
    y = dnn.attention(q, np.ones_like(k), np.array([np.inf, 1.0]).reshape(1, 1, 2, 1))
    assert y.item() == np.inf


def test_large_scores_do_not_overflow():
    q, k, v = draw(1, 1, 4, 8) * 1e3, draw(1, 1, 5, 8) * 1e3, draw(1, 1, 5, 2)
    y, lse = dnn.attention(q, k, v, return_lse=True)
    expected_y, expected_lse = ORACLES["attention"](q, k, v, return_lse=True)
    assert_close(y, expected_y, 5)
    assert_close(lse, expected_lse, 8)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"sink": draw(4)}], ids=["plain", "causal", "sink"])
def test_what_padding_holds_does_not_matter(options):
    q, k, v = qkv()
    lengths = {"q_lengths": np.array([3, 5]), "kv_lengths": np.array([4, 6])}
    grad = draw(2, 4, 5, 2)
    y, lse = dnn.attention(q, k, v, return_lse=True, **lengths, **options)
    gradients = dnn.attention_backward(grad, q, k, v, **lengths, **options)
    assert (y[0, :, 3:] == 0).all()
    assert np.isneginf(lse[0, :, 3:]).all()
    assert (gradients.q[0, :, 3:] == 0).all()
    assert (gradients.k[0, :, 4:] == 0).all()
    for array in (q[0, :, 3:], grad[0, :, 3:], k[0, :, 4:], v[0, :, 4:], k[1, :, 6:], v[1, :, 6:]):
        array[...] = np.nan
    np.testing.assert_array_equal(dnn.attention(q, k, v, **lengths, **options), y)
    for again, before in zip(
        flat(dnn.attention_backward(grad, q, k, v, **lengths, **options)), flat(gradients), strict=True
    ):
        np.testing.assert_array_equal(again, before)


def test_padding_of_the_projected_form_does_not_matter():
    arrays = [draw(*shape) for shape in ((2, 3, 5), (2, 4, 6), (2, 4, 3), (12, 5), (6, 6), (4, 3), (7, 8))]
    options = {"num_heads": 4, "num_kv_heads": 2, "q_lengths": np.array([2, 3]), "kv_lengths": np.array([4, 1])}
    grad = draw(2, 3, 7)
    before = dnn.multi_head_attention_backward(grad, *arrays, **options)
    arrays[0][0, 2:], arrays[1][1, 1:], arrays[2][1, 1:] = np.nan, np.nan, np.nan
    for x, y in zip(flat(dnn.multi_head_attention_backward(grad, *arrays, **options)), flat(before), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_row_that_sees_nothing_gives_zero_and_its_sink():
    q, k, v = qkv()
    mask = np.zeros((5, 7), bool)
    y, lse = dnn.attention(q, k, v, mask=mask, return_lse=True)
    assert (y == 0).all()
    assert np.isneginf(lse).all()
    sink = draw(4)
    y, lse = dnn.attention(q, k, v, mask=mask, sink=sink, return_lse=True)
    assert (y == 0).all()
    np.testing.assert_allclose(lse, np.broadcast_to(sink[:, None], lse.shape), rtol=1e-15)
    assert all((g == 0).all() for g in dnn.attention_backward(draw(2, 4, 5, 2), q, k, v, mask=mask)[:3])


def test_a_sink_of_minus_infinity_is_none():
    q, k, v = qkv()
    # The two calls may go by different algorithms, which sum in different orders.
    np.testing.assert_allclose(
        dnn.attention(q, k, v, sink=np.full(4, -np.inf)), dnn.attention(q, k, v), rtol=1e-13, atol=1e-13
    )


def _blocked(*arrays, **options):
    """By one algorithm, for the same bits: another could be compiled in the background between two calls."""
    return call_by("blocked", "attention", arrays, options)


def test_offsets_of_any_integer_type_and_size():
    q, k, v = qkv()
    everything = _blocked(q, k, v)
    for offset in (2**62, np.array([2**63 + 5, 9], np.uint64), np.array([100, 100], np.int8)):
        np.testing.assert_array_equal(_blocked(q, k, v, causal=True, causal_offset=offset), everything)
    assert (dnn.attention(q, k, v, causal=True, causal_offset=-(2**62)) == 0).all()


def test_the_offset_stands_in_place_of_the_alignment():
    q, k, v = qkv()
    expected = _blocked(q, k, v, causal="upper_left")
    for causal in (True, "lower_right", "upper_left"):
        np.testing.assert_array_equal(_blocked(q, k, v, causal=causal, causal_offset=0), expected)


def test_softcap_zero_is_none():
    np.testing.assert_array_equal(_blocked(*qkv_once(), softcap=0.0), _blocked(*qkv_once()))


def qkv_once():
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s) for s in ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 2)))


# --- blocks -----------------------------------------------------------------------------------------------------------

_BLOCKED = [c for c in CASES if c.op != "rotary_embedding" and c.id not in ("tiles", "group_blocks")]


@pytest.mark.parametrize("blocks", [(1, 1), (2, 3), (4, 2)], ids=str)
@pytest.mark.parametrize("case", _BLOCKED, ids=str)
def test_blocks_of_any_size_give_the_same(case, blocks, monkeypatch):
    """The gradient of a single block is held to finite differences in ``test_backward.py``."""
    whole = gradients_of(case) if case.gradient else None
    monkeypatch.setattr(attention_blocks, "BLOCK_QUERIES", blocks[0])
    monkeypatch.setattr(attention_blocks, "BLOCK_KEYS", blocks[1])
    check_forward(case, FLOAT64, ORACLES[case.op])
    if whole is not None:
        check_same_gradient(case, whole)


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, FLOAT16, BFLOAT16], ids=str)
def test_saved_results_give_the_same_gradient(dtype):
    q, k, v = (a.astype(dtype) for a in qkv())
    grad = draw(2, 4, 5, 2).astype(dtype)
    y, lse = dnn.attention(q, k, v, causal=True, return_lse=True)
    assert lse.dtype == (FLOAT64 if dtype == FLOAT64 else FLOAT32)
    given = dnn.attention_backward(grad, q, k, v, causal=True, output=y, lse=lse)
    again = dnn.attention_backward(grad, q, k, v, causal=True)
    tolerance = {FLOAT64: 1e-14, FLOAT32: 1e-6, FLOAT16: 2e-3, BFLOAT16: 2e-2}[dtype]
    for a, b in zip(flat(given), flat(again), strict=True):
        np.testing.assert_allclose(
            a.astype(FLOAT64), b.astype(FLOAT64), rtol=0, atol=tolerance * np.abs(b.astype(FLOAT64)).max()
        )


@pytest.mark.parametrize("queries", [1, 2, 5])
def test_the_log_sum_exp_of_more_keys_gives_a_part_of_the_gradient(queries):
    """As where keys are spread over devices: each has the output and the log-sum-exp of all of them."""
    q, k, v, grad = draw(2, 4, queries, 3), draw(2, 2, 70, 3), draw(2, 2, 70, 2), draw(2, 4, queries, 2)
    y, lse = dnn.attention(q, k, v, return_lse=True)
    whole = dnn.attention_backward(grad, q, k, v, output=y, lse=lse)
    parts = [
        dnn.attention_backward(grad, q, k[:, :, at], v[:, :, at], output=y, lse=lse)
        for at in (slice(0, 30), slice(30, 70))
    ]
    np.testing.assert_allclose(parts[0].q + parts[1].q, whole.q, rtol=0, atol=1e-13)
    for name in ("k", "v"):
        both = np.concatenate([getattr(part, name) for part in parts], axis=2)
        np.testing.assert_allclose(both, getattr(whole, name), rtol=0, atol=1e-13)


def test_memory_grows_with_the_sequence_and_not_with_its_square():
    rng = np.random.default_rng(0)
    q, k, v, grad = (rng.standard_normal((1, 1, 16384, 64), dtype=np.float32) for _ in range(4))
    few = [a[:, :, :2048] for a in (q, k, v)]  # enough to be done by what does the whole
    for _ in range(2):  # what a first call keeps, or compiles, is no scratch
        output, lse = dnn.attention(*few, causal=True, return_lse=True)
        dnn.attention_backward(grad[:, :, :2048], *few, causal=True, output=output, lse=lse)
        compiler.settle()
    tracemalloc.start()
    try:
        start = time.perf_counter()
        y, lse = dnn.attention(q, k, v, causal=True, return_lse=True)
        gradients = dnn.attention_backward(grad, q, k, v, causal=True, output=y, lse=lse)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    results = sum(a.nbytes for a in (y, lse, *gradients[:3]))
    # Each core that has a share of the queries adds up gradients of all keys and values; the scores would be 1 GB.
    sums = 9e6 * max(threads.cores() - 2, 0)
    assert peak - results < 20e6 + sums, (
        f"{(peak - results) / 1e6:.0f} MB over the results, {time.perf_counter() - start:.1f} s"
    )
    sample = ORACLES["attention"](q[:, :, 16380:].astype(float), k.astype(float), v.astype(float))
    assert_close(y[:, :, 16383:], sample[:, :, 3:], 16384)


def test_a_window_skips_what_it_does_not_reach(monkeypatch):
    seen = []
    product = attention_blocks.Part.product
    monkeypatch.setattr(
        attention_blocks.Part, "product", lambda part, a, b, n: seen.append(b.shape[3]) or product(part, a, b, n)
    )
    q = draw(1, 1, 4096, 2, dtype=FLOAT32)
    dnn.attention(q, q, q, causal=True, window=(100, 0))
    assert sum(seen) * attention_blocks.BLOCK_QUERIES < 4096 * 512
    table = np.arange(64).reshape(1, 64)
    cache = draw(64, 16, 1, 2)
    cache[:60] = np.nan  # never read
    assert np.isfinite(
        dnn.paged_attention(draw(1, 1, 2), cache, cache, table, np.array([1024]), window=(63, None))
    ).all()


# --- drawn options ----------------------------------------------------------------------------------------------------


@st.composite
def dense_calls(draw_):
    """A call of `attention` with any shapes and any options."""
    n = lambda low, high: draw_(st.integers(low, high))  # noqa: E731
    maybe = lambda value: value if draw_(st.booleans()) else None  # noqa: E731
    rng = np.random.default_rng(n(0, 2**31))
    batch, kv_heads, group, queries, keys = n(1, 3), n(1, 2), n(1, 3), n(1, 6), n(1, 7)
    heads = kv_heads * group
    full = (batch, heads, queries, keys)
    shape = [s if draw_(st.booleans()) else 1 for s in full][n(0, 3) :]
    causal = draw_(st.sampled_from([False, True, "lower_right", "upper_left"]))
    window = maybe((maybe(n(0, 4)), maybe(n(0, 4))))
    slopes = maybe(rng.standard_normal((batch, heads) if draw_(st.booleans()) else (heads,)))
    diagonal_used = causal or slopes is not None or (window is not None and window != (None, None))
    offset = maybe(rng.integers(-3, 4, draw_(st.sampled_from([(), (batch,)])))) if diagonal_used else None
    dense = [(batch, heads, queries, n(1, 4)), (batch, kv_heads, keys, 0), (batch, kv_heads, keys, n(1, 4))]
    dense[1] = (*dense[1][:3], dense[0][3])
    arrays = [rng.standard_normal(s) for s in dense]
    layout = draw_(st.sampled_from(["BHSD", "BSHD"]))
    arrays = [a if layout == "BHSD" else a.swapaxes(1, 2) for a in arrays]
    optional = [
        maybe(rng.standard_normal(shape)),
        maybe(rng.random(shape) < 0.7),
        offset,
        slopes,
        maybe(rng.standard_normal(heads)),
        maybe(rng.integers(0, queries + 1, batch)),
        maybe(rng.integers(0, keys + 1, batch)),
    ]
    options = {
        "causal": causal,
        "window": window,
        "scale": maybe(0.7),
        "softcap": maybe(2.5),
        "layout": layout,
        "return_lse": draw_(st.booleans()),
        "dropout": draw_(st.sampled_from([0.0, 0.0, 0.3])),
        "seed": 5,
        "offset": n(0, 9),
    }
    return (*arrays, *optional), options


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(call_=dense_calls(), blocks=st.sampled_from([(256, 512), (2, 3), (1, 2)]))
def test_any_options_agree_with_the_definition(call_, blocks):
    arrays, options = call_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_blocks, "BLOCK_QUERIES", blocks[0])
        patch.setattr(attention_blocks, "BLOCK_KEYS", blocks[1])
        actual = flat(call("attention", arrays, options))
        directional = _directional_derivative(arrays, options)
    for a, e in zip(actual, flat(ORACLES["attention"](*arrays, **options)), strict=True):
        assert_close(a, e, 28)
    assert directional[0] == pytest.approx(directional[1], rel=1e-6, abs=1e-6)


def _directional_derivative(arrays, options):
    """Along one random direction of all arrays with a gradient: by the oracle's differences, and by the pullback."""
    rng = np.random.default_rng(1)
    options = options | {"return_lse": False}
    moving = [i for i in (0, 1, 2, 3, 7) if arrays[i] is not None]
    steps = {i: rng.standard_normal(arrays[i].shape) for i in moving}
    y, pullback = dnn.vjp("attention", *arrays, **options)
    weight = rng.standard_normal(y.shape)
    gradients = pullback(weight)
    h = 1e-5

    def moved(sign):
        at = [a + sign * h * steps[i] if i in steps else a for i, a in enumerate(arrays)]
        return np.sum(weight * ORACLES["attention"](*at, **options))

    return (moved(1) - moved(-1)) / (2 * h), sum(np.sum(steps[i] * gradients[i]) for i in moving)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    causal=st.sampled_from([False, True, "upper_left"]),
)
def test_packed_sequences_are_dense_ones(lengths, causal):
    bounds = [np.cumsum([0, *(pair[n] for pair in lengths)]) for n in (0, 1)]
    q, k, v = draw(bounds[0][-1], 4, 3), draw(bounds[1][-1], 2, 3), draw(bounds[1][-1], 2, 2)
    longest = {"max_seqlen_q": 4, "max_seqlen_k": 4}
    y = dnn.attention_varlen(q, k, v, *bounds, causal=causal, **longest)
    grad = draw(*y.shape)
    gradients = dnn.attention_varlen_backward(grad, q, k, v, *bounds, causal=causal, **longest)
    for n in range(len(lengths)):
        rows, columns = (slice(b[n], b[n + 1]) for b in bounds)
        dense = q[None, rows], k[None, columns], v[None, columns]
        np.testing.assert_allclose(
            y[rows], dnn.attention(*dense, causal=causal, layout="BSHD")[0], rtol=1e-13, atol=1e-13
        )
        alone = dnn.attention_backward(grad[None, rows], *dense, causal=causal, layout="BSHD")
        for whole, part, where in zip(gradients[:3], alone[:3], (rows, columns, columns), strict=True):
            np.testing.assert_allclose(whole[where], part[0], rtol=1e-13, atol=1e-13)


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_share_and_the_mean():
    q = np.zeros((1, 1, 64, 1), FLOAT64)
    v = np.eye(64).reshape(1, 1, 64, 64)
    weights = dnn.attention(q, q, v, dropout=0.25, seed=1)[0, 0] * 64
    assert set(np.unique(weights.round(12))) == {0.0, round(4 / 3, 12)}
    assert abs((weights == 0).mean() - 0.25) < 0.03
    other = dnn.attention(q, q, v, dropout=0.25, seed=2)[0, 0] * 64
    assert (weights != other).any()
    shifted = dnn.attention(q, q, v, dropout=0.25, seed=1, offset=64)[0, 0] * 64
    np.testing.assert_array_equal(shifted[:-1], weights[1:])


@pytest.mark.parametrize("keys", [8, 9], ids=["aligned", "unaligned"])
def test_dropout_takes_the_numbers_of_the_stream(keys):
    q, k, v = np.zeros((2, 3, 4, 1)), np.zeros((2, 3, keys, 1)), np.broadcast_to(np.eye(keys), (2, 3, keys, keys))
    y = dnn.attention(q, k, v, dropout=0.5, seed=6, offset=3)
    kept = bernoulli_keep(6, 3, y.size, 0.5).reshape(y.shape)
    np.testing.assert_array_equal(y != 0, kept)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"causal": "upper_left"}, {"is_causal": True}),
        ({"scale": 0.3}, {"scale": 0.3}),
        ({"bias": draw(2, 4, 5, 7)}, {"attn_mask": "bias"}),
        ({"mask": RNG.random((5, 7)) < 0.8}, {"attn_mask": "mask"}),
    ],
    ids=["plain", "causal", "scale", "bias", "mask"],
)
def test_dense_attention_agrees_with_torch(ours, theirs):
    torch = pytest.importorskip("torch")
    tensors = [torch.from_numpy(a).requires_grad_() for a in qkv_once()]
    more = {n: torch.from_numpy(ours[v]) if isinstance(v, str) else v for n, v in theirs.items()}
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=True, **more)
    grad = draw(2, 4, 5, 2)
    expected.backward(torch.from_numpy(grad))
    output, pullback = dnn.vjp("attention", *qkv_once(), **ours)
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-12, atol=1e-13)
    for g, t in zip(pullback(grad), tensors, strict=False):
        np.testing.assert_allclose(g, t.grad.numpy(), rtol=1e-11, atol=1e-12)


def test_nan_and_infinity_spread_as_in_torch():
    torch = pytest.importorskip("torch")
    for name, value in (("q", np.nan), ("k", np.nan), ("v", np.nan), ("v", np.inf), ("v", -np.inf), ("q", np.inf)):
        arrays = dict(zip("qkv", (np.abs(a) + 0.1 for a in qkv_once()), strict=True))
        arrays[name][1, 0, 2, 0] = value
        expected = torch.nn.functional.scaled_dot_product_attention(
            *map(torch.from_numpy, arrays.values()), enable_gqa=True
        )
        np.testing.assert_allclose(
            dnn.attention(*arrays.values()), expected.numpy(), rtol=1e-12, err_msg=f"{name} {value}"
        )


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention_agrees_with_torch(causal):
    torch = pytest.importorskip("torch")
    B, S, E, H = 2, 5, 8, 4
    x, w, b = draw(B, S, E), [draw(E, E) for _ in range(4)], [draw(E) for _ in range(4)]
    leaves = [torch.from_numpy(a).requires_grad_() for a in (x, *w, *b)]
    tx, tw, tb = leaves[0].transpose(0, 1), leaves[1:5], leaves[5:]
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1) if causal else None
    expected, _ = torch.nn.functional.multi_head_attention_forward(
        tx,
        tx,
        tx,
        E,
        H,
        None,
        torch.cat(tb[:3]),
        None,
        None,
        False,
        0.0,
        tw[3],
        tb[3],
        need_weights=False,
        attn_mask=hidden,
        use_separate_proj_weight=True,
        q_proj_weight=tw[0],
        k_proj_weight=tw[1],
        v_proj_weight=tw[2],
    )
    grad = draw(B, S, E)
    expected.transpose(0, 1).backward(torch.from_numpy(grad))
    output, pullback = dnn.vjp("multi_head_attention", x, x, x, *w, *b, num_heads=H, causal=causal)
    np.testing.assert_allclose(output, expected.transpose(0, 1).detach().numpy(), rtol=1e-11, atol=1e-12)
    gradients = pullback(grad)
    mine = [sum(gradients[:3]), *gradients[3:11]]
    for g, t in zip(mine, leaves, strict=True):
        np.testing.assert_allclose(g, t.grad.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64], ids=str)
@pytest.mark.parametrize("shape", [(4, 2, 32, 4), (70, 8, 16, 4), (1, 2, 300, 16)], ids=str)
def test_many_heads_in_one_block_agree_with_torch(shape, dtype):
    torch = pytest.importorskip("torch")
    q, k, v = (draw(*shape, dtype=dtype) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.from_numpy, (q, k, v)), is_causal=True
    ).numpy()
    np.testing.assert_allclose(
        dnn.attention(q, k, v, causal=True), expected, rtol=0, atol=2e-6 if dtype == FLOAT32 else 1e-13
    )


# --- the log-sum-exp beside a sink ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32, FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("sink", [1.5, -0.25, -np.inf], ids=str)
def test_lse_counts_the_sink(dtype, sink):
    """In every algorithm: what the weights are divided by; the sink itself for a query that sees no key, -inf past the
    length."""
    q, k, v = qkv(dtype)
    mask = np.ones((2, 1, 5, 7), bool)
    mask[:, :, 1] = False
    q_lengths, sinks = np.array([4, 5]), np.full(4, sink, dtype)
    options = {"mask": mask, "softcap": 2.0, "q_lengths": q_lengths, "return_lse": True}
    plain = dnn.attention(q, k, v, **options)
    for algorithm in candidates(
        "attention", (q, k, v, None, mask, None, None, sinks, q_lengths), {"softcap": 2.0, "return_lse": True}
    ):
        arrays = (q, k, v, None, mask, None, None, sinks, q_lengths, None)
        y, lse = call_by(algorithm, "attention", arrays, {"softcap": 2.0, "return_lse": True})
        assert lse.dtype == (FLOAT64 if dtype == FLOAT64 else FLOAT32)
        assert np.all(lse[:, :, 1] == sink)
        assert np.all(y[:, :, 1] == 0)
        assert np.all(lse[0, :, 4] == -np.inf)
        seen = [0, 2, 3]
        expected = np.logaddexp(plain.lse[:, :, seen].astype(float), sink)
        assert_close(lse[:, :, seen], expected, 7, note=algorithm)
        weight = np.exp(plain.lse[:, :, seen].astype(float) - expected)[..., None]
        assert_close(y[:, :, seen], plain.y[:, :, seen].astype(float) * weight, 64, note=algorithm, rounds=True)


@pytest.mark.parametrize("splits", [1, 3])
def test_parts_of_the_keys_are_joined_by_their_lse_where_one_part_has_the_sink(splits):
    q, k, v = qkv()
    sink = draw(4)
    whole = dnn.attention(q, k, v, sink=sink, return_lse=True)
    bounds = np.linspace(0, 7, splits + 2).astype(int)
    parts = [
        dnn.attention(q, k[:, :, a:b], v[:, :, a:b], sink=sink if a == 0 else None, return_lse=True)
        for a, b in itertools.pairwise(bounds)
    ]
    lse = np.logaddexp.reduce([p.lse for p in parts])
    assert_close(lse, whole.lse, 7)
    assert_close(sum(p.y * np.exp(p.lse - lse)[..., None] for p in parts), whole.y, 7)


def test_the_lse_of_a_query_that_sees_no_key_has_a_gradient_for_the_sink_alone():
    q, k, v = qkv()
    output, pullback = dnn.vjp("attention", q, k, v, mask=np.zeros((1, 1, 5, 7), bool), sink=draw(4), return_lse=True)
    gradients = pullback((np.ones_like(output.y), np.full_like(output.lse, 2.0)))
    assert [np.abs(g).max() for g in gradients[:3]] == [0, 0, 0]
    np.testing.assert_allclose(gradients[-1], np.full(4, 2.0 * 2 * 5))
