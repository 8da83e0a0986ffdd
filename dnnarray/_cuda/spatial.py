"""Shuffles and look-ups: the table of their kernels."""

from dnnarray._cuda import spatial_lookup, spatial_shuffle

ALGORITHMS = spatial_shuffle.ALGORITHMS | spatial_lookup.ALGORITHMS
