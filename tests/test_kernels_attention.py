"""Attention on tensor cores in sizes and options that the cases leave out: every kernel compiles, without a spill or a
serialised instruction."""

import re
from functools import lru_cache

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda import attention
from dnnarray._cuda.core import module
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, INT32, Spec
from tests.test_kernels import _DEVICES

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
_SOURCES = ("mma", "mma_backward", "mma_combine", "mma_decode", "wgmma", "wgmma_backward")


def _problem(op, arrays, **options):
    operation = find(op)
    chosen = {n: v for n, v in (operation.defaults | options).items() if n in operation.static}
    return operation.problem(tuple(arrays.get(n) for n in operation.arrays), chosen)


def _problems():
    for dtype in (FLOAT16, BFLOAT16):
        for width in (64, 128, 256):
            for queries, keys in ((70, 150), (1, 900)):
                q, k = Spec((2, 4, queries, width), dtype), Spec((2, 2, keys, width), dtype)
                cache, rows = Spec((40, 64, 2, width), dtype), Spec((2, queries, 4, width), dtype)
                dense, saved = {"q": q, "k": k, "v": k}, {"output": q, "lse": Spec((2, 4, queries), FLOAT32)}
                paged = {
                    "q": rows,
                    "k_cache": cache,
                    "v_cache": cache,
                    "block_table": Spec((2, 15), INT32),
                    "kv_lengths": Spec((2,), INT32),
                }
                for extra in ({}, {"softcap": 2.0}):
                    yield _problem("attention", dense, **extra)
                    yield _problem("attention_backward", dense | {"grad": q}, **extra)
                    yield _problem("attention_backward", dense | saved | {"grad": q}, **extra)
                    yield _problem("paged_attention", paged, **extra)


@lru_cache(maxsize=3)
def kernels_of(architecture):
    """All that these problems plan, each once."""
    device, found = _DEVICES[architecture], set()
    for problem in _problems():
        for method in attention.ALGORITHMS[problem.op]:
            if not method.name.startswith("tiled") and method.rejects(problem, device) is None:
                found |= set(method.run(problem, device, True).kernels)
    return sorted(found, key=lambda k: k.symbol)


@pytest.mark.parametrize("architecture", _DEVICES)
@pytest.mark.parametrize("source", _SOURCES)
def test_kernels_on_tensor_cores_compile_without_a_spill(source, architecture):
    kernels = [k for k in kernels_of(architecture) if k.source == f"attention/{source}.cu"]
    assert bool(kernels) == ("wgmma" not in source or architecture == "sm_90a")
    for kernel in kernels:
        code, log = module.compile_with_log(kernel, architecture, "--ptxas-options=-v")
        assert code.startswith(b"\x7fELF")
        assert not re.search(r"[1-9]\d* bytes spill", log), f"{kernel.symbol}: {log}"


@pytest.mark.parametrize(
    ("arrays", "options", "groups"),
    [
        ({}, {}, (False, False, False)),
        ({}, {"causal": True, "window": (3, 5), "scale": 0.5}, (False, False, False)),
        ({"kv_lengths": Spec((2,), INT32)}, {}, (True, False, False)),
        ({"causal_offset": Spec((2,), INT32)}, {"causal": True}, (True, False, False)),
        ({"bias": Spec((4, 70, 150), FLOAT32)}, {}, (False, True, False)),
        ({}, {"softcap": 2.0}, (False, True, False)),
        ({"q_lengths": Spec((2,), INT32)}, {"dropout": 0.1}, (True, False, True)),
    ],
    ids=str,
)
def test_kernels_leave_out_what_a_call_does_not_have(arrays, options, groups):
    q, k = Spec((2, 4, 70, 64), FLOAT32), Spec((2, 4, 150, 64), FLOAT32)
    problem = _problem("attention", {"q": q, "k": k, "v": k} | arrays, **options)
    (plan,) = attention.ALGORITHMS["attention"][0].run(problem, _DEVICES["sm_90a"], True).plans
    assert plan.kernel.config.given == f"dnnarray::Given<{', '.join(str(g).lower() for g in groups)}>"
    words = ("_ragged", "_changed", "_dropped")
    assert all((word in plan.kernel.symbol) == group for word, group in zip(words, groups, strict=True))
