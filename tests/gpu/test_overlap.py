"""Launches that begin while the one before them ends: nothing is read before it is there, or written while it is read,
in a stream and in a CUDA graph."""

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
    return lambda g, x, w: dnn.cross_entropy_backward(g[0, 0], x, labels, weight=w), _sets(
        (rows, columns), columns, dtype
    )


def _channels(name, shape, layout, **options):
    function, gradient = getattr(dnn, name), name.endswith("backward")
    return lambda g, x, w: function(*(g,) * gradient, x, weight=w, bias=w, layout=layout, **options), _sets(
        shape, 64, np.float32
    )


def _residual(shape, layout, dtype):
    """Whose gradient the sums write, for the last pass to read."""
    options = {"activation": "relu", "layout": layout}
    return lambda g, x, w: dnn.batch_norm_train_backward(g, x, w, w, residual=g, **options), _sets(shape, 64, dtype)


def _sets(shape, parameters, dtype):
    """Two sets of arrays: gradient, x, a weight."""
    return [
        [_draw(*shape, seed=s + k, dtype=dtype) for k in (0, 1)] + [abs(_draw(parameters, seed=s + 2, dtype=dtype))]
        for s in (0, 5)
    ]


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


# --- small programs of one launch, which begin while whatever stands before them ends ---


def _written_by_copies(target, source, stream, other):
    cupy.cuda.runtime.memcpyAsync(
        target.data.ptr, source.data.ptr, target.nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, stream.ptr
    )


def _filled_and_added(target, source, stream, other):
    cupy.cuda.runtime.memsetAsync(target.data.ptr, 0, target.nbytes, stream.ptr)
    cupy.add(target, source, out=target)


def _zeroed_before_and_written_by_us(target, source, stream, other):
    dnn.relu(source, out=target)
    cupy.cuda.runtime.memsetAsync(target.data.ptr, 0, target.nbytes // 2, stream.ptr)


def _by_a_kernel_of_others(target, source, stream, other):
    cupy.copyto(target, source)


def _on_another_stream(target, source, stream, other):
    begin, end = cupy.cuda.Event(disable_timing=True), cupy.cuda.Event(disable_timing=True)
    begin.record(stream)
    other.wait_event(begin)
    with other:
        cupy.copyto(target, source)
        end.record(other)
    stream.wait_event(end)


def _use(a, b, weight, result, settle):
    """Each of two arrays is written again while the launch before may still read it."""
    for call in (
        partial(dnn.relu, a, out=b),
        partial(dnn.layer_norm, b, weight, weight, out=a),
        partial(dnn.softmax, a, axis=-1, out=b),
        partial(dnn.rms_norm, b, weight, out=result),
    ):
        settle()
        call()


@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize(
    "write",
    [
        _written_by_copies,
        _filled_and_added,
        _zeroed_before_and_written_by_us,
        _by_a_kernel_of_others,
        _on_another_stream,
    ],
)
@pytest.mark.parametrize("shape", [(128, 512), (37, 256), (2000, 512)])
def test_what_others_write_is_there(shape, write, graph):
    """Copies, fills, kernels of other libraries and events stand before launches that begin early."""
    sources = [abs(_draw(*shape, seed=s)) for s in range(4)]
    weight = abs(_draw(shape[1], seed=9))
    a, b = cupy.empty_like(sources[0]), cupy.empty_like(sources[0])
    results = [cupy.empty_like(a) for _ in sources]
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)

    def everything(settle=lambda: None):
        for source, result in zip(sources, results, strict=True):
            write(a, source, stream, other)
            _use(a, b, weight, result, settle)

    cupy.cuda.Device().synchronize()  # what was drawn above: these streams do not wait for the default one
    with stream:
        everything(settle=stream.synchronize)
        stream.synchronize()
        expected = [_bits(r) for r in results]
        again = everything
        if graph:
            stream.begin_capture()
            everything()
            captured = stream.end_capture()
            again = partial(captured.launch, stream)
        for _ in range(20):
            for r in results:
                r.fill(-1)
            again()
            stream.synchronize()
            assert [_bits(r) for r in results] == expected


def test_a_network_of_small_launches():
    x, w, g = _draw(4, 64, 14, 14), abs(_draw(64, seed=1)), _draw(4, 16, 1, 1)

    def network():
        y = dnn.batch_norm_train(x, w, w)[0]
        y = dnn.max_pool(dnn.pixel_shuffle(y, factor=2), kernel_size=3, stride=1, padding=1)
        y = dnn.avg_pool(y, kernel_size=2)
        return y, dnn.adaptive_avg_pool(y, output_size=1), dnn.adaptive_avg_pool_backward(g, y, output_size=1)

    expected = _bits(network())
    kept = [network() for _ in range(_CALLS)]
    assert all(_bits(found) == expected for found in kept)


def test_the_default_stream_waits_for_the_others():
    """Streams that block go in order with it, without events."""
    sources, weight = [abs(_draw(128, 512, seed=s)) for s in range(4)], abs(_draw(512, seed=9))
    a, b, busy = (cupy.empty_like(sources[0]) for _ in range(3))
    results, stream = [cupy.empty_like(a) for _ in sources], cupy.cuda.Stream()

    def everything(settle):
        for source, result in zip(sources, results, strict=True):
            with stream:
                for _ in range(20):
                    cupy.add(busy, source, out=busy)
                cupy.copyto(a, source)
            _use(a, b, weight, result, settle)

    everything(cupy.cuda.Device().synchronize)
    cupy.cuda.Device().synchronize()
    expected = [_bits(r) for r in results]
    for _ in range(20):
        for r in results:
            r.fill(-1)
        everything(lambda: None)
        assert [_bits(r) for r in results] == expected
