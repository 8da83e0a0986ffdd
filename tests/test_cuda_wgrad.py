"""Weight gradients from TMA, without a GPU: what their maps fetch, multiplied as the kernels do, and how
their parts are added up."""

from dataclasses import replace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._spec import Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS, wgrad
from dnnarray._cuda.conv.tiling import Tile
from tests.test_cuda_tensor_map import _DEVICE, _axes, _unravel, _windows

_CASES = {  # x, weight, options
    "halo": ((2, 64, 5, 6), (72, 64, 3, 3), {"padding": ((1, 1), (2, 0))}),
    "halo-dilated": ((1, 72, 9, 11), (8, 72, 3, 3), {"padding": (2, 3), "dilation": (1, 2)}),
    "halo-groups": ((2, 128, 4, 7), (128, 64, 3, 3), {"groups": 2, "flip": True}),
    "halo-3d": ((1, 8, 5, 4, 6), (8, 8, 2, 3, 3), {"padding": ((1, 0), (1, 1), (2, 1)), "stride": (2, 1, 1)}),
    "strided": ((2, 8, 9, 7), (64, 8, 3, 2), {"stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "dilated": ((1, 72, 6, 7), (136, 72, 2, 2), {"dilation": (2, 3), "padding": 2}),
    "groups": ((3, 128, 4, 5), (128, 64, 1, 3), {"groups": 2}),
    "1d": ((2, 16, 90), (64, 16, 3), {"padding": 1}),
    "3d": ((1, 8, 3, 4, 5), (64, 8, 2, 2, 2), {"padding": 1}),
}


class _Card:
    """Runs a plan's first launch as its kernel reads its arguments: partial sums (split, group, K, tap, C)."""

    def __init__(self, plan, memory):
        self._memory, self._config = memory, plan.kernel.config
        self._halo = "halo" in plan.kernel.source
        self._given, self._axes = plan.arguments, _axes(plan.arguments)
        self._dy, self._x = plan.arguments.dy, plan.arguments.x

    def sums(self):
        return self._by_raster() if self._halo else self._by_windows()

    def _by_raster(self):
        given = self._given
        pitch, height, splits, blocks = given.pitch, given.height, given.splits, given.blocks
        images, channels, outs, groups = given.images, given.channels, given.outs, given.groups
        d, h, w = self._axes
        inner, places = (d[0], height, pitch), images * d[0] * height * pitch
        found = np.zeros((splits, groups, outs, d[2] * 9, channels))
        late = (63 + 2 * (h[4] * pitch + w[4])) // 64
        for split, group, plane in np.ndindex(splits, groups, d[2]):
            count = min(blocks, -(-places // 64) - split * blocks)
            for c in range(0, channels, 64):
                x = self._rows(self._x, inner, split * blocks, count + late, group * channels + c, (0, 0, plane * d[4]))
                for k in range(0, outs, 64):
                    dy = self._rows(self._dy, inner, split * blocks, count, group * outs + k, (0, 0, 0), moved=False)
                    for r, s in np.ndindex(3, 3):
                        shift = r * h[4] * pitch + s * w[4]
                        part = dy.T @ x[shift : shift + 64 * count]
                        found[split, group, k : k + 64, plane * 9 + r * 3 + s, c : c + 64] = part[
                            : outs - k, : channels - c
                        ]
        return found

    def _by_windows(self):
        given = self._given
        rows, channels, outs, groups = given.rows, given.channels, given.outs, given.groups
        tiles_m, tiles_n, splits, blocks = given.tiles_m, given.tiles_n, given.splits, given.blocks
        window, inner = tuple(a[2] for a in self._axes), tuple(a[0] for a in self._axes)
        taps, blocks_c = int(np.prod(window)), -(-channels // 64)
        found = np.full((splits, groups, outs, taps, channels), np.nan)
        for split, group, m, n in np.ndindex(splits, groups, tiles_m, tiles_n):
            count = min(blocks, -(-rows // 64) - split * blocks)
            for panel in range(
                n * self._config.tile_n // 64, min((n + 1) * self._config.tile_n // 64, taps * blocks_c)
            ):
                tap, c = panel // blocks_c, panel % blocks_c * 64
                at = np.unravel_index(tap, window)
                offset = [t * a[4] for t, a in zip(at[::-1], self._axes[::-1], strict=True)]
                x = self._rows(self._x, inner, split * blocks, count, group * channels + c, offset)
                for k in range(m * self._config.tile_m, min((m + 1) * self._config.tile_m, outs), 64):
                    dy = self._rows(self._dy, inner, split * blocks, count, group * outs + k, (0, 0, 0), moved=False)
                    found[split, group, k : k + 64, tap, c : c + 64] = (dy.T @ x)[: outs - k, : channels - c]
        return found

    def _rows(self, tensor_map, inner, block, count, channel, offset, moved=True):
        """64 rows a block: the pixels in the order of `inner`, where the windows begin if `moved`."""
        axes, found = self._config.axes, []
        for i in range(block, block + count):
            *place, image = _unravel(i * 64, inner)
            if moved:
                place = [p * a[3] - a[5] for p, a in zip(place, self._axes[::-1], strict=True)]
            found.append(_windows(self._memory, tensor_map, (channel, *place[:axes], image), offset[:axes]))
        return np.concatenate(found)


def _added_up(plan, partial, size):
    """The second launch: the weight's memory."""
    given = plan.arguments
    inner, from_steps, to_steps = given.read[:4], given.read[4:], given.written[4:]
    assert given.written[:4] == inner
    extents = (given.groups // int(np.prod(inner)), *inner)
    flat, out, start = partial.reshape(given.splits, given.size), np.full(size, np.nan), given.out.offset // 2
    for place in np.ndindex(*extents):
        source, target = (sum(p * s for p, s in zip(place, steps, strict=True)) for steps in (from_steps, to_steps))
        for j in range(8):
            out[start + target + j * given.apart] = flat[:, source + j].sum()
    return out


def _stored(plan, sums, w_shape):
    """What a launch that needs no second one leaves in memory."""
    steps, out, start = plan.arguments.w_strides, np.full(sums.size, np.nan), plan.arguments.result.offset // 2
    window = ((1,) * 3 + tuple(w_shape[2:]))[-3:]
    rows = sums.reshape(-1, *window, sums.shape[-1])
    for place in np.ndindex(rows.shape[:-1]):
        at = start + sum(p * step for p, step in zip(place, steps, strict=True))
        out[at : at + rows.shape[-1]] = rows[place]
    return out


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("case", _CASES)
def test_a_weight_gradient_from_the_copy_engine(case, last, monkeypatch):
    x_shape, w_shape, options = _CASES[case]
    kind = wgrad.HaloSplit if case.startswith("halo") else wgrad.TmaSplit
    monkeypatch.setattr(wgrad, "_TILES", (Tile(128, 192, 4), Tile(64, 256, 4)))
    monkeypatch.setattr(wgrad, "wgrad_split", wgrad.halo_split if kind is wgrad.HaloSplit else wgrad.tma_split)
    order, rng = (0, *range(2, len(x_shape)), 1), np.random.default_rng(0)
    y_shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
    images = [rng.integers(-2, 3, [shape[i] for i in order]).astype(float) for shape in (y_shape, x_shape)]
    arrays = [a.transpose(np.argsort(order)) for a in images]
    expected = dnn.conv_backward_weight(
        *arrays, weight_shape=w_shape, algorithm="direct", **options
    )  # exact, unlike Winograd's
    operation = find("conv_backward_weight")
    specs = tuple(Spec(a.shape, "bfloat16", tuple(s // 8 for s in a.strides)) for a in arrays)
    bound, chosen = operation.bind(specs, options | {"weight_shape": w_shape})
    problem = operation.problem(bound, {k: v for k, v in chosen.items() if k in operation.static})
    if not last:
        problem = replace(problem, outputs=(Spec(w_shape, "bfloat16"),))
    method = next(a for a in ALGORITHMS["conv_backward_weight"] if a.name == "implicit_tma_sm90")
    assert method.rejects(problem, _DEVICE) is None
    assert isinstance(wgrad.wgrad_split(problem.geometry), kind)
    first, *second = method.run(problem, _DEVICE, True).plans
    memory = {0: images[0].ravel(), 1: images[1].ravel()}
    sums = _Card(first, memory).sums()
    found = _added_up(second[0], sums, expected.size) if second else _stored(first, sums, w_shape)
    as_stored = expected.transpose(problem.outputs[0].axis_order())
    np.testing.assert_array_equal(found, as_stored.ravel())
