"""Sampling at given places and the grids of affine maps: the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, UnsupportedError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT

MODES = ("bilinear", "nearest", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")
_TAPS = {"bilinear": 2, "nearest": 1, "bicubic": 4}  # along each axis
_AXES = {4: ("N C H W", "N P Q 2"), 5: ("N C D H W", "N O P Q 3")}


class GridSampleGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `grid_sample`."""

    x: ArrayT
    grid: ArrayT


@frozen(kw_only=True)
class GridSampleProblem(Problem):
    """y[n, :, *p] = the value of x[n] at grid[n, *p], or the gradients of that."""

    mode: str
    padding_mode: str
    align_corners: bool
    x: Spec

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each tap of each output (or gradient of one)."""
        grid = self.inputs[-1]
        return 2 * (grid.size // grid.shape[-1]) * self.x.shape[1] * _TAPS[self.mode] ** (self.x.ndim - 2)

    @property
    def moves(self) -> bool:
        """Whether it is the gradient of the places, which the nearest pixel does not depend on."""
        return len(self.outputs) == 2 and self.outputs[1] is not None and self.mode != "nearest"

    @property
    def unread(self) -> frozenset[int]:
        """The gradient of the image is a sum over places, whatever the image is."""
        return frozenset((1,)) if len(self.outputs) == 2 and not self.moves else self.shapes


def grid_sample(op: str, x: Spec, grid: Spec, *, mode: Any, padding_mode: Any, align_corners: Any) -> GridSampleProblem:
    checks.same_dtype(op, x=x, grid=grid)
    checks.rank(op, "x", x, (4, 5), "N C H W or N C D H W")
    axes, grid_axes = _AXES[x.ndim]
    checks.shape(op, "grid", grid, (x.shape[0], *(None,) * (x.ndim - 2), x.ndim - 2), grid_axes)
    nonempty_space(op, x, axes)
    mode = checks.choice(op, "mode", mode, MODES)
    padding_mode = checks.choice(op, "padding_mode", padding_mode, PADDING_MODES)
    align_corners = checks.boolean(op, "align_corners", align_corners)
    if mode == "bicubic" and x.ndim == 5:
        fail(
            UnsupportedError, op, "mode", "'bicubic' for a 5-dimensional x", "'bilinear' (trilinear here) or 'nearest'"
        )
    output = x.like((*x.shape[:2], *grid.shape[1:-1]))
    return GridSampleProblem(
        op=op,
        inputs=(x, grid),
        outputs=(output,),
        mode=mode,
        padding_mode=padding_mode,
        align_corners=align_corners,
        x=x,
    )


def nonempty_space(op: str, x: Spec, axes: str) -> None:
    """Every spatial axis (those after N and C) has an element to sample."""
    if 0 in x.shape[2:]:
        fail(ShapeError, op, "x", f"of shape {x.shape}", f"spatial extents of 1 or more ({axes})")


def grid_sample_backward(op: str, grad: Spec, x: Spec, grid: Spec, **options: Any) -> GridSampleProblem:
    forward = grid_sample(op, x, grid, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, x, grid), outputs=(x.like(), grid.like()), returns=GridSampleGradients)


@frozen(kw_only=True)
class AffineGridProblem(Problem):
    """grid[n, *p] = theta[n] @ (coordinates of p, 1), or its gradient; `space` is (H, W) or (D, H, W)."""

    space: tuple[int, ...]
    align_corners: bool


def affine_grid(op: str, theta: Spec, *, shape: Any, align_corners: Any) -> AffineGridProblem:
    checks.floating(op, "theta", theta)
    checks.rank(op, "theta", theta, 3, "N, 2 or 3, 3 or 4")
    if not isinstance(shape, (tuple, list)) or len(shape) not in (4, 5):
        fail(
            OptionError,
            op,
            "shape",
            repr(shape),
            "(N, C, H, W) or (N, C, D, H, W), the shape of the array to be sampled",
        )
    extents = tuple(checks.integer(op, "shape", n, minimum) for n, minimum in zip(shape, (0, 0, 1, 1, 1), strict=False))
    rank = len(extents) - 2
    checks.shape(
        op, "theta", theta, (extents[0], rank, rank + 1), f"N {rank} {rank + 1} for a shape with {rank} spatial axes"
    )
    output = Spec((extents[0], *extents[2:], rank), theta.dtype)
    align_corners = checks.boolean(op, "align_corners", align_corners)
    return AffineGridProblem(op=op, inputs=(theta,), outputs=(output,), space=extents[2:], align_corners=align_corners)


def affine_grid_backward(op: str, grad: Spec, theta: Spec, **options: Any) -> AffineGridProblem:
    forward = affine_grid(op, theta, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, theta), outputs=(theta.like(),), shapes=frozenset((1,)))
