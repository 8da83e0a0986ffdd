"""Random extents, options, values and memory orders of one call, all from one generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dnnarray._spec import FLOAT32, HALF
from tests.fuzz.memory import Layout, dense, packed

_SMALL = (1, 2, 3, 4, 5, 6, 7, 8)
_MIDDLE = (9, 11, 13, 15, 16, 17, 19, 24, 31, 32, 33)
_LARGE = (47, 63, 64, 65, 97, 127, 128, 130, 251, 256, 257, 509, 1021)
_BUDGETS = (60, 250, 250, 250, 600, 2000)  # elements of an array
_STYLES = ("normal",) * 32 + ("grid",) * 4 + ("scaled",) * 3 + ("constant", "zeros", "extreme", "special", "special")


@dataclass
class Leaf:
    """An array of a call: its values in its own dtype, and how it lies.

    `role` is "float" for the dtype under test, "beside" where float32 may stand beside a half type, "fixed" for indices
    and masks."""

    values: np.ndarray
    layout: Layout
    role: str = "float"

    @property
    def aligned(self) -> bool:
        """Whether it begins at a multiple of its itemsize."""
        return self.layout.offset % self.values.dtype.itemsize == 0

    def writable(self) -> Leaf:
        """An array of the same values that can be written over."""
        repeated = any(n > 1 and not stride for n, stride in zip(self.values.shape, self.layout.strides, strict=True))
        layout = dense(self.values.shape) if repeated else replace(self.layout, readonly=False, swapped=False)
        return Leaf(self.values, layout, self.role)


@dataclass
class Drawn:
    """What a drawer of an operation gives.

    Attributes
    ----------
    op : the operation
    arrays : leaves in signature order, None where omitted, nested where the operation is, integers where it takes them
    options : by name
    reduction : the longest sum behind an element
    gradient : whether the gradient is to be asked for as well
    """

    op: str
    arrays: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    reduction: int = 1
    gradient: bool = True


class Drawer:
    """The choices of one call. Named methods draw; everything comes from the one generator, in the order of the
    calls."""

    def __init__(self, rng: np.random.Generator, dtype: np.dtype, engine: str) -> None:
        self.rng, self.dtype, self.engine = rng, dtype, engine
        self.budget = self.choice(_BUDGETS)
        self.style = self.choice(_STYLES)
        self.tidy = self.maybe(0.35)  # all arrays in C order

    # --- numbers ------------------------------------------------------------------------------------------------------

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def choice(self, values: Sequence[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def integer(self, low: int, high: int) -> int:
        """Of the closed range."""
        return int(self.rng.integers(low, high + 1))

    def number(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def extent(self, zero: float = 0.02) -> int:
        """An extent: small mostly, 0 and 1, primes, beside powers of two, a few large."""
        at = self.rng.random()
        if at < zero:
            return 0
        return int(self.choice(_SMALL if at < 0.8 else _MIDDLE if at < 0.98 else _LARGE))

    def shape(self, rank: int, zero: float = 0.02) -> tuple[int, ...]:
        """Extents of no more elements than the call's budget."""
        extents = [self.extent(zero) for _ in range(rank)]
        while math.prod(extents) > self.budget:
            largest = extents.index(max(extents))
            extents[largest] = max(extents[largest] // self.integer(2, 3), 1)
        return tuple(extents)

    def some(self, **choices: Callable[[], Any]) -> dict[str, Any]:
        """Each option given by chance, so that defaults are met too."""
        return {name: draw() for name, draw in choices.items() if self.maybe(0.45)}

    def one_or_each(self, rank: int, draw: Callable[[], Any], alike: float = 0.6) -> Any:
        """An option as one value, or one for each spatial axis."""
        return draw() if self.maybe(alike) else tuple(draw() for _ in range(rank))

    def layout(self) -> str:
        return str(self.choice(("channels_first", "channels_first", "channels_last")))

    def seed(self) -> int:
        return int(self.choice((0, 1, 7, self.integer(0, 2**32), 2**40 + 5, 2**63 + self.integer(0, 2**40), 2**64 - 1)))

    def offset(self) -> int:
        return int(self.choice((0, 1, 2, 3, 5, self.integer(0, 1000), 2**32 - 2, 2**34 + 3, 2**40 + 1)))

    # --- arrays -------------------------------------------------------------------------------------------------------

    def floats(self, *shape: int, scale: float = 1.0, role: str = "float", repeats: bool = True) -> Leaf:
        """Numbers in the dtype under test, or float32 beside it; `repeats` allows strides of 0."""
        style = self.style if self.maybe(0.7) else "normal"
        return self.array(self._styled(style, shape) * scale, role, repeats)

    def tame(self, *shape: int, scale: float = 1.0, role: str = "float") -> Leaf:
        """Standard normal numbers times `scale`, whatever the style of the call."""
        return self.array(self.rng.standard_normal(shape) * scale, role)

    def positive(self, *shape: int, low: float = 0.25, high: float = 2.0, role: str = "float") -> Leaf:
        return self.array(self.rng.uniform(low, high, shape), role)

    def indices(self, low: int, high: int, *shape: int, repeats: bool = True) -> Leaf:
        """Integers of [low, high) in an integer dtype that has them all."""
        return self.whole(self.rng.integers(low, max(high, low + 1), shape), repeats)

    def whole(self, values: Any, repeats: bool = False) -> Leaf:
        """These integers in some integer dtype that has them all."""
        values = np.asarray(values, np.int64)
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        names = ("int64", "int64", "int32", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
        fitting = [n for n in names if np.iinfo(n).min <= low and high <= np.iinfo(n).max]
        return self.array(values.astype(self.choice(fitting)), "fixed", repeats)

    def mask(self, *shape: int) -> Leaf:
        """Booleans, two of three True."""
        return self.array(self.rng.random(shape) < 2 / 3, "fixed")

    def array(self, values: Any, role: str = "float", repeats: bool = True, dtype: Any = None) -> Leaf:
        """These values in memory of some order, in this dtype or that of their role."""
        values = np.asarray(values)
        if role != "fixed":
            own = FLOAT32 if role == "beside" and self.dtype in HALF and self.maybe() else self.dtype
            with np.errstate(all="ignore"):
                values = values.astype(dtype or own)
        layout = self.lie(values.shape, values.dtype.itemsize, repeats)
        for axis, (n, stride) in enumerate(zip(values.shape, layout.strides, strict=True)):
            if stride == 0 and n > 1:
                values = np.repeat(values.take([0], axis), n, axis)
        return Leaf(values, layout, role)

    def _styled(self, style: str, shape: tuple[int, ...]) -> np.ndarray:
        normal = self.rng.standard_normal(shape)
        if style == "grid":  # ties
            return np.round(normal * 2) / 4
        if style == "scaled":
            return normal * 10.0 ** self.number(-3, 2)
        if style == "constant":
            return np.full(shape, self.number(-3, 3))
        if style == "zeros":
            return np.zeros(shape)
        if style == "extreme":
            return normal * 10.0 ** (self.number(-1, 1) * np.log10(float(np.finfo(np.float32).max)))
        if style == "special":
            odd = np.array([np.nan, np.inf, -np.inf, -0.0])
            return np.where(self.rng.random(shape) < self.choice((0.02, 0.1)), self.rng.choice(odd, shape), normal)
        return normal

    # --- memory -------------------------------------------------------------------------------------------------------

    def lie(self, shape: tuple[int, ...], itemsize: int, repeats: bool = False, writable: bool = False) -> Layout:
        """A way for an array to lie in memory. `repeats` allows strides of 0, `writable` asks for an array that is
        written to."""
        strides = dense(shape).strides if self.tidy else self._strides(shape, repeats)
        host = self.engine != "cuda"
        offset = 0 if self.maybe(0.4) else itemsize * self.integer(0, 64 // itemsize)
        if host and self.maybe(0.01):
            offset += self.integer(1, itemsize)
        return Layout(
            strides, offset, host and not writable and self.maybe(0.1), host and not writable and self.maybe(0.01)
        )

    def _strides(self, shape: tuple[int, ...], repeats: bool) -> tuple[int, ...]:
        kind, rank = self.rng.random(), len(shape)
        order = list(range(rank))
        if kind > 0.75 and rank > 2:  # channels innermost, or outermost of all but the batch
            order = [0, *range(2, rank), 1] if self.maybe(0.7) else [0, rank - 1, *range(1, rank - 1)]
        elif kind > 0.55:
            order = [int(i) for i in self.rng.permutation(rank)]
        room = list(shape)
        steps = [1] * rank
        if self.maybe(0.3):
            for axis in range(rank):
                steps[axis] = self.choice((1, 1, 2, 3))
                room[axis] = shape[axis] * steps[axis] + self.choice((0, 0, 1, 3))
        strides = [s * step for s, step in zip(packed(tuple(room), order), steps, strict=True)]
        if self.maybe(0.12):
            strides = [-s if self.maybe() else s for s in strides]
        if repeats and self.maybe(0.06):
            strides = [0 if self.maybe() else s for s in strides]
        return tuple(strides)
