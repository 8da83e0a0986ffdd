"""Normalization: which algorithms there are for each operation."""

from __future__ import annotations

from dnnarray._cuda import norm_channels, norm_cluster, norm_local, norm_long, norm_rows, norm_strided
from dnnarray._select import Method

_ROWS = Method("rows", norm_rows.forward, "a row in the registers of a warp or a block", norm_rows.fits)
_LONG = Method("long_rows", norm_long.forward, "a block per row, which reads it twice", norm_long.fits, cost=norm_long.cost)
_LONG_BACKWARD = Method(
    "long_rows", norm_long.backward, "a block per row, then sums over the rows", norm_long.fits, norm_long.workspace, norm_long.cost
)
_STRIDED = Method("strided", norm_strided.forward, "any axes, element by element", norm_strided.fits, cost=norm_strided.cost)
_ROWS_BACKWARD = Method("rows", norm_rows.backward, "a row in the registers of a block that stays", norm_rows.fits, norm_rows.workspace)
_CLUSTER = Method("cluster_rows", norm_cluster.forward, "a row in the shared memory of a cluster that stays", norm_cluster.fits)
_CLUSTER_BACKWARD = Method(
    "cluster_rows",
    norm_cluster.backward,
    "a row in the shared memory of a cluster that stays",
    norm_cluster.fits,
    norm_cluster.workspace,
)
_STRIDED_BACKWARD = Method(
    "strided", norm_strided.backward, "any axes, element by element", norm_strided.fits, norm_strided.workspace, norm_strided.cost
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

_LAYER = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
_CHANNEL = ("batch_norm", "batch_norm_train", "group_norm", "instance_norm")
ALGORITHMS = (
    dict.fromkeys(_LAYER, (_CLUSTER, _ROWS, _LONG, _STRIDED))
    | {f"{name}_backward": (_CLUSTER_BACKWARD, _ROWS_BACKWARD, _LONG_BACKWARD, _STRIDED_BACKWARD) for name in _LAYER}
    | dict.fromkeys(_CHANNEL, (_CHANNELS,))
    | {f"{name}_backward": (_CHANNELS_BACKWARD,) for name in _CHANNEL}
    | {
        "local_response_norm": (Method("window_sum", norm_local.forward, "a thread per element, the window from the cache"),),
        "local_response_norm_backward": (
            Method("window_sum", norm_local.backward, "the same window forward and turned round", workspace=norm_local.workspace),
        ),
    }
)
