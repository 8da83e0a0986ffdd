"""The convolution family beside its cases: errors, NaN, every algorithm of every gradient, drawn options, PyTorch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu import threads
from tests.cases.conv import CASES
from tests.oracles import conv as oracle
from tests.support import FLOAT32, FLOAT64, assert_close, call_by, candidates


def _arrays(*shapes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


# --- gradients by every algorithm -------------------------------------------------------------------------------------


def _conv_gradient_cases():
    for case in CASES:
        if case.op == "conv" and "activation" not in case.options:
            yield case


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32], ids=str)
@pytest.mark.parametrize("case", list(_conv_gradient_cases()), ids=str)
def test_every_algorithm_of_the_gradients_agrees_with_the_oracle(case, dtype):
    x, weight, _, _ = case.draw(dtype)
    options = case.options
    grad = _arrays(dnn.infer("conv", x, weight, **options).output.shape, dtype=dtype)[0]
    wide = [a.astype(np.float64) for a in (grad, x, weight)]
    dx = oracle.conv_backward_input(wide[0], wide[2], input_shape=x.shape, **options)
    dw = oracle.conv_backward_weight(wide[0], wide[1], weight_shape=weight.shape, **options)
    reduction = max(grad.size, 1)
    for a in dnn.algorithms("conv_backward_input", grad, weight, input_shape=x.shape, **options):
        got = dnn.conv_backward_input(grad, weight, input_shape=x.shape, algorithm=a.name, **options)
        assert_close(got, dx, reduction, note=a.name)
    for a in dnn.algorithms("conv_backward_weight", grad, x, weight_shape=weight.shape, **options):
        got = dnn.conv_backward_weight(grad, x, weight_shape=weight.shape, algorithm=a.name, **options)
        assert_close(got, dw, reduction, note=a.name)
    for a in dnn.algorithms("conv_backward", grad, x, weight, **options):
        got = dnn.conv_backward(grad, x, weight, algorithm=a.name, **options)
        assert_close(got.x, dx, reduction, note=a.name)
        assert_close(got.weight, dw, reduction, note=a.name)
        assert got.bias is None


@pytest.mark.parametrize("case", [c for c in CASES if c.op == "conv_transpose"], ids=str)
def test_every_algorithm_of_the_transposed_gradients_agrees_with_the_default(case):
    arrays = case.draw()
    grad = _arrays(dnn.infer("conv_transpose", *arrays, **case.options).output.shape)[0]
    expected = dnn.conv_transpose_backward(grad, *arrays, **case.options)
    for a in dnn.algorithms("conv_transpose_backward", grad, *arrays, **case.options):
        got = dnn.conv_transpose_backward(grad, *arrays, algorithm=a.name, **case.options)
        for g, e in zip(got, expected, strict=True):
            assert (g is None) == (e is None)
            if e is not None:
                assert_close(g, e, max(grad.size, 1), note=a.name)


def test_gradients_come_in_their_named_tuples():
    x, weight, bias, residual, grad = _arrays((1, 2, 4), (3, 2, 2), (3,), (1, 3, 3), (1, 3, 3))
    plain = dnn.conv_backward(grad, x, weight, bias)
    assert type(plain) is dnn.ConvGradients
    assert plain._fields == ("x", "weight", "bias")
    full = dnn.conv_backward(grad, x, weight, bias, residual=residual)
    assert type(full) is dnn.ConvResidualGradients
    assert full._fields == ("x", "weight", "bias", "residual")
    np.testing.assert_array_equal(full.residual, grad)


# --- drawn shapes and options -----------------------------------------------------------------------------------------


@st.composite
def _problems(draw):
    rank = draw(st.integers(1, 3))
    sizes = st.tuples(*[st.integers(1, 3)] * rank)
    window = draw(st.tuples(*[st.integers(1, 4 if rank < 3 else 3)] * rank))
    stride, dilation = draw(sizes), draw(sizes)
    pads = draw(st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * rank))
    least = [max((w - 1) * d + 1 - sum(p), 1) for w, d, p in zip(window, dilation, pads, strict=True)]
    space = tuple(m + draw(st.integers(0, 9 if rank < 3 else 4)) for m in least)
    groups, c, k, n = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    layout = draw(st.sampled_from(["channels_first", "channels_last"]))
    x, weight = (n, groups * c, *space), (groups * k, c, *window)
    if layout == "channels_last":
        x, weight = (n, *space, groups * c), (groups * k, *window, c)
    options = {
        "stride": stride,
        "dilation": dilation,
        "padding": pads,
        "groups": groups,
        "layout": layout,
        "flip": draw(st.booleans()),
    }
    return x, weight, options


@settings(max_examples=60, deadline=None)
@given(_problems())
def test_any_problem_by_every_algorithm(problem):
    x_shape, weight_shape, options = problem
    x, weight = _arrays(x_shape, weight_shape)
    expected = oracle.conv(x, weight, **options)
    (grad,) = _arrays(expected.shape, seed=1)
    dx = oracle.conv_backward_input(grad, weight, input_shape=x_shape, **options)
    dw = oracle.conv_backward_weight(grad, x, weight_shape=weight_shape, **options)
    for a in dnn.algorithms("conv", x, weight, **options):
        _near(dnn.conv(x, weight, algorithm=a.name, **options), expected, x, weight, a.name)
    for a in dnn.algorithms("conv_backward", grad, x, weight, **options):
        got = dnn.conv_backward(grad, x, weight, algorithm=a.name, **options)
        _near(got.x, dx, grad, weight, a.name)
        _near(got.weight, dw, grad, x, a.name)


def _near(actual, expected, first, second, note):
    """float64 to 1e-12 of the product of the factors' norms, which bounds every sum: transforms err by it where outputs
    are 0, too."""
    scale = np.linalg.norm(first) * np.linalg.norm(second)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12 * scale, err_msg=note)


@settings(max_examples=40, deadline=None)
@given(_problems(), st.data())
def test_any_transposed_problem(problem, data):
    grad_shape, weight_shape, options = problem
    options = {n: v for n, v in options.items() if n != "flip"}
    rank = len(options["stride"])
    out = oracle.conv(np.zeros(grad_shape), np.zeros(weight_shape), **options).shape
    limits = [max(s, d) - 1 for s, d in zip(options["stride"], options["dilation"], strict=True)]
    extra = tuple(data.draw(st.integers(0, limit)) for limit in limits)
    covered = [(w - 1) * d + 1 for w, d in zip(_space(weight_shape, options), options["dilation"], strict=True)]
    sizes = zip(_space(out, options), options["stride"], covered, options["padding"], extra, strict=True)
    options["output_padding"] = extra
    x, weight = _arrays(out, weight_shape)
    if any((n - 1) * s + w - sum(p) + e < 1 for n, s, w, p, e in sizes):
        with pytest.raises(dnn.ShapeError, match="output of 1 or more"):
            dnn.conv_transpose(x, weight, **options)
        return
    expected = oracle.conv_transpose(x, weight, **options)
    assert expected.ndim == rank + 2
    for a in dnn.algorithms("conv_transpose", x, weight, **options):
        _near(dnn.conv_transpose(x, weight, algorithm=a.name, **options), expected, x, weight, a.name)


def _space(shape, options):
    return shape[2:] if options["layout"] == "channels_first" else shape[1:-1]


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}, {"stride": 3, "padding": 2, "dilation": 2}],
    ids=str,
)
def test_convolution_and_its_gradients_are_those_of_pytorch(rank, options):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    groups = options.get("groups", 1)
    x, weight, bias = _arrays((2, 4, *(9, 8, 7)[:rank]), (6, 4 // groups, *(3, 2, 3)[:rank]), (6,))
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    expected = getattr(torch.nn.functional, f"conv{rank}d")(*leaves, **options)
    actual = getattr(dnn, f"conv{rank}d")(x, weight, bias, **options)
    assert_close(actual, expected.detach().numpy(), weight[0].size)
    (grad,) = _arrays(actual.shape)
    expected.backward(torch.from_numpy(grad))
    for a, e in zip(dnn.conv_backward(grad, x, weight, bias, **options), leaves, strict=True):
        assert_close(a, e.grad.numpy(), grad.size)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2, "groups": 2},
        {"stride": 2, "dilation": 3, "output_padding": 2},
    ],
    ids=str,
)
def test_transposed_convolution_is_that_of_pytorch(rank, options):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight = _arrays((2, 4, *(5, 4, 3)[:rank]), (4, 3, *(3, 4, 3)[:rank]))
    (bias,) = _arrays((3 * options.get("groups", 1),))
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight, bias)]
    expected = getattr(torch.nn.functional, f"conv_transpose{rank}d")(*leaves, **options)
    actual = getattr(dnn, f"conv_transpose{rank}d")(x, weight, bias, **options)
    assert_close(actual, expected.detach().numpy(), weight.size)
    (grad,) = _arrays(actual.shape)
    expected.backward(torch.from_numpy(grad))
    for a, e in zip(dnn.conv_transpose_backward(grad, x, weight, bias, **options), leaves, strict=True):
        assert_close(a, e.grad.numpy(), grad.size)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": (1, 2), "padding": (2, 0)}], ids=str)
def test_unfold_and_fold_are_those_of_pytorch(options):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (x,) = _arrays((2, 3, 7, 8))
    columns = dnn.unfold(x, (3, 2), **options)
    np.testing.assert_array_equal(columns, torch.nn.functional.unfold(torch.from_numpy(x), (3, 2), **options).numpy())
    expected = torch.nn.functional.fold(torch.from_numpy(columns), (7, 8), (3, 2), **options).numpy()
    assert_close(dnn.fold(columns, (7, 8), (3, 2), **options), expected, 6)


def test_unfold_makes_a_convolution_of_a_matrix_product():
    x, weight = _arrays((2, 3, 6, 5), (4, 3, 3, 2))
    assert_close(weight.reshape(4, -1) @ dnn.unfold(x, (3, 2)), dnn.conv(x, weight).reshape(2, 4, -1), 18)
    last, weight_last = np.moveaxis(x, 1, -1), np.moveaxis(weight, 1, -1)
    product = dnn.unfold(last, (3, 2), layout="channels_last") @ weight_last.reshape(4, -1).T
    assert_close(product, dnn.conv(last, weight_last, layout="channels_last").reshape(2, -1, 4), 18)


# --- memory, numerics, values -----------------------------------------------------------------------------------------


def test_channels_last_memory_stays_channels_last():
    x, weight = _arrays((2, 6, 5, 3), (4, 3, 3, 3))
    x = np.moveaxis(x, -1, 1)
    y = dnn.conv(x, weight)
    assert np.moveaxis(y, 1, -1).flags.c_contiguous
    dx = dnn.conv_backward_input(y, weight, input_shape=x.shape)
    assert np.moveaxis(dx, 1, -1).flags.c_contiguous
    assert_close(y, oracle.conv(x, weight), 27)


_ORDERS = {"first": (0, 1, 2, 3), "last": (0, 2, 3, 1), "columns": (0, 1, 3, 2)}


def _lying(array, order):
    """The values in memory whose axes lie in this order, from the slowest on."""
    return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))


def _spec(array):
    return dnn.Spec(array.shape, array.dtype, tuple(s // array.itemsize for s in array.strides))


@pytest.mark.parametrize("of_grad", ["first", "last"])
@pytest.mark.parametrize("of_x", _ORDERS)
@pytest.mark.parametrize(
    ("shape", "groups"), [((16, 8, 3, 3), 1), ((8, 1, 3, 2), 8), ((1, 8, 3, 3), 1), ((6, 4, 7, 6), 2)], ids=str
)
def test_single_gradients_lie_as_the_caller_says(shape, groups, of_x, of_grad):
    """A Spec in the place of a shape: the gradient in the memory order of its array, whatever the order of what it is
    made from."""
    rng = np.random.default_rng(3)
    x, w = (
        _lying(rng.standard_normal((2, 8, 7, 6)), _ORDERS[of_x]),
        _lying(rng.standard_normal(shape), _ORDERS[of_grad]),
    )
    grad = _lying(rng.standard_normal(dnn.conv(x, w, groups=groups).shape), _ORDERS[of_grad])
    expected = dnn.conv_backward(grad, x, w, groups=groups)
    for op, arrays, options, right, like in (
        ("conv_backward_input", (grad, w), {"input_shape": _spec(x)}, expected.x, x),
        ("conv_backward_weight", (grad, x), {"weight_shape": _spec(w)}, expected.weight, w),
    ):
        options["groups"] = groups
        for name in candidates(op, arrays, options):
            found = call_by(name, op, arrays, options)
            assert_close(found, right, 200, note=name)
            assert found.strides == like.strides, (op, name)
        assert dnn.infer(op, *arrays, **options).output.strides == _spec(like).strides


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("width", [1, 5])
def test_images_of_one_channel_stay_channels_last(channels, width):
    """An axis of extent 1 has a stride of no meaning: it must not come to stand between the axes of space."""
    x = np.ones((2, 7, width, channels)).transpose(0, 3, 1, 2)
    y = dnn.conv(x, np.ones((4, channels, 3, 3)), padding=1)
    assert y.strides == np.empty((2, 7, width, 4)).transpose(0, 3, 1, 2).strides
    grad = np.ones((2, 7, width, 1)).transpose(0, 3, 1, 2)
    dx = dnn.conv_backward_input(grad, np.ones((1, 4, 3, 3)), input_shape=(2, 4, 7, width), padding=1)
    assert dx.strides == y.strides
    assert dnn.max_pool(x, (3, 1), stride=1, padding=(1, 0)).strides == x.strides
    first = dnn.conv(np.ones((2, 1, 7, width)), np.ones((4, 1, 3, 3)), padding=1)
    assert first.flags.c_contiguous


def test_a_spec_that_fits_no_convolution_is_refused():
    grad, w = np.ones((2, 4, 5, 4)), np.ones((4, 8, 3, 3))
    with pytest.raises(
        dnn.DTypeError, match="conv_backward_input: weight is float64; expected float32, the dtype of input_shape"
    ):
        dnn.conv_backward_input(grad, w, input_shape=dnn.Spec((2, 8, 7, 6), "float32"))
    with pytest.raises(dnn.ShapeError, match="conv_backward_weight"):
        dnn.conv_backward_weight(grad, np.ones((2, 8, 7, 6)), weight_shape=dnn.Spec((4, 3, 3, 3), "float64"))


@pytest.mark.parametrize("algorithm", ["direct", "implicit_gemm", "gemm", "winograd", "fft", "fft_tiled"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_many_blocks_give_the_same_as_one(algorithm, layout):
    """Large enough that every algorithm cuts images, rows and tiles into several blocks with a smaller last one."""
    x, weight = _arrays((3, 24, 131, 121), (20, 24, 3, 3), dtype=np.float32)
    if layout == "channels_last":
        x, weight = np.moveaxis(x, 1, -1).copy(), np.moveaxis(weight, 1, -1).copy()
    torch = pytest.importorskip("torch", reason="torch is not installed")
    first = [torch.from_numpy(oracle._first(a, layout).astype(np.float64)) for a in (x, weight)]
    expected = oracle._back(torch.nn.functional.conv2d(*first, padding=1).numpy(), layout)
    assert_close(dnn.conv(x, weight, padding=1, layout=layout, algorithm=algorithm), expected, 216)


def test_winograd_is_as_exact_as_the_direct_sum():
    """Its class is "highest": the float32 error stays within four times that of the direct sum."""
    x, weight = _arrays((2, 64, 20, 20), (32, 64, 3, 3), dtype=np.float32)
    exact = dnn.conv(x.astype(np.float64), weight.astype(np.float64), padding=1, algorithm="direct")
    errors = {
        a: np.abs(dnn.conv(x, weight, padding=1, algorithm=a) - exact).max()
        for a in ("direct", "winograd", "fft", "fft_tiled")
    }
    assert max(errors.values()) <= 4 * errors["direct"], errors


def test_scratch_stays_bounded():
    x, weight = dnn.Spec((64, 64, 512, 512), "float32"), dnn.Spec((64, 64, 3, 3), "float32")
    for a in dnn.algorithms("conv", x, weight, padding=1):
        assert a.workspace < max(40e6 + 1e6 * threads.cores(), 10e6 * threads.count()), (
            a
        )  # a block for each thread that works
    with pytest.raises(dnn.UnsupportedError, match="bounded scratch memory"):
        dnn.infer("conv", x, weight, padding=1, algorithm="fft")
    smallest = min(a.workspace for a in dnn.algorithms("conv", x, weight, padding=1))
    with dnn.options(workspace_limit=smallest):
        assert all(a.workspace <= smallest for a in dnn.algorithms("conv", x, weight, padding=1))


def test_large_depthwise_windows_go_by_spectra_and_pixels_by_products():
    def best(x, weight, **options):
        ranked = dnn.algorithms("conv", dnn.Spec(x, "float32"), dnn.Spec(weight, "float32"), **options)
        return next(
            a.name
            for a in ranked
            if a.name not in ("shifted", "channel_lanes", "winograd_4x4", "split_gemm", "split_shifted")
        )  # which are there once they are compiled

    assert best((2, 96, 56, 56), (96, 1, 31, 31), groups=96, padding=15) in ("fft", "fft_tiled")
    assert best((8, 64, 56, 56), (256, 64, 1, 1)) == "gemm"
    assert best((8, 64, 56, 56), (64, 64, 3, 3), padding=1) in ("gemm", "implicit_gemm", "winograd")
    assert best((8, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3) in ("gemm", "implicit_gemm")


# --- errors -----------------------------------------------------------------------------------------------------------

_X, _W = (2, 4, 6, 5), (6, 4, 3, 3)


@pytest.mark.parametrize(
    ("x", "weight", "options", "error", "words"),
    [
        ((4, 6), (6, 4), {}, dnn.ShapeError, "conv: x is 2-dimensional"),
        ((1, 2, 3, 4, 5, 6), _W, {}, dnn.ShapeError, "conv: x is 6-dimensional"),
        (_X, (6, 4, 3), {}, dnn.ShapeError, "conv: weight is 3-dimensional"),
        (_X, (6, 3, 3, 3), {}, dnn.ShapeError, r"conv: weight is of shape \(6, 3, 3, 3\); expected \(6, 4, 3, 3\)"),
        (_X, (6, 4, 0, 3), {}, dnn.ShapeError, "a window of 1 or more"),
        (_X, (6, 4, 7, 3), {}, dnn.ShapeError, "conv: x is 6 long on spatial axis 0.*expected 7 or more"),
        (_X, _W, {"dilation": 4}, dnn.ShapeError, "expected 9 or more"),
        (_X, _W, {"stride": 0}, dnn.OptionError, "conv: stride is 0"),
        (_X, _W, {"stride": (1, 2, 3)}, dnn.OptionError, "conv: stride"),
        (_X, _W, {"dilation": 0}, dnn.OptionError, "conv: dilation is 0"),
        (_X, _W, {"padding": -1}, dnn.OptionError, "conv: padding is -1"),
        (_X, _W, {"padding": "full"}, dnn.OptionError, "conv: padding is 'full'"),
        (_X, _W, {"padding": ((1, 2),)}, dnn.OptionError, "conv: padding"),
        (_X, _W, {"groups": 3}, dnn.OptionError, "conv: groups is 3; expected a divisor of the 4 channels of x"),
        (_X, (5, 2, 3, 3), {"groups": 2}, dnn.OptionError, "a divisor of the 5 output channels"),
        (_X, _W, {"groups": 0}, dnn.OptionError, "conv: groups is 0"),
        (_X, _W, {"layout": "NCHW"}, dnn.OptionError, "conv: layout is 'NCHW'"),
        (_X, _W, {"activation": "softplux"}, dnn.OptionError, "conv: activation is 'softplux'"),
        (_X, _W, {"flip": 1}, dnn.OptionError, "conv: flip is 1"),
        (_X, _W, {"bias": (5,)}, dnn.ShapeError, r"conv: bias is of shape \(5,\); expected \(6,\)"),
        (_X, _W, {"residual": (2, 6, 6, 5)}, dnn.ShapeError, "conv: residual is of shape .* the shape of the output"),
        (_X, _W, {"algorithm": "magic"}, dnn.OptionError, "conv: algorithm is 'magic'"),
        (_X, _W, {"algorithm": "depthwise"}, dnn.UnsupportedError, "a group has 4 input channels"),
        (_X, _W, {"algorithm": "winograd", "stride": 2}, dnn.UnsupportedError, "stride 1 only"),
        (_X, (6, 4, 2, 3), {"algorithm": "winograd"}, dnn.UnsupportedError, "not 3x3"),
        (_X, _W, {"algorithm": "winograd", "dilation": 2}, dnn.UnsupportedError, "dilation 1 only|expected 5"),
        (_X, (6, 4, 1, 1), {"algorithm": "implicit_gemm"}, dnn.UnsupportedError, "one pixel"),
        (_X, (6, 4, 1, 1), {"algorithm": "fft"}, dnn.UnsupportedError, "nothing to transform"),
        (_X, _W, {"algorithm": "fft_tiled"}, dnn.UnsupportedError, "no larger than one tile"),
    ],
)
def test_wrong_arguments_are_named(x, weight, options, error, words):
    options = {n: np.zeros(v) if n in ("bias", "residual") else v for n, v in options.items()}
    with pytest.raises(error, match=words):
        dnn.conv(np.zeros(x), np.zeros(weight), **options)


def test_dtypes_must_agree_and_float():
    with pytest.raises(dnn.DTypeError, match="conv: x is int64"):
        dnn.conv(np.zeros(_X, np.int64), np.zeros(_W, np.int64))
    with pytest.raises(dnn.DTypeError, match="conv: weight is float32; expected float64"):
        dnn.conv(np.zeros(_X), np.zeros(_W, np.float32))
    with pytest.raises(dnn.DTypeError, match="conv_transpose: bias is float32"):
        dnn.conv_transpose(np.zeros((1, 6, 2)), np.zeros((6, 2, 3)), np.zeros(2, np.float32))
    with pytest.raises(dnn.DTypeError, match="unfold: x is int64"):
        dnn.unfold(np.zeros(_X, np.int64), 2)
    with pytest.raises(dnn.DTypeError, match="fold: x is int64"):
        dnn.fold(np.zeros((1, 4, 4), np.int64), 3, 2)
    with pytest.raises(dnn.DTypeError, match="conv_backward_input: grad is int64"):
        dnn.conv_backward_input(np.zeros((1, 6, 4), np.int64), np.zeros((6, 2, 1), np.int64), input_shape=(1, 2, 4))


@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
def test_ranked_names_check_the_rank(op):
    for rank in (1, 2, 3):
        x, weight = np.zeros((1, 2, *(3,) * rank)), np.zeros((2, 2, *(2,) * rank))
        assert getattr(dnn, f"{op}{rank}d")(x, weight).ndim == rank + 2
        with pytest.raises(dnn.ShapeError, match=f"{op}{rank % 3 + 1}d: x is {rank + 2}-dimensional"):
            getattr(dnn, f"{op}{rank % 3 + 1}d")(x, weight)


def test_wrong_gradients_and_shapes_are_named():
    grad, x, weight = np.zeros((2, 6, 4, 3)), np.zeros(_X), np.zeros(_W)
    with pytest.raises(dnn.ShapeError, match="conv_backward: grad is of shape"):
        dnn.conv_backward(grad[..., 1:], x, weight)
    with pytest.raises(dnn.ShapeError, match="conv_backward_input: grad is of shape"):
        dnn.conv_backward_input(grad, weight, input_shape=(2, 4, 7, 5))
    with pytest.raises(dnn.OptionError, match="conv_backward_input: input_shape is 5"):
        dnn.conv_backward_input(grad, weight, input_shape=5)
    with pytest.raises(dnn.ShapeError, match="conv_backward_input: weight is 4-dimensional"):
        dnn.conv_backward_input(grad, weight, input_shape=(2, 4, 6))
    with pytest.raises(dnn.ShapeError, match="conv_backward_weight: weight_shape is of shape"):
        dnn.conv_backward_weight(grad, x, weight_shape=(6, 3, 3, 3))
    with pytest.raises(dnn.DTypeError, match="conv_backward: grad is float32"):
        dnn.conv_backward(grad.astype(np.float32), x, weight)
    with pytest.raises(dnn.ShapeError, match="conv_transpose_backward: grad is of shape"):
        dnn.conv_transpose_backward(np.zeros((1, 2, 5)), np.zeros((1, 3, 3)), np.zeros((3, 2, 2)))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"output_padding": 1}, dnn.OptionError, "conv_transpose: output_padding is 1; expected less than the stride"),
        ({"padding": "same", "stride": 2, "output_padding": 1}, dnn.OptionError, "0 beside padding='same'"),
        ({"padding": 3}, dnn.ShapeError, "conv_transpose: x is of spatial shape .* output of 1 or more"),
        ({"groups": 2}, dnn.OptionError, "conv_transpose: groups is 2"),
    ],
)
def test_wrong_transposed_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        dnn.conv_transpose(np.zeros((1, 3, 4)), np.zeros((3, 2, 2)), **options)
    with pytest.raises(dnn.ShapeError, match=r"conv_transpose: weight is of shape"):
        dnn.conv_transpose(np.zeros((1, 3, 4)), np.zeros((4, 2, 2)))


def test_wrong_unfold_and_fold_arguments_are_named():
    x = np.zeros((1, 8, 9))
    with pytest.raises(dnn.ShapeError, match="unfold: x is 2-dimensional"):
        dnn.unfold(np.zeros((3, 3)), 2)
    with pytest.raises(dnn.ShapeError, match="unfold: x is 3 long on spatial axis 0"):
        dnn.unfold(np.zeros((1, 1, 3)), 4)
    with pytest.raises(dnn.OptionError, match="unfold: kernel_size is 0"):
        dnn.unfold(np.zeros((1, 1, 3)), 0)
    with pytest.raises(dnn.ShapeError, match=r"fold: x is of shape \(1, 8, 9\); expected \(1, 8, 16\)"):
        dnn.fold(x, 5, 2)
    with pytest.raises(dnn.ShapeError, match="a multiple of the 9 elements"):
        dnn.fold(x, 5, 3)
    with pytest.raises(dnn.ShapeError, match="fold: x is 4-dimensional"):
        dnn.fold(x[None], 4, 2)
    with pytest.raises(dnn.OptionError, match="fold: kernel_size"):
        dnn.fold(x, (4, 4), (2, 2, 2))
    with pytest.raises(dnn.ShapeError, match="fold: output_size is 1 long"):
        dnn.fold(x, 1, 2)
    with pytest.raises(dnn.ShapeError, match="unfold_backward: grad is of shape"):
        dnn.unfold_backward(x, np.zeros((1, 2, 5, 5)), 2)
    with pytest.raises(dnn.ShapeError, match="fold_backward: grad is of shape"):
        dnn.fold_backward(np.zeros((1, 2, 5, 5)), x, 4, 2)


# --- several blocks, any output memory --------------------------------------------------------------------------------

_LARGE = [
    ((3, 24, 131, 61), (20, 24, 3, 3), {"padding": 1}),
    ((3, 24, 131, 61), (20, 12, 3, 2), {"padding": 1, "stride": 2, "groups": 2}),
    ((5, 40, 90, 50), (80, 1, 3, 3), {"padding": 1, "groups": 40}),
    ((2, 8, 20, 40, 30), (8, 8, 3, 3, 3), {"padding": 1}),
    ((2, 8, 70000), (8, 8, 5), {"padding": 2}),
]


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(("x", "weight", "options"), _LARGE, ids=str)
def test_forward_and_gradients_of_many_blocks_are_those_of_pytorch(x, weight, options, layout):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight = _arrays(x, weight)
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, weight)]
    result = getattr(torch.nn.functional, f"conv{x.ndim - 2}d")(*leaves, **options)
    (grad,) = _arrays(result.shape, seed=1)
    result.backward(torch.from_numpy(grad))
    expected = [oracle._back(a.numpy(), layout) for a in (result.detach(), leaves[0].grad, leaves[1].grad)]
    x, weight, grad = (np.ascontiguousarray(oracle._back(a, layout)) for a in (x, weight, grad))
    for a in dnn.algorithms("conv", x, weight, layout=layout, **options):
        _near(dnn.conv(x, weight, layout=layout, algorithm=a.name, **options), expected[0], x, weight, a.name)
    for a in dnn.algorithms("conv_backward", grad, x, weight, layout=layout, **options):
        got = dnn.conv_backward(grad, x, weight, layout=layout, algorithm=a.name, **options)
        _near(got.x, expected[1], grad, weight, a.name)
        _near(got.weight, expected[2], grad, x, a.name)


@pytest.mark.parametrize("groups", [1, 4])
def test_any_output_memory_by_every_algorithm(groups):
    """Strided, reversed, Fortran-ordered and unaligned results, written by each algorithm."""
    x, weight = _arrays((2, 4, 18, 17), (8, 4 // groups, 3, 3))
    expected = oracle.conv(x, weight, padding=1, groups=groups)
    raw = np.zeros(expected.nbytes + 1, np.uint8)
    memories = [
        np.zeros((*expected.shape[:3], 2 * expected.shape[3]))[..., ::2],
        np.zeros(expected.shape)[:, ::-1, :, ::-1],
        np.asfortranarray(np.zeros(expected.shape)),
        raw[1:].view(np.float64).reshape(expected.shape),
    ]
    for a in dnn.algorithms("conv", x, weight, padding=1, groups=groups):
        for out in memories:
            out[...] = np.nan
            assert dnn.conv(x, weight, padding=1, groups=groups, algorithm=a.name, out=out) is out
            _near(out, expected, x, weight, a.name)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("algorithm", ["winograd", "fft", "fft_tiled", "direct", "gemm", "implicit_gemm"])
def test_nan_and_infinity_stay_where_the_definition_puts_them(algorithm, bad):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 200, 200)), rng.standard_normal((2, 2, 3, 3))
    x[0, 1, 20, 21] = bad
    touched = ~np.isfinite(dnn.conv(x, w, algorithm=algorithm))
    expected = np.zeros((1, 2, 198, 198), bool)
    expected[:, :, 18:21, 19:22] = True
    np.testing.assert_array_equal(touched, expected)


def test_a_stride_far_beyond_the_window_costs_no_more_phases_than_taps():
    shape = (2**31 - 1) * 2 + 3
    inferred = dnn.infer(
        "conv_transpose", dnn.Spec((1, 1, 3), "float32"), dnn.Spec((1, 1, 3), "float32"), stride=2**31 - 1
    )
    assert inferred.output.shape == (1, 1, shape)


@pytest.mark.parametrize(("window", "stride", "dilation"), [(1, 3, 1), (2, 5, 2), (3, 4, 2), (3, 7, 3), (4, 6, 4)])
def test_elements_that_no_tap_meets_have_gradient_0(window, stride, dilation):
    x = np.random.default_rng(0).standard_normal((2, 3, 31))
    w = np.random.default_rng(1).standard_normal((4, 3, window))
    options = {"stride": stride, "dilation": dilation, "padding": 1}
    grad = np.ones(dnn.conv(x, w, **options).shape)
    out = np.full(x.shape, np.nan)
    dnn.conv_backward_input(grad, w, input_shape=x.shape, out=out, **options)
    expected = np.zeros((2, 3, 33))
    for p in range(grad.shape[2]):
        for r in range(window):
            expected[:, :, p * stride + r * dilation] += w[:, :, r].sum(0)
    np.testing.assert_allclose(out, expected[:, :, 1:-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", [3, b"gemm", np.array([1, 2])], ids=repr)
def test_algorithm_is_a_name(wrong):
    with pytest.raises(dnn.OptionError, match="conv: algorithm is"):
        dnn.conv(np.ones((1, 1, 4)), np.ones((1, 1, 2)), algorithm=wrong)


def test_infer_takes_arrays_as_options_as_the_call_does():
    x, w = dnn.Spec((1, 1, 4, 4), "float32"), dnn.Spec((1, 1, 2, 2), "float32")
    assert dnn.infer("conv_transpose", x, w, padding=np.array([1, 0])).output.shape == (1, 1, 3, 5)


def test_a_named_algorithm_without_gradients_leaves_them_to_the_others():
    x, w, grad = np.ones((1, 2, 8, 8)), np.ones((3, 2, 3, 3)), np.ones((1, 3, 6, 6))
    _, pullback = dnn.vjp("conv", x, w, algorithm="winograd")
    expected = dnn.conv_backward(grad, x, w)
    for got, want in zip(pullback(grad), expected[:2], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    with pytest.raises(dnn.ShapeError, match="conv_backward: grad is"):
        pullback(grad[:, :, 1:])


def test_padding_that_no_memory_can_hold_is_a_workspace_error():
    with pytest.raises(dnn.WorkspaceError, match="conv: the workspace is of "):
        dnn.conv(np.ones((1, 2, 6, 5)), np.ones((3, 2, 3, 3)), padding=2**31 - 1, stride=2**31 - 1)
