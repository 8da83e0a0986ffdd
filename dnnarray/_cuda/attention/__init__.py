"""Attention and what belongs to it: the algorithms, each with its plan in the module and its kernel in the file of the
same name."""

from dnnarray._cuda.attention import (
    mma,
    mma_backward,
    mma_decode,
    multi_head,
    rotary,
    rotary_backward,
    tiled,
    tiled_backward,
    wgmma,
    wgmma_backward,
)
from dnnarray._select import Method

_HOPPER = "the same by Hopper's asynchronous instructions"
_FORWARD = (
    Method("tiled", tiled.run, "tiles of scores with an online softmax", cost=tiled.cost),
    Method("mma", mma.run, "the same on tensor cores", mma.rejects, cost=mma.cost, rounds=True),
    Method("wgmma", wgmma.run, _HOPPER, wgmma.rejects, cost=wgmma.cost, rounds=True),
    Method(
        "mma_decode",
        mma_decode.run,
        "few queries on tensor cores, the keys split over the card",
        mma_decode.rejects,
        mma_decode.workspace,
        mma_decode.cost,
        rounds=True,
    ),
)
_BACKWARD = (
    Method(
        "tiled_backward",
        tiled_backward.run,
        "tiles of scores computed again from lse, a launch for each gradient",
        workspace=tiled_backward.workspace,
        cost=tiled_backward.cost,
    ),
    Method(
        "mma_backward",
        mma_backward.run,
        "the same on tensor cores",
        mma_backward.rejects,
        mma_backward.workspace,
        mma_backward.cost,
        rounds=True,
    ),
    Method(
        "wgmma_backward",
        wgmma_backward.run,
        _HOPPER,
        wgmma_backward.rejects,
        wgmma_backward.workspace,
        wgmma_backward.cost,
        rounds=True,
    ),
)

_PRODUCTS = "matrix products by cuBLAS around tiles of scores"
_MULTI_HEAD = (
    Method(
        "multi_head_tiled",
        multi_head.run_tiled,
        _PRODUCTS,
        workspace=multi_head.workspace_tiled,
        cost=multi_head.cost_tiled,
    ),
    Method(
        "multi_head_tiled_tf32",
        multi_head.run_tiled_tf32,
        f"{_PRODUCTS}, operands rounded to TF32",
        multi_head.only_float32,
        multi_head.workspace_tiled,
        multi_head.cost_tiled_tf32,
        precision="high",
    ),
    Method(
        "multi_head_mma",
        multi_head.run_mma,
        f"{_PRODUCTS} on tensor cores, rounded in between",
        multi_head.rejects_mma,
        multi_head.workspace_mma,
        multi_head.cost_mma,
        rounds=True,
    ),
    Method(
        "multi_head_wgmma",
        multi_head.run_wgmma,
        f"{_PRODUCTS} by Hopper's asynchronous instructions, rounded in between",
        multi_head.rejects_wgmma,
        multi_head.workspace_wgmma,
        multi_head.cost_wgmma,
        rounds=True,
    ),
)

_ROTARY = Method("rotary", rotary.run, "each pair of features turned, or turned back", rotary.rejects, rotary.workspace)
_ROTARY_BACKWARD = Method(
    "rotary_backward",
    rotary_backward.run,
    "each pair turned back, with the tables' sums",
    rotary_backward.rejects,
    rotary_backward.workspace,
)

_WHOLE = ("attention", "attention_varlen")
ALGORITHMS: dict[str, tuple[Method, ...]] = (
    dict.fromkeys((*_WHOLE, "paged_attention"), _FORWARD)
    | {f"{name}_backward": _BACKWARD for name in _WHOLE}
    | dict.fromkeys(("multi_head_attention", "multi_head_attention_backward"), _MULTI_HEAD)
    | {"rotary_embedding": (_ROTARY,), "rotary_embedding_backward": (_ROTARY, _ROTARY_BACKWARD)}
)
