"""What every operation's error in float32 is measured on, and the same calculation in PyTorch.

A `Row` is a call on a few thousand numbers: errors of a hundred results differ by chance. `peer(torch, *tensors)` gives
PyTorch's results in the order of ours; a row without one is held to its bound alone. PyTorch is never imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnnarray import RNNWeights
from tests.support import Draw, fixed, integers, normal, uniform

Peer = Callable[..., Any]
NORMAL, SMALL, TENTH, LARGE, HUGE, VAST = 1.0, 1e-3, 0.1, 1e3, 1e19, 1e30
ALL = (NORMAL, SMALL, TENTH, LARGE, HUGE, VAST)
USUAL = (NORMAL, SMALL, TENTH, LARGE)


@dataclass(frozen=True)
class Row:
    """One call. `scaled` are the positions of the arrays that are multiplied with each of `scales`; `elementwise` says
    that each result is a function of a few numbers, so that it is held to its relative error, too; `bound` is the
    largest error that is allowed, in units of half an ulp of the results, whatever that of PyTorch is; see
    `tests/test_accuracy.py`."""

    name: str
    op: str
    arrays: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    peer: Peer | None = None
    scaled: tuple[int, ...] = (0,)
    scales: tuple[float, ...] = ALL
    elementwise: bool = False
    gradient: bool = True
    bound: float = 8.0

    def __str__(self) -> str:
        return self.name


def functional(name: str, *arguments: Any, **options: Any) -> Peer:
    """A function of torch.nn.functional, with what follows its tensors."""
    return lambda torch, *tensors: getattr(torch.nn.functional, name)(
        *(t for t in tensors if t is not None), *arguments, **options
    )


def _by_name(name: str, *names: str, **options: Any) -> Peer:
    """The same with tensors by name behind the first ones."""

    def peer(torch: Any, *tensors: Any) -> Any:
        first = len(tensors) - len(names)
        return getattr(torch.nn.functional, name)(
            *tensors[:first], **dict(zip(names, tensors[first:], strict=True)), **options
        )

    return peer


# --- activations, softmax, dropout ------------------------------------------------------------------------------------

_X = normal(37, 101)


def _elementwise(op: str, peer: Peer, *more: Any, **options: Any) -> Row:
    name = "-".join((op, *(str(v) for v in options.values())))
    return Row(name, op, (_X, *more), options, peer, elementwise=True)


_ACTIVATIONS = (
    _elementwise("relu", functional("relu")),
    _elementwise("relu6", functional("relu6")),
    _elementwise("clipped_relu", functional("hardtanh", 0.0, 1.5), max=1.5),
    _elementwise("leaky_relu", functional("leaky_relu", 0.01)),
    _elementwise("elu", functional("elu")),
    _elementwise("elu", functional("elu", 0.3), alpha=0.3),
    _elementwise("selu", functional("selu")),
    _elementwise("celu", functional("celu", 0.25), alpha=0.25),
    _elementwise("sigmoid", functional("sigmoid")),
    _elementwise("hard_sigmoid", functional("hardsigmoid")),
    _elementwise("log_sigmoid", functional("logsigmoid")),
    _elementwise("tanh", functional("tanh")),
    _elementwise("hard_tanh", functional("hardtanh")),
    _elementwise("softplus", functional("softplus")),
    _elementwise("softplus", functional("softplus", 2.0), beta=2.0),
    _elementwise("softsign", functional("softsign")),
    _elementwise("gelu", functional("gelu")),
    _elementwise("gelu", functional("gelu", approximate="tanh"), approximate="tanh"),
    _elementwise("silu", functional("silu")),
    _elementwise("hard_swish", functional("hardswish")),
    _elementwise("mish", functional("mish")),
    _elementwise("threshold", functional("threshold", 0.5, -2.0), threshold=0.5, value=-2.0),
    _elementwise("prelu", functional("prelu"), uniform(0.1, 0.5, 101)),
    replace(_elementwise("glu", functional("glu")), arrays=(normal(37, 100),)),
    _elementwise("swiglu", lambda torch, gate, x: torch.nn.functional.silu(gate) * x, _X),
    _elementwise("geglu", lambda torch, gate, x: torch.nn.functional.gelu(gate) * x, _X),
    Row(
        "bias_activation",
        "bias_activation",
        (_X, normal(101)),
        {"activation": "gelu"},
        lambda torch, x, b: torch.nn.functional.gelu(x + b),
    ),
)

_SOFTMAX = tuple(
    Row(f"{op}-{name}", op, (normal(*shape),), {"axis": axis}, functional(op, axis))
    for op in ("softmax", "log_softmax", "softmin")
    for name, shape, axis in (("rows", (37, 101), -1), ("columns", (101, 37), 0), ("long", (3, 5000), -1))
)

_DROPOUT = (
    Row("dropout", "dropout", (_X,), {"p": 0.3, "seed": 1}, elementwise=True, bound=2.0),
    Row(
        "bias_dropout_add",
        "bias_dropout_add",
        (_X, normal(101), _X),
        {"p": 0.0, "seed": 1},
        lambda torch, x, b, r: x + b + r,
    ),
)

# --- products ---------------------------------------------------------------------------------------------------------


def _linear(activation: str) -> Peer:
    return lambda torch, x, w, b: getattr(torch.nn.functional, activation)(torch.nn.functional.linear(x, w, b))


def _conv(name: str, x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Row:
    rank = len(x) - 2
    return Row(
        f"conv-{name}",
        "conv",
        (normal(*x), normal(*w), normal(w[0]), None),
        options,
        functional(f"conv{rank}d", **options),
    )


def _transposed(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Row:
    peer = functional(f"conv_transpose{len(x) - 2}d", **options)
    return Row(f"conv_transpose-{len(x) - 2}d", "conv_transpose", (normal(*x), normal(*w), normal(w[1])), options, peer)


_CONV = (
    _conv("3x3", (2, 24, 12, 14), (16, 24, 3, 3), padding=1),
    _conv("1x1", (2, 40, 12, 14), (24, 40, 1, 1)),
    _conv("7x7", (2, 3, 24, 22), (16, 3, 7, 7), padding=3, stride=2),
    _conv("depthwise", (2, 16, 15, 14), (16, 1, 3, 3), padding=1, groups=16),
    _conv("grouped", (2, 24, 12, 14), (24, 8, 3, 3), padding=1, groups=3),
    _conv("1d", (2, 16, 200), (24, 16, 5), padding=2),
    _conv("3d", (1, 8, 6, 7, 9), (8, 8, 3, 3, 3), padding=1),
    _transposed((2, 16, 9, 8), (16, 12, 3, 3), stride=2, padding=1),
    Row(
        "conv_backward_input",
        "conv_backward_input",
        (normal(2, 16, 12, 14), normal(16, 24, 3, 3)),
        {"input_shape": (2, 24, 12, 14), "padding": 1},
        lambda torch, g, w: torch.nn.grad.conv2d_input((2, 24, 12, 14), w, g, padding=1),
        gradient=False,
    ),
    Row(
        "conv_backward_weight",
        "conv_backward_weight",
        (normal(2, 16, 12, 14), normal(2, 24, 12, 14)),
        {"weight_shape": (16, 24, 3, 3), "padding": 1},
        lambda torch, g, x: torch.nn.grad.conv2d_weight(x, (16, 24, 3, 3), g, padding=1),
        gradient=False,
    ),
    Row("linear", "linear", (normal(33, 200), normal(70, 200), normal(70)), {}, functional("linear")),
    Row(
        "linear-gelu", "linear", (normal(33, 200), normal(70, 200), normal(70)), {"activation": "gelu"}, _linear("gelu")
    ),
    Row("unfold", "unfold", (normal(2, 5, 14, 13),), {"kernel_size": 3}, functional("unfold", 3)),
    Row(
        "fold",
        "fold",
        (normal(2, 45, 132),),
        {"output_size": (13, 14), "kernel_size": 3},
        functional("fold", (13, 14), 3),
    ),
)

# --- norms ------------------------------------------------------------------------------------------------------------


def _batch_norm(torch: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
    """PyTorch has no gradients of the statistics."""
    return torch.nn.functional.batch_norm(x, mean.detach(), variance.detach(), weight, bias)


def _batch_norm_train(torch: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any) -> Any:
    mean, variance = mean.detach().clone(), variance.detach().clone()
    y, m, r = torch.ops.aten.native_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    return y, m, r, mean, variance


def _layer_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    y, mean, rstd = torch.ops.aten.native_layer_norm(x, weight.shape, weight, bias, 1e-5)
    return y, mean, rstd


def _add_norm(of: Callable[..., Any]) -> Peer:
    def peer(torch: Any, x: Any, residual: Any, *parameters: Any) -> Any:
        total = x + residual
        return of(torch.nn.functional, total, *parameters), total

    return peer


def _given(c: int) -> tuple[Draw, ...]:
    return normal(c), uniform(0.5, 2, c), uniform(0.5, 2, c), normal(c)


_BATCH = (normal(4, 16, 9, 7), uniform(0.5, 2, 16), normal(16), normal(16), uniform(0.5, 2, 16))
_ROWS = (normal(37, 200), uniform(0.5, 2, 200), normal(200))

_NORMS = (
    Row("batch_norm", "batch_norm", (normal(4, 16, 9, 7), *_given(16)), {}, _batch_norm),
    Row("batch_norm_train", "batch_norm_train", _BATCH, {}, _batch_norm_train),
    Row(
        "batch_norm_train-few",
        "batch_norm_train",
        (normal(5, 200), *(uniform(0.5, 2, 200) for _ in range(4))),
        {},
        _batch_norm_train,
        scales=(*USUAL, 1e18, VAST),
    ),
    Row("layer_norm", "layer_norm", _ROWS, {"return_stats": True}, _layer_norm),
    Row(
        "layer_norm-short",
        "layer_norm",
        (normal(300, 7), uniform(0.5, 2, 7), normal(7)),
        {"return_stats": True},
        _layer_norm,
    ),
    Row(
        "rms_norm",
        "rms_norm",
        _ROWS[:2],
        {"eps": 1e-5},
        lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-5),
    ),
    Row(
        "add_layer_norm",
        "add_layer_norm",
        (_ROWS[0], *_ROWS),
        {},
        _add_norm(lambda f, t, w, b: f.layer_norm(t, w.shape, w, b)),
        scaled=(0, 1),
    ),
    Row(
        "add_rms_norm",
        "add_rms_norm",
        (_ROWS[0], *_ROWS[:2]),
        {"eps": 1e-5},
        _add_norm(lambda f, t, w: f.rms_norm(t, w.shape, w, 1e-5)),
        scaled=(0, 1),
    ),
    Row(
        "group_norm",
        "group_norm",
        (normal(4, 16, 9, 7), uniform(0.5, 2, 16), normal(16)),
        {"num_groups": 4},
        lambda torch, x, w, b: torch.nn.functional.group_norm(x, 4, w, b),
    ),
    Row(
        "instance_norm",
        "instance_norm",
        (normal(4, 16, 9, 7), uniform(0.5, 2, 16), normal(16)),
        {},
        lambda torch, x, w, b: torch.nn.functional.instance_norm(x, weight=w, bias=b),
    ),
    Row(
        "local_response_norm",
        "local_response_norm",
        (normal(4, 16, 9, 7),),
        {"size": 5},
        functional("local_response_norm", 5),
        scales=(*USUAL, 1e15),
    ),
)

# --- losses -----------------------------------------------------------------------------------------------------------


def _log_probs(rng: np.random.Generator) -> np.ndarray:
    z = rng.standard_normal((30, 8, 12))
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def _linear_cross_entropy(torch: Any, x: Any, w: Any, target: Any, bias: Any) -> Any:
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, w, bias), target, reduction="none")


def _cross_entropy(name: str, target: Draw, **options: Any) -> Row:
    return Row(
        f"cross_entropy-{name}",
        "cross_entropy",
        (normal(211, 40), target),
        options,
        functional("cross_entropy", **options),
    )


_TARGETS = fixed(np.tile(np.arange(1, 8), (8, 1)))
_LOSSES = (
    _cross_entropy("mean", integers(0, 40, 211)),
    _cross_entropy("none", integers(0, 40, 211), reduction="none"),
    _cross_entropy("smoothing", integers(0, 40, 211), reduction="none", label_smoothing=0.1),
    replace(_cross_entropy("probabilities", uniform(0, 0.05, 211, 40), reduction="none"), scales=USUAL),
    Row("nll_loss", "nll_loss", (normal(211, 40), integers(0, 40, 211)), {}, functional("nll_loss")),
    Row(
        "linear_cross_entropy",
        "linear_cross_entropy",
        (normal(64, 30), normal(50, 30), integers(0, 50, 64), normal(50)),
        {"reduction": "none"},
        _linear_cross_entropy,
    ),
    Row(
        "ctc_loss",
        "ctc_loss",
        (Draw(_log_probs), _TARGETS, fixed([30] * 8), fixed([7] * 8)),
        {"reduction": "none"},
        functional("ctc_loss", reduction="none"),
        scales=(NORMAL,),
    ),
)

# --- pooling ----------------------------------------------------------------------------------------------------------

_IMAGE = normal(2, 8, 13, 14)


def _pool(op: str, theirs: str, **options: Any) -> Row:
    return Row(op, op, (_IMAGE,), options, functional(theirs, *options.values()))


_POOLS = (
    _pool("max_pool", "max_pool2d", kernel_size=3),
    Row(
        "max_pool_with_indices",
        "max_pool_with_indices",
        (_IMAGE,),
        {"kernel_size": 3},
        functional("max_pool2d", 3, return_indices=True),
    ),
    _pool("avg_pool", "avg_pool2d", kernel_size=3),
    Row("avg_pool-whole", "avg_pool", (_IMAGE,), {"kernel_size": (13, 14)}, functional("avg_pool2d", (13, 14))),
    Row(
        "avg_pool-wide",
        "avg_pool",
        (normal(2, 8, 40, 41),),
        {"kernel_size": 9, "stride": 4},
        functional("avg_pool2d", 9, 4),
    ),
    Row("lp_pool", "lp_pool", (_IMAGE,), {"kernel_size": 3, "p": 2}, functional("lp_pool2d", 2.0, 3)),
    _pool("adaptive_avg_pool", "adaptive_avg_pool2d", output_size=(5, 4)),
    _pool("adaptive_max_pool", "adaptive_max_pool2d", output_size=(5, 4)),
    Row(
        "adaptive_max_pool_with_indices",
        "adaptive_max_pool_with_indices",
        (_IMAGE,),
        {"output_size": (5, 4)},
        functional("adaptive_max_pool2d", (5, 4), return_indices=True),
    ),
    Row(
        "max_unpool",
        "max_unpool",
        (normal(2, 8, 6, 7), fixed(np.broadcast_to(np.arange(42).reshape(6, 7) * 4, (2, 8, 6, 7)))),
        {"output_size": (13, 14)},
        lambda torch, x, i: torch.nn.functional.max_unpool2d(x, i.contiguous(), 2, output_size=(13, 14)),
    ),
)

# --- recurrent --------------------------------------------------------------------------------------------------------

_T, _N, _I, _H = 9, 6, 14, 16
_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def _weights(op: str) -> RNNWeights:
    rows, scale = _GATES[op] * _H, 1 / math.sqrt(_H)
    return RNNWeights(
        normal(rows, _I, scale=scale),
        normal(rows, _H, scale=scale),
        normal(rows, scale=scale),
        normal(rows, scale=scale),
    )


def _network(op: str) -> Row:
    def peer(torch: Any, x: Any, weights: Any, *states: Any) -> Any:
        flat = [w for entry in weights for w in entry[:4]]
        given = tuple(s for s in states if s is not None)
        kind = "rnn_tanh" if op == "rnn" else op
        return getattr(torch._VF, kind)(x, given if op == "lstm" else given[0], flat, True, 1, 0.0, False, False, False)

    states = (normal(1, _N, _H),) * (2 if op == "lstm" else 1)
    # Little is left of 1 - t**2 where t = tanh(x) has been rounded to nearly 1, as with inputs of 1,000.
    return Row(op, op, (normal(_T, _N, _I), (_weights(op),), *states, None), {}, peer, scales=USUAL, bound=512.0)


def _cell(op: str) -> Row:
    def peer(torch: Any, x: Any, weights: Any, *states: Any) -> Any:
        function = getattr(torch._VF, "rnn_tanh_cell" if op == "rnn" else f"{op}_cell")
        return function(x, states if op == "lstm" else states[0], *weights[:4])

    states = (normal(_N * _T, _H),) * (2 if op == "lstm" else 1)
    return Row(f"{op}_cell", f"{op}_cell", (normal(_N * _T, _I), _weights(op), *states), {}, peer, scales=USUAL)


_RECURRENT = tuple(make(op) for op in _GATES for make in (_network, _cell))

# --- attention --------------------------------------------------------------------------------------------------------

_HEADS = (normal(2, 4, 70, 24), normal(2, 2, 90, 24), normal(2, 2, 90, 24))


def _attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    """By its fused kernel, which keeps the log-sum-exp too: groups and values of another width would take the one that
    keeps all weights."""
    k, v = (a.repeat_interleave(q.shape[1] // a.shape[1], 1) for a in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _causal(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _varlen(torch: Any, q: Any, k: Any, v: Any, *lengths: Any) -> Any:
    parts = ((slice(0, 20), slice(0, 30)), (slice(20, 60), slice(30, 90)))
    found = [_attention(torch, *(a[at].movedim(0, 1)[None] for a, at in ((q, i), (k, j), (v, j))))[0] for i, j in parts]
    return torch.cat([f.movedim(0, 1) for f in found])


def _paged(torch: Any, q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
    keys, values = (cache[table[0]].reshape(48, 2, 16)[:41].movedim(0, 1) for cache in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q[0].movedim(0, 1), keys, values).movedim(0, 1)[None]


def _multi_head(torch: Any, x: Any, y: Any, z: Any, *weights: Any) -> Any:
    linear, heads = torch.nn.functional.linear, []
    for a, w, b in zip((x, y, z), weights[:3], weights[4:7], strict=True):
        heads.append(linear(a, w, b).unflatten(-1, (4, 8)).movedim(-2, 1))
    found = torch.nn.functional.scaled_dot_product_attention(*heads)
    return linear(found.movedim(1, -2).flatten(-2), weights[3], weights[7])


def _rotary(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


_PROJECTIONS = (*(normal(32, 32, scale=0.2) for _ in range(4)), *(normal(32, scale=0.2) for _ in range(4)))
_KEPT = 24.0  # with scores of thousands a log-sum-exp that is kept in float32 is exact to 1e-4
_ATTENTION = (
    Row("attention", "attention", _HEADS, {}, _attention, scales=USUAL, bound=_KEPT),
    Row(
        "attention-causal",
        "attention",
        tuple(normal(2, 4, 80, 16) for _ in range(3)),
        {"causal": True},
        _causal,
        scales=USUAL,
        bound=_KEPT,
    ),
    Row(
        "attention-decode",
        "attention",
        (normal(2, 4, 1, 32), normal(2, 4, 300, 32), normal(2, 4, 300, 32)),
        {},
        _attention,
        scales=USUAL,
        bound=_KEPT,
    ),
    Row(
        "attention_varlen",
        "attention_varlen",
        (
            normal(60, 4, 16),
            normal(90, 4, 16),
            normal(90, 4, 16),
            fixed([0, 20, 60], np.int32),
            fixed([0, 30, 90], np.int32),
        ),
        {"max_seqlen_q": 40, "max_seqlen_k": 60},
        _varlen,
        scales=USUAL,
        bound=_KEPT,
    ),
    Row(
        "paged_attention",
        "paged_attention",
        (normal(1, 30, 2, 16), normal(4, 16, 2, 16), normal(4, 16, 2, 16), fixed([[2, 0, 3]]), fixed([41])),
        {"causal": False},
        _paged,
        scales=USUAL,
        bound=_KEPT,
        gradient=False,
    ),
    Row(
        "multi_head_attention",
        "multi_head_attention",
        (*(normal(2, 30, 32) for _ in range(3)), *_PROJECTIONS),
        {"num_heads": 4},
        _multi_head,
        scales=USUAL,
        bound=_KEPT,
    ),
    Row(
        "rotary_embedding",
        "rotary_embedding",
        (normal(2, 3, 40, 16), uniform(-1, 1, 40, 8), uniform(-1, 1, 40, 8)),
        {},
        _rotary,
    ),
)

# --- spatial ----------------------------------------------------------------------------------------------------------

_MODES = {
    "nearest": "nearest",
    "nearest_exact": "nearest-exact",
    "linear": "bilinear",
    "cubic": "bicubic",
    "area": "area",
}


def _resize(mode: str, size: tuple[int, int], **options: Any) -> Row:
    named = {name: value for name, value in options.items() if mode in ("linear", "cubic")}
    name = "-".join(("interpolate", mode, "x".join(map(str, size)), *options))
    return Row(
        name,
        "interpolate",
        (_IMAGE,),
        {"mode": mode, "size": size, **options},
        functional("interpolate", size, None, _MODES[mode], **named),
    )


_SPATIAL = (
    *(_resize(mode, size) for mode in _MODES for size in ((20, 23), (5, 6))),
    *(_resize(mode, (5, 6), antialias=True) for mode in ("linear", "cubic")),
    Row(
        "grid_sample",
        "grid_sample",
        (_IMAGE, uniform(-1, 1, 2, 9, 8, 2)),
        {},
        functional("grid_sample", align_corners=False),
    ),
    Row(
        "grid_sample-bicubic",
        "grid_sample",
        (_IMAGE, uniform(-1, 1, 2, 9, 8, 2)),
        {"mode": "bicubic"},
        functional("grid_sample", mode="bicubic", align_corners=False),
    ),
    Row(
        "affine_grid",
        "affine_grid",
        (normal(3, 2, 3),),
        {"shape": (3, 1, 12, 15)},
        functional("affine_grid", (3, 1, 12, 15), align_corners=False),
    ),
    Row(
        "roi_align",
        "roi_align",
        (
            _IMAGE,
            Draw(
                lambda rng: np.concatenate(
                    [rng.integers(0, 2, (12, 1)), rng.uniform(0, 6, (12, 2)), rng.uniform(6, 13, (12, 2))], 1
                )
            ),
        ),
        {"output_size": 3, "sampling_ratio": 2},
        bound=24.0,
    ),
    Row("pixel_shuffle", "pixel_shuffle", (_IMAGE,), {"factor": 2}, functional("pixel_shuffle", 2), elementwise=True),
    Row(
        "pixel_unshuffle",
        "pixel_unshuffle",
        (normal(2, 3, 12, 14),),
        {"factor": 2},
        functional("pixel_unshuffle", 2),
        elementwise=True,
    ),
    Row(
        "channel_shuffle",
        "channel_shuffle",
        (_IMAGE,),
        {"groups": 2},
        functional("channel_shuffle", 2),
        elementwise=True,
    ),
    Row("embedding", "embedding", (integers(0, 11, 5, 40), normal(11, 24)), {}, functional("embedding"), scaled=(1,)),
    Row(
        "one_hot",
        "one_hot",
        (integers(0, 5, 40),),
        {"num_classes": 5},
        functional("one_hot", 5),
        scaled=(),
        scales=(NORMAL,),
        gradient=False,
    ),
)

ROWS: tuple[Row, ...] = (
    *_ACTIVATIONS, *_SOFTMAX, *_DROPOUT, *_CONV, *_NORMS, *_LOSSES, *_POOLS, *_RECURRENT, *_ATTENTION, *_SPATIAL,
)  # fmt: skip
