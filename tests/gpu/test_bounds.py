"""What the values in memory, or where it lies, may not do: send a kernel out of its arrays."""

import numpy as np
import pytest

import dnnarray as dnn

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lengths_beyond_the_arrays_count_as_the_whole(dtype):
    draw = np.random.default_rng(0).standard_normal
    for heads, queries in ((2, 70), (2, 3), (1, 1)):
        q, k = cupy.asarray(draw((2, heads, queries, 64)).astype(dtype)), cupy.asarray(draw((2, heads, 90, 64)).astype(dtype))
        beyond = {"q_lengths": np.array([queries + 10**6, -5]), "kv_lengths": np.array([10**7, 50])}
        within = {"q_lengths": np.array([queries, 0]), "kv_lengths": np.array([90, 50])}
        results = [
            cupy.asnumpy(dnn.attention(q, k, k, causal=True, **{n: cupy.asarray(a) for n, a in lengths.items()}))
            for lengths in (beyond, within)
        ]
        assert results[0].tobytes() == results[1].tobytes()


def test_a_table_without_rows_has_no_row_for_any_index():
    y = dnn.embedding(cupy.zeros(3, np.int64), cupy.empty((0, 4), np.float32))
    assert bool(cupy.isnan(y).all())


def test_a_workspace_that_is_not_aligned_is_an_error():
    x, weights = cupy.ones((3, 2, 8), np.float32), [dnn.RNNWeights(cupy.ones((4, 8), np.float32), cupy.ones((4, 4), np.float32))]
    memory = cupy.empty(1 << 20, np.uint8)
    with pytest.raises(dnn.OptionError, match="a multiple of 16 bytes"):
        dnn.rnn(x, weights, workspace=memory[1:])
