"""The weight gradient of depthwise convolution without a GPU: which kernel takes which problem, and the steps of bands
in NumPy."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS
from dnnarray._cuda.core.plan import TensorMap
from tests.test_cuda_depthwise import _DEVICE, _LAST, _OLDER, _cut, _problem

_FIRST = {"layout": "channels_first"}


def _method_and_problem(dy, x, w_shape, **options):
    problem = _problem("conv_backward_weight", dy, x, **options | {"weight_shape": w_shape})
    return next(m for m in ALGORITHMS["conv_backward_weight"] if m.name == "depthwise"), problem


def _plan(x, w_shape, device=_DEVICE, aligned=True, **options):
    dy = dnn.infer("conv", x, Spec(w_shape, x.dtype), **options).output
    method, problem = _method_and_problem(Spec(dy.shape, x.dtype), x, w_shape, **options)
    assert method.rejects(problem, device) is None
    first, second = method.run(problem, device, aligned).plans
    assert method.workspace(problem) >= problem.outputs[0].size * second.arguments.parts * 4
    return first


_TAKEN = {  # device, dtype, x, weight, layout, source
    "half": (_DEVICE, BFLOAT16, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_weight_band_sm90"),
    "half, older device": (_OLDER, BFLOAT16, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_weight_tile"),
    "half, 3 x 3, older device": (_OLDER, BFLOAT16, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_weight_walk"),
    "two outputs for a channel": (
        _DEVICE,
        FLOAT16,
        (2, 14, 14, 32),
        (64, 3, 3, 1),
        _LAST,
        "depthwise_weight_band_sm90",
    ),
    "two outputs for a channel, older device": (
        _OLDER,
        FLOAT16,
        (2, 14, 14, 32),
        (64, 3, 3, 1),
        _LAST,
        "depthwise_weight_walk",
    ),
    "three outputs for a channel": (_DEVICE, FLOAT16, (2, 14, 14, 32), (96, 3, 3, 1), _LAST, "depthwise_weight"),
    "3 x 3 x 3": (_DEVICE, BFLOAT16, (2, 4, 14, 28, 64), (64, 3, 3, 3, 1), _LAST, "depthwise_weight_band_sm90"),
    "half, 3 x 3": (_DEVICE, BFLOAT16, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_weight_walk"),
    "float32": (_DEVICE, FLOAT32, (2, 14, 14, 64), (64, 5, 5, 1), _LAST, "depthwise_weight_strip_sm90"),
    "float32, 3 x 3": (_DEVICE, FLOAT32, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_weight_walk"),
    "double": (_DEVICE, FLOAT64, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_weight"),
    "lines": (_DEVICE, BFLOAT16, (2, 64, 1000), (64, 1, 5), _FIRST, "depthwise_weight_patch"),
    "planes": (_DEVICE, FLOAT32, (2, 64, 12, 12), (64, 1, 3, 3), _FIRST, "depthwise_weight_patch"),
    "planes, odd rows": (_DEVICE, BFLOAT16, (2, 64, 13, 13), (64, 1, 3, 3), _FIRST, "depthwise_weight"),
}


@pytest.mark.parametrize("name", _TAKEN)
def test_ways(name):
    device, dtype, x, w, options, source = _TAKEN[name]
    groups = x[-1] if options is _LAST else x[1]
    plan = _plan(Spec(x, dtype), w, device, groups=groups, padding=w[1 if options is _LAST else -1] // 2, **options)
    assert plan.kernel.source == f"conv/{source}.cu"


def _steps(begin, end, per_tile, first, rows, side, before, out_height):
    """(tile, first row of dy, whether rows of x come too, whether rows of dy do, whether the tile is entered) of a
    block's steps."""
    while begin < end:
        tile, row = begin // per_tile, first + begin % per_tile * rows
        stop = min(end, (tile + 1) * per_tile) - begin
        start = row + before - -(-(side - 1) // rows) * rows
        while start + rows <= 0:
            start += rows
        for y in range(start, row + before + stop * rows, rows):
            yield tile, y, y - before >= row, y < out_height + rows - 1, y == start
        begin += stop


def _weighed(plan, dy, x, w_shape):
    """What the launch gives on arrays (N, D, H, W, C)."""
    map_dy, map_x = (a for a in plan.arguments if isinstance(a, TensorMap))
    (
        channels,
        flip,
        parts,
        tiles,
        wide,
        groups,
        stages,
        pitch_x,
        pitch_dy,
        first,
        per_tile,
        columns,
        depths,
        height,
        *before,
    ) = plan.arguments[-1].narrow
    config, rows, bands = plan.kernel.config, map_x.box[2], "band" in plan.kernel.source
    side = config.side
    depth, planes, m = (config.depth, config.planes, config.multiplier) if bands else (1, 1, 1)
    assert [m.shape for m in (map_dy, map_x)] == [dy.shape[::-1], x.shape[::-1]]
    assert not flip
    assert stages >= 2
    if bands:
        assert rows == config.rows
        assert wide * groups * rows == 128
        assert pitch_dy % 8 == pitch_x % 8 == 4
    else:
        assert wide * groups == 56
    assert map_dy.box == (32, pitch_dy, rows, planes, groups)
    assert map_x.box == (32 // m, pitch_x, rows, planes + depth - 1, groups)
    chunks, dw = -(-channels // 32), np.zeros((channels, depth, side, side))
    assert plan.grid[0] == parts * chunks
    for block in range(plan.grid[0]):
        chunk, part = block % chunks, block // chunks
        kept, own = {}, np.zeros((32, depth, side, side))
        shares = (tiles * per_tile * k // parts for k in (part, part + 1))
        for tile, y, of_x, of_dy, fresh in _steps(*shares, per_tile, first, rows, side, before[1], height):
            n, d, q = tile // columns // depths * groups, tile // columns % depths * planes, tile % columns * wide
            kept = {} if fresh else kept  # rows of dy
            brought = _cut(dy, map_dy.box, (chunk * 32, q, y, d, n))[:, :, :, :wide]
            assert of_dy or not brought.any()
            kept |= {y + k: brought[:, :, k] for k in range(rows)}
            if not of_x:
                continue
            pixels = _cut(x, map_x.box, (chunk * 32 // m, q - before[2], y - before[1], d - before[0], n)).repeat(
                m, axis=-1
            )
            for plane, o, k, r, s in np.ndindex(planes, depth, rows, side, side):
                met = kept.get(y + k - r)
                assert met is not None or y + k - r < 0 or y + k - r >= height or not pixels[:, :, k].any()
                if met is not None:
                    own[:, o, r, s] += np.einsum("nwc,nwc->c", pixels[:, plane + o, k, s : s + wide], met[:, plane])
        dw[chunk * 32 : chunk * 32 + 32] += own[: channels - chunk * 32]
    return dw.reshape(w_shape)


_ROWS = {  # x (N, D, H, W, C), weight, padding
    "one tile": (BFLOAT16, (2, 9, 14, 8), (8, 7, 7, 1), 3),
    "uneven": (BFLOAT16, (5, 7, 37, 40), (40, 5, 5, 1), ((0, 3), (4, 1))),
    "tall and wide": (BFLOAT16, (1, 30, 66, 16), (16, 7, 7, 1), 3),
    "no padding": (BFLOAT16, (3, 12, 9, 8), (8, 5, 5, 1), 0),
    "much padding": (BFLOAT16, (9, 4, 2, 8), (8, 5, 5, 1), 5),
    "two outputs for a channel": (BFLOAT16, (2, 9, 11, 24), (48, 3, 3, 1), 1),
    "three axes": (BFLOAT16, (3, 5, 6, 34, 8), (8, 3, 3, 3, 1), 1),
    "three axes, uneven": (BFLOAT16, (2, 4, 5, 9, 16), (16, 3, 3, 3, 1), ((0, 2), (2, 1), (1, 0))),
    "float32": (FLOAT32, (9, 9, 13, 12), (12, 7, 7, 1), ((2, 3), (4, 0))),
    "float32, wide": (FLOAT32, (1, 12, 61, 40), (40, 5, 5, 1), 2),
}


@pytest.mark.parametrize("name", _ROWS)
def test_rows(name):
    dtype, shape, w_shape, padding = _ROWS[name]
    rng, options = np.random.default_rng(0), {"groups": shape[-1], "padding": padding} | _LAST
    x = rng.standard_normal(shape)
    plan = _plan(Spec(shape, dtype), w_shape, **options)
    assert plan.kernel.source == f"conv/depthwise_weight_{'band' if dtype == BFLOAT16 else 'strip'}_sm90.cu"
    dy = rng.standard_normal(dnn.infer("conv", Spec(shape, FLOAT64), Spec(w_shape, FLOAT64), **options).output.shape)
    expected = dnn.conv_backward_weight(dy, x, weight_shape=w_shape, **options)
    flat = [a if a.ndim == 5 else a[:, None] for a in (dy, x)]
    np.testing.assert_allclose(_weighed(plan, *flat, w_shape), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize(
    "w_shape", [(1, 3, 3, 1), (1, 5, 5, 1), (1, 7, 7, 1), (2, 3, 3, 1), (2, 5, 5, 1), (1, 3, 3, 3, 1)], ids=str
)
@pytest.mark.parametrize("channels", [8, 192, 2304])
@pytest.mark.parametrize("extent", [1, 7, 32, 56, 100])
@pytest.mark.parametrize("batch", [1, 64])
def test_rows_fit_a_device(batch, extent, channels, w_shape, dtype):
    image = (batch, *(2, extent, extent)[5 - len(w_shape) :], channels)
    plan = _plan(
        Spec(image, dtype), (w_shape[0] * channels, *w_shape[1:]), groups=channels, padding=w_shape[1] // 2, **_LAST
    )
    assert plan.shared_memory <= _DEVICE.shared_memory
    if "band" in plan.kernel.source:
        assert plan.grid[0] % plan.kernel.config.together == 0  # whole clusters
    for m in (a for a in plan.arguments if isinstance(a, TensorMap)):
        assert max(m.box) <= 256
        assert m.row in (0, m.box[0] * 2)
        assert all(s % 16 == 0 for s in m.strides)
