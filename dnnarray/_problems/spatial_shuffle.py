"""Shuffles, which only move elements: the problems of `pixel_shuffle`, `pixel_unshuffle` and `channel_shuffle`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec

_AXES = "batch, channels and one spatial axis or more"


@frozen
class Move:
    """Split the axes into `source`, permute, and see the result as `target` split into output axes: no element
    changes."""

    source: tuple[int, ...]
    permutation: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(self.source[i] for i in self.permutation)

    def inverse(self) -> Move:
        return Move(self.target, tuple(self.permutation.index(i) for i in range(len(self.permutation))))


@frozen(kw_only=True)
class ShuffleProblem(Problem):
    """outputs[0].reshape(move.target) = inputs[0].reshape(move.source).transpose(move.permutation)."""

    move: Move


def _spatial(op: str, x: Spec, layout: Any) -> tuple[int, int, tuple[int, ...]]:
    checks.layout(op, layout)
    if x.ndim < 3:
        fail(ShapeError, op, "x", f"{x.ndim}-dimensional {x.shape}", f"3 dimensions or more ({_AXES})")
    return checks.split_layout(x, layout)


def _divisible(op: str, x: Spec, what: str, extent: int, divisor: int) -> None:
    if extent % divisor:
        fail(ShapeError, op, "x", f"of shape {x.shape}", f"{what} divisible by {divisor}, not {extent}")


def _expansion(n: int, c: int, space: tuple[int, ...], factor: int, layout: str) -> Move:
    """From C * factor**rank channels to `factor` times the extents: N (C f f) H W to N C (H f) (W f), for any rank and
    layout."""
    rank = len(space)
    factors = (factor,) * rank
    if layout == "channels_first":
        pairs = [axis for i in range(rank) for axis in (2 + rank + i, 2 + i)]
        return Move((n, c, *factors, *space), (0, 1, *pairs))
    pairs = [axis for i in range(rank) for axis in (1 + i, 2 + rank + i)]
    return Move((n, *space, c, *factors), (0, *pairs, 1 + rank))


def pixel_shuffle(op: str, x: Spec, *, factor: Any, layout: Any) -> ShuffleProblem:
    n, c, space = _spatial(op, x, layout)
    factor = checks.integer(op, "factor", factor, 1)
    block = factor ** len(space)
    _divisible(op, x, f"channels (layout {layout})", c, block)
    move = _expansion(n, c // block, space, factor, layout)
    output = x.like(checks.join_layout(n, c // block, tuple(factor * s for s in space), layout))
    return ShuffleProblem(op=op, inputs=(x,), outputs=(output,), move=move)


def pixel_unshuffle(op: str, x: Spec, *, factor: Any, layout: Any) -> ShuffleProblem:
    n, c, space = _spatial(op, x, layout)
    factor = checks.integer(op, "factor", factor, 1)
    for extent in space:
        _divisible(op, x, f"spatial extents (layout {layout})", extent, factor)
    small = tuple(s // factor for s in space)
    output = x.like(checks.join_layout(n, c * math.prod((factor,) * len(space)), small, layout))
    return ShuffleProblem(op=op, inputs=(x,), outputs=(output,), move=_expansion(n, c, small, factor, layout).inverse())


def channel_shuffle(op: str, x: Spec, *, groups: Any, layout: Any) -> ShuffleProblem:
    _, c, _ = _spatial(op, x, layout)
    groups = checks.integer(op, "groups", groups, 1)
    _divisible(op, x, f"channels (layout {layout})", c, groups)
    axis = checks.channel_axis(layout, x.ndim)
    source = (*x.shape[:axis], groups, c // groups, *x.shape[axis + 1 :])
    permutation = (*range(axis), axis + 1, axis, *range(axis + 2, len(source)))
    return ShuffleProblem(op=op, inputs=(x,), outputs=(x.like(),), move=Move(source, permutation))


def undone(build: Callable[..., ShuffleProblem]) -> Callable[..., ShuffleProblem]:
    """The builder for the gradient of a shuffle: the same move backwards."""

    def backward(op: str, grad: Spec, x: Spec, **options: Any) -> ShuffleProblem:
        forward = build(op, x, **options)
        checks.gradient(op, grad, forward.result)
        return ShuffleProblem(
            op=op, inputs=(grad, x), outputs=(x.like(),), move=forward.move.inverse(), shapes=frozenset((1,))
        )

    return backward
