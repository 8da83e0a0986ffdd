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
_MEMBER = re.compile(r"(using|static constexpr \w+) (\w+) =")
_PLANS = Path(dnnarray._cuda.__file__).parent
_LATER = set("conv linear".split())  # to which the rules apply kernel by kernel, from the record of arguments on
_PACKAGES = {path.parent.name for path in _PLANS.glob("*/__init__.py")} - {"core", "common"}
_FAMILIES = sorted(_PACKAGES - _LATER)

_LATER_OPS = {"linear_cross_entropy", "linear_cross_entropy_backward"}  # whose algorithms are those of matrix products


@lru_cache(maxsize=1)
def _launches():
    """A launch of every kernel."""
    plans = (plan for _, _, program in _programs(_DEVICE) for plan in program.plans if isinstance(plan, Plan))
    return tuple({plan.kernel.symbol: plan for plan in plans}.values())


def _planned():
    """A launch of every kernel that takes a record of arguments; in the families that are converted, of every
    kernel."""
    return [
        plan
        for plan in _launches()
        if isinstance(plan.arguments, Arguments) or plan.kernel.source.partition("/")[0] not in _LATER
    ]


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


def test_kernel_files_name_the_settings_of_their_records():
    """The `Config` of an editor has the members of the generated one, each of the same kind and in the same order; its
    values are an example."""
    for source, kernel in {plan.kernel.source: plan.kernel for plan in _launches()}.items():
        text = (module.kernels_folder() / source).read_text()
        example = text.partition("#ifndef DNNARRAY_CONFIG\n")[2].partition("};\n")[0]
        assert _MEMBER.findall(example) == _MEMBER.findall(kernel.config.prologue()), source


def _compiles(name, before=""):
    """Compile a file of the kernels for sm_90a; the assertion shows what the compiler said."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    root = module.kernels_folder()
    options = [o.encode() for o in ("-arch=sm_90a", f"-I{root}", f"-I{root / 'include'}", *module._OPTIONS)]
    _, program = nvrtc.nvrtcCreateProgram(f'{before}#include "{name}"\n'.encode(), b"alone.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, (name, module._log(nvrtc, program))
    nvrtc.nvrtcDestroyProgram(program)


@pytest.mark.parametrize("family", [*sorted(_PACKAGES), "common"])
def test_kernel_files_compile_by_themselves(family):
    """As an editor sees them: with the settings and the struct that stand in the file."""
    for path in sorted((module.kernels_folder() / family).glob("*.cu")):
        if family not in _LATER or "struct Arguments" in path.read_text():
            _compiles(f"{family}/{path.name}")


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


def _name(header):
    """A header as an include line names it."""
    root = module.kernels_folder()
    return str(header.relative_to(root / "include" if root / "include" in header.parents else root))


def _speaks_of_settings(header):
    """Whether it names the `Config` of the kernel that includes it, rather than take one as a parameter."""
    texts = [h.read_text() for h in (header, *_headers(header))]
    return any("Config::" in text and "typename Config" not in text for text in texts)


@pytest.mark.parametrize("family", [*sorted(_PACKAGES), "include"])
def test_headers_compile_by_themselves(family):
    """Whatever a header needs it includes. One that speaks of a kernel's settings gets those of a kernel that includes
    it."""
    root = module.kernels_folder()
    for header in sorted((root / family).rglob("*.cuh")):
        before = ""
        if _speaks_of_settings(header):
            kernel = next(p.kernel for p in _planned() if header in _headers(root / p.kernel.source))
            before = kernel.code().partition(f'#include "{kernel.source}"')[0]
        _compiles(_name(header), before)


def _users():
    """The families whose kernels include a header."""
    users = {}
    for path in module.kernels_folder().rglob("*.cu"):
        for header in _headers(path):
            users.setdefault(header, set()).add(path.parent.name)
    return users


def test_headers_of_one_family_lie_beside_its_kernels():
    """And those of several families in one of three folders; a wrapper of an instruction may have a single user."""
    folder, users = module.kernels_folder() / "include" / "dnnarray", _users()
    assert {_name(h) for h in module.kernels_folder().rglob("*.cuh")} == {_name(h) for h in users}
    assert {h.parent.name for h in folder.rglob("*.cuh") if h.parent.parent == folder} == {"core", "ptx", "mma"}
    assert [_name(h) for h in users if folder not in h.parents and users[h] != {h.parent.name}] == []
    assert [_name(h) for h in users if h.parent.name in {"core", "mma"} and len(users[h]) < 2] == []
    assert list(folder.glob("*.cuh")) == []


def test_inline_ptx_stands_in_its_folder_alone():
    """One wrapper for an instruction, named for it; an empty text, which holds a value back from the compiler, too."""
    root = module.kernels_folder()
    ptx = root / "include" / "dnnarray" / "ptx"
    outside = [p for p in root.rglob("*.cu*") if p.parent != ptx]
    assert [p.name for p in outside if re.search(r"\basm\b", re.sub(r"//.*", "", p.read_text()))] == []
