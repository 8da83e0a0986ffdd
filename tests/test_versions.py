"""`show_versions` and `check`: what they tell, and every problem with the way to mend it."""

import platform
import sys

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _versions
from dnnarray._cuda.core import requirements


def _item(name):
    return next(item for item in dnn.check().items if item.name == name)


@pytest.fixture
def avx512(monkeypatch):
    """A processor with AVX-512, whatever this one has."""
    monkeypatch.setattr(_versions.platform, "machine", lambda: "x86_64")
    config = {"SIMD Extensions": {"baseline": ["SSE"], "found": ["AVX2", "AVX512_SKX"]}}
    monkeypatch.setattr(_versions, "_numpy_config", lambda: config)


def test_versions_are_those_of_the_libraries(capsys):
    dnn.show_versions()
    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows["dnnarray"] == dnn.__version__
    assert rows["Python"] == platform.python_version()
    assert rows["numpy"].startswith(f"{np.__version__} (BLAS: ")
    assert set(rows) == {
        "dnnarray",
        "Python",
        "platform",
        "processor",
        "numpy",
        "ml-dtypes",
        "array-api-compat",
        "cupy",
        "torch",
        "jax",
        "numba",
    }


def test_what_is_not_installed_is_said_and_nothing_is_imported(capsys, monkeypatch):
    monkeypatch.setattr(_versions, "_version", lambda name: None)
    before = set(sys.modules)
    dnn.show_versions()
    assert capsys.readouterr().out.count("not installed") == 6
    assert not {m for m in set(sys.modules) - before if m.partition(".")[0] in ("torch", "jax", "numba", "cupy")}


def test_cupy_goes_by_the_names_of_its_wheels(monkeypatch):
    monkeypatch.setattr(_versions, "_version", lambda name: "14.0.1" if name == "cupy-cuda12x" else None)
    assert _versions._cupy() == "14.0.1 (cupy-cuda12x)"


@pytest.mark.parametrize("name", ["numpy", "ml-dtypes"])
def test_versions_too_old_or_missing(name, monkeypatch):
    assert _item(name).ok
    monkeypatch.setattr(_versions, "_version", lambda package: "0.4.9")
    assert not _item(name).ok
    assert f"pip install --upgrade '{name}>=" in _item(name).mend
    monkeypatch.setattr(_versions, "_version", lambda package: None)
    assert "not installed" in _item(name).found


@pytest.mark.parametrize(
    ("version", "ok"), [("2.1.0", True), ("2.0.9", False), ("10.0", True), ("2.1.0rc1", True), ("1.26.4", False)]
)
def test_versions_are_compared_as_numbers(version, ok, monkeypatch):
    monkeypatch.setattr(_versions, "_version", lambda package: version)
    assert _versions._check_version("numpy", (2, 1)).ok is ok


@pytest.mark.parametrize(
    ("told", "ok"),
    [("", True), ("Haswell", False), ("ZEN", False), ("Nehalem", False), ("SkylakeX", True), ("Novel", True)],
)
def test_the_core_type_trap(told, ok, avx512, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", told)
    item = _item("BLAS core type")
    assert item.ok is ok
    assert ok or "Unset OPENBLAS_CORETYPE" in item.mend
    assert told in item.found


@pytest.mark.usefixtures("avx512")
def test_the_core_type_is_no_trap_on_a_processor_that_can_do_no_more(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert not _item("BLAS core type").ok
    monkeypatch.setattr(
        _versions, "_numpy_config", lambda: {"SIMD Extensions": {"baseline": ["SSE"], "found": ["X86_V3"]}}
    )
    assert _item("BLAS core type").ok
    monkeypatch.setattr(_versions.platform, "machine", lambda: "aarch64")
    assert _item("BLAS core type").ok


def test_threads(monkeypatch):
    for name in _versions._THREAD_LIMITS:
        monkeypatch.delenv(name, raising=False)
    assert _item("threads").ok
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "OMP_NUM_THREADS=1" in _item("threads").found
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "100000")
    assert "Unset OPENBLAS_NUM_THREADS" in _item("threads").mend


_MACHINE = requirements.Machine((13, 0), ((9, 0),))
_WELL = {"cupy-cuda13x": "14.2.0", "cuda-bindings": "13.0.1"}


def _findings(monkeypatch, machine, packages):
    monkeypatch.setattr(requirements, "version_of", packages.get)
    monkeypatch.setattr(requirements, "machine", lambda: machine)
    return {f.name: f for f in requirements.findings(machine)} if machine else {}


def test_no_device_is_no_problem_until_a_device_array_comes(monkeypatch):
    _findings(monkeypatch, None, {})
    assert _item("CUDA").ok
    assert "no CUDA driver" in requirements.problem()


def test_a_device_without_cupy_is_no_problem_until_a_device_array_comes(monkeypatch):
    _findings(monkeypatch, _MACHINE, {})
    assert _item("CuPy").ok
    assert "pip install 'dnnarray[cuda13]'" in _item("CuPy").mend
    assert requirements.problem().startswith("CuPy: not installed")


@pytest.mark.parametrize(
    ("machine", "packages", "name", "words"),
    [
        (requirements.Machine((11, 4), ((8, 0),)), _WELL, "CUDA driver", ["11.4", "12.0", "driver 525"]),
        (
            requirements.Machine((13, 0), ((9, 0), (7, 0))),
            _WELL,
            "CUDA devices",
            ["device 1", "sm_70", "sm_75", "CUDA_VISIBLE_DEVICES"],
        ),
        (
            requirements.Machine((12, 8), ((9, 0),)),
            _WELL,
            "CuPy",
            ["cupy-cuda13x 14.2.0", "CUDA 13", "12.8", "pip uninstall", "cuda12"],
        ),
        (_MACHINE, {"cupy-cuda11x": "13.6"}, "CuPy", ["cupy-cuda11x", "CUDA 11", "cuda13"]),
        (_MACHINE, _WELL | {"cupy-cuda12x": "14"}, "CuPy", ["several", "pip uninstall cupy-cuda12x"]),
        (_MACHINE, {"cupy-cuda13x": "14"}, "NVRTC", ["cuda-bindings", "not installed", "cuda13"]),
        (
            requirements.Machine((12, 8), ((9, 0),)),
            {"cuda-bindings": "13.0"},
            "NVRTC",
            ["newer than the driver", "12.8"],
        ),
    ],
)
def test_what_is_wrong_with_cuda_is_named_and_mended(machine, packages, name, words, monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: packages.get("cuda-bindings"))
    finding = _findings(monkeypatch, machine, packages)[name]
    assert not finding.ok
    for word in words:
        assert word in f"{finding.found} {finding.mend}"


@pytest.mark.parametrize(("codes", "devices", "expected"), [((0, 0), 2, 2), ((100, 0), 2, 0), ((0, 3), 2, 0)])
def test_the_driver_is_asked_for_devices(codes, devices, expected, monkeypatch):
    class Driver:
        def __init__(self, name):
            self.cuInit = lambda flags: codes[0]

        def cuDriverGetVersion(self, pointer):  # noqa: N802 - the driver's own name
            pointer._obj.value = 13010
            return 0

        def cuDeviceGetCount(self, pointer):  # noqa: N802
            pointer._obj.value = devices
            return codes[1]

        def cuDeviceGetAttribute(self, pointer, attribute, index):  # noqa: N802
            pointer._obj.value = {75: 9, 76: index}[attribute]
            return 0

    monkeypatch.setattr(requirements.ctypes, "CDLL", Driver)
    found = requirements.machine()
    assert len(found.devices if found else ()) == expected
    assert found is None or found == requirements.Machine((13, 1), ((9, 0), (9, 1)))


def test_no_driver_library_is_no_device(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(requirements.ctypes, "CDLL", missing)
    assert requirements.machine() is None
