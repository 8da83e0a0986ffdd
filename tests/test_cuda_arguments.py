"""Records of arguments and the structs that kernels take: one layout on both sides, names instead of places, and what a
call writes."""

import ctypes
import struct
from types import SimpleNamespace
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cuda.core import arguments as kinds
from dnnarray._cuda.core import module
from dnnarray._cuda.core.arguments import (
    Arguments,
    Box,
    Double,
    Extent,
    Extents,
    Float,
    In,
    Int,
    Out,
    Part,
    Pointer,
    Seed,
    Words,
)
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Runtime, Struct, TensorMap
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import FLOAT16

Codes = Annotated[Array | None, Pointer("unsigned char", True)]
_MAP = TensorMap(Array(1, 32), FLOAT16, (64, 64), (128,), (64, 8))


@frozen
class Everything(Arguments):
    """A field of every kind, in an order that leaves gaps."""

    x: In
    lanes: Int
    window: Extents
    scale: Float
    slope: Double
    box: Box
    codes: Codes
    flags: Int
    seed: Seed
    y: Out


@frozen
class Apart(Arguments, restrict=True):
    """Arrays as parameters of their own."""

    count: Extent
    x: In
    codes: Codes
    y: Out


class _Everything(ctypes.Structure):
    """The same as the host's C compiler lays it out."""

    _fields_ = (
        ("x", ctypes.c_uint64),
        ("lanes", ctypes.c_int32),
        ("window", ctypes.c_int64 * 3),
        ("scale", ctypes.c_float),
        ("slope", ctypes.c_double),
        ("_before_box", ctypes.c_byte * 8),
        ("box", ctypes.c_byte * 128),
        ("codes", ctypes.c_uint64),
        ("flags", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("y", ctypes.c_uint64),
        ("_tail", ctypes.c_byte * 32),
    )


def _everything(**changes):
    given = {
        "x": Array(0),
        "lanes": -7,
        "window": (1, -(1 << 40), 3),
        "scale": 0.5,
        "slope": -1e300,
        "box": _MAP,
        "codes": None,
        "flags": 9,
        "seed": Runtime(0),
        "y": Array(2, 48),
    }
    return Everything(**given | changes)


# --- the layout -------------------------------------------------------------------------------------------------------


def test_a_record_is_packed_as_a_compiler_lays_out_its_struct():
    (block,) = _everything().parameters
    found = _Everything.from_buffer_copy(block.data)
    assert (found.lanes, list(found.window), found.scale, found.slope, found.flags) == (
        -7,
        [1, -(1 << 40), 3],
        0.5,
        -1e300,
        9,
    )
    assert block.words == (
        (_Everything.x.offset, Array(0)),
        (_Everything.seed.offset, Runtime(0)),
        (_Everything.y.offset, Array(2, 48)),
    )
    assert block.maps == ((_Everything.box.offset, _MAP),)
    assert _Everything.box.offset % 64 == 0


_NUMBERS = {
    "Int": (Int, ctypes.c_int32),
    "Extent": (Extent, ctypes.c_int64),
    "Float": (Float, ctypes.c_float),
    "Double": (Double, ctypes.c_double),
}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(_NUMBERS)), st.integers(-100, 100)), min_size=1, max_size=12))
def test_any_numbers_lie_where_c_puts_them(drawn):
    names = [f"n{i}" for i in range(len(drawn))]
    annotations = {name: _NUMBERS[kind][0] for name, (kind, _) in zip(names, drawn, strict=True)}
    record = frozen(type("Drawn", (Arguments,), {"__annotations__": annotations, "__module__": __name__}))
    native = type(
        "Native",
        (ctypes.Structure,),
        {"_fields_": [(n, _NUMBERS[k][1]) for n, (k, _) in zip(names, drawn, strict=True)]},
    )
    (block,) = record(*(value for _, value in drawn)).parameters
    assert len(block.data) == ctypes.sizeof(native)
    assert bytes(native(*(value for _, value in drawn))) == block.data


def test_arrays_beside_the_struct_keep_their_order():
    record = Apart(count=5, x=Array(0), codes=None, y=Array(1, 16))
    x, codes, y, block = record.parameters
    assert (x, codes, y, block.data, block.words) == (Array(0), 0, Array(1, 16), struct.pack("<q", 5), ())
    assert record.struct.entry == "void(const Config::Element*, const unsigned char*, Config::Element*, Arguments)"
    assert record.struct.text.startswith("struct Arguments {\n  long long count;\n};\n")


@frozen
class Some(Arguments, restrict=("x",)):
    """One of the arrays as a parameter of its own."""

    y: Out
    x: In
    words: Words


def test_named_arrays_stand_beside_the_struct():
    record = Some(y=Array(1, 16), x=Array(0), words=(1, 1 << 63))
    x, block = record.parameters
    assert (x, block.words, struct.unpack("<3Q", block.data)) == (Array(0), ((0, Array(1, 16)),), (0, 1, 1 << 63))
    assert record.struct.entry == "void(const Config::Element*, Arguments)"
    assert record.struct.text.startswith(
        "struct Arguments {\n  Config::Element* y;\n  unsigned long long words[2];\n};\n"
    )


@frozen
class Inner(Arguments):
    """What a record may have inside; arrays are members of the struct in any case."""

    scale: Double
    x: In
    seed: Seed
    count: Int


@frozen
class Outer(Arguments, restrict=True):
    """A record with another one inside."""

    y: Out
    lanes: Int
    part: Annotated[Inner, Part("Inner", Inner)]
    flags: Int


_OUTER = Outer(y=Array(1), lanes=3, part=Inner(scale=0.5, x=Array(0, 8), seed=Runtime(0), count=-2), flags=7)
_INNER_TEXT = "struct Inner {\n  double scale;\n  const float* x;\n  unsigned long long seed;\n  int count;\n};\n"


class _Inner(ctypes.Structure):
    _fields_ = (
        ("scale", ctypes.c_double),
        ("x", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("count", ctypes.c_int32),
    )


class _Outer(ctypes.Structure):
    _fields_ = (("lanes", ctypes.c_int32), ("part", _Inner), ("flags", ctypes.c_int32))


def test_a_record_inside_another_lies_as_a_nested_struct():
    y, block = _OUTER.parameters
    found, part = _Outer.from_buffer_copy(block.data), _Outer.part.offset
    assert (y, len(block.data)) == (Array(1), ctypes.sizeof(_Outer))
    assert (found.lanes, found.part.scale, found.part.count, found.flags) == (3, 0.5, -2, 7)
    assert block.words == ((part + _Inner.x.offset, Array(0, 8)), (part + _Inner.seed.offset, Runtime(0)))
    assert _OUTER.struct.text.startswith("struct Arguments {\n  int lanes;\n  Inner part;\n  int flags;\n};\n")


def test_an_absent_array_of_a_record_inside_is_null():
    _, block = Outer(None, 3, Inner(0.5, None, None, -2), 7).parameters
    assert block.words == ()


def test_numbers_that_do_not_fit_are_errors():
    for change in ({"lanes": 1 << 31}, {"window": (1 << 63,)}, {"lanes": 0.5}):
        with pytest.raises(struct.error):
            assert _everything(**change).parameters


def test_an_entry_has_few_parameters():
    annotations = {f"x{i}": In for i in range(kinds.MOST)}
    record = frozen(type("Many", (Apart,), {"__annotations__": annotations, "__module__": __name__}))
    with pytest.raises(AssertionError, match="parameters beside the struct"):
        assert record(0, *(Array(0),) * (3 + kinds.MOST)).struct


# --- on the side of C++ -----------------------------------------------------------------------------------------------


@frozen
class ElementConfig(Config):
    """The settings of a made-up kernel."""

    element: str


_READS_ALL = (
    "a.y[0] = a.x[0] + a.lanes + a.window[2] + a.scale + a.slope + a.codes[0] + a.flags + a.seed + a.box.words[0];"
)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A function that compiles the text of an entry for a record."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")
    root = module.kernels_folder()
    monkeypatch.setattr(module, "kernels_folder", lambda: tmp_path)
    (tmp_path / "include").symlink_to(root / "include")

    def compiled(made: Struct, parameters: str, body: str) -> bytes:
        (tmp_path / "kernel.cu").write_text(f'extern "C" __global__ void DNNARRAY_ENTRY({parameters}) {{ {body} }}\n')
        return module.compile_kernel(
            Kernel("kernel.cu", "made_up", ElementConfig("float"), ("ptx/tma",), arguments=made), "sm_90a"
        )

    return compiled


def test_a_struct_compiles_with_its_offsets(compiled):
    assert compiled(_everything().struct, "const __grid_constant__ Arguments a", _READS_ALL).startswith(b"\x7fELF")
    parameters = (
        "const float* __restrict__ x, const unsigned char* __restrict__ codes, float* y, const "
        "__grid_constant__ Arguments a"
    )
    assert compiled(Apart(1, None, None, None).struct, parameters, "y[a.count] = x[0] + codes[0];").startswith(
        b"\x7fELF"
    )


def test_what_is_renamed_or_moved_on_one_side_does_not_compile(compiled):
    made, whole = _everything().struct, "const __grid_constant__ Arguments a"
    renamed = Struct(made.text.replace("int lanes", "int lines").replace("->lanes", "->lines"), made.entry)
    place = _Everything.flags.offset
    moved = Struct(made.text.replace(f"flags)) == {place} &&", f"flags)) == {place + 4} &&"), made.entry)
    assert moved != made
    apart = Apart(1, None, None, None).struct
    for text, parameters, body in (
        (renamed, whole, _READS_ALL),
        (moved, whole, _READS_ALL),
        (apart, "const float* x, float* y, const __grid_constant__ Arguments a", "y[0] = x[0];"),
        (
            apart,
            "const unsigned char* codes, const float* x, float* y, const __grid_constant__ Arguments a",
            "y[0] = x[0];",
        ),
    ):
        with pytest.raises(dnn.DeviceError, match="does not compile"):
            compiled(text, parameters, body)


def test_a_record_inside_another_has_the_members_that_its_header_declares(compiled):
    made, parameters = _OUTER.struct, "float* y, const __grid_constant__ Arguments a"
    body = "y[0] = a.part.x[a.part.count] + a.part.scale + a.part.seed + a.flags + a.lanes;"
    declared = Struct(_INNER_TEXT + made.text, made.entry)
    assert compiled(declared, parameters, body).startswith(b"\x7fELF")
    for old, new in (
        ("int count", "int number"),
        ("  double scale;\n  const float* x;", "  const float* x;\n  double scale;"),
    ):
        with pytest.raises(dnn.DeviceError, match="does not compile"):
            compiled(Struct(_INNER_TEXT.replace(old, new) + made.text, made.entry), parameters, "y[0] = 0;")


# --- on a call --------------------------------------------------------------------------------------------------------


@pytest.fixture
def queued(monkeypatch):
    """A function that queues plans, and gives for each launch the addresses of its parameters."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    from dnnarray._cuda.core import launch

    seen = []
    for name in ("_allow_shared", "_enter"):
        monkeypatch.setattr(launch, name, lambda *_: None)
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(launch, "launchKernel", lambda *given: seen.append(given[-2]))
    monkeypatch.setattr(launch, "Encoded", lambda described, place: SimpleNamespace(move=lambda at: _encode(place, at)))

    def launches(plans, count):
        made = launch.Launches(tuple(plans), [SimpleNamespace(ptr=1)] * len(plans), count, [])
        return made, seen

    return launches


def _encode(place, address):
    ctypes.c_uint64.from_address(place).value = ~address & (2**64 - 1)
    return address


def _place(arguments, i):
    return ctypes.c_uint64.from_address(arguments + 8 * i).value


def _plan(record):
    return planned(Kernel("made_up.cu", "made_up", ElementConfig("float")), (1, 1, 1), 32, record)


def test_a_call_writes_its_pointers_options_and_maps_alone(queued):
    launches, seen = queued([_plan(_everything())], 3)
    for pointers, seed in (([1 << 40, 4096, 512], 2**64 - 1), ([256, 8192, 768], 3)):
        launches.queue(pointers, (seed,))
        place = _place(seen[-1], 0)
        assert place % 64 == 0
        found = _Everything.from_address(place)
        assert (found.x, found.codes, found.y, found.seed) == (pointers[0], 0, pointers[2] + 48, seed)
        assert (found.lanes, list(found.window), found.scale, found.slope, found.flags) == (
            -7,
            [1, -(1 << 40), 3],
            0.5,
            -1e300,
            9,
        )
        assert ctypes.c_uint64.from_address(place + _Everything.box.offset).value == ~(pointers[1] + 32) & (2**64 - 1)


def test_records_and_tuples_share_a_program(queued):
    record = Apart(count=5, x=Array(0), codes=None, y=Array(1, 16))
    old = Plan(Kernel("made_up.cu", "made_up", Config()), (1, 1, 1), 32, (Array(1), 5, 0.5, Array(0)))
    launches, seen = queued([_plan(record), old, _plan(record), _plan(_everything())], 3)
    launches.queue([256, 512, 1024], (1,))
    values = [[ctypes.c_uint64.from_address(_place(arguments, i)).value for i in range(4)] for arguments in seen[:3]]
    assert values == [[256, 0, 528, 5], [512, 5, struct.unpack("<Q", struct.pack("<d", 0.5))[0], 256], [256, 0, 528, 5]]
    assert _place(seen[0], 3) == _place(seen[2], 3)  # equal structs stand there once
    assert _Everything.from_address(_place(seen[3], 0)).x == 256


def test_what_no_launch_reads_is_not_written(queued):
    launches, _ = queued([_plan(Apart(count=5, x=Array(2), codes=None, y=Array(0)))], 3)
    lines = [line.strip() for line in launches.lines(["p0", "p1", "p2"])]
    assert [line for line in lines if line.startswith("_words[")] == ["_words[0] = p2", "_words[2] = p0"]
