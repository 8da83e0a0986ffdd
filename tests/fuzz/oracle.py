"""The expected results and gradients, and how far rounding may move them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._call.introspect import question
from dnnarray._call.operation import find
from dnnarray._cpu.compiled import Compiled
from dnnarray._problems.base import leaves
from dnnarray._spec import FLOAT64
from tests.oracles.activation import ELEMENTWISE, elementwise
from tests.registry import ORACLES
from tests.support import DTYPES, call_by, tolerance

_FUSED = ("conv", "conv_transpose", "linear", "batch_norm", "batch_norm_train", "group_norm")
_NUMBERLESS = ("group", "return_tape")
_ROUNDINGS = 16  # roundings that meet in one term, as in `tests.support.tolerance`
_MORE = 8  # times as many samples where few do not explain a result
_STEP = 1e-4
_LEAST = {8: float(np.finfo(np.float64).tiny), 4: float(np.finfo(np.float32).tiny), 2: 0.0}
_SAMPLES = 3  # perturbed inputs


class Unverified(Exception):  # noqa: N818 - no error: the oracle does not know
    """There is no number to hold a result to."""


def expected(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> list[np.ndarray]:
    """The oracle's results in float64, flat."""
    base = find(op).base
    options = {n: v for n, v in options.items() if n not in _NUMBERLESS}
    activation = options.pop("activation", None) if base in _FUSED else None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            results = ORACLES[base](*arrays, **options)
            results = list(results) if isinstance(results, tuple) else [results]
            if activation is not None:
                results[0] = elementwise(ELEMENTWISE[activation])(results[0])
        except Exception as error:  # an overflow, a sum over infinities, an option that it does not know
            raise Unverified(f"oracle: {type(error).__name__}") from error
    return [np.asarray(r) for r in leaves(results)]


# --- gradients --------------------------------------------------------------------------------------------------------


def reference(backward: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The gradient by an algorithm of NumPy in float64; `derivative_agrees` holds it to the oracle."""
    with dnn.options(workspace_limit=None, threads=None, telemetry=False):
        asked = question(backward, arrays, dict(options))
        names = [j.method.name for j in asked.rank() if j.reason is None and not isinstance(j.method.run, Compiled)]
        return call_by(names[0], backward, arrays, options)


def derivative_agrees(
    op: str,
    arrays: tuple[Any, ...],
    options: dict[str, Any],
    cotangents: list[Any],
    gradients: dict[int, np.ndarray],
    rng: Any,
) -> str | None:
    """Gradients against differences of the oracle along a random direction: what is wrong in words, or None.

    `gradients` are by the number of the flat leaf that each is of. The differences of two steps must agree, those to
    both sides too, else the oracle has a bend there."""
    flat = leaves(arrays)
    base = expected(op, arrays, options)
    if "attention" not in op and not all(
        np.isfinite(r).all() for c, r in zip(cotangents, base, strict=True) if c is not None
    ):
        raise Unverified("derivative: not finite")
    # The log-sum-exp of a row without keys is -infinity, wherever its arrays lie.
    weights = [c if c is None else np.where(np.isfinite(r), c, 0) for c, r in zip(cotangents, base, strict=True)]
    still = _still(op, arrays, options)
    directions = {i: np.where(still.get(i, False), 0, _direction(flat[i], g, rng)) for i, g in gradients.items()}

    def objective(t: float) -> float:
        moved = iter([a + t * directions[i] if i in directions else a for i, a in enumerate(flat)])
        results = expected(op, tuple(_rebuilt(a, moved) for a in arrays), options)
        return math.fsum(
            float(np.sum(np.where(w == 0, 0, w * r))) for w, r in zip(weights, results, strict=True) if w is not None
        )

    with np.errstate(all="ignore"):
        found = math.fsum(float(np.sum(g * directions[i])) for i, g in gradients.items())
        scale = math.fsum(float(np.sqrt(np.sum((g * directions[i]) ** 2))) for i, g in gradients.items())
        return _differences_agree(objective, found, scale)


def _still(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> dict[int, np.ndarray]:
    """Where the gradient is 0 by definition though the result depends on the element, by the number of the leaf."""
    if op != "embedding" or options.get("padding_index") is None:
        return {}
    rows = np.zeros(arrays[1].shape, bool)
    rows[options["padding_index"]] = True
    return {1: rows}


def _direction(array: np.ndarray, gradient: np.ndarray, rng: Any) -> np.ndarray:
    """As large as the array's numbers; nothing where they are infinite."""
    size = max(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)), 1e-3)
    return np.where(np.isfinite(array), rng.standard_normal(gradient.shape) * size, 0)


def _differences_agree(objective: Callable[[float], float], found: float, scale: float) -> str | None:
    middle, step = objective(0.0), _STEP
    for _ in range(3):
        below2, below, above, above2 = (objective(k * step) for k in (-2, -1, 1, 2))
        near, far = (above - below) / (2 * step), (above2 - below2) / (4 * step)
        if not all(map(math.isfinite, (near, far, found, middle))):
            raise Unverified("derivative: not finite")
        size = max(scale, abs(near))
        noise = 1e-12 * (1 + abs(middle)) / step
        spread = abs(near - far)
        # Of a smooth function the second difference falls with the square of the step, at a bend with the step itself.
        bend = abs(2 * (above - 2 * middle + below) - (above2 - 2 * middle + below2) / 2) / step
        if bend <= 1e-5 * size + noise and spread <= 1e-4 * size + noise:
            allowed = 10 * (spread + bend) + 1e-6 * size + noise
            apart = (
                f"the derivative along a random direction is {near:.9g}, that of the gradient {found:.9g}, more "
                f"than {allowed:.3g} apart"
            )
            return None if abs(found - near) <= allowed else apart
        step /= 16
    raise Unverified("derivative: a bend")


def _rebuilt(tree: Any, values: Any) -> Any:
    if tree is None:
        return None
    if isinstance(tree, (tuple, list)):
        branches = [_rebuilt(branch, values) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    return next(values)


# --- what cancels -----------------------------------------------------------------------------------------------------


def meeting(op: str, arrays: dict[str, Any]) -> float:
    """The size of the numbers that meet on the way of a forward, however little is left of them.

    Algorithms that transform an image add up products of all its elements, where the definition may meet none. The
    gates of recurrent cells are exact to a rounding of 1, however far they are closed, and a layer multiplies the
    rounded states of the one before by its weights."""
    if op.startswith("conv"):
        factors = [_size(a) for a in list(arrays.values())[:2]]
        return factors[0] * factors[1]
    if op in ("log_softmax", "cross_entropy", "linear_cross_entropy"):  # the logarithm of a sum of 1 and little else
        return max(_size(arrays.get("weight")), 1.0)
    if op.partition("_")[0] in ("rnn", "gru", "lstm"):
        return max(1.0, *map(_size, leaves(arrays.get("weights"))))
    return 0.0


def cancelling(
    op: str, cotangents: list[Any], arrays: dict[str, Any], options: dict[str, Any], kept: bool = False
) -> float:
    """The size of terms whose differences a gradient is, whatever is left of them: of what is divided by its own sum or
    size, or saturates.

    `kept` says that the gradient is computed from what the forward kept.
    """
    given = max((_size(c) for c in cotangents), default=0.0)
    if op in ("sigmoid", "tanh"):  # 1 less the result, which is rounded
        return given if kept else 0.0
    weight = max(_size(arrays.get("weight")), 1.0)
    if op in ("softmax", "log_softmax", "softmin", "cross_entropy", "nll_loss", "ctc_loss"):
        return given * weight
    if op == "grid_sample":  # the slopes of the weights have the sum 0
        return given * _size(arrays["x"]) * max(arrays["x"].shape[2:])
    if op == "linear_cross_entropy":
        return given * max(_size(arrays["x"]), _size(arrays["w"]), 1.0) * weight
    if "attention" in op:
        given, q, k, v = (
            _projected(given, arrays)
            if op == "multi_head_attention"
            else (given, *(_size(a) for a in list(arrays.values())[:3]))
        )
        return given * max(q, k, 1.0) * max(v, 1.0)
    if op.endswith("norm") or op == "batch_norm_train":
        return given * weight * _largest_rstd(op, arrays, options)
    if op.startswith("conv") or op.partition("_")[0] in ("rnn", "gru", "lstm"):
        return given * max(*(_size(a) for a in leaves(tuple(arrays.values()))), 1.0)
    return 0.0


def _projected(given: float, arrays: dict[str, Any]) -> tuple[float, float, float, float]:
    """The sizes of the gradient and of q, k and v between the projections."""
    q, k, v = (
        _size(arrays[f"x_{n}"]) * _size(np.abs(arrays[f"w_{n}"]).sum(1)) + _size(arrays.get(f"b_{n}")) for n in "qkv"
    )
    return given * _size(np.abs(arrays["w_o"]).sum(0)), q, k, v


def _size(array: Any) -> float:
    return 0.0 if array is None or not array.size else float(np.abs(np.where(np.isfinite(array), array, 0)).max())


def folded(op: str, arrays: dict[str, Any], options: dict[str, Any]) -> float:
    """The size of the terms x * rstd and mean * rstd whose difference a norm is, where they are rounded before they
    meet."""
    if not op.endswith("norm") and op != "batch_norm_train":
        return 0.0
    if op == "batch_norm":
        variance = arrays.get("variance")
        rstd = (
            1.0
            if variance is None or not variance.size
            else float(1 / np.sqrt(np.min(variance) + options.get("eps", 1e-5)))
        )
    else:
        rstd = _largest_rstd(op, arrays, options)
    return _size(arrays["x"]) * rstd * max(_size(arrays.get("weight")), 1.0)


def look_for_edges(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Unverified where the samples of a box stand at the edge of the image, so that rounding decides which of them
    count."""
    if op != "roi_align":
        return
    exact = expected(op, arrays, options)
    for step in (-1e-12, 1e-12):
        moved = expected(op, (arrays[0], arrays[1] + [0, step, step, step, step], *arrays[2:]), options)
        if any(
            np.any(np.abs(m - e) > 1e-6 * (np.abs(e) + _size(arrays[0]))) for m, e in zip(moved, exact, strict=True)
        ):
            raise Unverified("derivative: an edge of the image")


def _largest_rstd(op: str, arrays: dict[str, Any], options: dict[str, Any]) -> float:
    """The largest factor that numbers are brought to size 1 by."""
    x = arrays["x"] + arrays["residual"] if op.startswith("add_") else arrays["x"]
    if op in ("batch_norm", "local_response_norm") or not x.size:
        return 1.0
    first = np.moveaxis(x, -1, 1) if options.get("layout") == "channels_last" else x
    if op == "batch_norm_train":
        variances = first.var(axis=tuple(i for i in range(x.ndim) if i != 1))
    elif op in ("group_norm", "instance_norm"):
        groups = options.get("num_groups", first.shape[1])
        variances = first.reshape(first.shape[0], groups, -1).var(axis=2)
    else:
        axis = options.get("axis", -1)
        variances = (x**2).mean(axis=axis) if "rms" in op else x.var(axis=axis)
    return float(1 / np.sqrt(np.min(variances) + options.get("eps", 1e-6 if "rms" in op else 1e-5)))


# --- comparison -------------------------------------------------------------------------------------------------------


def wrong(
    actual: list[np.ndarray],
    exact: list[np.ndarray],
    reduction: int,
    again: Callable[[tuple[Any, ...]], list[np.ndarray]],
    inputs: tuple[Any, ...],
    level: float,
    rng: Any,
    scale: float = 0.0,
) -> str | None:
    """What is wrong with results, in words, or None.

    First the tolerance of the project, with the numbers of at least `scale` that meet on the way. Where that is not
    met, the exact results of inputs that are moved by `level` of themselves, or by as much as sixteen roundings of the
    arithmetic: what a backward stable algorithm may give, near a bend or where terms cancel too."""
    with np.errstate(all="ignore"):
        return _wrong(actual, exact, reduction, again, inputs, level, rng, scale)


def _wrong(
    actual: list[np.ndarray],
    exact: list[np.ndarray],
    reduction: int,
    again: Any,
    inputs: Any,
    level: float,
    rng: Any,
    scale: float,
) -> str | None:
    found = None
    moved: list[list[np.ndarray]] | None = None
    for i, (a, e) in enumerate(zip(actual, exact, strict=True)):
        if a.shape != e.shape:
            return f"result {i} has the shape {a.shape}, not {e.shape}"
        if not _outside(a, e, _plain(a, e, reduction, scale)).any():
            continue
        if moved is None:
            moved = _moved(again, inputs, max(level, _ROUNDINGS * _unit(actual)), rng)
        allowed = _plain(a, e, reduction, scale) + _spread([m[i] for m in moved], e)
        if (
            _outside(a, e, allowed).any() and len(moved) == _SAMPLES
        ):  # few samples may miss a bend that one element is near
            moved += [
                more
                for _ in range(_MORE)
                for more in _moved(again, inputs, max(level, _ROUNDINGS * _unit(actual)), rng)
            ]
            allowed = _plain(a, e, reduction, scale) + _spread([m[i] for m in moved], e)
        outside = _outside(a, e, allowed)
        if outside.any():
            found = found or _told(i, a, e, allowed, outside)
    return found


def _spread(moved: list[np.ndarray], exact: np.ndarray) -> np.ndarray:
    """How far results may be off that are as good as those of inputs that were moved."""
    spread = np.max([np.abs(m - exact) for m in moved], axis=0) if exact.size else np.zeros(exact.shape)
    spread = np.where(np.isfinite(spread), spread, np.inf)
    return 4 * spread + 2 * _upper_quartile(spread)


def _upper_quartile(spread: np.ndarray) -> float:
    """Of what is finite: between two infinite numbers there is no quantile."""
    finite = spread[np.isfinite(spread)]
    return float(np.quantile(finite, 0.75)) if finite.size else 0.0


def _unit(results: list[np.ndarray]) -> float:
    """Half a unit in the last place of the arithmetic."""
    return 2.0**-53 if all(r.dtype == FLOAT64 or r.dtype not in DTYPES for r in results) else 2.0**-24


def _moved(again: Any, inputs: tuple[Any, ...], level: float, rng: Any) -> list[list[np.ndarray]]:
    found = []
    for _ in range(_SAMPLES):
        flat = leaves(inputs)
        values = iter([_near(a, level, rng) for a in flat])
        found.append(again(tuple(_rebuilt(a, values) for a in inputs)))
    return found


def _near(array: Any, level: float, rng: Any) -> Any:
    if not isinstance(array, np.ndarray) or array.dtype != FLOAT64:
        return array
    return array * (1 + level * rng.uniform(-1, 1, array.shape))


def _plain(a: np.ndarray, e: np.ndarray, reduction: int, scale: float) -> np.ndarray:
    finite = np.abs(e[np.isfinite(e)]) if e.dtype.kind == "f" else np.zeros(0)
    if a.dtype not in DTYPES:
        return np.zeros(e.shape)
    return tolerance(a.dtype, reduction, float(finite.max(initial=scale)), np.where(np.isfinite(e), e, 0))


def _outside(a: np.ndarray, e: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Where a result is off by more than is allowed, or is NaN or infinite elsewhere than expected."""
    if a.dtype not in DTYPES:
        return np.asarray(a != e)
    with np.errstate(all="ignore"):
        got = a.astype(np.float64)
        most = float(np.finfo(np.float32).max) if a.dtype.kind != "f" else float(np.finfo(a.dtype).max)
        near = np.abs(got - e) <= allowed + _LEAST[a.dtype.itemsize]  # what is below the normal numbers may become 0
        same = (got == e) | (np.isnan(got) & np.isnan(e))
        beyond = (np.abs(e) + allowed >= 0.99 * most) & np.isinf(got) & (np.sign(got) == np.sign(e))
        return np.asarray(~(near | same | beyond | np.isinf(allowed)))


def _told(i: int, a: np.ndarray, e: np.ndarray, allowed: np.ndarray, outside: np.ndarray) -> str:
    at = tuple(int(k) for k in np.argwhere(outside)[0])
    return (
        f"result {i} {a.dtype}{list(a.shape)} at {at}: {a[at]!r}, expected {e[at]!r}, allowed {allowed[at]:.3g}; "
        f"{int(outside.sum())} of {outside.size} elements"
    )
