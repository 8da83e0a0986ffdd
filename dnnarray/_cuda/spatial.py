"""Sampling, resizing, region pooling: the table of their kernels."""

from dnnarray._cuda import spatial_grid, spatial_resize, spatial_roi

ALGORITHMS = spatial_grid.ALGORITHMS | spatial_resize.ALGORITHMS | spatial_roi.ALGORITHMS
