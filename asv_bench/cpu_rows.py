"""The rows of the CPU table: what is called, on which arrays, and the same in PyTorch.

Batches are of 8 images where the name says nothing. Each row has the extents that are measured and small ones on which
a test holds it to PyTorch. A row is data; `Row.case` makes its arrays. PyTorch is never imported here: it comes as an
argument, so that the rows can be timed where it is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import dnnarray as dnn

Shape = tuple[int, ...]


def normal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Standard normal numbers in float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def leaves(tree: Any) -> Iterator[Any]:
    """The arrays of nested lists and tuples in order, without what was omitted."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from leaves(item)
    elif tree is not None:
        yield tree


def floating(tree: Any) -> list[np.ndarray]:
    """The arrays that have a gradient."""
    return [a for a in leaves(tree) if a.dtype.kind == "f"]


def head(output: Any) -> Any:
    """The first result, where there are several."""
    return output[0] if isinstance(output, tuple) else output


def _in_order(
    function: Callable[..., Any], arrays: tuple[Any, ...], options: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and the options that are left: some options (num_groups) stand between the arrays."""
    arguments, waiting, left = [], list(arrays), dict(options)
    for name in inspect.signature(function).parameters:
        if waiting:
            arguments.append(left.pop(name) if name in left else waiting.pop(0))
    return arguments, left


@dataclass(frozen=True)
class Case:
    """A row with its arrays: our call and, given PyTorch, its call in each layout that it knows for them."""

    row: Row
    arrays: tuple[Any, ...]
    grad: np.ndarray | None

    def ours(self) -> Callable[[], Any]:
        """Our call without arguments; of a gradient, what is done once the forward call has run."""
        if self.grad is None:
            function = getattr(dnn, self.row.operation)
            arguments, options = _in_order(function, self.arrays, self.row.options_for(self.arrays))
            return lambda: function(*arguments, **options)
        _, pullback = dnn.vjp(self.row.operation, *self.arrays, **self.row.options)
        grad = self.grad
        return lambda: pullback(grad)

    def layouts(self) -> tuple[str, ...]:
        """The memory orders to try in PyTorch."""
        ranks = {self.arrays[i].ndim for i in self.row.images}
        return ("contiguous", "channels_last") if ranks & {4, 5} else ("contiguous",)

    def theirs(self, torch: Any, layout: str) -> Callable[[], Any]:
        """PyTorch's call without arguments, its images in this memory order."""
        tensors = [self._tensor(torch, a, layout, i in self.row.images) for i, a in enumerate(self.arrays)]
        function = self.row.theirs
        if self.grad is None:
            return lambda: function(torch, *tensors)
        sources = [t.requires_grad_() for t in leaves(tensors) if t.is_floating_point()]
        y = function(torch, *tensors)
        grad = torch.empty_like(y).copy_(torch.from_numpy(self.grad))  # in the memory order of the output
        return lambda: torch.autograd.grad(y, sources, grad, retain_graph=True)

    def _tensor(self, torch: Any, array: Any, layout: str, image: bool) -> Any:
        if isinstance(array, (list, tuple)):
            return [self._tensor(torch, a, layout, image) for a in leaves(array)]
        tensor = torch.from_numpy(array.copy())
        if not image or layout == "contiguous":
            return tensor
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.contiguous(memory_format=formats.get(tensor.ndim, torch.contiguous_format))


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``shapes`` and ``small`` are what `draw` makes the arrays of. ``theirs(torch, *tensors)`` is PyTorch's forward call
    (of the first result); a row with ``backward`` measures the gradients of all floating arrays. ``images`` are the
    positions of the arrays whose memory order PyTorch may choose. ``random`` says that the two results differ by
    nature."""

    name: str
    operation: str
    shapes: tuple[Shape, ...]
    small: tuple[Shape, ...]
    theirs: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    backward: bool = False
    images: tuple[int, ...] = ()
    draw: Callable[[np.random.Generator, tuple[Shape, ...]], tuple[Any, ...]] = lambda rng, shapes: tuple(
        normal(rng, s) for s in shapes
    )
    options_of: Callable[[tuple[Any, ...]], dict[str, Any]] | None = None
    random: bool = False

    def options_for(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        """The options of our call, with those that follow from the arrays."""
        return self.options | (self.options_of(arrays) if self.options_of else {})

    def case(self, small: bool = False, seed: int = 0) -> Case:
        """The row with arrays, the same in each run."""
        rng = np.random.default_rng(seed)
        arrays = self.draw(rng, self.small if small else self.shapes)
        if not self.backward:
            return Case(self, arrays, None)
        return Case(self, arrays, normal(rng, head(dnn.infer(self.operation, *arrays, **self.options).output).shape))


# --- convolution ------------------------------------------------------------------------------------------------------


def _conv(name: str, x: Shape, weight: Shape, *, groups: int = 1, gradient: str = "", **options: Any) -> Row:
    """A convolution of 1, 2 or 3 dimensions, or one of its two gradients by itself."""
    # Fewer channels and pixels for the test; groups keep their channels.
    channels, kernels = (min(x[1], 16), min(weight[0], 16)) if groups == 1 else (x[1], weight[0])
    small = ((2, channels, *(min(e, 9) for e in x[2:])), (kernels, channels // groups, *weight[2:]))
    chosen = {"groups": groups, **options}
    if gradient:
        return _conv_gradient(name, (x, weight), small, chosen, gradient)

    def theirs(torch: Any, x: Any, weight: Any) -> Any:
        function = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")
        return function(x, weight, **chosen)

    return Row(name, "conv", (x, weight), small, theirs, chosen, images=(0, 1))


def _conv_gradient(
    name: str, shapes: tuple[Shape, ...], small: tuple[Shape, ...], options: dict[str, Any], which: str
) -> Row:
    """The gradient of a convolution with respect to its ``input`` or its ``weight``: arrays are grad and the other of
    the two."""
    wanted, kept = (0, 1) if which == "input" else (1, 0)

    def draw(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
        output = dnn.infer("conv", *(dnn.Spec(s, np.dtype(np.float32)) for s in shapes), **options).output
        return normal(rng, output.shape), normal(rng, shapes[kept])

    def options_of(arrays: tuple[Any, ...]) -> dict[str, Any]:
        pair = next(p for p in (shapes, small) if p[kept] == tuple(arrays[1].shape))
        return {f"{which}_shape": pair[wanted]}

    def theirs(torch: Any, grad: Any, other: Any) -> Any:
        rank = grad.ndim - 2
        unread = _unread(torch, options_of((grad, other))[f"{which}_shape"], not other.is_contiguous(), other.dtype)
        x, weight = (unread, other) if which == "input" else (other, unread)
        both = ([options.get(n, default)] * rank for n, default in (("stride", 1), ("padding", 0), ("dilation", 1)))
        mask = [which == "input", which == "weight", False]
        backward = torch.ops.aten.convolution_backward
        return backward(grad, x, weight, None, *both, False, [0] * rank, options["groups"], mask)[wanted]

    return Row(
        name, f"conv_backward_{which}", shapes, small, theirs, options, images=(0, 1), draw=draw, options_of=options_of
    )


@cache
def _unread(torch: Any, shape: Shape, channels_last: bool, dtype: Any) -> Any:
    """The array that a gradient does not depend on: it only lends its shape, dtype and memory order."""
    return torch.empty(
        shape, dtype=dtype, memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


# --- everything else --------------------------------------------------------------------------------------------------


def _functional(name: str, *positional: Any, **options: Any) -> Callable[..., Any]:
    """A function of ``torch.nn.functional`` with these further arguments."""
    return lambda torch, *tensors: getattr(torch.nn.functional, name)(*tensors, *positional, **options)


def _batch_norm(training: bool) -> Callable[..., Any]:
    if training:
        return lambda torch, x, weight, bias: torch.nn.functional.batch_norm(x, None, None, weight, bias, True)
    return lambda torch, x, mean, variance, weight, bias: torch.nn.functional.batch_norm(
        x, mean, variance, weight, bias, False
    )


def _statistics(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
    x, mean, variance, *rest = (normal(rng, s) for s in shapes)
    return (x, mean, np.abs(variance) + 0.5, *rest)


def _labels(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
    logits = normal(rng, shapes[0])
    return logits, rng.integers(0, logits.shape[1], logits.shape[0])


def _indices(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
    indices, weight = shapes
    return rng.integers(0, weight[0], indices), normal(rng, weight)


def _coordinates(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
    x, grid = shapes
    return normal(rng, x), rng.uniform(-1.1, 1.1, grid).astype(np.float32)


def _recurrent(kind: str, layers: int, directions: int) -> dict[str, Any]:
    """The arrays of a network whose shapes are given as (T, N, I) and (hidden units,), and PyTorch's call."""
    gates = {"lstm": 4, "gru": 3}[kind]

    def draw(rng: np.random.Generator, shapes: tuple[Shape, ...]) -> tuple[Any, ...]:
        x, (hidden,) = shapes
        weights = []
        for layer in range(layers):
            inputs = x[2] if layer == 0 else directions * hidden
            extents = [(gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,)]
            for _ in range(directions):
                weights.append(dnn.RNNWeights(*(normal(rng, e) / np.float32(hidden**0.5) for e in extents)))
        return normal(rng, x), weights

    def theirs(torch: Any, x: Any, weights: Any) -> Any:
        zero = x.new_zeros(layers * directions, x.shape[1], weights[1].shape[1])
        state = (zero, zero) if kind == "lstm" else zero
        # What torch.nn.LSTM and torch.nn.GRU call: (biases, layers, dropout, train, bidirectional, batch first).
        return getattr(torch, kind)(x, state, weights, True, layers, 0.0, False, directions == 2, False)[0]

    return {"draw": draw, "theirs": theirs, "options": {"bidirectional": directions == 2}}


def _attention(name: str, q: Shape, kv: Shape, *, causal: bool = False, backward: bool = False) -> Row:
    def small(shape: Shape) -> Shape:
        return (shape[0], 2, min(shape[2], 19), 8)

    theirs = _functional("scaled_dot_product_attention", is_causal=causal)
    shapes, few = (q, kv, kv), (small(q), small(kv), small(kv))
    return Row(name, "attention", shapes, few, theirs, {"causal": causal}, backward)


def _pool(name: str, function: str, x: Shape, backward: bool = False, **options: Any) -> Row:
    theirs = _functional({"max_pool": "max_pool2d", "avg_pool": "avg_pool2d"}[function], **options)
    return Row(name, function, (x,), ((2, 3, 9, 8),), theirs, options, backward, images=(0,))


_IMAGE, _FEW = (8, 64, 56, 56), (2, 6, 5, 4)
_WIDE = (2048, 1024)


def _layer_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def _layer_norm_row(name: str, backward: bool = False) -> Row:
    shapes, few = ((2048, 768), (768,), (768,)), ((5, 24), (24,), (24,))
    return Row(name, "layer_norm", shapes, few, _layer_norm, {}, backward)


def _batch_norm_train(name: str, backward: bool = False) -> Row:
    shapes, few = (_IMAGE, (64,), (64,)), (_FEW, (6,), (6,))
    return Row(name, "batch_norm_train", shapes, few, _batch_norm(True), {}, backward, images=(0,))


def _rms_norm(torch: Any, x: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def _group_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.group_norm(x, 32, weight, bias)


def _elementwise(name: str, operation: str, backward: bool = False, **options: Any) -> Row:
    return Row(name, operation, (_WIDE,), ((5, 7),), _functional(operation, **options), options, backward)


def _softmax(name: str, shape: Shape, backward: bool = False) -> Row:
    return Row(name, "softmax", (shape,), ((3, 33),), _functional("softmax", -1), {}, backward)


# The operations on which the engine was planned.
PLANNED = (
    _conv("conv 3x3 64 at 56x56", _IMAGE, (64, 64, 3, 3), padding=1),
    _conv("conv 3x3 256 at 14x14", (8, 256, 14, 14), (256, 256, 3, 3), padding=1),
    _conv("conv 3x3 512 at 7x7", (8, 512, 7, 7), (512, 512, 3, 3), padding=1),
    _conv("conv 1x1 64->256 at 56x56", _IMAGE, (256, 64, 1, 1)),
    _conv("conv 1x1 1024->256 at 14x14", (8, 1024, 14, 14), (256, 1024, 1, 1)),
    _conv("conv 7x7/2 3->64 at 224x224", (8, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3),
    _conv("depthwise 3x3 96 at 56x56", (8, 96, 56, 56), (96, 1, 3, 3), groups=96, padding=1),
    _conv("depthwise 31x31 96 at 56x56", (8, 96, 56, 56), (96, 1, 31, 31), groups=96, padding=15),
    _conv("grouped 32 3x3 128 at 56x56", (8, 128, 56, 56), (128, 4, 3, 3), groups=32, padding=1),
    _conv("grouped 32 3x3 512 at 14x14", (8, 512, 14, 14), (512, 16, 3, 3), groups=32, padding=1),
    _conv("conv 1-D 3 128 at 4096", (8, 128, 4096), (128, 128, 3), padding=1),
    _conv("conv 3-D 3x3x3 32 at 16x28x28", (1, 32, 16, 28, 28), (32, 32, 3, 3, 3), padding=1),
    _conv("input gradient 3x3 64 at 56x56", _IMAGE, (64, 64, 3, 3), padding=1, gradient="input"),
    _conv("weight gradient 3x3 64 at 56x56", _IMAGE, (64, 64, 3, 3), padding=1, gradient="weight"),
    _pool("max pool 3x3/2 64 at 112x112", "max_pool", (8, 64, 112, 112), kernel_size=3, stride=2, padding=1),
    _pool("avg pool 2x2 64 at 56x56", "avg_pool", _IMAGE, kernel_size=2),
    _batch_norm_train("batch norm, training"),
    Row(
        "batch norm, inference",
        "batch_norm",
        (_IMAGE, *[(64,)] * 4),
        (_FEW, *[(6,)] * 4),
        _batch_norm(False),
        images=(0,),
        draw=_statistics,
    ),
    _layer_norm_row("layer norm 2048x768"),
    Row(
        "group norm 32 64 at 28x28",
        "group_norm",
        ((8, 64, 28, 28), (64,), (64,)),
        ((2, 64, 3, 2), (64,), (64,)),
        _group_norm,
        {"num_groups": 32},
        images=(0,),
    ),
    _elementwise("relu", "relu"),
    _elementwise("gelu", "gelu"),
    _elementwise("gelu, tanh form", "gelu", approximate="tanh"),
    _elementwise("silu", "silu"),
    _softmax("softmax 4096x1024", (4096, 1024)),
    _softmax("softmax 64x32000", (64, 32000)),
    Row(
        "LSTM T 100 N 32 H 512, 2 layers, both ways",
        "lstm",
        ((100, 32, 512), (512,)),
        ((4, 2, 6), (5,)),
        **_recurrent("lstm", 2, 2),
    ),
    Row(
        "GRU T 100 N 32 H 512, 2 layers, both ways",
        "gru",
        ((100, 32, 512), (512,)),
        ((4, 2, 6), (5,)),
        **_recurrent("gru", 2, 2),
    ),
    _attention("attention causal S 1024", (1, 8, 1024, 64), (1, 8, 1024, 64), causal=True),
    _attention("attention causal S 4096", (1, 8, 4096, 64), (1, 8, 4096, 64), causal=True),
    _attention("attention decode S 4096", (1, 8, 1, 64), (1, 8, 4096, 64)),
)

# Twenty more: the gradients, and what those leave out.
MORE = (
    _conv("conv 3x3/2 64->128 at 56x56", _IMAGE, (128, 64, 3, 3), stride=2, padding=1),
    _conv("input gradient 3x3/2 64->128 at 56x56", _IMAGE, (128, 64, 3, 3), stride=2, padding=1, gradient="input"),
    _conv(
        "weight gradient 7x7/2 3->64 at 224x224",
        (8, 3, 224, 224),
        (64, 3, 7, 7),
        stride=2,
        padding=3,
        gradient="weight",
    ),
    _conv(
        "weight gradient depthwise 3x3 96 at 56x56",
        (8, 96, 56, 56),
        (96, 1, 3, 3),
        groups=96,
        padding=1,
        gradient="weight",
    ),
    Row(
        "linear 512x1024->1024",
        "linear",
        ((512, 1024), (1024, 1024), (1024,)),
        ((5, 6), (7, 6), (7,)),
        _functional("linear"),
    ),
    Row(
        "linear 512x1024->1024 backward",
        "linear",
        ((512, 1024), (1024, 1024), (1024,)),
        ((5, 6), (7, 6), (7,)),
        _functional("linear"),
        backward=True,
    ),
    _pool(
        "max pool 3x3/2 64 at 112x112 backward", "max_pool", (8, 64, 112, 112), True, kernel_size=3, stride=2, padding=1
    ),
    _batch_norm_train("batch norm backward", True),
    _layer_norm_row("layer norm 2048x768 backward", True),
    Row("RMS norm 2048x768", "rms_norm", ((2048, 768), (768,)), ((5, 24), (24,)), _rms_norm),
    _elementwise("gelu backward", "gelu", True),
    _softmax("softmax 4096x1024 backward", (4096, 1024), True),
    Row("dropout", "dropout", (_WIDE,), ((50, 70),), _functional("dropout", 0.5), {"p": 0.5, "seed": 1}, random=True),
    Row(
        "cross entropy 512x32000",
        "cross_entropy",
        ((512, 32000),),
        ((5, 11),),
        _functional("cross_entropy"),
        draw=_labels,
    ),
    Row(
        "cross entropy 512x32000 backward",
        "cross_entropy",
        ((512, 32000),),
        ((5, 11),),
        _functional("cross_entropy"),
        backward=True,
        draw=_labels,
    ),
    _attention("attention causal S 1024 backward", (1, 8, 1024, 64), (1, 8, 1024, 64), causal=True, backward=True),
    Row(
        "LSTM T 50 N 32 H 256 backward",
        "lstm",
        ((50, 32, 256), (256,)),
        ((4, 2, 6), (5,)),
        backward=True,
        **_recurrent("lstm", 1, 1),
    ),
    Row(
        "interpolate linear x2 64 at 56x56",
        "interpolate",
        (_IMAGE,),
        (_FEW,),
        _functional("interpolate", None, 2.0, "bilinear"),
        {"scale": 2.0, "mode": "linear"},
        images=(0,),
    ),
    Row(
        "grid sample bilinear 64 at 56x56",
        "grid_sample",
        (_IMAGE, (8, 56, 56, 2)),
        (_FEW, (2, 3, 5, 2)),
        _functional("grid_sample", align_corners=False),
        images=(0,),
        draw=_coordinates,
    ),
    Row(
        "embedding 8192 of 32000x512",
        "embedding",
        ((8, 1024), (32000, 512)),
        ((2, 3), (11, 4)),
        _functional("embedding"),
        draw=_indices,
    ),
)

ROWS = PLANNED + MORE
