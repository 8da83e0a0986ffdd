"""Tensor maps without a GPU: what the driver is asked for, and a TMA in NumPy that fetches what the maps of
convolutions describe."""

import ctypes
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._problems.conv_geometry import geometry
from dnnarray._select import Device
from dnnarray._spec import BFLOAT16, FLOAT16, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS, implicit_tma_sm90, raster, tma_tiling
from dnnarray._cuda.core import tensor_map
from dnnarray._cuda.core.launch import Launches
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Structure, TensorMap
from dnnarray._cuda.core.tensor_map import Encoded

_DEVICE = Device("made-up H200", "cuda", 132, {"float32": 50e12, "bfloat16_mma": 788e12}, 4.2e12, 4e-6, (9, 0), 232_448)
_MAP = TensorMap(Array(0, 32), BFLOAT16, (64, 5), (128,), (64, 2))


class _Driver:
    """Writes down what it is asked for; a map's first word is its address, the others are 7, as the calls say nothing
    about them."""

    def __init__(self, status=0):
        self.asked, self.status = [], status

    def cuTensorMapEncodeTiled(self, *given):  # noqa: N802
        return self._encode("tiled", *given)

    def cuTensorMapEncodeIm2col(self, *given):  # noqa: N802
        return self._encode("im2col", *given)

    def _encode(self, name, place, kind, axes, address, *given):
        self.asked.append((name, kind, axes, address, *(list(n) if isinstance(n, ctypes.Array) else n for n in given)))
        if not self.status:
            (ctypes.c_uint64 * 16).from_address(place)[:] = [address, *[7] * 15]
        return self.status

    def cuTensorMapReplaceAddress(self, place, address):  # noqa: N802
        self.asked.append(("replace", address))
        ctypes.c_uint64.from_address(place).value = address
        return self.status

    def cuGetErrorName(self, status, name):  # noqa: N802
        name._obj.value = {1: b"CUDA_ERROR_INVALID_VALUE"}[status]


@pytest.fixture
def driver(monkeypatch):
    found = _Driver()
    monkeypatch.setattr(tensor_map, "_driver", lambda: found)
    return found


def test_a_map_is_encoded_once_and_then_moved(driver):
    memory = np.zeros(16, np.uint64)
    encoded = Encoded(_MAP, memory.ctypes.data)
    assert [encoded.move(a) for a in (4096, 8192)] == [4096, 8192]
    assert memory.tolist() == [8192] + [7] * 15
    encoded, moved = driver.asked
    # bfloat16, two axes; zeros outside, 256 bytes at once into the L2, panels of 128 bytes swizzled, nothing
    # interleaved
    assert encoded == ("tiled", 9, 2, 4096, [64, 5], [128], [64, 2], [1, 1], 0, 3, 3, 0)
    assert moved == ("replace", 8192)


def test_windows_are_described_by_their_corners(driver):
    memory = np.zeros(16, np.uint64)
    windows = TensorMap(Array(0), FLOAT16, (64, 9, 8, 2), (128, 1152, 9216), (64, 32), (1, 2, 1, 1), ((-1, -2), (1, 0)))
    Encoded(windows, memory.ctypes.data).move(4096)
    assert driver.asked == [
        ("im2col", 6, 4, 4096, [64, 9, 8, 2], [128, 1152, 9216], [-1, -2], [1, 0], 64, 32, [1, 2, 1, 1], 0, 3, 3, 0)
    ]


def test_what_the_driver_refuses_is_an_error(driver):
    driver.status = 1
    memory = np.zeros(16, np.uint64)
    with pytest.raises(dnn.DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        Encoded(_MAP, memory.ctypes.data).move(4096)


def test_launches_hand_over_maps_that_follow_their_arrays(driver, monkeypatch):
    from dnnarray._cuda.core import launch

    seen = []

    def launched(function, *given):
        arguments = given[-2]
        first = ctypes.c_uint64.from_address(arguments).value
        seen.append((first % 64, ctypes.c_uint64.from_address(first).value, _word(arguments, 1), _word(arguments, 2)))

    monkeypatch.setattr(launch, "_allow_shared", lambda *_: None)
    monkeypatch.setattr(launch, "_enter", lambda: None)
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(launch, "launchKernel", launched)
    plan = Plan(Kernel("common/zero.cu", "made_up", Config()), (1, 1, 1), 32, (_MAP, Array(1), 5))
    launches = Launches((plan,), [SimpleNamespace(ptr=1)], 2, [])
    for pointers in ([4096, 16], [4096, 32], [8192, 32]):
        launches.queue(pointers, ())
    assert seen == [(0, 4128, 16, 5), (0, 4128, 32, 5), (0, 8224, 32, 5)]
    assert [name for name, *_ in driver.asked] == ["tiled", "replace"]


def test_a_structure_is_one_argument_beside_the_others(monkeypatch):
    from dnnarray._cuda.core import launch

    seen = []

    def launched(function, *given):
        place = ctypes.c_uint64.from_address(given[-2] + 8).value
        seen.append((_word(given[-2], 0), ctypes.string_at(place, 32), _word(given[-2], 2)))

    monkeypatch.setattr(launch, "_allow_shared", lambda *_: None)
    monkeypatch.setattr(launch, "_enter", lambda: None)
    monkeypatch.setattr(launch, "get_current_stream", lambda device: SimpleNamespace(ptr=7))
    monkeypatch.setattr(launch, "launchKernel", launched)
    structure = Structure((1 << 40, -1), (5, -2, (1 << 32) - 3))
    plan = Plan(Kernel("common/zero.cu", "made_up", Config()), (1, 1, 1), 32, (Array(0), structure, 5))
    launches = Launches((plan, plan), [SimpleNamespace(ptr=1)] * 2, 1, [])
    launches.queue([4096], ())
    assert seen == [(4096, struct.pack("<qqiiI4x", 1 << 40, -1, 5, -2, (1 << 32) - 3), 5)] * 2


@pytest.mark.parametrize(
    "structure", [Structure((1 << 63,), ()), Structure((), (1 << 32,)), Structure((), (-(1 << 31) - 1,))], ids=str
)
def test_a_number_that_does_not_fit_its_structure_is_an_error(structure):
    with pytest.raises(OverflowError):
        assert structure.block


def _word(arguments, i):
    return ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(arguments + 8 * i).value).value


# --- a TMA ----------------------------------------------------------------------------------------------------


def _element(memory, m, place):
    """One number of an array, 0 outside of it."""
    if not all(0 <= p < n for p, n in zip(place, m.shape, strict=True)):
        return 0.0
    at = m.array.offset + place[0] * 2 + sum(p * s for p, s in zip(place[1:], m.strides, strict=True))
    return memory[m.array.index][at // 2]


def _box(memory, m, start):
    """The rows of 64 of a tiled map."""
    counts = [range(n) for n in m.box[1:]]
    rows = math.prod(m.box[1:])
    steps = [np.unravel_index(i, [len(c) for c in counts[::-1]])[::-1] for i in range(rows)]
    return np.array(
        [
            [
                _element(memory, m, (start[0] + c, *(s + d for s, d in zip(start[1:], step, strict=True))))
                for c in range(64)
            ]
            for step in steps
        ]
    )


def _windows(memory, m, start, offsets):
    """The rows of 64 of a map of windows: from `start` on in the order of the places between the corners."""
    lower, upper = m.corners
    last = [n - 1 + u for n, u in zip(m.shape[1:-1], upper, strict=True)]
    c, *place = start
    rows = []
    for _ in range(m.box[1]):
        at = [p + o for p, o in zip(place, (*offsets, 0), strict=True)]
        rows.append([_element(memory, m, (c + i, *at)) for i in range(64)])
        for axis, (low, high) in enumerate(zip(lower, last, strict=True)):
            place[axis] += m.steps[axis + 1]
            if place[axis] <= high:
                break
            place[axis] = low
        else:
            place[-1] += 1
    return np.array(rows)


class _Card:
    """Runs a plan of `implicit_tma_sm90`, `implicit_tma_halo_sm90` or `implicit_tma_held_sm90` as its kernel reads its
    arguments."""

    def __init__(self, plan, memory):
        self.plan, self.memory, self.config = plan, memory, plan.kernel.config
        self.x, self.w = plan.arguments.x, plan.arguments.weight

    def sums(self):
        """(place, channel) of all tiles, by place and channel of the result."""
        held = "held" in self.plan.kernel.source
        halo = held or "halo" in self.plan.kernel.source
        given = self.plan.arguments
        channels, backwards, outs = given.channels, given.backwards, given.outs
        tiles_m, tiles_n, groups, axes = given.tiles_m, given.tiles_n, given.groups, _axes(given)
        inner = (axes[0][0], given.height, given.pitch) if halo else tuple(a[0] for a in axes)
        tile_m, tile_n = self.config.tile_m // (1 + held), self.config.tile_n
        rows = tiles_m * tile_m
        found = np.zeros((groups, rows, tiles_n * tile_n))
        window = tuple(a[2] for a in axes)
        for group in range(groups):
            for first in range(0, rows, tile_m):
                *place, image = _unravel(first, inner)
                starts = [p * a[3] - a[5] for p, a in zip(place, axes[::-1], strict=True)][: self.config.axes]
                for first_n in range(0, tiles_n * tile_n, tile_n):
                    for tap in np.ndindex(*window):
                        for c in range(0, channels, 64):
                            offsets = [t * a[4] for t, a in zip(tap[::-1], axes[::-1], strict=True)][: self.config.axes]
                            if halo:
                                raster = _windows(
                                    self.memory, self.x, (group * channels + c, *starts, image), (0, 0, *offsets[2:])
                                )
                                shift = offsets[1] * inner[2] + offsets[0]
                                a = raster[shift : shift + tile_m]
                            else:
                                a = _windows(self.memory, self.x, (group * channels + c, *starts, image), offsets)
                            b = self._weight(tap[::-1], window[::-1], backwards, group, channels, outs, first_n, c)
                            found[group, first : first + tile_m, first_n : first_n + tile_n] += a @ b
        return found[:, :, :outs], inner, [a[0] for a in axes]

    def _weight(self, tap, window, backwards, group, channels, outs, first, c):
        at = [n - 1 - t if backwards >> i & 1 else t for i, (t, n) in enumerate(zip(tap, window, strict=True))]
        boxes = self.config.tile_n // self.w.box[-1]
        if not self.config.transposed:
            starts = [(c, *at, group * outs + first + i * self.w.box[-1]) for i in range(boxes)]
            return np.concatenate([_box(self.memory, self.w, s) for s in starts]).T
        return np.hstack([_box(self.memory, self.w, (first + 64 * i, *at, group * channels + c)) for i in range(boxes)])


def _axes(arguments):
    """(out, space, window, stride, dilation, before) of each axis."""
    return [tuple(arguments.axes[i : i + 6]) for i in (0, 6, 12)]


def _axis(words):
    """(out, space, window, stride, dilation, before)"""
    pairs = [(w >> 32, w & 0xFFFFFFFF) for w in words]
    (out, space), (window, stride), (dilation, before) = pairs
    return out, space, window, stride, dilation, before - (1 << 32) if before >> 31 else before


def _unravel(i, inner):
    """Places along w, h and d, and the image."""
    found = []
    for n in inner[::-1]:
        i, rest = divmod(i, n)
        found.append(rest)
    return (*found, i)


_CASES = {  # x, weight, options, tile
    "strided": ((2, 8, 9, 7), (64, 8, 3, 2), {"stride": (2, 3), "padding": ((1, 0), (2, 3))}, (64, 64)),
    "dilated": ((1, 72, 6, 7), (64, 72, 2, 2), {"dilation": (2, 3), "padding": 2}, (64, 64)),
    "flipped": ((2, 8, 5, 6), (64, 8, 2, 3), {"padding": 1, "flip": True}, (64, 128)),
    "groups": ((1, 128, 4, 5), (128, 64, 1, 3), {"groups": 2}, (64, 64)),
    "halo": ((2, 64, 5, 6), (64, 64, 3, 3), {"padding": ((1, 1), (2, 0))}, (64, 64)),
    "1d": ((2, 16, 9), (64, 16, 3), {"padding": 1}, (64, 64)),
    "3d-halo": ((1, 8, 4, 4, 5), (64, 8, 2, 3, 3), {"padding": 1, "stride": (2, 1, 1)}, (64, 64)),
    "3d": ((1, 8, 3, 4, 5), (64, 8, 2, 2, 2), {"padding": 1}, (64, 64)),
}


@pytest.mark.parametrize("transposed", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
@pytest.mark.parametrize("case", _CASES)
def test_the_copy_engine_fetches_what_the_products_need(case, held, transposed, monkeypatch):
    x_shape, w_shape, options, (m, n) = _CASES[case]
    monkeypatch.setattr(tma_tiling, "_HELD", (tma_tiling.Tile(128, 64, 4),))
    if held:
        fastest = tma_tiling._fastest
        monkeypatch.setattr(tma_tiling, "_fastest", lambda *given: (math.inf, fastest(*given)[1]))
    else:
        monkeypatch.setattr(tma_tiling, "_holding", lambda *_: None)
    monkeypatch.setattr(tma_tiling, "_TILES", (tma_tiling.Tile(m, n, 3),))
    order = (0, *range(2, len(x_shape)), 1)
    rng = np.random.default_rng(0)
    w = rng.integers(-2, 3, [w_shape[i] for i in order]).astype(float).transpose(np.argsort(order))
    if not transposed:
        op, arrays, more = "conv", (_drawn(rng, x_shape, order), w), {}
    else:
        shape = dnn.infer("conv", Spec(x_shape, "float32"), Spec(w_shape, "float32"), **options).output.shape
        op, arrays, more = "conv_backward_input", (_drawn(rng, shape, order), w), {"input_shape": x_shape}
    expected = np.rint(
        getattr(dnn, op)(*arrays, **options, **more)
    )  # of whole numbers, which not every algorithm keeps
    specs = tuple(Spec(a.shape, "bfloat16", tuple(s // 8 for s in a.strides)) for a in arrays)
    operation = find(op)
    bound, chosen = operation.bind(specs, options | more)
    problem = operation.problem(bound, {k: v for k, v in chosen.items() if k in operation.static})
    method = next(a for a in ALGORITHMS[op] if a.name == "implicit_tma_sm90")
    assert method.rejects(problem, _DEVICE) is None
    program = method.run(problem, _DEVICE, True).plans
    plans, cleared = [p for p in program if "tma" in p.kernel.source], [p for p in program if "zero" in p.kernel.source]
    assert plans
    if held and not any("held" in p.kernel.source for p in plans):
        pytest.skip("more than the weight of one plane and 64 channels")
    memory = [np.ascontiguousarray(a.transpose(order)).ravel() for a in arrays]
    actual = np.full(expected.size, 0.0 if cleared else np.nan)
    for plan in plans:
        if plan.arguments.weight.array.index > 1:
            pytest.skip("the weight is turned round first")
        _store(actual, plan, *_Card(plan, memory).sums())
    assert (actual == expected.transpose(order).ravel()).all()


def _drawn(rng, shape, order):
    return rng.integers(-2, 3, [shape[i] for i in order]).astype(float).transpose(np.argsort(order))


def _store(target, plan, sums, inner, out):
    """What the kernel's last step does."""
    given = plan.arguments
    halo, outs, steps = "implicit_tma_sm90" not in plan.kernel.source, given.outs, given.y_strides
    images = given.images if halo else given.rows // math.prod(out)
    for i in range(images * math.prod(inner)):
        *place, image = _unravel(i, inner)
        if any(p >= o for p, o in zip(place[::-1], out, strict=True)):
            continue
        at = given.y.offset // 2 + image * steps[0] + sum(p * s for p, s in zip(place[::-1], steps[1:], strict=True))
        for group in range(sums.shape[0]):
            target[at + group * outs : at + (group + 1) * outs] = sums[group, i]


@pytest.mark.parametrize(
    ("x", "w", "options", "reason"),
    [
        ((1, 8, 200, 8), (8, 8, 3, 1), {"padding": (130, 0)}, "image's end"),
        ((1, 8, 700, 8), (8, 8, 5, 1), {"dilation": (100, 1), "padding": ((0, 300), (0, 0))}, "window over 401"),
        ((1, 8, 40, 40), (8, 8, 3, 3), {"stride": 9}, "stride of 9"),
        ((1, 128, 9, 9), (128, 64, 3, 3), {"groups": 2}, None),
        ((1, 144, 9, 9), (144, 72, 3, 3), {"groups": 2}, "72 and 72 channels"),
    ],
)
def test_what_the_copy_engine_does_not_take(x, w, options, reason):
    problem = find("conv").problem(
        (Spec(x, BFLOAT16), Spec(w, BFLOAT16), None, None),
        find("conv").bind((Spec(x, BFLOAT16), Spec(w, BFLOAT16)), options)[1],
    )
    found = implicit_tma_sm90.rejects("conv", problem, _DEVICE)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("side", "window"), [(7, 3), (56, 3), (112, 3), (30, 7), (200, 3)])
def test_tiles_fit_into_shared_memory(side, window):
    g = geometry(
        4,
        1,
        64,
        64,
        (side, side),
        (window, window),
        (side, side),
        (1, 1),
        (1, 1),
        ((window // 2, window // 2),) * 2,
        True,
    )
    r = raster.raster(g)
    for tile in tma_tiling._TILES:
        assert tma_tiling.Choice(tile, None, 0.0).shared_memory <= _DEVICE.shared_memory
        halo = tma_tiling.with_halo(tile, r)
        assert halo is None or (tma_tiling.halo_memory(r, halo) <= _DEVICE.shared_memory and halo.stages >= 3)
    assert tma_tiling.choose(g, 132).shared_memory <= _DEVICE.shared_memory


def test_places_of_rasters_are_counted_in_31_bits():
    """By divisions that the host has prepared; more of them are taken by windows."""

    def chosen(n):
        sides = ((112, 112), (3, 3), (112, 112), (1, 1), (1, 1), ((1, 1),) * 2)
        return tma_tiling.choose(geometry(n, 1, 64, 64, *sides, True), 132)

    assert chosen((1 << 31) // 113**2 - 1).held
    assert chosen((1 << 31) // 113**2 + 1).raster is None
