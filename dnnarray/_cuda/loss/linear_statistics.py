"""What the cross entropy must know of each row of scores, gathered over blocks of classes."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, InArithmetic, OutArithmetic
from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.loss.shared import Loss, Target
from dnnarray._records import frozen


@frozen
class LinearStatisticsConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_statistics.cu``."""

    element: str
    target: str
    loss: str
    smoothing: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class LinearStatisticsArguments(Arguments, restrict=("z", "bias", "weight", "target")):
    """What ``kernels/loss/linear_statistics.cu`` is called with: `count` classes from `first` on, rows `pitch` apart;
    absent is what is not wanted."""

    z: InArithmetic
    bias: In
    weight: In
    target: Target
    state: OutArithmetic
    losses: Loss
    row_weights: OutArithmetic
    lse: OutArithmetic
    rows: Extent
    pitch: Extent
    count: Extent
    first: Extent
    classes: Extent
    ignore: Extent
    smoothing: Double
