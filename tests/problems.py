"""What the kernels are planned for in tests: every case with its gradient, and large calls for the kernels that no case
reaches.

Told without data: an array is its `Spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dnnarray._call.operation import find
from dnnarray._names import FAMILIES
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import FLOAT32, FLOAT64, INT32, INT64, Spec
from tests.registry import CASES
from tests.support import Case, Draw

METHODS = {
    op: table for family in FAMILIES for op, table in import_module(f"dnnarray._cuda.{family}").ALGORITHMS.items()
}

Integers = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


class Call(NamedTuple):
    """A call of an operation: arrays, or specs of them, in signature order, and every option by name; how integers are
    drawn."""

    op: str
    arrays: tuple[Any, ...]
    options: dict[str, Any]
    integers: Integers | None = None

    @property
    def base(self) -> str:
        """The operation whose algorithms do it."""
        return find(self.op).base

    def problem(self) -> Any:
        operation = find(self.op)
        return operation.problem(self.arrays, {n: v for n, v in self.options.items() if n in operation.static})

    def backward(self, grad: Any) -> Call | None:
        """The call of the gradient, where the operation has one, for the gradient of the first result."""
        operation = find(self.op)
        if f"{operation.base}_backward" not in METHODS:
            return None
        backward = find(f"{operation.base}_backward")
        given = dict(zip(operation.arrays, self.arrays, strict=True)) | self.options
        kept = {n: v for n, v in given.items() if n in backward.arrays or n in backward.defaults}
        return Call(backward.name, *backward.bind((grad,), kept))

    def case(self, dtype: np.dtype) -> Case:
        """The call as a case, which draws its arrays."""
        longest = max(leaves(self.arrays), key=lambda spec: spec.size)
        return Case(
            self.op,
            f"large-{'x'.join(map(str, longest.shape))}",
            tree_map(lambda spec: Draw(lambda rng: self._drawn(spec, rng), "fixed"), self.arrays),
            self.options,
            gradient=False,
            dtypes=(dtype,),
        )

    def _drawn(self, spec: Spec, rng: np.random.Generator) -> np.ndarray:
        if spec.dtype in (INT32, INT64):
            assert self.integers is not None
            return self.integers(rng, spec.shape).astype(spec.dtype)
        return np.resize(rng.standard_normal(_SOME).astype(spec.dtype), spec.shape)


_SOME = 65_537  # numbers drawn for an array, then repeated: a prime, so that no two rows are the same


@cache
def calls_of_cases() -> tuple[Call, ...]:
    """Every case in every dtype, and its gradient: kept, since drawing all arrays takes about a second."""
    return tuple(_calls_of_cases())


def _calls_of_cases() -> Iterator[Call]:
    for case in CASES:
        for dtype in case.dtypes:
            specs = tree_map(lambda a: Spec(a.shape, a.dtype), case.draw(dtype))
            call = Call(case.op, *find(case.op).bind(specs, case.options))
            yield call
            if case.gradient and (backward := call.backward(leaves(call.problem().outputs)[0])):
                yield backward


def large(dtype: np.dtype) -> Iterator[Call]:
    """The calls in floating-point arrays of this dtype."""
    for family in (
        _by_result,
        _pool,
        _pool_gradients,
        _unpool,
        _spatial,
        _softmax_and_losses,
        _norm,
        _conv,
        _few_channels,
        _depthwise,
    ):
        yield from family(dtype)


def _call(op: str, *arrays: Any, integers: Integers | None = None, **options: Any) -> Call:
    return Call(op, *find(op).bind(arrays, options), integers)


def planned(op: str, *arrays: Any, **options: Any) -> tuple[str, Any]:
    """The operation whose algorithms do such a call, and its problem."""
    call = _call(op, *arrays, **options)
    return call.base, call.problem()


def _by_result(dtype: np.dtype) -> Iterator[Call]:
    """Gradients from the result of the forward, beside its input and without."""
    y = Spec((3, 5, 7), dtype)
    for op in ("sigmoid_backward", "tanh_backward"):
        yield _call(op, y, None, y)
        yield _call(op, y, y, y)


def _below(end: int) -> Integers:
    return lambda rng, shape: rng.integers(0, end, shape)


def _pool(dtype: np.dtype) -> Iterator[Call]:
    x, last, wide = (Spec(shape, dtype) for shape in ((2, 3, 64, 64), (2, 64, 64, 8), (2, 60, 60, 64)))
    for op in ("max_pool", "avg_pool", "lp_pool"):
        yield _call(op, x, kernel_size=64)
        yield _call(op, last, kernel_size=64, layout="channels_last")
    for size in (4, 7, 12):
        yield _call("avg_pool", wide, kernel_size=size, stride=2, layout="channels_last")
    for options in (
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": 4, "stride": 2},
        {"kernel_size": 5, "stride": 1},
    ):
        for op in ("max_pool", "max_pool_with_indices"):
            yield _call(op, Spec((32, 60, 60, 64), dtype), layout="channels_last", **options)
    for shape in ((2, 64, 112, 112), (16, 64, 28, 28)):
        yield _call("max_pool_with_indices", Spec(shape, dtype), kernel_size=5, stride=2, padding=2)
    for size in (13, 7):
        yield _call("adaptive_avg_pool", wide, output_size=size, layout="channels_last")
    yield _call("adaptive_avg_pool", Spec((64, 2048, 7, 7), dtype), output_size=1)


def _pool_gradients(dtype: np.dtype) -> Iterator[Call]:
    for side, stride in ((55, 2), (110, 1)):
        grad, x = Spec((24, 64, side, side), dtype), Spec((24, 64, 112, 112), dtype)
        yield _call("lp_pool_backward", grad, x, p=2.0, kernel_size=3, stride=stride)
    pooled = {"kernel_size": 3, "stride": 2, "padding": 1, "layout": "channels_last"}
    yield _call("max_pool_backward", Spec((2, 8, 8, 8), dtype), Spec((2, 16, 16, 8), dtype), **pooled)
    near, seen = Spec((32, 64, 64, 64), dtype), Spec((64, 64, 64, 64), dtype)
    for layout in ("channels_first", "channels_last"):
        sliding = {"kernel_size": 3, "stride": 1, "padding": 1, "layout": layout}
        yield _call("avg_pool", near, **sliding)
        yield _call("avg_pool_backward", near, near, **sliding)
    yield _call(
        "max_pool_backward", near, near, Spec(near.shape, INT64), integers=_winners(64, 3, 1, 1, last=True), **sliding
    )
    for size, stride in ((2, 1), (3, 1), (5, 1), (3, 2), (4, 2), (5, 2)):
        padding = (size - stride) // 2
        side = (64 + 2 * padding - size) // stride + 1
        options = {"kernel_size": size, "stride": stride, "padding": padding, "layout": "channels_last"}
        x = near if stride == 1 else seen
        yield _call("max_pool_backward", Spec((x.shape[0], side, side, 64), dtype), x, **options)
        yield from _gradients_of_planes(dtype, size, stride)
    many = Spec((2, 8, 64, 64), dtype)  # windows over an element
    for extents in (5, (2, 3)):
        yield _call("max_pool_backward", many, many, kernel_size=extents, stride=1, padding="same")


def _gradients_of_planes(dtype: np.dtype, size: int, stride: int) -> Iterator[Call]:
    """Of maxima in channels-first memory: winners sought, or given in either dtype."""
    padding = (size - stride + 1) // 2
    side = (112 + 2 * padding - size) // stride + 1
    grad, planes = Spec((24, 64, side, side), dtype), Spec((24, 64, 112, 112), dtype)
    for places in ((), (INT64,), (INT32,)):
        given = (Spec(grad.shape, saved) for saved in places)
        winners = _winners(112, size, stride, padding)
        yield _call(
            "max_pool_backward",
            grad,
            planes,
            *given,
            integers=winners,
            kernel_size=size,
            stride=stride,
            padding=padding,
        )


def _winners(side: int, size: int, stride: int, padding: int, last: bool = False) -> Integers:
    """Places in square planes, each somewhere in its window."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        windows = shape[1] if last else shape[2]
        first = np.arange(windows) * stride - padding
        inside = (first[:, None] if axis == 0 else first for axis in (0, 1))
        y, x = (np.clip(start + rng.integers(0, size, (windows, windows)), 0, side - 1) for start in inside)
        places = y * side + x
        return np.broadcast_to(places[..., None] if last else places, shape)

    return draw


def _unpool(dtype: np.dtype) -> Iterator[Call]:
    def apart(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Places of which no two are the same in a plane."""
        return np.arange(np.prod(shape)).reshape(shape)

    first, last = (2, 3, 4, 4), (2, 4, 4, 16)
    yield _call("max_unpool", Spec(first, dtype), Spec(first, INT64), integers=apart, output_size=(512, 512))
    yield _call(
        "max_unpool", Spec(last, dtype), Spec(last, INT64), integers=apart, output_size=(96, 96), layout="channels_last"
    )


def _spatial(dtype: np.dtype) -> Iterator[Call]:
    for factor in (2, 4):
        grad, x = Spec((2, 3, 8 * factor, 128 * factor), dtype), Spec((2, 3, 8, 128), dtype)
        yield _call("interpolate_backward", grad, x, scale=factor, mode="cubic")
    yield _call("pixel_unshuffle", Spec((4, 32, 128, 256), dtype), factor=2)


def _softmax_and_losses(dtype: np.dtype) -> Iterator[Call]:
    long = Spec((2, 262_145), dtype)
    yield _call("softmax", long)
    yield _call("log_softmax_backward", long, long)
    yield _call("cross_entropy_backward", Spec((), dtype), long, Spec((2,), INT64), integers=_below(262_145))
    # The last plans one kernel that no smaller one does: it takes the sanitizer long.
    for count, classes in ((9, 21), (9, 128_257), (20_000, 2048), (131_073, 256), (140_000, 2048)):
        scored = Spec((count, 8), dtype), Spec((classes, 8), dtype), Spec((count,), INT64)
        yield _call("linear_cross_entropy", *scored, integers=_below(classes), return_tape=True)
    tape = Spec((sum(s.size for s in scored[:2]),), _statistic(dtype))
    yield _call("linear_cross_entropy_backward", Spec((), dtype), *scored, integers=_below(classes), tape=tape)


def _statistic(dtype: np.dtype) -> np.dtype:
    """What sums and statistics are kept in."""
    return dtype if dtype == FLOAT64 else FLOAT32


def _norm(dtype: np.dtype) -> Iterator[Call]:
    rows, row = Spec((3, 11), dtype), Spec((11,), dtype)
    yield _call("add_layer_norm_backward", (None, rows), rows, rows, row, row)
    for columns in (40, 4096, 16_384, 65_536):
        rows, row, saved = Spec((64, columns), dtype), Spec((columns,), dtype), Spec((64, 1), _statistic(dtype))
        yield _call("layer_norm_backward", rows, rows, row, row, mean=saved, rstd=saved)
        yield _call("rms_norm_backward", rows, rows, row, rstd=saved)
    columns = 65_536 if dtype == FLOAT32 else 131_072
    stays, row = Spec((512, columns), dtype), Spec((columns,), dtype)
    yield _call("layer_norm", stays, row, row)
    yield _call("add_rms_norm", stays, stays, row)
    small, each = Spec((64, 2048, 7, 7), dtype), Spec((2048,), _statistic(dtype))
    yield _call("batch_norm_train", small, residual=small)
    yield _call("batch_norm_train_backward", small, small, each, each, mean=each, rstd=each)
    for shape in ((5, 31, 33, 67), (32, 28, 28, 128), (8, 56, 56, 64)):
        medium, each, last = Spec(shape, dtype), Spec(shape[-1:], _statistic(dtype)), {"layout": "channels_last"}
        for options in (last, {**last, "residual": medium, "activation": "relu"}):
            yield _call("batch_norm_train", medium, each, each, **options)
            yield _call("batch_norm_train_backward", medium, medium, each, each, mean=each, rstd=each, **options)


def _conv(dtype: np.dtype) -> Iterator[Call]:
    image, square, window = Spec((48, 56, 56, 64), dtype), Spec((64, 3, 3, 64), dtype), Spec((64, 3, 3, 16), dtype)
    dense = {"padding": 1, "layout": "channels_last"}
    yield _call("conv_backward_weight", image, image, weight_shape=square.shape, **dense)
    grouped = {"groups": 4} | dense
    yield _call("conv", image, window, **grouped)
    yield _call("conv", image, Spec((64, 3, 3, 4), dtype), residual=image, **grouped | {"groups": 16})
    yield _call("conv_backward_input", image, window, input_shape=image.shape, **grouped)
    yield _call("conv_backward_weight", image, image, weight_shape=window.shape, **grouped)
    yield _call("conv", image, square, residual=image, **dense)
    yield _call("conv_backward_input", image, square, input_shape=image.shape, **dense)
    yield _call("conv_backward", image, image, square, activation="gelu", **dense)
    yield _call("conv", Spec((8, 64, 56, 56), dtype), Spec((64, 64, 3, 3), dtype), padding=1)
    yield _call("conv", image, Spec((256, 1, 1, 64), dtype), layout="channels_last")


def _few_channels(dtype: np.dtype) -> Iterator[Call]:
    first, weight, result = Spec((2, 64, 64, 3), dtype), Spec((64, 7, 7, 3), dtype), Spec((2, 32, 32, 64), dtype)
    options = {"stride": 2, "padding": 3, "layout": "channels_last"}
    yield _call("conv", first, weight, **options)
    yield _call("conv_backward_input", result, weight, input_shape=first.shape, **options)
    yield _call("conv_backward_weight", result, first, weight_shape=weight.shape, **options)


def _depthwise(dtype: np.dtype) -> Iterator[Call]:
    for space, window in (((4096,), (5,)), ((112, 112), (3, 3)), ((56, 56), (5, 5))):
        image, weight = Spec((8, 64, *space), dtype), Spec((64, 1, *window), dtype)
        options = {"groups": 64, "padding": window[0] // 2}
        yield _call("conv", image, weight, **options)
        yield _call("conv_backward_input", image, weight, input_shape=image.shape, **options)
        yield _call("conv_backward_weight", image, image, weight_shape=weight.shape, **options)
    for space, window in (((56, 56), (7, 7)), ((8, 28, 56), (3, 3, 3))):
        image, options = (
            Spec((8, *space, 64), dtype),
            {"groups": 64, "padding": window[0] // 2, "layout": "channels_last"},
        )
        yield _call("conv_backward_weight", image, image, weight_shape=(64, *window, 1), **options)
    image, weight, grad = Spec((64, 56, 56, 96), dtype), Spec((192, 3, 3, 1), dtype), Spec((64, 56, 56, 192), dtype)
    yield _call(
        "conv_backward_input", grad, weight, input_shape=image.shape, groups=96, padding=1, layout="channels_last"
    )
