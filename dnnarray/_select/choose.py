"""Ranking: validity first, then what the options allow, then predicted time. No clock, no data, no device is
touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from dnnarray._errors import UnsupportedError, WorkspaceError, fail, fail_choice
from dnnarray._options import PRECISIONS, Options
from dnnarray._problems.base import Problem, leaves, remembered
from dnnarray._records import changed, frozen
from dnnarray._select import shipped
from dnnarray._select.device import Device
from dnnarray._select.method import Algorithm, Cost, Method
from dnnarray._spec import FLOAT32, name_of

_RANK = {name: i for i, name in enumerate(PRECISIONS)}


@frozen
class Judged:
    """One candidate with the verdict on it: `reason` is None if it may run, else why it may not.

    `corrected` says that the prediction was multiplied by what the card's shipped times say of its class.
    """

    method: Method
    algorithm: Algorithm
    cost: Cost
    reason: str | None
    corrected: bool = False


def predict(problem: Problem, device: Device, cost: Cost) -> float:
    """Seconds by the roofline: the slower of arithmetic and memory, plus the launches."""
    unit = cost.unit or _compute_dtype(problem)
    peak = device.peak.get(unit) or device.peak["float32"]
    try:
        return max(cost.flops / (peak * cost.efficiency), cost.bytes / device.bandwidth) + cost.launches * device.launch
    except OverflowError:  # more than any memory holds: a Spec may say so
        return math.inf


def _compute_dtype(problem: Problem) -> str:
    dtype = _first_dtype(problem)
    return "float32" if dtype is None else name_of(dtype)


@remembered
def _first_dtype(problem: Problem) -> Any:
    """Of the first input, if there is one."""
    specs = leaves(problem.inputs)
    return specs[0].dtype if specs else None


_SAME = 1.02  # measured times this close are taken as equal: the simpler algorithm, first in the table, wins


def rank(
    problem: Problem,
    device: Device,
    options: Options,
    methods: Sequence[Method],
    measured: Mapping[str, float] | None = None,
) -> list[Judged]:
    """All candidates: those that may run first, fastest first; then those passed over, each with its reason.

    `measured` holds milliseconds by algorithm name; they overrule the prediction, and what was measured comes before
    what was not."""
    judged = [_judge(problem, device, options, method, measured or {}) for method in methods]
    return sorted(
        judged, key=lambda j: (j.reason is not None, *_duration(j.algorithm.predicted_ms, j.algorithm.measured_ms))
    )


def _duration(predicted_ms: float, measured_ms: float | None) -> tuple[bool, float]:
    """What candidates are sorted by."""
    if measured_ms is None:
        return True, predicted_ms
    # On a logarithmic grid of 2%, so that near ties are ties and the sort keeps the order of the table.
    return False, round(math.log(max(measured_ms, 1e-9)) / math.log(_SAME))


def _judge(problem: Problem, device: Device, options: Options, method: Method, measured: Mapping[str, float]) -> Judged:
    reason = method.rejects(problem, device) or _forbidden(problem, options, method)
    if reason is not None:  # what is not taken is not costed either
        nothing = Algorithm(
            method.name, 0, method.deterministic, method.numerics(problem), math.inf, rounds=method.rounds
        )
        return Judged(method, nothing, Cost(0, 0), reason)
    cost, workspace = method.cost(problem, device), method.workspace(problem)
    predicted, factor = predict(problem, device, cost) * 1e3, shipped.factor(problem, device, method.name)
    algorithm = Algorithm(
        method.name,
        workspace,
        method.deterministic,
        method.numerics(problem),
        predicted * (factor or 1),
        measured.get(method.name),
        method.rounds,
    )
    return Judged(method, algorithm, cost, _too_much(options, workspace), factor is not None)


def _forbidden(problem: Problem, options: Options, method: Method) -> str | None:
    """Why the options in force leave out an algorithm that could run, or None."""
    return _wavering(options, method) or _coarse(options, method.numerics(problem), _first_dtype(problem))


def _wavering(options: Options, method: Method) -> str | None:
    if options.deterministic and not method.deterministic:
        return "its result may differ from run to run and deterministic=True"
    return None


def _coarse(options: Options, numerics: str, dtype: Any) -> str | None:
    """`dtype` is that of the operands; statistics and norm parameters may be float32 beside half types."""
    if numerics != "highest" and dtype == FLOAT32 and _RANK[numerics] > _RANK[options.float32_precision]:
        return f'its float32 numerics are "{numerics}" and float32_precision="{options.float32_precision}"'
    return None


def _too_much(options: Options, workspace: int) -> str | None:
    if options.workspace_limit is not None and workspace > options.workspace_limit:
        return f"it needs {workspace:,} bytes of workspace and workspace_limit is {options.workspace_limit:,}"
    return None


def choose(
    problem: Problem,
    device: Device,
    options: Options,
    methods: Sequence[Method],
    name: str | None = None,
    measured: Mapping[str, float] | None = None,
) -> Method:
    """The fastest candidate that may run, or the one called `name`: the first of `rank`, without its report and without
    planning the others.

    A named algorithm overrides the options (the caller has decided), but never `rejects`.
    """
    if name is not None:
        return _named(problem, device, options, methods, name)
    best: tuple[bool, float, int] | None = None
    dtype = _first_dtype(problem)
    factors, fitting = shipped.factors(device.name), _fitting(tuple(methods), device, options, dtype)
    for least, position in sorted((_least(problem, device, m, factors), i) for i, m in fitting):
        method = methods[position]
        time = measured.get(method.name) if measured else None
        if best is not None and time is None and (not best[0] or least > best[1]):
            continue  # it is behind what was measured, or slower than the best so far whatever its cost
        if method.rejects(problem, device):
            continue
        if not isinstance(method.precision, str) and _coarse(options, method.numerics(problem), dtype):
            continue
        if options.workspace_limit is not None and _too_much(options, method.workspace(problem)):
            continue
        predicted = (
            0.0
            if time is not None
            else predict(problem, device, method.cost(problem, device)) * _factor(problem, method, factors)
        )
        found = (*_duration(predicted, time), position)
        best = found if best is None else min(best, found)
    if best is None:
        _nothing_left(problem, device, options, methods)
    return methods[best[2]]


@lru_cache(maxsize=256)
def _fitting(
    methods: tuple[Method, ...], device: Device, options: Options, dtype: Any
) -> tuple[tuple[int, Method], ...]:
    """The candidates that neither a problem's dtype and the device nor the options rule out, with their places in the
    table."""

    def fits(method: Method) -> bool:
        unfit = dtype is not None and method.unfit is not None and method.unfit(dtype, device)
        coarse = isinstance(method.precision, str) and _coarse(options, method.precision, dtype)
        return not (unfit or _wavering(options, method) or coarse)

    return tuple((i, m) for i, m in enumerate(methods) if fits(m))


def _least(problem: Problem, device: Device, method: Method, factors: Mapping[str, float]) -> float:
    """Milliseconds that no prediction is below."""
    if method.floor is None:
        return 0.0
    try:
        return method.floor(problem, device) * _factor(problem, method, factors)
    except OverflowError:  # as in `predict`
        return math.inf


def _factor(problem: Problem, method: Method, factors: Mapping[str, float]) -> float:
    """Milliseconds of a second of the model's, with what a card's times say of its class."""
    return factors.get(shipped.class_of(problem, method.name), 1.0) * 1e3 if factors else 1e3


def _nothing_left(problem: Problem, device: Device, options: Options, methods: Sequence[Method]) -> NoReturn:
    """Say why: for want of scratch memory alone, or for a reason of each algorithm's own."""
    would_do = [m for m in methods if not (m.rejects(problem, device) or _forbidden(problem, options, m))]
    if would_do:
        least = min(would_do, key=lambda m: m.workspace(problem))
        expected = f"{least.workspace(problem):,} or more, what the algorithm {least.name!r} needs"
        fail(WorkspaceError, problem.op, "workspace_limit", f"{options.workspace_limit:,} bytes", expected)
    reasons = "; ".join(f"{m.name}: {_judge(problem, device, options, m, {}).reason}" for m in methods)
    raise UnsupportedError(
        f"{problem.op}: no algorithm does {problem.legend()} on {device.name} with these options. {reasons}."
    )


def _named(problem: Problem, device: Device, options: Options, methods: Sequence[Method], name: str) -> Method:
    found = next((m for m in methods if isinstance(name, str) and m.name == name), None)
    if found is None:
        fail_choice(problem.op, "algorithm", name, [m.name for m in methods])
    if rejected := found.rejects(problem, device):
        if not device.aligned and found.rejects(problem, changed(device, aligned=True)) is None:
            rejected = "an array begins at an address that is no multiple of 16 bytes"
        would_do = (
            ", ".join(j.method.name for j in rank(problem, device, options, methods) if j.reason is None) or "none"
        )
        raise UnsupportedError(
            f"{problem.op}: algorithm {name!r} does not do {problem.legend()}: {rejected}. Those that would do: "
            f"{would_do}."
        )
    return found
