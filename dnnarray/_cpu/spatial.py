"""Sampling, resizing, region pooling, shuffles, embedding, on NumPy arrays."""

from dnnarray._cpu import spatial_grid, spatial_lookup, spatial_resize, spatial_roi, spatial_shuffle
from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **spatial_grid.ALGORITHMS,
    **spatial_resize.ALGORITHMS,
    **spatial_roi.ALGORITHMS,
    **spatial_shuffle.ALGORITHMS,
    **spatial_lookup.ALGORITHMS,
}
