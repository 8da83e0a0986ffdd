"""Arrays, results and scratch memory at addresses that are multiples of an element alone, on a device that is made
up."""

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed")

import dnnarray as dnn
from dnnarray._cuda.core.dialect import alike
from tests.made_up_device import made_up_device
from tests.support import call_by

_HALF = (np.float16, "bfloat16")


@pytest.fixture
def device(monkeypatch):
    with made_up_device(monkeypatch) as made:
        yield made


def _arrays(device, dtype, offsets, shapes=((64, 48), (40, 48))):
    dtype = dnn.Spec((), dtype).dtype
    return [device.array(np.zeros(shape, dtype), offset=offset) for shape, offset in zip(shapes, offsets, strict=True)]


def _words(device, count):
    """The pointers that the first step was given: inputs, outputs, scratch."""
    return list(device.launched[0][1][:count])


@pytest.mark.parametrize("offset", [2, 4, 8, 14, 18])
@pytest.mark.parametrize("dtype", _HALF)
def test_a_library_multiplies_half_types_in_aligned_memory(device, dtype, offset):
    x, weight = _arrays(device, dtype, (offset, 0))
    (out,) = _arrays(device, dtype, (offset,), ((64, 40),))
    with dnn.options(telemetry=True):
        dnn.telemetry.reset()
        call_by("gemm", "linear", (x, weight), {}, out=out)
        assert dnn.telemetry.snapshot()["linear"]["layout_copies"] == 2
    assert not any(pointer % 16 for pointer in _words(device, 3))
    assert _words(device, 3)[1] == weight.data.ptr, "what is aligned stays where it is"
    (moved, source), (to, result) = device.copied
    assert (source is x, to is out) == (True, True)
    assert _words(device, 3)[::2] == [moved.data.ptr, result.data.ptr]
    assert (moved.shape, moved.strides, result.strides) == (x.shape, x.strides, out.strides)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_library_multiplies_other_types_where_they_lie(device, dtype):
    x, weight = _arrays(device, dtype, (8, 0))
    call_by("gemm", "linear", (x, weight), {})
    assert _words(device, 2) == [x.data.ptr, weight.data.ptr]
    assert not device.copied


@pytest.mark.parametrize("op", ["linear", "linear_backward"])
@pytest.mark.parametrize("aligned", [True, False])
def test_scratch_memory_is_that_of_the_launches_for_the_addresses(device, op, aligned):
    """TMA's kernel needs none of the memory that cuBLAS and a pass behind it need."""
    shapes = (*(((64, 40),) if op.endswith("backward") else ()), (64, 48), (40, 48), (40,), (64, 40))
    arrays = _arrays(device, np.float16, (0 if aligned else 2, *(0,) * (len(shapes) - 1)), shapes)
    call_by("implicit_tma_sm90", op, tuple(arrays), {"activation": "gelu"})
    told = next(a for a in dnn.algorithms(op, *arrays, activation="gelu") if a.name == "implicit_tma_sm90").workspace
    assert told >= 64 * 40 * 4
    if not aligned:
        count = len(arrays) + (4 if op.endswith("backward") else 1)
        assert _words(device, count + 1)[-1] >= 1 << 32


def test_the_scratch_memory_that_infer_tells_is_enough_wherever_the_arrays_lie(device):
    for offset in (0, 2):
        arrays = _arrays(device, np.float16, (offset, 0, 0), ((64, 48), (40, 48), (40,)))
        needed = dnn.infer("linear", *arrays, activation="relu").workspace
        workspace = device.array(np.zeros(needed, np.uint8))
        assert dnn.linear(*arrays, activation="relu", workspace=workspace).shape == (64, 40)


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 15, 17])
def test_scratch_memory_at_odd_addresses_is_refused_by_name(device, offset):
    x, weight = (device.array(np.zeros(shape, np.float32)) for shape in ((1, 16, 8, 8), (16, 16, 3, 3)))
    needed = next(a for a in dnn.algorithms("conv", x, weight) if a.name == "gemm").workspace
    assert needed > 0
    workspace = device.array(np.zeros(needed, np.uint8), offset=offset)
    with pytest.raises(
        dnn.OptionError, match=r"conv: workspace is at an odd address; expected memory aligned to 16 bytes"
    ):
        dnn.conv(x, weight, workspace=workspace, algorithm="gemm")
    assert not device.launched


@pytest.mark.parametrize("offset", [4, 12, 20])
def test_deterministic_launches_do_not_depend_on_the_addresses(device, offset):
    """Other vectors would be summed in another order; arrays at odd addresses are copied instead, and so are results
    that are written to them."""

    def launches(*arrays, **given):
        device.launched.clear()
        dnn.layer_norm_backward(*arrays, axis=(-2, -1), **given)
        return [launch[1:7] for launch in device.launched]

    shapes = ((6, 8),) * 4
    with dnn.options(deterministic=True, telemetry=True):
        expected = launches(*_arrays(device, np.float32, (0, 0, 0, 0), shapes))
        dnn.telemetry.reset()
        out = tuple(_arrays(device, np.float32, (0, offset, 0), shapes[:3]))
        assert launches(*_arrays(device, np.float32, (0, offset, 0, 8), shapes), out=out) == expected
        assert dnn.telemetry.snapshot()["layer_norm_backward"]["layout_copies"] == 3
    (x, _), (_, _), (result, moved) = device.copied
    assert (x.data.ptr % 16, moved.data.ptr % 16, result is out[1]) == (0, 0, True)


@pytest.mark.parametrize("offset", [2, 14])
def test_a_copy_of_an_array_lies_as_it_does(device, offset):
    spread = device.array(np.zeros((3, 5, 7), np.float16), offset=offset, spread=True)
    for array in (spread, spread[::-1], spread[:, ::-1, 2], spread[:0], spread.transpose(2, 0, 1)):
        copy = alike(array)
        assert (copy.shape, copy.strides, copy.dtype, copy.data.ptr % 16) == (
            array.shape,
            array.strides,
            array.dtype,
            0,
        )
        reaches = [(n - 1) * step for n, step in zip(copy.shape, copy.strides, strict=True) if n]
        low, high = sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0)
        memory = copy.data.mem
        assert memory.ptr <= copy.data.ptr + low
        assert copy.data.ptr + high + copy.itemsize <= memory.ptr + memory.size
