"""Each target adds up its list, from planes of the gradient in shared memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.spatial.list_gather import ListArguments
from dnnarray._records import frozen


@frozen
class ListGatherPlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/list_gather_planes.cu``."""

    element: str
    planes: int
    vector: int
    threads: int


@frozen(kw_only=True)
class ListGatherPlanesArguments(ListArguments):
    """What ``kernels/spatial/list_gather_planes.cu`` is called with; a plane of grad has `sources` elements."""

    sources: Extent
