"""The functions of the Array API that have a gradient, each beside its rule.

Rules use the primitives of this file and the operators of the arrays, so that the gradient of a gradient is recorded
like anything else."""

from __future__ import annotations

import math
import operator
from typing import Any

from dnnarray._autodiff import sums
from dnnarray._autodiff.primitive import Primitive, cast, namespace, primitive, shape_of, widened
from dnnarray._autodiff.traced import plain

# --- shapes and dtypes
# --------------------------------------------------------------------------------------------------


def _reshape_rule(g: Any, y: Any, x: Any, shape: Any) -> Any:
    return reshape(g, shape=shape_of(x))


@primitive(_reshape_rule)
def reshape(xp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    return xp.reshape(x, shape)


def _permute_dims_rule(g: Any, y: Any, x: Any, axes: Any) -> Any:
    return permute_dims(g, axes=_inverse(axes))


@primitive(_permute_dims_rule)
def permute_dims(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    return xp.permute_dims(x, axes)


def _broadcast_to_rule(g: Any, y: Any, x: Any, shape: Any) -> Any:
    return fit(g, x)


@primitive(_broadcast_to_rule)
def broadcast_to(xp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    return xp.broadcast_to(x, shape)


def _astype_rule(g: Any, y: Any, x: Any, dtype: Any) -> Any:
    return astype(g, dtype=x.dtype)


@primitive(_astype_rule)
def astype(xp: Any, x: Any, *, dtype: Any) -> Any:
    return xp.astype(x, dtype, copy=False)


def _flip_rule(g: Any, y: Any, x: Any, axis: Any) -> Any:
    return flip(g, axis=axis)


@primitive(_flip_rule)
def flip(xp: Any, x: Any, *, axis: Any) -> Any:
    return xp.flip(x, axis=axis)


def _roll_rule(g: Any, y: Any, x: Any, shift: Any, axis: Any) -> Any:
    return roll(g, shift=_negated(shift), axis=axis)


@primitive(_roll_rule)
def roll(xp: Any, x: Any, *, shift: Any, axis: Any) -> Any:
    return xp.roll(x, shift, axis=axis)


def _tril_rule(g: Any, y: Any, x: Any, k: Any) -> Any:
    return tril(g, k=k)


@primitive(_tril_rule)
def tril(xp: Any, x: Any, *, k: int) -> Any:
    return xp.tril(x, k=k)


def _triu_rule(g: Any, y: Any, x: Any, k: Any) -> Any:
    return triu(g, k=k)


@primitive(_triu_rule)
def triu(xp: Any, x: Any, *, k: int) -> Any:
    return xp.triu(x, k=k)


def _concat_rule(g: Any, y: Any, *arrays: Any, place: int, axis: int) -> Any:
    axis %= g.ndim
    start = sum(shape_of(a)[axis] for a in arrays[:place])
    return g[(slice(None),) * axis + (slice(start, start + shape_of(arrays[place])[axis]),)]


@primitive(_concat_rule, variadic=True)
def concat(xp: Any, *arrays: Any, axis: int) -> Any:
    return xp.concat(arrays, axis=axis)


def _stack_rule(g: Any, y: Any, *arrays: Any, place: int, axis: int) -> Any:
    return g[(slice(None),) * (axis % g.ndim) + (place,)]


@primitive(_stack_rule, variadic=True)
def stack(xp: Any, *arrays: Any, axis: int) -> Any:
    return xp.stack(arrays, axis=axis)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    order = [a % len(axes) for a in axes]
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _negated(shift: Any) -> Any:
    return tuple(-s for s in shift) if isinstance(shift, tuple) else -shift


# --- indexing
# -----------------------------------------------------------------------------------------------------------


def _getitem_rule(g: Any, y: Any, x: Any, index: Any) -> Any:
    return scatter(g, like=x, index=index)


@primitive(_getitem_rule)
def getitem(xp: Any, x: Any, *, index: Any) -> Any:
    return x[index]


def _scatter_rule(g: Any, y: Any, values: Any, like: Any, index: Any) -> Any:
    return getitem(g, index=index)


@primitive(_scatter_rule)
def scatter(xp: Any, values: Any, *, like: Any, index: Any) -> Any:
    """Zeros of the shape of `like` with `values` added at an index; positions that stand several times in the index add
    up."""
    zeros = xp.zeros_like(plain(like), dtype=values.dtype)
    if hasattr(zeros, "at"):  # JAX
        return zeros.at[index].add(values)
    if _is_basic(index):
        zeros[index] = values
    elif hasattr(zeros, "index_put_"):  # PyTorch
        whole = index if isinstance(index, tuple) else (index,)
        positions = xp.reshape(xp.arange(math.prod(zeros.shape), device=zeros.device), tuple(zeros.shape))[whole]
        zeros.view(-1).index_add_(0, positions.reshape(-1), values.reshape(-1))
    else:
        sums.add_at(zeros, index, values)
    return zeros


def _is_basic(index: Any) -> bool:
    """Whether an index names every position at most once for sure: integers, slices, new axes, or one boolean mask."""
    entries = index if isinstance(index, tuple) else (index,)
    masks = [e for e in entries if "bool" in str(getattr(e, "dtype", ""))]
    return len(masks) < 2 and all(
        e is None or e is ... or isinstance(e, (int, slice)) for e in entries if e is not (masks or [0])[0]
    )


# --- reductions
# ---------------------------------------------------------------------------------------------------------


def spread(g: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """The gradient of a reduction with the reduced axes back in their places, broadcast to the shape of x."""
    shape = shape_of(x)
    if not keepdims and shape_of(g):  # one without axes has none to put back
        axes = sums.axes_of(x, axis)
        g = reshape(g, shape=tuple([1 if a in axes else n for a, n in enumerate(shape)]))
    return broadcast_to(g, shape=shape)


def _reduce_sum_rule(g: Any, y: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    return spread(g, x, axis, keepdims)


@primitive(_reduce_sum_rule)
def reduce_sum(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return cast(sums.total(x, axis, keepdims), x.dtype)


def _reduce_mean_rule(g: Any, y: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    return spread(g / _at_least_one(sums.count(x, axis)), x, axis, keepdims)


@primitive(_reduce_mean_rule)
def reduce_mean(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return cast(sums.average(x, axis, keepdims), x.dtype)


def _at_least_one(n: int) -> int:
    """At least one, for the divisor of an empty mean."""
    return n if n > 0 else 1


def _extremum_rule(g: Any, y: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """Equal shares for all places where the extremum lies, as in PyTorch and JAX."""
    at = _as_numbers(plain(x) == plain(spread(y, x, axis, keepdims)), x)
    shares = cast(widened(at) / sums.total(at, axis, keepdims=True), at.dtype)
    return spread(g, x, axis, keepdims) * shares


def _as_numbers(mask: Any, like: Any) -> Any:
    """A mask as numbers of the dtype of `like`."""
    return namespace(mask).astype(mask, like.dtype)


@primitive(_extremum_rule)
def reduce_max(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return xp.max(x, axis=axis, keepdims=keepdims)


@primitive(_extremum_rule)
def reduce_min(xp: Any, x: Any, *, axis: Any, keepdims: bool) -> Any:
    return xp.min(x, axis=axis, keepdims=keepdims)


def _cumulative_sum_rule(g: Any, y: Any, x: Any, axis: Any) -> Any:
    return flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis)


@primitive(_cumulative_sum_rule)
def cumulative_sum(xp: Any, x: Any, *, axis: int) -> Any:
    return cast(sums.cumulative(x, axis), x.dtype)


# --- elementwise functions of one array
# ---------------------------------------------------------------------------------


def _unary(name: str, rule: Any) -> Primitive:
    def forward(xp: Any, x: Any) -> Any:
        return getattr(xp, name)(x)

    forward.__name__ = name
    return Primitive(forward, rule)


_LN2, _LN10 = math.log(2.0), math.log(10.0)
UNARY: dict[str, Primitive] = {
    name: _unary(name, rule)
    for name, rule in {
        "negative": lambda g, y, x: -g,
        "positive": lambda g, y, x: g,
        "abs": lambda g, y, x: g * namespace(plain(x)).sign(plain(x)),
        "exp": lambda g, y, x: g * UNARY["exp"](x),
        "expm1": lambda g, y, x: g * UNARY["exp"](x),
        "log": lambda g, y, x: g / x,
        "log1p": lambda g, y, x: g / (x + 1),
        "log2": lambda g, y, x: g / (x * _LN2),
        "log10": lambda g, y, x: g / (x * _LN10),
        "sqrt": lambda g, y, x: g * 0.5 / UNARY["sqrt"](x),
        "square": lambda g, y, x: g * 2 * x,
        "reciprocal": lambda g, y, x: -g / (x * x),
        "sin": lambda g, y, x: g * UNARY["cos"](x),
        "cos": lambda g, y, x: -g * UNARY["sin"](x),
        "tan": lambda g, y, x: g * (1 + UNARY["square"](UNARY["tan"](x))),
        "asin": lambda g, y, x: g / UNARY["sqrt"](1 - x * x),
        "acos": lambda g, y, x: -g / UNARY["sqrt"](1 - x * x),
        "atan": lambda g, y, x: g / (1 + x * x),
        "sinh": lambda g, y, x: g * UNARY["cosh"](x),
        "cosh": lambda g, y, x: g * UNARY["sinh"](x),
        "tanh": lambda g, y, x: g * (1 - UNARY["square"](UNARY["tanh"](x))),
        "asinh": lambda g, y, x: g / UNARY["sqrt"](x * x + 1),
        "acosh": lambda g, y, x: g / UNARY["sqrt"](x * x - 1),
        "atanh": lambda g, y, x: g / (1 - x * x),
    }.items()
}


# --- elementwise functions of two arrays
# --------------------------------------------------------------------------------


def fit(g: Any, x: Any) -> Any:
    """A gradient summed over the axes along which x was broadcast, in the dtype of x."""
    shape = shape_of(x)
    if shape_of(g) != shape:
        extra = len(shape_of(g)) - len(shape)
        stretched = tuple(range(extra)) + tuple(
            extra + a for a, n in enumerate(shape) if n == 1 and shape_of(g)[extra + a] != 1
        )
        g = reshape(reduce_sum(g, axis=stretched, keepdims=True), shape=shape)
    return g if g.dtype == x.dtype else astype(g, dtype=x.dtype)


# By operator where there is one: those take Python numbers on either side in every namespace.
_OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "pow": operator.pow,
    "remainder": operator.mod,
}


def _binary(name: str, first: Any, second: Any) -> Primitive:
    by_operator = _OPERATORS.get(name)

    def forward(xp: Any, a: Any, b: Any) -> Any:
        return by_operator(a, b) if by_operator else getattr(xp, name)(a, b)

    forward.__name__ = name
    return Primitive(
        forward, lambda g, y, a, b: fit(first(g, y, a, b), a), lambda g, y, a, b: fit(second(g, y, a, b), b)
    )


def where_plain(condition: Any, a: Any, b: Any) -> Any:
    """A choice between an array and a number, recorded if one of them is."""
    return where(a, b, condition=plain(condition))


def _share(g: Any, chosen: Any, other: Any) -> Any:
    """The whole gradient where `chosen` is the one taken, half of it where both are equal; `chosen` and `other` are
    ordered masks."""
    both = namespace(chosen).logical_and(chosen, other)
    return where_plain(both, g * 0.5, where_plain(chosen, g, g * 0.0))


def _power_base(g: Any, y: Any, a: Any, b: Any) -> Any:
    if isinstance(b, (int, float)):
        return g * b * (a if b == 2 else BINARY["pow"](a, b - 1)) if b != 0 else g * 0.0
    zero = plain(b) == 0
    return g * b * BINARY["pow"](a, where_plain(zero, b * 0 + 1, b - 1))


def _power_exponent(g: Any, y: Any, a: Any, b: Any) -> Any:
    positive = plain(a) > 0
    safe = where_plain(positive, a, b * 0 + 1) if not isinstance(a, (int, float)) else a
    return g * BINARY["pow"](a, b) * (math.log(safe) if isinstance(safe, (int, float)) else UNARY["log"](safe))


def _floor_quotient(a: Any, b: Any) -> Any:
    a, b = plain(a), plain(b)
    return namespace(a, b).floor(a / b)


BINARY: dict[str, Primitive] = {
    name: _binary(name, first, second)
    for name, (first, second) in {
        "add": (lambda g, y, a, b: g, lambda g, y, a, b: g),
        "subtract": (lambda g, y, a, b: g, lambda g, y, a, b: -g),
        "multiply": (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a),
        "divide": (lambda g, y, a, b: g / b, lambda g, y, a, b: -g * a / (b * b)),
        "pow": (_power_base, _power_exponent),
        "maximum": (
            lambda g, y, a, b: _share(g, plain(a) >= plain(b), plain(b) >= plain(a)),
            lambda g, y, a, b: _share(g, plain(b) >= plain(a), plain(a) >= plain(b)),
        ),
        "minimum": (
            lambda g, y, a, b: _share(g, plain(a) <= plain(b), plain(b) <= plain(a)),
            lambda g, y, a, b: _share(g, plain(b) <= plain(a), plain(a) <= plain(b)),
        ),
        "atan2": (lambda g, y, a, b: g * b / (a * a + b * b), lambda g, y, a, b: -g * a / (a * a + b * b)),
        "hypot": (lambda g, y, a, b: g * a / BINARY["hypot"](a, b), lambda g, y, a, b: g * b / BINARY["hypot"](a, b)),
        "logaddexp": (
            lambda g, y, a, b: g * UNARY["exp"](a - BINARY["logaddexp"](a, b)),
            lambda g, y, a, b: g * UNARY["exp"](b - BINARY["logaddexp"](a, b)),
        ),
        "remainder": (lambda g, y, a, b: g, lambda g, y, a, b: -g * _floor_quotient(a, b)),
    }.items()
}


def _chosen_rule(g: Any, y: Any, a: Any, b: Any, condition: Any) -> Any:
    return fit(where(g, g * 0.0, condition=condition), a)


def _other_rule(g: Any, y: Any, a: Any, b: Any, condition: Any) -> Any:
    return fit(where(g * 0.0, g, condition=condition), b)


@primitive(_chosen_rule, _other_rule)
def where(xp: Any, a: Any, b: Any, *, condition: Any) -> Any:
    return xp.where(condition, a, b)


def _clip_rule(g: Any, y: Any, x: Any, low: Any, high: Any) -> Any:
    """The whole gradient within the bounds and on them, as in PyTorch."""
    value, inside = plain(x), None
    for mask in (None if low is None else value >= low, None if high is None else value <= high):
        if mask is not None:
            inside = mask if inside is None else namespace(mask).logical_and(inside, mask)
    return g if inside is None else where(g, g * 0.0, condition=inside)


@primitive(_clip_rule)
def clip(xp: Any, x: Any, *, low: Any, high: Any) -> Any:
    return xp.clip(x, low, high)


# --- products
# -----------------------------------------------------------------------------------------------------------


def matrix_transpose(x: Any) -> Any:
    """The last two axes exchanged."""
    ndim = len(shape_of(x))
    return permute_dims(x, axes=(*range(ndim - 2), ndim - 1, ndim - 2))


def _left_rule(g: Any, y: Any, a: Any, b: Any) -> Any:
    g, a_matrix, b_matrix = _as_matrices(g, a, b)
    return reshape(fit(matmul(g, matrix_transpose(b_matrix)), a_matrix), shape=shape_of(a))


def _right_rule(g: Any, y: Any, a: Any, b: Any) -> Any:
    g, a_matrix, b_matrix = _as_matrices(g, a, b)
    return reshape(fit(matmul(matrix_transpose(a_matrix), g), b_matrix), shape=shape_of(b))


def _as_matrices(g: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Vectors among the operands as matrices of one row (a) or one column (b), and the gradient to match."""
    row, column = len(shape_of(a)) == 1, len(shape_of(b)) == 1
    shape = shape_of(g) if not column else (*shape_of(g), 1)
    shape = shape if not row else (*shape[:-1], 1, shape[-1])
    return (
        reshape(g, shape=shape),
        reshape(a, shape=(1, *shape_of(a))) if row else a,
        reshape(b, shape=(*shape_of(b), 1)) if column else b,
    )


@primitive(_left_rule, _right_rule)
def matmul(xp: Any, a: Any, b: Any) -> Any:
    return xp.matmul(a, b)
