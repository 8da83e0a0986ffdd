"""Functions written as text: their source is found, their globals are complete, and no other module compiles any."""

import ast
import functools
import inspect
import linecache
import pydoc
import subprocess
import sys
import traceback
import typing
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _source
from dnnarray._call.operation import operations

_PACKAGE = Path(dnn.__file__).parent
_X = np.array([-1.0, 2.0], np.float32)


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(_source, "_codes", {})


def test_one_module_alone_compiles_text():
    found = set()
    for path in _PACKAGE.rglob("*.py"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        found |= {path.name for f in calls if isinstance(f, ast.Name) and f.id in ("exec", "eval", "compile")}
    assert found == {"_source.py"}


@pytest.mark.parametrize("called", [False, True], ids=["before", "after"])
def test_the_source_of_a_public_function_is_the_text_that_runs(called):
    """In a process of its own, where nothing has been called."""
    call = "dnn.conv(np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3)))" if called else ""
    code = f"import inspect, numpy as np, dnnarray as dnn\n{call}\nprint(inspect.getsource(dnn.conv))"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert text.startswith("def conv(x=_required, weight=_required, /, bias=_default_bias, *, stride=_default_stride")
    assert text.rstrip().endswith("workspace, algorithm, _key)")
    compile(text, "text", "exec")


@pytest.mark.parametrize("name", sorted(operations()))
def test_every_public_function_bears_inspection(name):
    function = getattr(dnn, name)
    assert inspect.getsource(function).startswith(f"def {name}(")
    assert inspect.signature(function).parameters
    assert typing.get_type_hints(function) == {}
    assert function.__globals__["__builtins__"]
    assert function.__globals__["__name__"] == function.__module__
    assert function.__code__.co_name == function.__code__.co_qualname == name
    assert pydoc.plain(pydoc.render_doc(function)).count(f"{name}(")


def test_wrappers_keep_what_the_function_says_of_itself():
    @functools.wraps(dnn.max_pool2d)
    def wrapper(*arguments, **options):
        return dnn.max_pool2d(*arguments, **options)

    assert inspect.signature(wrapper) == inspect.signature(dnn.max_pool2d)
    assert wrapper.__doc__ == dnn.max_pool2d.__doc__
    assert (wrapper.__name__, wrapper.__module__) == ("max_pool2d", "dnnarray.pool")
    assert inspect.unwrap(wrapper) is dnn.max_pool2d


def _lines_of(error):
    return {frame.filename: frame.line for frame in traceback.extract_tb(error.__traceback__)}


def test_tracebacks_show_the_line_that_was_running():
    for _ in range(2):  # the first call of all goes through one frame more
        with pytest.raises(dnn.ShapeError) as caught:
            dnn.lp_pool1d(_X, 2)
        shown = [line for file, line in _lines_of(caught.value).items() if file.startswith("<dnnarray lp_pool1d")]
        assert any(line.startswith("return _dispatch(_op, (x,") for line in shown)


def test_debuggers_find_the_lines_of_a_running_frame():
    seen = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename.startswith("<dnnarray relu"):
            seen.append(linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        dnn.relu(_X)
    finally:
        sys.settrace(before)
    assert "_call = _known(_key)" in seen


def test_texts_have_files_of_their_own_that_stay_the_same_between_processes(fresh):
    one, other = (_source.function("f", f"def f():\n    return {n}\n", {}, __name__) for n in (1, 2))
    assert (one(), other()) == (1, 2)
    files = [f.__code__.co_filename for f in (one, other)]
    assert files[0] != files[1]
    assert inspect.getsource(one).endswith("return 1\n")
    assert inspect.getsource(other).endswith("return 2\n")
    elsewhere = _source.function("f", "def f():\n    return 1\n", {}, "another.module")
    assert elsewhere.__code__.co_filename not in files
    assert elsewhere.__module__ == "another.module"
    code = (
        f"from dnnarray import _source; print(_source.function('f', 'def f():\\n    return 1\\n', {{}}, "
        f"{__name__!r}).__code__.co_filename)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == files[0]
    )


def test_a_text_is_compiled_once_and_knows_its_own_scope(fresh):
    one, other = (
        _source.function("f", "def f():\n    return value, len([value])\n", {"value": n}, __name__) for n in (1, 2)
    )
    assert one.__code__ is other.__code__
    assert (one(), other()) == ((1, 1), (2, 1))


def test_the_texts_of_one_function_that_are_kept_are_bounded(fresh, monkeypatch):
    monkeypatch.setattr(_source, "_MOST", 4)
    others = set(linecache.cache)
    functions = [_source.function("f", f"def f():\n    return {n}\n", {}, __name__) for n in range(40)]
    assert len(set(linecache.cache) - others) <= 4
    assert [f() for f in functions] == list(range(40))
    assert inspect.getsource(functions[-1]).endswith("return 39\n")


def test_tools_that_look_through_all_files_leave_the_texts_alone():
    dnn.relu(_X)
    linecache.checkcache()
    assert inspect.getsource(dnn.relu).startswith("def relu(")


def _kernels():
    """Every kernel of the CPU engine with the module that it stands in."""
    pytest.importorskip("numba", reason="numba is not installed")
    from dnnarray._cpu import compiled
    from dnnarray._cpu.compiled.kernel import Kernel

    found = {}
    for module in walk_packages(compiled.__path__, f"{compiled.__name__}."):
        for value in vars(import_module(module.name)).values():
            kernels = [value] if isinstance(value, Kernel) else getattr(value, "kernels", ())
            found |= {id(k): k for k in kernels if isinstance(k, Kernel)}
    return list(found.values())


def test_kernels_and_what_spreads_them_show_their_text():
    for each in _kernels():
        assert f"def {each.run.py_func.__name__}(" in inspect.getsource(each.run.py_func)
        assert inspect.getsource(each._spread.py_func).startswith(f"def {each.run.py_func.__name__}_spread(")


def test_no_two_kernels_share_a_file_of_machine_code():
    kernels = _kernels()
    from dnnarray._cpu.compiled import store

    dtypes = ("float32", "float64")  # which are one to a kernel of integers
    names = [{store.file_name(*each) for dtype in dtypes for each in k._functions(dtype)} for k in kernels]
    assert len(names) > 100
    assert sum(map(len, names)) == len(set().union(*names))


def test_no_two_kernels_share_a_name_for_the_linker():
    names = [k._name for k in _kernels()]
    assert len(set(names)) == len(names)
