"""Ranking: validity first, then what the options allow, then predicted time. No clock, no data, no device is touched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dnnarray._errors import OptionError, UnsupportedError, fail
from dnnarray._options import PRECISIONS, Options
from dnnarray._problems.base import Problem, leaves
from dnnarray._select.device import Device
from dnnarray._select.method import Algorithm, Cost, Method
from dnnarray._spec import FLOAT32


@dataclass(frozen=True)
class Judged:
    """One candidate with the verdict on it: `reason` is None if it may run, else why it may not."""

    method: Method
    algorithm: Algorithm
    cost: Cost
    reason: str | None


def predict(problem: Problem, device: Device, cost: Cost) -> float:
    """Seconds by the roofline: the slower of arithmetic and memory, plus the launches."""
    unit = cost.unit or _compute_dtype(problem)
    peak = device.peak.get(unit) or device.peak["float32"]
    try:
        return max(cost.flops / (peak * cost.efficiency), cost.bytes / device.bandwidth) + cost.launches * device.launch
    except OverflowError:  # more than any memory holds: a Spec may say so
        return math.inf


def _compute_dtype(problem: Problem) -> str:
    specs = leaves(problem.inputs)
    return specs[0].dtype.name if specs else "float32"


_SAME = 1.02  # measured times this close are taken as equal: the simpler algorithm, first in the table, wins


def rank(
    problem: Problem,
    device: Device,
    options: Options,
    methods: Sequence[Method],
    measured: Mapping[str, float] | None = None,
    sized: bool = True,
) -> list[Judged]:
    """All candidates: those that may run first, fastest first; then those passed over, each with its reason.

    `measured` holds milliseconds by algorithm name; they overrule the prediction, and what was measured comes before what was not. Without
    `sized` the scratch memory is worked out only where the options limit it: on some engines that takes longer than all the rest.
    """
    sized = sized or options.workspace_limit is not None
    judged = [_judge(problem, device, options, method, sized) for method in methods]
    if measured:
        judged = [_with_time(j, measured.get(j.method.name)) for j in judged]
    return sorted(judged, key=lambda j: (j.reason is not None, *_duration(j.algorithm)))


def _with_time(judged: Judged, milliseconds: float | None) -> Judged:
    return replace(judged, algorithm=replace(judged.algorithm, measured_ms=milliseconds))


def _duration(algorithm: Algorithm) -> tuple[bool, float]:
    if algorithm.measured_ms is None:
        return True, algorithm.predicted_ms
    # On a logarithmic grid of 2%, so that near ties are ties and the sort keeps the order of the table.
    return False, round(math.log(max(algorithm.measured_ms, 1e-9)) / math.log(_SAME))


def _judge(problem: Problem, device: Device, options: Options, method: Method, sized: bool) -> Judged:
    rejected = method.rejects(problem, device)
    if rejected is not None:
        nothing = Algorithm(method.name, 0, method.deterministic, method.precision, float("inf"), rounds=method.rounds)
        return Judged(method, nothing, Cost(0, 0), rejected)
    cost, workspace = method.cost(problem, device), method.workspace(problem) if sized else 0
    predicted = predict(problem, device, cost) * 1e3
    algorithm = Algorithm(method.name, workspace, method.deterministic, method.precision, predicted, rounds=method.rounds)
    return Judged(method, algorithm, cost, _forbidden(problem, options, method, workspace))


def _forbidden(problem: Problem, options: Options, method: Method, workspace: int) -> str | None:
    """Why the options in force leave out an algorithm that could run, or None."""
    if options.deterministic and not method.deterministic:
        return "its result may differ from run to run and deterministic=True"
    is_float32 = any(s.dtype == FLOAT32 for s in leaves(problem.inputs))
    if is_float32 and PRECISIONS.index(method.precision) > PRECISIONS.index(options.float32_precision):
        return f'its float32 numerics are "{method.precision}" and float32_precision="{options.float32_precision}"'
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
) -> Judged:
    """The fastest candidate that may run, or the one called `name`.

    A named algorithm overrides the options (the caller has decided), but never `rejects`.
    """
    judged = rank(problem, device, options, methods, measured, sized=False)
    usable = [j for j in judged if j.reason is None]
    if name is not None:
        return _sized(problem, _named(problem, device, methods, judged, name))
    if not usable:
        reasons = "; ".join(f"{j.method.name}: {j.reason}" for m in methods for j in judged if j.method is m)
        raise UnsupportedError(f"{problem.op}: no algorithm does {problem.legend()} on {device.name} with these options. {reasons}.")
    return _sized(problem, usable[0])


def _sized(problem: Problem, judged: Judged) -> Judged:
    return replace(judged, algorithm=replace(judged.algorithm, workspace=judged.method.workspace(problem)))


def _named(problem: Problem, device: Device, methods: Sequence[Method], judged: list[Judged], name: str) -> Judged:
    found = [j for j in judged if isinstance(name, str) and j.method.name == name]
    if not found:
        names = ", ".join(repr(m.name) for m in methods)
        fail(OptionError, problem.op, "algorithm", repr(name), f"one of {names}")
    rejected = found[0].method.rejects(problem, device)
    if rejected is not None:
        would_do = ", ".join(j.method.name for j in judged if j.reason is None) or "none"
        raise UnsupportedError(
            f"{problem.op}: algorithm {name!r} does not do {problem.legend()}: {rejected}. Those that would do: {would_do}."
        )
    return found[0]
