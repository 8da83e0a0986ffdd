"""The algorithm ``stride_one``: means over small windows that move by one element, and their gradients, which are sums
of the same kind."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import backward_reason, dx_of, geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Partition, forward, forward_reason, partition
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_WINDOW = 3  # the longest window
_WALK, _ACROSS = 4, 2  # rows that a thread walks down, and its columns in channels-last memory
_MANY = 1 << 20  # vectors of results for which that leaves threads enough


@frozen
class StrideOneConfig(Config):
    """Compile-time settings of ``kernels/pool/stride_one.cu``."""

    element: str
    gradient: bool
    last: bool
    window_h: int
    top: int
    window_w: int
    before: int
    wide: int
    across: int
    steps: int
    threads: int


@frozen
class StrideOneArguments(Arguments, restrict=True):
    """What ``kernels/pool/stride_one.cu`` is called with."""

    x: In
    y: Out
    total: Extent
    among: Partition
    in_height: Int
    out_height: Int
    in_width: Int
    out_width: Int
    after_h: Int
    after_w: Int
    padded: Int


def _reason(g: Geometry, dtype: np.dtype, device: Device) -> str | None:
    _, h, w = g.axes
    wide = vector_length(dtype, device.aligned, g.channels if g.last else w.extent)
    if g.whole or not g.small or any(a.stride_used != 1 or a.window > _WINDOW for a in (h, w)):
        return f"windows are larger than {_WINDOW} x {_WINDOW}, move by more than one element, or are dilated or uneven"
    if g.first and w.extent != w.outputs:
        return "rows of results are not as long as those of the input"
    if g.first and (wide * dtype.itemsize < 8 or wide < w.window - 1):
        return "rows are no whole vectors of 8 bytes or more, each as long as a window without an element"
    return None


def _plan(
    g: Geometry, dtype: np.dtype, gradient: bool, padded: bool, aligned: bool, arrays: tuple[Array, Array]
) -> Plan:
    """The means of the windows, or their gradient; `arrays` are the input and the result."""
    _, h, w = g.axes
    wide = vector_length(dtype, aligned, g.channels if g.last else w.extent)
    (in_h, out_h), (in_w, out_w) = [(a.outputs, a.extent) if gradient else (a.extent, a.outputs) for a in (h, w)]
    top, before = (a.window - 1 - a.before if gradient else a.before for a in (h, w))
    inner = g.channels // wide if g.last else 1
    many = g.outer * out_h * (out_w if g.last else out_w // wide) * inner >= _MANY
    steps, across = (min(_WALK, out_h), _ACROSS) if many else (1, 1)
    across = across if g.last else 1
    groups, strips = -(-out_w // (across if g.last else wide)), -(-out_h // steps)
    total = g.outer * strips * groups * inner
    config = StrideOneConfig(
        POOL_TYPES[dtype], gradient, g.last, h.window, top, w.window, before, wide, across, steps, THREADS
    )
    words = (
        ["mean_pool_stride_one"]
        + ["gradient"] * gradient
        + [f"{POOL_SHORT[dtype]}x{wide}", f"w{h.window}x{w.window}_at{top}x{before}"]
    )
    words += ["last" if g.last else "first"] + [f"a{across}"] * (across > 1) + [f"s{steps}"]
    arguments = StrideOneArguments(
        *arrays, total=total, among=partition(inner, groups, strips, total), in_height=in_h,
        out_height=out_h, in_width=in_w, out_width=out_w, after_h=h.after, after_w=w.after, padded=int(padded),
    )  # fmt: skip
    kernel = Kernel("pool/stride_one.cu", "_".join(words), config, ("pool/strip",))
    plan = planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments)
    return ahead_if_small(plan) if steps == 1 else plan


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, lambda r, here: _reason(r.g, r.dtype, here))


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(
        problem, device, aligned, lambda r, here, even, arrays: _plan(r.g, r.dtype, False, r.padded, even, arrays[:2])
    )


def gradient_rejects(problem: PoolProblem, device: Device) -> str | None:
    return backward_reason(problem) or _reason(geometry_at(problem), problem.inputs[1].dtype, device)


def run_gradient(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    x = problem.inputs[1]
    return one_launch(
        problem, aligned, lambda g: _plan(g, x.dtype, True, problem.padded, aligned, (Array(0), dx_of(problem)))
    )
