"""Transposed convolution and single gradients of convolution, and more of pooling and resampling."""

from __future__ import annotations

import numpy as np

from tests.long_sums import IMAGES, N, Rows, by_double, channel_sums, near, ones, wide
from tests.long_sums.images import correlated

ROWS = Rows()
row = ROWS.add

# --- transposed convolution, single gradients -------------------------------------------------------------------------

row(
    "conv_transpose-many-channels",
    "conv_transpose",
    lambda: (near(2, 1, 1 << 18, 1, 4), near(3, 1 << 18, 3, 1, 1)),
    lambda x, w: [np.einsum("nchw,ck->nkhw", wide(x), wide(w)[:, :, 0, 0])],
    terms=1 << 18,
    orders=IMAGES,
)
row(
    "conv_transpose-long-window",
    "conv_transpose",
    lambda: (near(2, 1, 1, 1 << 13), near(3, 1, 1, 1 << 12)),
    lambda x, w: [np.convolve(wide(x)[0, 0], wide(w)[0, 0])[None, None]],
    terms=1 << 12,
    orders=IMAGES,
)
for _name, _x, _w in (("3x3", (1, 3, 512, 1024), (3, 2, 3, 3)), ("1x1", (2, 4, 512, 512), (4, 3, 1, 1))):
    row(
        f"conv_transpose-backward-{_name}",
        "conv_transpose_backward",
        lambda x=_x, w=_w: (near(1, x[0], w[1], *x[2:]), near(2, *x), near(3, *w), ones(w[1])),
        lambda g, x, w, b: [None, correlated(x, g, w.shape[2:]), channel_sums(g)],
        terms=_x[0] * _x[2] * _x[3],
        orders=IMAGES,
        padding=_w[2] // 2,
    )
for _name, _k, _c, _groups in (("3x3", 3, 2, 1), ("depthwise", 16, 16, 16)):
    row(
        f"conv_backward_weight-{_name}",
        "conv_backward_weight",
        lambda k=_k, c=_c: (near(1, 1, k, 512, 512), near(2, 1, c, 512, 512)),
        lambda g, x, groups=_groups: [correlated(g, x, (3, 3), 1, groups)],
        terms=1 << 18,
        orders=IMAGES,
        weight_shape=(_k, _c // _groups, 3, 3),
        padding=1,
        groups=_groups,
    )
row(
    "fold",
    "fold",
    lambda: (near(1, 1, 1024, 1025),),
    lambda x: [np.stack([np.trace(wide(x)[0, ::-1], i) for i in range(-1023, 1025)])[None, None]],
    terms=1024,
    output_size=(2048,),
    kernel_size=1024,
)

# --- pooling and resampling -------------------------------------------------------------------------------------------

row(
    "max_pool_with_indices-backward",
    "max_pool_with_indices_backward",
    lambda: (near(1, 1, 2, 2048), np.eye(1, 4095, 2047, dtype=np.float32).repeat(2, 0)[None]),
    lambda g, x: [channel_sums(g)[None, :, None] * np.eye(1, 4095, 2047)],
    terms=2048,
    orders=IMAGES,
    kernel_size=2048,
    stride=1,
)
row(
    "adaptive_max_pool_with_indices-backward",
    "adaptive_max_pool_with_indices_backward",
    lambda: (near(1, 1, 2, 8192), near(2, 1, 2, 4)),
    lambda g, x: [wide(g).reshape(1, 2, 4, -1).sum(3)],
    terms=2048,
    orders=IMAGES,
    output_size=8192,
)
row(
    "adaptive-volume",
    "adaptive_avg_pool",
    lambda: (near(1, 1, 2, 64, 128, 128),),
    lambda x: [wide(x).mean((2, 3, 4), keepdims=True)],
    orders=IMAGES,
    output_size=1,
)
row(
    "lp_pool-squares",
    "lp_pool",
    lambda: (near(1, 1, 2, 512, 512),),
    lambda x: [np.sqrt((wide(x) ** 2).sum((2, 3), keepdims=True))],
    terms=1 << 18,
    orders=IMAGES,
    kernel_size=512,
)
for _mode in ("linear", "cubic"):
    row(
        f"interpolate-{_mode}-forward",
        "interpolate",
        lambda: (near(1, 1, 2, 1 << 6, 1 << 12),),
        by_double("interpolate", size=2, mode=_mode, antialias=True),
        terms=1 << 16,
        orders=IMAGES,
        size=2,
        mode=_mode,
        antialias=True,
    )
    row(
        f"interpolate-{_mode}-backward",
        "interpolate_backward",
        lambda: (near(1, 1, 2, 1 << 6, 1 << 12), near(2, 1, 2, 2, 2)),
        by_double("interpolate_backward", size=(1 << 6, 1 << 12), mode=_mode),
        terms=1 << 16,
        orders=IMAGES,
        size=(1 << 6, 1 << 12),
        mode=_mode,
        condition=2.0,
    )
row(
    "grid_sample-grid",
    "grid_sample_backward",
    lambda: (
        near(1, 1, N >> 4, 1, 1),
        np.arange(4.0, dtype=np.float32).reshape(2, 2) + near(2, 1, N >> 4, 1, 1),
        np.zeros((1, 1, 1, 2), np.float32),
    ),
    by_double("grid_sample_backward"),
    terms=N >> 4,
)
row(
    "roi_align-many-samples",
    "roi_align",
    lambda: (near(1, 1, 2, 1, 1), np.array([[0, 0, 0, 1, 1]], np.float32)),
    lambda x, b: [wide(x)],
    output_size=1,
    sampling_ratio=1 << 10,
)
