"""Recurrent networks side by side with PyTorch: rows for `asv_bench.gpu`, which uses each before it asks for the next.

T 128, N 64, two layers. The bytes are those of x, the weights and the results (and gradients), each once; a row's
milliseconds are its bytes over its GB/s. PyTorch's backward has the forward's activations at hand, ours computes the
forward again."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn

_T, _N, _LAYERS = 128, 64, 2
_NETWORKS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
_borrowed = cupy.from_dlpack


def _weights(network):
    """The weights of a PyTorch network as ours."""
    return [dnn.RNNWeights(*(_borrowed(w.detach()) for w in entry)) for entry in network.all_weights]


def _rows(kind, hidden, directions, dtype):
    network = _NETWORKS[kind](hidden, hidden, _LAYERS, bidirectional=directions == 2).to("cuda", dtype)
    network.flatten_parameters()
    x = torch.randn((_T, _N, hidden), device="cuda").to(dtype).requires_grad_()
    y, _ = network(x)
    grad = torch.randn_like(y)
    cx, cg, weights = _borrowed(x.detach()), _borrowed(grad), _weights(network)
    options = {"bidirectional": directions == 2}
    ours, ours_backward = getattr(dnn, kind), getattr(dnn, f"{kind}_backward")
    kept = sum(w.nbytes for w in network.parameters())
    label = f"{kind} H{hidden}{' both' if directions == 2 else ''} {str(dtype)[6:]}"
    detached = x.detach()

    def peer():
        with torch.no_grad():
            return network(detached)

    yield label, x.nbytes + y.nbytes + kept, lambda: ours(cx, weights, **options), peer, None, ()
    yield (
        f"{label} backward",
        2 * x.nbytes + y.nbytes + 2 * kept,
        lambda: ours_backward(cg, cx, weights, **options),
        lambda: torch.autograd.grad(y, [x, *network.parameters()], grad, retain_graph=True),
        None,
        (),
    )


def rows():
    torch.backends.cudnn.allow_tf32 = False  # ours does not round float32 either
    for dtype, hidden, directions in (
        (torch.float16, 512, 2),
        (torch.float16, 1024, 1),
        (torch.float32, 512, 2),
        (torch.bfloat16, 512, 2),
    ):
        for kind in _NETWORKS:
            yield from _rows(kind, hidden, directions, dtype)
