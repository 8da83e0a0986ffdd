"""Convolution, its gradients and transposed convolution: the problems.

All of them are maps of one `Geometry`: the forward, the gradient of its input (which is what a transposed convolution
computes) and the gradient of its weight."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.activation import Activation, fused
from dnnarray._problems.base import Problem
from dnnarray._problems.conv_geometry import Geometry, geometry
from dnnarray._records import changed, frozen
from dnnarray._spec import FLOAT64, Spec
from dnnarray._typing import ArrayT

RANKS = (3, 4, 5)


class ConvGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of a convolution with respect to its arrays; `bias` is None where the forward had none."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT


class ConvResidualGradients(NamedTuple, Generic[ArrayT]):
    """`ConvGradients` with the gradient of the residual that was added."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT
    residual: ArrayT


# --- problems ---------------------------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """Which of the three maps of its geometry an operation runs: the forward, the gradient of the input, that of the
    weight."""

    forward: bool
    dgrad: bool
    wgrad: bool


_SINGLE = {
    "conv": Runs(True, False, False),
    "conv_transpose": Runs(False, True, False),
    "conv_backward_input": Runs(False, True, False),
    "conv_backward_weight": Runs(False, False, True),
}
_BACKWARD_AS = {runs: name for name, runs in _SINGLE.items() if name != "conv_transpose"}


@frozen(kw_only=True)
class ConvProblem(Problem):
    """A convolution, one of its gradients, or a transposed convolution.

    `geometry` is that of the convolution; a transposed one computes the map from its output to its input. `kind` is the
    operation, whatever the name by which it was called."""

    geometry: Geometry
    layout: str
    rank: int
    kind: str
    flip: bool = False
    activation: Activation | None = None

    @cached_property
    def runs(self) -> Runs:
        """The maps that the outputs ask for; a backward forms the forward again where it has an activation."""
        if found := _SINGLE.get(self.kind):
            return found
        image, weight = (spec is not None for spec in self.outputs[:2])
        again = self.activation is not None
        return Runs(again, image, weight) if self.kind == "conv_backward" else Runs(image, again, weight)

    @property
    def maps(self) -> int:
        """How many maps it runs."""
        return sum(self.runs)

    @property
    def alike(self) -> str:
        """The operation that runs the same maps: of a backward with a single one, that which does nothing else."""
        return self.kind if self.kind in _SINGLE else _BACKWARD_AS.get(self.runs, self.kind)

    @property
    def unread(self) -> frozenset[int]:
        if self.kind in _SINGLE or self.activation is not None:
            return frozenset()
        image, weight = self.outputs[:2]
        return frozenset((3, 4, *(1,) * (weight is None), *(2,) * (image is None)))

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


def is_pixel_major(spec: Spec, layout: str) -> bool:
    """Whether the channels are innermost in memory."""
    order = spec.axis_order()
    return layout == "channels_last" if order is None else order[-1] == checks.channel_axis(layout, spec.ndim)


def _weight_axes(layout: str, rank: int, leading: str, inner: str) -> str:
    window = {1: "S", 2: "R S", 3: "T R S"}[rank]
    return f"{leading} {inner} {window}" if layout == "channels_first" else f"{leading} {window} {inner}"


def image(op: str, name: str, x: Spec, layout: str) -> tuple[int, int, tuple[int, ...]]:
    """(N, C, space) of an array with one to three spatial axes."""
    checks.rank(op, name, x, RANKS, f"{checks.layout_axes(layout, 0)}, one to three spatial axes")
    return checks.split_layout(x, layout)


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
    groups = checks.integer(op, "groups", groups, 1)
    n, channels, space = image(op, names[0], x, layout)
    per_group = _channels(op, channels, groups, f"channels of {names[0]}")
    rank = len(space)
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
    k = _channels(op, weight.shape[0], groups, f"output channels of {names[1]}")
    memory = is_pixel_major(x, layout)
    return ConvProblem(
        op=op,
        inputs=(x, weight, bias, residual),
        outputs=(output,),
        geometry=geometry(n, groups, per_group, k, space, window, out, strides, dilations, pads, memory),
        layout=layout,
        rank=rank,
        kind="conv",
        flip=checks.boolean(op, "flip", flip),
        activation=fused(op, activation),
    )


def _shape_option(op: str, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        fail(OptionError, op, name, repr(value), "a tuple of integers, the shape of the array, or a Spec")
    return tuple(checks.integer(op, name, v, 0) for v in value)


def conv_backward_input(op: str, grad: Spec, weight: Spec, *, input_shape: Any, **options: Any) -> ConvProblem:
    """The gradient of the input; `input_shape` tells what the stride has rounded away, and as a Spec how the input
    lies."""
    x = input_shape if isinstance(input_shape, Spec) else grad.like(_shape_option(op, "input_shape", input_shape))
    checks.floating(op, "grad", grad)
    forward = conv(op, x, weight, None, None, activation=None, names=("input_shape", "weight"), **options)
    checks.gradient(op, grad, forward.result)
    return changed(forward, inputs=(grad, weight), outputs=(x.like(),), kind="conv_backward_input")


def conv_backward_weight(op: str, grad: Spec, x: Spec, *, weight_shape: Any, **options: Any) -> ConvProblem:
    """The gradient of the weight, channels-last in memory where x is: a channels-last model keeps channels-last
    weights. A Spec says how it lies."""
    given = isinstance(weight_shape, Spec)
    weight = weight_shape if given else Spec(_shape_option(op, "weight_shape", weight_shape), x.dtype)
    forward = conv(op, x, weight, None, None, activation=None, names=("x", "weight_shape"), **options)
    checks.gradient(op, grad, forward.result)
    channel = checks.channel_axis(forward.layout, x.ndim)
    last = (0, *(i for i in range(1, x.ndim) if i != channel), channel)
    output = x.like(weight.shape) if x.axis_order() == last and not given else weight.like()
    return changed(forward, inputs=(grad, x), outputs=(output,), kind="conv_backward_weight")


def conv_backward(
    op: str, grad: Spec, x: Spec, weight: Spec, bias: Spec | None, residual: Spec | None, **options: Any
) -> ConvProblem:
    """All gradients of `conv` at once."""
    forward = conv(op, x, weight, bias, residual, **options)
    checks.gradient(op, grad, forward.result)
    outputs: tuple[Spec | None, ...] = (x.like(), weight.like(), None if bias is None else bias.like())
    if residual is not None:
        outputs = (*outputs, residual.like())
    return changed(
        forward,
        inputs=(grad, x, weight, bias, residual),
        outputs=outputs,
        returns=ConvGradients if residual is None else ConvResidualGradients,
        kind="conv_backward",
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
    groups = checks.integer(op, "groups", groups, 1)
    n, channels, space = image(op, "x", x, layout)
    per_group = _channels(op, channels, groups, "channels of x")
    rank = len(space)
    axes = _weight_axes(layout, rank, "C", "K/groups")
    checks.rank(op, "weight", weight, x.ndim, axes)
    window = _window(op, weight, layout)
    k = checks.split_layout(weight, layout)[1]
    checks.shape(
        op, "weight", weight, checks.join_layout(channels, k, window, layout), axes, f"x has {channels} channels."
    )
    strides = checks.per_axis(op, "stride", stride, rank, 1)
    dilations = checks.per_axis(op, "dilation", dilation, rank, 1)
    out, pads = _transposed_space(op, space, window, strides, dilations, padding, output_padding)
    if any(m < 1 for m, size in zip(out, space, strict=True)):
        fail(
            ShapeError,
            op,
            "x",
            f"of spatial shape {space}, which gives an output of {out}",
            "an output of 1 or more along each axis",
            "Take away less padding.",
        )
    output = x.like(checks.join_layout(n, k * groups, out, layout))
    _epilogue(op, k * groups, output, bias, None)
    memory = is_pixel_major(x, layout)
    return ConvProblem(
        op=op,
        inputs=(x, weight, bias),
        outputs=(output,),
        geometry=geometry(n, groups, k, per_group, out, window, space, strides, dilations, pads, memory),
        layout=layout,
        rank=rank,
        kind="conv_transpose",
        activation=fused(op, activation),
    )


def conv_transpose_backward(
    op: str, grad: Spec, x: Spec, weight: Spec, bias: Spec | None, **options: Any
) -> ConvProblem:
    """All gradients of `conv_transpose` at once."""
    forward = conv_transpose(op, x, weight, bias, **options)
    checks.gradient(op, grad, forward.result)
    return changed(
        forward,
        inputs=(grad, x, weight, bias),
        outputs=(x.like(), weight.like(), None if bias is None else bias.like()),
        returns=ConvGradients,
        kind="conv_transpose_backward",
    )
