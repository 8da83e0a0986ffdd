"""Normalization: which algorithms there are for each operation."""

from __future__ import annotations

from dataclasses import replace

from dnnarray._cuda.norm import (
    channel_block,
    channel_slab,
    channel_tile,
    channels,
    cluster_rows,
    folded,
    groups,
    local_response,
    long_rows,
    rows,
    rows_small,
    staying_rows,
    strided,
)
from dnnarray._cuda.norm.shared import discarded
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Cost, Device, Method


def _beside(method: Method) -> Method:
    """A gradient whose kernels write that of x beside the others: to scratch memory, where it is not wanted."""

    def workspace(problem: NormProblem) -> int:
        return method.workspace(problem) + discarded(problem)

    def cost(problem: NormProblem, device: Device) -> Cost:
        found = method.cost(problem, device)
        return replace(found, bytes=found.bytes + discarded(problem))

    return replace(method, workspace=workspace, cost=cost)


_ROWS = Method("rows", rows.forward, "a row in the registers of a warp or a block", rows.fits)
_LONG = Method("long_rows", long_rows.forward, "a block per row, which reads it twice", long_rows.fits, cost=long_rows.cost)
_LONG_BACKWARD = Method(
    "long_rows", long_rows.backward, "a block per row, then sums over the rows", long_rows.fits, long_rows.workspace, long_rows.cost
)
_STRIDED = Method("strided", strided.forward, "any axes, element by element", strided.fits, cost=strided.cost)
_ROWS_BACKWARD = _beside(Method("rows", rows.backward, "a row in the registers of a block that stays", rows.fits, rows.workspace))
_APART_BACKWARD = _beside(
    Method("rows_apart", rows_small.apart, "small: blocks of rows beside blocks of columns, in one launch", rows_small.apart_fits)
)
_BEHIND_BACKWARD = _beside(
    Method(
        "rows_then_columns",
        rows_small.behind,
        "small: rows, then columns with the statistics that the rows found, in two launches that overlap",
        rows_small.behind_fits,
        rows_small.behind_workspace,
    )
)
_CLUSTER = Method("cluster_rows", cluster_rows.forward, "a row in the shared memory of a cluster", cluster_rows.fits)
_STAYING = Method("staying_rows", staying_rows.forward, "a long row in a cluster that stays and keeps weight and bias", staying_rows.fits)
_CLUSTER_BACKWARD = _beside(
    Method(
        "cluster_rows",
        cluster_rows.backward,
        "a row in the shared memory of a cluster that stays",
        cluster_rows.fits,
        cluster_rows.workspace,
    )
)
_STRIDED_BACKWARD = _beside(
    Method("strided", strided.backward, "any axes, element by element", strided.fits, strided.workspace, strided.cost)
)

_CHANNELS = Method("channels", channels.forward, "sums per channel, then one pass", channels.fits, channels.workspace, channels.cost)
_CHANNELS_BACKWARD = Method(
    "channels",
    channels.backward,
    "sums of the gradient per channel, then one pass",
    channels.fits,
    channels.workspace,
    channels.cost,
)

_SLAB = Method("slab", channel_slab.forward, "whole channels in shared memory, read once", channel_slab.fits, cost=channel_slab.cost)
_SLAB_BACKWARD = _beside(
    Method(
        "slab",
        channel_slab.backward,
        "whole channels in shared memory, read once",
        channel_slab.fits,
        channel_slab.workspace,
        channel_slab.cost,
    )
)

_IN_BLOCK = "small: a statistic in the registers of a block"
_BLOCK = Method("block", channel_block.forward, _IN_BLOCK, channel_block.fits, channel_block.workspace, channel_block.cost)
_BLOCK_BACKWARD = _beside(
    Method("block", channel_block.backward, _IN_BLOCK, channel_block.fits, channel_block.workspace, channel_block.cost)
)

_GROUP = Method("rows", groups.forward, "the values of a group in the registers of a warp or a block", groups.fits)

_IN_TILE = "whole channels in the registers of a block, read once"
_TILE = Method("tile", channel_tile.forward, _IN_TILE, channel_tile.fits)
_TILE_BACKWARD = _beside(Method("tile", channel_tile.backward, _IN_TILE, channel_tile.fits))

_IN_TWO = "medium, channels last: sums, then statistics and result, in two launches that overlap"
_FOLDED = Method("folded", folded.forward, _IN_TWO, folded.fits, folded.workspace, folded.cost)
_FOLDED_BACKWARD = _beside(Method("folded", folded.backward, _IN_TWO, folded.fits, folded.workspace, folded.cost))

_GRADIENTS = (_CLUSTER_BACKWARD, _ROWS_BACKWARD, _LONG_BACKWARD, _STRIDED_BACKWARD)
_LAYER = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
_FOUND = ("batch_norm_train", "group_norm", "instance_norm")  # statistics of x itself
ALGORITHMS = (
    dict.fromkeys(_LAYER, (_STAYING, _CLUSTER, _ROWS, _LONG, _STRIDED))
    | {f"{name}_backward": _GRADIENTS for name in _LAYER}
    | {f"{name}_backward": (_APART_BACKWARD, _BEHIND_BACKWARD, *_GRADIENTS) for name in _LAYER[:2]}  # an addition saves no statistics
    | {"batch_norm": (_CHANNELS,)}
    | {"batch_norm_train": (_BLOCK, _TILE, _FOLDED, _SLAB, _CHANNELS)}
    | {"group_norm": (_BLOCK, _GROUP, _SLAB, _CHANNELS), "instance_norm": (_BLOCK, _SLAB, _CHANNELS)}
    | {"batch_norm_backward": (_SLAB_BACKWARD, _CHANNELS_BACKWARD)}
    | {f"{name}_backward": (_BLOCK_BACKWARD, _SLAB_BACKWARD, _CHANNELS_BACKWARD) for name in _FOUND}
    | {"batch_norm_train_backward": (_BLOCK_BACKWARD, _TILE_BACKWARD, _FOLDED_BACKWARD, _SLAB_BACKWARD, _CHANNELS_BACKWARD)}
    | {
        "local_response_norm": (
            Method("window", local_response.window, "the window in registers", local_response.window_fits),
            Method("window_sum", local_response.forward, "a thread per element, the window from the cache", cost=local_response.cost),
        ),
        "local_response_norm_backward": (
            Method("window", local_response.window, "the windows in registers", local_response.window_fits),
            Method(
                "window_sum",
                local_response.backward,
                "the same window forward and turned round",
                workspace=local_response.workspace,
                cost=local_response.cost,
            ),
        ),
    }
)
