"""`Method`, an entry of an engine's ALGORITHMS table, and `Algorithm`, what the user is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._select.device import Device


@frozen
class Cost:
    """What an algorithm will spend: the terms of the roofline.

    `efficiency` is the share of the peak rate that its arithmetic reaches, `unit` the key into ``Device.peak`` where
    the arithmetic does not run in the dtype of the first input, `launches` the kernels or NumPy calls it starts."""

    flops: float
    bytes: float
    efficiency: float = 1.0
    launches: int = 1
    unit: str | None = None


def share_of_peak(flops: float, seconds: float, peak: float) -> float:
    """The `Cost.efficiency` of what takes so many seconds; 1 where nothing is computed, or in no time (a gradient that
    no tap of the window meets)."""
    return min(flops / peak / seconds, 1.0) if flops and seconds else 1.0


def plain_cost(problem: Problem, device: Device) -> Cost:
    """The definition's own operations and bytes: right for every algorithm that reads and writes once."""
    return Cost(problem.flops, problem.bytes)


@frozen(eq=False)
class Method:
    """One algorithm of one operation on one engine. Compared by identity, so that tables of them are quickly looked up.

    Attributes
    ----------
    name : lower case, the same in files, symbols, tests and reports
    run : on the CPU ``run(problem, outputs, scratch, *arrays)``, which writes every element of `outputs`
    rejects : ``rejects(problem, device)`` gives None, or why this algorithm cannot do this problem
    workspace : ``workspace(problem)`` gives the bytes of scratch memory that `run` needs
    cost : ``cost(problem, device)`` gives a `Cost`
    floor : ``floor(problem, device)`` gives seconds that no prediction from `cost` is below, in less time than
        `rejects` and `cost` take; 0 where it does not know. Where another candidate is predicted faster than that, a
        choice asks no further
    unfit : ``unfit(dtype, device)`` says why it does no problem whose first input has this dtype, or None, which says
        nothing; `rejects` refuses all that this does. A choice asks once for each dtype and device
    deterministic : the same bits from run to run
    precision : numerics class; "highest" is as exact as sequential arithmetic in the dtype, "high" is TF32-like,
        "medium" bfloat16-like; ``precision(problem)`` where it is not the same for all
    rounds : an intermediate result (attention weights, gradients of scores) is rounded to the dtype of the inputs
        before it enters a matrix product
    looks : the run itself raises, before it writes anything, what the operation's `values` would raise; the CPU engine
        does not call that then
    in_place : the run may be given an input as output, where the problem's `in_place` allows it; the engine hands it
        other memory to write to otherwise, and copies
    native : the run takes the arrays in their own dtype; otherwise the CPU engine hands half types over as float32
    summary : one line for reports and docs
    """

    name: str
    run: Callable[..., Any]
    summary: str = ""
    rejects: Callable[[Any, Device], str | None] = lambda problem, device: None
    workspace: Callable[[Any], int] = lambda problem: 0
    cost: Callable[[Any, Device], Cost] = plain_cost
    floor: Callable[[Any, Device], float] | None = None
    unfit: Callable[[Any, Device], str | None] | None = None
    deterministic: bool = True
    precision: str | Callable[[Any], str] = "highest"
    rounds: bool = False
    in_place: bool = False
    native: bool = False
    looks: bool = False

    def numerics(self, problem: Any) -> str:
        """The numerics class for a problem."""
        return self.precision if isinstance(self.precision, str) else self.precision(problem)


@frozen
class Algorithm:
    """A candidate for a problem, as `dnnarray.algorithms` lists it.

    Attributes
    ----------
    name : str
        What `algorithm=` takes.
    workspace : int
        Bytes of scratch memory.
    deterministic : bool
        The same bits from run to run.
    precision : str
        Numerics class: "highest", "high" or "medium".
    predicted_ms : float
        Time by the roofline model, milliseconds.
    measured_ms : float or None
        Time measured by `autotune`, milliseconds.
    rounds : bool
        An intermediate result is rounded to the dtype of the inputs before it enters a matrix product: each term of a
        sum carries an error of up to half a unit in the last place of that dtype, where other algorithms have only the
        rounding of the result.
    """

    name: str
    workspace: int
    deterministic: bool
    precision: str
    predicted_ms: float
    measured_ms: float | None = None
    rounds: bool = False
