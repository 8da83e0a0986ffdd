"""Elementwise operations, softmax, losses, norms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.long_sums import FIRST, IMAGES, N, Rows, channel_sums, labels, near, ones, wide

ROWS = Rows()
row = ROWS.add

# --- activations, softmax, dropout
# -------------------------------------------------------------------------------------

row(
    "prelu-one",
    "prelu_backward",
    lambda: (near(1, 1, 2, 1024, 1024), -near(2, 1, 2, 1024, 1024), ones(1)),
    lambda g, x, w: [None, (wide(g) * x).sum().reshape(1)],
    terms=2 * N,
    orders=IMAGES,
)
row(
    "prelu-channels",
    "prelu_backward",
    lambda: (near(1, 2, 2, 512, 1024), -near(2, 2, 2, 512, 1024), ones(2)),
    lambda g, x, w: [None, channel_sums(wide(g) * x)],
    orders=IMAGES,
)
row(
    "bias_activation",
    "bias_activation_backward",
    lambda: (near(1, 2, 2, 512, 1024), near(2, 2, 2, 512, 1024), ones(2)),
    lambda g, x, b: [None, channel_sums(g)],
    orders=IMAGES,
    activation="relu",
)
row(
    "bias_dropout_add",
    "bias_dropout_add_backward",
    lambda: (near(1, N, 2), near(2, N, 2), ones(2), near(3, N, 2)),
    lambda g, *_: [None, wide(g).sum(0), None],
    p=0.0,
    seed=1,
)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(wide(x))
    return e / e.sum(axis, keepdims=True)


for _name, _shape, _axis in (("rows", (2, N), 1), ("columns", (N, 2), 0), ("matrix", (1 << 15, 64), 0)):
    row(f"softmax-{_name}", "softmax", lambda s=_shape: (near(1, *s),), lambda x, a=_axis: [softmax(x, a)], axis=_axis)
    row(f"softmin-{_name}", "softmin", lambda s=_shape: (near(1, *s),), lambda x, a=_axis: [softmax(-x, a)], axis=_axis)
    row(
        f"log_softmax-{_name}",
        "log_softmax",
        lambda s=_shape: (near(1, *s),),
        lambda x, a=_axis: [np.log(softmax(x, a))],
        axis=_axis,
    )
    row(
        f"softmax-backward-{_name}",
        "softmax_backward",
        lambda s=_shape: (near(2, *s), near(1, *s)),
        lambda g, x, a=_axis: [softmax(x, a) * (g - (g * softmax(x, a)).sum(a, keepdims=True))],
        condition=10.0,
        axis=_axis,
    )  # gradients less their mean
    row(
        f"log_softmax-backward-{_name}",
        "log_softmax_backward",
        lambda s=_shape: (near(2, *s), near(1, *s)),
        lambda g, x, a=_axis: [g - softmax(x, a) * wide(g).sum(a, keepdims=True)],
        condition=100.0,
        axis=_axis,
    )  # the same, and exp of log-probabilities of 14

# --- losses
# ------------------------------------------------------------------------------------------------------------


def _row_losses(z: np.ndarray, t: np.ndarray) -> np.ndarray:
    return np.log(np.exp(wide(z)).sum(1)) - np.take_along_axis(wide(z), t[:, None], 1)[:, 0]


row(
    "cross_entropy-sum",
    "cross_entropy",
    lambda: (near(1, N, 4), labels(4, N)),
    lambda z, t: [_row_losses(z, t).sum()],
    reduction="sum",
)
row(
    "cross_entropy-classes",
    "cross_entropy",
    lambda: (near(1, 2, N), labels(N, 2)),
    lambda z, t: [_row_losses(z, t)],
    reduction="none",
)
row(
    "cross_entropy-classes-first",
    "cross_entropy",
    lambda: (near(1, N, 2), labels(N, 2)),
    lambda z, t: [_row_losses(z.T, t)],
    reduction="none",
    axis=0,
)
row(
    "nll_loss",
    "nll_loss",
    lambda: (-near(1, N, 4), labels(4, N)),
    lambda z, t: [-np.take_along_axis(wide(z), t[:, None], 1).sum()],
    reduction="sum",
)
row(
    "linear_cross_entropy-classes",
    "linear_cross_entropy",
    lambda: (near(1, 2, 2), near(2, N, 2), labels(N, 2)),
    lambda x, w, t: [_row_losses(wide(x) @ wide(w).T, t)],
    reduction="none",
)
row(
    "linear_cross_entropy-backward-rows",
    "linear_cross_entropy_backward",
    lambda: (ones(N >> 4), near(1, N >> 4, 2), near(2, 4, 2), np.zeros(N >> 4, int), ones(4)),
    lambda g, x, w, t, b: [None, *_weight_slopes(x, w, b)],
    terms=N >> 4,
    condition=4.0,
    reduction="none",
)
row(
    "linear_cross_entropy-backward-classes",
    "linear_cross_entropy_backward",
    lambda: (ones(2), near(1, 2, 2), _but_first(near(2, N >> 2, 2)), np.zeros(2, int)),
    lambda g, x, w, t: [_input_slopes(x, w), None],
    terms=N >> 2,
    reduction="none",
    condition=4.0,
)


def _but_first(w: np.ndarray) -> np.ndarray:
    """The gradient of the right class cancels those of all others, but for its weights, which are 0."""
    return np.concatenate([np.zeros_like(w[:1]), w[1:]])


def _weight_slopes(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    slopes = softmax(wide(x) @ wide(w).T + b, 1)
    slopes[:, 0] -= 1
    return [slopes.T @ wide(x), slopes.sum(0)]


def _input_slopes(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    slopes = softmax(wide(x) @ wide(w).T, 1)
    slopes[:, 0] -= 1
    return slopes @ wide(w)


row(
    "ctc_loss",
    "ctc_loss",
    lambda: (
        np.log(np.full((1 << 13, 1, 2), 0.5, np.float32)),
        np.zeros((1, 0), int),
        np.full(1, 1 << 13),
        np.zeros(1, int),
    ),
    lambda *_: [float(-np.log(np.float32(0.5)) * (1 << 13) * (np.log(np.float32(0.5)) / np.log(np.float32(0.5))))],
    terms=1 << 13,
    reduction="sum",
)

# --- norms
# -------------------------------------------------------------------------------------------------------------


def signed(seed: int, *shape: int) -> np.ndarray:
    """Standard normal numbers, whose statistics and products with their own signs do not cancel."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def pulls(seed: int, *shape: int) -> np.ndarray:
    """0.1 where `signed` is above 0 and 0.02 below, so that neither their sum nor that of the products cancels."""
    return np.where(signed(seed, *shape) > 0, np.float32(0.1), np.float32(0.02))


def normalised(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    x = wide(x)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def _statistics(x: np.ndarray, axis: int) -> list[np.ndarray]:
    return [wide(x).mean(axis, keepdims=True), 1 / np.sqrt(wide(x).var(axis, keepdims=True) + 1e-5)]


def _norm_backward(
    name: str,
    op: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    parameters: tuple[int, ...],
    orders: Any = (FIRST,),
    **options: Any,
) -> None:
    def exact(g: Any, x: Any, *rest: Any) -> list[Any]:
        others = tuple(i for i in range(len(shape)) if i not in parameters)
        return [None, (wide(g) * normalised(x, axes)).sum(others), wide(g).sum(others)]

    sizes = tuple(shape[i] for i in parameters)
    rest = (None, None) if op.startswith("batch") else ()
    row(
        f"{op}-{name}",
        op,
        lambda: (pulls(1, *shape), signed(1, *shape), ones(*sizes), ones(*sizes), *rest),
        exact,
        terms=math.prod(shape) // math.prod(sizes),
        orders=orders,
        condition=2.0,
        **options,
    )  # products of both signs


_norm_backward("two", "batch_norm_train_backward", (1, 2, 512, 1024), (0, 2, 3), (1,), IMAGES)
_norm_backward("rows", "batch_norm_train_backward", (N >> 1, 2), (0,), (1,))
_norm_backward("sixteen", "batch_norm_train_backward", (N >> 4, 16), (0,), (1,))
_norm_backward("rows", "layer_norm_backward", (N >> 3, 8), (1,), (1,))
_norm_backward("wide", "layer_norm_backward", (N >> 7, 128), (1,), (1,))
_norm_backward("samples", "instance_norm_backward", (N >> 5, 8, 4), (2,), (1,), IMAGES)
_norm_backward("images", "instance_norm_backward", (1, 8, 256, 512), (2, 3), (1,), IMAGES)
row(
    "layer_norm",
    "layer_norm",
    lambda: (near(1, 2, N),),
    lambda x: [normalised(x, (1,)), *_statistics(x, 1)],
    return_stats=True,
    condition=2.0,
)
row(
    "layer_norm-first",
    "layer_norm",
    lambda: (near(1, N, 2),),
    lambda x: [normalised(x, (0,)), *_statistics(x, 0)],
    return_stats=True,
    axis=0,
    condition=2.0,
)
row(
    "rms_norm",
    "rms_norm",
    lambda: (near(1, 2, N),),
    lambda x: [x / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6)],
)
row(
    "batch_norm_train",
    "batch_norm_train",
    lambda: (near(1, 1, 8, 256, 1024),),
    lambda x: [normalised(x, (0, 2, 3)), wide(x).mean((0, 2, 3)), None],
    terms=N >> 2,
    orders=IMAGES,
    condition=2.0,
)
row(
    "group_norm",
    "group_norm",
    lambda: (near(1, 1, 8, 256, 1024),),
    lambda x: [normalised(x.reshape(1, 2, 4, 256, 1024), (2, 3, 4)).reshape(x.shape)],
    orders=IMAGES,
    num_groups=2,
    condition=2.0,
)
