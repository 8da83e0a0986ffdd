"""Calls with sums of up to millions of terms, each with its results in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnarray._problems.base import tree_map
from tests.support import call_by, flat

N = 1 << 20
FIRST, LAST = "channels first", "channels last"
IMAGES = (FIRST, LAST)


@dataclass(frozen=True)
class Row:
    """``exact(*arrays)`` gives the results in float64, None for one that is left out."""

    name: str
    op: str
    arrays: Callable[[], tuple[Any, ...]]
    exact: Callable[..., Any]
    terms: int = N
    options: dict[str, Any] = field(default_factory=dict)
    orders: tuple[str, ...] = (FIRST,)
    condition: float = 1.0

    def __str__(self) -> str:
        return self.name


def near(seed: int, *shape: int) -> np.ndarray:
    """Numbers around 0.1: a sum in float32 that has grown large rounds them all the same way."""
    drawn = np.random.default_rng(seed).random(shape, np.float32)
    drawn *= np.float32(0.02)
    drawn += np.float32(0.09)
    drawn.flags.writeable = False
    return drawn


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def labels(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, count, shape)


def wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def channel_sums(a: np.ndarray) -> np.ndarray:
    return wide(a).sum(tuple(i for i in range(a.ndim) if i != 1))


def by_double(op: str, **options: Any) -> Callable[..., list[Any]]:
    """The same call in float64, whose sums are shorter than its digits."""

    def exact(*arrays: Any) -> list[Any]:
        arrays = tuple(tree_map(lambda a: wide(a) if a.dtype == np.float32 else a, x) for x in arrays)
        return list(flat(call_by(None, op, arrays, options)))

    return exact


class Rows(list[Row]):
    def add(
        self,
        name: str,
        op: str,
        arrays: Any,
        exact: Any,
        *,
        terms: int = N,
        orders: Any = (FIRST,),
        condition: float = 1.0,
        **options: Any,
    ) -> None:
        self.append(Row(name, op, arrays, exact, terms, options, orders, condition))
