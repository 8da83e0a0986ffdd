"""Attention and what belongs to it: the algorithms of each operation on CUDA."""

from __future__ import annotations

from dnnarray._cuda import attention_rotary
from dnnarray._select import Method

_ROTARY = Method(
    "elementwise", attention_rotary.rotary, "each pair of features turned", attention_rotary.rejects, attention_rotary.workspace
)
_ROTARY_FORWARD = Method("elementwise", attention_rotary.rotary, "each pair of features turned", attention_rotary.rejects)

ALGORITHMS: dict[str, tuple[Method, ...]] = {"rotary_embedding": (_ROTARY_FORWARD,), "rotary_embedding_backward": (_ROTARY,)}
