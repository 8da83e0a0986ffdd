"""What is built from the tree: an sdist, the wheel that comes of it, and that it works in an empty folder. No network
is needed."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

from dnnarray._version import __version__

_ROOT = Path(__file__).parents[1]
_BUILDS = all(find_spec(name) for name in ("build", "hatchling", "pip")) and (_ROOT / "pyproject.toml").exists()
needs_build = pytest.mark.skipif(not _BUILDS, reason="needs build, hatchling and pip")


def _python(*arguments, **options):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=True, **options)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both. The wheel is built from the sdist, which then holds all that is needed."""
    folder = tmp_path_factory.mktemp("dist")
    _python("-m", "build", "--no-isolation", "--outdir", folder, _ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder that the wheel is installed in, alone; its dependencies are those of the environment."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    _python(
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        "--target",
        folder,
        wheel,
    )
    return folder


def _sources(folder, pattern):
    return {str(path.relative_to(_ROOT)) for path in (_ROOT / folder).rglob(pattern) if "__pycache__" not in path.parts}


@needs_build
def test_the_wheel_holds_the_package_and_its_kernels_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    kernels = {f"dnnarray/_kernels/{name.partition('/')[2]}" for name in _sources("kernels", "*.cu*")}
    assert kernels
    assert not (_sources("dnnarray", "*.py") | kernels | {"dnnarray/py.typed"}) - names
    assert {name.partition("/")[0] for name in names} == {"dnnarray", f"dnnarray-{__version__}.dist-info"}


@needs_build
def test_the_sdist_holds_what_a_contributor_needs(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "Makefile",
        "pyproject.toml",
        "conftest.py",
    }
    assert not (needed | _sources("tests", "*.py") | _sources("kernels", "*.cu*") | _sources("docs", "*.md")) - names


@needs_build
def test_the_metadata_name_extras_links_and_the_licence(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    metadata = Parser().parsestr(archive.read(f"dnnarray-{__version__}.dist-info/METADATA").decode())
    assert not {"cpu", "torch", "jax", "autograd", "sklearn", "onnx"} - set(metadata.get_all("Provides-Extra"))
    assert {url.partition(",")[0] for url in metadata.get_all("Project-URL")} >= {
        "Homepage",
        "Documentation",
        "Source",
        "Changelog",
    }
    assert metadata["License-Expression"] == "Apache-2.0"
    required = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    assert sorted(r.partition(">")[0] for r in required) == ["array-api-compat", "ml-dtypes", "numpy"]


_PROGRAM = """
import json, sys
import numpy as np
import dnnarray as dnn
from dnnarray._cuda.core import module
y = dnn.conv(np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3)), padding=1, activation="relu")
_, gradient = dnn.value_and_grad(lambda x: dnn.softmax(x)[0])(np.zeros(2))
found = {"at": dnn.__file__, "version": dnn.__version__, "path": module.__file__}
print(json.dumps({**found, "sum": float(y.sum()), "gradient": gradient.tolist()}))
"""


def _environment(installed, tmp_path):
    return {
        **os.environ,
        "PYTHONPATH": str(installed),
        "DNNARRAY_CACHE_DIR": str(tmp_path / "cache"),
        "DNNARRAY_NUMBA": "0",
    }


@needs_build
def test_an_installed_package_works_in_an_empty_folder(installed, tmp_path):
    result = json.loads(_python("-c", _PROGRAM, cwd=tmp_path, env=_environment(installed, tmp_path)).stdout)
    assert Path(result["at"]).is_relative_to(installed)
    assert result["version"] == __version__
    assert result["sum"] == 3 * 2 * 13**2
    assert result["gradient"] == [0.25, -0.25]
    assert (Path(result["path"]).parents[2] / "_kernels" / "include").is_dir()


@needs_build
def test_the_command_is_installed(installed, tmp_path):
    environment = _environment(installed, tmp_path)
    (command,) = (path for folder in ("bin", "Scripts") for path in (installed / folder).glob("dnnarray*"))
    shown = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert shown.stdout.strip() == f"dnnarray {__version__}"
    explained = subprocess.run(
        [command, "explain", "relu", "2,3"], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert "relu" in explained.stdout
    helped = subprocess.run(
        [command, "--help"], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert helped.stdout.startswith("usage: dnnarray ")


@pytest.mark.parametrize("library", ["autograd", "jax", "onnx", "sklearn", "torch"])
def test_every_library_that_interop_knows_has_an_extra(library):
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(path.stem == library for path in (_ROOT / "dnnarray" / "interop").iterdir())
    assert library in extras


def test_changelog_and_citation_name_the_version():
    assert (
        f"({__version__})" in (_ROOT / "CHANGELOG.md").read_text()
        or f"## {__version__}" in (_ROOT / "CHANGELOG.md").read_text()
    )
    assert f"version: {__version__}" in (_ROOT / "CITATION.cff").read_text().splitlines()
