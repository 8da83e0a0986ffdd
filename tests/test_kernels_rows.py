"""Kernels of rows and columns that are too long for the cases: they compile, and only an architecture with clusters
gets clusters."""

from dataclasses import replace

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda import norm, softmax
from dnnarray._cuda.core import module
from dnnarray._options import DEFAULT
from dnnarray._select import choose
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, Spec
from tests.test_kernels import _DEVICES

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
_TABLES = norm.ALGORITHMS | softmax.ALGORITHMS
_LONG = ((300, 768), (300, 4096), (300, 16_384), (300, 131_072))


def _problem(op, shape, dtype, saved=False, **options):
    operation, x, row = find(op), Spec(shape, dtype), Spec(shape[-1:], dtype)
    statistic = Spec((*shape[:-1], 1), FLOAT32)
    arrays = {"x": x, "residual": x, "grad": (x, x) if op.startswith("add_") else x, "weight": row, "bias": row}
    arrays |= {"y": x, "mean": statistic, "rstd": statistic} if saved else {}
    chosen = {n: v for n, v in (operation.defaults | options).items() if n in operation.static}
    return operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)


def _problems():
    for dtype in (FLOAT32, FLOAT16, BFLOAT16):
        for shape in _LONG:
            for op in ("layer_norm", "add_rms_norm", "rms_norm_backward", "add_layer_norm_backward"):
                yield _problem(op, shape, dtype)
            yield _problem("layer_norm_backward", shape, dtype, saved=True)
            yield _problem("softmax", shape, dtype, axis=-1)
            yield _problem("log_softmax_backward", shape, dtype, saved=True, axis=-1)
        for shape in ((2, 21, 512), (2, 1000, 512)):
            yield _problem("softmax", shape, dtype, axis=1)
            yield _problem("softmin_backward", shape, dtype, axis=1)


def _kernels(device):
    found = set()
    for problem in _problems():
        for here in (device, replace(device, aligned=False)):
            found |= set(choose(problem, here, DEFAULT, _TABLES[problem.op]).run(problem, here, here.aligned).kernels)
    return sorted(found, key=lambda k: k.symbol)


@pytest.mark.parametrize("architecture", _DEVICES)
def test_kernels_of_long_rows_compile(architecture):
    kernels = _kernels(_DEVICES[architecture])
    assert len({k.symbol for k in kernels}) == len(kernels)
    clusters = [k for k in kernels if getattr(k.config, "blocks", 1) > 1]
    assert bool(clusters) == (architecture != "sm_80")
    for kernel in clusters[::4] or [k for k in kernels if "cluster" in k.source][::4]:
        assert module.compile_kernel(kernel, architecture).startswith(b"\x7fELF")


@pytest.mark.parametrize("device", _DEVICES.values(), ids=_DEVICES)
def test_shared_memory_and_workspace_are_enough(device):
    """Of every plan: no block asks for more than there is, and the shares of the gradients fit the scratch memory."""
    for problem in _problems():
        for method in _TABLES[problem.op]:
            for here in (device, replace(device, aligned=False)):
                if method.rejects(problem, here) is not None:
                    continue
                program = method.run(problem, here, here.aligned)
                assert all(plan.shared_memory <= device.shared_memory for plan in program.plans)
                assert all(plan.grid[0] % getattr(plan.kernel.config, "blocks", 1) == 0 for plan in program.plans)
                for plan in program.plans:
                    if plan.kernel.source == "norm/fold.cu":
                        given = plan.arguments
                        sums = sum(parts is not None for parts in (given.dweight_parts, given.dbias_parts))
                        assert sums > 0
                        assert sums * given.parts * given.columns * 4 <= method.workspace(problem)
