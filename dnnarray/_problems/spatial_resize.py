"""Resizing: the problems of `interpolate`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec

MODES = ("nearest", "nearest_exact", "linear", "cubic", "area")
_SMOOTH = ("linear", "cubic")


@frozen
class Resize:
    """What one axis needs to know of its resampling: all that the weights depend on."""

    source: int
    target: int
    scale: float | None
    mode: str
    align_corners: bool
    antialias: bool


@frozen(kw_only=True)
class InterpolateProblem(Problem):
    """Each spatial axis resampled by its own `Resize`; `axes` says where it stands. `transposed` is the gradient."""

    resizes: tuple[Resize, ...]
    axes: tuple[int, ...]
    channels: int
    transposed: bool = False

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each tap along each axis, at the larger of the two extents."""
        taps = {"nearest": 1, "nearest_exact": 1, "linear": 2, "cubic": 4, "area": 2}[self.resizes[0].mode]
        return 2 * taps * len(self.axes) * max(s.size for s in (self.inputs[0], *self.outputs) if s is not None)


def interpolate(
    op: str, x: Spec, *, size: Any, scale: Any, mode: Any, align_corners: Any, antialias: Any, layout: Any
) -> InterpolateProblem:
    checks.floating(op, "x", x)
    checks.layout(op, layout)
    checks.rank(op, "x", x, (3, 4, 5), f"batch, channels and 1 to 3 spatial axes in the layout {layout}")
    n, c, space = checks.split_layout(x, layout)
    if 0 in space:
        fail(
            ShapeError,
            op,
            "x",
            f"of shape {x.shape}",
            f"spatial extents of 1 or more ({checks.layout_axes(layout, len(space))})",
        )
    mode = checks.choice(op, "mode", mode, MODES)
    align_corners = _only_smooth(op, "align_corners", align_corners, mode)
    antialias = _only_smooth(op, "antialias", antialias, mode)
    targets, scales = _targets(op, size, scale, space)
    resizes = tuple(
        Resize(source, target, factor, mode, align_corners, antialias)
        for source, target, factor in zip(space, targets, scales, strict=True)
    )
    channels = checks.channel_axis(layout, x.ndim)
    return InterpolateProblem(
        op=op,
        inputs=(x,),
        outputs=(x.like(checks.join_layout(n, c, targets, layout)),),
        resizes=resizes,
        axes=tuple(a for a in range(1, x.ndim) if a != channels),
        channels=channels,
    )


def _only_smooth(op: str, name: str, value: Any, mode: str) -> bool:
    value = checks.boolean(op, name, value)
    if value and mode not in _SMOOTH:
        fail(
            OptionError,
            op,
            name,
            f"True with mode={mode!r}",
            "False; it has a meaning for the modes 'linear' and 'cubic' only",
        )
    return value


def _targets(
    op: str, size: Any, scale: Any, space: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The extents of the output and the scale of each axis (None where the size was given)."""
    if (size is None) == (scale is None):
        got = "None, and so is scale" if size is None else f"{size!r} beside scale {scale!r}"
        fail(OptionError, op, "size", got, "exactly one of size and scale")
    if size is not None:
        return checks.per_axis(op, "size", size, len(space), 1), (None,) * len(space)
    if isinstance(scale, (tuple, list)) and len(scale) != len(space):
        fail(OptionError, op, "scale", repr(scale), f"a number or {len(space)} of them, one per spatial axis")
    given = scale if isinstance(scale, (tuple, list)) else (scale,) * len(space)
    scales = tuple(checks.number(op, "scale", s, above=0) for s in given)
    targets = tuple(math.floor(n * s) for n, s in zip(space, scales, strict=True))
    if 0 in targets:
        fail(OptionError, op, "scale", repr(scale), f"a scale that leaves an element of each of the extents {space}")
    return targets, scales


def interpolate_backward(op: str, grad: Spec, x: Spec, **options: Any) -> InterpolateProblem:
    forward = interpolate(op, x, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, x), outputs=(x.like(),), transposed=True, shapes=frozenset((1,)))
