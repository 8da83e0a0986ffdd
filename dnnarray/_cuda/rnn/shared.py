"""What the algorithms of recurrent networks have in common: what they refuse, and what their costs are made of."""

from __future__ import annotations

from dnnarray._cuda.rnn.network import Network
from dnnarray._problems.rnn import RecurrentProblem
from dnnarray._spec import FLOAT16, FLOAT32, HALF

EFFICIENCY = 0.5  # products with few rows
UNITS = {"highest": {8: "float64", 4: "float32", 2: "bfloat16_mma"}, "high": {4: "tf32_mma"}}


def itemsize(problem: RecurrentProblem) -> int:
    return problem.x.dtype.itemsize


def halves_of(problem: RecurrentProblem) -> bool:
    """Whether what goes into a layer stays in half types: its parts are of their range, but for float16 behind a
    relu."""
    cell, dtype = problem.cell, problem.x.dtype
    return dtype in HALF and not (cell.kind == "rnn" and cell.activation == "relu" and dtype == FLOAT16)


def refuses(precision: str, problem: RecurrentProblem) -> str | None:
    """What no algorithm of this precision takes."""
    if problem.taped:
        return "it keeps no tape: the gradient runs the forward again"
    if precision == "high" and problem.x.dtype != FLOAT32:
        return "TF32 is for float32"
    return None


def workspace(halves: bool, back: bool, problem: RecurrentProblem) -> int:
    return Network(problem, back, halves and halves_of(problem)).size
