"""Extents of 0 and 1, and every odd stride, dilation and padding: what is asked of each algorithm before it runs has an
answer."""

import math
from dataclasses import replace
from functools import partial

import pytest

import dnnarray as dnn
from asv_bench.selection import H200
from dnnarray._call.operation import find
from dnnarray._cpu import engine
from dnnarray._cpu.compiled import Compiled, compiler
from dnnarray._cuda.core.plan import Plan
from dnnarray._options import DEFAULT
from dnnarray._problems.base import leaves
from dnnarray._select import Device, choose
from dnnarray._select.choose import predict
from tests.drawn import calls
from tests.problems import METHODS, planned

_DEVICES = (
    H200,
    Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912),
    Device("made-up B200", "cuda", 148, {"float32": 70e12}, 7e12, 4e-6, (10, 0), 232_448),
)
_EVERYWHERE = [replace(device, aligned=aligned) for device in _DEVICES for aligned in (True, False)]
_LAST = {"layout": "channels_last"}
_MOST = 65_535, 65_535  # blocks along the second and the third axis of a grid


def _rejects(method, problem, device):
    """Why an algorithm cannot do it; of a compiled one, whether or not it has been compiled, where there is a
    compiler."""
    run = method.run
    if isinstance(run, Compiled):
        return compiler.missing() or run.accepts(problem, device) or run.target("float32")
    return method.rejects(problem, device)


def _asked(make, table, device):
    """The algorithms that take a problem, after every question that a choice asks; a problem remembers, so each of them
    takes a new one."""
    try:
        choose(make(), device, DEFAULT, table)
    except dnn.UnsupportedError:
        assert all(m.rejects(make(), device) for m in table)
    for method in table:
        problem = make()
        given = leaves(problem.inputs)
        refused = _rejects(method, problem, device)
        unfit = method.unfit is not None and given and method.unfit(given[0].dtype, device)
        assert refused or not unfit, method.name
        seconds = None if refused else predict(problem, device, method.cost(problem, device))
        if method.floor is not None:
            floor = method.floor(make(), device)
            assert refused or 0 <= floor <= seconds * (1 + 1e-9), method.name
        if not refused:
            assert 0 <= seconds < math.inf, method.name
            assert method.numerics(problem) in ("highest", "high", "medium")
            assert method.workspace(problem) >= 0
            yield method


def _check_plans(problem, method, device):
    """Grids that the driver takes, shared memory that there is, scratch memory that was told."""
    program = method.run(problem, device, device.aligned)
    assert (program.workspace or 0) <= method.workspace(problem), method.name
    for plan in program.plans:
        if isinstance(plan, Plan):
            assert min(plan.grid) >= 0, method.name
            assert plan.grid[0] < 1 << 31, method.name
            assert plan.grid[1:] <= _MOST, method.name
            assert plan.shared_memory <= device.shared_memory, method.name


@pytest.mark.parametrize("seed", range(8))
def test_every_question_about_drawn_calls_has_an_answer(seed):
    for call in calls(seed, 100):
        list(_asked(call.problem, engine.methods(find(call.op)), engine.device()))
        for device in _EVERYWHERE:
            for method in _asked(call.problem, METHODS.get(call.base, ()), device) if call.base in METHODS else ():
                _check_plans(call.problem(), method, device)


@pytest.mark.parametrize("device", _EVERYWHERE, ids=lambda d: f"{d.name} {d.aligned}")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("grad", "weight", "options"),
    [
        ((2, 32, 1), (32, 2, 1), {"stride": 3, "groups": 4, "input_shape": (2, 8, 1), "padding": 1}),
        ((1, 16, 1, 1), (16, 3, 1, 1), {"stride": 3, "dilation": (1, 2), "input_shape": (1, 3, 1, 1), "padding": 1}),
        (
            (1, 1, 1, 8),
            (8, 5, 1, 8),
            {"stride": (1, 3), "groups": 4, "input_shape": (1, 1, 1, 32), "padding": ((2, 2), (1, 1)), **_LAST},
        ),
        ((1, 3, 1), (1, 1, 1), {"stride": 2, "input_shape": (1, 1, 1), "padding": ((1, 3),), **_LAST}),
    ],
)
def test_a_gradient_that_no_tap_meets_costs_nothing_impossible(grad, weight, options, dtype, device):
    """All taps lie in the padding."""
    make = partial(_problem, grad, weight, dtype, options)
    assert not make().geometry.phases
    for method in _asked(make, METHODS["conv_backward_input"], device):
        _check_plans(make(), method, device)


def _problem(grad, weight, dtype, options):
    return planned("conv_backward_input", dnn.Spec(grad, dtype), dnn.Spec(weight, dtype), **options)[1]


@pytest.mark.parametrize("needs", [("bias",), ("weight",), ("weight", "bias"), ("x",)], ids="_".join)
@pytest.mark.parametrize("op", ["conv_backward", "conv_transpose_backward"])
def test_some_gradients_of_grouped_convolutions(op, needs):
    """Tiles that hold several groups look for what the zeros between them have spoilt, in the gradient of the input
    alone."""
    weight = (24, 3, 3, 4) if op == "conv_backward" else (32, 3, 3, 3)
    arrays = [dnn.Spec(shape, "bfloat16") for shape in ((2, 9, 9, 24), (2, 9, 9, 32), weight, (24,))]

    def make():
        return planned(op, *arrays, groups=8, padding=1, needs=needs, **_LAST)[1]

    for device in _EVERYWHERE:
        for method in _asked(make, METHODS[op], device):
            _check_plans(make(), method, device)
