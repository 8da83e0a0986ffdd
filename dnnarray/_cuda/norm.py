"""Normalization: which algorithms there are for each operation."""

from __future__ import annotations

from dataclasses import replace

from dnnarray._cuda import (
    norm_block,
    norm_channels,
    norm_cluster,
    norm_folded,
    norm_group,
    norm_local,
    norm_long,
    norm_rows,
    norm_rows_small,
    norm_slab,
    norm_staying,
    norm_strided,
    norm_tile,
)
from dnnarray._cuda.norm_common import discarded
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


_ROWS = Method("rows", norm_rows.forward, "a row in the registers of a warp or a block", norm_rows.fits)
_LONG = Method("long_rows", norm_long.forward, "a block per row, which reads it twice", norm_long.fits, cost=norm_long.cost)
_LONG_BACKWARD = Method(
    "long_rows", norm_long.backward, "a block per row, then sums over the rows", norm_long.fits, norm_long.workspace, norm_long.cost
)
_STRIDED = Method("strided", norm_strided.forward, "any axes, element by element", norm_strided.fits, cost=norm_strided.cost)
_ROWS_BACKWARD = _beside(
    Method("rows", norm_rows.backward, "a row in the registers of a block that stays", norm_rows.fits, norm_rows.workspace)
)
_APART_BACKWARD = _beside(
    Method("rows_apart", norm_rows_small.apart, "small: blocks of rows beside blocks of columns, in one launch", norm_rows_small.apart_fits)
)
_BEHIND_BACKWARD = _beside(
    Method(
        "rows_then_columns",
        norm_rows_small.behind,
        "small: rows, then columns with the statistics that the rows found, in two launches that overlap",
        norm_rows_small.behind_fits,
        norm_rows_small.behind_workspace,
    )
)
_CLUSTER = Method("cluster_rows", norm_cluster.forward, "a row in the shared memory of a cluster", norm_cluster.fits)
_STAYING = Method("staying_rows", norm_staying.forward, "a long row in a cluster that stays and keeps weight and bias", norm_staying.fits)
_CLUSTER_BACKWARD = _beside(
    Method(
        "cluster_rows",
        norm_cluster.backward,
        "a row in the shared memory of a cluster that stays",
        norm_cluster.fits,
        norm_cluster.workspace,
    )
)
_STRIDED_BACKWARD = _beside(
    Method("strided", norm_strided.backward, "any axes, element by element", norm_strided.fits, norm_strided.workspace, norm_strided.cost)
)

_CHANNELS = Method(
    "channels", norm_channels.forward, "sums per channel, then one pass", norm_channels.fits, norm_channels.workspace, norm_channels.cost
)
_CHANNELS_BACKWARD = Method(
    "channels",
    norm_channels.backward,
    "sums of the gradient per channel, then one pass",
    norm_channels.fits,
    norm_channels.workspace,
    norm_channels.cost,
)

_SLAB = Method("slab", norm_slab.forward, "whole channels in shared memory, read once", norm_slab.fits, cost=norm_slab.cost)
_SLAB_BACKWARD = _beside(
    Method("slab", norm_slab.backward, "whole channels in shared memory, read once", norm_slab.fits, norm_slab.workspace, norm_slab.cost)
)

_IN_BLOCK = "small: a statistic in the registers of a block"
_BLOCK = Method("block", norm_block.forward, _IN_BLOCK, norm_block.fits, norm_block.workspace, norm_block.cost)
_BLOCK_BACKWARD = _beside(Method("block", norm_block.backward, _IN_BLOCK, norm_block.fits, norm_block.workspace, norm_block.cost))

_GROUP = Method("rows", norm_group.forward, "the values of a group in the registers of a warp or a block", norm_group.fits)

_IN_TILE = "whole channels in the registers of a block, read once"
_TILE = Method("tile", norm_tile.forward, _IN_TILE, norm_tile.fits)
_TILE_BACKWARD = _beside(Method("tile", norm_tile.backward, _IN_TILE, norm_tile.fits))

_IN_TWO = "medium, channels last: sums, then statistics and result, in two launches that overlap"
_FOLDED = Method("folded", norm_folded.forward, _IN_TWO, norm_folded.fits, norm_folded.workspace, norm_folded.cost)
_FOLDED_BACKWARD = _beside(Method("folded", norm_folded.backward, _IN_TWO, norm_folded.fits, norm_folded.workspace, norm_folded.cost))

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
            Method("window", norm_local.window, "the window in registers", norm_local.window_fits),
            Method("window_sum", norm_local.forward, "a thread per element, the window from the cache", cost=norm_local.cost),
        ),
        "local_response_norm_backward": (
            Method("window", norm_local.window, "the windows in registers", norm_local.window_fits),
            Method(
                "window_sum",
                norm_local.backward,
                "the same window forward and turned round",
                workspace=norm_local.workspace,
                cost=norm_local.cost,
            ),
        ),
    }
)
