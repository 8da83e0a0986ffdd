"""A pooling as planes of channels or as pixels of channels: the two forms that the compiled kernels know, read off the
problem."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dnnarray._problems.base import leaves
from dnnarray._problems.pool import AdaptiveAxis, Axis, PoolProblem
from dnnarray._records import frozen
from dnnarray._spec import FLOATING

_TAPS = 1 << 20
_TERMS = 512  # that are added one after the other: more are left to sums that round less
ONE = Axis(1, 1, 1, 1, 1, 0, 0)  # the rows of an image with one row


@frozen
class Form:
    """Two axes of windows over arrays whose axes come in the order of memory: (images and channels, H, W), or (images,
    H, W, channels)."""

    planes: bool
    axes: tuple[Any, Any]
    order: tuple[int, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    @property
    def taps(self) -> int:
        return self.axes[0].window * self.axes[1].window


@lru_cache(maxsize=1024)
def form(problem: PoolProblem) -> Form | None:
    """The form of a problem, None where it has another."""
    x = problem.inputs[1 if problem.op.endswith("_backward") else 0]
    order, channel = x.axis_order(), 1 if problem.layout == "channels_first" else x.ndim - 1
    if order is None or x.ndim > 4:
        return None
    space = [i for i in range(1, x.ndim) if i != channel]
    planes = order == (0, channel, *space)
    if not planes and order != (0, *space, channel):
        return None
    axes = (ONE, *problem.axes)[-2:]
    images, channels = x.shape[0], x.shape[channel]
    inside, outside = (a.extent for a in axes), (a.outputs for a in axes)
    if planes:
        return Form(planes, axes, order, (images * channels, *inside), (images * channels, *outside))
    return Form(planes, axes, order, (images, *inside, channels), (images, *outside, channels))


def no_form(problem: PoolProblem, device: Any) -> str | None:
    """Why the kernels cannot do it, or None."""
    found = form(problem)
    if found is None or any(s.dtype not in FLOATING for s in leaves(problem.inputs[:1])):
        return "it takes dense floating arrays with one or two spatial axes"
    if found.taps > _TAPS:
        return f"a window of more than {_TAPS} elements; it keeps a table of them"
    return None if math.prod(found.input_shape) and math.prod(found.output_shape) else "there is nothing to do"


def no_sums(problem: PoolProblem, device: Any) -> str | None:
    """`no_form`, where the kernels add up windows, or the gradients of windows that overlap."""
    return _long_sums(problem) or no_form(problem, device)


def no_place_sums(problem: PoolProblem, device: Any) -> str | None:
    """`no_places`, where the kernels add up gradients at the same place."""
    return _long_sums(problem) or no_places(problem, device)


def no_adaptive_sums(problem: PoolProblem, device: Any) -> str | None:
    """`no_adaptive`, where the kernels add up the gradients of windows that overlap."""
    return _long_sums(problem) or no_adaptive(problem, device)


def _long_sums(problem: PoolProblem) -> str | None:
    terms = math.prod(map(_overlap if problem.op.endswith("_backward") else _window, problem.axes))
    return f"it adds one term after the other, {_TERMS} at the most" if terms > _TERMS else None


def _window(axis: Any) -> int:
    return int(axis.window)


def _overlap(axis: Any) -> int:
    """The most windows that an element belongs to, or a few more."""
    return axis.dual().window if isinstance(axis, AdaptiveAxis) else min(axis.window, axis.outputs)


def no_places(problem: PoolProblem, device: Any) -> str | None:
    """`no_form`, where the kernels keep places in 32 bits."""
    found = form(problem)
    if found is not None and math.prod(a.extent for a in found.axes) >= 2**31:
        return "it takes images of fewer than 2^31 pixels"
    return no_form(problem, device)


def no_adaptive(problem: PoolProblem, device: Any) -> str | None:
    """Why the kernels for pixels, which know windows of any extents, cannot do it, or None."""
    found = form(problem)
    if found is not None and found.planes:
        return "it takes arrays whose channels are side by side in memory"
    return no_places(problem, device)
