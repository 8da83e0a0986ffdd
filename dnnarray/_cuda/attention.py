"""Attention and what belongs to it: the algorithms of each operation on CUDA."""

from __future__ import annotations

from dnnarray._cuda import attention_backward, attention_decode, attention_mma, attention_rotary, attention_rotary_forward, attention_tiled
from dnnarray._cuda import attention_projected as projected
from dnnarray._select import Method

_ROTARY = Method(
    "elementwise", attention_rotary_forward.rotary, "each pair of features turned", workspace=attention_rotary_forward.workspace
)
_ROTARY_BACK = Method(
    "rotation",
    attention_rotary_forward.rotary,
    "each pair turned back",
    attention_rotary_forward.alone,
    attention_rotary_forward.workspace,
)
_ROTARY_BACKWARD = Method(
    "elementwise",
    attention_rotary.rotary_backward,
    "each pair turned back, with the tables' sums",
    attention_rotary.of_tables,
    attention_rotary.workspace,
)
_TILED = Method("tiled", attention_tiled.forward, "tiles of scores with an online softmax", cost=attention_tiled.cost)

_MMA = Method("mma", attention_mma.forward, "the same on tensor cores", attention_mma.rejects, cost=attention_mma.cost, rounds=True)
_WGMMA = Method(
    "wgmma",
    attention_mma.wgmma_forward,
    "the same by Hopper's asynchronous instructions",
    attention_mma.wgmma_rejects,
    cost=attention_mma.wgmma_cost,
    rounds=True,
)
_DECODE = Method(
    "mma_decode",
    attention_decode.decode,
    "few queries on tensor cores, the keys split over the card",
    attention_decode.decode_rejects,
    attention_decode.workspace,
    attention_decode.cost,
    rounds=True,
)
_MMA_BACKWARD = Method(
    "mma",
    attention_mma.backward,
    "the same on tensor cores",
    attention_mma.rejects,
    attention_backward.workspace,
    attention_mma.cost,
    rounds=True,
)
_WGMMA_BACKWARD = Method(
    "wgmma",
    attention_mma.wgmma_backward,
    "the same by Hopper's asynchronous instructions",
    attention_mma.wgmma_rejects,
    attention_backward.workspace,
    attention_mma.wgmma_cost,
    rounds=True,
)
_BACKWARD = Method(
    "tiled",
    attention_backward.backward,
    "tiles of scores computed again from lse, a launch for each gradient",
    workspace=attention_backward.workspace,
    cost=attention_tiled.cost,
)

_PRODUCTS = "matrix products by cuBLAS around tiles of scores"
_PROJECTED = (
    Method(
        "tiled",
        projected.multi_head("highest", projected.TILED),
        _PRODUCTS,
        workspace=projected.workspace(projected.TILED),
        cost=projected.cost(0.5),
    ),
    Method(
        "tiled_tf32",
        projected.multi_head("high", projected.TILED),
        f"{_PRODUCTS}, operands rounded to TF32",
        projected.only_float32,
        projected.workspace(projected.TILED),
        projected.cost(0.6),
        precision="high",
    ),
    Method(
        "mma",
        projected.multi_head("highest", projected.MMA),
        f"{_PRODUCTS} on tensor cores, rounded in between",
        projected.tensor_rejects(attention_mma.rejects),
        projected.workspace(projected.MMA),
        projected.tensor_cost(attention_mma.cost),
        rounds=True,
    ),
    Method(
        "wgmma",
        projected.multi_head("highest", projected.WGMMA),
        f"{_PRODUCTS} by Hopper's asynchronous instructions, rounded in between",
        projected.tensor_rejects(attention_mma.wgmma_rejects),
        projected.workspace(projected.WGMMA),
        projected.tensor_cost(attention_mma.wgmma_cost),
        rounds=True,
    ),
)

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "attention": (_TILED, _MMA, _WGMMA, _DECODE),
    "attention_backward": (_BACKWARD, _MMA_BACKWARD, _WGMMA_BACKWARD),
    "attention_varlen": (_TILED, _MMA, _WGMMA, _DECODE),
    "attention_varlen_backward": (_BACKWARD, _MMA_BACKWARD, _WGMMA_BACKWARD),
    "paged_attention": (_TILED, _MMA, _WGMMA, _DECODE),
    "multi_head_attention": _PROJECTED,
    "multi_head_attention_backward": _PROJECTED,
    "rotary_embedding": (_ROTARY,),
    "rotary_embedding_backward": (_ROTARY_BACK, _ROTARY_BACKWARD),
}
