"""What the losses share: arrays of other types than the scores', and the reduction of the rows' losses in a fixed
order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from dnnarray._cuda.core.arguments import Pointer
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import Array, Plan
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.sums import blocks_for, partial_sums

_DIRECT = 1 << 16  # numbers that one block sums up by itself

# Arrays of other types than the scores'.
Target = Annotated[Array, Pointer("Config::Target", True)]
Loss = Annotated[Array | None, Pointer("Config::Loss", False)]
Integers = Annotated[Array, Pointer("int", True)]
IntegersOut = Annotated[Array, Pointer("int", False)]


def reduced(
    values: Array,
    weights: Array | None,
    n: int,
    divisor: float,
    dtype: np.dtype,
    take: Callable[[int], Array],
    out: Array,
) -> list[Plan]:
    """The launches that reduce the losses of n rows to `out`; long arrays in two steps, with memory from `take` for the
    sums of the first."""
    if n <= _DIRECT:
        return [mean(values, weights, n, divisor, dtype, out)]
    blocks, computed, plans = blocks_for(n), arithmetic_of(dtype), []

    def part(source: Array) -> Array:
        found = take(blocks)
        plans.append(partial_sums(source, n, computed, found))
        return found

    first, second = part(values), None if weights is None else part(weights)
    return [*plans, mean(first, second, blocks, divisor, dtype, out)]
