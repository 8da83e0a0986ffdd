"""``needs=`` on the CUDA engine, planned for made-up devices: nothing is launched for what is not wanted."""

import re
from itertools import combinations

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda.core import module
from dnnarray._problems.base import leaves
from dnnarray._select import Device
from dnnarray._spec import FLOAT16, FLOAT32
from tests.problems import METHODS, calls_of_cases, large

_DEVICES = {
    "sm_80": Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912),
    "sm_90a": Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448),
}
_DTYPES = (FLOAT16, FLOAT32)
_CALLS = {}
for _call in (*calls_of_cases(), *(c for dtype in _DTYPES for c in large(dtype))):
    if leaves(_call.arrays)[0].dtype in _DTYPES:
        _CALLS.setdefault(_call.base, []).append(_call)
_OPERATIONS = sorted(op for op in METHODS if op in _CALLS and "needs" in find(op).defaults)


def _present(problem):
    """The fields of the result that there are."""
    return tuple(dict.fromkeys(f for f, spec in zip(problem.fields, problem.outputs, strict=True) if spec is not None))


def _subsets(fields):
    return [
        chosen
        for size in sorted({1, 2, len(fields) - 1})
        if 0 < size < len(fields)
        for chosen in combinations(fields, size)
    ]


def _wanting(call, needs):
    return call._replace(options=call.options | {"needs": needs}).problem()


def _touched(program):
    """The numbers of the arrays that the launches are given."""
    return {array.index for plan in program.plans for array in plan.arrays}


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
@pytest.mark.parametrize("op", _OPERATIONS)
def test_every_subset_is_planned(op, device):
    """Each result that is wanted is written, no launch speaks of an array that is not there, and what took part in the
    whole takes part in less."""
    for call in _CALLS[op]:
        whole = call.problem()
        usable = {m.name for m in METHODS[op] if m.rejects(whole, device) is None}
        for needs in _subsets(_present(whole)):
            problem = _wanting(call, needs)
            methods = [m for m in METHODS[op] if m.rejects(problem, device) is None]
            assert methods or not usable, f"{call.op} {needs}: no algorithm is left"
            for method in methods:
                for aligned in (True, False):
                    _check(whole, problem, method, device, aligned, method.name in usable)


def _check(whole, problem, method, device, aligned, usable):
    note = f"{method.name} {problem.legend()} {[s is not None for s in problem.outputs]}"
    program = method.run(problem, device, aligned)
    given, results = leaves(problem.inputs), [s for s in problem.outputs if s is not None]
    touched = _touched(program)
    assert max(touched, default=0) <= len(given) + len(results), note
    missing = [i for i, spec in enumerate(results, len(given)) if spec.size and i not in touched]
    assert not missing, f"{note}: not written"
    assert method.workspace(problem) >= 0
    if usable:
        before = method.run(whole, device, aligned)
        absent = sum(s.nbytes for s in whole.outputs if s is not None) - sum(s.nbytes for s in results)
        assert len(program.plans) <= len(before.plans), note
        assert method.workspace(problem) <= method.workspace(whole) + 2 * absent + 4096, note
    assert method.cost(problem, device).flops >= 0


_FEW = 2  # kernels of each source


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("op", _OPERATIONS)
def test_kernels_of_subsets_compile(op, architecture):
    """Those that no call of the whole plans: without a spill, and without a serialised matrix instruction."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    device, whole, part = _DEVICES[architecture], set(), set()
    for call in _CALLS[op]:
        problem = call.problem()
        whole |= _kernels(problem, device)
        for needs in _subsets(_present(problem)):
            part |= _kernels(_wanting(call, needs), device)
    sources = {}
    for kernel in sorted(part - whole, key=lambda k: k.symbol):
        sources.setdefault(kernel.source, []).append(kernel)
    for kernels in sources.values():
        for kernel in kernels[:: max(1, len(kernels) // _FEW)]:
            code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
            assert code.startswith(b"\x7fELF")
            assert not re.search(r"[1-9]\d* bytes spill", log), f"{kernel.symbol}: {log}"


def _kernels(problem, device):
    methods = [m for m in METHODS[find(problem.op).base] if m.rejects(problem, device) is None]
    return {kernel for m in methods for kernel in m.run(problem, device, True).kernels}
