"""The algorithm ``resize``: all taps of an element at once, a thread for a place and some channels."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extents, In, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.spatial.resampling import TableArguments, most_taps, tables, tables_of, too_long
from dnnarray._cuda.spatial.resize_taps import taps
from dnnarray._cuda.spatial.shared import THREADS, SharesView, five_strides, order_of, shares, strides_of
from dnnarray._problems.spatial_resize import InterpolateProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_THREADS_WANTED = 1 << 19  # a few for each that the largest cards hold at a time
_MOST_CHANNELS = 8  # of a thread
rejects = too_long


@frozen
class ResizeConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize.cu``."""

    element: str
    rank: int
    taps: int
    channels_last: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class ResizeArguments(TableArguments, restrict=("x", "y", "first_q", "count_q", "weight_q")):
    """What ``kernels/spatial/resize.cu`` is called with; strides are along batch, channels and three axes of space."""

    x: In
    y: Out
    shares: SharesView
    x_strides: Extents
    y_strides: Extents


def _fixed_taps(problem: InterpolateProblem) -> int:
    """1 or 2 where no axis has more taps, 0 where the tables say how many."""
    most = max(most_taps(r, problem.transposed) for r in problem.resizes)
    return most if most <= 2 and not problem.transposed else 0


def workspace(problem: InterpolateProblem) -> int:
    return tables_of(problem, _fixed_taps(problem))[-1].end


def _channels_last(spec: Spec, channels: int) -> bool:
    return spec.shape[channels] > 1 and strides_of(spec)[channels] == 1


def run(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, scratch, axis, fixed = (
        Planner(problem, aligned),
        len(problem.inputs) + 1,
        problem.channels,
        _fixed_taps(problem),
    )
    found, channels = tables_of(problem, fixed), x.shape[axis]
    places = y.size // channels
    last = _channels_last(x, axis) and _channels_last(y, axis)
    vector = vector_length(x.dtype, aligned, channels) if last else 1
    per = vector if last else max(1, min(_MOST_CHANNELS, channels * places // _THREADS_WANTED))
    config = ResizeConfig(TYPES[x.dtype], len(found), fixed, last, vector, THREADS)
    name = f"resize_{SHORT[x.dtype]}_rank{config.rank}_taps{config.taps}{f'_last_x{vector}' * last}"
    kernel = Kernel("spatial/resize.cu", name, config, ("spatial/sampling",))
    share = shares(x.shape[0], channels, per, tuple(y.shape[a] for a in problem.axes), last)
    arguments = ResizeArguments(
        x=planner.inputs[0],
        y=planner.outputs[0],
        **tables(found, scratch),
        shares=share,
        x_strides=five_strides(x, axis),
        y_strides=five_strides(y, axis),
    )
    planner.add(
        taps(problem, found, scratch, fixed > 1),
        planned(kernel, (blocks_of(share[0], THREADS), 1, 1), THREADS, arguments),
    )
    return planner.program((order_of(x), *(order_of(s) for s in problem.inputs[1:])))
