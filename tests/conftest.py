"""What ``--compiled`` does, and folders for caches."""

import tempfile
from pathlib import Path

import pytest

from dnnarray._select import tuning

# What no kernel of the CPU engine can change: plans and sources of the CUDA engine, texts, annotations, records,
# and errors that are raised before an engine is asked.
_ANY_ENGINE = (
    "test_attention_errors",
    "test_contract",
    "test_cuda_*",
    "test_kernels*",
    "test_norm_errors",
    "test_package",
    "test_records",
    "test_select",
    "test_shipped",
    "test_source",
    "test_suggestions",
    "test_typing",
    "test_versions",
    "gpu",
)


def pytest_configure(config):
    if config.getoption("--compiled"):
        from tests.compiled_first import prefer_compiled

        prefer_compiled()


def pytest_ignore_collect(collection_path, config):
    """Leave out of the stage with the compiled kernels what the stage with NumPy alone has settled."""
    path = Path(collection_path)
    return (config.getoption("--compiled") and any(path.with_suffix("").match(name) for name in _ANY_ENGINE)) or None


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    """The folder of the caches, for the test alone; nothing else may be written to."""
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    tuning.forget_loaded()
    tuning._reported.clear()
    yield tmp_path / "cache"
    tuning.forget_loaded()
