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


def test_projections_of_memory_that_is_not_aligned_stay_in_the_workspace():
    def shifted(*shape):
        whole = cupy.asarray((np.random.default_rng(sum(shape)).standard_normal(np.prod(shape) + 1) * 0.2).astype(np.float16))
        return whole[1:].reshape(shape)

    arrays = [shifted(*shape) for shape in ((2, 70, 32), (2, 80, 24), (2, 80, 24), (64, 32), (64, 24), (64, 24), (48, 64))]
    expected = dnn.multi_head_attention(*(cupy.asnumpy(a).astype(np.float64) for a in arrays), num_heads=4)
    actual = dnn.multi_head_attention(*arrays, num_heads=4)
    np.testing.assert_allclose(cupy.asnumpy(actual).astype(np.float64), expected, atol=2e-2)


def test_boxes_without_images_are_an_error():
    with pytest.raises(dnn.OptionError, match="x has no images"):
        dnn.roi_align(cupy.empty((0, 2, 4, 4), np.float32), cupy.zeros((1, 5), np.float32), output_size=2)


def test_a_workspace_that_is_not_aligned_is_an_error():
    x, weights = cupy.ones((3, 2, 8), np.float32), [dnn.RNNWeights(cupy.ones((4, 8), np.float32), cupy.ones((4, 4), np.float32))]
    memory = cupy.empty(1 << 20, np.uint8)
    with pytest.raises(dnn.OptionError, match="memory aligned to 16 bytes"):
        dnn.rnn(x, weights, workspace=memory[1:])


def test_the_last_pixel_of_a_line_that_float32_cannot_count():
    """16,777,219 is rounded up to a pixel that is not there."""
    width = 2**24 + 4
    x = cupy.ones((1, 1, 1, width), np.float32)
    grid = cupy.asarray([[[[1.0, 0.0]]]], np.float32)
    whole = cupy.full(2 * width, np.nan, np.float32)[:width].reshape(x.shape)
    whole[...] = x
    y = dnn.grid_sample(whole, grid, mode="nearest", padding_mode="border", align_corners=True)
    assert float(y[0, 0, 0, 0]) == 1.0
