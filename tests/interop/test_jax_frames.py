"""The handlers of `dnnarray.interop.jax` on call frames that no XLA has made, those of CUDA devices on a device that is
not there."""

import ctypes
import logging
import re
from pathlib import Path

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._options import DEFAULT
from dnnarray._spec import Spec

jax = pytest.importorskip("jax")
frame = pytest.importorskip("dnnarray.interop.jax.frame")
target = pytest.importorskip("dnnarray.interop.jax.target")
call = pytest.importorskip("dnnarray.interop.jax.call")
MadeUpFrame = pytest.importorskip("tests.interop.made_up_frame").MadeUpFrame

_FLOAT32, _UINT32 = np.dtype(np.float32), np.dtype(np.uint32)


def _text(name, specs, drawn=None, **options):
    operation = find(name)
    arrays = tuple(specs) + (None,) * (len(operation.arrays) - len(specs))
    named = {n: d for n, d in operation.defaults.items() if n not in (drawn or {})} | options
    return call.write(operation, arrays, named, drawn or {}, DEFAULT)


def _of(array):
    return array.ctypes.data, array.shape, array.dtype


def test_structures_are_those_of_the_header():
    """Names and order of the members of XLA's structures, in the header that jaxlib ships."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.exists():
        pytest.skip("jaxlib ships no header")
    text = re.sub(r"//[^\n]*", "", header.read_text())

    def members(name):
        body = re.search(rf"struct {name} {{(.*?)\n}}", text, re.S)[1]
        return re.findall(r"(\w+)\)?;", body)

    expected = {
        "XLA_FFI_Extension_Base": (frame.Extension, 3),
        "XLA_FFI_Api_Version": (frame.Version, 4),
        "XLA_FFI_Buffer": (frame.Buffer, 6),
        "XLA_FFI_ByteSpan": (frame.Text, 2),
        "XLA_FFI_Args": (frame.Buffers, 5),
        "XLA_FFI_Rets": (frame.Buffers, 5),
        "XLA_FFI_Attrs": (frame.Attributes, 6),
        "XLA_FFI_Error_Create_Args": (frame.ErrorArguments, 4),
        "XLA_FFI_Stream_Get_Args": (frame.StreamArguments, 4),
        "XLA_FFI_DeviceMemory_Allocate_Args": (frame.AllocateArguments, 6),
        "XLA_FFI_DeviceMemory_Free_Args": (frame.FreeArguments, 5),
    }
    for name, (structure, count) in expected.items():
        assert len(members(name)) == len(structure._fields_) == count, name
    functions = [f.removeprefix("XLA_FFI_") for f in members("XLA_FFI_Api")]
    places = {n: functions.index(n) - functions.index("Error_Create") for n in functions[4:15]}
    taken = (
        "Error_Create",
        "Error_GetMessage",
        "Error_Destroy",
        "Stream_Get",
        "DeviceMemory_Allocate",
        "DeviceMemory_Free",
    )
    assert [places[n] for n in taken] == [0, 1, 2, 4, 9, 10]
    ours = [
        frame.Api.error_create,
        frame.Api.error_message,
        frame.Api.error_destroy,
        frame.Api.stream_get,
        frame.Api.memory_allocate,
    ]
    assert [(f.offset - frame.Api.error_create.offset) // 8 for f in ours] == [0, 1, 2, 4, 9]
    assert frame.Api.memory_free.offset == 16 + ctypes.sizeof(frame.Version) + 11 * 8
    assert members("XLA_FFI_CallFrame")[:8] == [
        "struct_size",
        "extension_start",
        "api",
        "ctx",
        "stage",
        "args",
        "rets",
        "attrs",
    ]


@pytest.mark.parametrize("platform", ["cpu", "CUDA"])
def test_metadata_and_other_stages(platform):
    made = MadeUpFrame("")
    metadata = made.ask_for_metadata()
    assert target.HANDLERS[platform](made.address) is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (*frame.VERSION, 0)
    assert target.HANDLERS[platform](MadeUpFrame("", stage=0).address) is None


def test_the_host_s_memory_is_read_and_written():
    x, y = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), np.empty((2, 3), np.float32)
    made = MadeUpFrame(_text("relu", [Spec((2, 3), _FLOAT32)]), [_of(x)], [_of(y)])
    assert target.HANDLERS["cpu"](made.address) is None
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_arrays_without_elements_have_no_address():
    made = MadeUpFrame(_text("relu", [Spec((0, 3), _FLOAT32)]), [(None, (0, 3), _FLOAT32)], [(None, (0, 3), _FLOAT32)])
    assert target.HANDLERS["cpu"](made.address) is None


def test_frames_that_do_not_fit_the_text():
    x = np.ones((2, 4), np.float32)
    made = MadeUpFrame(_text("relu", [Spec((2, 5), _FLOAT32)]), [_of(x)], [_of(x)])
    assert target.HANDLERS["cpu"](made.address) == 1
    assert "expected float32[2, 5]" in made.errors[0][1]


# --- a CUDA device that is not there --------------------------------------------------------------------------------


@pytest.fixture
def on_device(monkeypatch):
    """The handler for CUDA devices, and what the engine was given: arrays, run-time options, results, scratch
    memory."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda import engine
    from dnnarray.interop.jax import cuda
    from tests.made_up_device import made_up_device

    given, streams = [], []
    with made_up_device(monkeypatch):
        monkeypatch.setattr(cuda, "pointerGetAttributes", lambda pointer: type("Attributes", (), {"device": 0}))
        monkeypatch.setattr(
            engine, "on_stream", lambda pointer, own=engine.on_stream: streams.append(pointer) or own(pointer)
        )
        own = engine.Prepared.call
        monkeypatch.setattr(
            engine.Prepared, "call", lambda self, *arguments: given.append(arguments) or own(self, *arguments)
        )
        call.read.cache_clear()
        yield target.HANDLERS["CUDA"], given, streams
    call.read.cache_clear()


def _addresses(arrays):
    return [a.data.ptr for a in arrays]


def test_a_device_s_memory_is_handed_on(on_device):
    handler, given, streams = on_device
    text = _text("linear", [Spec((64, 32), _FLOAT32), Spec((16, 32), _FLOAT32)])
    made = MadeUpFrame(
        text, [(1 << 40, (64, 32), _FLOAT32), (1 << 41, (16, 32), _FLOAT32)], [(1 << 42, (64, 16), _FLOAT32)]
    )
    assert handler(made.address) is None, made.errors
    ((arrays, _, out, _),) = given
    assert _addresses([*arrays[:2], *out]) == [1 << 40, 1 << 41, 1 << 42]
    assert arrays[0].strides == (128, 4)
    assert streams == [7]
    assert made.allocated == made.freed


def test_scratch_memory_is_xla_s_and_goes_back(on_device):
    handler, given, _ = on_device
    shapes = [(8, 64, 32, 32), (8, 64, 32, 32), (64, 64, 3, 3)]
    specs = [Spec(shape, _FLOAT32) for shape in shapes]
    with dnn.options(specs_on="cuda"):
        needed = dnn.infer("conv_backward", *specs, padding=1, needs=("weight",)).workspace
    assert needed
    buffers = [(1 << (40 + i), shape, _FLOAT32) for i, shape in enumerate(shapes)]
    made = MadeUpFrame(
        _text("conv_backward", specs, padding=1, needs=("weight",)), buffers, [(1 << 45, shapes[2], _FLOAT32)]
    )
    assert handler(made.address) is None, made.errors
    workspace = given[-1][3]
    assert made.allocated == made.freed == [(workspace.data.ptr, workspace.nbytes)]
    assert workspace.nbytes >= needed


def test_without_memory_of_xla_s_the_engine_looks_for_its_own(on_device):
    handler, given, _ = on_device
    shapes = [(8, 64, 32, 32), (8, 64, 32, 32), (64, 64, 3, 3)]
    buffers = [(1 << (40 + i), shape, _FLOAT32) for i, shape in enumerate(shapes)]
    text = _text("conv_backward", [Spec(shape, _FLOAT32) for shape in shapes], padding=1, needs=("weight",))
    made = MadeUpFrame(text, buffers, [(1 << 45, shapes[2], _FLOAT32)], room=0)
    assert handler(made.address) is None, made.errors
    assert given[-1][3] is None
    assert made.errors == [("destroyed", 99)]


def test_a_batch_on_a_device_is_one_call(on_device):
    handler, given, _ = on_device
    text = _text("softmax", [Spec((4, 8), _FLOAT32)])
    made = MadeUpFrame(text, [(1 << 40, (3, 4, 8), _FLOAT32)], [(1 << 41, (3, 4, 8), _FLOAT32)])
    assert handler(made.address) is None, made.errors
    assert [a[0][0].shape for a in given] == [(3, 4, 8)]


def test_a_seed_in_the_device_s_memory_is_waited_for_and_said(on_device, monkeypatch, caplog):
    from dnnarray.interop.jax import cuda

    handler, given, _ = on_device
    monkeypatch.setattr(cuda, "_read", lambda array: 5)
    cuda._warn_of_wait.cache_clear()
    text = _text("dropout", [Spec((4, 8), _FLOAT32)], {"seed": Spec((), _UINT32)}, p=0.5)
    made = MadeUpFrame(text, [(1 << 40, (4, 8), _FLOAT32), (1 << 41, (), _UINT32)], [(1 << 42, (4, 8), _FLOAT32)])
    with caplog.at_level(logging.WARNING, "dnnarray"):
        assert handler(made.address) is None, made.errors
        assert handler(made.address) is None, made.errors
    assert given[0][1] == (5, 0)
    assert sum("each call waits" in r.message for r in caplog.records) == 1


def test_an_error_on_a_device_is_an_error_of_xla(on_device, monkeypatch):
    from dnnarray._cuda import engine

    handler, _, _ = on_device

    def fail(*_):
        raise dnn.DeviceError("the driver is gone")

    monkeypatch.setattr(engine.Prepared, "call", fail)
    made = MadeUpFrame(_text("relu", [Spec((4,), _FLOAT32)]), [(1 << 40, (4,), _FLOAT32)], [(1 << 41, (4,), _FLOAT32)])
    assert handler(made.address) == 1
    assert made.errors == [(frame.INTERNAL, "DeviceError: the driver is gone")]
