"""The gradients of attention over many blocks of queries, beside the definition in float64.

The sums for keys and values then go by bands of the keys.
"""

import numpy as np
import pytest

from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler
from tests.support import assert_close, call_by

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")


def _normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def _seen(queries, keys, causal, window):
    """Which key each query sees; causal aligns the ends of both."""
    distance = np.arange(queries)[:, None] + (keys - queries) - np.arange(keys)
    left, right = window
    return (distance <= left) & (distance >= (0 if causal else -right))


def _oracle(grad, q, k, v, seen):
    group = q.shape[1] // k.shape[1]
    grad, q, k, v = (a.astype(np.float64) for a in (grad, q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scale = q.shape[3] ** -0.5
    scores = np.where(seen, q @ k.swapaxes(2, 3) * scale, -np.inf)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    weights /= weights.sum(3, keepdims=True)
    slopes = grad @ v.swapaxes(2, 3)
    slopes = weights * (slopes - (slopes * weights).sum(3, keepdims=True)) * scale
    of_k, of_v = slopes.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ grad
    return slopes @ k, *(a.reshape(len(a), -1, group, *a.shape[2:]).sum(2) for a in (of_k, of_v))


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize(
    "causal, window", [(False, (9999, 9999)), (True, (9999, 0)), (False, (40, 20)), (True, (150, 0))]
)
@pytest.mark.parametrize("queries, keys", [(257, 301), (301, 97), (130, 96), (65, 5)])
def test_bands_of_keys_add_up(queries, keys, causal, window, cores, monkeypatch):
    from dnnarray._cpu.compiled.attention import tiled_backward as attention_backward

    monkeypatch.setattr(attention_backward, "_is_long", lambda problem, step: True)
    monkeypatch.setattr(threads, "cores", lambda: cores)
    queries = min(queries, keys) if causal else queries  # so that each query sees a key
    arrays = _normal(2, 4, queries, 20), _normal(2, 4, queries, 24), _normal(2, 2, keys, 24), _normal(2, 2, keys, 20)
    seen = _seen(queries, keys, causal, window)
    if not seen.any(1).all():
        pytest.skip("a query that sees nothing has no weights")
    options = {"causal": causal} | ({"window": window} if window[0] < 9999 else {})
    found = call_by("tiled", "attention_backward", arrays, options)
    for got, want, name in zip(found[:3], _oracle(*arrays, seen), "qkv", strict=True):
        assert_close(got, want, queries + keys, 4.0, name)  # weights carry the roundings of exp and of their sum


def test_many_blocks_of_many_queries_are_carried_on():
    """More than 64 blocks, several times, over more than one band."""
    queries, keys = 14000, 200
    arrays = _normal(1, 1, queries, 8), _normal(1, 1, queries, 8), _normal(1, 1, keys, 8), _normal(1, 1, keys, 8)
    found = call_by("tiled", "attention_backward", arrays, {})
    for got, want, name in zip(found[:3], _oracle(*arrays, np.ones((queries, keys), bool)), "qkv", strict=True):
        assert_close(got, want, queries if name != "q" else keys, 1.0, name)
