"""What pooling by long runs of a plane's rows shares: the settings of its kernels, and how the lanes of a warp share a row (sm_90)."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.pool_geometry import WindowAxis
from dnnarray._records import frozen

HEAD, LINE, RUN = 128, 128, 16  # bytes of shared memory before the tiles, and what parts of tiles and runs are multiples of
RESERVED = 1024  # bytes that a block takes beside its own
LANES, WARP = (4, 8, 16, 32), 32  # that may have a row
BUSY = 0.8  # of the lanes, those that have columns, at the least


@frozen
class RunsConfig(Config):
    """Compile-time settings of the kernels."""

    element: str
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    before: int
    columns: int
    lanes: int
    threads: int
    blocks: int
    stages: int


def lanes_of(groups: int) -> int:
    """Lanes of a row of so many groups of columns, 0 where too many would be idle."""
    lanes = next((n for n in LANES if n >= groups), 0)
    return lanes if groups >= BUSY * lanes else 0


def spread_evenly(w: WindowAxis, columns: int) -> bool:
    """Whether each thread has as many windows as columns of x, and only neighbours look at its columns."""
    return w.extent % columns == 0 and w.outputs * w.stride_used == w.extent and w.before <= w.window - w.stride_used
