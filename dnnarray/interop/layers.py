"""Networks by a short description, such as ``("conv 16 3", "relu", "max_pool 2", "linear 64", "relu")``, for the
estimators of scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dnnarray as dnn

Params = dict[str, Any]
_ACTIVATIONS = (
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "elu",
    "selu",
    "mish",
    "leaky_relu",
    "hard_swish",
    "softplus",
)
_KINDS = (
    "linear N, conv N WINDOW [STRIDE], max_pool WINDOW, avg_pool WINDOW, layer_norm, group_norm GROUPS, "
    "dropout P, or an activation"
)


class Layer:
    """One layer: the shape of its output, the parameters that it begins with, and what it computes."""

    def __init__(self, index: int, text: str, shape: tuple[int, ...]) -> None:
        self.name, self.shape = f"{index} {text}", shape
        kind, *numbers = text.split() or [""]
        if kind not in _BUILDERS and kind not in _ACTIVATIONS:
            raise dnn.OptionError(f"layers: {text!r} is no layer; expected {_KINDS} ({', '.join(_ACTIVATIONS)}).")
        build = getattr(self, f"_{kind}") if kind in _BUILDERS else self._activation
        try:
            self.output, self._initial, self.run = build(kind, *map(float, numbers))
        except (TypeError, ValueError) as error:
            if isinstance(error, dnn.OptionError):
                raise
            raise dnn.OptionError(f"layers: {text!r} is no layer of input shape {shape}; expected {_KINDS}.") from None

    def initial(self, rng: np.random.Generator, dtype: np.dtype) -> Params:
        return {name: make(rng).astype(dtype) for name, make in self._initial.items()}

    def _activation(self, kind: str) -> Any:
        function = getattr(dnn, kind)
        return self.shape, {}, lambda params, x, seed: function(x)

    def _linear(self, kind: str, width: float) -> Any:
        features, width = math.prod(self.shape), int(width)
        initial = {"weight": _scaled(width, features), "bias": lambda rng: np.zeros(width)}
        return (width,), initial, lambda p, x, seed: dnn.linear(x.reshape(x.shape[0], features), p["weight"], p["bias"])

    def _conv(self, kind: str, channels: float, window: float, stride: float = 1) -> Any:
        self._needs_space(kind)
        weight = (int(channels), self.shape[0], *(int(window),) * (len(self.shape) - 1))
        initial = {"weight": _scaled(*weight), "bias": lambda rng: np.zeros(weight[0])}
        options: dict[str, Any] = {"padding": "same", "stride": int(stride)}
        output = tuple(-(-n // int(stride)) for n in self.shape[1:])
        return (weight[0], *output), initial, lambda p, x, seed: dnn.conv(x, p["weight"], p["bias"], **options)

    def _pool(self, kind: str, window: float) -> Any:
        self._needs_space(kind)
        function, size = getattr(dnn, kind), int(window)
        output = (self.shape[0], *(n // size for n in self.shape[1:]))
        if min(output) < 1:
            raise dnn.OptionError(
                f"layers: {kind} {size} leaves nothing of the shape {self.shape}; expected a smaller window."
            )
        return output, {}, lambda p, x, seed: function(x, size)

    _max_pool = _avg_pool = _pool

    def _layer_norm(self, kind: str) -> Any:
        axes = tuple(range(-len(self.shape), 0))
        initial = {"weight": lambda rng: np.ones(self.shape), "bias": lambda rng: np.zeros(self.shape)}
        return self.shape, initial, lambda p, x, seed: dnn.layer_norm(x, p["weight"], p["bias"], axis=axes)

    def _group_norm(self, kind: str, groups: float) -> Any:
        self._needs_space(kind)
        initial = {"weight": lambda rng: np.ones(self.shape[0]), "bias": lambda rng: np.zeros(self.shape[0])}
        return self.shape, initial, lambda p, x, seed: dnn.group_norm(x, int(groups), p["weight"], p["bias"])

    def _dropout(self, kind: str, p: float) -> Any:
        return self.shape, {}, lambda params, x, seed: x if seed is None else dnn.dropout(x, p=p, seed=seed)

    def _needs_space(self, kind: str) -> None:
        if len(self.shape) < 2:
            raise dnn.OptionError(
                f"layers: {kind} needs channels and space, and its input has shape {self.shape}; give "
                "input_shape=(C, H, W)."
            )


_BUILDERS = frozenset(("linear", "conv", "max_pool", "avg_pool", "layer_norm", "group_norm", "dropout"))


def _scaled(*shape: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Normal numbers of variance 2 / inputs (He et al., 2015)."""
    return lambda rng: rng.standard_normal(shape) * math.sqrt(2 / max(1, math.prod(shape[1:])))


class Network:
    """The layers of a description, behind each other, with a linear layer to the outputs at the end."""

    def __init__(self, layers: Sequence[str], input_shape: tuple[int, ...], outputs: int) -> None:
        if isinstance(layers, str) or not all(isinstance(text, str) for text in layers):
            raise dnn.OptionError(
                f"layers: {layers!r} is no sequence of layers; expected for example ('linear 64', 'relu')."
            )
        self.layers: list[Layer] = []
        shape = input_shape
        for i, text in enumerate([*layers, f"linear {outputs}"]):
            self.layers.append(Layer(i, text, shape))
            shape = self.layers[-1].output
        self.input_shape = input_shape

    def initial(self, rng: np.random.Generator, dtype: np.dtype) -> dict[str, Params]:
        """Parameters to begin with, a dict of arrays for each layer."""
        return {layer.name: layer.initial(rng, dtype) for layer in self.layers}

    def __call__(self, params: dict[str, Params], x: Any, seed: int | None = None) -> Any:
        """The outputs (N, outputs); dropout is at work only where a seed is given."""
        x = x.reshape(x.shape[0], *self.input_shape)
        for i, layer in enumerate(self.layers):
            x = layer.run(params[layer.name], x, None if seed is None else seed * len(self.layers) + i)
        return x
