"""``deterministic=True`` on a card: a thousand repeats of every gradient give the same bits."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from tests.registry import CASES
from tests.support import BFLOAT16, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_REPEATS = 1000
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _normal(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def _places(top, *shape):
    """Indices of which half are the same one: where sums in a changing order would show."""
    drawn = np.random.default_rng(1).integers(0, top, shape)
    return np.where(np.random.default_rng(2).random(shape) < 0.5, 3, drawn)


# Sizes that keep many blocks at work at once; the cases of the generic tests fit in one.
_LARGE = {
    "layer_norm": ((_normal(3000, 1000), _normal(1000), _normal(1000)), {"axis": -1}),
    "rms_norm": ((_normal(700, 5000), _normal(5000)), {"axis": -1}),
    "batch_norm_train": ((_normal(16, 64, 28, 28), _normal(64), _normal(64)), {}),
    "group_norm": ((_normal(8, 64, 28, 28), _normal(64), _normal(64)), {"num_groups": 8}),
    "prelu": ((_normal(32, 64, 30, 30), _normal(64)), {}),
    "bias_activation": ((_normal(5000, 256), _normal(256)), {"activation": "gelu"}),
    "embedding": ((_places(500, 20_000), _normal(500, 64)), {}),
    "grid_sample": ((_normal(2, 16, 40, 40), np.tanh(_normal(2, 90, 90, 2))), {}),
    "interpolate": ((_normal(2, 16, 90, 90),), {"size": (31, 31), "mode": "linear"}),
    "max_pool": ((_normal(8, 16, 57, 57),), {"kernel_size": 3, "stride": 1}),
    "cross_entropy": ((_normal(2000, 777), _places(777, 2000)), {}),
}


def _repeat(once):
    """Call many times and count on the device where bits differ from the first."""
    first = [a for a in leaves(once()) if a is not None]
    different = cupy.zeros((), np.int64)
    for _ in range(_REPEATS):
        for a, b in zip((a for a in leaves(once()) if a is not None), first, strict=True):
            kind = _BITS[a.dtype.itemsize]
            different += (cupy.ascontiguousarray(a).view(kind) != cupy.ascontiguousarray(b).view(kind)).any()
    assert int(different) == 0


def _has_gradient(case):
    from dnnarray._cuda import engine

    try:
        return case.gradient and bool(
            engine.methods(find(f"{find(case.op).base}_backward")) and engine.methods(find(case.op))
        )
    except dnn.UnsupportedError:
        return False


_FIRST = list({c.op: c for c in reversed(CASES) if _has_gradient(c)}.values())


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("case", _FIRST, ids=str)
def test_small_gradients(case, dtype):
    if dtype not in case.dtypes:
        pytest.skip("not of this operation")
    arrays = tuple(tree_map(cupy.asarray, a) for a in case.draw(dtype))
    with dnn.options(deterministic=True):
        output, pullback = dnn.vjp(case.op, *arrays, **case.options)
        head, rest = (output[0], (None,) * (len(output) - 1)) if isinstance(output, tuple) else (output, None)
        grad = cupy.ones_like(head)
        _repeat(lambda: pullback(grad if rest is None else (grad, *rest)))


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", _LARGE)
def test_large_gradients(name, dtype):
    arguments, options = _LARGE[name]
    there = tuple(cupy.asarray(a.astype(dtype) if a.dtype == np.float32 else a) for a in arguments)
    with dnn.options(deterministic=True):
        head = leaves(call(name, there, options))[0]
        grad = cupy.asarray(_normal(*head.shape).astype(head.dtype))
        _repeat(lambda: call(f"{name}_backward", (grad, *there), options))
