"""Families of the CUDA engine that are packages: an algorithm, its plan, its kernel file and the kernel's symbol have
one name, and one record of arguments."""

import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import pytest

import dnnarray._cuda
from dnnarray._cuda.core import arguments, module
from dnnarray._cuda.core.arguments import Arguments
from dnnarray._cuda.core.plan import Plan
from dnnarray._names import FAMILIES as NAMES
from tests.test_kernels import _DEVICES, _programs

_DEVICE = _DEVICES["sm_90a"]
_ENTRY = re.compile(r"DNNARRAY_ENTRY\(([^)]*)\) \{")
_PLANS = Path(dnnarray._cuda.__file__).parent
_LATER = set("conv linear".split())  # to which the rules apply kernel by kernel, from the record of arguments on
_PACKAGES = {path.parent.name for path in _PLANS.glob("*/__init__.py")} - {"core", "common"}
_FAMILIES = sorted(_PACKAGES - _LATER)

_LATER_OPS = {"linear_cross_entropy", "linear_cross_entropy_backward"}  # whose algorithms are those of matrix products


@lru_cache(maxsize=1)
def _planned():
    """A launch of every kernel that takes a record of arguments; in the families that are converted, of every
    kernel."""
    found = {}
    for _, _, program in _programs(_DEVICE):
        for plan in program.plans:
            if isinstance(plan, Plan) and (
                isinstance(plan.arguments, Arguments) or plan.kernel.source.partition("/")[0] not in _LATER
            ):
                found.setdefault(plan.kernel.symbol, plan)
    return tuple(found.values())


def test_every_family_is_a_package_or_will_be():
    assert set(_FAMILIES) == NAMES.keys() - _LATER
    assert NAMES.keys() >= _PACKAGES


def _module_of(method):
    """The name of the module that plans a method; several methods of one module are told apart by what follows its
    name."""
    return getattr(method.run, "func", method.run).__module__.rpartition(".")


@pytest.mark.parametrize("family", _FAMILIES)
def test_an_algorithm_has_a_plan_and_a_kernel_of_its_name(family):
    package = import_module(f"dnnarray._cuda.{family}")
    for method in {m for op, table in package.ALGORITHMS.items() if op not in _LATER_OPS for m in table}:
        folder, _, stem = _module_of(method)
        assert folder == package.__name__
        assert method.name == stem or method.name.startswith(f"{stem}_")
    sources = sorted(p.name for p in (module.kernels_folder() / family).glob("*.cu"))
    assert [s for s in sources if not (_PLANS / family / s).with_suffix(".py").exists()] == []


def test_a_kernel_is_planned_in_its_own_stem():
    for plan in _planned():
        folder, _, stem = plan.kernel.source.removesuffix(".cu").partition("/")
        assert type(plan.arguments).__module__ == f"dnnarray._cuda.{folder}.{stem}"
        assert stem in plan.kernel.symbol


def test_kernel_files_name_the_fields_of_their_records():
    """The arrays that are parameters of an entry go by their order: their names are compared here. The struct of an
    editor is the generated one."""
    for plan in {plan.kernel.source: plan for plan in _planned()}.values():
        record, source = type(plan.arguments), plan.kernel.source
        assert issubclass(record, Arguments), source
        text = (module.kernels_folder() / source).read_text()
        names = [parameter.split()[-1] for parameter in re.split(r",(?![^<]*>)", _ENTRY.search(text)[1])]
        alone = [name for name, kind in arguments._kinds(record).items() if arguments.stands_alone(record, name, kind)]
        assert names == [*alone, "a"], source
        assert re.sub(r"(static_assert.*\n)+", "", plan.kernel.arguments.text) in text, source


@pytest.mark.parametrize("family", [*sorted(_PACKAGES), "common"])
def test_kernel_files_compile_by_themselves(family):
    """As an editor sees them: with the settings and the struct that stand in the file."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    root = module.kernels_folder()
    options = [o.encode() for o in ("-arch=sm_90a", f"-I{root}", f"-I{root / 'include'}", *module._OPTIONS)]
    for path in sorted((root / family).glob("*.cu")):
        if family in _LATER and "struct Arguments" not in path.read_text():
            continue
        _, program = nvrtc.nvrtcCreateProgram(f'#include "{family}/{path.name}"\n'.encode(), b"alone.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, (path.name, module._log(nvrtc, program))
        nvrtc.nvrtcDestroyProgram(program)


def _headers(path):
    """All headers of the project that a kernel file includes, by way of others too."""
    root, found, left = module.kernels_folder(), set(), [path]
    while left:
        for name in re.findall(r'#include "([^"]+)"', left.pop().read_text()):
            header = next(folder / name for folder in (root / "include", root) if (folder / name).exists())
            if header not in found:
                found.add(header)
                left.append(header)
    return found


def test_headers_of_one_family_lie_beside_its_kernels():
    root, users = module.kernels_folder(), {}
    for path in root.rglob("*.cu"):
        for header in _headers(path):
            users.setdefault(header, set()).add(path.parent.name)
    shared = {header for header, families in users.items() if len(families) > 1}
    later = {header for header, families in users.items() if families <= _LATER}
    assert {h for h in (root / "include" / "dnnarray").glob("*.cuh") if h not in shared | later} == set()
    assert {h.parent.name for h in users if h.parent.name in _FAMILIES and users[h] != {h.parent.name}} == set()


def test_families_have_no_inline_ptx_of_their_own():
    """It stands in ``include/dnnarray/ptx``, one wrapper for an instruction; an empty text, which holds a value back
    from the compiler, is none."""
    paths = [p for family in (*_FAMILIES, "common") for p in (module.kernels_folder() / family).iterdir()]
    assert [p.name for p in paths if re.search(r'asm\s*(volatile)?\s*\(\s*"[^"]', p.read_text())] == []
