"""Errors in float32 beside PyTorch's: every operation, forward and gradient, on both engines.

Inputs are normal, small and large. Units are half an ulp, 2**-24. The error of a result is the root mean square of the
errors of its numbers in relation to the largest of them; of an elementwise operation also the error in relation to each
number itself, of which one in a hundred may have a larger one: near a zero of the function that grows without bound.

No error may be above 1.5 times PyTorch's, where PyTorch's counts for no less than `_ROUNDED`, unless inputs that are an
ulp away move the exact results as far. With and without PyTorch, no error may be above the bound of the row, times that
movement where it is more than a unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from dnnarray._call.operation import find, operations
from dnnarray._cpu import engine
from dnnarray._cpu.compiled import Compiled
from dnnarray._problems.base import leaves, tree_map
from dnnarray._vjp import _by_name
from tests.accuracy import ROWS, Row
from tests.fuzz import oracle
from tests.support import Draw, as_float64, call_by, candidates

torch = import_module("torch") if find_spec("torch") else None
_UNIT = 2.0**-24
_FACTOR = 1.5
_ROUNDED = 2 / 3  # so that a result which is off by no more than its last rounding passes
_ULP = 2.0  # of each number of an elementwise operation: what libraries of functions give
_LEAST = 2.0**-102  # numbers below it, squared or multiplied, leave the range of float32
_CANCELLED = 2.0**-30  # of terms, of which nothing is left in float32
_INTERPOLATED = {
    "winograd_4x4": 4.0
}  # times a plain sum's error: docs/development/decisions/2026-11-22-winograd-at-highest.md


@dataclass(frozen=True)
class Error:
    """Of one array, in units; `each` is 0 where numbers are not held to themselves."""

    whole: float
    each: float


@dataclass(frozen=True)
class Call:
    """`forward` is the operation whose gradient `op` may be."""

    op: str
    forward: str
    arrays: tuple[Any, ...]
    options: dict[str, Any]

    def by(self, algorithm: str) -> dict[str, np.ndarray]:
        return self._named(call_by(algorithm, self.op, self.arrays, self.options))

    def exact(self, rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """In float64, by NumPy; of inputs that are each moved by up to an ulp where `rng` is given."""
        arrays = as_float64(self.arrays)
        if rng is not None:
            arrays = tree_map(lambda a: _moved(a, rng) if a.dtype.kind == "f" else a, arrays)
        return self._named(oracle.reference(self.op, arrays, self.options))

    def _named(self, results: Any) -> dict[str, np.ndarray]:
        """Results of a forward by their numbers, gradients by the numbers of the forward's arrays."""
        if self.op == find(self.forward).base:
            return {str(i): np.asarray(r) for i, r in enumerate(leaves(results))}
        operation = find(self.forward)
        named = _by_name(operation, results)
        every = enumerate(operation.arrays)
        return {f"d{i}.{j}": np.asarray(g) for i, name in every for j, g in enumerate(leaves(named.get(name)))}


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array * (1 + _UNIT * rng.uniform(-2, 2, array.shape))


# --- the calls of a row -----------------------------------------------------------------------------------------------


def _drawn(row: Row, scale: float) -> tuple[Any, ...]:
    rng = np.random.default_rng(len(row.name))

    def single(draw: Draw, factor: float) -> np.ndarray:
        values = np.asarray(draw.make(rng))
        return values if draw.kind == "fixed" else (values * factor).astype(np.float32)

    factors = [scale if i in row.scaled else 1.0 for i in range(len(row.arrays))]
    return tuple(tree_map(lambda d, f=f: single(d, f), tree) for tree, f in zip(row.arrays, factors, strict=True))


def _cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape, dtype=np.float32)


def _calls(row: Row, arrays: tuple[Any, ...]) -> Iterator[tuple[Call, dict[str, np.ndarray]]]:
    """The forward and, for the gradient of its first result, the backward, with their exact results."""
    forward = Call(find(row.op).base, row.op, arrays, row.options)
    exact = forward.exact()
    yield forward, exact
    if row.gradient:
        backward = find(f"{forward.op}_backward")
        options = {n: v for n, v in row.options.items() if n in backward.defaults}
        call = Call(backward.name, row.op, (_cotangent(exact["0"].shape), *arrays), options)
        yield call, call.exact()


def _algorithms(call: Call) -> list[str]:
    """The first choice of each engine."""
    runs = {method.name: method.run for method in engine.methods(find(call.op))}
    names = candidates(call.op, call.arrays, call.options)
    return list({isinstance(runs[name], Compiled): name for name in reversed(names)}.values())


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _tensor(array: np.ndarray, gradient: bool) -> Any:
    tensor = torch.from_numpy(np.array(array, order="C"))
    return tensor.requires_grad_(gradient) if tensor.is_floating_point() else tensor


def _by_torch(row: Row, arrays: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """The results and gradients of PyTorch, named as those of the calls; nothing where it has no counterpart."""
    if torch is None or row.peer is None:
        return {}
    given = tuple(tree_map(lambda a: _tensor(a, row.gradient), tree) for tree in arrays)
    results = row.peer(torch, *given)
    results = leaves(tuple(results) if isinstance(results, (tuple, list)) else results)
    found = {str(i): r.detach().numpy() for i, r in enumerate(results)}
    if row.gradient:
        places = {f"d{i}.{j}": t for i, tree in enumerate(given) for j, t in enumerate(leaves(tree)) if t.requires_grad}
        cotangent = torch.from_numpy(_cotangent(tuple(results[0].shape)))
        gradients = torch.autograd.grad(results[0], list(places.values()), cotangent, allow_unused=True)
        found |= {name: g.numpy() for name, g in zip(places, gradients, strict=True) if g is not None}
    return found


# --- errors -----------------------------------------------------------------------------------------------------------


def _least(call: Call, exact: np.ndarray) -> float:
    """The least number that errors are held to: the size of the terms of a gradient, where these cancel."""
    if not call.op.endswith(("softmax_backward", "softmin_backward", "attention_backward")):
        return _LEAST
    terms = float(np.abs(call.arrays[0]).max())
    if "attention" in call.op:
        terms *= max(float(np.abs(a).max()) for a in leaves(call.arrays[1:]))
        return terms if np.abs(exact).max() < _CANCELLED * terms else _LEAST
    return terms


def _error(found: np.ndarray, exact: np.ndarray, elementwise: bool, least: float) -> Error:
    exact = np.where(np.abs(exact) > np.finfo(np.float32).max, np.copysign(np.inf, exact), exact)
    finite = np.isfinite(exact)
    if not np.array_equal(finite, np.isfinite(found)):
        return Error(np.inf, np.inf)
    apart, exact = np.abs(found[finite] - exact[finite]), np.abs(exact[finite])
    if not apart.size:
        return Error(0.0, 0.0)
    whole = apart / max(float(exact.max()), least)
    each = float(np.quantile(apart / np.maximum(exact, _LEAST), 0.99)) if elementwise else 0.0
    return Error(math.sqrt(float((whole**2).mean())) / _UNIT, each / _UNIT)


def _largest(row: Row, count: int, theirs: Error | None, moved: Error, factor: float) -> Error:
    """What is allowed; of few numbers chance decides how large an error is."""
    factor *= 1 + 1.5 / math.sqrt(count)

    def one(theirs: float, rounded: float, moved: float) -> float:
        return min(max(factor * max(theirs, rounded), moved), row.bound * max(moved, 1.0))

    theirs = theirs or Error(math.inf, math.inf)
    return Error(one(theirs.whole, _ROUNDED, moved.whole), one(theirs.each, _ULP, moved.each))


def _wrong(row: Row, scale: float) -> Iterator[str]:
    arrays = _drawn(row, scale)
    theirs = _by_torch(row, arrays)
    for call, exact in _calls(row, arrays):
        moved = call.exact(np.random.default_rng(3))
        for algorithm in _algorithms(call):
            factor = _INTERPOLATED.get(algorithm, _FACTOR)
            for name, found in call.by(algorithm).items():
                if found.dtype != np.float32:
                    continue
                every, least = (found, moved[name], theirs.get(name)), _least(call, exact[name])
                mine, spread, peer = (
                    None if a is None else _error(a, exact[name], row.elementwise, least) for a in every
                )
                limit = _largest(row, found.size, peer, spread, factor)
                if mine.whole > limit.whole or mine.each > limit.each:
                    yield (
                        f"{call.op} by {algorithm}, inputs of {scale:g}, {name}: {mine}, allowed {limit}, PyTorch "
                        f"{peer}"
                    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_errors_are_no_larger_than_those_of_pytorch(row):
    with np.errstate(all="ignore"):
        wrong = [line for scale in row.scales for line in _wrong(row, scale)]
    assert not wrong, "\n".join(wrong)


def test_every_operation_has_a_row():
    forward = {name for name, op in operations().items() if name == op.base and not name.endswith("_backward")}
    assert forward == {row.op for row in ROWS}
