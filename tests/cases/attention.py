"""Cases of the attention family."""

import numpy as np

from tests.support import Case, Draw, fixed, float32_beside_half, normal

_QKV = (normal(2, 4, 5, 3), normal(2, 2, 7, 3), normal(2, 2, 7, 2))
_NEG = -np.inf


def _bias_with_holes(*shape: int) -> Draw:
    """Biases, about a fifth of them -infinity; key 0 is always open."""

    def make(rng):
        bias = np.where(rng.random(shape) < 0.2, _NEG, rng.standard_normal(shape))
        bias[..., 0] = 0.5
        return bias

    return Draw(make)


def _open_mask(*shape: int) -> Draw:
    """A boolean mask; every row sees something but the last one of the last head."""

    def make(rng):
        mask = rng.random(shape) < 0.6
        mask[..., 0] = True
        mask[-1, -1, -1] = False
        return mask

    return Draw(make, "fixed")


def _attention(name, *arrays, reason, reduction=21, gradient=True, **options):
    return Case("attention", name, arrays, options, reason=reason, reduction=reduction, gradient=gradient)


def _scores(bias=None, mask=None, offset=None, slopes=None, sink=None, q_lengths=None, kv_lengths=None):
    """The optional arrays in signature order."""
    return bias, mask, offset, slopes, sink, q_lengths, kv_lengths


_LENGTHS = {"q_lengths": fixed([3, 5], np.int32), "kv_lengths": fixed([4, 6], np.int32)}

_DENSE = [
    _attention("grouped", *_QKV, reason="two query heads share a key head; D_v differs from D"),
    _attention("lse", *_QKV, return_lse=True, reason="log-sum-exp and its gradient"),
    _attention(
        "mha",
        normal(1, 3, 4, 5),
        normal(1, 3, 4, 5),
        normal(1, 3, 4, 5),
        causal=True,
        return_lse=True,
        reason="H == H_kv, square",
    ),
    _attention(
        "bshd",
        normal(2, 5, 4, 3),
        normal(2, 7, 2, 3),
        normal(2, 7, 2, 2),
        layout="BSHD",
        return_lse=True,
        reason="sequence first",
    ),
    _attention("lower_right", *_QKV, causal="lower_right", reason="the diagonal ends at the last key"),
    _attention(
        "upper_left", *_QKV, causal="upper_left", return_lse=True, reason="the diagonal starts at the first key"
    ),
    _attention(
        "more_queries",
        normal(1, 2, 6, 3),
        normal(1, 1, 4, 3),
        normal(1, 1, 4, 3),
        causal=True,
        reason="the first rows see nothing: zeros",
    ),
    _attention("window", *_QKV, window=(2, 1), reason="a band around the lower right diagonal"),
    _attention("window_left", *_QKV, window=(1, None), causal="upper_left", reason="sliding window, causal"),
    _attention("window_right", *_QKV, window=(None, 0), reason="unbounded to the left"),
    _attention("offset", *_QKV, *_scores(offset=fixed(3, np.int32)), causal=True, reason="one diagonal for all"),
    _attention(
        "offsets",
        *_QKV,
        *_scores(offset=fixed([-2, 4], np.int32)),
        causal=True,
        window=(3, None),
        reason="one per sequence",
    ),
    _attention(
        "many_keys",
        normal(1, 2, 1, 8),
        normal(1, 1, 256, 8),
        normal(1, 1, 256, 8),
        gradient=False,
        return_lse=True,
        reduction=256,
        reason="one query and keys enough to be split into parts",
    ),
    _attention("scale", *_QKV, scale=0.3, reason="an explicit scale"),
    _attention("softcap", *_QKV, softcap=1.5, return_lse=True, reason="capped scores and their slope"),
    _attention(
        "softcap_bias", *_QKV, *_scores(bias=normal(2, 4, 5, 7)), softcap=2.0, reason="the bias comes after the cap"
    ),
    _attention("bias_heads", *_QKV, *_scores(bias=normal(1, 4, 1, 7)), reason="a bias repeated over batch and queries"),
    _attention("bias_rank2", *_QKV, *_scores(bias=_bias_with_holes(5, 7)), reason="-infinity masks; fewer axes"),
    _attention("bias_rank1", *_QKV, *_scores(bias=normal(7)), reason="a bias per key"),
    _attention("mask", *_QKV, *_scores(mask=_open_mask(2, 4, 5, 7)), reason="one row sees nothing"),
    _attention("mask_keys", *_QKV, *_scores(mask=fixed([[[[1, 0, 1, 1, 0, 1, 0]]]], bool)), reason="a padding mask"),
    _attention("alibi", *_QKV, *_scores(slopes=normal(4)), reason="slopes per head"),
    _attention("alibi_batch", *_QKV, *_scores(slopes=normal(2, 4)), causal=True, reason="slopes per sequence and head"),
    _attention("sink", *_QKV, *_scores(sink=normal(4)), return_lse=True, reason="a score without a value"),
    _attention(
        "sink_causal", *_QKV, *_scores(sink=normal(4)), causal="upper_left", window=(1, 0), reason="sink and window"
    ),
    _attention(
        "sink_unseen",
        *_QKV,
        *_scores(mask=_open_mask(2, 4, 5, 7), sink=normal(4)),
        softcap=1.5,
        return_lse=True,
        reason="a row that sees the sink alone; the cap leaves the sink as it is",
    ),
    _attention(
        "sink_lengths",
        *_QKV,
        *_scores(sink=normal(4), **_LENGTHS),
        causal="upper_left",
        return_lse=True,
        gradient=False,
        reason="queries past the end do not see the sink either",
    ),
    _attention("lengths", *_QKV, *_scores(**_LENGTHS), reason="padding at the end of queries and keys"),
    _attention(
        "lengths_causal",
        *_QKV,
        *_scores(**_LENGTHS, sink=normal(4)),
        causal=True,
        reason="each sequence has its own diagonal",
    ),
    _attention(
        "kv_lengths",
        *_QKV,
        *_scores(kv_lengths=fixed([7, 0], np.int32)),
        causal=True,
        reason="a full and an empty cache",
    ),
    _attention(
        "everything",
        *_QKV,
        *_scores(normal(1, 4, 5, 7), _open_mask(2, 1, 1, 7), fixed([1, 3], np.int32), normal(4), normal(4), **_LENGTHS),
        causal=True,
        window=(4, 0),
        scale=0.7,
        softcap=3.0,
        reason="all options at once",
    ),
    _attention(
        "multi_query", normal(1, 6, 3, 4), normal(1, 1, 5, 4), normal(1, 1, 5, 4), reason="one key head for all"
    ),
    _attention("decode", normal(3, 2, 1, 4), normal(3, 1, 9, 4), normal(3, 1, 9, 4), causal=True, reason="one query"),
    _attention("one", normal(1, 1, 1, 1), normal(1, 1, 1, 1), normal(1, 1, 1, 1), reason="extent 1 everywhere"),
    _attention(
        "no_batch",
        normal(0, 4, 5, 3),
        normal(0, 2, 7, 3),
        normal(0, 2, 7, 3),
        return_lse=True,
        reason="a batch of nothing",
    ),
    Case(
        "attention",
        "no_keys",
        (normal(2, 2, 3, 4), normal(2, 2, 0, 4), normal(2, 2, 0, 4)),
        {"return_lse": True},
        reason="nothing to attend to: zeros, lse -infinity",
        gradient=False,
    ),
    _attention("no_queries", normal(2, 2, 0, 4), normal(2, 2, 3, 4), normal(2, 2, 3, 4), causal=True, reason="no rows"),
    _attention(
        "dropout", *_QKV, dropout=0.4, seed=3, return_lse=True, reason="dropped weights; lse knows nothing of them"
    ),
    _attention(
        "dropout_offset",
        *_QKV,
        dropout=0.3,
        seed=2**40 + 5,
        offset=7,
        layout="BHSD",
        causal=True,
        reason="another part of the stream",
    ),
    _attention("dropout_all", *_QKV, dropout=1.0, seed=0, reason="nothing is left"),
    _attention(
        "float32_parameters",
        *_QKV,
        *_scores(slopes=float32_beside_half(normal(4)), sink=float32_beside_half(normal(4))),
        reason="float32 slopes and sinks beside a half type",
    ),
    _attention(
        "eights",
        normal(1, 4, 5, 16),
        normal(1, 2, 7, 16),
        normal(1, 2, 7, 8),
        causal=True,
        return_lse=True,
        reason="widths that tensor cores take, decoding among them",
    ),
    _attention(
        "eights_capped",
        normal(1, 2, 66, 72),
        normal(1, 1, 7, 72),
        normal(1, 1, 7, 72),
        *_scores(sink=normal(2)),
        softcap=2.0,
        reason="widths of more than 64 features, more than 64 queries, capped",
    ),
    _attention(
        "eights_many", normal(1, 2, 66, 72), normal(1, 1, 7, 72), normal(1, 1, 7, 72), reason="the same without a cap"
    ),
    _attention(
        "eights_split",
        normal(1, 2, 1, 8),
        normal(1, 1, 260, 8),
        normal(1, 1, 260, 8),
        reduction=260,
        reason="one query, and keys enough for two parts",
    ),
    _attention(
        "eights_wide",
        normal(1, 1, 5, 136),
        normal(1, 1, 7, 136),
        normal(1, 1, 7, 136),
        reason="widths of more than 128 features",
    ),
    _attention(
        "group_blocks",
        normal(1, 9, 130, 2),
        normal(1, 1, 140, 2),
        normal(1, 1, 140, 2),
        causal=True,
        gradient=False,
        reason="a group of heads too large for one block of scores",
        reduction=140,
    ),
    _attention(
        "tiles",
        normal(1, 1, 259, 2),
        normal(1, 1, 521, 2),
        normal(1, 1, 521, 2),
        causal=True,
        reason="more than one block each way",
        reduction=521,
    ),
]

# --- packed sequences: 3 + 0 + 4 queries and 5 + 2 + 1 keys -----------------------------------------------------------

_PACKED = (
    normal(7, 4, 3),
    normal(8, 2, 3),
    normal(8, 2, 2),
    fixed([0, 3, 3, 7], np.int32),
    fixed([0, 5, 7, 8], np.int32),
)


def _varlen(name, *arrays, reason, **options):
    longest = {"max_seqlen_q": 4, "max_seqlen_k": 5}
    return Case("attention_varlen", name, arrays, longest | options, reason=reason, reduction=15)


_VARLEN = [
    _varlen("plain", *_PACKED, reason="three sequences, one without queries"),
    _varlen("lse", *_PACKED, None, normal(4), return_lse=True, max_seqlen_q=6, reason="log-sum-exp with a sink"),
    _varlen("causal", *_PACKED, causal=True, reason="a diagonal for each; some queries see nothing"),
    _varlen(
        "upper_left",
        *_PACKED,
        causal="upper_left",
        softcap=2.0,
        scale=0.4,
        return_lse=True,
        reason="the other diagonal",
    ),
    _varlen("window", *_PACKED, normal(3, 4), normal(4), window=(1, 1), reason="slopes per sequence, sinks, a band"),
    _varlen("alibi", *_PACKED, normal(4), causal=True, reason="slopes per head"),
    _varlen("dropout", *_PACKED, dropout=0.4, seed=9, offset=2, reason="counted as if padded"),
    _varlen(
        "no_keys",
        *_PACKED[:3],
        fixed([0, 3, 7], np.int32),
        fixed([0, 8, 8], np.int32),
        max_seqlen_k=8,
        reason="a sequence without keys",
    ),
    _varlen(
        "no_keys_sink",
        *_PACKED[:3],
        fixed([0, 3, 7], np.int32),
        fixed([0, 8, 8], np.int32),
        None,
        normal(4),
        max_seqlen_k=8,
        return_lse=True,
        reason="a sequence that sees the sink alone",
    ),
    Case(
        "attention_varlen",
        "nothing",
        (normal(0, 2, 3), normal(0, 2, 3), normal(0, 2, 3), fixed([0]), fixed([0])),
        {"max_seqlen_q": 0, "max_seqlen_k": 0},
        reason="no sequence at all",
    ),
]

# --- a paged cache: blocks of 2, lengths 5, 0 and 2 -------------------------------------------------------------------

_CACHE = (
    normal(7, 2, 2, 3),
    normal(7, 2, 2, 4),
    fixed([[6, 1, 4], [-1, -1, 99], [0, 99, -5]], np.int32),
    fixed([5, 0, 2], np.int32),
)


def _paged(name, *arrays, reason, **options):
    return Case("paged_attention", name, arrays, options, reason=reason, reduction=15, gradient=False)


_PAGED = [
    _paged(
        "decode", normal(3, 4, 3), *_CACHE, reason="one query a sequence; unused entries of the table hold anything"
    ),
    _paged("decode_lse", normal(3, 4, 3), *_CACHE, None, normal(4), return_lse=True, reason="lse (B, H), sinks"),
    _paged(
        "several",
        normal(3, 3, 4, 3),
        *_CACHE,
        return_lse=True,
        reason="the last three positions, causal; more queries than keys",
    ),
    _paged(
        "not_causal",
        normal(3, 2, 4, 3),
        *_CACHE,
        normal(3, 4),
        causal=False,
        reason="all queries see all keys; slopes per sequence",
    ),
    _paged(
        "window",
        normal(3, 2, 4, 3),
        *_CACHE,
        normal(4),
        window=(1, None),
        softcap=3.0,
        scale=0.5,
        reason="blocks left behind are skipped",
    ),
    _paged(
        "upper_left",
        normal(3, 2, 4, 3),
        *_CACHE,
        causal="upper_left",
        window=(0, 0),
        reason="a diagonal from the first key",
    ),
    _paged(
        "no_batch",
        normal(0, 4, 3),
        *_CACHE[:2],
        fixed(np.zeros((0, 3))),
        fixed(np.zeros(0)),
        reason="a batch of nothing",
    ),
]

# --- with projections -------------------------------------------------------------------------------------------------

_X = (normal(2, 3, 5), normal(2, 4, 6), normal(2, 4, 3))
_W = (normal(12, 5, scale=0.4), normal(6, 6, scale=0.4), normal(4, 3, scale=0.6), normal(7, 8, scale=0.4))
_B = (normal(12), normal(6), normal(4), normal(7))


def _multi_head(name, *arrays, reason, gradient=True, **options):
    return Case(
        "multi_head_attention", name, arrays, {"num_heads": 4} | options, reason=reason, reduction=60, gradient=gradient
    )


_MULTI_HEAD = [
    _multi_head(
        "grouped",
        *_X,
        *_W,
        *_B,
        num_kv_heads=2,
        softcap=2.0,
        reason="all widths differ, all biases; without a cap the gradient of b_k would be 0",
    ),
    _multi_head(
        "no_biases",
        normal(1, 3, 4),
        normal(1, 3, 4),
        normal(1, 3, 4),
        normal(4, 4),
        normal(4, 4),
        normal(4, 4),
        normal(4, 4),
        causal=True,
        num_heads=2,
        reason="the plain module",
    ),
    _multi_head(
        "options",
        *_X,
        *_W,
        None,
        None,
        None,
        _B[3],
        *_scores(
            normal(4, 3, 4),
            fixed([[[[1, 1, 1, 0]]]], bool),
            fixed([0, 2], np.int32),
            normal(4),
            normal(4),
            fixed([2, 3], np.int32),
            fixed([3, 4], np.int32),
        ),
        num_kv_heads=2,
        window=(3, 1),
        causal=True,
        scale=0.5,
        softcap=2.0,
        reason="the options of attention",
    ),
    _multi_head(
        "dropout",
        *_X,
        *_W,
        _B[0],
        None,
        num_kv_heads=2,
        dropout=0.3,
        seed=4,
        offset=5,
        reason="the same weights dropped on the way back",
    ),
    _multi_head(
        "no_batch",
        normal(0, 3, 5),
        normal(0, 4, 6),
        normal(0, 4, 3),
        *_W,
        *_B,
        num_kv_heads=2,
        reason="a batch of nothing",
    ),
]

# --- rotary embedding -------------------------------------------------------------------------------------------------

_ROTARY = [
    Case(
        "rotary_embedding",
        "halves",
        (normal(2, 3, 5, 6), normal(5, 3), normal(5, 3)),
        reason="features half the width apart",
    ),
    Case(
        "rotary_embedding",
        "interleaved",
        (normal(2, 3, 5, 6), normal(5, 3), normal(5, 3)),
        {"interleaved": True},
        reason="neighbours",
    ),
    Case(
        "rotary_embedding",
        "bshd",
        (normal(2, 5, 3, 6), normal(5, 3), normal(5, 3)),
        {"layout": "BSHD"},
        reason="sequence first",
    ),
    Case(
        "rotary_embedding",
        "batch",
        (normal(2, 3, 5, 6), normal(2, 5, 3), normal(2, 5, 3)),
        reason="positions of each sequence",
    ),
    Case(
        "rotary_embedding",
        "one_table",
        (normal(3, 2, 5, 6), normal(1, 5, 3), normal(1, 5, 3)),
        reason="the batch shares a table that has a batch axis",
    ),
    Case(
        "rotary_embedding",
        "one_table_bshd",
        (normal(3, 5, 2, 7), normal(1, 5, 3), normal(1, 5, 3)),
        {"layout": "BSHD", "interleaved": True},
        reason="the same, sequence first and a feature that stays",
    ),
    Case(
        "rotary_embedding",
        "one_table_empty",
        (normal(0, 3, 5, 6), normal(1, 5, 3), normal(1, 5, 3)),
        reason="a batch of nothing shares a table",
    ),
    Case(
        "rotary_embedding",
        "partial",
        (normal(2, 5, 3, 7), normal(2, 5, 2), normal(2, 5, 2)),
        {"interleaved": True, "layout": "BSHD"},
        reason="only the first four of seven features turn",
    ),
    Case(
        "rotary_embedding",
        "float32_tables",
        (normal(1, 2, 3, 4), float32_beside_half(normal(3, 2)), float32_beside_half(normal(3, 2))),
        reason="float32 tables beside a half type",
    ),
    Case("rotary_embedding", "empty", (normal(0, 3, 5, 6), normal(5, 3), normal(5, 3)), reason="a batch of nothing"),
    Case("rotary_embedding", "no_pairs", (normal(1, 2, 3, 1), normal(3, 0), normal(3, 0)), reason="nothing turns"),
]

CASES: list[Case] = [*_DENSE, *_VARLEN, *_PAGED, *_MULTI_HEAD, *_ROTARY]
