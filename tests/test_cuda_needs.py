"""``needs=`` on the CUDA engine, planned for made-up devices: nothing is launched for what is not wanted."""

import re
from itertools import combinations
from typing import NamedTuple

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


class _Planned(NamedTuple):
    """What the checks need of an algorithm's programs for a problem, aligned and not, without all their launches."""

    launches: tuple[int, int]
    touched: tuple[set, set]  # the numbers of the arrays that the launches are given
    kernels: frozenset  # of aligned arrays
    workspace: int


def _planned(method, problem, device):
    programs = [method.run(problem, device, aligned) for aligned in (True, False)]
    return _Planned(
        tuple(len(program.plans) for program in programs),
        tuple({array.index for plan in program.plans for array in plan.arrays} for program in programs),
        frozenset(programs[0].kernels),
        method.workspace(problem),
    )


def _plans(op, problem, device):
    """The programs of a problem by each algorithm that can do it."""
    return {m: _planned(m, problem, device) for m in METHODS[op] if m.rejects(problem, device) is None}


@pytest.fixture(
    scope="module", params=[(op, architecture) for op in _OPERATIONS for architecture in _DEVICES], ids="-".join
)
def plans(request):
    """The architecture, and for each call of an operation its problem and plans, and those of every subset.

    Both tests of an operation run one after the other, so that everything is planned once for them.
    """
    op, architecture = request.param
    device = _DEVICES[architecture]
    found = []
    for call in _CALLS[op]:
        whole = call.problem()
        parts = [_wanting(call, needs) for needs in _subsets(_present(whole))]
        found.append(((whole, _plans(op, whole, device)), [(part, _plans(op, part, device)) for part in parts]))
    return architecture, found


def test_every_subset_is_planned(plans):
    """Each result that is wanted is written, no launch speaks of an array that is not there, and what took part in the
    whole takes part in less."""
    architecture, found = plans
    for (whole, before), parts in found:
        for problem, programs in parts:
            assert programs or not before, f"{_legend(problem)}: no algorithm is left"
            for method, planned in programs.items():
                note = f"{method.name} {_legend(problem)}"
                _check_arrays(problem, planned, note)
                assert planned.workspace >= 0, note
                assert method.cost(problem, _DEVICES[architecture]).flops >= 0, note
                if method in before:
                    _check_less(problem, planned, whole, before[method], note)


def _legend(problem):
    return f"{problem.legend()} {[s is not None for s in problem.outputs]}"


def _check_arrays(problem, planned, note):
    given, results = leaves(problem.inputs), [s for s in problem.outputs if s is not None]
    for touched in planned.touched:
        assert max(touched, default=0) <= len(given) + len(results), note
        missing = [i for i, spec in enumerate(results, len(given)) if spec.size and i not in touched]
        assert not missing, f"{note}: not written"


def _check_less(problem, planned, whole, before, note):
    """No more launches, and no more scratch memory than what stands in for the results that are absent."""
    absent = sum(sum(s.nbytes for s in p.outputs if s is not None) * sign for p, sign in ((whole, 1), (problem, -1)))
    assert all(less <= more for less, more in zip(planned.launches, before.launches, strict=True)), note
    assert planned.workspace <= before.workspace + 2 * absent + 4096, note


_FEW = 2  # kernels of each source


def test_kernels_of_subsets_compile(plans):
    """Those that no call of the whole plans: without a spill, and without a serialised matrix instruction."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    architecture, found = plans
    whole = {kernel for (_, programs), _ in found for planned in programs.values() for kernel in planned.kernels}
    part = {kernel for _, parts in found for _, programs in parts for p in programs.values() for kernel in p.kernels}
    sources = {}
    for kernel in sorted(part - whole, key=lambda k: k.symbol):
        sources.setdefault(kernel.source, []).append(kernel)
    for kernels in sources.values():
        for kernel in kernels[:: max(1, len(kernels) // _FEW)]:
            code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
            assert code.startswith(b"\x7fELF")
            assert not re.search(r"[1-9]\d* bytes spill", log), f"{kernel.symbol}: {log}"
