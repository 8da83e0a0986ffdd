"""Sampling, resizing, region pooling, shuffles, embedding, on NumPy arrays."""

from dnnarray._cpu.spatial import grid as spatial_grid
from dnnarray._cpu.spatial import lookup as spatial_lookup
from dnnarray._cpu.spatial import resize as spatial_resize
from dnnarray._cpu.spatial import roi as spatial_roi
from dnnarray._cpu.spatial import shuffle as spatial_shuffle
from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **spatial_grid.ALGORITHMS,
    **spatial_resize.ALGORITHMS,
    **spatial_roi.ALGORITHMS,
    **spatial_shuffle.ALGORITHMS,
    **spatial_lookup.ALGORITHMS,
}
