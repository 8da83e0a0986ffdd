"""The host's side of a CUDA call, with a driver that only writes down what it is asked for."""

from ctypes import c_uint64
from types import SimpleNamespace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._arrays import Direct
from dnnarray._operation import find
from dnnarray._options import DEFAULT
from dnnarray._outputs import Output
from dnnarray._select import Device
from dnnarray._spec import BFLOAT16, Spec

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def prepared(monkeypatch):
    """A planned relu on device 0, and the launches that it asks for."""
    from dnnarray._cuda import engine, launch

    rates = dict.fromkeys(("float32", "float64", "tf32_mma", "bfloat16_mma", "float16_mma"), 1e13)
    launched = []
    monkeypatch.setattr(engine, "getDevice", lambda: 0)
    monkeypatch.setattr(engine, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(engine, "facts", lambda index: Device("none", "cuda", 100, rates, 1e12, 4e-6, (9, 0), 200_000, 1 << 36))
    monkeypatch.setattr(engine.module, "load", lambda kernels, *_: [SimpleNamespace(ptr=1)] * len(kernels))
    monkeypatch.setattr(engine, "check_workspace", lambda op, given, needed, kind: given)
    monkeypatch.setattr(launch, "_allow_shared", lambda *_: None)
    monkeypatch.setattr(launch, "_enter", lambda: None)
    monkeypatch.setattr(launch.overlap, "possible", lambda: False)
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(launch, "launchKernel", lambda *given: launched.append(given))
    op = find("relu")
    return engine.prepare(op, op.problem((Spec((8,), "float32"),), {}), DEFAULT, None), launched


def _memory(pointer, device=0):
    return SimpleNamespace(data=SimpleNamespace(ptr=pointer, device_id=device))


def test_scratch_memory_that_is_not_needed_is_left_alone(prepared):
    plan, launched = prepared
    assert plan.workspace == 0
    for scratch in (_memory(1024), None):
        plan._launch([_memory(256)], [_memory(512)], (), scratch)
    assert len(launched) == 2


def test_results_on_another_device_are_refused(prepared):
    plan, launched = prepared
    with pytest.raises(dnn.ArrayTypeError, match="devices 0 and 1"):
        plan._launch([_memory(256)], [_memory(512, 1)], (), None)
    assert not launched


def test_scratch_memory_that_threads_cannot_load_is_refused(prepared):
    plan, _ = prepared
    plan.workspace = 64
    with pytest.raises(dnn.OptionError, match=r"relu: workspace .* aligned to 16 bytes"):
        plan._scratch(_memory(1025))


def _pointers(launch, count):
    """The first arguments that the driver was given with a launch."""
    addresses = launch[-2]
    return [c_uint64.from_address(c_uint64.from_address(addresses + 8 * i).value).value for i in range(count)]


def _array(pointer, device=0, dtype=np.float32, strides=None):
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    return cupy.ndarray((8,), dtype, MemoryPointer(UnownedMemory(pointer, 64, None, device), 0), strides)


def test_warm_calls_on_arrays_of_cupy(prepared):
    plan, launched = prepared
    plan._prepare(True)
    x = _array(256)
    with cupy.cuda.using_allocator(lambda size: _array(1024).data):
        result = plan.warm((), None, x)
    assert (type(result), result.shape, result.dtype, result.data.ptr) == (cupy.ndarray, (8,), np.float32, 1024)
    assert {256, 1024} == set(_pointers(launched[-1], 3))
    own = _array(512)
    assert plan.warm((), own, x) is own
    assert {256, 512} == set(_pointers(launched[-1], 3))
    count = len(launched)
    for out in (
        _array(256 + 16),
        _array(512 + 4),
        _array(512, 1),
        _array(512, dtype=np.int32),
        _array(512, strides=(8,)),
        _array(512)[:4],
        "out",
    ):
        assert plan.warm((), out, x) is None, out
    for other in (_array(256 + 4), _array(256, 1)):
        assert plan.warm((), own, other) is None
    assert len(launched) == count


def test_axes_of_one_place_may_lie_anywhere():
    from dnnarray._cuda import warm

    output = Output(Spec((2, 5, 1, 3), np.float32, (15, 1, 15, 5)))
    assert "lies0" in warm._elsewhere(output)
    assert warm._lies(output, output.strides)
    assert warm._lies(output, (60, 4, 4, 20))
    assert not warm._lies(output, (60, 12, 4, 4))
    assert "lies0" not in warm._elsewhere(Output(Spec((2, 5, 2, 3), np.float32, (30, 1, 15, 5))))


def test_calls_by_addresses(prepared):
    plan, launched = prepared
    made = []

    def empty(output, place):
        made.append(SimpleNamespace(pointer=4096 * (len(made) + 1), key=(output.shape, place)))
        return made[-1]

    way = Direct(lambda array: array.key, lambda array: array.pointer, empty, lambda place: 7)

    def call(pointer, out=None):
        return plan.direct((SimpleNamespace(pointer=pointer),), (), way, out)

    assert call(256) is None, "nothing is planned yet"
    plan._prepare(True)
    result = call(256)
    assert result is made[-1]
    assert {256, result.pointer} == set(_pointers(launched[-1], 3))
    own = SimpleNamespace(pointer=512, key=result.key)
    assert call(256, own) is own
    assert {256, 512} == set(_pointers(launched[-1], 3))
    count = len(launched)
    assert call(264) is None, "not aligned"
    assert call(256, SimpleNamespace(pointer=512, key=((4,), 0))) is None, "another shape"
    assert call(512 - 16, own) is None, "shared memory"
    assert len(launched) == count


@pytest.mark.parametrize("by_steps", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int64])
def test_new_arrays_are_as_the_constructor_makes_them(monkeypatch, by_steps, order, dtype):
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    from dnnarray._cuda import launch, warm

    monkeypatch.setattr(warm, "_BY_STEPS", by_steps)
    shape = (3, 5, 2)
    packed = Spec(tuple(shape[a] for a in order), dtype).c_strides
    output = Output(Spec(shape, dtype, tuple(packed[order.index(a)] for a in range(3))))
    dialect = warm.on_cupy(warm.Shape((), (output,), (), 0, 0, True))
    lines = ["def make():", *(f"    {line}" for line in dialect.make(0)), "    return r0"]
    make = launch.written("make", lines, dialect.scope | {"bytes_out0": output.spec.nbytes})
    with cupy.cuda.using_allocator(lambda size: MemoryPointer(UnownedMemory(4096, size, None, 0), 0)):
        made, cold = make(), warm.empty(output)
        expected = cupy.ndarray(output.memory_shape, np.dtype(dtype))
    view = expected.transpose([order.index(a) for a in range(3)])
    for found in (made, cold):
        for name in ("shape", "dtype", "strides", "size", "nbytes", "_c_contiguous", "_f_contiguous", "_index_32_bits"):
            assert getattr(found, name) == getattr(view, name), name
        assert type(found) is cupy.ndarray
        assert found.base is None
        assert found.data.mem.size == expected.data.mem.size


def test_problems_of_one_form_share_the_text_of_their_call(prepared):
    from dnnarray._cuda import engine, launch

    plan, launched = prepared
    plan._prepare(True)
    compiled = launch._compiled.cache_info().misses
    op = find("relu")
    other = engine.prepare(op, op.problem((Spec((4096,), "float32"),), {}), DEFAULT, None)
    other._prepare(True)
    assert launch._compiled.cache_info().misses == compiled
    for step, pointers in ((plan, (256, 512)), (other, (1024, 2048))):
        step._launch([_memory(pointers[0])], [_memory(pointers[1])], (), None)
    assert len(launched) == 2
