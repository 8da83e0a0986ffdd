"""Recurrent networks over whole sequences, padded and packed: what `torch.nn.LSTM`, `torch.nn.GRU` and `torch.nn.RNN`
call. The implementations bring their own gradients, since PyTorch's depend on which of its kernels ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import ABOVE_AUTOGRAD, decline, differentiable, kernel

_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("lstm", {}),
    "gru": ("gru", {}),
    "rnn_tanh": ("rnn", {"activation": "tanh"}),
    "rnn_relu": ("rnn", {"activation": "relu"}),
}


def _weights(parameters: Sequence[Tensor], biases: bool, cells: int) -> list[dnn.RNNWeights]:
    """PyTorch's list of parameters by layers and directions; the projection of an LSTM is the last of each."""
    each = len(parameters) // cells
    names = ["w_ih", "w_hh", *(["b_ih", "b_hh"] if biases else [])]
    names += ["w_hr"] * (each - len(names))
    rows = [parameters[i * each : (i + 1) * each] for i in range(cells)]
    return [dnn.RNNWeights(**dict(zip(names, row, strict=True))) for row in rows]


def _check(x: Tensor, dropout: float, train: bool, layers: int) -> None:
    if dropout > 0 and train and layers > 1:
        raise decline("recurrent: dropout between layers, whose random numbers are PyTorch's")
    if torch.is_autocast_enabled(x.device.type):
        raise decline("recurrent: autocast, which casts inside of PyTorch's own kernel")


def _run(
    kind: str,
    x: Tensor,
    states: Any,
    parameters: Sequence[Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
    lengths: Tensor | None = None,
) -> tuple[Tensor, ...]:
    name, options = _KINDS[kind]
    weights = _weights(parameters, biases, layers * (2 if bidirectional else 1))
    given = tuple(states) if name == "lstm" else (states,)
    found = differentiable(name)(x, weights, *given, bidirectional=bidirectional, lengths=lengths, **options)
    return tuple(found)


def _enter(kind: str) -> None:
    @kernel(f"{kind}.input", keys=ABOVE_AUTOGRAD)
    def padded(
        x: Tensor,
        states: Any,
        parameters: list[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Tensor, ...]:
        _check(x, dropout, train, layers)
        # Time comes first in memory, as in PyTorch's results.
        x = (x.transpose(0, 1) if batch_first else x).contiguous()
        y, *last = _run(kind, x, states, parameters, biases, layers, bidirectional)
        return y.transpose(0, 1) if batch_first else y, *last

    @kernel(f"{kind}.data", keys=ABOVE_AUTOGRAD)
    def packed(
        data: Tensor,
        batch_sizes: Tensor,
        states: Any,
        parameters: list[Tensor],
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        _check(data, dropout, train, layers)
        x, counts = torch._pad_packed_sequence(data, batch_sizes, False, 0.0, 0)
        lengths = counts.to(data.device)
        y, *last = _run(kind, x, states, parameters, biases, layers, bidirectional, lengths)
        return torch._pack_padded_sequence(y, counts, False)[0], *last


for _kind in _KINDS:
    _enter(_kind)
