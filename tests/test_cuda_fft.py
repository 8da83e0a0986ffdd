"""Plans of the convolution by Fourier transforms, carried out by NumPy: what each step reads and writes, chunks and
tiles."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._cuda.conv import ALGORITHMS, fft
from dnnarray._cuda.core.plan import Array, Plan, Transform
from dnnarray._options import DEFAULT
from dnnarray._select import choose
from dnnarray._spec import Spec
from tests.support import assert_close
from tests.test_cuda_memory import _DEVICES

_DEVICE = _DEVICES["sm_90a"]

CALLS = {  # x, channels and window of the weight, options
    "1-D": ((2, 5, 611), (7, 5, 33), {"padding": 16}),
    "1-D, long window": ((1, 3, 5000), (4, 3, 1025), {}),
    "2-D": ((3, 8, 37, 41), (6, 8, 7, 9), {"padding": (3, 2)}),
    "2-D, flipped, dilated": ((2, 4, 45, 50), (5, 4, 5, 7), {"padding": 4, "dilation": (2, 3), "flip": True}),
    "2-D, one axis": ((2, 4, 13, 70), (3, 4, 1, 31), {"padding": (0, 15)}),
    "2-D, the other axis": ((2, 4, 70, 13), (3, 4, 31, 1), {"padding": (15, 0)}),
    "2-D, groups": ((2, 12, 40, 33), (18, 4, 7, 7), {"padding": 3, "groups": 3}),
    "2-D, depthwise": ((2, 40, 61, 67), (40, 1, 11, 11), {"padding": 5, "groups": 40}),
    "3-D": ((1, 3, 14, 23, 27), (4, 3, 3, 5, 5), {"padding": 2}),
    "wide padding": ((1, 2, 20, 21), (2, 2, 5, 5), {"padding": ((9, 6), (0, 12))}),
}


class _Memory:
    """Flat memory of each array of a call, behind them the scratch memory."""

    def __init__(self, arrays, workspace):
        self.bytes = [*(a.reshape(-1).view(np.uint8) for a in arrays), np.full(workspace, 0xFF, np.uint8)]

    def floats(self, place):
        """From a pointer on; what lies before it is reached by negative numbers elsewhere."""
        return self.bytes[place.index].view(np.float32), place.offset // 4

    def part(self, place, count, dtype):
        return self.bytes[place.index][place.offset : place.offset + count * np.dtype(dtype).itemsize].view(dtype)


def _tiles(memory, a):
    axes = [a.axes[i : i + 7] for i in (0, 7, 14)]  # tiles, places of one, taken, step, extent, dilation, before
    tiles, size = [axis[0] for axis in axes], [axis[1] for axis in axes]
    x, out, outer, inner, (s_g, s_o, s_i, s_d, s_h, s_w) = a.x, a.out, a.outers, a.inners, a.x_strides
    rows = a.pieces // (a.parts * math.prod(tiles))
    source, first = memory.floats(x)
    target = memory.part(out, rows * math.prod(tiles) * math.prod(size), np.float32).reshape(
        rows, math.prod(tiles), math.prod(size)
    )
    places, inside = np.int64(0), True
    for axis, (numbers, stride) in enumerate(zip(axes, (s_d, s_h, s_w), strict=True)):
        _, _, taken, step, extent, dilation, before = numbers
        at = np.arange(tiles[axis])[:, None] * step + np.arange(size[axis]) - before
        good = (np.arange(size[axis]) < taken) & (at >= 0) & (at % dilation == 0) & (at // dilation < extent)
        shape = [1] * 6
        shape[axis], shape[3 + axis] = tiles[axis], size[axis]
        places, inside = places + (at // dilation * stride).reshape(shape), inside & good.reshape(shape)
    places, inside = (np.broadcast_to(a, (*tiles, *size)).reshape(math.prod(tiles), -1) for a in (places, inside))
    for row in range(rows):
        start = first + row // (outer * inner) * s_g + row // inner % outer * s_o + row % inner * s_i
        target[row] = np.where(inside, source[np.where(inside, start + places, 0)], 0)


def _product(memory, a):
    frequencies, groups, ni, nj, nl = a.frequencies, a.groups, a.ni, a.nj, a.nl

    def seen(place, extents, strides):
        count = 1 + sum((n - 1) * s for n, s in zip(extents, strides, strict=True))
        flat = memory.part(place, count + frequencies - 1, np.complex64)
        return np.lib.stride_tricks.as_strided(flat, (*extents, frequencies), (*(8 * s for s in strides), 8))

    left, right = seen(a.left, (groups, ni, nl), a.left_strides), seen(a.right, (groups, nj, nl), a.right_strides)
    found = np.einsum("gilf,gjlf->gijf", left, right.conj())
    target = seen(a.out, (groups, ni, nj), a.out_strides)
    target[...] = found + target if a.adds else found


def _result(memory, a):
    axes = [a.axes[i : i + 5] for i in (0, 5, 10)]
    tiles, size, extents, steps, spread = zip(*axes, strict=True)
    inner, y, (s_o, s_i, s_d, s_h, s_w) = a.inner, a.y, a.y_strides
    rows = a.total // math.prod(extents)
    values = memory.part(a.source, rows * math.prod(tiles) * math.prod(size), np.float32).reshape(rows, *tiles, *size)
    target, first = memory.floats(y)
    index = []
    for extent, step, apart in zip(extents, steps, spread, strict=True):
        index.append(divmod(np.arange(extent) * apart, step))
    grid = np.ix_(*(t for t, _ in index)), np.ix_(*(u for _, u in index))
    places = sum(n * s for n, s in zip(np.ix_(*map(np.arange, extents)), (s_d, s_h, s_w), strict=True))
    for row in range(rows):
        target[first + row // inner * s_o + row % inner * s_i + places] = values[row][
            (*grid[0], *grid[1])
        ] * np.float32(a.scale)


def _transform(memory, step):
    volume, last = math.prod(step.lengths), step.lengths[-1]
    spectra = volume // last * (last // 2 + 1)
    axes = tuple(range(1, 1 + len(step.lengths)))
    read, written = (spectra, volume) if step.inverse else (volume, spectra)
    half = (*step.lengths[:-1], last // 2 + 1)
    source = memory.part(step.source, step.batch * read, np.complex64 if step.inverse else np.float32)
    target = memory.part(step.target, step.batch * written, np.float32 if step.inverse else np.complex64)
    if step.inverse:
        target[...] = (np.fft.irfftn(source.reshape(-1, *half), step.lengths, axes) * volume).reshape(-1)
        source[...] = np.nan  # as the library may leave it
    else:
        target[...] = np.fft.rfftn(source.reshape(-1, *step.lengths), axes=axes).reshape(-1)
    memory.part(step.work, step.work_bytes, np.uint8)[...] = 0xFF


def _carry_out(op, algorithm, arrays, options):
    operation = find(op)
    bound, chosen = operation.bind(tuple(Spec(a.shape, a.dtype) for a in arrays), options)
    problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
    method = next(m for m in ALGORITHMS[op] if m.name == algorithm)
    if reason := method.rejects(problem, _DEVICE):
        assert algorithm == "fft_tiled", reason
        pytest.skip(reason)
    result = np.full(problem.outputs[0].shape, np.nan, np.float32)
    memory = _Memory([*map(np.ascontiguousarray, arrays), result], method.workspace(problem))
    for step in method.run(problem, _DEVICE, True).plans:
        if isinstance(step, Transform):
            _transform(memory, step)
            continue
        assert isinstance(step, Plan)
        stem = step.kernel.source.rpartition("/")[2]
        if stem == "fourier_tiles.cu":
            _tiles(memory, step.arguments)
        elif stem == "spectral_product.cu":
            _product(memory, step.arguments)
        elif stem == "fourier_result.cu":
            _result(memory, step.arguments)
        else:
            assert stem.startswith("direct"), stem  # the repair of NaN
    return memory.bytes[len(arrays)].view(np.float32).reshape(result.shape)


@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunks"])
@pytest.mark.parametrize("algorithm", ["fft", "fft_tiled"])
@pytest.mark.parametrize("name", CALLS)
def test_plans_compute_the_convolution_and_its_gradients(name, algorithm, chunked, monkeypatch):
    monkeypatch.setattr(fft, "_FACTORS", (2,))  # also small images in several tiles
    if chunked:
        monkeypatch.setattr(fft, "_WEIGHT", 1)
        monkeypatch.setattr(fft, "_IMAGES", 1)
    x_shape, w_shape, options = CALLS[name]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    wide = x.astype(np.float64), w.astype(np.float64)
    expected = dnn.conv(*wide, **options)
    assert_close(_carry_out("conv", algorithm, (x, w), options), expected, w[0].size)
    grad = rng.standard_normal(expected.shape).astype(np.float32)
    exact = dnn.conv_backward_input(grad.astype(np.float64), wide[1], input_shape=x.shape, **options)
    found = _carry_out("conv_backward_input", algorithm, (grad, w), options | {"input_shape": x.shape})
    assert_close(found, exact, w.size // w.shape[1] // options.get("groups", 1))
    exact = dnn.conv_backward_weight(grad.astype(np.float64), wide[0], weight_shape=w.shape, **options)
    found = _carry_out("conv_backward_weight", algorithm, (grad, x), options | {"weight_shape": w.shape})
    assert_close(found, exact, expected.size // expected.shape[1])


def test_arrays_of_steps_are_pointers():
    step = Transform(Array(0), Array(1), Array(1, 256), (8,), 1, False, 40)
    assert step.arrays == (Array(0), Array(1), Array(1, 256))


@pytest.mark.parametrize(
    ("x", "w", "options", "algorithm", "reason"),
    [
        (
            Spec((1, 2, 30, 30), "bfloat16"),
            Spec((2, 2, 5, 5), "bfloat16"),
            {},
            "fft",
            "bfloat16 arrays; it takes float32",
        ),
        (Spec((1, 2, 30, 30), "float32"), Spec((2, 2, 3, 3), "float32"), {}, "fft", "a window of 9 taps"),
        (Spec((1, 2, 30, 30), "float32"), Spec((2, 2, 5, 5), "float32"), {"stride": 2}, "fft", "a stride of 2"),
        (
            Spec((1, 2, 20, 20), "float32"),
            Spec((2, 2, 9, 9), "float32"),
            {},
            "fft_tiled",
            "no larger than one tile; fft does it",
        ),
        (
            Spec((1, 512, 2048, 2048), "float32"),
            Spec((8, 512, 5, 5), "float32"),
            {},
            "fft",
            "fft_tiled holds tiles only",
        ),
        (Spec((0, 2, 20, 20), "float32"), Spec((2, 2, 9, 9), "float32"), {}, "fft", "an extent of 0"),
    ],
)
def test_what_is_refused_and_why(x, w, options, algorithm, reason):
    operation = find("conv")
    bound, chosen = operation.bind((x, w), options)
    problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
    with pytest.raises(
        dnn.UnsupportedError, match=f"'{algorithm}' does not do .*{reason}.*Those that would do: .*direct"
    ):
        choose(problem, _DEVICE, DEFAULT, ALGORITHMS["conv"], algorithm)


def test_large_windows_are_transformed_and_small_ones_are_not():
    for window, expected in ((3, False), (31, True)):
        specs = Spec((8, 64, 128, 128), "float32"), Spec((64, 64, window, window), "float32")
        operation = find("conv")
        bound, chosen = operation.bind(specs, {"padding": window // 2})
        problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
        assert choose(problem, _DEVICE, DEFAULT, ALGORITHMS["conv"]).name.startswith("fft") is expected, window
