"""Every kernel in every configuration compiles for every architecture; needs NVRTC, no GPU."""

import inspect
import re
import tempfile
from dataclasses import replace
from functools import lru_cache

import pytest

import dnnarray as dnn
from dnnarray._cuda.core import module
from dnnarray._problems.base import leaves
from dnnarray._select import Device
from dnnarray._spec import FLOAT16, FLOAT32, FLOAT64
from tests.problems import METHODS, calls_of_cases, large

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
_DEVICES = {
    "sm_80": Device("made-up A100", "cuda", 108, {"float32": 19e12}, 1.5e12, 4e-6, (8, 0), 166_912),
    "sm_90a": Device("made-up H200", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448),
    "sm_100": Device("made-up B200", "cuda", 148, {"float32": 70e12}, 7e12, 4e-6, (10, 0), 232_448),
}


def _kernels(device):
    """Every kernel that any case or large call plans, in every dtype, aligned and not."""
    return sorted({k for _, _, program in _programs(device) for k in program.kernels}, key=lambda k: k.symbol)


def _programs(device, alignments=(True, False)):
    """(problem, method, program) of all that any case or large call plans, in every dtype, aligned and not."""
    for call in (*calls_of_cases(), *(c for dtype in (FLOAT16, FLOAT32, FLOAT64) for c in large(dtype))):
        problem = call.problem()
        for method in METHODS.get(call.base, ()):
            for here in (device, replace(device, aligned=False)):
                if here.aligned in alignments and method.rejects(problem, here) is None:
                    yield problem, method, method.run(problem, here, here.aligned)


_FEW = 2  # configurations of each source, spread over all; "make kernels" takes every one
_SOURCES = sorted(str(p.relative_to(module.kernels_folder())) for p in module.kernels_folder().rglob("*.cu"))


@lru_cache(maxsize=3)
def _by_source(architecture):
    found = {}
    for kernel in _kernels(_DEVICES[architecture]):
        found.setdefault(kernel.source, []).append(kernel)
    return found


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("source", _SOURCES)
def test_every_kernel_compiles_without_a_spill(source, architecture, request):
    kernels = _by_source(architecture).get(source, [])
    if not request.config.getoption("--all-kernels"):
        kernels = kernels[:: max(1, len(kernels) // _FEW)]
    for kernel in kernels:
        code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
        assert code.startswith(b"\x7fELF")
        assert not re.search(r"[1-9]\d* bytes spill", log), f"{kernel.symbol}: {log}"


def test_every_source_is_planned_by_some_problem():
    assert set(_SOURCES) <= set().union(*map(_by_source, _DEVICES))


def test_every_call_names_all_its_options():
    """Those that change from call to call, too: the seed of a gradient of dropout."""
    assert not [
        call.op for call in calls_of_cases() if any(value is inspect.Parameter.empty for value in call.options.values())
    ]


def test_no_launch_takes_more_scratch_than_its_method_asks_for():
    for problem, method, program in _programs(_DEVICES["sm_90a"]):
        scratch = sum(spec is not None for spec in (*leaves(problem.inputs), *problem.outputs))
        workspace = method.workspace(problem)  # once for all plans: a recurrent network has thousands
        for plan in program.plans:
            assert all(a.index <= scratch for a in plan.arrays), (problem.op, method.name)
            assert all(a.offset <= workspace for a in plan.arrays if a.index == scratch), (problem.op, method.name)


def test_symbols_name_their_settings_uniquely():
    kernels = [k for found in _by_source("sm_90a").values() for k in found]
    assert len({k.symbol for k in kernels}) == len(kernels)
    assert all(re.fullmatch(r"[a-z0-9_]+", k.symbol) for k in kernels)


def test_an_edited_header_changes_the_digest(monkeypatch):
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    before = module.digest(kernel, "sm_90a")
    assert before != module.digest(kernel, "sm_80")
    original = module._source
    monkeypatch.setattr(module, "_source", lambda name: original(name) + (b" " if name.endswith("dtype.cuh") else b""))
    module._files_digest.cache_clear()
    after = module.digest(kernel, "sm_90a")
    module._files_digest.cache_clear()
    assert after != before


@pytest.mark.parametrize(
    "damage", [lambda b: b"garbage", lambda b: b"", lambda b: b[:-1], lambda b: b[:-9] + b"X" + b[-8:]]
)
def test_the_cubin_cache_replaces_what_is_damaged(damage, tmp_path, monkeypatch):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    first = module.cubin(kernel, "sm_90a")
    (file,) = (tmp_path / "cubin").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert module.cubin(kernel, "sm_90a") == first
    assert file.read_bytes() == whole
    monkeypatch.setattr(module, "compile_kernel", lambda *a: pytest.fail("the cache was not used"))
    assert module.cubin(kernel, "sm_90a") == first


def test_the_compiler_writes_only_to_memory_of_ours():
    module.compile_kernel(_by_source("sm_90a")["common/zero.cu"][0], "sm_90a")
    assert [bytes([i])[0] for i in range(256)] == list(range(256))  # Python shares bytes objects of length 1


def test_a_kernel_that_does_not_compile_leaves_nothing_behind(monkeypatch):
    from cuda.bindings import nvrtc

    destroyed, destroy = [], nvrtc.nvrtcDestroyProgram
    monkeypatch.setattr(nvrtc, "nvrtcDestroyProgram", lambda program: destroyed.append(program) or destroy(program))
    kernel = _by_source("sm_90a")["common/zero.cu"][0]
    with pytest.raises(dnn.DeviceError, match="does not compile for sm_90a"):
        module.compile_kernel(replace(kernel, includes=("nothing",)), "sm_90a")
    assert len(destroyed) == 1


def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "cubin").write_text("a file where the folder should be")
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "cubin"))
    assert module.cubin(_by_source("sm_90a")["common/zero.cu"][0], "sm_90a").startswith(b"\x7fELF")
