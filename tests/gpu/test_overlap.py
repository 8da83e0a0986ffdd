"""Launches that begin while the one before them ends: nothing is read before it is there, in a stream and in a CUDA graph."""

from functools import partial

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_CALLS = 60


def _draw(*shape, seed=0, dtype=np.float32):
    return cupy.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def _row_norm(rows, columns, dtype):
    return lambda g, x, w: dnn.layer_norm_backward(g, x, w, w), _sets((rows, columns), columns, dtype)


def _loss(rows, columns, dtype):
    labels = cupy.asarray(np.random.default_rng(1).integers(columns, size=rows))
    return lambda g, x, w: dnn.cross_entropy(x, labels, weight=w), _sets((rows, columns), columns, dtype)


def _loss_gradient(rows, columns, dtype):
    labels = cupy.asarray(np.random.default_rng(1).integers(columns, size=rows))
    return lambda g, x, w: dnn.cross_entropy_backward(g[0, 0], x, labels, weight=w), _sets((rows, columns), columns, dtype)


def _channels(name, shape, layout, **options):
    function, gradient = getattr(dnn, name), name.endswith("backward")
    return lambda g, x, w: function(*(g,) * gradient, x, weight=w, bias=w, layout=layout, **options), _sets(shape, 64, np.float32)


def _residual(shape, layout, dtype):
    """Whose gradient the sums write, for the last pass to read."""
    options = {"activation": "relu", "layout": layout}
    return lambda g, x, w: dnn.batch_norm_train_backward(g, x, w, w, residual=g, **options), _sets(shape, 64, dtype)


def _sets(shape, parameters, dtype):
    """Two sets of arrays: gradient, x, a weight."""
    return [[_draw(*shape, seed=s + k, dtype=dtype) for k in (0, 1)] + [abs(_draw(parameters, seed=s + 2, dtype=dtype))] for s in (0, 5)]


_ROWS = ((128, 512, np.float32), (37, 4096, np.float16), (3000, 768, np.float16), (2000, 2048, np.float32))
_SHAPES = (
    ((8, 64, 28, 28), "channels_first"),
    ((8, 28, 28, 64), "channels_last"),
    ((24, 64, 56, 56), "channels_first"),
    ((32, 56, 56, 64), "channels_last"),
)
_PROBLEMS = (
    {  # calls of several launches, small ones and some that fill the card
        f"{build.__name__[1:]} {rows}x{columns}": partial(build, rows, columns, dtype)
        for build in (_row_norm, _loss, _loss_gradient)
        for rows, columns, dtype in _ROWS
    }
    | {
        f"{name} {shape}": partial(_channels, name, shape, layout, **options)
        for name, options in (
            ("batch_norm_train", {}),
            ("batch_norm_train_backward", {}),
            ("group_norm", {"num_groups": 8}),
            ("group_norm_backward", {"num_groups": 8}),
        )
        for shape, layout in _SHAPES
    }
    | {
        f"residual {shape} {dtype.__name__}": partial(_residual, shape, layout, dtype)
        for shape, layout in _SHAPES
        for dtype in (np.float32, np.float16)
    }
)


def _bits(results):
    return [cupy.asnumpy(a).tobytes() for a in leaves(results) if a is not None]


@pytest.mark.parametrize("name", _PROBLEMS)
def test_calls_in_a_row_give_what_single_calls_give(name):
    function, sets = _PROBLEMS[name]()
    expected = []
    for arrays in sets:
        result = function(*arrays)
        cupy.cuda.Device().synchronize()
        expected.append(_bits(result))
    kept = [function(*sets[i % 2]) for i in range(_CALLS)]
    for i, result in enumerate(kept):
        assert _bits(result) == expected[i % 2], f"call {i}"


@pytest.mark.parametrize("name", _PROBLEMS)
def test_in_a_graph(name):
    function, sets = _PROBLEMS[name]()
    expected = [_bits(function(*arrays)) for arrays in sets]
    stream = cupy.cuda.Stream(non_blocking=True)
    pool = cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        for arrays in sets:
            kept = [function(*arrays) for _ in range(4)]
        del kept
        stream.synchronize()
        stream.begin_capture()
        kept = [function(*sets[i % 2]) for i in range(4)]
        graph = stream.end_capture()
    for _ in range(5):
        for result in kept:
            for a in leaves(result):
                if a is not None:
                    a.fill(-1)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert [_bits(r) for r in kept] == [expected[i % 2] for i in range(4)]
