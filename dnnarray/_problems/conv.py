"""Convolution, its gradients and transposed convolution: the problems.

All of them are maps of one `Geometry`: the forward, the gradient of its input (which is what a transposed convolution computes)
and the gradient of its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.activation import Activation, fused
from dnnarray._problems.base import Problem
from dnnarray._spec import FLOAT64, Spec

Triple = tuple[int, int, int]
RANKS = (3, 4, 5)


class ConvGradients(NamedTuple):
    """Gradients of a convolution with respect to its arrays; `bias` is None where the forward had none."""

    x: Any
    weight: Any
    bias: Any


class ConvResidualGradients(NamedTuple):
    """`ConvGradients` with the gradient of the residual that was added."""

    x: Any
    weight: Any
    bias: Any
    residual: Any


# --- geometry ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Geometry:
    """A cross-correlation over three spatial axes; absent ones have extent 1 and stand first.

    y[n, g, k, p] = sum over c and r of x[n, g, c, p * stride + r * dilation - before] * w[g, k, c, r], x being 0 outside of its
    `space`. `c` and `k` count the channels of one group. `out` stands by itself: whatever is read behind the end is 0, too, and
    `before` may be negative, which crops. `pixel_major` says that the channels are innermost in memory.
    """

    n: int
    groups: int
    c: int
    k: int
    space: Triple
    window: Triple
    out: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    pixel_major: bool = False

    @property
    def taps(self) -> int:
        return math.prod(self.window)

    @property
    def pixels(self) -> int:
        return math.prod(self.out)

    @property
    def macs(self) -> int:
        """Multiply-adds of the definition."""
        return self.n * self.groups * self.k * self.c * self.taps * self.pixels

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of x, w and y."""
        n, channels = self.n * self.groups, self.groups * self.c * self.k
        return n * self.c * math.prod(self.space), channels * self.taps, n * self.k * self.pixels

    def reach(self, count: Sequence[int]) -> Triple:
        """The input extents that `count` neighbouring outputs read."""
        a, b, c = ((m - 1) * s + (w - 1) * d + 1 for m, s, w, d in zip(count, self.stride, self.window, self.dilation, strict=True))
        return a, b, c

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The gradient of the input as stride-1 correlations of the output's gradient, one per residue of the stride."""
        axes = [_axis_phases(self, i) for i in range(3)]
        return tuple(_phase(self, a, b, c) for a in axes[0] for b in axes[1] for c in axes[2])


class _AxisPhase(NamedTuple):
    taps: slice
    window: int
    target: slice
    out: int
    dilation: int
    before: int


class Phase(NamedTuple):
    """One residue class: `taps` selects (and reverses) its part of the window, `target` its pixels of the input.

    `geometry` is the correlation that computes it, None where no tap meets it and the gradient is 0.
    """

    geometry: Geometry | None
    taps: tuple[slice, slice, slice]
    target: tuple[slice, slice, slice]


def _axis_phases(g: Geometry, i: int) -> list[_AxisPhase]:
    """Padded position u = stride * j + residue meets output p = j + (residue - dilation * r) / stride through tap r."""
    stride, dilation, window, before, space = g.stride[i], g.dilation[i], g.window[i], g.before[i], g.space[i]
    common = math.gcd(stride, dilation)
    step = stride // common
    phases = []
    for residue in range(stride):
        first = -((residue - before) // stride)
        out = (space - 1 + before - residue) // stride - first + 1
        if out <= 0:
            continue
        start = stride * first + residue - before
        target = slice(start, None, stride)
        taps = [r for r in range(min(window, step)) if (residue - dilation * r) % stride == 0]
        if not taps:
            phases.append(_AxisPhase(slice(0), 0, target, out, 1, 0))
            continue
        count = -(-(window - taps[0]) // step)
        last = taps[0] + (count - 1) * step
        backwards = slice(last, taps[0] - 1 if taps[0] else None, -step)
        shift = first + (residue - dilation * last) // stride
        phases.append(_AxisPhase(backwards, count, target, out, dilation // common, -shift))
    return phases


def _phase(g: Geometry, *axes: _AxisPhase) -> Phase:
    a, b, c = axes
    taps, target = (a.taps, b.taps, c.taps), (a.target, b.target, c.target)
    if 0 in (a.window, b.window, c.window):
        return Phase(None, taps, target)
    geometry = replace(
        g,
        c=g.k,
        k=g.c,
        space=g.out,
        window=(a.window, b.window, c.window),
        out=(a.out, b.out, c.out),
        stride=(1, 1, 1),
        dilation=(a.dilation, b.dilation, c.dilation),
        before=(a.before, b.before, c.before),
    )
    return Phase(geometry, taps, target)


# --- problems ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ConvProblem(Problem):
    """A convolution, one of its gradients, or a transposed convolution.

    `geometry` is that of the convolution; a transposed one computes the map from its output to its input. `maps` counts how many of the
    three maps (forward, gradient of input, gradient of weight) the operation runs.
    """

    geometry: Geometry
    layout: str
    rank: int
    flip: bool = False
    activation: Activation | None = None
    maps: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.geometry.macs * self.maps

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the arithmetic: half types are computed in float32."""
        return 8 if self.inputs[0].dtype == FLOAT64 else 4

    def legend(self) -> str:
        g = self.geometry
        window = "x".join(map(str, g.window[3 - self.rank :]))
        arrays = ", ".join(str(s) for s in self.inputs if s is not None)
        parts = [f"{arrays}; window {window}", f"stride {_short(g.stride[3 - self.rank :])}"]
        if any(d != 1 for d in g.dilation):
            parts.append(f"dilation {_short(g.dilation[3 - self.rank :])}")
        if g.groups != 1:
            parts.append(f"groups {g.groups}")
        return ", ".join(parts)


def _short(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def lift(values: Sequence[int], fill: int) -> Triple:
    """One entry for each of three axes, `fill` for the absent first ones."""
    a, b, c = (fill,) * (3 - len(values)) + tuple(values)
    return a, b, c


def is_pixel_major(spec: Spec, layout: str) -> bool:
    """Whether the channels are innermost in memory."""
    order = spec.axis_order()
    return layout == "channels_last" if order is None else order[-1] == checks.channel_axis(layout, spec.ndim)


def _weight_axes(layout: str, rank: int, leading: str, inner: str) -> str:
    window = {1: "S", 2: "R S", 3: "T R S"}[rank]
    return f"{leading} {inner} {window}" if layout == "channels_first" else f"{leading} {window} {inner}"


def _window(op: str, weight: Spec, layout: str, name: str = "weight") -> tuple[int, ...]:
    """The extents of the window, none of them 0."""
    window = weight.shape[2:] if layout == "channels_first" else weight.shape[1:-1]
    if 0 in window:
        fail(ShapeError, op, name, f"of shape {weight.shape}", "a window of 1 or more along each axis")
    return window


def _channels(op: str, count: int, groups: int, text: str) -> int:
    """`count` channels divided into groups."""
    if count % groups:
        fail(OptionError, op, "groups", groups, f"a divisor of the {count} {text}")
    return count // groups


def _epilogue(op: str, channels: int, output: Spec, bias: Spec | None, residual: Spec | None) -> None:
    if bias is not None:
        checks.shape(op, "bias", bias, (channels,), "K, one for each output channel")
    if residual is not None and residual.shape != output.shape:
        fail(ShapeError, op, "residual", f"of shape {residual.shape}", f"{output.shape}, the shape of the output")


def extent(op: str, name: str, axis: int, size: int, pads: tuple[int, int], covered: int, stride: int) -> int:
    """The output extent along one axis, for an input `size` long and a dilated window that covers `covered`."""
    padded = size + sum(pads)
    if padded < covered:
        fail(
            ShapeError,
            op,
            name,
            f"{size} long on spatial axis {axis}, {padded} with its padding {pads}",
            f"{covered} or more, what the dilated window covers",
            "Pad more, or take a smaller window or dilation.",
        )
    return (padded - covered) // stride + 1


def conv(
    op: str,
    x: Spec,
    weight: Spec,
    bias: Spec | None,
    residual: Spec | None,
    *,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
    layout: Any,
    activation: Any,
    flip: Any,
    names: tuple[str, str] = ("x", "weight"),
) -> ConvProblem:
    """The forward convolution; all its rules stand here."""
    layout = checks.layout(op, layout)
    checks.same_dtype(op, **{names[0]: x, names[1]: weight}, bias=bias, residual=residual)
    checks.rank(op, names[0], x, RANKS, f"{'N C *space' if layout == 'channels_first' else 'N *space C'}, one to three spatial axes")
    rank = x.ndim - 2
    groups = checks.integer(op, "groups", groups, 1)
    n, channels, space = checks.split_layout(x, layout)
    per_group = _channels(op, channels, groups, f"channels of {names[0]}")
    checks.rank(op, names[1], weight, x.ndim, _weight_axes(layout, rank, "K", "C/groups"))
    expected = checks.join_layout(weight.shape[0], per_group, _window(op, weight, layout, names[1]), layout)
    fix = f"{names[0]} has {channels} channels in {groups} groups."
    checks.shape(op, names[1], weight, expected, _weight_axes(layout, rank, "K", "C/groups"), fix)
    _, _, window = checks.split_layout(weight, layout)
    strides = checks.per_axis(op, "stride", stride, rank, 1)
    dilations = checks.per_axis(op, "dilation", dilation, rank, 1)
    pads = checks.padding(op, padding, space, window, strides, dilations)
    covered = checks.effective_window(window, dilations)
    out = tuple(extent(op, names[0], i, *a) for i, a in enumerate(zip(space, pads, covered, strides, strict=True)))
    output = x.like(checks.join_layout(n, weight.shape[0], out, layout))
    _epilogue(op, weight.shape[0], output, bias, residual)
    geometry = Geometry(
        n=n,
        groups=groups,
        c=per_group,
        k=_channels(op, weight.shape[0], groups, f"output channels of {names[1]}"),
        space=lift(space, 1),
        window=lift(window, 1),
        out=lift(out, 1),
        stride=lift(strides, 1),
        dilation=lift(dilations, 1),
        before=lift([before for before, _ in pads], 0),
        pixel_major=is_pixel_major(x, layout),
    )
    return ConvProblem(
        op=op,
        inputs=(x, weight, bias, residual),
        outputs=(output,),
        geometry=geometry,
        layout=layout,
        rank=rank,
        flip=checks.boolean(op, "flip", flip),
        activation=fused(op, activation),
    )


def _shape_option(op: str, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        fail(OptionError, op, name, repr(value), "a tuple of integers, the shape of the array")
    return tuple(checks.integer(op, name, v, 0) for v in value)


def conv_backward_input(op: str, grad: Spec, weight: Spec, *, input_shape: Any, **options: Any) -> ConvProblem:
    """The gradient of the input; `input_shape` tells what the stride has rounded away."""
    x = Spec(_shape_option(op, "input_shape", input_shape), grad.dtype)
    checks.floating(op, "grad", grad)
    forward = conv(op, x, weight, None, None, activation=None, names=("input_shape", "weight"), **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    return replace(forward, inputs=(grad, weight), outputs=(grad.like(x.shape),), geometry=_arranged(forward, grad))


def _arranged(problem: ConvProblem, spec: Spec) -> Geometry:
    return replace(problem.geometry, pixel_major=is_pixel_major(spec, problem.layout))


def conv_backward_weight(op: str, grad: Spec, x: Spec, *, weight_shape: Any, **options: Any) -> ConvProblem:
    """The gradient of the weight."""
    weight = Spec(_shape_option(op, "weight_shape", weight_shape), x.dtype)
    forward = conv(op, x, weight, None, None, activation=None, names=("x", "weight_shape"), **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    return replace(forward, inputs=(grad, x), outputs=(weight,))


def conv_backward(op: str, grad: Spec, x: Spec, weight: Spec, bias: Spec | None, residual: Spec | None, **options: Any) -> ConvProblem:
    """All gradients of `conv` at once."""
    forward = conv(op, x, weight, bias, residual, **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    outputs: tuple[Spec | None, ...] = (x.like(), weight.like(), None if bias is None else bias.like())
    if residual is not None:
        outputs = (*outputs, residual.like())
    return replace(
        forward,
        inputs=(grad, x, weight, bias, residual),
        outputs=outputs,
        returns=ConvGradients if residual is None else ConvResidualGradients,
        maps=2 + (forward.activation is not None),
    )


# --- transposed convolution -------------------------------------------------------------------------------------------


def _transposed_space(
    op: str,
    space: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: Any,
    output_padding: Any,
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The output extents and the paddings that are taken away from them."""
    extra = checks.per_axis(op, "output_padding", output_padding, len(space), 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        expected = "less than the stride or the dilation along each axis"
        fail(OptionError, op, "output_padding", repr(output_padding), expected)
    if padding in ("same", "same_lower"):
        if any(extra):
            fail(
                OptionError,
                op,
                "output_padding",
                repr(output_padding),
                f"0 beside padding={padding!r}, which sets the output to n * stride",
            )
        out = tuple(n * s for n, s in zip(space, strides, strict=True))
        return out, checks.padding(op, padding, out, window, strides, dilations)
    pads = checks.padding(op, padding, space, window, strides, dilations)
    covered = checks.effective_window(window, dilations)
    axes = zip(space, strides, covered, pads, extra, strict=True)
    return tuple((n - 1) * s + w - sum(p) + e for n, s, w, p, e in axes), pads


def conv_transpose(
    op: str,
    x: Spec,
    weight: Spec,
    bias: Spec | None,
    *,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: Any,
    layout: Any,
    activation: Any,
) -> ConvProblem:
    """The transposed convolution: the gradient of the input of the convolution that takes its output to its input."""
    layout = checks.layout(op, layout)
    checks.same_dtype(op, x=x, weight=weight, bias=bias)
    checks.rank(op, "x", x, RANKS, f"{'N C *space' if layout == 'channels_first' else 'N *space C'}, one to three spatial axes")
    rank = x.ndim - 2
    groups = checks.integer(op, "groups", groups, 1)
    n, channels, space = checks.split_layout(x, layout)
    per_group = _channels(op, channels, groups, "channels of x")
    axes = _weight_axes(layout, rank, "C", "K/groups")
    checks.rank(op, "weight", weight, x.ndim, axes)
    window = _window(op, weight, layout)
    k = checks.split_layout(weight, layout)[1]
    checks.shape(op, "weight", weight, checks.join_layout(channels, k, window, layout), axes, f"x has {channels} channels.")
    strides = checks.per_axis(op, "stride", stride, rank, 1)
    dilations = checks.per_axis(op, "dilation", dilation, rank, 1)
    out, pads = _transposed_space(op, space, window, strides, dilations, padding, output_padding)
    if any(m < 1 for m, size in zip(out, space, strict=True)):
        fail(ShapeError, op, "x", f"of spatial shape {space}, which gives an output of {out}", "an output of 1 or more along each axis",
             "Take away less padding.")  # fmt: skip
    output = x.like(checks.join_layout(n, k * groups, out, layout))
    _epilogue(op, k * groups, output, bias, None)
    geometry = Geometry(
        n=n,
        groups=groups,
        c=k,
        k=per_group,
        space=lift(out, 1),
        window=lift(window, 1),
        out=lift(space, 1),
        stride=lift(strides, 1),
        dilation=lift(dilations, 1),
        before=lift([before for before, _ in pads], 0),
        pixel_major=is_pixel_major(x, layout),
    )
    return ConvProblem(
        op=op,
        inputs=(x, weight, bias),
        outputs=(output,),
        geometry=geometry,
        layout=layout,
        rank=rank,
        activation=fused(op, activation),
    )


def conv_transpose_backward(op: str, grad: Spec, x: Spec, weight: Spec, bias: Spec | None, **options: Any) -> ConvProblem:
    """All gradients of `conv_transpose` at once."""
    forward = conv_transpose(op, x, weight, bias, **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    return replace(
        forward,
        inputs=(grad, x, weight, bias),
        outputs=(x.like(), weight.like(), None if bias is None else bias.like()),
        returns=ConvGradients,
        maps=2 + (forward.activation is not None),
    )
