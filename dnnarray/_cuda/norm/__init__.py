"""Normalization: the algorithms, each with its plan in the module and its kernel in the file of the same name."""

from dnnarray._cuda.norm import (
    channel_apply,
    channel_block,
    channel_block_backward,
    channel_block_backward_cluster,
    channel_block_cluster,
    channel_slab,
    channel_slab_backward,
    channel_tile,
    channel_tile_backward,
    channels,
    cluster_rows,
    cluster_rows_backward,
    folded,
    local_response,
    local_response_window,
    long_rows,
    pass_on,
    rows,
    rows_backward,
    staying_rows,
    strided,
)
from dnnarray._cuda.norm.shared import with_discarded
from dnnarray._select import Method

_ROWS_FORWARD = (
    Method(
        "staying_rows",
        staying_rows.run,
        "a long row in a cluster that stays and keeps weight and bias",
        staying_rows.rejects,
    ),
    Method("cluster_rows", cluster_rows.run, "a row in the shared memory of a cluster", cluster_rows.rejects),
    Method("rows", rows.run, "a row in the registers of a warp or a block", rows.rejects),
    Method("long_rows", long_rows.run, "a block per row, which reads it twice", long_rows.rejects, cost=long_rows.cost),
    Method("strided", strided.run, "any axes, element by element", strided.rejects, cost=strided.cost),
)
_ROWS_BACKWARD = (
    with_discarded(
        Method(
            "cluster_rows_backward",
            cluster_rows_backward.run,
            "a row in the shared memory of a cluster that stays",
            cluster_rows_backward.rejects,
            cluster_rows_backward.workspace,
        )
    ),
    with_discarded(
        Method(
            "rows_backward",
            rows_backward.run,
            "a row in the registers of a block that stays",
            rows_backward.rejects,
            rows_backward.workspace,
        )
    ),
    Method(
        "long_rows",
        long_rows.run_backward,
        "a block per row, then sums over the rows",
        long_rows.rejects,
        long_rows.workspace,
        long_rows.cost,
    ),
    with_discarded(
        Method(
            "strided",
            strided.run_backward,
            "any axes, element by element",
            strided.rejects,
            strided.workspace,
            strided.cost,
        )
    ),
)
_SMALL_ROWS_BACKWARD = (
    with_discarded(
        Method(
            "rows_backward_with_columns",
            rows_backward.run_with_columns,
            "small: blocks of rows beside blocks of columns, in one launch",
            rows_backward.rejects_with_columns,
        )
    ),
    with_discarded(
        Method(
            "rows_backward_then_columns",
            rows_backward.run_then_columns,
            "small: rows, then columns with the statistics that the rows found, in two launches that overlap",
            rows_backward.rejects_then_columns,
            rows_backward.workspace_then_columns,
        )
    ),
)
_PASS_ON = Method("pass_on", pass_on.run, "the gradient of a sum alone, for both terms", pass_on.rejects)

_CHANNELS = Method(
    "channels", channels.run, "sums per channel, then one pass", channels.rejects, channels.workspace, channels.cost
)
_CHANNELS_BACKWARD = Method(
    "channels",
    channels.run_backward,
    "sums of the gradient per channel, then one pass",
    channels.rejects,
    channels.workspace,
    channels.cost,
)
_IN_SLAB = "whole channels in shared memory, read once"
_SLAB = Method("channel_slab", channel_slab.run, _IN_SLAB, channel_slab.rejects, cost=channel_slab.cost)
_SLAB_BACKWARD = with_discarded(
    Method(
        "channel_slab_backward",
        channel_slab_backward.run,
        _IN_SLAB,
        channel_slab_backward.rejects,
        channel_slab_backward.workspace,
        channel_slab_backward.cost,
    )
)
_IN_BLOCK, _IN_CLUSTER = (
    "small: a statistic in the registers of a block",
    "small: a statistic in the registers of a cluster",
)
_BLOCK = (
    Method(
        "channel_block",
        channel_block.run,
        _IN_BLOCK,
        channel_block.rejects,
        channel_block.workspace,
        channel_block.cost,
    ),
    Method(
        "channel_block_cluster",
        channel_block_cluster.run,
        _IN_CLUSTER,
        channel_block_cluster.rejects,
        channel_block_cluster.workspace,
        channel_block_cluster.cost,
    ),
)
_BLOCK_BACKWARD = tuple(
    with_discarded(Method(name, plan.run, summary, plan.rejects, plan.workspace, plan.cost))
    for name, plan, summary in (
        ("channel_block_backward", channel_block_backward, _IN_BLOCK),
        ("channel_block_backward_cluster", channel_block_backward_cluster, _IN_CLUSTER),
    )
)
_IN_TILE = "whole channels in the registers of a block, read once"
_TILE = Method("channel_tile", channel_tile.run, _IN_TILE, channel_tile.rejects)
_TILE_BACKWARD = with_discarded(
    Method("channel_tile_backward", channel_tile_backward.run, _IN_TILE, channel_tile_backward.rejects)
)
_IN_TWO = "medium, channels last: sums, then statistics and result, in two launches that overlap"
_FOLDED = Method("folded", folded.run, _IN_TWO, folded.rejects, folded.workspace, folded.cost)
_FOLDED_BACKWARD = with_discarded(
    Method("folded", folded.run_backward, _IN_TWO, folded.rejects, folded.workspace, folded.cost)
)

_IN_WINDOW = "the window in registers"
_WINDOW = Method("local_response_window", local_response_window.run, _IN_WINDOW, local_response_window.rejects)
_LAYER = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
_FOUND = ("batch_norm_train", "group_norm", "instance_norm")  # statistics of x itself
ALGORITHMS: dict[str, tuple[Method, ...]] = (
    dict.fromkeys(_LAYER, _ROWS_FORWARD)
    # an addition saves no statistics
    | {f"{name}_backward": (*_SMALL_ROWS_BACKWARD, *_ROWS_BACKWARD) for name in _LAYER[:2]}
    | {f"{name}_backward": (_PASS_ON, *_ROWS_BACKWARD) for name in _LAYER[2:]}
    | {
        "batch_norm": (
            Method(
                "channel_apply",
                channel_apply.run,
                "one pass with the given statistics",
                channels.rejects,
                channels.workspace,
                channels.cost,
            ),
        )
    }
    | {"batch_norm_train": (*_BLOCK, _TILE, _FOLDED, _SLAB, _CHANNELS)}
    | {
        "group_norm": (
            *_BLOCK,
            Method(
                "rows",
                rows.run_groups,
                "the values of a group in the registers of a warp or a block",
                rows.rejects_groups,
            ),
            _SLAB,
            _CHANNELS,
        ),
        "instance_norm": (*_BLOCK, _SLAB, _CHANNELS),
    }
    | {"batch_norm_backward": (_SLAB_BACKWARD, _CHANNELS_BACKWARD)}
    | {f"{name}_backward": (*_BLOCK_BACKWARD, _SLAB_BACKWARD, _CHANNELS_BACKWARD) for name in _FOUND}
    | {
        "batch_norm_train_backward": (
            *_BLOCK_BACKWARD,
            _TILE_BACKWARD,
            _FOLDED_BACKWARD,
            _SLAB_BACKWARD,
            _CHANNELS_BACKWARD,
        )
    }
    | {
        "local_response_norm": (
            _WINDOW,
            Method(
                "local_response",
                local_response.run,
                "a thread per element, the window from the cache",
                cost=local_response.cost,
            ),
        ),
        "local_response_norm_backward": (
            _WINDOW,
            Method(
                "local_response",
                local_response.run_backward,
                "the same window forward and turned round",
                workspace=local_response.workspace,
                cost=local_response.cost,
            ),
        ),
    }
)
