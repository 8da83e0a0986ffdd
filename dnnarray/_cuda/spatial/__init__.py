"""Sampling, resizing, region pooling, shuffles and look-ups: the algorithms, each with its plan in the module and its
kernel in the file of the same name."""

from dnnarray._cuda.spatial import (
    affine_grid,
    affine_grid_backward,
    deal,
    embedding,
    embedding_sums,
    grid_sample,
    grid_sample_gradients,
    grid_sample_lists,
    grid_sample_planes,
    grid_sample_scatter,
    move,
    one_hot,
    resize,
    resize_polyphase,
    resize_rows,
    resize_walk,
    roi_align,
    roi_align_lists,
    roi_align_planes,
    roi_align_rows,
    roi_align_scatter,
)
from dnnarray._cuda.spatial.scatter import scattering
from dnnarray._select import Method

_SHUFFLES = (
    Method("deal", deal.run, "neighbours read together and dealt out to several places", deal.rejects),
    Method("move", move.run, "one permuted copy", move.rejects),
)
_RESIZES = (
    Method(
        "resize_walk",
        resize_walk.run,
        "whole factors, rows filtered once by threads that walk down columns",
        resize_walk.rejects,
    ),
    Method(
        "resize_polyphase",
        resize_polyphase.run,
        "whole factors, weights as constants, in one launch",
        resize_polyphase.rejects,
    ),
    Method(
        "resize_rows",
        resize_rows.run,
        "one axis after the other, rows in shared memory",
        resize_rows.rejects,
        resize_rows.workspace,
    ),
    Method("resize", resize.run, "all taps of an element at once", resize.rejects, resize.workspace),
)
_SORTED = "entries sorted by row, then sums in fixed pieces"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "embedding": (Method("embedding", embedding.run, "one gather of rows", embedding.rejects),),
    "embedding_backward": (
        Method("embedding_sums", embedding_sums.run, _SORTED, embedding_sums.rejects, embedding_sums.workspace),
    ),
    "one_hot": (Method("one_hot", one_hot.run, "each class is compared with the index", one_hot.rejects),),
    **{
        name + ending: _SHUFFLES
        for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
        for ending in ("", "_backward")
    },
    "affine_grid": (Method("affine_grid", affine_grid.run, "a thread for neighbouring places"),),
    "affine_grid_backward": (
        Method(
            "affine_grid_backward",
            affine_grid_backward.run,
            "sums over parts of the places",
            workspace=affine_grid_backward.workspace,
        ),
    ),
    "grid_sample": (
        Method(
            "grid_sample_planes",
            grid_sample_planes.run,
            "look-ups in planes of shared memory",
            grid_sample_planes.rejects,
            cost=grid_sample_planes.cost,
        ),
        Method(
            "grid_sample",
            grid_sample.run,
            "a thread for a place and some channels",
            grid_sample.rejects,
            cost=grid_sample.cost,
        ),
    ),
    "grid_sample_backward": (
        Method(
            "grid_sample_lists",
            grid_sample_lists.run,
            "lists of taps sorted by pixel",
            grid_sample_lists.rejects,
            grid_sample_lists.workspace,
            grid_sample_lists.cost,
        ),
        Method(
            "grid_sample_gradients",
            grid_sample_gradients.run,
            "sums of whole planes in shared memory",
            grid_sample_gradients.rejects,
            cost=grid_sample_gradients.cost,
        ),
        *scattering(
            "grid_sample_scatter", grid_sample_scatter.run, grid_sample_scatter.cost, grid_sample_scatter.rejects
        ),
    ),
    **dict.fromkeys(("interpolate", "interpolate_backward"), _RESIZES),
    "roi_align": (
        Method(
            "roi_align_planes",
            roi_align_planes.run,
            "warps along rows of planes in shared memory",
            roi_align_planes.rejects,
            roi_align_planes.workspace,
            roi_align_planes.cost,
        ),
        Method(
            "roi_align_rows",
            roi_align_rows.run,
            "warps along rows of pixels",
            roi_align_rows.rejects,
            cost=roi_align_rows.cost,
        ),
        Method("roi_align", roi_align.run, "a thread for a bin of a channel", cost=roi_align.cost),
    ),
    "roi_align_backward": (
        Method(
            "roi_align_lists",
            roi_align_lists.run,
            "lists of taps sorted by pixel",
            roi_align_lists.rejects,
            roi_align_lists.workspace,
            roi_align_lists.cost,
        ),
        *scattering("roi_align_scatter", roi_align_scatter.run, roi_align_scatter.cost, lambda problem, device: None),
    ),
}
