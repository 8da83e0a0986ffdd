"""The house rules: which layer may import which, and what `import dnnarray` may cost and drag in."""

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import dnnarray
from tests import import_graph

_PACKAGE = Path(dnnarray.__file__).parent
_FAMILIES = {
    "activation",
    "softmax",
    "dropout",
    "linear",
    "conv",
    "pool",
    "norm",
    "rnn",
    "attention",
    "loss",
    "spatial",
}


def _modules():
    return sorted(p for p in _PACKAGE.rglob("*.py") if "_kernels" not in p.parts)


def _layer(path):
    relative = path.relative_to(_PACKAGE)
    if len(relative.parts) > 1:
        return relative.parts[0]
    return "public" if relative.stem in _FAMILIES else relative.stem


@cache
def _imports(path):
    """What a file imports anywhere; each file is parsed once for all tests."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import | ast.ImportFrom)]
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return (*plain, *(f"{node.module}.{alias.name}" for node in named for alias in node.names))


# layer -> prefixes that it must not import
_FORBIDDEN = {
    "public": ("numpy", "cupy", "dnnarray._cpu", "dnnarray._cuda", "dnnarray._select"),
    "_problems": ("cupy", "dnnarray._cpu", "dnnarray._cuda", "dnnarray._select", "dnnarray._call", "dnnarray._engine"),
    "_select": ("numpy", "cupy", "dnnarray._cpu", "dnnarray._cuda", "dnnarray._call", "dnnarray._engine"),
    "_engine": ("cupy", "dnnarray._cpu", "dnnarray._cuda", "dnnarray._call"),
    "_cpu": ("cupy", "dnnarray._cuda", "dnnarray._call"),
    "_cuda": ("dnnarray._cpu", "dnnarray._call"),
}


def test_layers_import_only_downwards():
    forbidden = {path: _FORBIDDEN.get(_layer(path), ()) for path in _modules()}
    found = [
        (str(p), name)
        for p, prefixes in forbidden.items()
        if prefixes
        for name in _imports(p)
        if name.startswith(prefixes)
    ]
    assert not found


@pytest.mark.parametrize("path", sorted((_PACKAGE / "_cuda" / "core").glob("*.py")), ids=lambda p: p.stem)
def test_the_core_of_the_cuda_engine_knows_no_family(path):
    """Neither a family's plans nor its public functions: families stand on the core, and the core could serve any
    other."""
    above = [f"dnnarray.{family}" for family in _FAMILIES]
    found = [
        name
        for name in _imports(path)
        if name.startswith(("dnnarray._cuda", *above)) and not name.startswith("dnnarray._cuda.core")
    ]
    assert not found


_KERNELS = _PACKAGE.parent / "kernels"


def test_kernel_sources_have_120_columns():
    """Ruff keeps the Python sources to the same width; `.clang-format` is the style of these."""
    sources = sorted(_KERNELS.rglob("*.cu*"))
    assert sources
    lines = [(path, i, line) for path in sources for i, line in enumerate(path.read_text().splitlines(), 1)]
    assert [f"{path.relative_to(_KERNELS)}:{i}" for path, i, line in lines if len(line) > 120] == []


def test_no_import_runs_in_a_circle():
    """Neither between modules nor between layers; `graphlib.CycleError` names one that does."""
    assert import_graph.ranks(import_graph.imports())["dnnarray"] > 0
    assert import_graph.ranks(import_graph.layers())["public functions"] > 0


def test_other_libraries_are_imported_by_interop_alone():
    outside = [p for p in _modules() if _layer(p) != "interop"]
    found = {
        str(p): n for p in outside for n in _imports(p) if n.partition(".")[0] in {"scipy", "torch", "jax", "sklearn"}
    }
    assert not found


def test_nothing_imports_interop():
    outside = [p for p in _modules() if _layer(p) != "interop"]
    found = {str(p): n for p in outside for n in _imports(p) if n.startswith("dnnarray.interop")}
    assert not found


def test_import_is_light():
    code = "import sys, dnnarray; print([m for m in ('cupy', 'torch', 'scipy', 'jax', 'numba') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("family", sorted(_FAMILIES))
def test_every_family_has_the_same_stem_in_every_layer(family):
    root = _PACKAGE.parent
    for place in ("dnnarray", "dnnarray/_problems", "dnnarray/_cpu", "tests/cases", "tests/oracles"):
        assert (root / place / f"{family}.py").exists() or (root / place / family / "__init__.py").exists()


_STANDARD = {
    "_spec.py",
    "_options.py",
    "_records.py",
}  # few, and the first two have slots or do something after they are made


def test_frozen_classes_compile_nothing_at_import():
    """By `_records.frozen`: the standard library's decorator takes a millisecond for each, and a first call imports a
    hundred."""
    found = [str(p) for p in _modules() if p.name not in _STANDARD and "@dataclass(frozen=True" in p.read_text()]
    assert not found


def _inner_names(path):
    """(module, attribute) of all that a file takes from modules of the package: imports, attributes, what
    `monkeypatch.setattr` puts in place."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = [(n.module, a.name, a.asname or a.name) for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    taken = [
        (module, name, known) for module, name, known in imported if module and module.partition(".")[0] == "dnnarray"
    ]
    modules = {
        known: f"{module}.{name}"
        for module, name, known in taken
        if find_spec(module) and _is_module(f"{module}.{name}")
    }
    yield from ((module, name) for module, name, known in taken if known not in modules)
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=known), attr=name) if known in modules:
                yield modules[known], name
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=known), ast.Constant(value=str(name)), *_]
            ) if known in modules:
                yield modules[known], name


def _is_module(name):
    path = _PACKAGE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("path", sorted((_PACKAGE.parent / "tests" / "gpu").glob("*.py")), ids=lambda p: p.stem)
def test_what_tests_for_a_card_take_from_the_package_exists(path):
    """They run seldom: a name that moved is to be found without a card."""
    taken = list(_inner_names(path))
    without_cupy = {m for m, _ in taken if not any(n.partition(".")[0] == "cupy" for n in _imports_of(m))}
    missing = [f"{m}.{n}" for m, n in taken if m in without_cupy and not hasattr(import_module(m), n)]
    assert not missing


def _imports_of(module):
    path = _PACKAGE.parent / module.replace(".", "/")
    return _imports(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


_COMPILED = _PACKAGE / "_cpu" / "compiled"


@pytest.mark.parametrize("path", sorted(_COMPILED.rglob("*.py")), ids=lambda p: str(p.relative_to(_COMPILED)))
def test_compiled_functions_widen_by_float64(path):
    """In Numba, ``float(x)`` of a float32 is a float32."""
    compiled = {"kernel", "device", "routine"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and compiled & {
            n.id for d in node.decorator_list for n in ast.walk(d) if isinstance(n, ast.Name)
        }:
            calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
            assert not [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id == "float"], node.name
