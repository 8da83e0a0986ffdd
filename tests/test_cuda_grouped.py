"""Groups of 16 and 32 channels without a GPU: what the tensor maps fetch for `grouped_tma_sm90`, multiplied group by
group as its kernels do."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._spec import BFLOAT16, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS, grouped_tma, wgrad
from tests.test_cuda_tensor_map import _DEVICE, _axis, _drawn, _unravel, _windows
from tests.test_cuda_wgrad import _added_up, _Card

_CASES = {  # x, weight, options
    "sixteen": ((2, 64, 5, 6), (64, 16, 3, 3), {"groups": 4, "padding": 1}),
    "thirty_two": ((1, 128, 4, 5), (128, 32, 3, 2), {"groups": 4, "padding": ((1, 0), (2, 1))}),
    "some": ((1, 48, 5, 4), (48, 16, 2, 2), {"groups": 3}),
    "strided": ((2, 64, 9, 7), (64, 32, 3, 2), {"groups": 2, "stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "flipped": ((1, 64, 5, 6), (64, 16, 2, 3), {"groups": 4, "padding": 1, "flip": True}),
    "dilated": ((1, 32, 7, 8), (32, 16, 2, 2), {"groups": 2, "dilation": (2, 3), "padding": 2}),
    "eight": ((2, 64, 5, 6), (64, 8, 3, 3), {"groups": 8, "padding": 1}),
    "eights": ((1, 24, 6, 7), (24, 8, 3, 3), {"groups": 3, "stride": 2, "padding": 1}),
    "1d": ((2, 32, 9), (32, 16, 3), {"groups": 2, "padding": 1}),
    "3d": ((1, 32, 3, 4, 5), (32, 16, 2, 2, 2), {"groups": 2, "padding": 1}),
}


def _packed(memory, plan, config, window, n):
    """The weights of the channels from 64 n on, as the kernel brings them to shared memory: (tap, row of the result,
    channel of the sum)."""
    numbers = plan.arguments[6:]
    outs, form, turned, (k, c, *steps) = numbers[4], numbers[5], numbers[6], numbers[7:12]
    size, real, taps = max(config.real, 16), config.real, math.prod(window)
    array = plan.arguments[2]
    w, start = memory[array.index], array.offset // 2
    found = np.zeros((taps, 64, size))
    first = start + sum((e - 1) * s for e, s in zip(window, steps, strict=True)) * turned
    for row in range(min(64, outs - 64 * n)):
        for tap, own in np.ndindex(taps, real):
            if form:
                e = (row + 64 * n) * k + (own * taps + tap if form == 1 else tap * real + own)
                value, at = w[first + e], taps - 1 - tap if turned else tap
            else:
                place = sum(p * s for p, s in zip(np.unravel_index(tap, window), steps, strict=True))
                value, at = w[start + (row + 64 * n) * k + own * c + place], tap
            if config.transposed:
                found[at, row // real * real + own, row % size] = value
            else:
                found[at, row, row % size // real * real + own] = value
    return found


def _store(target, plan, memory):
    """All tiles of a launch."""
    config, x = plan.kernel.config, plan.arguments[0]
    numbers = plan.arguments[6:]
    rows, pitch, tiles_m, tiles_n, outs = numbers[:5]
    steps, axes = numbers[16:20], [_axis(numbers[20 + 3 * i : 23 + 3 * i]) for i in range(3)]
    inner, window, size = [axes[0][0], axes[1][0], pitch], [a[2] for a in axes], max(config.real, 16)
    for n, m in np.ndindex(tiles_n, tiles_m):
        weights = _packed(memory, plan, config, window, n)
        *place, image = _unravel(m * 64, inner)
        starts = [p * a[3] - a[5] for p, a in zip(place, axes[::-1], strict=True)][: config.axes]
        sums = np.zeros((64, 64))
        for index, tap in enumerate(np.ndindex(*window)):
            offsets = [t * a[4] for t, a in zip(tap[::-1], axes[::-1], strict=True)][: config.axes]
            if config.across > 1:
                windows = _windows(memory, x, (n * 64, *starts, image), (0, *offsets[1:]))[offsets[0] : offsets[0] + 64]
            else:
                windows = _windows(memory, x, (n * 64, *starts, image), offsets)
            for first in range(0, 64, size):
                sums[:, first : first + size] += (
                    windows[:, first : first + size] @ weights[index, first : first + size].T
                )
        for i in range(min(64, rows - m * 64)):
            *place, image = _unravel(m * 64 + i, inner)
            if place[0] >= axes[2][0]:
                continue
            at = (
                plan.arguments[5].offset // 2
                + image * steps[0]
                + sum(p * s for p, s in zip(place[::-1], steps[1:], strict=True))
            )
            target[at + n * 64 : at + min(n * 64 + 64, outs)] = sums[i, : outs - n * 64]


def _problem(op, options, *specs):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.problem(bound, {k: v for k, v in chosen.items() if k in operation.static})


def _method(op):
    return next(a for a in ALGORITHMS[op] if a.name == "grouped_tma_sm90")


@pytest.mark.parametrize("dense", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("shared", [False, True], ids=["each_tap", "each_row"])
@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("case", _CASES)
def test_the_copy_engine_fetches_what_each_group_needs(case, transposed, shared, dense, monkeypatch):
    by_row = grouped_tma.shared_columns
    monkeypatch.setattr(grouped_tma, "shared_columns", by_row if shared else lambda g: None)
    if shared:  # where they can be, they are
        monkeypatch.setattr(grouped_tma, "_STAGE", 1.0)
    x_shape, w_shape, options = _CASES[case]
    order = (0, *range(2, len(x_shape)), 1)
    rng = np.random.default_rng(0)
    w_order = order if dense else range(len(order))
    w = _drawn(rng, w_shape, w_order)
    if not transposed:
        op, arrays, more = "conv", (_drawn(rng, x_shape, order), w), {}
    else:
        shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
        op, arrays, more = "conv_backward_input", (_drawn(rng, shape, order), w), {"input_shape": x_shape}
    expected = np.rint(
        getattr(dnn, op)(*arrays, **options, **more)
    )  # of whole numbers, which not every algorithm keeps
    problem = _problem(
        op, options | more, *(Spec(a.shape, "bfloat16", tuple(s // 8 for s in a.strides)) for a in arrays)
    )
    assert _method(op).rejects(problem, _DEVICE) is None
    memory = [np.ascontiguousarray(a.transpose(o)).ravel() for a, o in zip(arrays, (order, w_order), strict=True)]
    actual = np.full(expected.size, np.nan)
    for plan in _method(op).run(problem, _DEVICE, True).plans:
        if plan.kernel.source == "common/zero.cu":  # where no window reaches
            actual[:] = 0
            continue
        _store(actual, plan, memory)
    assert (actual == expected.transpose(order).ravel()).all()


@pytest.mark.parametrize(
    ("x", "w", "options", "reason"),
    [
        ((1, 64, 9, 9), (64, 16, 3, 3), {"groups": 4}, None),
        ((1, 64, 9, 9), (64, 4, 3, 3), {"groups": 16}, "4 and 4 channels"),
        ((1, 64, 20, 20), (64, 32, 9, 9), {"groups": 2}, "do not fit into shared memory"),
        ((1, 64, 9, 9), (32, 32, 3, 3), {"groups": 2}, "32 and 16 channels"),
        ((1, 16, 9, 9), (16, 16, 3, 3), {}, "several"),
        ((1, 64, 40, 40), (64, 16, 3, 3), {"groups": 4, "stride": 9}, "stride of 9"),
    ],
)
def test_what_is_not_taken(x, w, options, reason):
    found = _method("conv").rejects(_problem("conv", options, Spec(x, BFLOAT16), Spec(w, BFLOAT16)), _DEVICE)
    assert found is None if reason is None else reason in found


_WEIGHTS = {  # x, weight, options
    "halo": ((2, 64, 5, 6), (64, 16, 3, 3), {"groups": 4, "padding": ((1, 1), (2, 0))}),
    "halo-blocks": ((1, 128, 4, 7), (128, 32, 3, 3), {"groups": 4, "padding": 1, "flip": True}),
    "halo-3d": (
        (1, 64, 3, 4, 6),
        (64, 32, 2, 3, 3),
        {"groups": 2, "padding": ((1, 0), (1, 1), (2, 1)), "stride": (2, 1, 1)},
    ),
    "strided": ((2, 128, 9, 7), (128, 8, 3, 2), {"groups": 16, "stride": (2, 3), "padding": ((1, 0), (2, 3))}),
    "1d": ((2, 64, 90), (64, 32, 3), {"groups": 2, "dilation": 2}),
    "pointwise": ((1, 64, 9, 9), (64, 8, 1, 1), {"groups": 8}),
}


@pytest.mark.parametrize("case", _WEIGHTS)
def test_a_weight_gradient_keeps_what_is_of_one_group(case, monkeypatch):
    x_shape, w_shape, options = _WEIGHTS[case]
    monkeypatch.setattr(wgrad, "tma_split" if case.startswith("halo") else "halo_split", lambda *_: None)
    order, rng = (0, *range(2, len(x_shape)), 1), np.random.default_rng(0)
    y_shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
    arrays = [_drawn(rng, shape, order) for shape in (y_shape, x_shape)]
    expected = dnn.conv_backward_weight(
        *arrays, weight_shape=w_shape, algorithm="direct", **options
    )  # exact, unlike Winograd's
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
