"""What the values in memory, or where it lies, may not do: send a kernel out of its arrays."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves
from tests.support import call_by

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lengths_beyond_the_arrays_count_as_the_whole(dtype):
    draw = np.random.default_rng(0).standard_normal
    for heads, queries in ((2, 70), (2, 3), (1, 1)):
        q, k = (
            cupy.asarray(draw((2, heads, queries, 64)).astype(dtype)),
            cupy.asarray(draw((2, heads, 90, 64)).astype(dtype)),
        )
        beyond = {"q_lengths": np.array([queries + 10**6, -5]), "kv_lengths": np.array([10**7, 50])}
        within = {"q_lengths": np.array([queries, 0]), "kv_lengths": np.array([90, 50])}
        results = [
            cupy.asnumpy(dnn.attention(q, k, k, causal=True, **{n: cupy.asarray(a) for n, a in lengths.items()}))
            for lengths in (beyond, within)
        ]
        assert results[0].tobytes() == results[1].tobytes()


def _by_every_algorithm(op, arrays, options):
    """The results of each algorithm by its name, on the host."""
    arrays = tuple(None if a is None else cupy.asarray(a) for a in arrays)
    names = [a.name for a in dnn.algorithms(op, *arrays, **options)]
    return {name: [cupy.asnumpy(a) for a in leaves(call_by(name, op, arrays, options))] for name in names}


_FAR = 2**40
_PACKED = ((0, 8, 20), (0, 400, 700))  # queries and keys of two sequences


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("q_bounds", "k_bounds", "unsound"),
    [
        ((0, 8, _FAR), _PACKED[1], {1}),
        ((-_FAR, 8, 20), _PACKED[1], {0}),
        (_PACKED[0], (0, 400, 2**62), {1}),
        (_PACKED[0], (0, _FAR, 700), {0, 1}),
        (_PACKED[0], (0, 400, 100), {1}),
        ((0, 8, 21), _PACKED[1], {1}),
    ],
    ids=["beyond", "below", "keys_beyond", "keys_between", "falling", "one_beyond"],
)
def test_packed_sequences_with_bounds_outside_of_the_arrays_are_nan(q_bounds, k_bounds, unsound, dtype):
    """The other sequences are what they always are."""
    rng = np.random.default_rng(0)
    q, k, grad = (rng.standard_normal(shape).astype(dtype) for shape in ((20, 4, 64), (700, 2, 64), (20, 4, 64)))
    options = {"max_seqlen_q": 12, "max_seqlen_k": 500, "causal": True}
    bad, good = ((q, k, k, np.array(a), np.array(b)) for a, b in ((q_bounds, k_bounds), _PACKED))
    results, expected = (
        _by_every_algorithm("attention_varlen", a, options | {"return_lse": True}) for a in (bad, good)
    )
    assert len(results) >= (2 if dtype == "float16" else 1)
    gradients, known = (_by_every_algorithm("attention_varlen_backward", (grad, *a), options) for a in (bad, good))
    for n, (start, end) in enumerate(((0, 8), (8, 20))):
        for name, (y, lse) in results.items():
            for a, e in (
                (y[start:end], expected[name][0][start:end]),
                (lse[:, start:end], expected[name][1][:, start:end]),
            ):
                np.testing.assert_array_equal(a, np.full_like(e, np.nan) if n in unsound else e, err_msg=name)
        for name, (dq, *of_keys) in gradients.items():
            np.testing.assert_array_equal(
                dq[start:end], np.full_like(dq[start:end], np.nan) if n in unsound else known[name][0][start:end]
            )
            if n not in unsound:
                rows = slice(*_PACKED[1][n : n + 2])
                for a, e in zip(of_keys, known[name][1:], strict=True):
                    np.testing.assert_array_equal(a[rows], e[rows], err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_sequences_that_are_longer_than_said_are_nan(dtype):
    q, k = cupy.ones((20, 4, 64), dtype), cupy.ones((700, 2, 64), dtype)
    bounds = tuple(map(np.array, _PACKED))
    for y, *_ in _by_every_algorithm(
        "attention_varlen", (q, k, k, *bounds), {"max_seqlen_q": 12, "max_seqlen_k": 350}
    ).values():
        assert np.isnan(y[:8].astype(np.float32)).all()
        np.testing.assert_array_equal(y[8:], np.ones_like(y[8:]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("queries", [(), (5,), (70,)], ids=str)
@pytest.mark.parametrize("number", [-1, 6, _FAR])
def test_a_block_that_the_cache_does_not_have_gives_nan(number, queries, dtype):
    rng = np.random.default_rng(0)
    q, cache = (
        rng.standard_normal((3, *queries, 4, 64)).astype(dtype),
        rng.standard_normal((6, 128, 2, 64)).astype(dtype),
    )
    table, lengths = np.array([[0, 1, 2], [3, 4, 5], [5, 3, 1]]), np.array([384, 300, 200])
    good = _by_every_algorithm("paged_attention", (q, cache, cache, table, lengths), {"return_lse": True})
    table[1, 1] = table[2, 2] = number  # the second is beyond the length of its sequence
    for name, (y, lse) in _by_every_algorithm(
        "paged_attention", (q, cache, cache, table, lengths), {"return_lse": True}
    ).items():
        assert np.isnan(y[1].astype(np.float32)).all(), name
        assert np.isnan(lse[1]).all(), name
        np.testing.assert_array_equal(y[::2], good[name][0][::2])
        np.testing.assert_array_equal(lse[::2], good[name][1][::2])


def test_a_table_without_rows_has_no_row_for_any_index():
    y = dnn.embedding(cupy.zeros(3, np.int64), cupy.empty((0, 4), np.float32))
    assert bool(cupy.isnan(y).all())


def test_projections_of_memory_that_is_not_aligned_stay_in_the_workspace():
    def shifted(*shape):
        whole = cupy.asarray(
            (np.random.default_rng(sum(shape)).standard_normal(np.prod(shape) + 1) * 0.2).astype(np.float16)
        )
        return whole[1:].reshape(shape)

    arrays = [
        shifted(*shape) for shape in ((2, 70, 32), (2, 80, 24), (2, 80, 24), (64, 32), (64, 24), (64, 24), (48, 64))
    ]
    expected = dnn.multi_head_attention(*(cupy.asnumpy(a).astype(np.float64) for a in arrays), num_heads=4)
    actual = dnn.multi_head_attention(*arrays, num_heads=4)
    np.testing.assert_allclose(cupy.asnumpy(actual).astype(np.float64), expected, atol=2e-2)


def test_boxes_without_images_are_an_error():
    with pytest.raises(dnn.OptionError, match="x has no images"):
        dnn.roi_align(cupy.empty((0, 2, 4, 4), np.float32), cupy.zeros((1, 5), np.float32), output_size=2)


def test_a_workspace_that_is_not_aligned_is_an_error():
    x, weights = (
        cupy.ones((3, 2, 8), np.float32),
        [dnn.RNNWeights(cupy.ones((4, 8), np.float32), cupy.ones((4, 4), np.float32))],
    )
    memory = cupy.empty(1 << 20, np.uint8)
    with pytest.raises(dnn.OptionError, match="memory aligned to 16 bytes"):
        dnn.rnn(x, weights, workspace=memory[1:])


def test_a_workspace_that_overlaps_is_an_error():
    memory = cupy.zeros(1 << 22, np.uint8)
    x, w = memory[-4 * 8 * 81 :].view(np.float32).reshape(1, 8, 9, 9), cupy.ones((8, 8, 3, 3), np.float32)
    needed = next(a.workspace for a in dnn.algorithms("conv", x, w) if a.name == "gemm")
    assert 0 < needed < memory.nbytes - x.nbytes
    dnn.conv(x, w, algorithm="gemm", workspace=memory)
    with pytest.raises(dnn.OptionError, match="workspace is memory shared with an input or an output"):
        dnn.conv(x, w, algorithm="gemm", workspace=memory[-needed // 16 * 16 :])


def test_addresses_between_elements_are_an_error():
    memory = cupy.zeros(4096, np.uint8)
    x, y = memory[1:401].view(np.float32), memory[1025:1425].view(np.float32)
    good, other = memory[2048:2448].view(np.float32), memory[3076:3476].view(np.float32)
    for _ in range(2):
        for arrays, out in (((x,), None), ((good,), y), ((x,), other)):
            with pytest.raises(dnn.ArrayTypeError, match="multiples of its 4 bytes"):
                dnn.relu(*arrays, out=out)
        dnn.relu(other)  # at a multiple of 4 bytes, not of 16
    with pytest.raises(dnn.ArrayTypeError, match="multiples of its 4 bytes"):
        dnn.relu(memory[:700].reshape(100, 7)[:, :4].view(np.float32))


def test_the_last_pixel_of_a_line_that_float32_cannot_count():
    """16,777,219 is rounded up to a pixel that is not there."""
    width = 2**24 + 4
    x = cupy.ones((1, 1, 1, width), np.float32)
    grid = cupy.asarray([[[[1.0, 0.0]]]], np.float32)
    whole = cupy.full(2 * width, np.nan, np.float32)[:width].reshape(x.shape)
    whole[...] = x
    y = dnn.grid_sample(whole, grid, mode="nearest", padding_mode="border", align_corners=True)
    assert float(y[0, 0, 0, 0]) == 1.0
