"""The Array API as `Traced` arrays offer it: primitives under the names and signatures of the standard, and functions
composed of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dnnarray._autodiff import rules, sums
from dnnarray._autodiff.primitive import namespace, shape_of
from dnnarray._autodiff.rules import BINARY, UNARY
from dnnarray._autodiff.traced import Traced, plain
from dnnarray._errors import UnsupportedError
from dnnarray._spec import FLOATING, as_dtype


def reshape(x: Any, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Any:
    return rules.reshape(x, shape=(shape,) if isinstance(shape, int) else tuple(shape))


def permute_dims(x: Any, /, axes: Sequence[int]) -> Any:
    return rules.permute_dims(x, axes=tuple(axes))


def matrix_transpose(x: Any, /) -> Any:
    return rules.matrix_transpose(x)


def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int], /) -> Any:
    ndim = len(shape_of(x))
    sources = [a % ndim for a in ((source,) if isinstance(source, int) else source)]
    targets = [a % ndim for a in ((destination,) if isinstance(destination, int) else destination)]
    order = [a for a in range(ndim) if a not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute_dims(x, order)


def expand_dims(x: Any, /, *, axis: int = 0) -> Any:
    shape = list(shape_of(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return reshape(x, shape)


def squeeze(x: Any, /, axis: int | Sequence[int] | None = None) -> Any:
    shape = shape_of(x)
    axes = range(len(shape)) if axis is None else [a % len(shape) for a in ((axis,) if isinstance(axis, int) else axis)]
    if axis is not None and any(shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: the axes {axis} of shape {shape} are not all of extent 1")
    return reshape(x, [n for a, n in enumerate(shape) if a not in axes or n != 1])


def broadcast_to(x: Any, /, shape: Sequence[int]) -> Any:
    return rules.broadcast_to(x, shape=tuple(shape))


def broadcast_arrays(*arrays: Any) -> list[Any]:
    xp = namespace(*map(plain, arrays))
    shape = tuple(xp.broadcast_arrays(*map(plain, arrays))[0].shape)
    return [broadcast_to(a, shape) for a in arrays]


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Floating dtypes are recorded; a cast to integers or booleans has no gradient and gives a plain array."""
    if as_dtype(dtype) not in FLOATING:
        return namespace(plain(x)).astype(plain(x), dtype)
    return rules.astype(x, dtype=dtype)


def flip(x: Any, /, *, axis: Any = None) -> Any:
    return rules.flip(x, axis=axis)


def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Any:
    return rules.roll(x, shift=shift, axis=axis)


def tril(x: Any, /, *, k: int = 0) -> Any:
    return rules.tril(x, k=k)


def triu(x: Any, /, *, k: int = 0) -> Any:
    return rules.triu(x, k=k)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Any:
    if axis is None:
        return rules.concat(*[reshape(a, -1) for a in arrays], axis=0)
    return rules.concat(*arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Any:
    return rules.stack(*arrays, axis=axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    before = (slice(None),) * (axis % len(shape_of(x)))
    return tuple(x[(*before, i)] for i in range(shape_of(x)[axis]))


def tile(x: Any, repetitions: Sequence[int], /) -> Any:
    counts = (1,) * (len(shape_of(x)) - len(repetitions)) + tuple(repetitions)
    x = reshape(x, (1,) * (len(counts) - len(shape_of(x))) + shape_of(x))
    for axis, n in enumerate(counts):
        x = x if n == 1 else concat([x] * n, axis=axis) if n else x[(slice(None),) * axis + (slice(0),)]
    return x


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    x, axis = (reshape(x, -1), 0) if axis is None else (x, axis)
    xp = namespace(plain(x))
    return take(x, xp.repeat(xp.arange(shape_of(x)[axis]), repeats), axis=axis)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    axis = 0 if axis is None else axis % len(shape_of(x))
    return x[(slice(None),) * axis + (indices,)]


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    shape, axis = shape_of(indices), axis % len(shape_of(x))
    xp = namespace(indices)
    places = [
        indices if a == axis else xp.reshape(xp.arange(n), tuple(n if b == a else 1 for b in range(len(shape))))
        for a, n in enumerate(shape)
    ]
    return x[tuple(places)]


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    order = namespace(plain(x)).argsort(plain(x), axis=axis, descending=descending, stable=stable)
    return take_along_axis(x, order, axis=axis)


def diff(x: Any, /, *, axis: int = -1, n: int = 1) -> Any:
    before = (slice(None),) * (axis % len(shape_of(x)))
    for _ in range(n):
        x = x[(*before, slice(1, None))] - x[(*before, slice(-1))]
    return x


# --- reductions
# ---------------------------------------------------------------------------------------------------------


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return rules.reduce_sum(x if dtype is None else astype(x, dtype), axis=axis, keepdims=keepdims)


def mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    return rules.reduce_mean(x, axis=axis, keepdims=keepdims)


def max(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    return rules.reduce_max(x, axis=axis, keepdims=keepdims)


def min(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    return rules.reduce_min(x, axis=axis, keepdims=keepdims)


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    n = sums.count(x, axis)
    deviation = UNARY["square"](x - mean(x, axis=axis, keepdims=True))
    return sum(deviation, axis=axis, keepdims=keepdims) / (n - correction)


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    return UNARY["sqrt"](var(x, axis=axis, correction=correction, keepdims=keepdims))


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The product over axes, by halves: so its gradient is right where factors are 0."""
    x = x if dtype is None else astype(x, dtype)
    axes, shape = sums.axes_of(x, axis), shape_of(x)
    kept = [a for a in range(len(shape)) if a not in axes]
    product = reshape(permute_dims(x, (*kept, *axes)), (*(shape[a] for a in kept), math.prod(shape[a] for a in axes)))
    while (n := shape_of(product)[-1]) > 1:
        half = product[..., : n // 2] * product[..., n // 2 : n // 2 * 2]
        product = concat([half, product[..., n - 1 :]], axis=-1) if n % 2 else half
    if n == 0:
        return namespace(plain(x)).prod(plain(x), axis=axis, keepdims=keepdims)
    return reshape(product, [1 if a in axes else m for a, m in enumerate(shape) if keepdims or a not in axes])


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    x = x if dtype is None else astype(x, dtype)
    x, axis = (reshape(x, -1), 0) if axis is None else (x, axis % len(shape_of(x)))
    sums = rules.cumulative_sum(x, axis=axis)
    return (
        concat([rules.flip(sums, axis=axis)[(slice(None),) * axis + (slice(0, 1),)] * 0, sums], axis=axis)
        if include_initial
        else sums
    )


# --- choices and products
# -----------------------------------------------------------------------------------------------


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    return rules.where(x1, x2, condition=plain(condition))


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Bounds that are recorded themselves share the gradient as `maximum` and `minimum` do."""
    if type(min) is Traced or type(max) is Traced:
        x = x if min is None else BINARY["maximum"](x, min)
        return x if max is None else BINARY["minimum"](x, max)
    return rules.clip(x, low=min, high=max)


def matmul(x1: Any, x2: Any, /) -> Any:
    return rules.matmul(x1, x2)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    n1, n2 = len(shape_of(x1)), len(shape_of(x2))
    if isinstance(axes, int):
        axes = (range(n1 - axes, n1), range(axes))
    over1, over2 = [a % n1 for a in axes[0]], [a % n2 for a in axes[1]]
    free1, free2 = [a for a in range(n1) if a not in over1], [a for a in range(n2) if a not in over2]
    common = math.prod(shape_of(x1)[a] for a in over1)
    left = reshape(permute_dims(x1, (*free1, *over1)), (math.prod(shape_of(x1)[a] for a in free1), common))
    right = reshape(permute_dims(x2, (*over2, *free2)), (common, math.prod(shape_of(x2)[a] for a in free2)))
    return reshape(matmul(left, right), [shape_of(x1)[a] for a in free1] + [shape_of(x2)[a] for a in free2])


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    return sum(BINARY["multiply"](x1, x2), axis=axis)


_HERE = (
    reshape,
    permute_dims,
    matrix_transpose,
    moveaxis,
    expand_dims,
    squeeze,
    broadcast_to,
    broadcast_arrays,
    astype,
    flip,
    roll,
    tril,
    triu,
    concat,
    stack,
    unstack,
    tile,
    repeat,
    take,
    take_along_axis,
    sort,
    diff,
    sum,
    mean,
    max,
    min,
    var,
    std,
    prod,
    cumulative_sum,
    where,
    clip,
    matmul,
    tensordot,
    vecdot,
)
DIFFERENTIABLE: dict[str, Callable[..., Any]] = {**UNARY, **BINARY, **{f.__name__: f for f in _HERE}}
# Their results do not change with a small change of the arguments, or are no floating numbers.
CONSTANT = frozenset(
    "all any argmax argmin argsort bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift "
    "bitwise_xor can_cast ceil "
    "count_nonzero empty_like equal floor floor_divide full_like greater greater_equal isdtype isfinite isin isinf "
    "isnan less less_equal "
    "logical_and logical_not logical_or logical_xor nextafter nonzero not_equal ones_like result_type round "
    "searchsorted sign signbit trunc "
    "unique_all unique_counts unique_inverse unique_values zeros_like".split()
)


class Namespace:
    """What ``x.__array_namespace__()`` of a `Traced` array gives: the namespace of the array beneath, with the
    functions that are recorded."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self.__name__ = f"dnnarray.traced[{xp.__name__}]"

    def __getattr__(self, name: str) -> Any:
        if name in DIFFERENTIABLE:
            found: Any = DIFFERENTIABLE[name]
        else:
            found = getattr(self._xp, name)
            if callable(found) and not isinstance(found, type):
                found = _constant(found) if name in CONSTANT else _only_plain(found, f"{self._xp.__name__}.{name}")
        setattr(self, name, found)
        return found

    def asarray(self, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
        """A traced array stays what it is, in another dtype if one is named."""
        if type(obj) is Traced:
            return obj if dtype is None else astype(obj, dtype)
        return _only_plain(self._xp.asarray, "asarray")(obj, dtype=dtype, copy=copy)


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: function(*map(plain, arguments), **options)


def _only_plain(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def checked(*arguments: Any, **options: Any) -> Any:
        flat = [a for argument in arguments for a in (argument if isinstance(argument, (list, tuple)) else (argument,))]
        if any(type(a) is Traced for a in flat):
            refuse(name)
        return function(*arguments, **options)

    return checked


def refuse(name: str) -> None:
    """Say of a function without a gradient rule what to do."""
    raise UnsupportedError(
        f"value_and_grad: {name} has no gradient here. Use dnnarray's own functions, operators, or these of "
        "x.__array_namespace__(): "
        f"{', '.join(sorted(DIFFERENTIABLE))}; or pass dnn.stop_gradient(x) where no gradient is wanted."
    )
