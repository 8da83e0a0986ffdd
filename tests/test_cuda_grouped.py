"""Groups of 16 and 32 channels without a GPU: what the tensor maps fetch for `grouped_tma_sm90`, multiplied group by group as its kernels do."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._operation import find
from dnnarray._spec import BFLOAT16, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda import conv_grouped_tma
from dnnarray._cuda.conv import ALGORITHMS
from dnnarray._cuda.plan import Array, TensorMap
from dnnarray._cuda.tensor_map import Encoded
from tests.test_cuda_tensor_map import _DEVICE, _axis, _drawn, _Driver, _element, _numbers, _pointers, _unravel, _windows
from tests.test_cuda_weigh import _added_up, _Card

_CASES = {  # x, weight, options
    "sixteen": ((2, 64, 5, 6), (64, 16, 3, 3), {"groups": 4, "padding": 1}),
    "thirty_two": ((1, 128, 4, 5), (128, 32, 3, 2), {"groups": 4, "padding": ((1, 0), (2, 1))}),
    "some": ((1, 48, 5, 4), (48, 16, 2, 2), {"groups": 3}),
    "strided": ((2, 64, 9, 7), (64, 32, 3, 2), {"groups": 2, "stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "flipped": ((1, 64, 5, 6), (64, 16, 2, 3), {"groups": 4, "padding": 1, "flip": True}),
    "dilated": ((1, 32, 7, 8), (32, 16, 2, 2), {"groups": 2, "dilation": (2, 3), "padding": 2}),
    "1d": ((2, 32, 9), (32, 16, 3), {"groups": 2, "padding": 1}),
    "3d": ((1, 32, 3, 4, 5), (32, 16, 2, 2, 2), {"groups": 2, "padding": 1}),
}


def _store(target, plan, memory):
    """All tiles of a launch."""
    config, (x, w, *_) = plan.kernel.config, plan.arguments
    rows, pitch, backwards, tiles_m, tiles_n, outs, *rest = _numbers(plan)
    steps, axes = rest[:4], [_axis(rest[4 + 3 * i : 7 + 3 * i]) for i in range(3)]
    inner, window, size = [axes[0][0], axes[1][0], pitch], [a[2] for a in axes], config.size
    for m, n in np.ndindex(tiles_m, tiles_n):
        *place, image = _unravel(m * config.tile_m, inner)
        starts = [p * a[3] - a[5] for p, a in zip(place, axes[::-1], strict=True)][: config.axes]
        sums = np.zeros((config.tile_m, 64))
        for tap in np.ndindex(*window):
            offsets = [t * a[4] for t, a in zip(tap[::-1], axes[::-1], strict=True)][: config.axes]
            if config.across > 1:
                windows = _windows(memory, x, (n * 64, *starts, image), (0, *offsets[1:]))[offsets[0] : offsets[0] + config.tile_m]
            else:
                windows = _windows(memory, x, (n * 64, *starts, image), offsets)
            at = [e - 1 - t if backwards >> i & 1 else t for i, (t, e) in enumerate(zip(tap[::-1], window[::-1], strict=True))]
            weight = np.array([[_element(memory, w, (c, *at, n * 64 + row)) for c in range(size)] for row in range(64)])
            for first in range(0, 64, size):
                own = weight[first : first + size]
                sums[:, first : first + size] += windows[:, first : first + size] @ (own if config.transposed else own.T)
        for i in range(min(config.tile_m, rows - m * config.tile_m)):
            *place, image = _unravel(m * config.tile_m + i, inner)
            if place[0] >= axes[2][0]:
                continue
            at = _pointers(plan)[2].offset // 2 + image * steps[0] + sum(p * s for p, s in zip(place[::-1], steps[1:], strict=True))
            target[at + n * 64 : at + min(n * 64 + 64, outs)] = sums[i, : outs - n * 64]


def _problem(op, options, *specs):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.problem(bound, {k: v for k, v in chosen.items() if k in operation.static})


def _method(op):
    return next(a for a in ALGORITHMS[op] if a.name == "grouped_tma_sm90")


@pytest.mark.parametrize("shared", [False, True], ids=["each_tap", "each_row"])
@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("case", _CASES)
def test_the_copy_engine_fetches_what_each_group_needs(case, transposed, shared, monkeypatch):
    by_row = conv_grouped_tma.shared_columns
    monkeypatch.setattr(conv_grouped_tma, "shared_columns", by_row if shared else lambda g: None)
    if shared:  # where they can be, they are
        monkeypatch.setattr(conv_grouped_tma, "_L2", 1.0)
    x_shape, w_shape, options = _CASES[case]
    order = (0, *range(2, len(x_shape)), 1)
    rng = np.random.default_rng(0)
    w = _drawn(rng, w_shape, order)
    if not transposed:
        op, arrays, more = "conv", (_drawn(rng, x_shape, order), w), {}
    else:
        shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
        op, arrays, more = "conv_backward_input", (_drawn(rng, shape, order), w), {"input_shape": x_shape}
    expected = getattr(dnn, op)(*arrays, **options, **more)
    problem = _problem(op, options | more, *(Spec(a.shape, "bfloat16", tuple(s // 8 for s in a.strides)) for a in arrays))
    assert _method(op).rejects(problem, _DEVICE) is None
    memory = [np.ascontiguousarray(a.transpose(order)).ravel() for a in arrays]
    actual = np.full(expected.size, np.nan)
    for plan in _method(op).run(problem, _DEVICE, True).plans:
        if plan.kernel.source == "common/zero.cu":  # where no window reaches
            actual[:] = 0
            continue
        if plan.kernel.source == "common/rearrange.cu":
            pytest.skip("the weight is turned round first")
        _store(actual, plan, memory)
    assert (actual == expected.transpose(order).ravel()).all()


@pytest.mark.parametrize(("size", "swizzle"), [(16, "32B"), (32, "64B"), (64, "128B")])
def test_a_row_of_a_box_is_as_long_as_its_swizzle(size, swizzle, monkeypatch):
    from dnnarray._cuda import tensor_map

    driver = _Driver()
    monkeypatch.setattr(tensor_map, "_driver", lambda: driver)
    Encoded(TensorMap(Array(0), BFLOAT16, (size, 5), (2 * size,), (size, 2)), np.zeros(16, np.uint64).ctypes.data).move(4096)
    assert f"CU_TENSOR_MAP_SWIZZLE_{swizzle}" in driver.asked[0][1]


@pytest.mark.parametrize(
    ("x", "w", "options", "reason"),
    [
        ((1, 64, 9, 9), (64, 16, 3, 3), {"groups": 4}, None),
        ((1, 64, 9, 9), (64, 8, 3, 3), {"groups": 8}, "8 and 8 channels"),
        ((1, 64, 9, 9), (32, 32, 3, 3), {"groups": 2}, "32 and 16 channels"),
        ((1, 16, 9, 9), (16, 16, 3, 3), {}, "several"),
        ((1, 64, 40, 40), (64, 16, 3, 3), {"groups": 4, "stride": 9}, "stride of 9"),
    ],
)
def test_what_is_not_taken(x, w, options, reason):
    found = _method("conv").rejects(_problem("conv", options, Spec(x, BFLOAT16), Spec(w, BFLOAT16)), _DEVICE)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("across", "size"), [(n, c) for n in (1, 3, 5, 7) for c in conv_grouped_tma.SIZES])
def test_tiles_fit_into_shared_memory(across, size):
    found = list(conv_grouped_tma.tiles(size, across))
    assert [t.m for t in found] == [256, 192, 128]
    assert all(conv_grouped_tma.shared_memory(t, size, across) <= _DEVICE.shared_memory for t in found)


_WEIGHTS = {  # x, weight, options
    "halo": ((2, 64, 5, 6), (64, 16, 3, 3), {"groups": 4, "padding": ((1, 1), (2, 0))}),
    "halo-blocks": ((1, 128, 4, 7), (128, 32, 3, 3), {"groups": 4, "padding": 1, "flip": True}),
    "halo-3d": ((1, 64, 3, 4, 6), (64, 32, 2, 3, 3), {"groups": 2, "padding": ((1, 0), (1, 1), (2, 1)), "stride": (2, 1, 1)}),
    "strided": ((2, 128, 9, 7), (128, 8, 3, 2), {"groups": 16, "stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "1d": ((2, 64, 90), (64, 32, 3), {"groups": 2, "dilation": 2}),
    "pointwise": ((1, 64, 9, 9), (64, 8, 1, 1), {"groups": 8}),
}


@pytest.mark.parametrize("case", _WEIGHTS)
def test_a_weight_gradient_keeps_what_is_of_one_group(case, monkeypatch):
    x_shape, w_shape, options = _WEIGHTS[case]
    monkeypatch.setattr(conv_grouped_tma, "tma_split" if case.startswith("halo") else "halo_split", lambda *_: None)
    order, rng = (0, *range(2, len(x_shape)), 1), np.random.default_rng(0)
    y_shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
    arrays = [_drawn(rng, shape, order) for shape in (y_shape, x_shape)]
    expected = dnn.conv_backward_weight(*arrays, weight_shape=w_shape, **options)
    specs = (Spec(a.shape, "bfloat16", tuple(s // 8 for s in a.strides)) for a in arrays)
    problem = _problem("conv_backward_weight", options | {"weight_shape": w_shape}, *specs)
    assert _method("conv_backward_weight").rejects(problem, _DEVICE) is None
    first, second = _method("conv_backward_weight").run(problem, _DEVICE, True).plans
    assert first.kernel.config.size == w_shape[1]
    sums = _Card(first, {i: np.ascontiguousarray(a.transpose(order)).ravel() for i, a in enumerate(arrays)}).sums()
    splits, taps, size = sums.shape[0], sums.shape[3], w_shape[1]
    kept = np.stack([sums[:, :, k, :, k // size * size :][..., :size] for k in range(64)], 2)
    assert kept.shape == (splits, w_shape[0] // 64, 64, taps, size)
    as_stored = expected.transpose(problem.outputs[0].axis_order())
    np.testing.assert_array_equal(_added_up(second, kept, expected.size), as_stored.ravel())
    assert _method("conv_backward_weight").workspace(problem) >= kept.size * 4
