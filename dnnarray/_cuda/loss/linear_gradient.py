"""The gradient of the cross entropy with respect to a block of scores."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.loss.shared import Target
from dnnarray._records import frozen


@frozen
class LinearGradientConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_gradient.cu``."""

    element: str
    target: str
    smoothing: bool
    row_gradients: bool
    split: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class LinearGradientArguments(Arguments, restrict=("z", "bias", "weight", "target", "dz", "low")):
    """What ``kernels/loss/linear_gradient.cu`` is called with: `count` classes from `first` on, rows `pitch` apart."""

    z: InArithmetic
    bias: In
    weight: In
    target: Target
    grad: In
    lse: InArithmetic
    total: InArithmetic
    shares: InArithmetic
    dz: Out
    low: Out
    ones: Out
    rows: Extent
    pitch: Extent
    count: Extent
    first: Extent
    classes: Extent
    ignore: Extent
    smoothing: Double
    factor: Double
