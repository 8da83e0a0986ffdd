"""Pooling, its gradients and its inverse: the problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import DTypeError, OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import FLOATING, INT64, Spec
from dnnarray._typing import ArrayT

# --- windows along one axis -------------------------------------------------------------------------------------------


@frozen
class Axis:
    """The windows along one spatial axis: output i looks at ``i * stride - before + t * dilation`` for each tap t.

    What falls outside of the input is left out. `before` and `after` are the padding, `window` the number of taps.
    """

    extent: int
    outputs: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int

    def bounds(self, padded: bool = False) -> list[tuple[int, int]]:
        """Position of the first tap, inside or not, and the end, cut to the input (or to the padded input), of each
        window."""
        end = self.extent + (self.after if padded else 0)
        starts = [i * self.stride - self.before for i in range(self.outputs)]
        return [(s, min(s + self.window * self.dilation, end)) for s in starts]

    def counts(self, padded: bool) -> list[int]:
        """How many taps of each window lie in the input, or in the padded input."""
        found = [len(range(start, end, self.dilation)) for start, end in self.bounds(padded)]
        if padded:
            return found
        return [
            n - len(range(start, 0, self.dilation)) if n else 0
            for n, (start, _) in zip(found, self.bounds(), strict=True)
        ]


@frozen
class AdaptiveAxis:
    """The windows along one axis of adaptive pooling: output i takes the elements from floor(i n / o) to ceil((i + 1) n
    / o)."""

    extent: int
    outputs: int
    dilation: int = 1

    @property
    def window(self) -> int:
        # The longest of `bounds`: where i n / o leaves the largest rest, which is o less the greatest common divisor.
        n, o = self.extent, self.outputs
        return -(-(n + o - math.gcd(n, o)) // o) if o else 0

    def bounds(self, padded: bool = False) -> list[tuple[int, int]]:
        n, o = self.extent, self.outputs
        return [(i * n // o, -(-(i + 1) * n // o)) for i in range(o)]

    def counts(self, padded: bool) -> list[int]:
        return [end - start for start, end in self.bounds()]

    def dual(self) -> AdaptiveAxis:
        """The windows of outputs that each input element belongs to: the same rule with the extents exchanged."""
        return AdaptiveAxis(self.outputs, self.extent)


# --- problems ---------------------------------------------------------------------------------------------------------


class MaxPoolOutput(NamedTuple, Generic[ArrayT]):
    """Result of `max_pool_with_indices` and `adaptive_max_pool_with_indices`."""

    y: ArrayT
    indices: ArrayT


@frozen(kw_only=True)
class PoolProblem(Problem):
    """A reduction of each window of x, or its gradient.

    `axes` has one entry per spatial axis; `padded` says that an average counts the padding, `p` is the exponent of an
    Lp norm."""

    axes: tuple[Any, ...]
    layout: str
    padded: bool = False
    p: float = 2.0

    @property
    def flops(self) -> int:
        n, c, _ = checks.split_layout(self.inputs[0], self.layout)
        return n * c * math.prod(a.outputs * a.window for a in self.axes)


@frozen(kw_only=True)
class UnpoolProblem(Problem):
    """Elements put back where indices say, or fetched from there; `space` is the spatial extent that the indices count
    in."""

    space: tuple[int, ...]
    layout: str


# --- arguments --------------------------------------------------------------------------------------------------------


def _input(op: str, x: Spec, layout: str, integers: bool = False) -> None:
    """x is an array N C *space of 1 to 3 spatial axes, floating, or of integers where the operation takes them."""
    checks.layout(op, layout)
    if integers and x.dtype not in FLOATING and x.dtype.kind not in "iu":
        fail(DTypeError, op, "x", x.dtype.name, f"{checks.FLOAT_NAMES}, or an integer dtype", checks.CONVERT)
    if not integers:
        checks.floating(op, "x", x)
    checks.rank(op, "x", x, (3, 4, 5), f"{checks.layout_axes(layout, x.ndim - 2)}, with 1 to 3 spatial axes")


def _space(op: str, x: Spec, layout: str) -> tuple[int, ...]:
    """The spatial extents of x, none of them zero: the maximum or the mean of nothing is undefined."""
    space = checks.split_layout(x, layout)[2]
    if 0 in space:
        fail(
            ShapeError,
            op,
            "x",
            f"of shape {x.shape}",
            f"spatial extents of 1 or more in {checks.layout_axes(layout, len(space))}",
        )
    return space


def _padding(
    op: str, value: Any, extents: tuple[int, ...], window: Any, stride: Any, dilation: Any
) -> tuple[tuple[int, int], ...]:
    """The (before, after) pairs, each less than what the window covers, so that no window lies in the padding alone."""
    pairs = checks.padding(op, value, extents, window, stride, dilation)
    for pair, covered in zip(pairs, checks.effective_window(window, dilation), strict=True):
        if max(pair) >= covered:
            fail(OptionError, op, "padding", pair, f"at most {covered - 1}, the extent of the window less one")
    return pairs


def _outputs(op: str, extent: int, covered: int, stride: int, pair: tuple[int, int], ceil_mode: bool) -> int:
    """How many windows there are; with `ceil_mode` also one that is cut at the end, if it starts before the end of the
    input."""
    room = extent + sum(pair) - covered
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= extent + pair[0]:
        count -= 1
    if count < 1:
        fail(
            ShapeError,
            op,
            "x",
            f"{extent} long on a spatial axis, {extent + sum(pair)} with its padding",
            f"at least {covered}, the extent of the window",
            "Use more padding or a smaller kernel_size.",
        )
    return count


def _axes(
    op: str, extents: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> tuple[Axis, ...]:
    """The windows of each spatial axis from the options of a pooling function."""
    rank = len(extents)
    window = checks.per_axis(op, "kernel_size", kernel_size, rank, 1)
    step = window if stride is None else checks.per_axis(op, "stride", stride, rank, 1)
    spread = checks.per_axis(op, "dilation", dilation, rank, 1)
    pairs = _padding(op, padding, extents, window, step, spread)
    ceil_mode = checks.boolean(op, "ceil_mode", ceil_mode)
    covered = checks.effective_window(window, spread)
    counts = [_outputs(op, *sizes, ceil_mode) for sizes in zip(extents, covered, step, pairs, strict=True)]
    return tuple(
        Axis(n, count, w, s, d, *pair)
        for n, count, w, s, d, pair in zip(extents, counts, window, step, spread, pairs, strict=True)
    )


def _output_size(op: str, value: Any, kept: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    """Spatial extents of the output: an int, or one per axis; None keeps the entry of `kept` where that is given."""
    if kept is None or not isinstance(value, (tuple, list)) or len(value) != rank:
        return checks.per_axis(op, "output_size", value, rank, 0)
    return checks.per_axis(
        op, "output_size", tuple(k if v is None else v for v, k in zip(value, kept, strict=True)), rank, 0
    )


def _pooled(op: str, x: Spec, axes: tuple[Any, ...], layout: str, **fields: Any) -> PoolProblem:
    """The forward problem over these windows."""
    n, c, _ = checks.split_layout(x, layout)
    y = x.like(checks.join_layout(n, c, tuple(a.outputs for a in axes), layout))
    return PoolProblem(op=op, inputs=(x,), outputs=(y,), axes=axes, layout=layout, **fields)


# --- builders ---------------------------------------------------------------------------------------------------------


def max_pool(
    op: str, x: Spec, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, layout: str
) -> PoolProblem:
    _input(op, x, layout, integers=True)
    return _pooled(op, x, _axes(op, _space(op, x, layout), kernel_size, stride, padding, dilation, ceil_mode), layout)


def avg_pool(op: str, x: Spec, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any,
             count_include_pad: Any, layout: str) -> PoolProblem:  # fmt: skip
    _input(op, x, layout)
    axes = _axes(op, _space(op, x, layout), kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(op, x, axes, layout, padded=checks.boolean(op, "count_include_pad", count_include_pad))


def lp_pool(
    op: str, x: Spec, *, kernel_size: Any, p: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, layout: str
) -> PoolProblem:
    _input(op, x, layout)
    exponent = checks.number(op, "p", p, above=0, finite=False)
    axes = _axes(op, _space(op, x, layout), kernel_size, stride, padding, dilation, ceil_mode)
    single = all(axis.window == 1 for axis in axes)  # the norm of one element is its magnitude, whatever the exponent
    return _pooled(op, x, axes, layout, p=1.0 if single and math.isfinite(exponent) else exponent)


def adaptive(op: str, x: Spec, *, output_size: Any, layout: str) -> PoolProblem:
    """The windows of adaptive pooling, whatever is done with them."""
    _input(op, x, layout)
    space = _space(op, x, layout)
    sizes = _output_size(op, output_size, space, len(space))
    return _pooled(op, x, tuple(AdaptiveAxis(n, o) for n, o in zip(space, sizes, strict=True)), layout)


def with_indices(forward: Callable[..., PoolProblem]) -> Callable[..., PoolProblem]:
    """The builder of the same pooling that returns the positions of the maxima too."""

    def build(op: str, x: Spec, **options: Any) -> PoolProblem:
        problem = forward(op, x, **options)
        y = problem.outputs[0]
        assert y is not None
        return replace(problem, outputs=(y, y.like(dtype=INT64)), returns=MaxPoolOutput)

    return build


def backward(forward: Callable[..., PoolProblem], linear: bool = False) -> Callable[..., PoolProblem]:
    """The builder for the gradient of a pooling; `indices`, where the function takes them, are those of the forward.
    That of a `linear` one does not depend on x."""

    def build(op: str, grad: Spec, x: Spec, indices: Spec | None = None, **options: Any) -> PoolProblem:
        problem = forward(op, x, **options)
        y = problem.outputs[0]
        assert y is not None
        checks.floating(op, "x", x)
        checks.gradient(op, grad, y)
        if indices is not None:
            _check_indices(op, indices, y.shape, problem.layout)
        shapes = frozenset((1,) if linear or indices is not None else ())
        return replace(problem, inputs=(grad, x, indices), outputs=(x.like(),), shapes=shapes)

    return build


def max_unpool(op: str, x: Spec, indices: Spec, *, output_size: Any, layout: str) -> UnpoolProblem:
    _input(op, x, layout)
    _check_indices(op, indices, x.shape, layout)
    n, c, space = checks.split_layout(x, layout)
    sizes = _output_size(op, output_size, None, len(space))
    y = x.like(checks.join_layout(n, c, sizes, layout))
    return UnpoolProblem(op=op, inputs=(x, indices), outputs=(y,), space=sizes, layout=layout)


def max_unpool_backward(op: str, grad: Spec, x: Spec, indices: Spec, **options: Any) -> UnpoolProblem:
    problem = max_unpool(op, x, indices, **options)
    y = problem.outputs[0]
    assert y is not None
    checks.gradient(op, grad, y)
    return replace(problem, inputs=(grad, x, indices), outputs=(x.like(),), shapes=frozenset((1,)))


def _check_indices(op: str, indices: Spec, expected: tuple[int, ...], layout: str) -> None:
    checks.integers(op, "indices", indices)
    checks.shape(op, "indices", indices, expected, checks.layout_axes(layout, len(expected) - 2))


# --- what only the data can tell --------------------------------------------------------------------------------------


def indices_inside(problem: PoolProblem | UnpoolProblem, *arrays: Any) -> None:
    """The last array holds flat positions in the spatial extent of one channel; a window without any element has -1."""
    indices = arrays[-1]
    if indices is None or 0 in indices.shape:
        return
    if isinstance(problem, UnpoolProblem):
        lowest, size = 0, math.prod(problem.space)
    else:
        lowest, size = -1, math.prod(a.extent for a in problem.axes)
    low, high = int(indices.min()), int(indices.max())
    if low < lowest or high >= size:
        fail(
            OptionError,
            problem.op,
            "indices",
            f"from {low} to {high}",
            f"flat spatial positions from {lowest} to {size - 1}",
        )
