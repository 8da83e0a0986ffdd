"""Losses of rows of scores and the gradients of the scores, of rows that stay in the shared memory of a cluster in
between."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, Pointer
from dnnarray._cuda.core.plan import Array, Config
from dnnarray._cuda.loss.shared import Target
from dnnarray._records import frozen

Floats = Annotated[Array | None, Pointer("float", True)]
FloatsOut = Annotated[Array | None, Pointer("float", False)]


@frozen
class LinearRowsClusterConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_rows_cluster.cu``."""

    element: str
    target: str
    smoothing: bool
    split: bool
    blocks: int
    threads: int


@frozen(kw_only=True)
class LinearRowsClusterArguments(Arguments, restrict=("z", "bias", "weight", "target", "dz", "low")):
    """What ``kernels/loss/linear_rows_cluster.cu`` is called with; `held` rows have their gradients side by side."""

    z: Floats
    bias: In
    weight: In
    target: Target
    total: Floats
    shares: Floats
    dz: Out
    low: Out
    ones: Out
    losses: FloatsOut
    row_weights: FloatsOut
    lse: FloatsOut
    held: Extent
    pitch: Extent
    classes: Extent
    ignore: Extent
    smoothing: Double
    factor: Double
