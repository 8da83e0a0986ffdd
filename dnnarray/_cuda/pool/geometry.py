"""Pooling problems as the kernels see them: three spatial axes, strides in memory, and what is special about the
windows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dnnarray._problems import checks
from dnnarray._problems.pool import AdaptiveAxis, Axis
from dnnarray._records import frozen
from dnnarray._spec import Spec

CODES = 255  # taps that a byte can number, and one code for none


def division(divisor: int, largest: int) -> tuple[int, int, int]:
    """What kernels divide numbers up to `largest` by (``Divider`` in ``pool/window.cuh``): the divisor, a shift, and a
    multiplier."""
    shift = max((divisor - 1).bit_length() - 1, 0)
    return divisor, shift, 0 if largest >= 1 << 31 or divisor == 1 else -(-(1 << 32 + shift) // divisor)


@frozen
class WindowAxis:
    """One spatial axis as the kernels take it; for uneven adaptive windows only `extent`, `outputs` and `window` (the
    longest) count."""

    extent: int
    outputs: int
    window: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    uneven: bool = False

    def numbers(self, adaptive: bool = False) -> tuple[int, ...]:
        """The members of ``Axis`` in ``pool/window.cuh``; of windows of uneven length, what dividing by the extents
        takes."""
        if not adaptive:
            return self.extent, self.outputs, self.window, self.stride, self.dilation, self.before, self.after
        largest = self.extent * self.outputs + self.extent + self.outputs
        (_, *by_extent), (_, *by_outputs) = (division(max(n, 1), largest) for n in (self.extent, self.outputs))
        return self.extent, self.outputs, self.window, *by_extent, *by_outputs

    @property
    def side(self) -> tuple[int, int, int, int]:
        """The members of ``Side`` in ``pool/window.cuh``, for kernels that are compiled for the window."""
        return self.extent, self.outputs, self.before, self.after

    @property
    def whole(self) -> bool:
        """One window, and it is everything."""
        return (self.outputs, self.window, self.dilation, self.before, self.after) == (1, self.extent, 1, 0, 0)

    @property
    def reach(self) -> int:
        """The largest number that walking the windows meets."""
        return max(self.extent + self.before + self.after, self.window * self.dilation, self.stride, self.outputs)

    @property
    def stride_used(self) -> int:
        """The stride; where there is one window, that is its own extent."""
        return self.stride if self.outputs > 1 else self.window

    def cover(self) -> int:
        """The most windows that an element lies in."""
        if self.uneven:
            return AdaptiveAxis(self.extent, self.outputs).dual().window if self.outputs else 1
        return min(-(-((self.window - 1) * self.dilation + 1) // self.stride), max(self.outputs, 1))

    def met_by(self, columns: int) -> int:
        """The most windows, of dilation 1, that so many neighbouring elements meet."""
        if self.uneven:
            met = -(-columns * self.outputs // max(self.extent, 1)) + 1
        else:
            met = (columns + self.window - 2) // self.stride + 1
        return min(met, max(self.outputs, 1))


@frozen
class Geometry:
    """A pooling problem in memory.

    Attributes
    ----------
    n, channels, axes : extents and windows; rank 1 and 2 have axes of extent 1 in front
    order : the axes of all arrays from the slowest to the fastest
    x_strides, y_strides : elements between neighbours along n, c, d, h, w
    first, last : whether the memory order is n c d h w, or n d h w c with more than one channel
    adaptive : whether windows are of uneven length
    """

    n: int
    channels: int
    axes: tuple[WindowAxis, WindowAxis, WindowAxis]
    order: tuple[int, ...]
    x_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    first: bool
    last: bool
    adaptive: bool

    @property
    def outer(self) -> int:
        """Batch items, times channels where those are not counted within a row."""
        return self.n if self.last else self.n * self.channels

    @property
    def length(self) -> int:
        """Elements of the spatial extent."""
        return math.prod(a.extent for a in self.axes)

    @property
    def space(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def out_space(self) -> tuple[int, ...]:
        return tuple(a.outputs for a in self.axes)

    @property
    def whole(self) -> bool:
        """Each plane becomes one element, and planes lie in the plain order."""
        return (self.first or self.last) and all(a.whole for a in self.axes)

    @property
    def small(self) -> bool:
        """Windows of up to 5 and strides of up to 3 along the last two axes, each with an element of x, and memory in a
        plain order."""
        _, *plane = self.axes
        plain = (self.first or self.last) and self.flat and not self.adaptive
        fits = all(
            a.window <= 5 and a.stride_used <= 3 and a.dilation == 1 and max(a.before, a.after) < a.window
            for a in plane
        )
        row = plane[1].reach * (self.channels if self.last else 1)
        return plain and fits and plane[0].reach * plane[1].reach < 1 << 29 and row < 1 << 31

    def at_once(self, p: float | None = None) -> bool:
        """Whether a thread sees all of a window: of small ones; of a norm `p`, which takes more registers, up to 3 x
        3."""
        return self.small and (p is None or (p in (1.0, 2.0) and max(a.window for a in self.axes) <= 3))

    @property
    def tiled(self) -> bool:
        """Windows along the last two axes that follow each other without a gap, in a plain memory order."""
        plain = (self.first or self.last) and self.flat and not self.adaptive
        return plain and all((a.stride_used, a.dilation, a.before) == (a.window, 1, 0) for a in self.axes[1:])

    @property
    def flat(self) -> bool:
        """Nothing happens along the first of the three axes."""
        return self.axes[0] == WindowAxis(1, 1)


@lru_cache(maxsize=1024)
def geometry_of(x: Spec, axes: tuple[Any, ...], layout: str) -> Geometry:
    """The geometry of pooling x over these axes; for unpooling, `axes` are the extents of the result."""
    n, c, space = checks.split_layout(x, layout)
    missing = 3 - len(space)
    windows = [_window_axis(axis, extent) for axis, extent in zip(axes, space, strict=True)]
    order = x.axis_order() or tuple(range(x.ndim))
    channel = checks.channel_axis(layout, x.ndim)
    spatial = [i for i in range(1, x.ndim) if i != channel]
    out_shape = checks.join_layout(n, c, tuple(a.outputs for a in windows), layout)
    present = [i for i in order if (x.shape[i], out_shape[i]) != (1, 1)]

    def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
        found, step = [0] * len(shape), 1
        for i in reversed(order):
            found[i] = step
            step *= max(shape[i], 1)
        return (found[0], found[channel], *(0,) * missing, *(found[i] for i in spatial))

    last = c > 1 and present == [i for i in (0, *spatial, channel) if i in present]
    first = not last and present == [i for i in (0, channel, *spatial) if i in present]
    padded = [WindowAxis(1, 1) for _ in range(missing)] + windows
    return Geometry(
        n,
        c,
        (padded[0], padded[1], padded[2]),
        order,
        strides(x.shape),
        strides(out_shape),
        first,
        last,
        any(a.uneven for a in windows),
    )


def _window_axis(axis: Any, extent: int) -> WindowAxis:
    if isinstance(axis, int):
        return WindowAxis(extent, axis)
    if isinstance(axis, Axis):
        # What does not matter is made small, so that no sum overflows.
        stride = axis.stride if axis.outputs > 1 else axis.extent + axis.before + 1
        dilation = axis.dilation if axis.window > 1 else 1
        return WindowAxis(axis.extent, axis.outputs, axis.window, stride, dilation, axis.before, axis.after)
    n, o = axis.extent, axis.outputs
    if o and n % o == 0:
        return WindowAxis(n, o, n // o, n // o)
    return WindowAxis(n, o, axis.window, uneven=True)
