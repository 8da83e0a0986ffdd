"""Float32 convolution in parts without a GPU: its launches in NumPy, with TMA of `test_cuda_tensor_map`."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS, parts_tiling
from dnnarray._cuda.conv import parts as conv_parts
from dnnarray._cuda.conv.tiling import Tile
from dnnarray._cuda.core.plan import Array, TensorMap
from dnnarray._cuda.linear import ALGORITHMS as LINEAR
from tests.test_cuda_tensor_map import _axes, _axis, _box, _unravel, _windows

_DEVICE = Device("made-up H200", "cuda", 132, {"float32": 50e12, "float16_mma": 788e12}, 4.2e12, 4e-6, (9, 0), 232_448)


class _Card:
    """Arrays by their index, scratch memory as half types and as floats side by side."""

    def __init__(self, inputs, size, workspace):
        self.arrays = [np.asarray(a, float).ravel() for a in inputs] + [np.full(size, np.nan)]
        self.halves, self.floats = np.full(workspace // 2, np.nan), np.full(workspace // 4, np.nan)
        self.halves_by_index = [None] * len(self.arrays) + [self.halves]

    def of(self, array):
        """float32 memory from a pointer on."""
        memory = self.floats if array.index == len(self.arrays) else self.arrays[array.index]
        return memory[array.offset // 4 :]

    def run(self, plan):
        name = plan.kernel.source.rsplit("/", 1)[-1]
        done = {
            "parts_image.cu": self.image,
            "parts_tma_sm90.cu": self.products,
            "parts_weight_tma_sm90.cu": self.weight,
            "parts_weight_sums.cu": self.sum,
            "zero.cu": self.zero,
        }
        if name not in ("parts_range.cu", "direct.cu"):
            done[name](plan)

    def zero(self, plan):
        self.of(plan.arguments.out)[: plan.arguments.bytes // 4] = 0

    def image(self, plan):
        source, *_, whole, batch, channels, pixels, width, plane = plan.arguments
        x = self.of(source)[: batch * channels * pixels]
        x = (
            x.reshape(batch, pixels, channels)
            if plan.kernel.config.last
            else x.reshape(batch, channels, pixels).swapaxes(1, 2)
        )
        filled = np.zeros((batch, pixels, width))
        filled[:, :, :channels] = x
        at = whole.offset // 2
        self.halves[at : at + plane] = filled.ravel()
        self.halves[at + plane : at + plan.kernel.config.parts * plane] = 0

    def products(self, plan):
        x, _, w, _ = (a for a in plan.arguments if isinstance(a, TensorMap))
        y = [a for a in plan.arguments if isinstance(a, Array)][4]
        rows, _, channels, backwards, tiles_m, tiles_n, groups, outs, *rest = (
            a for a in plan.arguments if isinstance(a, int)
        )
        steps, axes = rest[:5], [_axis(rest[5 + 3 * i : 8 + 3 * i]) for i in range(3)]
        c, window = plan.kernel.config, [a[2] for a in axes]
        target = self.of(y)
        for group, first, n in (
            (g, i * c.tile_m, j * c.tile_n) for g in range(groups) for i in range(tiles_m) for j in range(tiles_n)
        ):
            sums = np.zeros((c.tile_m, c.tile_n))
            for tap in np.ndindex(*window):
                at = [
                    b - 1 - t if backwards >> i & 1 else t
                    for i, (t, b) in enumerate(zip(tap[::-1], window[::-1], strict=True))
                ]
                for k in range(0, channels, 64):
                    if c.transposed:
                        starts = [(n + i, *at, group * channels + k) for i in range(0, c.tile_n, 64)]
                        b = np.hstack([_box(self.halves_by_index, w, s) for s in starts])
                    else:
                        b = _box(self.halves_by_index, w, (k, *at, group * outs + n)).T
                    sums += self.windows(x, axes, c.axes, first, tap, group * channels + k) @ b
            for i, row in enumerate(sums[: max(rows - first, 0)]):
                *place, image = _unravel(first + i, [a[0] for a in axes])
                to = image * steps[0] + sum(p * s for p, s in zip(place[::-1], steps[2:], strict=True))
                for j in range(min(c.tile_n, outs - n)):
                    target[to + (group * outs + n + j) * steps[1]] = row[j]

    def windows(self, x, axes, count, first, tap, channel):
        *place, image = _unravel(first, [a[0] for a in axes])
        starts = [p * a[3] - a[5] for p, a in zip(place, axes[::-1], strict=True)][:count]
        offsets = [t * a[4] for t, a in zip(tap[::-1], axes[::-1], strict=True)][:count]
        return _windows(self.halves_by_index, x, (channel, *starts, image), offsets)

    def weight(self, plan):
        dy, _, x, _ = (a for a in plan.arguments if isinstance(a, TensorMap))
        partial = [a for a in plan.arguments if isinstance(a, Array)][2]
        rows, _, _, groups, outs, channels, splits, blocks, *rest = (a for a in plan.arguments if isinstance(a, int))
        axes = [_axis(rest[3 * i : 3 + 3 * i]) for i in range(3)]
        window, c = [a[2] for a in axes], plan.kernel.config
        taps = list(np.ndindex(*window))
        found = np.zeros((splits, groups, -(-outs // 64) * 64, len(taps), -(-channels // 64) * 64))
        for s in range(splits):
            for first in range(s * blocks * 64, min((s + 1) * blocks * 64, rows), 64):
                for g, k in ((g, k) for g in range(groups) for k in range(0, outs, 64)):
                    a = _box(self.halves_by_index, dy, (g * outs + k, 0, 0, 0, first))
                    for t, tap in enumerate(taps):
                        for channel in range(0, channels, 64):
                            b = self.windows(x, axes, c.axes, first, tap, g * channels + channel)
                            found[s, g, k : k + 64, t, channel : channel + 64] += a.T @ b
        kept = found[:, :, :outs, :, :channels].ravel()
        self.of(partial)[: kept.size] = kept

    def sum(self, plan):
        given = plan.arguments
        steps, window = given.w_strides, [axis[2] for axis in _axes(given)]
        sums = (
            self.of(given.partial)[: given.size * given.splits]
            .reshape(given.splits, -1, *window, given.channels)
            .sum(0)
        )
        for (k, *tap, c), value in np.ndenumerate(sums):
            self.of(given.out)[
                k * steps[0] + c * steps[1] + sum(t * s for t, s in zip(tap, steps[2:], strict=True))
            ] = value


_CASES = {  # x, weight, options
    "strided": ((2, 5, 9, 7), (67, 5, 3, 2), {"stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "dilated": ((1, 72, 6, 7), (9, 72, 2, 2), {"dilation": (2, 3), "padding": 2}),
    "groups": ((1, 128, 4, 5), (128, 64, 1, 3), {"groups": 2}),
    "pointwise": ((3, 70, 5, 5), (66, 70, 1, 1), {}),
    "1d": ((2, 16, 9), (8, 16, 3), {"padding": 1}),
    "3d": ((1, 8, 3, 4, 5), (12, 8, 2, 2, 2), {"padding": 1, "stride": (1, 2, 1)}),
}


@pytest.fixture
def small_tiles(monkeypatch):
    for table in (parts_tiling._TILES, parts_tiling._WEIGHT_TILES):
        monkeypatch.setitem(table, 2, (Tile(64, 64, 3),))


def _laid(rng, shape, last):
    order = (0, *range(2, len(shape)), 1) if last else tuple(range(len(shape)))
    return rng.integers(-2, 3, [shape[i] for i in order]).astype(float).transpose(np.argsort(order)), order


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("op", ["conv", "conv_backward_input", "conv_backward_weight"])
@pytest.mark.parametrize("case", _CASES)
def test_the_launches_compute_the_operation(case, op, last, small_tiles):
    x_shape, w_shape, options = _CASES[case]
    rng = np.random.default_rng(0)
    y_shape = dnn.infer("conv", Spec(x_shape, FLOAT32), Spec(w_shape, FLOAT32), **options).output.shape
    (x, _), (w, _), (dy, order) = (_laid(rng, shape, last) for shape in (x_shape, w_shape, y_shape))
    if op == "conv":
        arrays = x, w
    else:
        arrays = (dy, w) if op.endswith("input") else (dy, x)
        options = options | ({"input_shape": x_shape} if op.endswith("input") else {"weight_shape": w_shape})
    expected = getattr(dnn, op)(*arrays, **options)
    specs = tuple(Spec(a.shape, FLOAT32, tuple(s // 8 for s in a.strides)) for a in arrays)
    bound, chosen = find(op).bind(specs, options)
    problem = find(op).problem(bound, {k: v for k, v in chosen.items() if k in find(op).static})
    method = next(m for m in ALGORITHMS[op] if m.name == conv_parts.NAMES["highest"])
    assert method.rejects(problem, _DEVICE) is None
    card = _Card([a.transpose(order) for a in arrays], expected.size, method.workspace(problem))
    for plan in method.run(problem, _DEVICE, True).plans:
        card.run(plan)
    found, order = card.arrays[-1], problem.outputs[0].axis_order()
    assert np.array_equal(found, expected.transpose(order).ravel())


@pytest.mark.parametrize("turned", [False, True])
def test_a_linear_layer_is_a_convolution_of_one_tap(turned, small_tiles):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-2, 3, shape).astype(float) for shape in ((3, 7, 70), (66, 70)))
    specs = Spec(x.shape, FLOAT32), Spec(w.shape, FLOAT32, (1, 66) if turned else None)
    bound, chosen = find("linear").bind(specs, {})
    problem = find("linear").problem(bound, {k: v for k, v in chosen.items() if k in find("linear").static})
    method = next(m for m in LINEAR["linear"] if m.name == conv_parts.NAMES["highest"])
    card = _Card([x, w.T if turned else w], 21 * 66, method.workspace(problem))
    for plan in method.run(problem, _DEVICE, True).plans:
        card.run(plan)
    assert np.array_equal(card.arrays[-1].reshape(3, 7, 66), dnn.linear(x, w))


def test_tiles_fit_into_shared_memory():
    for table in (parts_tiling._TILES, parts_tiling._WEIGHT_TILES):
        assert all(
            parts_tiling.shared_memory(t, parts) <= _DEVICE.shared_memory
            for parts, tiles in table.items()
            for t in tiles
        )


@pytest.mark.parametrize("op", ["conv", "conv_backward_input", "conv_backward_weight"])
def test_what_is_predicted_for_a_layer_is_near_what_it_took(op):
    """3x3, 256 channels at 56: 1.1 to 1.3 ms on an H200 (docs/development/findings/convolution/float32-parts.md)."""
    image, weight = Spec((64, 56, 56, 256), FLOAT32), Spec((256, 3, 3, 256), FLOAT32)
    arrays = {"conv": (image, weight), "conv_backward_input": (image, weight), "conv_backward_weight": (image, image)}[
        op
    ]
    options = {"padding": 1, "layout": "channels_last"}
    options |= {
        "conv": {},
        "conv_backward_input": {"input_shape": image.shape},
        "conv_backward_weight": {"weight_shape": weight.shape},
    }[op]
    bound, chosen = find(op).bind(arrays, options)
    problem = find(op).problem(bound, {k: v for k, v in chosen.items() if k in find(op).static})
    spent = conv_parts.cost(op, problem, _DEVICE)
    assert 0.9e-3 < spent.flops / (spent.efficiency * _DEVICE.peak["float16_mma"]) < 1.4e-3
    assert math.isclose(spent.flops, problem.flops)
