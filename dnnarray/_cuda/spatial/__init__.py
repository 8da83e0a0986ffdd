"""Sampling, resizing, region pooling, shuffles and look-ups: the algorithms, each with its plan in the module and its kernel in the file of the same name."""

from dnnarray._cuda import spatial_grid, spatial_grid_backward, spatial_resize, spatial_roi, spatial_roi_backward
from dnnarray._cuda.spatial import deal, embedding, embedding_sums, move, one_hot
from dnnarray._select import Method

_SHUFFLES = (
    Method("deal", deal.run, "neighbours read together and dealt out to several places", deal.rejects),
    Method("move", move.run, "one permuted copy", move.rejects),
)
_SORTED = "entries sorted by row, then sums in fixed pieces"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "embedding": (Method("embedding", embedding.run, "one gather of rows", embedding.rejects),),
    "embedding_backward": (Method("embedding_sums", embedding_sums.run, _SORTED, embedding_sums.rejects, embedding_sums.workspace),),
    "one_hot": (Method("one_hot", one_hot.run, "each class is compared with the index", one_hot.rejects),),
    **{name + ending: _SHUFFLES for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle") for ending in ("", "_backward")},
    **spatial_grid.ALGORITHMS,
    **spatial_grid_backward.ALGORITHMS,
    **spatial_resize.ALGORITHMS,
    **spatial_roi.ALGORITHMS,
    **spatial_roi_backward.ALGORITHMS,
}
