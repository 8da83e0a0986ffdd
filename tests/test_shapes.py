"""A `Spec` in the place of an array of which no value is read: what a gradient takes the shape of alone."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.arrays import spec_of
from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import FLOAT32
from tests.registry import CASES
from tests.stage import new_candidates, new_cases
from tests.support import call_by, flat

# The arrays whose shape is all that a gradient ever takes.
_NEVER_READ = {
    "adaptive_avg_pool_backward": "x",
    "affine_grid_backward": "theta",
    "avg_pool_backward": "x",
    "channel_shuffle_backward": "x",
    "conv_backward": "bias",
    "conv_transpose_backward": "bias",
    "dropout_backward": "x",
    "embedding_backward": "weight",
    "fold_backward": "x",
    "interpolate_backward": "x",
    "linear_backward": "bias",
    "max_unpool_backward": "x",
    "nll_loss_backward": "log_probs",
    "pixel_shuffle_backward": "x",
    "pixel_unshuffle_backward": "x",
    "roi_align_backward": "x",
    "unfold_backward": "x",
}


def gradient_call(case, dtype, kept, place=np.asarray):
    """The backward call of a case, arrays in signature order: with what the forward keeps, or as a user calls it by
    hand."""
    arrays = tuple(tree_map(place, a) for a in case.draw(dtype))
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    backward = pullback.plan.backward
    head = output[0] if isinstance(output, tuple) else output
    grad = place(np.random.default_rng(0).standard_normal(head.shape).astype(head.dtype))
    if isinstance(output, tuple) and "grad" in backward.nested:
        grad = (grad, *(None,) * (len(output) - 1))
    if kept:
        return backward, (grad, *pullback.arrays), {n: v for n, v in pullback.options.items() if n in backward.defaults}
    bound, options = find(case.op).bind(arrays, case.options)
    given = dict(zip(find(case.op).arrays, bound, strict=True)) | options
    (_, *others), rest = backward.bind(
        (None,), {n: v for n, v in given.items() if n in backward.arrays or n in backward.defaults}
    )
    return backward, (grad, *others), rest


def _problem(backward, arrays, options):
    specs = tuple(tree_map(spec_of, a) for a in arrays)
    return backward.problem(specs, {n: v for n, v in options.items() if n in backward.static})


def described(backward, arrays, options):
    """The arrays with a `Spec` for each that is not read."""
    unread = _problem(backward, arrays, options).unread
    return tuple(tree_map(spec_of, a) if i in unread else a for i, a in enumerate(arrays))


@pytest.mark.parametrize("kept", [False, True], ids=["by_hand", "kept"])
@pytest.mark.parametrize("case", [c for c in new_cases(CASES) if c.gradient], ids=str)
def test_a_spec_stands_for_what_is_not_read(case, kept):
    """The same bits by every algorithm, in memory of another order too."""
    dtype = FLOAT32 if FLOAT32 in case.dtypes else case.dtypes[0]
    backward, arrays, options = gradient_call(case, dtype, kept)
    specs = described(backward, arrays, options)
    if not any(isinstance(leaf, dnn.Spec) for leaf in leaves(specs)):
        return
    for algorithm in new_candidates(backward.name, arrays, options):
        expected = call_by(algorithm, backward.name, arrays, options)
        found = call_by(algorithm, backward.name, specs, options)
        for a, b in zip(flat(found), flat(expected), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.strides == b.strides


@pytest.mark.parametrize(("name", "array"), _NEVER_READ.items())
def test_gradients_that_take_a_shape_alone(name, array):
    """In every case where nothing is fused behind the operation."""
    place = find(name).arrays.index(array)
    found = [
        _problem(*gradient_call(c, c.dtypes[0], False))
        for c in CASES
        if c.gradient and f"{find(c.op).base}_backward" == name
    ]
    plain = [p for p in found if getattr(p, "activation", None) is None and getattr(p, "mode", None) != "max"]
    assert plain
    assert all(place in p.unread for p in plain)


def test_a_spec_of_the_caller():
    grad, x = np.arange(8.0).reshape(1, 2, 2, 2), np.zeros((1, 2, 4, 4))
    expected = dnn.avg_pool_backward(grad, x, 2)
    turned = dnn.Spec(x.shape, x.dtype, (32, 1, 8, 2))  # which the gradient lies as
    for spec in (dnn.Spec(x.shape, x.dtype), turned):
        out = np.full_like(expected, np.nan)
        np.testing.assert_array_equal(dnn.avg_pool_backward(grad, spec, 2), expected)
        assert dnn.avg_pool_backward(grad, spec, kernel_size=2, out=out) is out
        np.testing.assert_array_equal(out, expected)
    assert dnn.avg_pool_backward(grad, turned, 2).strides == tuple(8 * s for s in turned.strides)
    half = dnn.avg_pool_backward(grad.astype(np.float16), dnn.Spec(x.shape, "float16"), 2)
    np.testing.assert_array_equal(half, expected.astype(np.float16))
    with dnn.options(check_finite=True, telemetry=True):
        np.testing.assert_array_equal(dnn.avg_pool_backward(grad, turned, 2), expected)


def test_a_spec_beside_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    grad, indices = torch.ones(2, 5), torch.tensor([1, 1])
    found = dnn.embedding_backward(grad, indices, dnn.Spec((3, 5), torch.float32))
    torch.testing.assert_close(found, torch.tensor([[0.0], [2.0], [0.0]]).expand(3, 5))


@pytest.mark.parametrize("op", ["relu", "conv", "relu_backward"])
def test_a_spec_of_what_is_read_is_refused(op):
    grad, spec = np.ones((1, 2, 3, 3)), dnn.Spec((1, 2, 3, 3), "float64")
    if op == "relu":
        with pytest.raises(dnn.ArrayTypeError, match="relu: x is a Spec; expected an array"):
            dnn.relu(spec)
    elif op == "conv":
        with pytest.raises(
            dnn.ArrayTypeError,
            match=r"conv: weight is a Spec, float64\[1, 2, 3, 3\]; expected an array, since its values are read",
        ):
            dnn.conv(grad, spec)
    else:
        for _ in range(2):  # nor after a call with arrays of the same shapes
            with pytest.raises(
                dnn.ArrayTypeError, match=r"relu_backward: x is a Spec, .* expected an array, since its values are read"
            ):
                dnn.relu_backward(grad, spec)
            dnn.relu_backward(grad, grad)
    with pytest.raises(
        dnn.ArrayTypeError, match="conv_backward: bias is a Spec"
    ):  # the slope of the activation takes it
        dnn.conv_backward(grad, grad, np.ones((2, 2, 1, 1)), dnn.Spec((2,), "float64"), activation="silu")


def test_shapes_of_a_spec_are_checked():
    with pytest.raises(dnn.ShapeError, match="avg_pool_backward: grad is of shape"):
        dnn.avg_pool_backward(np.ones((1, 2, 2, 2)), dnn.Spec((1, 2, 6, 6), "float64"), 2)
    with pytest.raises(dnn.DTypeError, match="avg_pool_backward: grad is float64"):
        dnn.avg_pool_backward(np.ones((1, 2, 2, 2)), dnn.Spec((1, 2, 4, 4), "float32"), 2)
