"""What all tests share: cases, drawn arrays, the one tolerance function, finite differences."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.introspect import question
from dnnarray._call.operation import find, operations
from dnnarray._cpu.compiled import Compiled
from dnnarray._problems.base import leaves, tree_map
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF

DTYPES = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)
_EPS = {FLOAT64: 2.0**-52, FLOAT32: 2.0**-23, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}
_TINY = {FLOAT64: 0.0, FLOAT32: 0.0, FLOAT16: 2.0**-24, BFLOAT16: 2.0**-133}
_ROUNDINGS = 16  # roundings that meet in one term of a sum: transforms, an exp, a division, the product itself


@dataclass(frozen=True)
class Draw:
    """An array to be drawn; `kind` "float" is cast to the dtype under test, "fixed" keeps its own."""

    make: Callable[[np.random.Generator], np.ndarray]
    kind: str = "float"


def normal(*shape: int, scale: float = 1.0) -> Draw:
    """Standard normal numbers times `scale`."""
    return Draw(lambda rng: rng.standard_normal(shape) * scale)


def uniform(low: float, high: float, *shape: int) -> Draw:
    return Draw(lambda rng: rng.uniform(low, high, shape))


def distinct(*shape: int) -> Draw:
    """Numbers at least 1/8 apart in any order, exact in every dtype up to 2048 of them: no ties, no kinks for a
    maximum."""
    return Draw(lambda rng: (rng.permutation(math.prod(shape)).reshape(shape) - math.prod(shape) // 2) / 8 + 1 / 16)


def values(data: Any) -> Draw:
    """These numbers, cast to the dtype under test."""
    return Draw(lambda rng: np.asarray(data, np.float64))


def fixed(data: Any, dtype: Any = np.int64) -> Draw:
    """These numbers in their own dtype (indices, lengths, masks)."""
    return Draw(lambda rng: np.asarray(data, dtype), "fixed")


def integers(low: int, high: int, *shape: int) -> Draw:
    """Integers of [low, high)."""
    return Draw(lambda rng: rng.integers(low, high, shape), "fixed")


def float32_beside_half(draw: Draw) -> Draw:
    """Norm parameters: float32 where the dtype under test is a half type."""
    return Draw(draw.make, "float32_beside_half")


@dataclass(frozen=True)
class Case:
    """One call of one operation.

    `arrays` in signature order (None where omitted, tuples where nested), `options` by name. `reduction` is the longest
    sum behind one element of a result, `condition` how much a rounding error of an input can grow (with its reason in
    `reason`). `gradient` False leaves the finite differences out; `dtypes` restricts the dtypes."""

    op: str
    id: str
    arrays: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    reduction: int = 1
    condition: float = 1.0
    gradient: bool = True
    dtypes: tuple[np.dtype, ...] = DTYPES

    def __str__(self) -> str:
        return f"{self.op}-{self.id}"

    def draw(self, dtype: np.dtype = FLOAT64) -> tuple[Any, ...]:
        """The arrays of the case, the same ones at every call."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))

        def materialise(draw: Draw) -> np.ndarray:
            array = np.array(draw.make(rng))
            if draw.kind == "fixed":
                return array
            return np.array(array, FLOAT32 if draw.kind == "float32_beside_half" and dtype in HALF else dtype)

        return tuple(tree_map(materialise, a) for a in self.arrays)


def as_float64(tree: Any) -> Any:
    """Floating arrays in float64, others as they are: what an oracle is given."""
    return tree_map(lambda a: a.astype(np.float64) if a.dtype in DTYPES else a, tree)


def call(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The public function on arrays in signature order; `options` may hold out, workspace and algorithm too."""
    operation = find(op)
    plain = {n: v for n, v in options.items() if n in ("out", "workspace", "algorithm")}
    bound, chosen = operation.bind(arrays, {n: v for n, v in options.items() if n not in plain})
    return operation.call(bound, chosen | plain)


def call_by(
    algorithm: str, op: str, arrays: tuple[Any, ...], options: dict[str, Any], out: Any = None, workspace: Any = None
) -> Any:
    """`call` by the algorithm of this name, also where the public function has no argument for it."""
    operation = find(op)
    bound, chosen = operation.bind(arrays, options)
    static, runtime = (tuple(chosen[n] for n in names) for names in (operation.static, operation.runtime))
    return dispatch(operation, bound, static, runtime, out, workspace, algorithm)


def candidates(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    """The algorithms that may run a call, those that have still to be compiled too: naming one compiles it."""
    asked = question(op, arrays, dict(options))
    device = asked.engine.device()
    return [j.method.name for j in asked.rank() if j.reason is None or _awaited(j.method.run, asked.problem, device)]


def _awaited(run: Any, problem: Any, device: Any) -> bool:
    return isinstance(run, Compiled) and run.awaited(problem, device) is not None


def flat(result: Any) -> list[np.ndarray]:
    """The results of a call as a list of NumPy arrays, None left out."""
    return [np.asarray(r) for r in leaves(result)]


def tolerance(
    dtype: np.dtype, reduction: int, scale: float, expected: np.ndarray, condition: float = 1.0, rounds: bool = False
) -> np.ndarray:
    """The largest error allowed for each element of `expected`.

    A result is rounded once to its own dtype: eps(dtype) * |expected| (a whole ulp, for a double rounding), and the
    smallest subnormal. Before that, in the arithmetic dtype (float64, or float32 for all others), each of `reduction`
    terms carries up to `_ROUNDINGS` roundings of random sign: `_ROUNDINGS` * eps * sqrt(reduction) * scale, where scale
    is the largest magnitude of the result. `condition` is the growth of an input's rounding error that the mathematics
    itself brings.

    An algorithm that `rounds` to its own dtype before a product adds to each term t of the sum an error of at most
    eps(dtype) / 2 * |t|, independent of the others: of mean square (eps(dtype) * t)**2 / 22, since such errors are even
    over +-eps / 2 / m for a number m * 2**k and the mean of 1 / m**2 is 0.54 for m in [1, 2) by Benford's law. The sum
    is then off by r * eps(dtype) / 4.7 in the root mean square, where r is the root of the sum of squares of the terms,
    which is what a sum of terms of any sign amounts to and scale is not below. eps(dtype) * scale is 4.7 times that:
    one element in 400,000 would be farther off if all were as large as scale."""
    arithmetic = _EPS[FLOAT64] if dtype == FLOAT64 else _EPS[FLOAT32]
    rounding = _EPS[dtype] * (np.abs(expected) + rounds * scale) + _TINY[dtype]
    return rounding + _ROUNDINGS * arithmetic * math.sqrt(max(reduction, 1)) * scale * condition


def assert_close(
    actual: Any, expected: Any, reduction: int = 1, condition: float = 1.0, note: str = "", rounds: bool = False
) -> None:
    """`actual` agrees with the float64 `expected` within `tolerance`; NaN and infinity stand in the same places."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{note} shape {actual.shape}, expected {expected.shape}"
    if actual.dtype not in DTYPES:
        np.testing.assert_array_equal(actual, expected, err_msg=note)
        return
    got = actual.astype(np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite], err_msg=f"{note} NaN or infinity")
    expected, got = expected[finite], got[finite]
    if not expected.size:
        return
    allowed = tolerance(actual.dtype, reduction, float(np.abs(expected).max()), expected, condition, rounds)
    error = np.abs(got - expected)
    worst = int(np.argmax(error - allowed))
    assert (np.isfinite(got) & (error <= allowed)).all(), (
        f"{note} {actual.dtype}: got {got.flat[worst]!r}, expected {expected.flat[worst]!r}, error "
        f"{error.flat[worst]:.3g} over the "
        f"allowed {allowed.flat[worst]:.3g}; {(error > allowed).sum()} of {error.size} elements"
    )


def check_forward(case: Case, dtype: np.dtype, oracle: Callable[..., Any], algorithm: str | None = None) -> None:
    """The engine's result for a case agrees with its oracle."""
    arrays = case.draw(dtype)
    actual = flat(
        call(case.op, arrays, case.options) if algorithm is None else call_by(algorithm, case.op, arrays, case.options)
    )
    expected = flat(oracle(*as_float64(arrays), **case.options))
    assert len(actual) == len(expected), f"{len(actual)} results, the oracle gives {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, case.reduction, case.condition, f"{case} result {i}")


_FD_STEP = 1e-5
_FD_TOLERANCE = 1e-6
_FD_ELEMENTS = 40  # elements of each array that are differentiated one by one


def gradient_call(case: Case, arrays: tuple[Any, ...]) -> tuple[str, tuple[Any, ...], dict[str, Any]] | None:
    """The call of the gradient for a drawn gradient of the first result: operation, arrays and options; None where
    there is none."""
    operation = find(case.op)
    if f"{operation.base}_backward" not in operations():
        return None
    backward = operations()[f"{operation.base}_backward"]
    specs = question(case.op, arrays, dict(case.options)).problem.outputs
    rng = np.random.default_rng(11)
    first = next(s for s in specs if s is not None)
    grad = rng.standard_normal(first.shape).astype(first.dtype)
    if "grad" in backward.nested and len(specs) > 1:
        grad = (grad, *(None for _ in specs[1:]))
    bound, options = operation.bind(arrays, case.options)
    given = dict(zip(operation.arrays, bound, strict=True)) | options
    kept = {n: v for n, v in given.items() if n in backward.arrays or n in backward.defaults}
    return backward.name, *backward.bind((grad,), kept)


def pulled_back(case: Case, arrays: tuple[Any, ...], rng: np.random.Generator) -> tuple[Any, tuple[Any, ...]]:
    """The gradients of a case for random gradients of its results, and these."""
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    cotangents = _cotangents(case.op, output if isinstance(output, tuple) else (output,), rng)
    return pullback(cotangents if isinstance(output, tuple) else cotangents[0]), cotangents


def gradients_of(case: Case) -> list[np.ndarray]:
    """The gradients in float64, for gradients of the results that are the same at every call."""
    return flat(pulled_back(case, case.draw(FLOAT64), np.random.default_rng(7))[0])


def check_same_gradient(case: Case, expected: list[np.ndarray]) -> None:
    """The pullback gives what it gave under other settings: these gradients in float64, to its last digits."""
    for got, exact in zip(gradients_of(case), expected, strict=True):
        assert_close(got, exact, max(case.reduction, exact.size), case.condition, f"{case} gradient")


def check_gradient(case: Case) -> None:
    """The pullback agrees with a central finite difference of the forward, in float64, element by element."""
    arrays = case.draw(FLOAT64)
    rng = np.random.default_rng(7)
    gradients, cotangents = pulled_back(case, arrays, rng)
    assert len(gradients) == len(arrays)
    weighted = [(i, c) for i, c in enumerate(cotangents) if c is not None]

    def objective() -> float:
        again = call(case.op, arrays, case.options)
        again = again if isinstance(again, tuple) else (again,)
        return sum(float(np.sum(c * again[i])) for i, c in weighted)

    for n, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        for leaf, got in _pairs(array, gradient):
            _check_leaf(f"{case} argument {n}", objective, leaf, got, rng)


def _cotangents(op: str, results: tuple[Any, ...], rng: np.random.Generator) -> tuple[Any, ...]:
    """Random gradients: of every floating result where the backward takes them all, else of the first."""
    takes_all = "grad" in find(f"{find(op).base}_backward").nested
    return tuple(
        rng.standard_normal(r.shape) if (i == 0 or takes_all) and r is not None and r.dtype.kind == "f" else None
        for i, r in enumerate(results)
    )


def _pairs(array: Any, gradient: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    if gradient is None:
        return []
    if isinstance(array, (tuple, list)):
        return [pair for a, g in zip(array, gradient, strict=True) for pair in _pairs(a, g)]
    return [(array, gradient)]


def _check_leaf(
    note: str, objective: Callable[[], float], array: np.ndarray, gradient: np.ndarray, rng: np.random.Generator
) -> None:
    assert gradient.shape == array.shape, f"{note}: gradient of shape {gradient.shape} for {array.shape}"
    chosen = (
        np.arange(array.size) if array.size <= _FD_ELEMENTS else rng.choice(array.size, _FD_ELEMENTS, replace=False)
    )
    expected = np.empty(len(chosen))
    for k, i in enumerate(chosen):
        index, kept = np.unravel_index(i, array.shape), array.flat[i]
        array[index] = kept + _FD_STEP
        above = objective()
        array[index] = kept - _FD_STEP
        below = objective()
        array[index] = kept
        expected[k] = (above - below) / (2 * _FD_STEP)
    got = gradient.reshape(-1)[chosen]
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=_FD_TOLERANCE * scale, err_msg=f"{note} gradient")
