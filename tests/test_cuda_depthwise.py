"""Depthwise convolution without a GPU: which kernel takes which problem, and the launches of bands in NumPy."""

from dataclasses import replace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._select import Device
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.common.channels import lies
from dnnarray._cuda.conv import ALGORITHMS
from dnnarray._cuda.core.plan import TensorMap

_DEVICE = Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448)
_OLDER = Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912)
_LAST = {"layout": "channels_last"}
_STRIP = 8


def _problem(op, *specs, **options):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})


def _plan(op, *specs, device=_DEVICE, **options):
    problem = _problem(op, *specs, **options)
    method = next(m for m in ALGORITHMS[op] if m.name == "depthwise_direct")
    assert method.rejects(problem, device) is None
    return method.run(problem, device, True).plans[0]


_KERNELS = {
    "half, large window": (_DEVICE, BFLOAT16, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_band_sm90"),
    "half, 5 x 5": (_DEVICE, FLOAT16, (2, 14, 14, 64), (64, 5, 5, 1), _LAST, "depthwise_band_sm90"),
    "half, older device": (_OLDER, BFLOAT16, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_mma"),
    "float32, large window": (_DEVICE, FLOAT32, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_strip_sm90"),
    "float32, large window, older device": (_OLDER, FLOAT32, (2, 14, 14, 64), (64, 7, 7, 1), _LAST, "depthwise_strip"),
    "float32, 5 x 5": (_DEVICE, FLOAT32, (2, 14, 14, 64), (64, 5, 5, 1), _LAST, "depthwise_strip_sm90"),
    "float32, 3 x 3": (_DEVICE, FLOAT32, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_strip_sm90"),
    "3 x 3": (_DEVICE, BFLOAT16, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_strip_sm90"),
    "3 x 3, older device": (_OLDER, BFLOAT16, (2, 14, 14, 64), (64, 3, 3, 1), _LAST, "depthwise_strip"),
    "3 x 3 x 3": (_DEVICE, BFLOAT16, (2, 4, 14, 28, 64), (64, 3, 3, 3, 1), _LAST, "depthwise_cube_sm90"),
    "3 x 3 x 3, older device": (_OLDER, BFLOAT16, (2, 4, 14, 28, 64), (64, 3, 3, 3, 1), _LAST, "depthwise_strip"),
    "3 x 3 x 3, float32": (_DEVICE, FLOAT32, (2, 4, 14, 28, 64), (64, 3, 3, 3, 1), _LAST, "depthwise_strip_sm90"),
    "3 x 3 x 3, narrow": (_DEVICE, FLOAT32, (2, 4, 7, 7, 64), (64, 3, 3, 3, 1), _LAST, "depthwise_tile"),
    "two outputs for a channel": (_DEVICE, BFLOAT16, (64, 56, 56, 96), (192, 3, 3, 1), _LAST, "depthwise_strip_sm90"),
    "two outputs for a channel, older device": (
        _OLDER,
        BFLOAT16,
        (2, 14, 14, 48),
        (96, 3, 3, 1),
        _LAST,
        "depthwise_strip",
    ),
    "three outputs for a channel": (_DEVICE, BFLOAT16, (2, 14, 14, 32), (96, 3, 3, 1), _LAST, "depthwise_direct"),
    "planes": (_DEVICE, BFLOAT16, (2, 64, 14, 14), (64, 1, 3, 3), {}, "depthwise_plane"),
    "planes of one row": (_DEVICE, FLOAT32, (2, 64, 102), (64, 1, 5), {}, "depthwise_plane"),
    "lines": (_DEVICE, BFLOAT16, (2, 64, 1000), (64, 1, 5), {}, "depthwise_patch"),
    "patches": (_DEVICE, FLOAT32, (2, 64, 12, 12), (64, 1, 5, 5), {}, "depthwise_patch"),
    "planes, odd rows": (_DEVICE, BFLOAT16, (2, 64, 13, 13), (64, 1, 3, 3), {}, "depthwise_direct"),
    "planes, double": (_DEVICE, FLOAT64, (2, 64, 14, 14), (64, 1, 3, 3), {}, "depthwise_direct"),
}


@pytest.mark.parametrize("name", _KERNELS)
def test_kernels_by_problem(name):
    device, dtype, x, w, options, source = _KERNELS[name]
    groups, space = x[-1] if options else x[1], len(x) - 2
    window = w[1:-1] if options else w[2:]
    options = options | {"groups": groups, "padding": tuple((s // 2, s // 2) for s in window)}
    assert len(window) == space
    forward = _plan("conv", Spec(x, dtype), Spec(w, dtype), device=device, **options)
    assert forward.kernel.source == f"conv/{source}.cu"
    y = (*x[:-1], w[0]) if "layout" in options else (x[0], w[0], *x[2:])
    backward = _plan("conv_backward_input", Spec(y, dtype), Spec(w, dtype), device=device, input_shape=x, **options)
    assert backward.kernel.source == f"conv/{source}.cu"


# --- strips: how many channels of a pixel a block takes
# ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channels", "dtype", "side", "lanes", "threads"),
    [
        (96, BFLOAT16, 3, 48, 96),
        (288, FLOAT16, 3, 48, 96),
        (64, BFLOAT16, 3, 32, 128),
        (144, BFLOAT16, 3, 24, 96),
        (80, BFLOAT16, 3, 8, 128),
        (160, BFLOAT16, 3, 16, 128),
        (192, BFLOAT16, 3, 32, 128),
        (96, FLOAT32, 3, 32, 128),
        (48, FLOAT32, 7, 16, 128),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_strips_take_whole_lines(channels, dtype, side, lanes, threads, stride):
    x, w = Spec((64, 56, 56, channels), dtype), Spec((channels, side, side, 1), dtype)
    plan = _plan("conv", x, w, groups=channels, padding=side // 2, stride=stride, **_LAST)
    assert plan.kernel.source == f"conv/depthwise_strip{'_sm90' * (stride == 1)}.cu"
    config = plan.kernel.config
    assert (config.lanes, config.threads, plan.block) == (lanes, threads, threads)
    assert threads == 128 or plan.shared_memory * config.blocks <= _DEVICE.shared_memory
    assert config.threads * 16 % (config.lanes * config.reads * dtype.itemsize) == 0  # whole pixels a pass


_BOXES = [
    ("conv", FLOAT32, 7, 1),
    ("conv", FLOAT32, 5, 1),
    ("conv", FLOAT32, 3, 1),
    ("conv", FLOAT32, 3, 2),
    ("conv_backward_input", FLOAT32, 3, 2),
    ("conv", FLOAT16, 3, 1),
    ("conv", BFLOAT16, 3, 2),
    ("conv_backward_input", BFLOAT16, 3, 2),
    ("conv_backward_input", FLOAT16, 3, 2),
]


@pytest.mark.parametrize(("op", "dtype", "side", "multiplier"), _BOXES)
@pytest.mark.parametrize("channels", [8, 48, 96, 144, 2304])
@pytest.mark.parametrize("width", [1, 7, 14, 29, 56, 300])
def test_boxes_of_strips(width, channels, op, dtype, side, multiplier):
    x, w = Spec((64, 56, width, channels), dtype), Spec((channels * multiplier, side, side, 1), dtype)
    options = {"groups": channels, "padding": side // 2} | _LAST
    if op == "conv":
        plan = _plan(op, x, w, **options)
    else:
        plan = _plan(op, Spec((*x.shape[:3], channels * multiplier), dtype), w, input_shape=x.shape, **options)
    config = plan.kernel.config
    narrow = width < 8 and (side > 3 or (dtype, multiplier) == (FLOAT32, 1))
    summed = op != "conv" and (channels % 48 or width * channels < 56 * 96)  # of no whole lanes, or of few rows
    if plan.kernel.source == "conv/depthwise_strip.cu":
        assert narrow or summed
        return
    assert plan.kernel.source == "conv/depthwise_strip_sm90.cu"
    box = plan.arguments.x.box
    assert plan.arguments.x.dtype != FLOAT32  # which would be rounded
    assert max(box) <= 256
    assert box[0] * dtype.itemsize % 16 == 0
    assert box[:1] + box[2:4] == (config.lanes * config.reads, config.lines, 1)
    assert config.blocks * (plan.shared_memory + 1024) <= _DEVICE.shared_memory + 1024
    step = np.prod(box) * dtype.itemsize
    assert (
        config.lanes * max(config.reads, config.writes) * side * side * dtype.itemsize <= step
    )  # the weights pass through one
    assert config.stages * step <= plan.shared_memory


@pytest.mark.parametrize("channels", [8, 64, 96, 144])
def test_strips_have_rows(channels):
    for height in range(1, 60):
        x, w = Spec((64, height, 20, channels), BFLOAT16), Spec((channels, 3, 3, 1), BFLOAT16)
        plan = _plan("conv", x, w, groups=channels, padding=1, **_LAST)
        parts, rows = plan.arguments.parts, plan.arguments.rows
        assert (parts - 1) * rows < height <= parts * rows


# --- bands: what TMA brings and stores
# ----------------------------------------------------------------------


def _cut(image, box, start):
    """A box of an array (N, D, H, W, C), zeros outside; both count from the fastest axis."""
    found = np.zeros(box[::-1])
    for at in np.ndindex(*found.shape[:-1]):
        place = tuple(s + i for s, i in zip(start[::-1][:-1], at, strict=True))
        if all(0 <= p < n for p, n in zip(place, image.shape, strict=False)):
            row = image[place][start[0] : start[0] + box[0]]
            found[at][: len(row)] = row
    return found


def _put(image, values, start, written):
    for at in np.ndindex(*values.shape[:-1]):
        place = tuple(s + i for s, i in zip(start[::-1][:-1], at, strict=True))
        if all(0 <= p < n for p, n in zip(place, image.shape, strict=False)):
            there = image.shape[-1] - start[0]
            image[place][start[0] :] = np.where(
                np.arange(there) < values.shape[-1], np.resize(values[at], there), image[place][start[0] :]
            )
            written[place][start[0] : start[0] + values.shape[-1]] += 1


def _walked(plan, x, w):
    """The result of a launch on arrays (N, D, H, W, C) and (C, T, R, S), and how often each element was stored."""
    maps = [a for a in plan.arguments if isinstance(a, TensorMap)]
    told = plan.arguments[-1].narrow
    (
        _,
        channels,
        flip,
        across,
        groups,
        rows,
        stages,
        joint,
        tiles,
        *_,
        depth,
        height,
        width,
        before_d,
        before_h,
        before_w,
    ) = told
    deep, side = w.shape[1:3]
    w = w[:, ::-1, ::-1, ::-1] if flip else w
    planes = maps[1].box[3]
    assert maps[0].box[3] == planes + deep - 1
    assert stages >= 2
    assert across * groups <= 8
    y, written = (np.zeros((x.shape[0], depth, height, width, channels), kind) for kind in (float, int))
    assert [m.shape for m in maps] == [x.shape[::-1], y.shape[::-1]]
    chunks, parts, columns = -(-channels // 32), -(-height // rows), across * _STRIP
    for block in range(plan.grid[0]):
        first = block % chunks * 32
        own = np.zeros((32, deep, side, side))
        own[: len(w[first : first + 32])] = w[first : first + 32]
        for tile in range(block // chunks, tiles, plan.grid[0] // chunks):
            part, column, plane = (
                tile % parts,
                tile // parts % -(-width // columns),
                tile // parts // -(-width // columns),
            )
            n, o = plane // -(-depth // planes) * groups, plane % -(-depth // planes) * planes
            p, q, brought, follows = part * rows, column * columns, [], tile + plan.grid[0] // chunks < tiles
            for row in range(p, min(p + rows, height) + side - 1, 2):
                box = _cut(x, maps[0].box, (first, q - before_w, row - before_h, o - before_d, n))
                brought.extend(np.moveaxis(box, 2, 0))
                if len(brought) <= side:
                    continue
                result = np.zeros((groups, planes, 2, columns, 32))
                for plane, k, t, r, s in np.ndindex(planes, 2, deep, side, side):
                    result[:, plane, k] += brought[k + r - side - 1][:, plane + t, s : s + columns] * own[:, t, r, s]
                _put(y, result, (first, q, row - side + 1, o, n), written)
            assert not np.any(brought[: 2 * joint])  # the steps that a tile has in common with the next one
            assert not follows or not np.any(brought[len(brought) - 2 * joint :])
    return y, written


_BANDS = {  # x (N, H, W, C) or (N, D, H, W, C), side, padding
    "one tile": ((2, 9, 14, 8), 7, 3),
    "uneven": ((3, 7, 17, 40), 5, ((0, 3), (4, 1))),
    "tall": ((1, 40, 5, 16), 7, 3),
    "odd parts": ((1, 59, 5, 8), 5, 2),
    "wide": ((1, 3, 150, 8), 5, 2),
    "small images": ((19, 4, 3, 8), 5, 2),
    "much padding": ((33, 4, 2, 8), 5, 5),
    "cubes": ((2, 4, 9, 14, 40), 3, 1),
    "odd cubes": ((3, 5, 7, 17, 8), 3, ((0, 2), (1, 0), (2, 1))),
    "small cubes": ((9, 2, 3, 5, 8), 3, (1, 2, 0)),
}


@pytest.mark.parametrize("units", [132, 2])
@pytest.mark.parametrize("name", _BANDS)
def test_bands(name, units):
    shape, side, padding = _BANDS[name]
    rng = np.random.default_rng(0)
    deep = () if len(shape) == 4 else (side,)
    x, w = rng.standard_normal(shape), rng.standard_normal((shape[-1], *deep, side, side, 1))
    options = {"groups": shape[-1], "padding": padding} | _LAST
    plan = _plan(
        "conv", Spec(shape, BFLOAT16), Spec(w.shape, BFLOAT16), device=replace(_DEVICE, units=units), **options
    )
    assert plan.kernel.source == f"conv/depthwise_{'cube' if deep else 'band'}_sm90.cu"
    x_planes, w_planes = (x, w[..., 0]) if deep else (x[:, None], w[:, None, ..., 0])
    y, written = _walked(plan, x_planes, w_planes)
    assert (written == 1).all()
    np.testing.assert_allclose(y if deep else y[:, 0], dnn.conv(x, w, **options), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("window", [(5, 5), (7, 7), (3, 3, 3)])
@pytest.mark.parametrize("channels", [8, 192, 384, 2304])
@pytest.mark.parametrize("extent", [1, 7, 14, 56, 100])
@pytest.mark.parametrize("batch", [1, 64])
def test_bands_fit_a_device(batch, extent, channels, window):
    x, w = Spec((batch, *(3, extent, extent)[-len(window) :], channels), FLOAT16), Spec((channels, *window, 1), FLOAT16)
    plan = _plan("conv", x, w, groups=channels, padding=window[0] // 2, **_LAST)
    assert plan.kernel.source == f"conv/depthwise_{'cube' if len(window) == 3 else 'band'}_sm90.cu"
    assert plan.shared_memory <= _DEVICE.shared_memory
    assert plan.grid[0] % plan.kernel.config.together == 0  # whole clusters
    for m in plan.arguments[:2]:
        assert max(m.box) <= 256
        assert m.box[0] * 2 == m.row
        assert all(s % 16 == 0 for s in m.strides)


@pytest.mark.parametrize("of_grad", [None, (0, 2, 3, 1)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2)], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 16, 9, 7), (2, 16, 3, 3)], ids=str
)  # of a gradient with extents of 1, which lies in several orders
def test_the_gradient_of_an_input_is_read_in_the_order_that_it_is_written_in(shape, order, of_grad):
    def lying(extents, axes):
        strides = np.empty([extents[i] for i in axes]).transpose(np.argsort(axes)).strides
        return Spec(extents, FLOAT32, tuple(s // 8 for s in strides))

    x, w, grad = lying(shape, order), Spec((16, 1, 3, 3), FLOAT32), (2, 16, shape[2] - 2, shape[3] - 2)
    grad = lying(grad, of_grad or (0, 1, 2, 3))
    for op, specs, options in (
        ("conv_backward_input", (grad, w), {"input_shape": x}),
        ("conv_backward", (grad, x, w), {}),
    ):
        problem = _problem(op, *specs, groups=16, **options)
        method = next(m for m in ALGORITHMS[op] if m.name == "depthwise_direct")
        assert problem.outputs[0].strides == x.strides
        assert method.rejects(problem, _DEVICE) is None
        assert lies(x, method.run(problem, _DEVICE, True).orders[0])
