"""Recurrent networks and their single steps: plans.

Two ways through the time steps, each with the products over all steps at once by cuBLAS: ``persistent``, one launch for
a layer, and ``steps``, a product and a kernel for each step. With TF32 in the products, where float32 may be rounded,
they are methods of their own."""

from functools import partial

from dnnarray._cuda.rnn import persistent, steps
from dnnarray._cuda.rnn.shared import workspace
from dnnarray._problems.rnn import GATES
from dnnarray._select import Method


def _steps(back: bool, precision: str, name: str) -> Method:
    return Method(
        name, partial(steps.run, back, precision), "a matrix product and a kernel for each time step",
        partial(steps.rejects, precision), partial(workspace, False, back),
        partial(steps.cost, back, precision), precision=precision,
    )  # fmt: skip


def _persistent(back: bool, precision: str, name: str) -> Method:
    return Method(
        name,
        partial(persistent.run, back, precision),
        "all time steps of a layer in one launch",
        partial(persistent.rejects, precision),
        partial(workspace, True, back),
        partial(persistent.cost, back, precision),
        precision=precision,
    )


def _methods(back: bool, sequence: bool) -> tuple[Method, ...]:
    by_step = _steps(back, "highest", "steps"), _steps(back, "high", "steps_tf32")
    return (
        (_persistent(back, "highest", "persistent"), _persistent(back, "high", "persistent_tf32"), *by_step)
        if sequence
        else by_step
    )


ALGORITHMS: dict[str, tuple[Method, ...]] = {}
for _kind in GATES:
    for _name in (_kind, f"{_kind}_cell"):
        ALGORITHMS[_name] = _methods(False, _name == _kind)
        ALGORITHMS[f"{_name}_backward"] = _methods(True, _name == _kind)
