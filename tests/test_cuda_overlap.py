"""Launches that may begin early: their kernels wait, and what the driver reads is laid out as it expects."""

import re
from ctypes import sizeof

import pytest

from dnnarray._cuda import module
from dnnarray._cuda.plan import Plan
from tests.test_kernels import _DEVICES, _programs


def _text(source):
    """A kernel file with the headers that it includes."""
    folder = module.kernels_folder()
    seen, left = {}, [folder / source]
    while left:
        path = left.pop()
        if path not in seen:
            seen[path] = path.read_text()
            left += [folder / "include" / name for name in re.findall(r'#include "(dnnarray/[^"]+)"', seen[path])]
    return "".join(text for path, text in seen.items() if path.name != "overlap.cuh")


def test_a_kernel_that_begins_early_waits():
    early = {
        plan.kernel.source
        for _, _, program in _programs(_DEVICES["sm_90a"])
        for before, plan in zip(program.plans, program.plans[1:], strict=False)
        if isinstance(plan, Plan) and isinstance(before, Plan) and plan.early
    }
    assert {"norm/fold.cu", "norm/channel_finish.cu", "norm/channel_apply.cu", "loss/mean.cu"} <= early
    for source in early:
        assert "= after_previous_kernel(" in _text(source), source


def test_the_layout_of_a_launch():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda import overlap

    assert sizeof(overlap._Attribute) == 72
    assert overlap._Attribute.value.offset == 8
    assert sizeof(overlap._Config) == 56
    assert (overlap._Config.stream.offset, overlap._Config.attributes.offset, overlap._Config.count.offset) == (32, 40, 48)
