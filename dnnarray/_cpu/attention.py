"""Attention and what belongs to it: the algorithms of each operation."""

from collections.abc import Callable
from typing import Any

from dnnarray._cpu import attention_dense, attention_packed, attention_projected, attention_rotary
from dnnarray._select import Method

_BLOCKS = "blocks of queries and keys with an online softmax"
_AGAIN = "blocks of queries and keys, the weights computed again from lse"


def _blocked(run: Callable[..., Any], summary: str) -> tuple[Method, ...]:
    """The half types are widened by blocks, not by whole arrays."""
    return (Method("blocked", run, summary, native=True),)


def _rotation(run: Callable[..., Any], summary: str) -> tuple[Method, ...]:
    return (Method("elementwise", run, summary),)


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "attention": _blocked(attention_dense.attention, _BLOCKS),
    "attention_backward": _blocked(attention_dense.attention_backward, _AGAIN),
    "attention_varlen": _blocked(attention_packed.varlen, f"{_BLOCKS}, one sequence after another"),
    "attention_varlen_backward": _blocked(attention_packed.varlen_backward, f"{_AGAIN}, one sequence after another"),
    "paged_attention": _blocked(attention_packed.paged, f"{_BLOCKS}, over the gathered blocks of one sequence after another"),
    "multi_head_attention": _blocked(attention_projected.multi_head, f"matrix products around {_BLOCKS}"),
    "multi_head_attention_backward": _blocked(attention_projected.multi_head_backward, f"matrix products around {_AGAIN}"),
    "rotary_embedding": _rotation(attention_rotary.rotary, "each pair of features turned"),
    "rotary_embedding_backward": _rotation(attention_rotary.rotary_backward, "each pair turned back, tables by sums over heads"),
}
