"""Means over small windows that move by one element, and their gradients."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, ahead_if_small, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._records import frozen

_WINDOW = 3  # the longest window
_WALK, _ACROSS = 4, 2  # rows that a thread walks down, and its columns in channels-last memory
_MANY = 1 << 20  # vectors of results for which that leaves threads enough


@frozen
class SlideConfig(Config):
    """Compile-time settings of ``kernels/pool/slide.cu``."""

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


def slide_plan(g: Geometry, dtype: np.dtype, gradient: bool, padded: bool, aligned: bool, pointers: tuple[Array, Array]) -> Plan | None:
    """The means of the windows, or their gradient; None where windows move by more, are larger, or rows are no whole vectors."""
    _, h, w = g.axes
    wide = vector_length(dtype, aligned, g.channels if g.last else w.extent)
    if g.whole or not g.small or any(a.stride_used != 1 or a.window > _WINDOW for a in (h, w)):
        return None
    if g.first and (w.extent != w.outputs or wide * dtype.itemsize < 8 or wide < w.window - 1):
        return None  # what stands beside a vector lies in the next one
    (in_h, out_h), (in_w, out_w) = [(a.outputs, a.extent) if gradient else (a.extent, a.outputs) for a in (h, w)]
    top, before = (a.window - 1 - a.before if gradient else a.before for a in (h, w))
    inner = g.channels // wide if g.last else 1
    many = g.outer * out_h * (out_w if g.last else out_w // wide) * inner >= _MANY
    steps, across = (min(_WALK, out_h), _ACROSS) if many else (1, 1)
    across = across if g.last else 1
    groups, strips = -(-out_w // (across if g.last else wide)), -(-out_h // steps)
    total = g.outer * strips * groups * inner
    config = SlideConfig(POOL_TYPES[dtype], gradient, g.last, h.window, top, w.window, before, wide, across, steps, THREADS)
    words = ["mean_pool_slide"] + ["gradient"] * gradient + [f"{POOL_SHORT[dtype]}x{wide}", f"w{h.window}x{w.window}_at{top}x{before}"]
    words += ["last" if g.last else "first"] + [f"a{across}"] * (across > 1) + [f"s{steps}"]
    dividers = [n for divisor in (inner, groups, strips) for n in divider(divisor, total)]
    numbers = (total, *dividers, in_h << 32 | out_h, in_w << 32 | out_w, h.after << 32 | w.after, int(padded))
    plan = Plan(Kernel("pool/slide.cu", "_".join(words), config), (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))
    return ahead_if_small(plan) if steps == 1 else plan
