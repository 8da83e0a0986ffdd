"""Images from the columns of their windows: each element of an image gathers its terms."""

from __future__ import annotations

import math

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.columns import Columns, channels_at_once
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, extents
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen


@frozen
class FoldConfig(Config):
    """Compile-time settings of ``kernels/conv/fold.cu``."""

    element: str
    column: str
    activation: str
    bias: bool
    last: bool
    vector: int
    threads: int


def fold_plan(
    g: Geometry, columns: Columns, aligned: bool, source: Operand, y: Operand, n: int, e: Epilogue = NO_EPILOGUE
) -> Plan:
    """`n` images from their columns."""
    vector = channels_at_once(y.dtype, aligned, g, columns.last, y.strides)
    f = formula(e.activation, y.dtype)
    config = FoldConfig(TYPES[y.dtype], TYPES[source.dtype], f.type, e.bias is not None, columns.last, vector, THREADS)
    words = [
        "conv_fold",
        SHORT[source.dtype],
        "to",
        f"{SHORT[y.dtype]}x{vector}",
        "last" if columns.last else "first",
        e.name,
    ]
    kernel = Kernel("conv/fold.cu", "_".join(words), config, ("core/activation",))
    total = n * g.groups * g.c * math.prod(g.space)
    steps = (columns.image, columns.pixel, columns.group, columns.channel, columns.tap)
    arguments = (total, g.groups, g.c, *y.strides, *steps, *extents(g), f.p, f.q)
    return Plan(
        kernel, (-(-total // (THREADS * vector)), 1, 1), THREADS, (source.array, e.bias or y.array, y.array, *arguments)
    )


def fold(setting: Setting, columns: Columns, source: Operand, y: Operand, n: int, e: Epilogue) -> Plan:
    """`fold_plan` as a step of an algorithm."""
    return fold_plan(setting.g, columns, setting.steps.aligned, source, y, n, e)
