"""Pooling: the algorithms, each with its plan in the module and its kernel in the file of the same name."""

from dnnarray._cuda.pool import (
    argmax_gradient,
    argmax_gradient_bulk,
    argmax_gradient_tma,
    bulk_argmax,
    direct,
    disjoint_gradient,
    gather,
    gather_channels_last,
    global_gradient,
    global_pool,
    indices_gradient_bulk,
    mean_gradient,
    norm_gradient,
    norm_gradient_channels_last,
    pipelined_rows,
    separable,
    separable_channels_last,
    separable_gradient,
    shared_planes,
    shared_scatter,
    small_windows,
    small_windows_gradient,
    small_windows_gradient_mma,
    stride_one,
    tiling_gradient,
    unpool_gradient,
    unpool_shared,
    unpool_strided,
    unpool_tiles,
    vector_windows,
)
from dnnarray._cuda.pool.gradient import saved_bytes, taps_bytes
from dnnarray._select import Method

_STRIDE_ONE = Method(
    "stride_one", stride_one.run, "means of windows of up to 3 x 3 that move by one element", stride_one.rejects
)
_PIPELINED_ROWS = Method(
    "pipelined_rows",
    pipelined_rows.run,
    "rows of x pass through a pipeline in shared memory",
    pipelined_rows.rejects,
    cost=pipelined_rows.cost,
)
_BULK_ARGMAX = Method(
    "bulk_argmax",
    bulk_argmax.run,
    "runs of rows come into shared memory by TMA",
    bulk_argmax.rejects,
    cost=bulk_argmax.cost,
)
_SMALL_WINDOWS = Method(
    "small_windows", small_windows.run, "windows in registers, down the rows", small_windows.rejects
)
_VECTOR_WINDOWS = Method(
    "vector_windows", vector_windows.run, "windows that begin and end with vectors of a row", vector_windows.rejects
)
_SEPARABLE_LAST = Method(
    "separable_channels_last",
    separable_channels_last.run,
    "sums down the columns, then along the rows, in channels-last memory",
    separable_channels_last.rejects,
    cost=separable_channels_last.cost,
)
_SEPARABLE = Method("separable", separable.run, "down the columns, then along the rows", separable.rejects)
_SHARED_PLANES = Method(
    "shared_planes", shared_planes.run, "whole planes in shared memory", shared_planes.rejects, cost=shared_planes.cost
)
_GLOBAL_POOL = Method(
    "global_pool", global_pool.run, "a plane becomes one element", global_pool.rejects, cost=global_pool.cost
)
_DIRECT = Method(
    "direct", direct.run, "every window by itself, neighbours through the cache", direct.rejects, cost=direct.cost
)

_ANY = (_SEPARABLE, _SHARED_PLANES, _GLOBAL_POOL, _DIRECT)
_MAXIMA = (_PIPELINED_ROWS, _SMALL_WINDOWS, _VECTOR_WINDOWS, *_ANY)
_INDICES = (_PIPELINED_ROWS, _BULK_ARGMAX, _SMALL_WINDOWS, _VECTOR_WINDOWS, *_ANY)
_MEANS = (_STRIDE_ONE, _SMALL_WINDOWS, _VECTOR_WINDOWS, _SEPARABLE_LAST, *_ANY)
_NORMS = (_SMALL_WINDOWS, _VECTOR_WINDOWS, *_ANY)

_TILING = Method(
    "tiling_gradient",
    tiling_gradient.run,
    "windows tile the planes: each element takes its part of one",
    tiling_gradient.rejects,
    tiling_gradient.workspace,
    tiling_gradient.cost,
)
_SMALL_GRADIENT = Method(
    "small_windows_gradient",
    small_windows_gradient.run,
    "sums in registers for the tiles under a window",
    small_windows_gradient.rejects,
    small_windows_gradient.workspace,
    small_windows_gradient.cost,
)
_GATHER_LAST = Method(
    "gather_channels_last",
    gather_channels_last.run,
    "windows are fetched once for several columns",
    gather_channels_last.rejects,
    gather_channels_last.workspace,
    gather_channels_last.cost,
)
_GATHER = Method(
    "gather",
    gather.run,
    "for each element a sum over the windows that cover it",
    gather.rejects,
    gather.workspace,
    gather.cost,
)

_MEAN_GRADIENTS = (
    Method("global_gradient", global_gradient.run, "elements of a plane get the same", global_gradient.rejects),
    Method(
        "stride_one_gradient",
        stride_one.run_gradient,
        "sums over windows that move by one element",
        stride_one.gradient_rejects,
    ),
    Method(
        "mean_gradient",
        mean_gradient.run,
        "down the rows, which lie in two rows of windows",
        mean_gradient.rejects,
        cost=mean_gradient.cost,
    ),
    _TILING,
    _SMALL_GRADIENT,
    _GATHER_LAST,
    Method(
        "separable_gradient",
        separable_gradient.run,
        "sums along the rows, then down the columns, in shared memory",
        separable_gradient.rejects,
        cost=separable_gradient.cost,
    ),
    _GATHER,
)
_MAX_GRADIENTS = (
    Method(
        "disjoint_gradient",
        disjoint_gradient.run,
        "maxima of windows that do not overlap, found again",
        disjoint_gradient.rejects,
    ),
    Method(
        "argmax_gradient_tma",
        argmax_gradient_tma.run,
        "maxima found again, rows by TMA, windows shared by a block",
        argmax_gradient_tma.rejects,
        saved_bytes,
        argmax_gradient_tma.cost,
    ),
    Method(
        "argmax_gradient_bulk",
        argmax_gradient_bulk.run,
        "maxima found again, runs of rows by TMA",
        argmax_gradient_bulk.rejects,
        saved_bytes,
    ),
    Method(
        "indices_gradient_bulk",
        indices_gradient_bulk.run,
        "maxima where indices say, runs of rows by TMA",
        indices_gradient_bulk.rejects,
        saved_bytes,
    ),
    Method(
        "argmax_gradient",
        argmax_gradient.run,
        "maxima found again, or where indices say, in one launch",
        argmax_gradient.rejects,
        saved_bytes,
    ),
    _TILING,
    Method(
        "small_windows_gradient_mma",
        small_windows_gradient_mma.run,
        "sums of two channels at once by matrix products",
        small_windows_gradient_mma.rejects,
        small_windows_gradient_mma.workspace,
        small_windows_gradient_mma.cost,
    ),
    _SMALL_GRADIENT,
    Method(
        "small_windows_gradient_taps",
        small_windows_gradient.run_by_taps,
        "indices become taps, then sums in registers",
        small_windows_gradient.taps_rejects,
        taps_bytes,
        small_windows_gradient.taps_cost,
    ),
    _GATHER_LAST,
    Method(
        "shared_scatter",
        shared_scatter.run,
        "gradients go to the places of maxima in shared memory",
        shared_scatter.rejects,
        shared_scatter.workspace,
        shared_scatter.cost,
    ),
    _GATHER,
)
_NORM_GRADIENTS = (
    Method("norm_gradient", norm_gradient.run, "norms computed again, down the rows", norm_gradient.rejects),
    Method(
        "norm_gradient_channels_last",
        norm_gradient_channels_last.run,
        "norms computed again, handed over in shared memory",
        norm_gradient_channels_last.rejects,
    ),
    _TILING,
    _GATHER,
)

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys(("max_pool", "adaptive_max_pool"), _MAXIMA),
    **dict.fromkeys(("max_pool_with_indices", "adaptive_max_pool_with_indices"), _INDICES),
    **dict.fromkeys(("avg_pool", "adaptive_avg_pool"), _MEANS),
    "lp_pool": _NORMS,
    **dict.fromkeys(
        (f"{kind}max_pool{ending}_backward" for kind in ("", "adaptive_") for ending in ("", "_with_indices")),
        _MAX_GRADIENTS,
    ),
    **dict.fromkeys(("avg_pool_backward", "adaptive_avg_pool_backward"), _MEAN_GRADIENTS),
    "lp_pool_backward": _NORM_GRADIENTS,
    "max_unpool": (
        Method(
            "unpool_tiles",
            unpool_tiles.run,
            "tiles look for what names their places nearby",
            unpool_tiles.rejects,
            unpool_tiles.workspace,
        ),
        Method(
            "unpool_shared",
            unpool_shared.run,
            "marks of a plane in shared memory",
            unpool_shared.rejects,
            cost=unpool_shared.cost,
        ),
        Method(
            "unpool_strided",
            unpool_strided.run,
            "marks in scratch memory",
            unpool_strided.rejects,
            unpool_strided.workspace,
            unpool_strided.cost,
        ),
    ),
    "max_unpool_backward": (
        Method("unpool_gradient", unpool_gradient.run, "each gradient comes from its place", unpool_gradient.rejects),
        Method(
            "unpool_strided_gradient",
            unpool_strided.run_gradient,
            "each gradient comes from its place, in any memory order",
            unpool_strided.rejects,
            cost=unpool_strided.gradient_cost,
        ),
    ),
}
