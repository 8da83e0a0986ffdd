"""Activations: one pass over memory that lies in the same order everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In1, Out1, driver, kernel
from dnnarray._problems.activation import ElementwiseProblem


@kernel
def _relu(start: int, stop: int, x: In1, y: Out1) -> None:
    for i in range(start, stop):
        v = x[i]
        zero = x.dtype.type(0)
        y[i] = zero if v <= zero else v


@driver(_relu)
def relu(problem: ElementwiseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray) -> None:
    order = problem.inputs[0].axis_order()
    with Written(outputs, order) as (y,):
        _relu(x.size, taken(x, (-1,), order), y.reshape(-1), work=x.size)
