"""Families of the CUDA engine that are packages: an algorithm, its plan, its kernel file and the kernel's symbol have one name, and one record of arguments."""

import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import pytest

import dnnarray._cuda
from dnnarray._cuda.core import arguments, module
from dnnarray._cuda.core.arguments import Arguments, Pointer
from dnnarray._cuda.core.plan import Plan
from dnnarray._operation import find
from tests.test_kernels import _DEVICES, _programs

_DEVICE = _DEVICES["sm_90a"]
_ENTRY = re.compile(r"DNNARRAY_ENTRY\(([^)]*)\) \{")
_PLANS = Path(dnnarray._cuda.__file__).parent
_FAMILIES = sorted({path.parent.name for path in _PLANS.glob("*/__init__.py")} - {"core", "common"})


@lru_cache(maxsize=1)
def _planned():
    """(family, algorithm, plan) of every kernel that takes a struct, or is a converted family's."""
    found = {}
    for problem, method, program in _programs(_DEVICE):
        family = find(problem.op).family
        for plan in program.plans:
            if isinstance(plan, Plan) and (family in _FAMILIES or isinstance(plan.arguments, Arguments)):
                found.setdefault((plan.kernel.symbol, family in _FAMILIES), (family, method.name, plan))
    return tuple(found.values())


def test_softmax_is_the_pattern():
    assert "softmax" in _FAMILIES


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_algorithm_has_a_plan_and_a_kernel_of_its_name(family):
    package = import_module(f"dnnarray._cuda.{family}")
    methods = {m for table in package.ALGORITHMS.values() for m in table}
    names = {m.name for m in methods}
    assert all(m.run.__module__ == f"{package.__name__}.{m.name}" for m in methods)
    assert names == {path.stem for path in (module.kernels_folder() / family).glob("*.cu")}
    assert names == {path.stem for path in (_PLANS / family).glob("*.py")} - {"__init__", "shared"}


def test_a_kernel_is_planned_in_its_own_stem():
    for family, name, plan in _planned():
        folder, _, stem = plan.kernel.source.removesuffix(".cu").partition("/")
        if folder == "common":
            assert type(plan.arguments).__module__ == f"dnnarray._cuda.common.{stem}"
            assert stem in plan.kernel.symbol
        elif family in _FAMILIES:
            assert (folder, stem) == (family, name)
            assert name in plan.kernel.symbol


def test_kernel_files_name_the_fields_of_their_records():
    """The arrays that are parameters of an entry go by their order: their names are compared here. The struct of an editor is the generated one."""
    for plan in {plan.kernel.source: plan for _, _, plan in _planned()}.values():
        record, source = type(plan.arguments), plan.kernel.source
        assert issubclass(record, Arguments), source
        text = (module.kernels_folder() / source).read_text()
        names = [parameter.split()[-1] for parameter in _ENTRY.search(text)[1].split(",")]
        alone = [name for name, kind in arguments._kinds(record).items() if isinstance(kind, Pointer)] if record._restrict else []
        assert names == [*alone, "a"], source
        assert re.sub(r"(static_assert.*\n)+", "", plan.kernel.arguments.text) in text, source


@pytest.mark.parametrize("family", [*_FAMILIES, "common"])
def test_kernel_files_compile_by_themselves(family):
    """As an editor sees them: with the settings and the struct that stand in the file."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    root = module.kernels_folder()
    options = [o.encode() for o in ("-arch=sm_90a", f"-I{root}", f"-I{root / 'include'}", *module._OPTIONS)]
    for path in sorted((root / family).glob("*.cu")):
        _, program = nvrtc.nvrtcCreateProgram(f'#include "{family}/{path.name}"\n'.encode(), b"alone.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, (path.name, module._log(nvrtc, program))
        nvrtc.nvrtcDestroyProgram(program)
