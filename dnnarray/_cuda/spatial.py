"""Sampling, resizing, region pooling, shuffles and look-ups: the table of their kernels."""

from dnnarray._cuda import (
    spatial_grid,
    spatial_grid_backward,
    spatial_lookup,
    spatial_resize,
    spatial_roi,
    spatial_roi_backward,
    spatial_shuffle,
)

ALGORITHMS = (
    spatial_grid.ALGORITHMS
    | spatial_grid_backward.ALGORITHMS
    | spatial_lookup.ALGORITHMS
    | spatial_resize.ALGORITHMS
    | spatial_roi.ALGORITHMS
    | spatial_roi_backward.ALGORITHMS
    | spatial_shuffle.ALGORITHMS
)
