"""No kernel that Numba compiles reads or writes beside its arrays: each runs, in a process of its own, on arrays that
lie beside protected pages."""

import subprocess
import sys

import pytest

from dnnarray._cpu.compiled import compiler

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")


@pytest.mark.parametrize(("side", "dtype"), [("end", "float32"), ("begin", "float32"), ("end", "float64")])
def test_every_kernel_stays_within_its_arrays(side, dtype):
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.guard_pages", "--at", side, "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"died at: {lines[-1] if lines else 'the start'}\n{done.stderr[-3000:]}"
    assert "not started: " in lines, next(line for line in lines if line.startswith("not started"))
    assert lines[-1].startswith("done")


def test_a_read_too_far_is_found():
    code = (
        "import numpy as np; from tests.guarded import like; a = like(np.arange(5.0), True); "
        "np.lib.stride_tricks.as_strided(a, (6,)).sum()"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode < 0
