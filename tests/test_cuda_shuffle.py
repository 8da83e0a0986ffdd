"""Plans of shuffles, played on the CPU: what their kernels compute of the words that a launch is told."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._cuda.spatial import ALGORITHMS
from dnnarray._select import Device
from dnnarray._spec import Spec

_DEVICE = Device("made-up H200", "cuda", 1, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0), 232_448)
_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def _split_off(i, numbers, steps):
    """`Walk` of walk.cuh: i % n, i / n and the step."""
    n, magic = numbers & 0xFFFFFFFF, numbers >> 32
    quotient = ((i * np.uint64(magic)) >> np.uint64(32)) >> np.uint64(steps & 31)
    return i - quotient * np.uint64(n), quotient, steps >> 5


def _walked(left, words, rank, stride):
    """Places along all axes, from the fastest to the slowest, as (places, number of the axis); the rest belongs to the
    slowest."""
    found = []
    for k in range(rank - 1, 0, -1):
        at, left, step = _split_off(left, *words[k * stride : k * stride + 2])
        found.append((k, at, step))
    return [*found, (0, left, words[1] >> 5)]


def _deal(plan, x):
    config, threads, words = plan.kernel.config, plan.arguments.size, plan.arguments.words
    x = x.view(_DTYPES[config.bytes])
    y, places = np.zeros_like(x), plan.arguments.places
    source, target = (np.zeros(threads, np.uint64) for _ in range(2))
    for k, at, step in _walked(np.arange(threads, dtype=np.uint64), words, config.rank, 3):
        source += at * np.uint64(step)
        target += at * np.uint64(words[3 * k + 2])
    for e in range(config.places * config.vector):
        y[target + np.uint64(places[e % config.places] + e // config.places)] = x[source + np.uint64(e)]
    return y


def _move(plan, x):
    config, total, words = plan.kernel.config, plan.arguments.total, plan.arguments.words
    x = x.view(_DTYPES[config.bytes])
    source = np.zeros(total, np.uint64)
    for _, at, step in _walked(np.arange(total, dtype=np.uint64), words, config.rank, 2):
        source += at * np.uint64(step)
    return x[source]


_SHAPES = [
    ("pixel_shuffle", (2, 16, 5, 6), {"factor": 2}),
    ("pixel_shuffle", (1, 36, 3, 8), {"factor": 3}),
    ("pixel_shuffle", (3, 4, 6, 128), {"factor": 2, "layout": "channels_last"}),
    ("pixel_shuffle", (2, 3, 4, 5, 128), {"factor": 2, "layout": "channels_last"}),
    ("pixel_unshuffle", (3, 5, 14, 64), {"factor": 2}),
    ("pixel_unshuffle", (2, 3, 8, 64), {"factor": 4}),
    ("pixel_unshuffle", (2, 4, 4, 6, 32), {"factor": 2}),
    ("pixel_unshuffle", (2, 6, 9, 7), {"factor": 3, "layout": "channels_last"}),
    ("channel_shuffle", (2, 64, 3, 5), {"groups": 4}),
    ("channel_shuffle", (2, 3, 5, 64), {"groups": 16, "layout": "channels_last"}),
    ("channel_shuffle", (2, 3, 5, 64), {"groups": 4, "layout": "channels_last"}),
]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("op", "shape", "options"), _SHAPES)
def test_shuffles_move_every_element_to_its_place(op, shape, options, itemsize):
    x = np.arange(np.prod(shape)).reshape(shape).astype(_DTYPES[itemsize])
    operation = find(op)
    bound, chosen = operation.bind((Spec(x.shape, x.dtype),), options)
    problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
    expected = getattr(dnn, op)(x, **options)
    played = 0
    for method in ALGORITHMS[op]:
        if method.rejects(problem, _DEVICE) is None:
            (plan,) = method.run(problem, _DEVICE, True).plans
            y = (_deal if plan.kernel.source.endswith("deal.cu") else _move)(plan, x.ravel())
            np.testing.assert_array_equal(y.view(x.dtype).reshape(expected.shape), expected)
            played += 1
    assert played


def test_neighbours_in_memory_are_dealt_out_where_whole_vectors_come_of_it():
    dealt = {("pixel_shuffle", "channels_last"), ("pixel_unshuffle", "channels_first")}
    for op in ("pixel_shuffle", "pixel_unshuffle"):
        for layout, shape in (("channels_first", (8, 64, 64, 64)), ("channels_last", (8, 64, 64, 64))):
            for dtype in (np.float16, np.float32):
                operation = find(op)
                bound, chosen = operation.bind((Spec(shape, np.dtype(dtype)),), {"factor": 2, "layout": layout})
                problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
                takes = ALGORITHMS[op][0].rejects(problem, _DEVICE) is None
                assert takes == ((op, layout) in dealt)
