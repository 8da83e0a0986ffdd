"""What pytest must not import where a part of the environment is missing, and its options."""

from importlib.util import find_spec
from pathlib import Path

# What launches needs CuPy at import; its doctests are collected only where that is installed. Plans and requirements do
# not.
_LAUNCHING = ["engine", "core/dialect", "core/launch", "core/matmul", "core/overlap", "core/warm"]
_NEED_CUPY = [
    *(f"dnnarray/_cuda/{name}.py" for name in _LAUNCHING),
    "dnnarray/interop/jax/cuda.py",
    "tests/made_up_device.py",
]
collect_ignore = [] if find_spec("cupy") else _NEED_CUPY
# Kernels and their drivers need Numba at import; what names and asks for them does not.
_NAMING = ("__init__", "compiler", "crew")
if not find_spec("numba"):
    collect_ignore += ["tests/guard_pages.py", "tests/kernels_of_tests.py"]
    collect_ignore += [
        str(path) for path in Path(__file__).parent.glob("dnnarray/_cpu/compiled/**/*.py") if path.stem not in _NAMING
    ]
# A door to another library needs that library at import.
_DOORS = ("autograd.py", "jax", "onnx", "torch", "sklearn.py")
collect_ignore += [f"dnnarray/interop/{path}" for path in _DOORS if not find_spec(path.partition(".")[0])]
if not find_spec("jax"):
    collect_ignore.append("tests/interop/made_up_frame.py")
if not find_spec("onnx"):
    collect_ignore.append("tests/interop/onnx_official.py")
if not find_spec("torch"):
    collect_ignore += [
        *(f"tests/interop/{name}.py" for name in ("networks", "precision", "zoo")),
        *(f"tests/short_scripts/{name}.py" for name in ("cnn", "lstm", "transformer")),
    ]


def pytest_addoption(parser):
    parser.addoption(
        "--all-kernels",
        action="store_true",
        help="compile every kernel in every configuration, not a few of each source",
    )
    parser.addoption(
        "--compiled",
        action="store_true",
        help="take the algorithms that Numba compiles wherever there are any, also on small arrays",
    )
