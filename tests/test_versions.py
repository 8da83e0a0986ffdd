"""`show_versions` and `check`: what they tell, and every problem with the way to mend it."""

import platform
import sys

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _versions


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
        "dnnarray", "Python", "platform", "processor", "numpy", "ml-dtypes", "array-api-compat", "cupy", "torch", "jax", "numba"
    }  # fmt: skip


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


@pytest.mark.parametrize(("version", "ok"), [("2.1.0", True), ("2.0.9", False), ("10.0", True), ("2.1.0rc1", True), ("1.26.4", False)])
def test_versions_are_compared_as_numbers(version, ok, monkeypatch):
    monkeypatch.setattr(_versions, "_version", lambda package: version)
    assert _versions._check_version("numpy", (2, 1)).ok is ok


@pytest.mark.parametrize(
    ("told", "ok"), [("", True), ("Haswell", False), ("ZEN", False), ("Nehalem", False), ("SkylakeX", True), ("Novel", True)]
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
    monkeypatch.setattr(_versions, "_numpy_config", lambda: {"SIMD Extensions": {"baseline": ["SSE"], "found": ["X86_V3"]}})
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


@pytest.mark.parametrize(
    ("devices", "cupy", "expected"),
    [
        (0, None, "no CUDA device: CPU engine only"),
        (1, None, "1 CUDA device, CuPy not installed"),
        (2, "14.0", "2 CUDA devices, CuPy 14.0"),
    ],
)
def test_cuda_is_never_an_error(devices, cupy, expected, monkeypatch):
    monkeypatch.setattr(_versions, "_cuda_devices", lambda: devices)
    monkeypatch.setattr(_versions, "_cupy", lambda: cupy)
    item = _item("CUDA")
    assert item.ok
    assert item.found.startswith(expected)


@pytest.mark.parametrize(("codes", "devices", "expected"), [((0, 0), 2, 2), ((100, 0), 2, 0), ((0, 3), 2, 0)])
def test_the_driver_is_asked_for_devices(codes, devices, expected, monkeypatch):
    class Driver:
        def __init__(self, name):
            self.cuInit = lambda flags: codes[0]

        def cuDeviceGetCount(self, pointer):  # noqa: N802 - the driver's own name
            pointer._obj.value = devices
            return codes[1]

    monkeypatch.setattr(_versions.ctypes, "CDLL", Driver)
    assert _versions._cuda_devices() == expected


def test_a_machine_without_a_driver_has_no_devices(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(_versions.ctypes, "CDLL", missing)
    assert _versions._cuda_devices() == 0


def test_a_report_prints_its_problems(monkeypatch):
    report = _versions.Report((_versions.Item("a", True, "well"), _versions.Item("b", False, "bad.", "Mend it.")))
    assert not report.ok
    assert str(report) == repr(report) == "ok       a: well\nPROBLEM  b: bad. Mend it."
