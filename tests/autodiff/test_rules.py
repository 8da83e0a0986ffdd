"""Every gradient rule of the Array API functions against central finite differences in float64, second derivatives
included."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._autodiff.functions import DIFFERENTIABLE
from dnnarray._autodiff.transform import grad, value_and_grad

STEP = 1e-6


def _xp(x):
    return x.__array_namespace__()


def directional(f, arrays, directions):
    """The central difference of a scalar function along directions."""
    ahead = f(*[a + STEP * d for a, d in zip(arrays, directions, strict=True)])
    behind = f(*[a - STEP * d for a, d in zip(arrays, directions, strict=True)])
    return (ahead - behind) / (2 * STEP)


def check(f, *arrays, tolerance=1e-6):
    """The gradient of ``sum(weights * f(arrays))`` for random weights, along random directions, and the gradient of
    that gradient."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(np.shape(f(*arrays)))
    directions = [rng.standard_normal(a.shape) for a in arrays]
    argnums = tuple(range(len(arrays)))

    def scalar(*xs):
        return (f(*xs) * weights).sum()

    value, gradients = value_and_grad(scalar, argnums)(*arrays)
    np.testing.assert_allclose(value, scalar(*arrays), rtol=1e-12)
    assert all(g.shape == a.shape and g.dtype == a.dtype for g, a in zip(gradients, arrays, strict=True))
    found = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose(found, directional(scalar, arrays, directions), rtol=tolerance, atol=tolerance)

    def slope(*xs):
        return sum((g * d).sum() for g, d in zip(grad(scalar, argnums)(*xs), directions, strict=True))

    second = grad(slope, argnums)(*arrays)
    found = sum((g * d).sum() for g, d in zip(second, directions, strict=True))
    np.testing.assert_allclose(
        found, directional(slope, arrays, directions), rtol=100 * tolerance, atol=100 * tolerance
    )


def values(*shape, low=-2.0, high=2.0, seed=0):
    """Distinct values with distances far above the finite difference's step."""
    rng = np.random.default_rng(seed)
    n = int(np.prod(shape))
    return (low + (high - low) * (rng.permutation(n) + rng.uniform(0.25, 0.75, n)) / n).reshape(shape)


POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "reciprocal")
INSIDE = ("asin", "acos", "atanh")
UNARY = [
    "negative",
    "positive",
    "abs",
    "exp",
    "expm1",
    "square",
    "sin",
    "cos",
    "tan",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    *POSITIVE,
    *INSIDE,
    "acosh",
]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2", "hypot", "logaddexp", "remainder"]


@pytest.mark.parametrize("name", UNARY)
def test_function_of_one_array(name):
    low, high = (
        (0.3, 2.0)
        if name in POSITIVE
        else (-0.9, 0.9)
        if name in INSIDE
        else (1.2, 3.0)
        if name == "acosh"
        else (-1.3, 1.3)
    )
    check(lambda x: getattr(_xp(x), name)(x), values(3, 5, low=low, high=high))


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((1, 4), (3, 1)), ((2, 3), ())], ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_function_of_two_arrays(name, shapes):
    a, b = values(*shapes[0]), values(*shapes[1], low=0.6, high=1.9, seed=1)
    check(lambda x, y: getattr(_xp(x), name)(x, y), a, b)


OPERATORS = {
    "x + 2": lambda x: x + 2,
    "2 - x": lambda x: 2 - x,
    "3 / x": lambda x: 3 / x,
    "x / 3": lambda x: x / 3,
    "x ** 2": lambda x: x**2,
    "x ** 3.5": lambda x: x**3.5,
    "2 ** x": lambda x: 2.0**x,
    "x % 0.7": lambda x: x % 0.7,
    "-abs(+x)": lambda x: -abs(+x),
    "array on the left": lambda x: np.full(x.shape, 2.0) * x - np.full(x.shape, 2.0) ** x,
    "x @ y": lambda x: x @ np.arange(8.0).reshape(4, 2),
    "y @ x": lambda x: np.arange(6.0).reshape(2, 3) @ x,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name):
    check(OPERATORS[name], values(3, 4, low=0.3, high=1.8))


def test_power_of_arrays():
    check(lambda x, y: x**y, values(3, 4, low=0.3, high=1.8), values(3, 4, seed=1))


def test_power_is_right_at_zero():
    x = np.array([0.0, 0.0, -2.0, 3.0])
    np.testing.assert_array_equal(grad(lambda x: (x**2).sum())(x), 2 * x)
    np.testing.assert_array_equal(grad(lambda x: (x**0).sum())(x), 0 * x)
    np.testing.assert_array_equal(grad(lambda x: (x ** np.array([1.0, 0.0, 2.0, 1.0])).sum())(x), [1.0, 0.0, -4.0, 1.0])


INDICES = {
    "slice": (slice(1, 3),),
    "negative step": (slice(None, None, -2), slice(None)),
    "integers": (1, -1),
    "ellipsis and new axis": (..., None, 2),
    "array of repeated positions": (np.array([0, 2, 0, 0]),),
    "two arrays": (np.array([0, 2, 0]), np.array([1, 1, 1])),
    "array behind a slice": (slice(None), np.array([[3, 3], [0, 1]])),
    "mask": (values(3, 4) > 0,),
    "mask of rows": (np.array([True, False, True]),),
}


@pytest.mark.parametrize("name", INDICES)
def test_indexing(name):
    check(lambda x: x[INDICES[name]] ** 2, values(3, 4))


SHAPES = {
    "reshape": lambda x: x.reshape(2, 6) ** 2,
    "reshape with -1": lambda x: _xp(x).reshape(x, (-1,)) ** 2,
    "transpose": lambda x: x.T**2,
    "permute_dims": lambda x: _xp(x).permute_dims(x[None], (2, 0, 1)) ** 2,
    "moveaxis": lambda x: _xp(x).moveaxis(x[None], 0, 2) ** 2,
    "expand_dims": lambda x: _xp(x).expand_dims(x, axis=1) ** 2,
    "squeeze": lambda x: _xp(x).squeeze(x[None], axis=0) ** 2,
    "broadcast_to": lambda x: _xp(x).broadcast_to(x, (2, 3, 4)) ** 2,
    "flip": lambda x: _xp(x).flip(x, axis=1) ** 2 * np.arange(4),
    "roll": lambda x: _xp(x).roll(x, (1, 2), axis=(0, 1)) ** 2 * np.arange(4),
    "tril and triu": lambda x: _xp(x).tril(x, k=1) ** 2 + _xp(x).triu(x, k=0) ** 3,
    "concat": lambda x: _xp(x).concat([x, x**2, x[:1]], axis=0),
    "stack": lambda x: _xp(x).stack([x, x**2], axis=1),
    "unstack": lambda x: _xp(x).unstack(x, axis=1)[2] * _xp(x).unstack(x, axis=1)[0],
    "tile": lambda x: _xp(x).tile(x, (2, 1, 2)) ** 2,
    "repeat": lambda x: _xp(x).repeat(x, np.array([1, 0, 3]), axis=0) ** 2,
    "take": lambda x: _xp(x).take(x, np.array([2, 2, 0]), axis=1) ** 2,
    "take_along_axis": lambda x: _xp(x).take_along_axis(x, np.array([[1, 1], [0, 3], [2, 2]]), axis=1) ** 2,
    "sort": lambda x: _xp(x).sort(x, axis=1) ** 2 * np.arange(4),
    "diff": lambda x: _xp(x).diff(x, axis=1) ** 2,
    "iteration": lambda x: sum(row * i for i, row in enumerate(x)) ** 2,
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    check(SHAPES[name], values(3, 4))


@pytest.mark.parametrize(
    "options", [{}, {"axis": 1}, {"axis": (0, 2), "keepdims": True}, {"axis": -1, "keepdims": True}], ids=str
)
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "var", "std", "prod"])
def test_reductions(name, options):
    check(lambda x: getattr(_xp(x), name)(x, **options) ** 2, values(2, 3, 3))


def test_other_functions():
    check(lambda x: _xp(x).cumulative_sum(x, axis=1) ** 2, values(3, 4))
    check(lambda x: _xp(x).where(x > 0, x**2, x * 3), values(3, 4))
    check(lambda x: _xp(x).clip(x, -0.5, 1.1) ** 2, values(3, 4))
    check(lambda x, y: _xp(x).clip(x, y, None) ** 2, values(3, 4), values(4, low=-0.5, high=0.5, seed=3))
    check(lambda x: _xp(x).tensordot(x, x * 2, axes=((0,), (0,))), values(3, 4))
    check(lambda x: _xp(x).vecdot(x, x * 2), values(3, 4))
    check(lambda x: x.astype(np.float64) * 2, values(3, 4))


MATRICES = [
    ((3, 4), (4, 2)),
    ((4,), (4, 2)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 2)),
    ((3, 4), (5, 4, 2)),
    ((2, 1, 3, 4), (5, 4, 2)),
]


@pytest.mark.parametrize("shapes", MATRICES, ids=str)
def test_matmul(shapes):
    check(lambda a, b: a @ b, values(*shapes[0]), values(*shapes[1], seed=1))


def test_product_with_zeros_has_the_right_gradient():
    np.testing.assert_array_equal(grad(lambda x: x.prod())(np.array([2.0, 0.0, 3.0])), [0.0, 6.0, 0.0])
    np.testing.assert_array_equal(grad(lambda x: x.prod())(np.array([0.0, 0.0, 3.0])), [0.0, 0.0, 0.0])


def test_equal_extrema_share_the_gradient():
    np.testing.assert_array_equal(grad(lambda x: x.max())(np.array([1.0, 2.0, 2.0])), [0.0, 0.5, 0.5])
    np.testing.assert_array_equal(
        grad(lambda x: _xp(x).maximum(x, 1.0).sum())(np.array([0.0, 1.0, 2.0])), [0.0, 0.5, 1.0]
    )


def test_every_function_is_checked():
    checked = {
        *UNARY,
        *BINARY,
        "pow",
        "reshape",
        "permute_dims",
        "matrix_transpose",
        "moveaxis",
        "expand_dims",
        "squeeze",
        "broadcast_to",
        "broadcast_arrays",
        "astype",
        "flip",
        "roll",
        "tril",
        "triu",
        "concat",
        "stack",
        "unstack",
        "tile",
        "repeat",
        "take",
        "take_along_axis",
        "sort",
        "diff",
        "sum",
        "mean",
        "max",
        "min",
        "var",
        "std",
        "prod",
        "cumulative_sum",
        "where",
        "clip",
        "matmul",
        "tensordot",
        "vecdot",
    }
    assert set(DIFFERENTIABLE) <= checked


def test_functions_of_numpy_are_recorded_or_refused():
    x = values(3, 4)
    np.testing.assert_allclose(
        grad(lambda x: np.sum(np.exp(x) * np.tanh(x)))(x), np.exp(x) * np.tanh(x) + np.exp(x) / np.cosh(x) ** 2
    )
    np.testing.assert_allclose(grad(lambda x: np.concatenate([x, x]).mean())(x), np.full((3, 4), 1 / 12))
    for f in (np.linalg.norm, np.add.reduce, np.frexp):
        with pytest.raises(dnn.UnsupportedError, match="has no gradient here"):
            grad(lambda x, f=f: f(x))(x)


def test_half_types_sum_in_float32():
    import ml_dtypes

    x = np.full(4096, 0.01, ml_dtypes.bfloat16)
    value, gradient = value_and_grad(lambda x: (x * np.ones(1, x.dtype)).sum())(x)
    assert value.dtype == x.dtype
    np.testing.assert_allclose(float(value), 4096 * float(x[0]), rtol=0.01)
    scale = grad(lambda s: (x * s).sum())(np.ones(1, x.dtype))
    np.testing.assert_allclose(scale.astype(float), 4096 * float(x[0]), rtol=0.01)
    assert gradient.dtype == x.dtype


_TERMS = 1 << 20
_PAIRWISE = (
    16 + 20
) * 2.0**-24  # the error of a pairwise sum of so many terms of one sign, as in `tests/test_long_sums.py`
_LONG_SUMS = {
    "broadcast": (lambda b, x: (b * x).sum(), lambda x: x.sum(0)),
    "picked": (lambda b, x: (b[None][np.zeros(_TERMS, int)] * x).sum(), lambda x: x.sum(0)),
    "cumulative": (
        lambda b, x: (_xp(b).cumulative_sum(_xp(b).broadcast_to(b, x.shape), axis=0)[-1] * x[0]).sum(),
        lambda x: x[0] * _TERMS,
    ),
}


@pytest.mark.parametrize("name", _LONG_SUMS)
def test_gradients_that_are_long_sums_round_no_worse_than_pairwise(name):
    function, exact = _LONG_SUMS[name]
    x = np.random.default_rng(0).uniform(0.09, 0.11, (_TERMS, 2)).astype(np.float32)
    found = grad(lambda b: function(b, x))(np.ones(2, np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, exact(x.astype(np.float64)), rtol=_PAIRWISE)


@pytest.mark.parametrize("name", ["sum", "mean", "cumulative_sum"])
def test_long_sums_round_no_worse_than_pairwise(name):
    x = np.random.default_rng(0).uniform(0.09, 0.11, (_TERMS, 2)).astype(np.float32)
    exact = x.astype(np.float64).sum(0) / (_TERMS if name == "mean" else 1)

    def function(a):
        result = getattr(_xp(a), name)(a, axis=0)
        return (result[-1] if name == "cumulative_sum" else result)[0]

    np.testing.assert_allclose(value_and_grad(function)(x)[0], exact[0], rtol=_PAIRWISE)
