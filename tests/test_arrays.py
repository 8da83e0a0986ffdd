"""Any memory, any namespace: strides, byte order, read-only, out=, workspace=, infer, torch, JAX, array-api-strict."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.arrays import native_byte_order, spec_of
from dnnarray._call.operation import find, lookup
from dnnarray._problems.base import leaves, tree_map
from dnnarray._select import tuning
from dnnarray._spec import Spec
from tests.registry import CASES, FIRST
from tests.stage import new_candidates, new_cases
from tests.support import FLOAT32, FLOAT64, assert_close, call, call_by, flat

_FIRST = new_cases(FIRST)
_FLOAT_CASES = [c for c in _FIRST if FLOAT64 in c.dtypes]


def _fortran(a):
    return np.array(a, order="F")  # np.asfortranarray would make a 0-d array 1-d


def _every_other(a):
    wide = np.zeros(tuple(2 * n for n in a.shape), a.dtype)
    wide[tuple(slice(None, None, 2) for _ in a.shape)] = a
    return wide[tuple(slice(None, None, 2) for _ in a.shape)]


def _backwards(a):
    return np.flip(np.flip(a).copy())


def _swapped(a):
    return a.astype(a.dtype.newbyteorder()) if a.dtype.itemsize > 1 else a


def _read_only(a):
    b = a.copy()
    b.flags.writeable = False
    return b


def _channels_last_memory(a):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) if a.ndim > 2 else a


def _unaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)
    view = raw[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


_MEMORIES = [_fortran, _every_other, _backwards, _swapped, _read_only, _channels_last_memory, _unaligned]


@pytest.mark.parametrize("memory", _MEMORIES, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("case", _FLOAT_CASES, ids=str)
def test_any_memory_gives_the_same_result(case, memory):
    arrays = case.draw(FLOAT64)
    expected = flat(call(case.op, arrays, case.options))
    actual = flat(call(case.op, tuple(tree_map(memory, a) for a in arrays), case.options))
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, case.reduction, case.condition)


@pytest.mark.parametrize("memory", _MEMORIES, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("case", [c for c in _FLOAT_CASES if c.gradient], ids=str)
def test_any_memory_gives_the_same_gradient(case, memory):
    arrays = case.draw(FLOAT64)
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    head = output[0] if isinstance(output, tuple) else output
    grad = np.random.default_rng(1).standard_normal(head.shape)
    absent = (None,) * (len(output) - 1) if isinstance(output, tuple) else None
    expected = flat(pullback((grad, *absent) if absent is not None else grad))
    _, other = dnn.vjp(case.op, *(tree_map(memory, a) for a in arrays), **case.options)
    moved = memory(grad)
    for a, e in zip(flat(other((moved, *absent) if absent is not None else moved)), expected, strict=True):
        assert_close(a, e, max(case.reduction, e.size), case.condition)


def _forward_and_gradient(case):
    """The calls of a case: name, arrays, options."""
    arrays = case.draw(FLOAT64)
    yield case.op, arrays, case.options
    backward = lookup(f"{case.op}_backward")
    if backward is None or not case.gradient:
        return
    rng = np.random.default_rng(2)
    grads = tuple(rng.standard_normal(a.shape) for a in flat(call(case.op, arrays, case.options)))
    named = dict(zip(find(case.op).arrays, arrays, strict=False))
    of_backward = (grads if "grad" in backward.nested else grads[0], *(named.get(name) for name in backward.arrays[1:]))
    yield (
        backward.name,
        of_backward,
        {n: v for n, v in case.options.items() if n in (*backward.arrays, *backward.defaults)},
    )


@pytest.mark.parametrize(
    "memory", [_fortran, _every_other, _backwards, _unaligned], ids=lambda f: f.__name__.strip("_")
)
@pytest.mark.parametrize("case", _FLOAT_CASES, ids=str)
def test_every_algorithm_writes_into_any_memory_and_nothing_beside(case, memory):
    for op, arrays, options in _forward_and_gradient(case):
        expected = flat(call(op, arrays, options))
        moved = tuple(tree_map(memory, a) for a in arrays)
        for algorithm in new_candidates(op, moved, options):
            out = tuple(np.asarray(memory(np.full(e.shape, 99).astype(e.dtype))) for e in expected)
            around = [_beside(o) for o in out]
            call_by(algorithm, op, moved, options, out if len(out) > 1 else out[0])
            for a, e, before in zip(out, expected, around, strict=True):
                assert_close(a, e, max(case.reduction, e.size), case.condition, f"{op} {algorithm}")
                np.testing.assert_array_equal(_beside(a), before)


def _beside(array):
    """What the memory of an array holds beside its elements."""
    whole = array if array.base is None else array.base
    copy, elements = whole.copy(), array.copy()
    array[...] = 0
    beside = whole.copy()
    array[...] = elements
    assert np.array_equal(whole, copy, equal_nan=True)
    return beside


@pytest.mark.parametrize("case", new_cases(CASES), ids=str)
def test_infer_tells_shapes_and_dtypes(case):
    arrays = case.draw(case.dtypes[0])
    specs = tuple(tree_map(lambda a: Spec(a.shape, a.dtype), a) for a in arrays)
    inferred = [s for s in dnn.infer(case.op, *specs, **case.options).outputs if s is not None]
    results = flat(call(case.op, arrays, case.options))
    assert [(s.shape, s.dtype) for s in inferred] == [(r.shape, r.dtype) for r in results]


@pytest.mark.parametrize("case", _FIRST, ids=str)
def test_out_and_workspace_receive_the_result(case):
    arrays = case.draw(case.dtypes[0])
    scratch = np.empty(dnn.infer(case.op, *arrays, **case.options).workspace, np.uint8)
    expected = flat(call(case.op, arrays, case.options | {"workspace": scratch.copy()}))
    out = tuple(np.full(e.shape, 99).astype(e.dtype) for e in expected)
    result = call(case.op, arrays, case.options | {"out": out if len(out) > 1 else out[0], "workspace": scratch})
    assert all(a is b for a, b in zip(leaves(result), out, strict=True))
    for a, e in zip(out, expected, strict=True):
        np.testing.assert_array_equal(a, e)


def test_a_remembered_call_takes_the_workspace_that_infer_tells_now(monkeypatch):
    x, weight = np.ones((1, 3, 11, 13)), np.ones((4, 3, 3, 3))
    expected = dnn.conv(x, weight)
    by_size = sorted(dnn.algorithms("conv", x, weight), key=lambda a: a.workspace)
    for fastest in (by_size[-1], by_size[0]):  # as if they had been measured
        monkeypatch.setattr(tuning, "measured", lambda *asked, name=fastest.name: {name: 1e-9})
        scratch = np.empty(dnn.infer("conv", x, weight).workspace, np.uint8)
        np.testing.assert_allclose(dnn.conv(x, weight, workspace=scratch), expected, rtol=1e-12)


@pytest.mark.parametrize("case", _FIRST, ids=str)
def test_out_is_checked(case):
    arrays = case.draw(case.dtypes[0])
    right = [np.empty(r.shape, r.dtype) for r in flat(call(case.op, arrays, case.options))]

    def attempt(first):
        out = (first, *right[1:]) if len(right) > 1 else first
        return call(case.op, arrays, case.options | {"out": out})

    with pytest.raises(dnn.ShapeError, match=f"{case.op}: out"):
        attempt(np.empty((*right[0].shape, 2), right[0].dtype))
    with pytest.raises(dnn.DTypeError, match=f"{case.op}: out"):
        attempt(np.empty(right[0].shape, np.complex64))
    with pytest.raises(dnn.OptionError, match="read-only"):
        attempt(_read_only(right[0]))


def _torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.from_numpy, lambda t: t.numpy(), torch.Tensor


def _jax():
    jax = pytest.importorskip("jax", reason="jax is not installed")
    return jax.numpy.asarray, np.asarray, jax.Array


def _strict():
    xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    return xp.asarray, np.from_dlpack, type(xp.asarray(1))


@pytest.mark.parametrize("namespace", [_torch, _jax, _strict], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("case", [c for c in _FIRST if FLOAT32 in c.dtypes], ids=str)
def test_arrays_of_any_namespace_come_back_in_it(case, namespace):
    there, back, kind = namespace()
    arrays = case.draw(FLOAT32)
    foreign = tuple(tree_map(lambda a: there(a), a) for a in arrays)
    result = leaves(call(case.op, foreign, case.options))
    assert all(isinstance(r, kind) for r in result)
    for r, e in zip(result, flat(call(case.op, arrays, case.options)), strict=True):
        np.testing.assert_array_equal(back(r), e)


@pytest.mark.parametrize("case", _FIRST, ids=str)
def test_lists_and_mixed_namespaces_are_refused(case):
    arrays = case.draw(case.dtypes[0])
    with pytest.raises(TypeError, match=case.op):
        call(case.op, (arrays[0].tolist(), *arrays[1:]), case.options)
    if sum(isinstance(a, np.ndarray) for a in arrays) > 1:
        xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
        first = next(i for i, a in enumerate(arrays) if isinstance(a, np.ndarray))
        mixed = tuple(
            xp.asarray(a) if i == first and a.dtype in (FLOAT64, FLOAT32) else a for i, a in enumerate(arrays)
        )
        if mixed[first] is not arrays[first]:
            with pytest.raises(dnn.ArrayTypeError, match=find(case.op).name):
                call(case.op, mixed, case.options)


def test_byte_swapped_half_types_are_converted_on_every_call():
    x = np.linspace(-3, 3, 99).astype(np.float16)
    for _ in range(3):
        np.testing.assert_array_equal(dnn.gelu(_swapped(x)), dnn.gelu(x))


@pytest.mark.parametrize(
    "memory", [_fortran, _every_other, _backwards, _channels_last_memory, lambda a: np.broadcast_to(a[:1], a.shape)]
)
def test_a_byte_swapped_array_is_described_as_the_copy_that_a_call_takes(memory):
    x = memory(np.arange(24.0, dtype=np.float32).reshape(2, 2, 3, 2))
    swapped = _swapped_in_place(x)
    assert spec_of(swapped) == spec_of(native_byte_order((swapped,))[0])
    assert dnn.infer("relu", swapped).outputs[0] == spec_of(dnn.relu(swapped))


def _swapped_in_place(x):
    """Byte-swapped values in the memory order of `x`, negative and zero strides included."""
    lowest = np.lib.array_utils.byte_bounds(x)[0] - x.ctypes.data
    memory = np.zeros(np.lib.array_utils.byte_bounds(x)[1] - x.ctypes.data - lowest, np.uint8)
    swapped = np.ndarray(x.shape, x.dtype.newbyteorder(), memory, -lowest, x.strides)
    swapped[...] = x
    return swapped


def test_the_workspace_that_infer_tells_is_enough_for_byte_swapped_arrays_of_any_order():
    """A sequence that runs backwards is copied in the order of its axes, and so is the gradient, which then needs
    scratch memory."""
    rng = np.random.default_rng(0)
    x, h, c = (rng.standard_normal(shape) for shape in ((17, 5), (17, 4), (17, 4)))
    weights = dnn.RNNWeights(rng.standard_normal((16, 5)), rng.standard_normal((16, 4)), None, None)
    turned = _swapped_in_place(np.flip(np.asfortranarray(np.flip(x))))
    arrays = ((h, None), turned, weights, h, c)
    size = dnn.infer("lstm_cell_backward", *arrays, algorithm="steps").workspace
    given = call_by("steps", "lstm_cell_backward", arrays, {}, workspace=np.empty(size, np.uint8))
    for result, right in zip(
        flat(given), flat(call("lstm_cell_backward", ((h, None), x, weights, h, c), {})), strict=True
    ):
        np.testing.assert_allclose(result, right, rtol=1e-12)


def test_out_that_cannot_be_written_through_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(dnn.OptionError, match="relu: out is a tensor whose memory holds other values"):
        dnn.relu(torch.ones(4), out=torch._neg_view(torch.zeros(4)))
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with pytest.raises(dnn.OptionError, match="relu: out is an array of JAX"):
        dnn.relu(jax.numpy.ones(4), out=jax.numpy.zeros(4))


class _Exporter:
    """What speaks DLPack and nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_an_array_that_knows_of_no_namespace_gives_the_engines_own():
    x, weight = np.array([[-1.0, 2.0]], np.float32), np.ones((3, 2), np.float32)
    y = dnn.linear(_Exporter(x), _Exporter(weight))
    assert type(y) is np.ndarray
    assert np.array_equal(y, dnn.linear(x, weight))
    out = np.zeros((1, 3), np.float32)
    received = _Exporter(out)
    assert dnn.linear(_Exporter(x), _Exporter(weight), out=received) is received
    assert np.array_equal(out, y)
    assert dnn.infer("relu", _Exporter(x)).output.shape == (1, 2)
    _, pullback = dnn.vjp("relu", _Exporter(x))
    assert np.array_equal(pullback(_Exporter(np.ones_like(x)))[0], [[0, 1]])
    with pytest.raises(dnn.ArrayTypeError, match="one namespace"):
        dnn.linear(_Exporter(x), weight)


def test_messages_name_the_argument_and_a_way_that_its_library_has():
    torch = pytest.importorskip("torch")
    with pytest.raises(dnn.DTypeError, match=r"relu: x is int32; expected float64.*in PyTorch with \.to"):
        dnn.relu(torch.ones(3, dtype=torch.int32))
    with pytest.raises(dnn.ArrayTypeError, match=r"relu: out: .*pass its \.detach\(\)"):
        dnn.relu(torch.ones(3), out=torch.ones(3, requires_grad=True))
