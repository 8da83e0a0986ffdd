"""Attention: every wrong argument by the words of its message."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.cases.attention import CASES
from tests.support import FLOAT32, FLOAT64, call

RNG = np.random.default_rng(11)


def draw(*shape, dtype=FLOAT64):
    return RNG.standard_normal(shape).astype(dtype)


def qkv():
    return draw(2, 4, 5, 3), draw(2, 2, 7, 3), draw(2, 2, 7, 2)


_WRONG = [
    (dnn.ShapeError, r"q is 3-dimensional \(2, 4, 5\); expected 4 dimensions \(B H S D\)", {"q": draw(2, 4, 5)}),
    (dnn.ShapeError, r"k is of shape \(3, 2, 7, 3\); expected \(2, 2, 7, 3\)", {"k": draw(3, 2, 7, 3)}),
    (dnn.ShapeError, r"k is of shape \(2, 2, 7, 4\); expected \(2, 2, 7, 3\)", {"k": draw(2, 2, 7, 4)}),
    (dnn.ShapeError, r"v is of shape \(2, 2, 6, 2\); expected \(2, 2, 7, 2\)", {"v": draw(2, 2, 6, 2)}),
    (
        dnn.ShapeError,
        r"q is of 4 heads; expected a multiple of the 3 heads of k",
        {"k": draw(2, 3, 7, 3), "v": draw(2, 3, 7, 2)},
    ),
    (dnn.ShapeError, r"q is of 5 heads; expected a multiple of the 7 heads of k", {"layout": "BSHD"}),
    (dnn.DTypeError, r"k is float32; expected float64, the dtype of q", {"k": draw(2, 2, 7, 3, dtype=FLOAT32)}),
    (dnn.DTypeError, r"q is int64; expected float64, float32", {"q": np.ones((2, 4, 5, 3), int)}),
    (dnn.ArrayTypeError, r"v is list", {"v": [1.0]}),
    (
        dnn.ShapeError,
        r"bias is of shape \(4, 7\); expected a shape that broadcasts to \(2, 4, 5, 7\)",
        {"bias": draw(4, 7)},
    ),
    (dnn.DTypeError, r"bias is float32; expected float64", {"bias": draw(5, 7, dtype=FLOAT32)}),
    (dnn.DTypeError, r"mask is float64; expected bool", {"mask": draw(5, 7)}),
    (dnn.ShapeError, r"mask is of shape \(3, 1, 1, 7\)", {"mask": np.ones((3, 1, 1, 7), bool)}),
    (dnn.OptionError, r"causal is 1; expected one of False, True, 'lower_right', 'upper_left'", {"causal": 1}),
    (dnn.OptionError, r"causal is 'left'", {"causal": "left"}),
    (dnn.OptionError, r"causal_offset is given; expected None .* Pass causal=True as well", {"causal_offset": 1}),
    (
        dnn.ShapeError,
        r"causal_offset is of shape \(3,\); expected \(2,\)",
        {"causal_offset": np.zeros(3, int), "causal": True},
    ),
    (dnn.DTypeError, r"causal_offset is float64; expected an integer", {"causal_offset": np.zeros(2), "causal": True}),
    (dnn.OptionError, r"window is 3; expected a pair", {"window": 3}),
    (dnn.OptionError, r"window is -1; expected an integer of 0 or more", {"window": (-1, 0)}),
    (dnn.OptionError, r"scale is nan; expected a finite number", {"scale": float("nan")}),
    (dnn.OptionError, r"softcap is -1.0; expected a finite number of 0 or more", {"softcap": -1.0}),
    (dnn.ShapeError, r"alibi_slopes is of shape \(3,\); expected \(4,\)", {"alibi_slopes": draw(3)}),
    (dnn.ShapeError, r"alibi_slopes is of shape \(4, 2\); expected \(2, 4\)", {"alibi_slopes": draw(4, 2)}),
    (
        dnn.DTypeError,
        r"alibi_slopes is float32; expected float64, the dtype of q",
        {"alibi_slopes": draw(4, dtype=FLOAT32)},
    ),
    (dnn.ShapeError, r"sink is of shape \(2,\); expected \(4,\)", {"sink": draw(2)}),
    (dnn.OptionError, r"dropout is 1.5; expected a finite number from 0 to 1", {"dropout": 1.5, "seed": 0}),
    (dnn.OptionError, r"seed is None; expected an integer where dropout is above 0", {"dropout": 0.5}),
    (dnn.OptionError, r"seed is -1; expected an integer from 0", {"dropout": 0.5, "seed": -1}),
    (dnn.OptionError, r"offset is -1; expected an integer from 0", {"dropout": 0.5, "seed": 1, "offset": -1}),
    (dnn.DTypeError, r"q_lengths is float64; expected an integer", {"q_lengths": np.ones(2)}),
    (dnn.ShapeError, r"kv_lengths is of shape \(1,\); expected \(2,\)", {"kv_lengths": np.ones(1, int)}),
    (
        dnn.OptionError,
        r"q_lengths is with values from 1 to 6; expected values from 0 to 5",
        {"q_lengths": np.array([1, 6])},
    ),
    (dnn.OptionError, r"kv_lengths is with values from -1 to 7", {"kv_lengths": np.array([-1, 7])}),
    (dnn.OptionError, r"layout is 'SBHD'; expected one of 'BHSD', 'BSHD'", {"layout": "SBHD"}),
    (dnn.OptionError, r"return_lse is 1; expected True or False", {"return_lse": 1}),
]


@pytest.mark.parametrize(("error", "message", "changes"), _WRONG, ids=[str(i) for i in range(len(_WRONG))])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_attention_names_what_is_wrong(error, message, changes, backward):
    q, k, v = _with(changes)
    options = {n: a for n, a in changes.items() if n not in "qkv"}
    name = "attention_backward" if backward else "attention"
    arrays = (draw(2, 4, 5, 2), q, k, v) if backward else (q, k, v)
    with pytest.raises(error, match=rf"{name}: ({message})"):
        getattr(dnn, name)(*arrays, **options)


def _with(changes):
    return tuple(changes.get(n, a) for n, a in zip("qkv", qkv(), strict=True))


@pytest.mark.parametrize(
    ("error", "message", "grad", "options"),
    [
        (dnn.ShapeError, r"grad is of shape \(2, 4, 5, 3\); expected \(2, 4, 5, 2\)", draw(2, 4, 5, 3), {}),
        (dnn.DTypeError, r"grad is float32; expected float64", draw(2, 4, 5, 2, dtype=FLOAT32), {}),
        (dnn.OptionError, r"grad is \(None, None\); expected an array, or a pair", (None, None), {}),
        (dnn.OptionError, r"grad is .* expected an array, or a pair", (draw(2, 4, 5, 2), None, None), {}),
        (dnn.ShapeError, r"grad is of shape \(2, 4\); expected \(2, 4, 5\)", (None, draw(2, 4)), {}),
        (dnn.ShapeError, r"output is of shape", draw(2, 4, 5, 2), {"output": draw(2, 4, 5, 3)}),
        (dnn.DTypeError, r"lse is float32", draw(2, 4, 5, 2), {"lse": draw(2, 4, 5, dtype=FLOAT32)}),
    ],
)
def test_attention_backward_names_what_is_wrong(error, message, grad, options):
    with pytest.raises(error, match=rf"attention_backward: {message}"):
        dnn.attention_backward(grad, *qkv(), **options)


_PACKED = {
    "q": draw(7, 4, 3),
    "k": draw(8, 2, 3),
    "v": draw(8, 2, 2),
    "cu_seqlens_q": np.array([0, 3, 7]),
    "cu_seqlens_k": np.array([0, 5, 8]),
}


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (dnn.ShapeError, r"q is 4-dimensional", {"q": draw(1, 7, 4, 3)}),
        (dnn.ShapeError, r"k is of shape \(8, 2, 4\); expected \(8, 2, 3\)", {"k": draw(8, 2, 4)}),
        (dnn.ShapeError, r"v is of shape \(7, 2, 2\); expected \(8, 2, 2\)", {"v": draw(7, 2, 2)}),
        (dnn.ShapeError, r"q is of 3 heads", {"q": draw(7, 3, 3)}),
        (dnn.DTypeError, r"v is float32; expected float64", {"v": draw(8, 2, 2, dtype=FLOAT32)}),
        (dnn.DTypeError, r"cu_seqlens_q is float64; expected an integer", {"cu_seqlens_q": np.array([0.0, 3, 7])}),
        (dnn.ShapeError, r"cu_seqlens_q is empty", {"cu_seqlens_q": np.zeros(0, int)}),
        (dnn.ShapeError, r"cu_seqlens_k is of shape \(2,\); expected \(3,\)", {"cu_seqlens_k": np.array([0, 8])}),
        (
            dnn.OptionError,
            r"cu_seqlens_q is from 1 to 7; expected bounds from 0 to 7",
            {"cu_seqlens_q": np.array([1, 3, 7])},
        ),
        (
            dnn.OptionError,
            r"cu_seqlens_k is from 0 to 9; expected bounds from 0 to 8",
            {"cu_seqlens_k": np.array([0, 3, 9])},
        ),
        (dnn.OptionError, r"cu_seqlens_q is falling", {"cu_seqlens_q": np.array([0, 9, 7], np.uint8)}),
        (dnn.OptionError, r"max_seqlen_k is 4; expected 5, the longest sequence, or more", {"max_seqlen_k": 4}),
        (dnn.OptionError, r"max_seqlen_q is 3; expected 4 or more, since 2 sequences have 7 rows", {"max_seqlen_q": 3}),
        (
            dnn.ShapeError,
            r"cu_seqlens_q is of no sequence",
            {"cu_seqlens_q": np.zeros(1, int), "cu_seqlens_k": np.zeros(1, int)},
        ),
        (dnn.OptionError, r"max_seqlen_k is -1", {"max_seqlen_k": -1}),
        (dnn.ShapeError, r"alibi_slopes is of shape \(3, 4\); expected \(2, 4\)", {"alibi_slopes": draw(3, 4)}),
        (dnn.OptionError, r"seed is None", {"dropout": 0.5}),
    ],
)
def test_attention_varlen_names_what_is_wrong(error, message, changes):
    given = _PACKED | {"max_seqlen_q": 4, "max_seqlen_k": 5} | changes
    arrays = [given.pop(n) for n in _PACKED]
    with pytest.raises(error, match=rf"attention_varlen: {message}"):
        dnn.attention_varlen(*arrays, **given)
    with pytest.raises(error, match=rf"attention_varlen_backward: {message}"):
        dnn.attention_varlen_backward(draw(*arrays[0].shape[:-1], 2), *arrays, **given)


_PAGED = {
    "q": draw(2, 4, 3),
    "k_cache": draw(5, 2, 2, 3),
    "v_cache": draw(5, 2, 2, 4),
    "block_table": np.array([[4, 0], [1, 2]]),
    "kv_lengths": np.array([3, 2]),
}


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (dnn.ShapeError, r"q is 2-dimensional", {"q": draw(2, 4)}),
        (dnn.ShapeError, r"k_cache is of shape \(5, 2, 2, 4\); expected \(5, 2, 2, 3\)", {"k_cache": draw(5, 2, 2, 4)}),
        (dnn.ShapeError, r"v_cache is of shape \(5, 3, 2, 4\)", {"v_cache": draw(5, 3, 2, 4)}),
        (dnn.ShapeError, r"k_cache is of block_size 0", {"k_cache": draw(5, 0, 2, 3), "v_cache": draw(5, 0, 2, 4)}),
        (dnn.ShapeError, r"q is of 3 heads", {"q": draw(2, 3, 3)}),
        (
            dnn.ShapeError,
            r"block_table is of shape \(3, 2\); expected \(2, \*\)",
            {"block_table": np.zeros((3, 2), int)},
        ),
        (dnn.DTypeError, r"block_table is float64", {"block_table": np.zeros((2, 2))}),
        (dnn.ShapeError, r"kv_lengths is of shape \(3,\)", {"kv_lengths": np.zeros(3, int)}),
        (
            dnn.OptionError,
            r"kv_lengths is with values from 2 to 5; expected values from 0 to 4",
            {"kv_lengths": np.array([5, 2])},
        ),
        (
            dnn.OptionError,
            r"block_table is with values from 0 to 5; expected values from 0 to 4",
            {"block_table": np.array([[0, 5], [5, 0]])},
        ),
        (dnn.OptionError, r"window is -2", {"window": (-2, None)}),
    ],
)
def test_paged_attention_names_what_is_wrong(error, message, changes):
    given = _PAGED | changes
    arrays = [given.pop(n) for n in _PAGED]
    with pytest.raises(error, match=rf"paged_attention: {message}"):
        dnn.paged_attention(*arrays, **given)


def test_paged_attention_has_no_gradient():
    with pytest.raises(dnn.UnsupportedError, match="paged_attention"):
        dnn.vjp("paged_attention", *_PAGED.values())


_MODULE = {
    "x_q": draw(2, 3, 5),
    "x_k": draw(2, 4, 6),
    "x_v": draw(2, 4, 3),
    "w_q": draw(12, 5),
    "w_k": draw(6, 6),
    "w_v": draw(4, 3),
    "w_o": draw(7, 8),
}


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (dnn.ShapeError, r"x_q is 2-dimensional", {"x_q": draw(3, 5)}),
        (dnn.ShapeError, r"x_k is of shape \(1, 4, 6\)", {"x_k": draw(1, 4, 6)}),
        (dnn.ShapeError, r"x_v is of shape \(2, 5, 3\)", {"x_v": draw(2, 5, 3)}),
        (
            dnn.ShapeError,
            r"w_q is of shape \(13, 5\); expected heads \* D rows, a multiple of num_heads, 4",
            {"w_q": draw(13, 5)},
        ),
        (dnn.ShapeError, r"w_q is of shape \(12, 3\); expected \(12, 5\)", {"w_q": draw(12, 3)}),
        (
            dnn.ShapeError,
            r"w_v is of shape \(5, 3\); expected heads \* D rows, a multiple of num_kv_heads, 2",
            {"w_v": draw(5, 3)},
        ),
        (dnn.ShapeError, r"w_k is of shape \(8, 6\); expected \(6, 6\)", {"w_k": draw(8, 6)}),
        (dnn.ShapeError, r"w_v is of shape \(4, 4\); expected \(4, 3\)", {"w_v": draw(4, 4)}),
        (dnn.ShapeError, r"w_o is of shape \(7, 9\); expected \(\*, 8\)", {"w_o": draw(7, 9)}),
        (dnn.ShapeError, r"b_k is of shape \(5,\); expected \(6,\)", {"b_k": draw(5)}),
        (dnn.DTypeError, r"b_o is float32", {"b_o": draw(7, dtype=FLOAT32)}),
        (dnn.OptionError, r"num_heads is 0", {"num_heads": 0}),
        (dnn.OptionError, r"num_kv_heads is 3; expected a divisor of num_heads, 4", {"num_kv_heads": 3}),
        (dnn.ShapeError, r"bias is of shape", {"bias": draw(5, 4)}),
        (dnn.OptionError, r"kv_lengths is with values", {"kv_lengths": np.array([1, 5])}),
    ],
)
def test_multi_head_attention_names_what_is_wrong(error, message, changes):
    given = _MODULE | {"num_heads": 4, "num_kv_heads": 2} | changes
    arrays = [given.pop(n) for n in _MODULE]
    with pytest.raises(error, match=rf"multi_head_attention: {message}"):
        dnn.multi_head_attention(*arrays, **given)
    with pytest.raises(error, match=rf"multi_head_attention_backward: {message}"):
        dnn.multi_head_attention_backward(draw(2, 3, 7), *arrays, **given)


@pytest.mark.parametrize(
    ("error", "message", "x", "cos", "sin", "options"),
    [
        (dnn.ShapeError, r"x is 3-dimensional", draw(3, 5, 6), draw(5, 3), draw(5, 3), {}),
        (dnn.ShapeError, r"cos is of shape \(4, 3\); expected \(5, \*\)", draw(2, 3, 5, 6), draw(4, 3), draw(4, 3), {}),
        (
            dnn.ShapeError,
            r"cos is of shape \(3, 5, 3\); expected \(2, 5, \*\)",
            draw(2, 3, 5, 6),
            draw(3, 5, 3),
            draw(3, 5, 3),
            {},
        ),
        (
            dnn.ShapeError,
            r"cos is of shape \(5, 4\); expected at most 3 columns",
            draw(2, 3, 5, 6),
            draw(5, 4),
            draw(5, 4),
            {},
        ),
        (dnn.ShapeError, r"sin is of shape \(5, 2\); expected \(5, 3\)", draw(2, 3, 5, 6), draw(5, 3), draw(5, 2), {}),
        (dnn.DTypeError, r"x is int64", np.ones((2, 3, 5, 6), int), draw(5, 3), draw(5, 3), {}),
        (
            dnn.DTypeError,
            r"cos is float32; expected float64",
            draw(2, 3, 5, 6),
            draw(5, 3, dtype=FLOAT32),
            draw(5, 3),
            {},
        ),
        (dnn.OptionError, r"layout is 'BHDS'", draw(2, 3, 5, 6), draw(5, 3), draw(5, 3), {"layout": "BHDS"}),
        (dnn.OptionError, r"interleaved is 1", draw(2, 3, 5, 6), draw(5, 3), draw(5, 3), {"interleaved": 1}),
    ],
)
def test_rotary_embedding_names_what_is_wrong(error, message, x, cos, sin, options):
    with pytest.raises(error, match=rf"rotary_embedding: {message}"):
        dnn.rotary_embedding(x, cos, sin, **options)
    with pytest.raises(error, match=rf"rotary_embedding_backward: {message}"):
        dnn.rotary_embedding_backward(x, x, cos, sin, **options)


@pytest.mark.parametrize("name", ["attention_varlen", "multi_head_attention", "rotary_embedding"])
def test_the_gradient_must_match(name):
    case = next(c for c in CASES if c.op == name)
    with pytest.raises(dnn.ShapeError, match=f"{name}_backward: grad is of shape"):
        call(f"{name}_backward", (draw(1, 1), *case.draw(FLOAT64)), case.options)
