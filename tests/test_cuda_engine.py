"""The host's side of a CUDA call, with a driver that only writes down what it is asked for."""

from ctypes import c_uint64
from types import SimpleNamespace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._engine.doors import Direct
from dnnarray._engine.outputs import Output
from dnnarray._options import DEFAULT
from dnnarray._spec import BFLOAT16, Spec, lies

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.fixture
def prepared(monkeypatch):
    """A planned relu on device 0, and the launches that it asks for."""
    from dnnarray._cuda import engine
    from tests.made_up_device import made_up_device

    with made_up_device(monkeypatch) as device:
        monkeypatch.setattr(engine, "check_workspace", lambda op, given, needed, kind: given)
        op = find("relu")
        yield engine.prepare(op, op.problem((Spec((8,), "float32"),), {}), DEFAULT, None), device


def _memory(pointer, device=0):
    return SimpleNamespace(data=SimpleNamespace(ptr=pointer, device_id=device))


def test_a_spec_has_memory_only_where_a_launch_is_given_its_address(monkeypatch):
    from dnnarray._cuda import engine
    from tests.made_up_device import made_up_device

    grad, x, mean = Spec((2, 3, 4, 4), "float32"), Spec((2, 3, 8, 8), "float32"), Spec((3,), "float32")
    with made_up_device(monkeypatch):
        op = find("pixel_shuffle_backward")
        plan = engine.prepare(
            op,
            op.problem((x, Spec((2, 12, 4, 4), "float32")), {"factor": 2, "layout": "channels_first"}),
            DEFAULT,
            None,
        )
        given = cupy.empty(x.shape, np.float32)
        first, second = plan.with_stand_ins((given, plan.problem.inputs[1]))
        assert first is given
        assert second.shape == (2, 12, 4, 4)
        assert second.data.ptr == 0
        op = find("batch_norm_backward")
        options = {n: v for n, v in op.defaults.items() if n in op.static}
        plan = engine.prepare(op, op.problem((grad, grad, mean, mean, None, mean, None), options), DEFAULT, None)
        *_, bias, _ = plan.with_stand_ins((None, None, None, None, None, mean, None))
        assert bias.shape == (3,)


def test_scratch_memory_that_is_not_needed_is_left_alone(prepared):
    plan, device = prepared
    assert plan.workspace == 0
    for scratch in (_memory(1024), None):
        plan._launch([_memory(256)], [_memory(512)], (), scratch)
    assert len(device.launched) == 2


def test_results_on_another_device_are_refused(prepared):
    plan, device = prepared
    with pytest.raises(dnn.ArrayTypeError, match="devices 0 and 1"):
        plan._launch([_memory(256)], [_memory(512, 1)], (), None)
    assert not device.launched


def test_scratch_memory_that_threads_cannot_load_is_refused(prepared):
    plan, _ = prepared
    with pytest.raises(dnn.OptionError, match=r"relu: workspace .* aligned to 16 bytes"):
        plan._scratch(_memory(1025), 64)


def _pointers(launch, count):
    """The first arguments that the driver was given with a launch; 0 for an array that is absent."""
    addresses = launch[-2]
    return [c_uint64.from_address(c_uint64.from_address(addresses + 8 * i).value).value for i in range(count)]


def _array(pointer, device=0, dtype=np.float32, strides=None):
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    return cupy.ndarray((8,), dtype, MemoryPointer(UnownedMemory(pointer, 64, None, device), 0), strides)


def test_warm_calls_on_arrays_of_cupy(prepared):
    plan, device = prepared
    plan._prepare(True)
    x = _array(256)
    with cupy.cuda.using_allocator(lambda size: _array(1024).data):
        result = plan.warm((), None, None, x)
    assert (type(result), result.shape, result.dtype, result.data.ptr) == (cupy.ndarray, (8,), np.float32, 1024)
    assert _pointers(device.launched[-1], 3) == [
        0,
        256,
        1024,
    ]  # of the gradient, which a forward has not, of x and of y
    own = _array(512)
    assert plan.warm((), own, None, x) is own
    assert _pointers(device.launched[-1], 3) == [0, 256, 512]
    count = len(device.launched)
    for out in (
        _array(256 + 16),
        _array(512 + 4),
        _array(512, 1),
        _array(512, dtype=np.int32),
        _array(512)[:4],
        "out",
    ):
        assert plan.warm((), out, None, x) is None, out
    for other in (_array(256 + 4), _array(256, 1)):
        assert plan.warm((), own, None, other) is None
    assert len(device.launched) == count


def test_results_in_memory_other_than_planned(prepared):
    plan, device = prepared
    plan._prepare(True)
    x, spread = _array(256), _array(512, strides=(8,))
    assert plan.warm((), spread, None, x) is spread
    assert [(to, source.strides) for to, source in device.copied] == [(spread, (4,))]
    for out in (
        _array(512, strides=(0,)),
        _array(256 - 32, strides=(8,)),
        _array(512, 1, strides=(8,)),
        _array(512, 0, np.int32, (8,)),
    ):
        assert plan.warm((), out, None, x) is None
    assert len(device.copied) == 1


def test_axes_of_one_place_may_lie_anywhere():
    from dnnarray._cuda.core import dialect

    output = Output(Spec((2, 5, 1, 3), np.float32, (15, 1, 15, 5)))
    assert "lies" in dialect._elsewhere(output, 0, "strides")
    assert lies(output.shape, output.strides, output.strides)
    assert lies(output.shape, output.strides, (60, 4, 4, 20))
    assert not lies(output.shape, output.strides, (60, 12, 4, 4))
    assert "lies" not in dialect._elsewhere(Output(Spec((2, 5, 2, 3), np.float32, (30, 1, 15, 5))), 0, "strides")


def test_calls_by_addresses(prepared):
    plan, device = prepared
    made = []

    def new():
        made.append(SimpleNamespace(pointer=4096 * (len(made) + 1), shape=(8,)))
        return made[-1]

    way = Direct(
        pointer=lambda array: array.pointer,
        like=lambda array: new(),
        maker=lambda output, place: new,
        fits=lambda output, place: lambda array: array.shape == output.shape,
        strides=lambda array: (1,),
        copy=None,
        scratch=lambda needed, place: lambda array: array.pointer,
        stream=lambda place: 7,
    )

    def call(pointer, out=None, workspace=None):
        return plan.by_addresses(way)((), out, workspace, SimpleNamespace(pointer=pointer))

    assert plan.by_addresses(way) is None, "nothing is planned yet"
    plan._prepare(True)
    result = call(256)
    assert result is made[-1]
    assert [0, 256, result.pointer] == _pointers(device.launched[-1], 3)
    own = SimpleNamespace(pointer=512, shape=(8,))
    assert call(256, own) is own
    assert call(256, own, SimpleNamespace(pointer=1024)) is own
    assert _pointers(device.launched[-1], 3) == [0, 256, 512]
    count = len(device.launched)
    assert call(264) is None, "not aligned"
    assert call(256, SimpleNamespace(pointer=512, shape=(4,))) is None, "another shape"
    assert call(256, own, SimpleNamespace(pointer=1025)) is None, "scratch memory that threads cannot load"
    assert call(512 - 16, own) is None, "shared memory"
    assert len(device.launched) == count
    plan._prepare(False)
    assert call(264) is made[-1], "handed on to the text for memory that is not aligned"


@pytest.mark.parametrize("by_steps", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.int64])
def test_new_arrays_are_as_the_constructor_makes_them(monkeypatch, by_steps, order, dtype):
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    from dnnarray._cuda.core import dialect, launch

    monkeypatch.setattr(dialect, "_BY_STEPS", by_steps)
    monkeypatch.setattr(dialect, "alone", lambda: False)
    shape = (3, 5, 2)
    packed = Spec(tuple(shape[a] for a in order), dtype).c_strides
    output = Output(Spec(shape, dtype, tuple(packed[order.index(a)] for a in range(3))))
    words = dialect.on_cupy(dialect.Shape((), (output,), (), 0, 0, True))
    lines = ["def make():", *(f"    {line}" for line in words.make(0)), "    return r0"]
    make = launch.written("make", lines, words.scope | {"bytes_out0": output.spec.nbytes})
    with cupy.cuda.using_allocator(lambda size: MemoryPointer(UnownedMemory(4096, size, None, 0), 0)):
        made, cold = make(), dialect.empty(output)
        expected = cupy.ndarray(output.memory_shape, np.dtype(dtype))
    view = expected.transpose([order.index(a) for a in range(3)])
    for found in (made, cold):
        for name in ("shape", "dtype", "strides", "size", "nbytes", "_c_contiguous", "_f_contiguous", "_index_32_bits"):
            assert getattr(found, name) == getattr(view, name), name
        assert type(found) is cupy.ndarray
        assert found.base is None
        assert found.data.mem.size == expected.data.mem.size


def test_problems_of_one_form_share_the_text_of_their_call(prepared):
    from dnnarray import _source
    from dnnarray._cuda import engine

    plan, device = prepared
    plan._prepare(True)
    compiled = {key: set(texts) for key, texts in _source._codes.items()}
    op = find("relu")
    other = engine.prepare(op, op.problem((Spec((4096,), "float32"),), {}), DEFAULT, None)
    other._prepare(True)
    assert {key: set(texts) for key, texts in _source._codes.items()} == compiled
    for step, pointers in ((plan, (256, 512)), (other, (1024, 2048))):
        step._launch([_memory(pointers[0])], [_memory(pointers[1])], (), None)
    assert len(device.launched) == 2


def _softmax(algorithm=None):
    from dnnarray._cuda import engine

    op = find("softmax")
    return engine.prepare(op, op.problem((Spec((4, 16_384), "float16"),), {"axis": -1}), DEFAULT, algorithm)


def test_memory_at_odd_addresses_has_an_algorithm_of_its_own(prepared):
    plan = _softmax()
    for pointers in ((256, 1 << 20), (258, 1 << 20), (256, (1 << 20) + 2)):
        plan._launch(*([_array(pointer, dtype=np.float16)] for pointer in pointers), (), None)
    assert {aligned: method.name for aligned, method in plan._methods.items()} == {
        True: "cluster_rows",
        False: "long_rows",
    }


def test_a_named_algorithm_says_what_it_cannot_do_at_odd_addresses(prepared):
    plan = _softmax("cluster_rows")
    plan._launch([_array(256, dtype=np.float16)], [_array(1 << 20, dtype=np.float16)], (), None)
    with pytest.raises(dnn.UnsupportedError, match=r"'cluster_rows' does not do .* no multiple of 16.* long_rows"):
        plan._launch([_array(258, dtype=np.float16)], [_array(1 << 20, dtype=np.float16)], (), None)


def test_explain_knows_where_arrays_begin(prepared):
    _, device = prepared
    for offset, taken in ((0, "cluster_rows"), (2, "long_rows")):
        x = device.array(np.zeros((4, 16_384), np.float16), offset=offset)
        assert dnn.algorithms("softmax", x)[0].name == taken
        assert ("no multiple of 16" in str(dnn.explain("softmax", x))) == bool(offset)
