"""The checks that all families share. Each raises the named error in the one message form, or returns the normal form.

`op` is always the name of the public function that was called and `name` the argument, so that a message can be read
aloud."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dnnarray._errors import DTypeError, OptionError, ShapeError, fail, fail_choice
from dnnarray._spec import FLOAT32, FLOATING, HALF, Spec

LAYOUTS = ("channels_first", "channels_last")
_SPACE = {1: "W", 2: "H W", 3: "D H W"}
_MOST = 2**31 - 1  # the largest window, stride, dilation, padding or output size: products of two still fit int64
FLOAT_NAMES = "float64, float32, float16 or bfloat16"
CONVERT = "Convert it first: with .astype, in PyTorch with .to."


# --- arrays -----------------------------------------------------------------------------------------------------------


def floating(op: str, name: str, spec: Spec) -> None:
    """`spec` holds one of the four floating dtypes."""
    if spec.dtype not in FLOATING:
        fail(DTypeError, op, name, spec.dtype.name, FLOAT_NAMES, CONVERT)


def integers(op: str, name: str, spec: Spec) -> None:
    """`spec` holds integers (indices, lengths, labels); booleans are not integers."""
    if spec.dtype.kind not in "iu":
        fail(DTypeError, op, name, spec.dtype.name, "an integer dtype", CONVERT)


def booleans(op: str, name: str, spec: Spec) -> None:
    """`spec` holds booleans."""
    if spec.dtype.kind != "b":
        fail(DTypeError, op, name, spec.dtype.name, "bool", "Compare first, for example mask != 0.")


def same_dtype(op: str, **arrays: Spec | None) -> np.dtype:
    """All arrays given are floating and of the dtype of the first; returns it."""
    given = [(name, spec) for name, spec in arrays.items() if spec is not None]
    first, reference = given[0]
    for name, spec in given:
        floating(op, name, spec)
        if spec.dtype != reference.dtype:
            fail(DTypeError, op, name, spec.dtype.name, f"{reference.dtype.name}, the dtype of {first}", CONVERT)
    return reference.dtype


def parameter_dtype(op: str, x: Spec, *, reference: str = "x", **arrays: Spec | None) -> None:
    """Norm parameters and statistics: the dtype of x, or float32 beside a half x; `reference` is what x is called
    there."""
    for name, spec in arrays.items():
        if spec is None or spec.dtype == x.dtype or (spec.dtype == FLOAT32 and x.dtype in HALF):
            continue
        expected = f"{x.dtype.name}, the dtype of {reference}" + (", or float32" if x.dtype in HALF else "")
        fail(DTypeError, op, name, spec.dtype.name, expected, CONVERT)


def statistics_dtype(x: Spec) -> np.dtype:
    """Dtype of saved statistics (mean, rstd, lse): float32 for half types, else that of x."""
    return FLOAT32 if x.dtype in HALF else x.dtype


def rank(op: str, name: str, spec: Spec, ranks: int | Iterable[int], axes: str) -> None:
    """`spec` has one of `ranks` axes; `axes` names them in the message (``"N C *space"``)."""
    allowed = (ranks,) if isinstance(ranks, int) else tuple(ranks)
    if spec.ndim not in allowed:
        wanted = " or ".join(str(r) for r in allowed)
        fail(ShapeError, op, name, f"{spec.ndim}-dimensional {spec.shape}", f"{wanted} dimensions ({axes})")


def shape(op: str, name: str, spec: Spec, expected: Sequence[int | None], axes: str, fix: str | None = None) -> None:
    """`spec` has exactly this shape; None in `expected` matches any extent."""
    if spec.ndim == len(expected) and all(e is None or n == e for n, e in zip(spec.shape, expected, strict=True)):
        return
    wanted = "(" + ", ".join("*" if e is None else str(e) for e in expected) + ("," if len(expected) == 1 else "") + ")"
    fail(ShapeError, op, name, f"of shape {spec.shape}", f"{wanted} ({axes})", fix)


def broadcastable(op: str, name: str, spec: Spec, target: tuple[int, ...], axes: str) -> None:
    """`spec` broadcasts to `target` by NumPy's rules without growing it."""
    ok = spec.ndim <= len(target) and all(
        n in (1, t) for n, t in zip(reversed(spec.shape), reversed(target), strict=False)
    )
    if not ok:
        fail(ShapeError, op, name, f"of shape {spec.shape}", f"a shape that broadcasts to {target} ({axes})")


def gradient(op: str, grad: Spec, output: Spec | None, name: str = "grad") -> None:
    """The incoming gradient has the shape and the dtype of the forward's output."""
    assert output is not None
    if grad.shape != output.shape:
        fail(ShapeError, op, name, f"of shape {grad.shape}", f"{output.shape}, the shape of the forward's output")
    if grad.dtype != output.dtype:
        fail(DTypeError, op, name, grad.dtype.name, f"{output.dtype.name}, the dtype of the forward's output")


def tape(op: str, given: Spec, expected: Spec) -> None:
    """What a forward kept for its gradient is what that forward would return."""
    if given.dtype != expected.dtype:
        fail(
            DTypeError,
            op,
            "tape",
            given.dtype.name,
            f"{expected.dtype.name}, as the forward of the same arrays returns it",
        )
    if given.shape != expected.shape:
        fail(
            ShapeError,
            op,
            "tape",
            f"of shape {given.shape}",
            f"{expected.shape}, as the forward of the same arrays returns it",
        )


# --- options ----------------------------------------------------------------------------------------------------------


def integer(op: str, name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """An int (NumPy integers too, booleans not) inside the closed range."""
    expected = "an integer" + _range_text(minimum, maximum)
    if isinstance(value, (bool, np.bool_)) or _is_foreign(value):
        fail(OptionError, op, name, repr(value), expected)
    try:
        number = operator.index(value)
    except TypeError:
        fail(OptionError, op, name, repr(value), expected)
    if number.bit_length() > 64:
        fail(OptionError, op, name, f"an integer of {number.bit_length()} bits", expected)
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        fail(OptionError, op, name, number, expected)
    return number


def number(
    op: str,
    name: str,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    above: float | None = None,
    finite: bool = True,
) -> float:
    """A real number, never NaN, inside the closed range; `above` is an open lower bound; infinity only if not
    `finite`."""
    expected = ("a finite number" if finite else "a number") + _range_text(minimum, maximum)
    expected += f" above {above}" if above is not None else ""
    if isinstance(value, (bool, np.bool_, str, bytes)) or getattr(value, "ndim", None) or _is_foreign(value):
        fail(OptionError, op, name, repr(value), expected)
    try:
        result = float(value)
    except (TypeError, ValueError):
        fail(OptionError, op, name, repr(value), expected)
    except OverflowError:
        fail(OptionError, op, name, "an integer beyond all floating numbers", expected)
    low = (minimum is not None and result < minimum) or (above is not None and result <= above)
    if math.isnan(result) or (finite and math.isinf(result)) or low or (maximum is not None and result > maximum):
        fail(OptionError, op, name, result, expected)
    return result


def _is_foreign(value: Any) -> bool:
    """An array of another namespace: it may change in place, and what was decided for a call is remembered by its
    options."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)


def _range_text(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of {minimum} or more"
    return f" of {maximum} or less" if maximum is not None else ""


def choice(op: str, name: str, value: Any, choices: Iterable[Any]) -> Any:
    """One of `choices` (compared by type too, so that True is not taken for 1); NumPy's scalars and members of an
    enumeration of texts too."""
    options = tuple(choices)
    plain = value.item() if isinstance(value, np.generic) else value
    for option in options:
        if (type(plain) is type(option) or isinstance(plain, str)) and plain == option:
            return option
    fail_choice(op, name, value, options)


def boolean(op: str, name: str, value: Any) -> bool:
    """True or False; NumPy's too, numbers not."""
    if not isinstance(value, (bool, np.bool_)):
        fail(OptionError, op, name, repr(value), "True or False")
    return bool(value)


def layout(op: str, value: Any) -> str:
    return choice(op, "layout", value, LAYOUTS)


def axis(op: str, name: str, value: Any, ndim: int) -> int:
    """An axis of an array with `ndim` axes, made non-negative."""
    index = integer(op, name, value)
    if not ndim:
        fail(
            OptionError,
            op,
            name,
            index,
            "an array with one dimension or more; this one is 0-dimensional and has no axis",
        )
    if not -ndim <= index < ndim:
        fail(OptionError, op, name, index, f"an axis of an array with {ndim} dimensions, {-ndim} to {ndim - 1}")
    return index % ndim


def axes(op: str, name: str, value: Any, ndim: int) -> tuple[int, ...]:
    """One axis or several different ones, non-negative and sorted."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    result = tuple(sorted(axis(op, name, v, ndim) for v in values))
    if not result or len(set(result)) != len(result):
        fail(OptionError, op, name, repr(value), "one axis or more, each named once")
    return result


# --- spatial ----------------------------------------------------------------------------------------------------------


def per_axis(op: str, name: str, value: Any, rank_: int, minimum: int) -> tuple[int, ...]:
    """An int for all spatial axes, or one per axis."""
    if isinstance(value, (tuple, list)):
        if len(value) != rank_:
            fail(OptionError, op, name, repr(value), f"an integer or {rank_} of them, one per spatial axis")
        return tuple(_extent(op, name, v, minimum) for v in value)
    return (_extent(op, name, value, minimum),) * rank_


def _extent(op: str, name: str, value: Any, minimum: int) -> int:
    number = integer(op, name, value, minimum)
    if number > _MOST:
        fail(OptionError, op, name, number, f"an integer of {_MOST} or less")
    return number


def effective_window(window: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """The extent that a dilated window covers."""
    return tuple((w - 1) * d + 1 for w, d in zip(window, dilation, strict=True))


def padding(
    op: str,
    value: Any,
    extents: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, int], ...]:
    """The ``(before, after)`` padding of each spatial axis, from any form the contract allows."""
    if isinstance(value, str):
        choice(op, "padding", value, ("valid", "same", "same_lower"))
        if value == "valid":
            return ((0, 0),) * len(extents)
        covered = effective_window(window, dilation)
        totals = [max((-(-n // s) - 1) * s + w - n, 0) for n, s, w in zip(extents, stride, covered, strict=True)]
        pairs = [(t // 2, t - t // 2) for t in totals]
        return tuple(pairs if value == "same" else [(after, before) for before, after in pairs])
    if isinstance(value, (tuple, list)):
        if len(value) != len(extents):
            expected = (
                f"an integer, one per spatial axis ({len(extents)}), one (before, after) pair per axis, "
                '"valid", "same" or "same_lower"'
            )
            fail(OptionError, op, "padding", repr(value), expected)
        return tuple(_padding_pair(op, entry) for entry in value)
    return (_padding_pair(op, value),) * len(extents)


def _padding_pair(op: str, entry: Any) -> tuple[int, int]:
    if isinstance(entry, (tuple, list)):
        if len(entry) != 2:
            fail(OptionError, op, "padding", repr(entry), "a pair (before, after) for each spatial axis")
        return _extent(op, "padding", entry[0], 0), _extent(op, "padding", entry[1], 0)
    both = _extent(op, "padding", entry, 0)
    return both, both


def channel_axis(layout_: str, ndim: int) -> int:
    """Where the channels stand in an array N C *space or N *space C."""
    return 1 if layout_ == "channels_first" else ndim - 1


def split_layout(spec: Spec, layout_: str) -> tuple[int, int, tuple[int, ...]]:
    """(N, C, space) of an array in this layout."""
    if layout_ == "channels_first":
        return spec.shape[0], spec.shape[1], spec.shape[2:]
    return spec.shape[0], spec.shape[-1], spec.shape[1:-1]


def join_layout(n: int, c: int, space: tuple[int, ...], layout_: str) -> tuple[int, ...]:
    """The shape of (N, C, space) in this layout."""
    return (n, c, *space) if layout_ == "channels_first" else (n, *space, c)


def layout_axes(layout_: str, rank_: int) -> str:
    """The axes of a layout in words, for messages: ``N C H W``."""
    space = _SPACE.get(rank_, "*space")
    return f"N C {space}" if layout_ == "channels_first" else f"N {space} C"


# --- values -----------------------------------------------------------------------------------------------------------


def indices_inside(op: str, name: str, array: Any, count: int, ignored: int | None = None) -> None:
    """Every entry of an index array is one of 0 to `count` - 1, or `ignored`. Reads the data: for ``values=``
    checks."""
    wrong = (array < 0) | (array >= count)
    if ignored is not None:
        wrong = wrong & (array != ignored)
    if wrong.any():
        expected = f"indices from 0 to {count - 1}" + (
            f", or {ignored} for those to ignore" if ignored is not None else ""
        )
        fail(OptionError, op, name, f"{int(array[wrong].reshape(-1)[0])} in one place", expected)
