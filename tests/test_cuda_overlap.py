"""Launches that may begin early: their kernels wait, and what the driver reads is laid out as it expects."""

import re
from ctypes import addressof, create_string_buffer, sizeof
from functools import lru_cache

import pytest

from dnnarray._cuda.core import module
from dnnarray._cuda.core.plan import Array, Config, Kernel, MatMul, Matrix, Plan, ahead_if_small
from dnnarray._spec import FLOAT32
from tests.test_kernels import _DEVICES, _programs

_H200 = _DEVICES["sm_90a"]
_FEW = 3  # configurations of each source


@lru_cache(maxsize=1)
def _all():
    return list(_programs(_H200))


def _text(source):
    """A kernel file with the headers that it includes."""
    folder = module.kernels_folder()
    seen, left = {}, [folder / source]
    while left:
        path = left.pop()
        if path not in seen:
            seen[path] = path.read_text()
            left += [
                folder / ("include" * name.startswith("dnnarray/")) / name
                for name in re.findall(r'#include "([^"]+)"', seen[path])
            ]
    return "".join(text for path, text in seen.items() if path.name != "overlap.cuh")


def test_a_kernel_that_begins_early_waits():
    early = {
        plan.kernel.source
        for _, _, program in _all()
        for before, plan in zip(program.plans, program.plans[1:], strict=False)
        if isinstance(plan, Plan) and isinstance(before, Plan) and plan.early
    }
    assert {"norm/fold.cu", "norm/channel_finish.cu", "norm/channel_apply.cu", "loss/mean.cu"} <= early
    for source in early:
        assert re.search(r"=\s+after_previous_kernel\(", _text(source)), source


def test_the_layout_of_a_launch():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda.core import overlap

    assert sizeof(overlap._Attribute) == 72
    assert overlap._Attribute.value.offset == 8
    assert sizeof(overlap._Config) == 56
    assert (overlap._Config.stream.offset, overlap._Config.attributes.offset, overlap._Config.count.offset) == (
        32,
        40,
        48,
    )


def _ahead():
    """By source, the kernels whose plans may begin ahead of all before them."""
    found = {}
    for _, _, program in _all():
        for plan in program.plans:
            if isinstance(plan, Plan) and plan.ahead:
                found.setdefault(plan.kernel.source, {})[plan.kernel.symbol] = plan.kernel
    return found


def test_small_programs_that_begin_ahead_of_all_before_them():
    expected = {
        "pool/small_windows.cu",
        "pool/global_pool.cu",
        "pool/tiling_gradient.cu",
        "norm/channel_block.cu",
        "norm/rows.cu",
        "softmax/rows.cu",
        "spatial/move.cu",
    }
    assert expected <= set(_ahead())


def _ptx(kernel):
    nvrtc, root = module._nvrtc(), module.kernels_folder()
    _, program = nvrtc.nvrtcCreateProgram(kernel.code().encode(), b"kernel.cu", 0, [], [])
    options = ["-arch=compute_90", f"-I{root}", f"-I{root / 'include'}", *module._OPTIONS]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, kernel.symbol
    text = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode()


def test_they_touch_no_array_before_they_have_waited():
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    for kernel in [
        kernel for kernels in _ahead().values() for kernel in list(kernels.values())[:: -(-len(kernels) // _FEW)]
    ]:
        lines = _ptx(kernel).splitlines()
        waits = [i for i, line in enumerate(lines) if "griddepcontrol.wait" in line]
        touches = [
            i
            for i, line in enumerate(lines)
            if re.search(r"\b(ld|st|red|atom|cp\.async)\.(?!param|shared|local)", line)
        ]
        assert waits, kernel.symbol
        assert waits[0] < touches[0], kernel.symbol
        assert not any("ld.global.nc" in line for line in lines), (
            f"{kernel.symbol}: what never changes may be read before the wait"
        )


def _launch(grid=(4, 1, 1), **options):
    return Plan(Kernel("made/up.cu", "made_up", Config()), grid, 128, (Array(0), Array(1)), **options)


def test_only_small_launches_begin_ahead_and_have_kernels_of_their_own():
    small, large = _launch((1024, 1, 1)), _launch((1025, 1, 1))
    assert ahead_if_small(large) is large
    ahead = ahead_if_small(small)
    assert ahead.ahead
    assert (ahead.kernel.symbol, "#define DNNARRAY_AHEAD" in ahead.kernel.code()) == ("made_up_ahead", True)
    assert "AHEAD" not in large.kernel.code()


def test_which_launches_overlap():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda.core.launch import _overlaps

    first, second, product = (
        _launch(ahead=True),
        _launch(early=True),
        MatMul(*(Matrix(Array(0), 1),) * 3, 1, 1, 1, FLOAT32, FLOAT32),
    )
    assert _overlaps((first,), 0)
    assert not _overlaps((_launch(),), 0)
    assert [_overlaps((first, second), k) for k in (0, 1)] == [False, True]
    assert [_overlaps((product, second), k) for k in (0, 1)] == [False, False]
    assert not _overlaps((second,), 0)


def test_a_launch_is_described_once_for_each_stream():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda.core import overlap

    described = overlap.Described(_launch((3, 2, 1)))
    given = [described.describe(stream) for stream in range(100)]
    assert list(described.known.values()) == given[:64]
    for stream in (5, 1000):
        config = (described.known.get(stream) or described.describe(stream))._obj
        assert (config.grid_x, config.grid_y, config.block_x, config.stream or 0) == (3, 2, 128, stream)
        assert config.attributes[0].value == 1


def test_an_address_is_handed_on_as_it_is():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda.core import overlap

    memory = create_string_buffer(32)
    assert addressof(overlap.reference(addressof(memory) + 5)._obj) == addressof(memory) + 5


@pytest.fixture
def asked(monkeypatch):
    """A planned launch that may begin ahead, what the driver is sent, and what it will answer (0, success, when nothing
    is left)."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from types import SimpleNamespace

    from dnnarray._cuda.core import launch, overlap

    sent, answers, entered = [], [], []
    monkeypatch.setattr(overlap, "possible", lambda: True)
    monkeypatch.setattr(
        overlap, "send", lambda: lambda *given: sent.append(given) or (answers.pop(0) if answers else 0)
    )
    monkeypatch.setattr(launch, "CUDADriverError", ValueError)
    monkeypatch.setattr(launch, "_allow_shared", lambda *_: None)
    monkeypatch.setattr(launch, "_thread", SimpleNamespace())
    monkeypatch.setattr(launch.cupy.cuda, "Device", lambda: SimpleNamespace(use=lambda: entered.append(True)))
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    code = create_string_buffer(8)
    return (
        launch.Launches((_launch(ahead=True),), [SimpleNamespace(ptr=addressof(code))], 2, []),
        sent,
        answers,
        entered,
    )


def test_a_thread_without_a_context_gets_one_when_the_driver_asks_for_it(asked):
    launches, sent, answers, entered = asked
    launches.queue([256, 512], ())
    assert (len(sent), entered) == (1, [])
    answers.append(201)
    launches.queue([256, 512], ())
    assert entered == [True]
    assert sent[1] == sent[2]


def test_what_the_driver_refuses_is_raised(asked):
    launches, sent, answers, entered = asked
    answers += [700, 700]
    with pytest.raises(ValueError, match="700"):
        launches.queue([256, 512], ())
    answers.append(700)
    with pytest.raises(ValueError, match="700"):
        launches.queue([256, 512], ())
    assert (len(sent), entered) == (3, [True])
