"""Sampling, resizing, region pooling, shuffles, embedding: the problems, gathered from one module per kind."""

from dnnarray._problems.spatial_grid import (
    GridSampleGradients,
    affine_grid,
    affine_grid_backward,
    grid_sample,
    grid_sample_backward,
)
from dnnarray._problems.spatial_lookup import embedding, embedding_backward, embedding_values, one_hot, one_hot_values
from dnnarray._problems.spatial_resize import interpolate, interpolate_backward
from dnnarray._problems.spatial_roi import roi_align, roi_align_backward, roi_values
from dnnarray._problems.spatial_shuffle import channel_shuffle, pixel_shuffle, pixel_unshuffle, undone

__all__ = [
    "GridSampleGradients",
    "affine_grid",
    "affine_grid_backward",
    "channel_shuffle",
    "embedding",
    "embedding_backward",
    "embedding_values",
    "grid_sample",
    "grid_sample_backward",
    "interpolate",
    "interpolate_backward",
    "one_hot",
    "one_hot_values",
    "pixel_shuffle",
    "pixel_unshuffle",
    "roi_align",
    "roi_align_backward",
    "roi_values",
    "undone",
]
