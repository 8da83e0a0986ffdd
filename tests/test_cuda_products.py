"""Planning of convolutions and linear layers that needs no GPU: scratch memory, and problems that no kernel or product
can count."""

import itertools
import math
from dataclasses import replace

import pytest

from dnnarray._cuda.conv import ALGORITHMS, depthwise
from dnnarray._cuda.core.plan import MatMul, Plan
from dnnarray._cuda.loss import linear as loss_linear
from dnnarray._options import Options
from dnnarray._problems.base import leaves
from dnnarray._problems.conv import conv, conv_backward, conv_backward_weight
from dnnarray._problems.loss_linear import linear_cross_entropy, linear_cross_entropy_backward
from dnnarray._select import Device, choose
from dnnarray._spec import Spec

_PEAK = {"float32": 60e12, "float64": 30e12, "tf32_mma": 400e12, "float16_mma": 900e12, "bfloat16_mma": 900e12}
_DEVICE = Device("made-up H200", "cuda", 132, _PEAK, 4.2e12, 4e-6, (9, 0), 232_448)
_OPTIONS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "channels_first", "flip": False}


def _method(table, op, name):
    return next(m for m in table[op] if m.name == name)


def _end(step, matrix):
    """The byte behind the last one that a product uses of the array of `matrix`."""
    taken, dtype = getattr(step, matrix), step.result if matrix == "c" else step.dtype
    rows, columns = {"a": (step.m, step.k), "b": (step.k, step.n), "c": (step.m, step.n)}[matrix]
    rows, columns = (columns, rows) if taken.transposed else (rows, columns)
    return taken.array.offset + ((step.batch - 1) * taken.batch + (rows - 1) * taken.row + columns) * dtype.itemsize


def _check(method, problem, aligned):
    """All products stay inside of their arrays and of the scratch memory."""
    given = [*leaves(problem.inputs), *(s for s in problem.outputs if s is not None)]
    sizes = [*(s.nbytes for s in given), method.workspace(problem)]
    program = method.run(problem, _DEVICE, aligned)
    if aligned:  # the engine takes what planning has found
        assert program.workspace in (None, method.workspace(problem))
    for step in program.plans:
        for matrix in "abc" if isinstance(step, MatMul) else "":
            assert _end(step, matrix) <= sizes[getattr(step, matrix).array.index]


@pytest.mark.parametrize(("rows", "features"), [(300, 64), (8192, 1024), (16_384, 1024), (20_000, 64)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scratch_of_the_linear_cross_entropy(rows, features, dtype):
    """Each precision divides the classes its own way."""
    x, w, labels = Spec((rows, features), dtype), Spec((50_257, features), dtype), Spec((rows,), "int64")
    options = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
    forward = linear_cross_entropy("linear_cross_entropy", x, w, labels, None, None, return_lse=False, **options)
    grad = Spec((), dtype)
    backward = linear_cross_entropy_backward(
        "linear_cross_entropy_backward", grad, x, w, labels, None, None, None, None, **options
    )
    taped = linear_cross_entropy(
        "linear_cross_entropy", x, w, labels, None, None, return_lse=False, return_tape=True, **options
    )
    for problem, aligned in itertools.product((forward, backward, taped), (True, False)):
        for method in loss_linear.ALGORITHMS[problem.op]:
            if method.rejects(problem, _DEVICE) is None:
                _check(method, problem, aligned)


@pytest.mark.parametrize(
    ("shape", "dtype", "chosen"),
    [
        ((8192, 4096, 128_256), "bfloat16", "blocks_rounded"),
        ((8192, 4096, 128_256), "float16", "blocks_rounded"),
        ((200, 64, 1000), "bfloat16", "blocks"),
        ((512, 512, 8192), "float32", "blocks"),
        ((512, 512, 8192), "float64", "blocks"),
    ],
)
@pytest.mark.parametrize("saved", ["", "lse", "tape"])
def test_gradients_of_scores_are_rounded_where_that_gains_more_than_a_launch(shape, dtype, chosen, saved):
    rows, features, classes = shape
    arrays = Spec((), dtype), Spec((rows, features), dtype), Spec((classes, features), dtype), Spec((rows,), "int64")
    options = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
    lse = Spec((rows,), "float64" if dtype == "float64" else "float32") if saved == "lse" else None
    if saved == "tape":
        problem = linear_cross_entropy(
            "linear_cross_entropy", *arrays[1:], None, None, return_lse=False, return_tape=True, **options
        )
    else:
        problem = linear_cross_entropy_backward(
            "linear_cross_entropy_backward", *arrays, None, None, lse, None, **options
        )
    device = replace(_DEVICE, peak=_PEAK | {"float16": 900e12, "bfloat16": 900e12})
    methods = [m for m in loss_linear.ALGORITHMS[problem.op] if m.name in ("blocks", "blocks_rounded")]
    assert choose(problem, device, Options(), methods).name == chosen


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_convolutions_stay_inside_of_their_arrays(layout, window, dtype):
    def shape(batch, channels, *space):
        return (batch, channels, *space) if layout == "channels_first" else (batch, *space, channels)

    x, w = Spec(shape(5, 32, 9, 7), dtype), Spec(shape(24, 16, window, window), dtype)
    options = _OPTIONS | {"groups": 2, "layout": layout}
    grad = conv("conv", x, w, None, None, activation="gelu", **options).outputs[0]
    problem = conv_backward("conv_backward", grad, x, w, None, None, activation="gelu", **options)
    for method, aligned in itertools.product(ALGORITHMS["conv_backward"], (True, False)):
        if method.rejects(problem, _DEVICE) is None:
            _check(method, problem, aligned)


def test_windows_of_one_pixel_are_not_gathered():
    """The images are the columns: channels-last, for all of a batch."""
    x, grad = Spec((64, 56, 56, 256), "float32"), Spec((64, 56, 56, 64), "float32")
    options = _OPTIONS | {"layout": "channels_last"}
    method = _method(ALGORITHMS, "conv_backward_weight", "gemm")
    for dtype in ("float32", "float64"):
        images = [Spec(spec.shape, dtype) for spec in (grad, x)]
        problem = conv_backward_weight("conv_backward_weight", *images, weight_shape=(64, 1, 1, 256), **options)
        parts = 64 * 56 * 56 // 512 if dtype == "float32" else 0  # sums of 512 terms, which another launch adds up
        steps = method.run(problem, _DEVICE, True).plans
        assert method.workspace(problem) == parts * 4 * 64 * 256
        assert [type(step) for step in steps] == [MatMul, Plan][: 1 + (parts > 0)]
        assert parts == 0 or (steps[0].batch, steps[0].k) == (parts, 512)


def test_groups_under_scattered_weights_are_left_to_others():
    """Putting groups together is a copy of as many axes as a kernel takes."""
    x, shape = Spec((2, 128, 8, 8), "bfloat16"), (128, 4, 3, 3)
    method = _method(ALGORITHMS, "conv", "implicit_gemm_sm90")
    for strides, fits in ((None, True), ((1, 128, 512, 1536), False)):
        problem = conv(
            "conv", x, Spec(shape, "bfloat16", strides), None, None, activation=None, **_OPTIONS | {"groups": 32}
        )
        reason = method.rejects(problem, _DEVICE)
        assert (reason is None) == fits
        assert fits or "pieces" in reason


def test_extents_beyond_32_bits_are_left_to_others():
    wide = conv(
        "conv",
        Spec((1, 1, 1 << 16, 1 << 16), "float32"),
        Spec((1, 1, 1, 1), "float32"),
        None,
        None,
        activation=None,
        **_OPTIONS,
    )
    assert wide.outputs[0].size == 1 << 32
    assert "2147483648" in _method(ALGORITHMS, "conv", "gemm").rejects(wide, _DEVICE)
    far = _OPTIONS | {"stride": 1 << 20, "padding": [(0, (1 << 31) - 1)]}
    problem = conv(
        "conv", Spec((1, 1, 1 << 20), "float32"), Spec((1, 1, 3), "float32"), None, None, activation=None, **far
    )
    for method in ALGORITHMS["conv"]:
        assert method.rejects(problem, _DEVICE) is not None


@pytest.mark.parametrize("taps", [1 << 19, (1 << 19) - 8])
def test_a_grid_counts_the_taps_of_a_depthwise_window(taps):
    x, grad = Spec((1, 4, 1 << 20), "float32"), Spec((1, 4, (1 << 20) - taps + 1), "float32")
    problem = conv_backward_weight(
        "conv_backward_weight", grad, x, weight_shape=(4, 1, taps), **_OPTIONS | {"groups": 4}
    )
    method = _method(depthwise.METHODS, "conv_backward_weight", "depthwise")
    if method.rejects(problem, _DEVICE) is None:
        grids = [plan.grid for plan in method.run(problem, _DEVICE, True).plans]
        assert all(math.prod(grid[1:]) < 1 << 16 for grid in grids)
    else:
        assert taps == 1 << 19
