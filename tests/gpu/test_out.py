"""Results into the caller's arrays that lie among other data, in any order: by every algorithm nothing is written
beside them."""

import zlib

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves, tree_map
from tests.gpu.test_engine import _FIRST
from tests.support import FLOAT32, assert_close, call, call_by

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_GUARD = 0x5A


def _among_guards(spec, rng):
    """Memory full of guards, and an array for the result within: its axes in any order, up to three elements before and
    behind each."""
    order = rng.permutation(len(spec.shape))
    before, behind = rng.integers(0, 4, (2, len(order)))
    extents = [spec.shape[i] + before[i] + behind[i] for i in order]
    memory = cupy.full(int(np.prod(extents)) * spec.dtype.itemsize, _GUARD, np.uint8)
    whole = memory.view(spec.dtype).reshape(extents).transpose(np.argsort(order).tolist())
    return memory, whole[tuple(slice(b, b + n) for b, n in zip(before, spec.shape, strict=True))]


@pytest.mark.parametrize("case", [c for c in _FIRST if FLOAT32 in c.dtypes], ids=str)
def test_nothing_is_written_beside_the_results(case):
    rng = np.random.default_rng(zlib.crc32(f"{case} out".encode()))
    arrays = tuple(tree_map(cupy.asarray, a) for a in case.draw(FLOAT32))
    specs = [s for s in dnn.infer(case.op, *arrays, **case.options).outputs if s is not None]
    for algorithm in dnn.algorithms(case.op, *arrays, **case.options):
        expected = leaves(call_by(algorithm.name, case.op, arrays, case.options))
        memory, out = zip(*(_among_guards(spec, rng) for spec in specs), strict=True)
        results = leaves(call_by(algorithm.name, case.op, arrays, case.options, out if len(out) > 1 else out[0]))
        for whole, given, result, right in zip(memory, out, results, expected, strict=True):
            assert result is given
            assert_close(
                cupy.asnumpy(given),
                cupy.asnumpy(right).astype(np.float64),
                case.reduction,
                case.condition,
                algorithm.name,
                algorithm.rounds,
            )
            given[...] = np.zeros((), given.dtype)
            untouched = cupy.full_like(whole, _GUARD)
            places = cupy.ndarray(
                given.shape, given.dtype, untouched.data + (given.data.ptr - whole.data.ptr), given.strides
            )
            places[...] = np.zeros((), given.dtype)
            assert bool((whole == untouched).all()), f"{algorithm.name} wrote beside its result"


@pytest.mark.parametrize("case", [c for c in _FIRST if FLOAT32 in c.dtypes], ids=str)
def test_calls_met_before_write_where_the_caller_says(case):
    """As planned, among guards, an element behind where an allocation begins, and with the caller's scratch memory: by
    the texts of warm calls."""
    rng = np.random.default_rng(zlib.crc32(f"{case} warm".encode()))
    arrays = tuple(tree_map(cupy.asarray, a) for a in case.draw(FLOAT32))
    inferred = dnn.infer(case.op, *arrays, **case.options)
    specs = [s for s in inferred.outputs if s is not None]
    results = [call(case.op, arrays, case.options) for _ in range(3)]
    expected = leaves(results[0])
    shifted = [cupy.empty(int(np.prod(s.shape)) + 1, s.dtype)[1:].reshape(s.shape) for s in specs]
    outs = {
        "planned": [cupy.empty_like(r) for r in expected],
        "shifted": shifted,
        "guards": [_among_guards(s, rng)[1] for s in specs],
    }
    forms = {name: {"out": tuple(out) if isinstance(results[0], tuple) else out[0]} for name, out in outs.items()}
    forms["workspace"] = {"workspace": cupy.empty(max(inferred.workspace, 1), np.uint8)}
    for name, more in forms.items():
        for _ in range(3):
            for array in leaves(more.get("out")):
                array[...] = cupy.zeros((), array.dtype)
            results.append(call(case.op, arrays, case.options | more))
            for actual, right in zip(leaves(results[-1]), expected, strict=True):
                wide = cupy.asnumpy(right).astype(np.float64)
                assert_close(cupy.asnumpy(actual), wide, case.reduction, case.condition, name)
            assert "out" not in more or all(
                a is b for a, b in zip(leaves(results[-1]), leaves(more["out"]), strict=True)
            )
