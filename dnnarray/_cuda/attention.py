"""Attention and what belongs to it: the algorithms of each operation on CUDA."""

from __future__ import annotations

from dnnarray._cuda import attention_backward, attention_rotary, attention_tiled
from dnnarray._select import Method

_TURN = "each pair of features turned"
_TILED = Method("tiled", attention_tiled.forward, "tiles of scores with an online softmax", cost=attention_tiled.cost)

_BACKWARD = Method(
    "tiled",
    attention_backward.backward,
    "tiles of scores computed again from lse, a launch for each gradient",
    workspace=attention_backward.workspace,
    cost=attention_tiled.cost,
)

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "attention": (_TILED,),
    "attention_backward": (_BACKWARD,),
    "attention_varlen": (_TILED,),
    "attention_varlen_backward": (_BACKWARD,),
    "paged_attention": (_TILED,),
    "rotary_embedding": (Method("elementwise", attention_rotary.rotary, _TURN, attention_rotary.rejects),),
    "rotary_embedding_backward": (
        Method("elementwise", attention_rotary.rotary, _TURN, attention_rotary.rejects, attention_rotary.workspace),
    ),
}
