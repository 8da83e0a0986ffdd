"""Pooling, convolution, matrix products, resampling."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.long_sums import IMAGES, N, Rows, channel_sums, near, ones, wide

ROWS = Rows()
row = ROWS.add

# --- pooling
# -----------------------------------------------------------------------------------------------------------

row(
    "adaptive-whole",
    "adaptive_avg_pool",
    lambda: (near(1, 1, 2, 2048, 1024),),
    lambda x: [wide(x).mean((2, 3), keepdims=True)],
    terms=2 * N,
    orders=IMAGES,
    output_size=1,
)
row(
    "adaptive-thirds",
    "adaptive_avg_pool",
    lambda: (near(1, 1, 2, 3 * 65536),),
    lambda x: [wide(x).reshape(1, 2, 3, -1).mean(3)],
    terms=65536,
    orders=IMAGES,
    output_size=3,
)
row(
    "adaptive-backward",
    "adaptive_avg_pool_backward",
    lambda: (near(1, 1, 2, 8192), near(2, 1, 2, 4)),
    lambda g, x: [wide(g).reshape(1, 2, 4, -1).sum(3)],
    terms=2048,
    orders=IMAGES,
    output_size=8192,
)
row(
    "adaptive-max-backward",
    "adaptive_max_pool_backward",
    lambda: (near(1, 1, 2, 8192), near(2, 1, 2, 4)),
    lambda g, x: [wide(g).reshape(1, 2, 4, -1).sum(3)],
    terms=2048,
    orders=IMAGES,
    output_size=8192,
)


def _windows(x: np.ndarray, size: int, stride: int) -> np.ndarray:
    past = np.concatenate([np.zeros((*x.shape[:-1], 1)), np.cumsum(wide(x), -1)], -1)
    return (past[..., size:] - past[..., :-size])[..., ::stride]


def _spread(g: np.ndarray, size: int) -> np.ndarray:
    return _windows(np.pad(g, [(0, 0), (0, 0), (size - 1, size - 1)]), size, 1)


for _stride in (1, 64):
    row(
        f"avg_pool-{_stride}",
        "avg_pool",
        lambda: (near(1, 1, 2, 8192),),
        lambda x, s=_stride: [_windows(x, 2048, s) / 2048],
        terms=2048,
        orders=IMAGES,
        kernel_size=2048,
        stride=_stride,
    )
row(
    "avg_pool-image",
    "avg_pool",
    lambda: (near(1, 1, 2, 700, 701),),
    lambda x: [np.stack([wide(x)[..., i : i + 700].mean((2, 3)) for i in (0, 1)], -1)[:, :, None]],
    terms=490000,
    orders=IMAGES,
    kernel_size=700,
    stride=1,
)
row(
    "avg_pool-backward",
    "avg_pool_backward",
    lambda: (near(1, 1, 2, 6145), near(2, 1, 2, 8192)),
    lambda g, x: [_spread(g, 2048) / 2048],
    terms=2048,
    orders=IMAGES,
    kernel_size=2048,
    stride=1,
)
row(
    "lp_pool",
    "lp_pool",
    lambda: (near(1, 1, 2, 8192),),
    lambda x: [_windows(x, 2048, 64)],
    terms=2048,
    orders=IMAGES,
    kernel_size=2048,
    stride=64,
    p=1,
)
row(
    "lp_pool-backward",
    "lp_pool_backward",
    lambda: (near(1, 1, 2, 6145), near(2, 1, 2, 8192)),
    lambda g, x: [_spread(g, 2048)],
    terms=2048,
    orders=IMAGES,
    kernel_size=2048,
    stride=1,
    p=1,
)
row(
    "max_pool-backward",
    "max_pool_backward",
    lambda: (near(1, 1, 2, 2048), np.eye(1, 4095, 2047, dtype=np.float32).repeat(2, 0)[None]),
    lambda g, x: [channel_sums(g)[None, :, None] * np.eye(1, 4095, 2047)],
    terms=2048,
    orders=IMAGES,
    kernel_size=2048,
    stride=1,
)
row(
    "local_response_norm",
    "local_response_norm",
    lambda: (near(1, 1, 4096, 4),),
    lambda x: [wide(x) / (1 + _around(wide(x) ** 2, 4095) / 4095)],
    terms=4095,
    orders=IMAGES,
    size=4095,
    alpha=1.0,
    beta=1.0,
)


def _around(a: np.ndarray, size: int) -> np.ndarray:
    past = np.cumsum(np.pad(a, [(0, 0), (size // 2 + 1, size // 2), (0, 0)]), 1)
    return past[:, size:] - past[:, :-size]


# --- products
# ----------------------------------------------------------------------------------------------------------


def correlated(g: np.ndarray, x: np.ndarray, window: tuple[int, int], stride: int = 1, groups: int = 1) -> np.ndarray:
    """The gradient of a weight, padded by half of the window."""
    r, s = window
    x = np.pad(wide(x), [(0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2)])
    n, k, p, q = g.shape
    g, found = wide(g).reshape(n, groups, k // groups, p, q), []
    for i in range(r):
        for j in range(s):
            part = x[:, :, i : i + stride * (p - 1) + 1 : stride, j : j + stride * (q - 1) + 1 : stride].reshape(
                n, groups, -1, p * q
            )
            found.append(np.matmul(g.reshape(n, groups, -1, p * q), part.swapaxes(2, 3)).sum(0))
    return np.stack(found, -1).reshape(k, -1, r, s)


def _conv_backward(name: str, g: tuple[int, ...], x: tuple[int, ...], window: tuple[int, int], **options: Any) -> None:
    w = (g[1], x[1] // options.get("groups", 1), *window)
    stride, groups = options.get("stride", 1), options.get("groups", 1)
    row(
        f"conv-backward-{name}",
        "conv_backward",
        lambda: (near(1, *g), near(2, *x), near(3, *w), ones(g[1])),
        lambda g, x, *_: [None, correlated(g, x, window, stride, groups), channel_sums(g)],
        terms=g[0] * g[2] * g[3],
        orders=IMAGES,
        padding=tuple(r // 2 for r in window),
        **options,
    )


_conv_backward("1x1", (2, 3, 512, 1024), (2, 2, 512, 1024), (1, 1))
_conv_backward("3x3", (1, 3, 512, 1024), (1, 2, 512, 1024), (3, 3))
_conv_backward("channels", (1, 16, 512, 512), (1, 16, 512, 512), (3, 3))
_conv_backward("strided", (1, 16, 256, 512), (1, 16, 512, 1024), (3, 3), stride=2)
_conv_backward("depthwise", (1, 16, 512, 512), (1, 16, 512, 512), (5, 5), groups=16)
_conv_backward("images", (1 << 13, 16, 8, 8), (1 << 13, 4, 8, 8), (3, 3))


def _pixel_products(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.einsum("nchw,kc->nkhw", wide(x), wide(w)[:, :, 0, 0])


row(
    "conv-many-channels",
    "conv",
    lambda: (near(2, 1, 1 << 18, 1, 4), near(3, 3, 1 << 18, 1, 1)),
    lambda x, w: [_pixel_products(x, w)],
    terms=1 << 18,
    orders=IMAGES,
)
row(
    "conv-input-many-channels",
    "conv_backward_input",
    lambda: (near(2, 1, 1 << 18, 1, 4), near(3, 1 << 18, 3, 1, 1)),
    lambda g, w: [_pixel_products(g, w.swapaxes(0, 1))],
    terms=1 << 18,
    orders=IMAGES,
    input_shape=(1, 3, 1, 4),
)
row(
    "conv-long-window",
    "conv",
    lambda: (near(2, 1, 1, 1 << 13), near(3, 1, 1, 1 << 12)),
    lambda x, w: [np.correlate(wide(x)[0, 0], wide(w)[0, 0])[None, None]],
    terms=1 << 12,
    orders=IMAGES,
)
row("linear", "linear", lambda: (near(1, 4, N), near(2, 3, N)), lambda x, w: [wide(x) @ wide(w).T])
row("linear-one-row", "linear", lambda: (near(1, N), near(2, 3, N)), lambda x, w: [wide(x) @ wide(w).T])
row(
    "linear-one-output",
    "linear",
    lambda: (near(1, 64, N >> 4), near(2, 1, N >> 4)),
    lambda x, w: [wide(x) @ wide(w).T],
    terms=N >> 4,
)
row(
    "linear-backward",
    "linear_backward",
    lambda: (near(1, N, 3), near(2, N, 4), near(3, 3, 4), ones(3)),
    lambda g, x, w, b: [None, wide(g).T @ wide(x), wide(g).sum(0)],
)
row(
    "linear-backward-outputs",
    "linear_backward",
    lambda: (near(1, 4, N), near(2, 4, 3), near(3, N, 3)),
    lambda g, x, w: [wide(g) @ wide(w), None],
)

# --- spatial
# -----------------------------------------------------------------------------------------------------------

row(
    "embedding",
    "embedding_backward",
    lambda: (near(1, N, 2), np.ones(N, int), near(2, 3, 2)),
    lambda g, i, w: [np.outer([0, 1, 0], wide(g).sum(0))],
)
row(
    "grid_sample",
    "grid_sample_backward",
    lambda: (near(1, 1, 2, 512, 512), near(2, 1, 2, 3, 3), np.zeros((1, 512, 512, 2), np.float32)),
    lambda g, x, grid: [channel_sums(g)[None, :, None, None] * np.outer([0, 1, 0], [0, 1, 0]), None],
    terms=1 << 18,
)
row(
    "affine_grid",
    "affine_grid_backward",
    lambda: (near(1, 1, 1024, 1024, 2), near(2, 1, 2, 3)),
    lambda g, t: [_affine_slopes(g)],
    shape=(1, 1, 1024, 1024),
)


def _affine_slopes(g: np.ndarray) -> np.ndarray:
    along = (2 * np.arange(1024) - 1023) / 1024
    base = np.stack(
        [np.broadcast_to(along, (1024, 1024)), np.broadcast_to(along[:, None], (1024, 1024)), np.ones((1024, 1024))], -1
    )
    return np.einsum("nhwi,hwj->nij", wide(g), base)


for _mode in ("nearest", "area"):
    row(
        f"interpolate-{_mode}",
        "interpolate_backward",
        lambda: (near(1, 1, 2, 1 << 13), near(2, 1, 2, 2)),
        lambda g, x: [wide(g).reshape(1, 2, 2, -1).sum(3)],
        terms=1 << 12,
        orders=IMAGES,
        size=1 << 13,
        mode=_mode,
    )
row(
    "interpolate-area-forward",
    "interpolate",
    lambda: (near(1, 1, 2, 1 << 13),),
    lambda x: [wide(x).reshape(1, 2, 2, -1).mean(3)],
    terms=1 << 12,
    orders=IMAGES,
    size=2,
    mode="area",
)
row(
    "roi_align",
    "roi_align",
    lambda: (near(1, 1, 2, 1, 1), np.array([[0, 0, 0, 1, 1]], np.float32)),
    lambda x, b: [wide(x)],
    terms=1 << 12,
    output_size=1,
    sampling_ratio=32,
)
row(
    "roi_align-backward",
    "roi_align_backward",
    lambda: (
        near(1, 1 << 13, 2, 1, 1),
        near(2, 1, 2, 1, 1),
        np.tile(np.array([[0, 0, 0, 1, 1]], np.float32), (1 << 13, 1)),
    ),
    lambda g, x, b: [channel_sums(g)[None, :, None, None]],
    terms=1 << 13,
    output_size=1,
    sampling_ratio=1,
)
row(
    "unfold",
    "unfold_backward",
    lambda: (near(1, 1, 1024, 1025), near(2, 1, 1, 2048)),
    lambda g, x: [_unfolded(g)],
    terms=1024,
    kernel_size=1024,
)


def _unfolded(g: np.ndarray) -> np.ndarray:
    total = np.zeros((1, 1, 2048))
    for tap in range(1024):
        total[0, 0, tap : tap + 1025] += g[0, tap]
    return total


# Equal terms are rounded all in the same direction, so that a sum of one term after the other shows its whole error.
for _n, _h, _w in ((1, 256, 256), (1, 32, 1100), (1 << 9, 16, 16), (1 << 12, 2, 2)):
    row(
        f"conv_backward_weight-depthwise-equal-{_n}x{_h}x{_w}",
        "conv_backward_weight",
        lambda n=_n, h=_h, w=_w: (
            np.full((n, 4, h, w), 0.1, np.float32),
            np.full((n, 4, h + 2, w + 2), 0.1, np.float32),
        ),
        lambda g, x: [np.full((4, 1, 3, 3), np.float64(g.size // 4) * np.float64(np.float32(0.1)) ** 2)],
        terms=_n * _h * _w,
        orders=IMAGES,
        weight_shape=(4, 1, 3, 3),
        groups=4,
    )
