"""How recurrent networks are planned, and that the kernels of sizes too large for the cases compile; needs NVRTC for
that, no GPU."""

from dataclasses import replace

import pytest

from dnnarray import RNNWeights
from dnnarray._call.operation import find
from dnnarray._cuda.core import module
from dnnarray._cuda.core.plan import MatMul, Plan
from dnnarray._cuda.rnn import ALGORITHMS
from dnnarray._options import Options
from dnnarray._problems.base import leaves
from dnnarray._select import rank
from dnnarray._spec import Spec
from tests.test_kernels import _DEVICES

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
_KINDS = pytest.mark.parametrize("kind", _GATES)


def _problem(
    kind,
    hidden,
    batch=64,
    directions=1,
    dtype="float16",
    steps=5,
    layers=2,
    back=False,
    peephole=False,
    projection=None,
    **options,
):
    rows, state = _GATES[kind] * hidden, projection or hidden

    def entry(k):
        inputs = 24 if k < directions else directions * state
        optional = [
            Spec((projection, hidden), dtype) if projection else None,
            Spec((3, hidden), dtype) if peephole else None,
        ]
        return RNNWeights(
            Spec((rows, inputs), dtype), Spec((rows, state), dtype), Spec((rows,), dtype), None, *optional
        )

    x, weights = Spec((steps, batch, 24), dtype), tuple(entry(k) for k in range(layers * directions))
    arrays = (Spec((steps, batch, directions * state), dtype), x, weights) if back else (x, weights)
    operation = find(f"{kind}_backward" if back else kind)
    bound, chosen = operation.bind(arrays, {"bidirectional": directions == 2} | options)
    return operation.base, operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})


def _chosen(name, problem, precision="highest", architecture="sm_90a"):
    options = Options(float32_precision=precision)
    device = replace(
        _DEVICES[architecture],
        peak={"float32": 50e12, "tf32_mma": 393e12, "float16_mma": 788e12, "bfloat16_mma": 788e12},
    )
    return next(j for j in rank(problem, device, options, ALGORITHMS[name]) if j.reason is None).method


def _named(name, wanted):
    return next(m for m in ALGORITHMS[name] if m.name == wanted)


@_KINDS
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("hidden", "directions", "batch"), [(512, 2, 64), (1024, 1, 64), (256, 1, 300), (16, 2, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_persistent_launches_fit_the_device(kind, back, hidden, directions, batch, dtype):
    name, problem = _problem(kind, hidden, batch, directions, dtype, back=back)
    device, method = _DEVICES["sm_90a"], _named(name, "persistent")
    if method.rejects(problem, device):
        assert dtype == "float32"
        assert hidden == 1024
        return
    program = method.run(problem, device, True)
    resident = [p for p in program.plans if isinstance(p, Plan) and "persistent" in p.kernel.source]
    assert len(resident) >= 2 * (1 + back)
    for plan in resident:
        assert plan.cooperative
        assert plan.grid[0] * plan.grid[1] * plan.grid[2] <= device.units
        assert plan.shared_memory <= device.shared_memory
    _assert_within_the_scratch(name, problem, method, program)


def _assert_within_the_scratch(name, problem, method, program):
    scratch = len(leaves(problem.inputs)) + sum(s is not None for s in problem.outputs)
    size = method.workspace(problem)
    for plan in program.plans:
        matrices = (
            [(plan.a, plan.m, plan.k), (plan.b, plan.k, plan.n), (plan.c, plan.m, plan.n)]
            if isinstance(plan, MatMul)
            else []
        )
        for matrix, rows, columns in matrices:
            rows, columns = (columns, rows) if matrix.transposed else (rows, columns)
            if matrix.array.index == scratch:
                itemsize = (plan.result if matrix is plan.c else plan.dtype).itemsize
                last = (plan.batch - 1) * matrix.batch + (rows - 1) * matrix.row + columns
                assert matrix.array.offset + last * itemsize <= size
        for argument in plan.arrays if isinstance(plan, Plan) else ():
            if getattr(argument, "index", None) == scratch and hasattr(argument, "offset"):
                assert argument.offset < size


@_KINDS
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_steps_stay_within_the_scratch(kind, back, dtype):
    for directions in (1, 2):
        name, problem = _problem(kind, 7, 3, directions, dtype, back=back, layers=3)
        method = _named(name, "steps")
        _assert_within_the_scratch(name, problem, method, method.run(problem, _DEVICES["sm_90a"], True))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "lstm", "hidden": 20}, "multiple of 16"),
        ({"kind": "lstm", "hidden": 32, "peephole": True}, "peepholes"),
        ({"kind": "lstm", "hidden": 32, "projection": 16}, "projections"),
        ({"kind": "gru", "hidden": 32, "linear_before_reset": False}, "reset gate"),
        ({"kind": "rnn", "hidden": 32, "dtype": "float64"}, "float64"),
        ({"kind": "lstm", "hidden": 4096}, "do not fit"),
        ({"kind": "lstm", "hidden": 32, "batch": 0}, "extent is 0"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_one_launch_cannot_do_goes_step_by_step(options, reason):
    name, problem = _problem(**options)
    assert reason in _named(name, "persistent").rejects(problem, _DEVICES["sm_90a"])
    assert _chosen(name, problem).name == "steps"


@_KINDS
@pytest.mark.parametrize("back", [False, True])
def test_there_is_no_tape(kind, back):
    name, problem = _problem(kind, 32, back=back)
    taped = replace(problem, taped=True)
    assert {m.rejects(taped, _DEVICES["sm_90a"]) for m in ALGORITHMS[name]} == {
        "it keeps no tape: the gradient runs the forward again"
    }


@_KINDS
def test_one_launch_is_chosen_where_it_can_be(kind):
    for dtype in ("float16", "bfloat16"):
        assert _chosen(*_problem(kind, 512, 64, 2, dtype, steps=128)).name == "persistent"


def test_tf32_only_where_float32_may_be_rounded():
    name, problem = _problem("lstm", 4096, dtype="float32")
    assert "tf32" in _chosen(name, problem, "high").name
    assert "tf32" not in _chosen(name, problem).name
    assert "tf32" not in _chosen(*_problem("lstm", 4096), "high").name


@pytest.mark.parametrize(
    ("kind", "dtype", "architecture"),
    [
        ("lstm", "float16", "sm_80"),
        ("gru", "bfloat16", "sm_90a"),
        ("rnn", "float32", "sm_90a"),
        ("lstm", "bfloat16", "sm_100"),
    ],
)
def test_kernels_of_large_networks_compile(kind, dtype, architecture):
    kernels = set()
    for back in (False, True):
        name, problem = _problem(kind, 512, 64, 2, dtype, back=back, layers=1)
        program = _named(name, "persistent").run(problem, _DEVICES[architecture], True)
        kernels |= {k for k in program.kernels if "persistent" in k.source}
    assert len(kernels) >= 2
    for kernel in kernels:
        assert module.compile_kernel(kernel, architecture).startswith(b"\x7fELF")
