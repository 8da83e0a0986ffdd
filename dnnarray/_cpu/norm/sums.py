"""The sums behind the statistics of a block, and what is made of statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.sums import total
from dnnarray._problems.norm_base import Geometry


def over_statistics(geometry: Geometry, array: np.ndarray, squared: bool = False) -> np.ndarray:
    """The sum of an array, or of its squares, behind each statistic, in float64: few numbers, of which every rounding
    would reach many.

    What leaves the range of the dtype on the way, as squares of numbers above 1e19 do in float32, is added up in
    float64 from the beginning."""
    found = _over_statistics(geometry, array, squared).astype(np.float64, copy=False)
    if array.dtype != np.float64 and not np.isfinite(found).all():
        return _over_statistics(geometry, array.astype(np.float64), squared)
    return found


def _over_statistics(geometry: Geometry, array: np.ndarray, squared: bool) -> np.ndarray:
    """The axes that go together in memory first."""
    factor = array if squared else None
    if not geometry.fine:
        return total(array, geometry.within, factor)
    return total(total(array, geometry.fine, factor), geometry.within)


def spread(geometry: Geometry, statistic: Any, shape: tuple[int, ...]) -> Any:
    """A statistic of a block of `shape`, repeated for each parameter where a few channels share one.

    Arithmetic with it then runs along all channels; in channels-last memory it would run along those of one group, in
    short steps."""
    if statistic is None or not (geometry.folds and geometry.within):
        return statistic
    return np.broadcast_to(statistic, tuple(1 if i in geometry.fine else n for i, n in enumerate(shape))).copy()


def add(so_far: Any, term: Any) -> Any:
    """so_far + term, where None is the sum of nothing."""
    return term if so_far is None else so_far + term


def move(result: Any, running: Any, now: Any, momentum: float, factor: float) -> None:
    """result = (1 - momentum) * running + momentum * factor * now."""
    if result is not None:
        result[...] = running if momentum == 0 else (1 - momentum) * running + (momentum * factor) * now
