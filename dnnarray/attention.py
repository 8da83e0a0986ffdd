"""Attention: over whole arrays, packed sequences and a paged cache, with its projections, and rotary embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from dnnarray._call.arrays import spec_of
from dnnarray._call.operation import find, operation
from dnnarray._problems import attention as problems
from dnnarray._problems import attention_packed as packed
from dnnarray._problems import attention_projected as projected
from dnnarray._problems import attention_rotary as rotary
from dnnarray._problems.attention import AttentionGradients, AttentionOutput
from dnnarray._problems.attention_packed import AttentionVarlenGradients
from dnnarray._problems.attention_projected import MultiHeadAttentionGradients
from dnnarray._problems.attention_rotary import RotaryGradients
from dnnarray._spec import HALF
from dnnarray._typing import Array, ArrayT, Causal, HeadLayout, Window

__all__ = [
    "AttentionGradients",
    "AttentionOutput",
    "AttentionVarlenGradients",
    "MultiHeadAttentionGradients",
    "RotaryGradients",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "multi_head_attention",
    "multi_head_attention_backward",
    "paged_attention",
    "rotary_embedding",
    "rotary_embedding_backward",
]

_DENSE = ("bias", "mask", "causal_offset", "alibi_slopes", "sink", "q_lengths", "kv_lengths")
_PACKED = ("alibi_slopes", "sink")
_RANDOM = ("seed", "offset")


def _save(name: str) -> Any:
    """For `vjp`: run with lse, and keep it with the output. A half output has lost what the backward wants of it, and
    is left out."""

    def save(*arrays: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = find(name).call(arrays, options | {"return_lse": True})
        kept = {"lse": result.lse} if spec_of(result.y).dtype in HALF else {"output": result.y, "lse": result.lse}
        return result if options["return_lse"] else result.y, kept

    return save


@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    /,
    *,
    bias: Array | None = ...,
    mask: Array | None = ...,
    causal: Causal = ...,
    causal_offset: Array | int | None = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    q_lengths: Array | None = ...,
    kv_lengths: Array | None = ...,
    layout: HeadLayout = ...,
    return_lse: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    /,
    *,
    bias: Array | None = ...,
    mask: Array | None = ...,
    causal: Causal = ...,
    causal_offset: Array | int | None = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    q_lengths: Array | None = ...,
    kv_lengths: Array | None = ...,
    layout: HeadLayout = ...,
    return_lse: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> AttentionOutput[ArrayT]: ...


@operation(
    problems.attention,
    arrays=_DENSE,
    runtime=_RANDOM,
    numbers=("causal_offset",),
    values=problems.lengths,
    save=_save("attention"),
)
def attention(
    q: ArrayT,
    k: Array,
    v: Array,
    /,
    *,
    bias: Array | None = None,
    mask: Array | None = None,
    causal: Causal = False,
    causal_offset: Array | int | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    q_lengths: Array | None = None,
    kv_lengths: Array | None = None,
    layout: HeadLayout = "BHSD",
    return_lse: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Scaled dot-product attention, in memory that grows with S and never with S_q x S_k.

    For each sequence b and head h, with ``d`` the diagonal (see `causal`)::

        s[i, j] = softcap * tanh(scale * q[i] . k[j] / softcap)        # or scale * q[i] . k[j]
                  - alibi_slope * |i + d - j| + bias[i, j]             # -inf where j is not seen
        w[i, j] = exp(s[i, j]) / (exp(sink) + sum_j exp(s[i, j]))
        y[i]    = sum_j dropout(w[i, j]) * v[j]

    A query that sees no key gives 0, with a sink and without.

    Parameters
    ----------
    q : array (B, H, S_q, D)
        Queries: float64, float32, float16 or bfloat16; half types are computed in float32.
    k : array (B, H_kv, S_k, D)
        Keys, in the dtype of `q`. H is a multiple of H_kv: query head h reads key head ``h // (H // H_kv)``.
    v : array (B, H_kv, S_k, D_v)
        Values, in the dtype of `q`.
    bias : array, optional
        Added to the scores; dtype of `q`, any shape that broadcasts to (B, H, S_q, S_k). -inf masks.
    mask : bool array, optional
        True = attend; any shape that broadcasts to (B, H, S_q, S_k).
    causal : {False, True, "lower_right", "upper_left"}, default False
        Query i sees the keys ``j <= i + d``. True and "lower_right" end the diagonal at the last key, ``d = S_k - S_q``
        (of each sequence's own lengths where they are given); "upper_left" starts it at the first key, ``d = 0``, as
        PyTorch's ``is_causal`` does.
    causal_offset : int or integer array () or (B,), optional
        Names the diagonal ``d`` itself, in place of the choice in `causal`; for all sequences or for each. It counts
        for `causal`, `window` and `alibi_slopes`, and one of them must be given.
    window : (left, right), optional
        Query i sees the keys ``i + d - left <= j <= i + d + right``; None is unbounded on that side. Without `causal`,
        ``d`` is that of "lower_right". `causal` cuts `right` to 0.
    scale : float, optional
        Factor of the products; 1 / sqrt(D) by default.
    softcap : float, optional
        Bounds the scaled scores smoothly to (-softcap, softcap), before `alibi_slopes` and `bias`. None or 0: no bound.
    alibi_slopes : array (H,) or (B, H), optional
        Linear biases: ``-slope * |i + d - j|``. Dtype of `q`, or float32 beside a half type. They have no gradient.
    sink : array (H,), optional
        A further score of each head that takes part in the softmax and has no value: neither `scale` nor `softcap`,
        `bias` or `mask` changes it. Dtype as `alibi_slopes`. Minus infinity is no sink.
    dropout : float, default 0.0
        Probability that a weight is dropped; those that stay are divided by ``1 - dropout``.
    seed : int, optional
        Required with `dropout`. The same seed drops the same weights: random number ``offset + e`` decides over the
        weight of flat position e in (B, H, S_q, S_k).
    offset : int, default 0
        Where in the random numbers of `seed` to begin.
    q_lengths, kv_lengths : integer array (B,), optional
        How many queries and keys of each sequence are real. Queries past the end give 0 and keys past the end are not
        seen; what they hold does not matter.
    layout : {"BHSD", "BSHD"}, default "BHSD"
        Order of the axes of `q`, `k`, `v` and the result. `bias`, `mask` and lse keep (B, H, ...) in both.
    return_lse : bool, default False
        Return the log-sum-exp of each row of scores too.
    out : array or tuple of arrays, optional
        Where to write the results; no memory in common with the inputs.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array (B, H, S_q, D_v), or AttentionOutput(y, lse)
        y in the dtype of `q`; lse (B, H, S_q) is ``log(exp(sink) + sum_j exp(s[i, j]))``, the natural logarithm of what
        the weights are divided by, before `dropout`; float32 for half types, else in the dtype of `q`. It counts the
        sink: a query that sees no key has ``lse = sink``, -inf without a sink. A query past its length has -inf in both
        cases. Results over parts of the keys are joined by their lse; give the sink to one of the parts alone.

    Raises
    ------
    ShapeError
        Shapes do not fit each other, or H is no multiple of H_kv.
    DTypeError
        An array is not of the dtype it should have.
    OptionError
        An option is outside its range, `causal_offset` would have no effect, `dropout` has no `seed`, or a length is
        outside its sequence.

    Notes
    -----
    On a GPU nothing looks at the lengths before the work: one below 0 counts as 0, one beyond the array as all of it.

    References
    ----------
    Vaswani et al., "Attention is all you need", 2017. Dao et al., "FlashAttention", 2022: blocks. Milakov and
    Gimelshein, "Online normalizer calculation for softmax", 2018. Ainslie et al., "GQA", 2023. Press et al., "Train
    short, test long", 2021: alibi. Gemma Team, "Gemma 2", 2024: softcap. Xiao et al., "Efficient streaming language
    models with attention sinks", 2023.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> q = k = np.zeros((1, 1, 3, 2))
    >>> v = np.array([1.0, 3.0, 8.0]).reshape(1, 1, 3, 1)
    >>> dnn.attention(q, k, v).ravel()
    array([4., 4., 4.])
    >>> dnn.attention(q, k, v, causal=True).ravel()
    array([1., 2., 4.])
    """


@operation(
    problems.attention_backward,
    arrays=(*_DENSE, "output", "lse"),
    runtime=_RANDOM,
    nested=("grad",),
    numbers=("causal_offset",),
    values=problems.lengths,
)
def attention_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    bias: Array | None = None,
    mask: Array | None = None,
    causal: Causal = False,
    causal_offset: Array | int | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    q_lengths: Array | None = None,
    kv_lengths: Array | None = None,
    layout: HeadLayout = "BHSD",
    return_lse: bool = False,
    output: Array | None = None,
    lse: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AttentionGradients[ArrayT]:
    """Gradients of `attention`, in memory that grows with S and never with S_q x S_k.

    With ``delta[i] = grad[i] . y[i] - grad_lse[i]`` the gradient of the scores is ``ds = w * (grad[i] . v[j] -
    delta[i])``, computed again block by block from `lse`.

    Parameters
    ----------
    grad : array of the shape of y, or a pair
        Gradient of y; or of (y, lse), where one may be None.
    q, k, v : array
        As in `attention`.
    bias, mask, causal_offset, alibi_slopes, sink, q_lengths, kv_lengths : array, optional
        As in `attention`.
    causal, window, scale, softcap, dropout, seed, offset, layout, return_lse
        As in `attention`; `return_lse` changes nothing here.
    output, lse : array, optional
        What ``attention(..., return_lse=True)`` returned. Both together save a second forward. For half types an
        `output` that was rounded makes the gradients less exact than one computed again.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace : array, optional
        As in `attention`; `out` is a tuple without the absent gradients.

    Returns
    -------
    AttentionGradients(q, k, v, bias, sink)
        Each in shape and dtype of its array; `bias` and `sink` are None where they were not given. The gradient of a
        bias that was broadcast is the sum over the axes of the broadcast.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `attention`; or `grad`, `output` or `lse` do not match its results.

    References
    ----------
    Dao et al., "FlashAttention", 2022.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> q = k = np.zeros((1, 1, 2, 1))
    >>> v = np.array([1.0, 3.0]).reshape(1, 1, 2, 1)
    >>> dnn.attention_backward(np.ones((1, 1, 2, 1)), q, k, v, causal=True).v.ravel()
    array([1.5, 0.5])
    """


@overload
def attention_varlen(
    q: ArrayT,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    /,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Causal = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    return_lse: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def attention_varlen(
    q: ArrayT,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    /,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Causal = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    dropout: float = ...,
    seed: int | None = ...,
    offset: int = ...,
    return_lse: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> AttentionOutput[ArrayT]: ...


@operation(
    packed.attention_varlen,
    arrays=_PACKED,
    runtime=_RANDOM,
    values=packed.packed_bounds,
    save=_save("attention_varlen"),
)
def attention_varlen(
    q: ArrayT,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    /,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Causal = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Attention over sequences of different lengths, packed one behind another without padding.

    Sequence n has the queries ``q[cu_seqlens_q[n]:cu_seqlens_q[n + 1]]`` and the keys and values
    ``k[cu_seqlens_k[n]:cu_seqlens_k[n + 1]]``, and gets `attention` of them alone.

    Parameters
    ----------
    q : array (total_q, H, D)
        Queries of all N sequences: float64, float32, float16 or bfloat16.
    k : array (total_k, H_kv, D)
        Keys.
    v : array (total_k, H_kv, D_v)
        Values.
    cu_seqlens_q, cu_seqlens_k : integer array (N + 1,)
        Where each sequence starts, and the total at the end: 0 first, never falling.
    max_seqlen_q, max_seqlen_k : int
        No sequence is longer.
    causal, window, scale, softcap
        As in `attention`; the diagonal is each sequence's own.
    alibi_slopes : array (H,) or (N, H), optional
        As in `attention`.
    sink : array (H,), optional
        As in `attention`.
    dropout, seed, offset
        As in `attention`; the flat position of a weight is that in (N, H, max_seqlen_q, max_seqlen_k), as if all were
        padded.
    return_lse : bool, default False
        Return lse (H, total_q) too.
    out, workspace : array, optional
        As in `attention`.

    Returns
    -------
    array (total_q, H, D_v), or AttentionOutput(y, lse)
        lse (H, total_q), as in `attention`: it counts the sink.

    Raises
    ------
    ShapeError, DTypeError
        As in `attention`.
    OptionError
        An option is outside its range, or the bounds do not start with 0, fall, do not end with the total, or a
        sequence is longer than said. On a GPU nothing looks at the bounds before the work: a sequence whose bounds lie
        outside of the arrays, fall, or are farther apart than said gives NaN, and rows that no sequence has are not
        written.

    References
    ----------
    Dao, "FlashAttention-2", 2023 (``flash_attn_varlen_func``).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> q = k = np.zeros((3, 1, 2))
    >>> v = np.array([1.0, 3.0, 8.0]).reshape(3, 1, 1)
    >>> bounds = np.array([0, 2, 3])
    >>> dnn.attention_varlen(q, k, v, bounds, bounds, max_seqlen_q=2, max_seqlen_k=2).ravel()
    array([2., 2., 8.])
    """


@operation(
    packed.attention_varlen_backward,
    arrays=(*_PACKED, "output", "lse"),
    runtime=_RANDOM,
    nested=("grad",),
    values=packed.packed_bounds,
)
def attention_varlen_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    /,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: Causal = False,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    output: Array | None = None,
    lse: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AttentionVarlenGradients[ArrayT]:
    """Gradients of `attention_varlen`.

    Parameters
    ----------
    grad : array (total_q, H, D_v), or a pair
        Gradient of y; or of (y, lse), where one may be None.
    q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sink : array
        As in `attention_varlen`.
    max_seqlen_q, max_seqlen_k, causal, window, scale, softcap, dropout, seed, offset, return_lse
        As in `attention_varlen`.
    output, lse : array, optional
        What the forward returned, as in `attention_backward`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace : array, optional
        As in `attention`.

    Returns
    -------
    AttentionVarlenGradients(q, k, v, sink)
        Each in shape and dtype of its array; `sink` is None where it was not given.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `attention_varlen`; or `grad`, `output` or `lse` do not match its results.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> q = k = v = np.zeros((3, 1, 1))
    >>> bounds = np.array([0, 2, 3])
    >>> grad = np.array([1.0, 3.0, 8.0]).reshape(3, 1, 1)
    >>> dnn.attention_varlen_backward(grad, q, k, v, bounds, bounds, max_seqlen_q=2, max_seqlen_k=2).v.ravel()
    array([2., 2., 8.])
    """


@overload
def paged_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    kv_lengths: Array,
    /,
    *,
    causal: Causal = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    return_lse: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def paged_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    kv_lengths: Array,
    /,
    *,
    causal: Causal = ...,
    window: Window | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    alibi_slopes: Array | None = ...,
    sink: Array | None = ...,
    return_lse: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> AttentionOutput[ArrayT]: ...


@operation(packed.paged_attention, arrays=_PACKED, values=packed.pages)
def paged_attention(
    q: ArrayT,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    kv_lengths: Array,
    /,
    *,
    causal: Causal = True,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    return_lse: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Attention to keys and values that lie in the blocks of a cache, as they do when text is generated.

    Position j of sequence b is in ``k_cache[block_table[b, j // block_size], j % block_size]``. The queries are the
    last positions of their sequence. This is for inference and has no gradient.

    Parameters
    ----------
    q : array (B, H, D) or (B, S_q, H, D)
        One query a sequence, or S_q of them: float64, float32, float16 or bfloat16.
    k_cache : array (blocks, block_size, H_kv, D)
        Keys, in the dtype of `q`; those of the queries themselves are among them.
    v_cache : array (blocks, block_size, H_kv, D_v)
        Values.
    block_table : integer array (B, max_blocks)
        The blocks of each sequence in order. Entries behind those that a length uses may hold anything.
    kv_lengths : integer array (B,)
        Keys of each sequence, at most ``max_blocks * block_size``.
    causal : {True, False, "lower_right", "upper_left"}, default True
        As in `attention`; with the diagonal at the end of the keys, each query sees what came before it and itself. It
        says nothing for one query.
    window, scale, softcap
        As in `attention`. Blocks that the window has left behind are not read.
    alibi_slopes : array (H,) or (B, H), optional
        As in `attention`.
    sink : array (H,), optional
        As in `attention`.
    return_lse : bool, default False
        Return lse (B, H) or (B, H, S_q) too.
    out, workspace : array, optional
        As in `attention`.

    Returns
    -------
    array (B, H, D_v) or (B, S_q, H, D_v), or AttentionOutput(y, lse)
        As in `attention`; a sequence of length 0 gives 0, and its lse is the sink, -inf without one.

    Raises
    ------
    ShapeError, DTypeError
        As in `attention`.
    OptionError
        An option is outside its range, a length does not fit into the block table, or a block that is used does not
        exist. On a GPU nothing looks at them before the work: such a length counts as all of the table, and such a
        block gives NaN.

    References
    ----------
    Kwon et al., "Efficient memory management for large language model serving with PagedAttention", 2023.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> q, k_cache = np.zeros((1, 1, 2)), np.zeros((3, 2, 1, 2))
    >>> v_cache = np.array([[9.0, 9.0], [6.0, 9.0], [1.0, 2.0]]).reshape(3, 2, 1, 1)
    >>> block_table, lengths = np.array([[2, 1]]), np.array([3])  # the keys with the values 1, 2 and 6
    >>> dnn.paged_attention(q, k_cache, v_cache, block_table, lengths).ravel()
    array([3.])
    """


@operation(
    projected.multi_head_attention,
    arrays=("b_q", "b_k", "b_v", "b_o", *_DENSE),
    runtime=_RANDOM,
    numbers=("causal_offset",),
    values=problems.lengths,
)
def multi_head_attention(
    x_q: ArrayT,
    x_k: Array,
    x_v: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    /,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    causal: Causal = False,
    causal_offset: Array | int | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    q_lengths: Array | None = None,
    kv_lengths: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Multi-head attention with its four projections.

    ``q, k, v = x_q @ w_q.T + b_q, x_k @ w_k.T + b_k, x_v @ w_v.T + b_v``, cut into heads of D (D_v) neighbouring
    features; `attention`; the heads side by side again, and ``y = a @ w_o.T + b_o``.

    Parameters
    ----------
    x_q : array (B, S_q, E_q)
        What asks: float64, float32, float16 or bfloat16.
    x_k : array (B, S_k, E_k)
        What is looked at; for self-attention `x_q` again.
    x_v : array (B, S_k, E_v)
        What is taken from there.
    w_q : array (H D, E_q)
        Weights (out, in), as in `linear`, with H = `num_heads`.
    w_k : array (H_kv D, E_k)
        With H_kv = `num_kv_heads`.
    w_v : array (H_kv D_v, E_v)
        Likewise.
    w_o : array (E_out, H D_v)
        The output projection.
    b_q, b_k, b_v, b_o : array, optional
        Biases of the projections, (out,) of their weights.
    num_heads : int
        Query heads.
    num_kv_heads : int, optional
        Key and value heads, a divisor of `num_heads`; `num_heads` by default.
    bias, mask, causal_offset, alibi_slopes, sink, q_lengths, kv_lengths : array, optional
        As in `attention`. A query past its length gives ``b_o``.
    causal, window, scale, softcap, dropout, seed, offset
        As in `attention`.
    out, workspace : array, optional
        As in `attention`.

    Returns
    -------
    array (B, S_q, E_out)
        In the dtype of `x_q`. Half types are rounded only here: projections and heads stay in float32 between.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `attention`; or weights do not fit inputs and heads.

    References
    ----------
    Vaswani et al., "Attention is all you need", 2017.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, w = np.array([[[1.0, 2.0], [3.0, 4.0]]]), np.eye(2)
    >>> dnn.multi_head_attention(x, x, x, 0 * w, w, w, w, num_heads=2)
    array([[[2., 3.],
            [2., 3.]]])
    """


@operation(
    projected.multi_head_attention_backward,
    arrays=("b_q", "b_k", "b_v", "b_o", *_DENSE),
    runtime=_RANDOM,
    numbers=("causal_offset",),
    values=problems.lengths,
)
def multi_head_attention_backward(
    grad: ArrayT,
    x_q: Array,
    x_k: Array,
    x_v: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    /,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    causal: Causal = False,
    causal_offset: Array | int | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sink: Array | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    offset: int = 0,
    q_lengths: Array | None = None,
    kv_lengths: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> MultiHeadAttentionGradients[ArrayT]:
    """Gradients of `multi_head_attention`.

    The projections and the attention are computed again.

    Parameters
    ----------
    grad : array (B, S_q, E_out)
        Gradient of the output.
    x_q, x_k, x_v, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o : array
        As in `multi_head_attention`.
    bias, mask, causal_offset, alibi_slopes, sink, q_lengths, kv_lengths : array, optional
        As in `multi_head_attention`.
    num_heads, num_kv_heads, causal, window, scale, softcap, dropout, seed, offset
        As in `multi_head_attention`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace : array, optional
        As in `attention`; `out` is a tuple without the absent gradients.

    Returns
    -------
    MultiHeadAttentionGradients(x_q, x_k, x_v, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, bias, sink)
        Each in shape and dtype of its array, None where it was not given. In self-attention the gradient of x is
        ``x_q + x_k + x_v``.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `multi_head_attention`; or `grad` does not match its result.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, w = np.array([[[1.0, 2.0], [3.0, 4.0]]]), np.eye(2)
    >>> gradients = dnn.multi_head_attention_backward(np.ones((1, 2, 2)), x, x, x, 0 * w, w, w, w, num_heads=2)
    >>> gradients.w_v
    array([[4., 6.],
           [4., 6.]])
    """


@operation(rotary.rotary_embedding)
def rotary_embedding(
    x: ArrayT,
    cos: Array,
    sin: Array,
    /,
    *,
    interleaved: bool = False,
    layout: HeadLayout = "BHSD",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Rotary position embedding: each pair of features (a, b) is turned by the angle of its position.

    ``a' = a cos - b sin``, ``b' = b cos + a sin``, with one angle for each position and pair. The pairs are features i
    and ``i + R/2``, or with `interleaved` 2 i and ``2 i + 1``, where R/2 is the number of columns of `cos`. Features
    from R on stay as they are.

    Parameters
    ----------
    x : array (B, H, S, D)
        float64, float32, float16 or bfloat16; half types are computed in float32.
    cos, sin : array (S, R/2), (B, S, R/2) or (1, S, R/2)
        Cosine and sine of the angles, which all batch items share or each has of its own; R = D usually, R < D turns
        the first R features (as GPT-NeoX does). Dtype of `x`, or float32 beside a half type.
    interleaved : bool, default False
        Neighbours are a pair (GPT-J, RoFormer), instead of features half of R apart (GPT-NeoX, Llama).
    layout : {"BHSD", "BSHD"}, default "BHSD"
        Order of the axes of `x` and the result.
    out : array, optional
        Where to write the result; no memory in common with the inputs.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `cos` is none of (S, R/2), (B, S, R/2) and (1, S, R/2) with R up to D, or `sin` is not of its shape.
    DTypeError
        `x` is not floating, or a table has another dtype.
    OptionError
        `layout` or `interleaved` is none of their values.

    References
    ----------
    Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([1.0, 2.0]).reshape(1, 1, 1, 2)
    >>> dnn.rotary_embedding(x, np.array([[0.0]]), np.array([[1.0]])).ravel()  # a quarter turn
    array([-2., 1.])
    """


@operation(rotary.rotary_embedding_backward)
def rotary_embedding_backward(
    grad: ArrayT,
    x: Array,
    cos: Array,
    sin: Array,
    /,
    *,
    interleaved: bool = False,
    layout: HeadLayout = "BHSD",
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> RotaryGradients[ArrayT]:
    """Gradients of `rotary_embedding`: `grad` turned back, and for the tables the sums over heads (and batch, where it
    shares them).

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x, cos, sin : array
        As in `rotary_embedding`.
    interleaved, layout
        As in `rotary_embedding`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out, workspace : array, optional
        As in `rotary_embedding`; `out` is a tuple of three.

    Returns
    -------
    RotaryGradients(x, cos, sin)
        Each in shape and dtype of its array.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `rotary_embedding`; or `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([1.0, 2.0]).reshape(1, 1, 1, 2)
    >>> dnn.rotary_embedding_backward(x, x, np.array([[0.0]]), np.array([[1.0]])).x.ravel()
    array([ 2., -1.])
    """
