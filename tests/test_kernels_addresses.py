"""Memory at addresses that are multiples of an element alone: no kernel planned for it moves more of an array at once.
Needs NVRTC, no GPU."""

from functools import lru_cache

import pytest

from dnnarray._cuda.core.plan import Array, Block, MatMul, Plan, Transform, block_of, moved_by
from dnnarray._problems.base import leaves
from dnnarray._spec import FLOATING, HALF, Spec
from tests.problems import METHODS, planned
from tests.ptx import accesses, compile_ptx
from tests.test_kernels import _DEVICES, _FEW, _SOURCES, _programs

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
# Vectors of these lie in scratch memory, or apart from each other.
_OF_THEIR_OWN = {"loss/linear_statistics.cu", "loss/linear_gradient.cu", "spatial/list_gather.cu"}


def _unaligned(device):
    """(problem, method, program, the specs of the arrays that calls give) of all that is planned for such memory."""
    for problem, method, program in _programs(device, (False,)):
        yield problem, method, program, [s for s in (*leaves(problem.inputs), *problem.outputs) if s is not None]


def _blocks(plan):
    """The parameters of a launch as structs of bytes: a pointer alone is one of eight."""
    return [Block(bytes(8), ((0, p),)) if isinstance(p, Array) else block_of(p) for p in plan.parameters]


def _given(plan, specs):
    """The dtype of each array of the caller's, with the parameter and the byte in it where the pointer lies."""
    return frozenset(
        ((number, at), specs[array.index].dtype)
        for number, block in enumerate(_blocks(plan))
        for at, array in (block.words if block else ())
        if isinstance(array, Array) and array.index < len(specs)
    )


def _boxed(plan):
    """The arrays that TMA is told of."""
    return [map_.array for block in _blocks(plan) if block for _, map_ in block.maps]


@pytest.mark.parametrize("architecture", _DEVICES)
def test_settings_and_library_calls(architecture):
    """Vectors of one element, no boxes of TMA; what a library multiplies in half types or transforms is
    brought to aligned memory."""
    for problem, method, program, specs in _unaligned(_DEVICES[architecture]):
        note, moved = (problem.op, method.name), moved_by(program.plans, len(specs))
        for step in program.plans:
            if isinstance(step, Plan):
                assert not any(array.index < len(specs) for array in _boxed(step)), note
                if not _given(step, specs):
                    continue
                config = step.kernel.config
                if step.kernel.source not in _OF_THEIR_OWN:
                    assert {getattr(config, name, 1) for name in ("vector", "piece", "wide")} <= {1, False}, (
                        *note,
                        step.kernel.symbol,
                    )
            elif isinstance(step, Transform) or (isinstance(step, MatMul) and step.dtype in HALF):
                assert {a.index for a in step.arrays if a.index < len(specs)} <= set(moved), note


@pytest.mark.parametrize("architecture", _DEVICES)
def test_all_scratch_memory_is_told(architecture):
    for problem, method, program in _programs(_DEVICES[architecture]):
        assert (program.workspace or 0) <= method.workspace(problem), (problem.op, method.name)


@lru_cache(maxsize=3)
def _by_source(architecture):
    """The kernels of each source with all dtypes that their arguments are planned to point to; half types first."""
    found = {}
    for _, _, program, specs in _unaligned(_DEVICES[architecture]):
        for plan in program.plans:
            if isinstance(plan, Plan) and _given(plan, specs):
                found.setdefault(plan.kernel.source, {}).setdefault(plan.kernel, set()).add(_given(plan, specs))
    return {source: sorted(kernels.items(), key=_smallest) for source, kernels in found.items()}


def _smallest(entry):
    kernel, given = entry
    return min(
        (dtype.itemsize for places in given for _, dtype in places if dtype in FLOATING), default=8
    ), kernel.symbol


def _told_at_run_time(source, access, dtypes):
    """Whether a single number may be of another dtype than the plan's: parameters of norms, sinks and slopes in
    float32, lengths in int64."""
    if not access.scalar:
        return False
    if any(dtype.kind in "iu" for dtype in dtypes):
        return access.bytes == 8
    return access.bytes == 4 and (access.operation.endswith(".f32") or source.startswith("norm/"))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("source", _SOURCES)
def test_accesses_are_no_wider_than_an_element(architecture, source, request):
    kernels = _by_source(architecture).get(source, [])
    if not request.config.getoption("--all-kernels"):
        kernels = kernels[: _FEW if architecture == "sm_90a" else 1]
    for kernel, given in kernels:
        _check(kernel, given, architecture)


def _check(kernel, all_given, architecture):
    found = accesses(compile_ptx(kernel, architecture))
    for given in map(dict, all_given):
        for access in found:
            dtypes = [given[place] for place in access.parameters if place in given]
            widest = max((dtype.itemsize for dtype in dtypes), default=16)
            assert access.bytes <= widest or _told_at_run_time(kernel.source, access, dtypes), (
                kernel.symbol,
                access,
                dtypes,
            )


_LAST = {"layout": "channels_last"}
_PARTICULAR = (
    ("interpolate", ((1, 6, 4, 2),), {"mode": "nearest", "scale": (1.0, 2.0), **_LAST}),
    ("interpolate", ((1, 8, 1, 8),), {"mode": "linear", "scale": (2, 2), **_LAST}),
    ("interpolate_backward", ((1, 16, 2, 8), (1, 8, 1, 8)), {"mode": "linear", "scale": (2, 2), **_LAST}),
    (
        "conv_backward_weight",
        ((48, 56, 56, 64), (48, 56, 56, 64)),
        {"weight_shape": (64, 3, 3, 64), "padding": 1, **_LAST},
    ),
    ("linear", ((64, 64), (64, 64), (64,), (64, 64)), {"activation": "relu"}),
    ("linear_backward", ((64, 64), (64, 64), (64, 64), (64,)), {"activation": "gelu"}),
)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("op", "shapes", "options"), _PARTICULAR)
def test_accesses_of_particular_calls(op, shapes, options, dtype):
    """Pairs of channels, parts of a weight gradient, epilogues of products."""
    base, problem = planned(op, *(Spec(shape, dtype) for shape in shapes), **options)
    specs, device = [s for s in (*leaves(problem.inputs), *problem.outputs) if s is not None], _DEVICES["sm_90a"]
    for method in METHODS[base]:
        if method.rejects(problem, device) is None:
            program = method.run(problem, device, False)
            assert (program.workspace or 0) <= method.workspace(problem), method.name
            for plan in program.plans:
                if isinstance(plan, Plan):
                    _check(plan.kernel, [_given(plan, specs)], "sm_90a")
