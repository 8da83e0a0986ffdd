"""Scratch memory: every algorithm of the CPU engine does with the bytes that it declares, wherever they begin and
whatever they hold, and touches none around."""

import mmap
import random
from functools import partial

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.introspect import question
from dnnarray._call.operation import find
from dnnarray._cpu import engine
from dnnarray._cpu.compiled import Compiled, compile_now, compiler
from dnnarray._options import Options
from dnnarray._problems.base import leaves
from tests import guarded
from tests.registry import CASES, ORACLES
from tests.stage import adds, new_cases
from tests.support import FLOAT16, FLOAT32, FLOAT64, as_float64, assert_close, call, call_by, flat, gradient_call

_GUARD, _POISON = 0xA5, 0xFF  # the second is NaN in every floating dtype and -1 in integers


def _workspace(size, at_end):
    """So many poisoned bytes up to the end of pages, or from their beginning, and the guards in the rest of them."""
    pages = guarded.beside_a_page(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE, at_end)
    pages[:] = _GUARD
    rest = len(pages) - size
    found, beside = (pages[rest:], pages[:rest]) if at_end else (pages[:size], pages[size:])
    found[:] = _POISON
    return found, beside


def _methods(asked):
    """The algorithms that may run a call and the stage before has not had, compiled ones once they are compiled."""
    table, device = [m for m in engine.methods(asked.operation) if adds(m)], engine.device()
    for method in table:
        if isinstance(method.run, Compiled):
            compile_now([method], asked.problem, device, method.name)
        if method.rejects(asked.problem, device) is None:
            yield method


def _check(op, arrays, options, exact, reduction, condition=1.0):
    """Each algorithm with scratch memory gives the results of `exact` in memory that is guarded. Tells all that may run
    the call."""
    asked = question(op, arrays, dict(options))
    found = [(m, m.workspace(asked.problem)) for m in _methods(asked)]
    expected = flat(exact()) if any(size for _, size in found) else []
    for method, size in found:
        prepared = engine.Prepared(asked.operation, asked.problem, method, size, Options(), [method])
        for at_end in (False, True) if size else ():
            workspace, beside = _workspace(size, at_end)
            note = f"{op} by {method.name} {asked.problem.legend()} {options}, {size} bytes, at the end: {at_end}"
            results = prepared.call(asked.arrays, asked.runtime, None, workspace)
            assert (beside == _GUARD).all(), note
            for result, right in zip(flat(results), expected, strict=True):
                assert_close(result, right, reduction, condition, note, method.rounds)
    return {(op, method.name) for method, _ in found}


_DTYPES = (FLOAT64, FLOAT32, FLOAT16)


_NEW = [(c, d) for c in new_cases(CASES) for d in _DTYPES if d in c.dtypes]


@pytest.mark.parametrize(("case", "dtype"), _NEW, ids=str)
def test_the_declared_bytes_are_enough(case, dtype):
    arrays = case.draw(dtype)
    oracle = ORACLES[find(case.op).base]
    _check(
        case.op,
        arrays,
        case.options,
        lambda: oracle(*as_float64(arrays), **case.options),
        case.reduction,
        case.condition,
    )


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c, d in _NEW if c.gradient], ids=str)
def test_the_declared_bytes_are_enough_for_the_gradient(case, dtype):
    """The gradients in float64 are held to finite differences elsewhere."""
    found = gradient_call(case, case.draw(dtype))
    if found is None:
        pytest.skip("it has no gradient")
    op, arrays, options = found
    longest = max(a.size for a in leaves(arrays))
    _check(
        op, arrays, options, lambda: call(op, as_float64(arrays), options), max(case.reduction, longest), case.condition
    )


def _convolution(rng):
    """A convolution or a transposed one: shapes of image and weight, options."""
    rank = rng.choice((1, 2, 2, 2, 3))
    groups = rng.choice((1, 1, 1, 2, 5))
    c, k = (groups * (1 if groups == 5 else rng.choice((1, 2, 3, 5, 9, 16, 17))) for _ in range(2))
    space = tuple(rng.choice((1, 2, 3, 5, 8, 11, 12) if rank > 1 else (1, 5, 30, 4000)) for _ in range(rank))
    window = (3,) * rank if rng.random() < 0.3 else tuple(rng.choice((1, 1, 2, 3, 5)) for _ in range(rank))
    options = {
        "stride": rng.choice((1, 1, 2, 3)),
        "dilation": rng.choice((1, 1, 2)),
        "padding": rng.choice((0, 1, 2)),
        "groups": groups,
    }
    options |= {
        "layout": rng.choice(("channels_first", "channels_last")),
        "activation": rng.choice((None, "silu", "tanh")),
    }
    name, n = rng.choice(("conv", "conv_transpose")), rng.choice((1, 1, 2, 4))
    outer, inner = (k, c // groups) if name == "conv" else (c, k // groups)
    last = options["layout"] == "channels_last"
    return (
        name,
        (n, *space, c) if last else (n, c, *space),
        (outer, *window, inner) if last else (outer, inner, *window),
        options,
    )


def _convolutions(count, seed, dtype):
    """So many of them, each with all its gradients and, where it is no transposed one, with each gradient alone."""
    rng, data = random.Random(seed), np.random.default_rng(seed)
    while count:
        name, *shapes, options = _convolution(rng)
        try:
            result = dnn.infer(name, *(dnn.Spec(shape, dtype) for shape in shapes), **options).output.shape
        except dnn.ShapeError:
            continue
        count -= 1
        x, weight, grad = (data.standard_normal(shape).astype(dtype) for shape in (*shapes, result))
        yield name, (x, weight), options
        yield f"{name}_backward", (grad, x, weight), options
        alone = {n: v for n, v in options.items() if n != "activation"}
        yield f"{name}_backward", (grad, x, weight), alone | {"needs": (("x", "weight")[count % 2],)}
        if name == "conv":
            yield "conv_backward_input", (grad, weight), alone | {"input_shape": x.shape}
            yield "conv_backward_weight", (grad, x), alone | {"weight_shape": weight.shape}


@pytest.mark.parametrize("dtype", (FLOAT64, FLOAT32), ids=str)
def test_the_declared_bytes_hold_all_maps_of_a_convolution(dtype):
    """A gradient may run three maps, the forward for its activation among them."""
    met = set()
    for op, arrays, options in _convolutions(120, 3, dtype):
        longest = max(a.size for a in arrays)
        met |= _check(op, arrays, options, partial(call_by, "direct", op, as_float64(arrays), options), longest)
    operations = {op for op, _ in met}
    new = {(op, m) for op in operations for m in engine.methods(find(op)) if adds(m) and _possible(op, m, dtype)}
    assert met
    assert {(op, method.name) for op, method in new} <= met


def _possible(op, method, dtype):
    """Whether there is such an algorithm, and this machine has it."""
    if isinstance(method.run, Compiled):
        return (compiler.missing() or method.run.target(dtype.name)) is None
    weighs = op in ("conv_backward_weight", "conv_backward", "conv_transpose_backward")
    return not (weighs and method.name in ("winograd", "fft_tiled"))  # they have no gradient of the weight


@pytest.mark.parametrize("dtype", (FLOAT64, FLOAT32), ids=str)
def test_the_declared_bytes_hold_the_definition_that_nan_is_left_to(dtype):
    for op, arrays, options in _convolutions(40, 4, dtype):
        arrays[-1].flat[arrays[-1].size // 2] = np.nan
        longest = max(a.size for a in arrays)
        _check(op, arrays, options, partial(call_by, "direct", op, as_float64(arrays), options), longest)


@pytest.mark.skipif(compiler.missing() is not None, reason="channel_lanes is compiled by Numba")
def test_the_forward_of_a_gradient_may_have_more_channels_than_its_images():
    """The public call allocates what `workspace` tells."""
    rng = np.random.default_rng(5)
    arrays = tuple(rng.standard_normal(shape) for shape in ((1, 9, 3, 3), (1, 1, 1, 1), (1, 9, 3, 3)))
    expected = dnn.conv_transpose_backward(*arrays, activation="silu", algorithm="direct")
    result = dnn.conv_transpose_backward(*arrays, activation="silu", algorithm="channel_lanes")
    np.testing.assert_allclose(result.x, expected.x, rtol=1e-12)
    np.testing.assert_allclose(result.weight, expected.weight, rtol=1e-12)
    x, weight = rng.standard_normal((1, 3, 5, 7)), rng.standard_normal((17, 3, 3, 3))
    _, pullback = dnn.vjp("conv", x, weight, padding=1, activation="silu", algorithm="channel_lanes")
    grad = rng.standard_normal((1, 17, 5, 7))
    by_definition = dnn.conv_backward(grad, x, weight, padding=1, activation="silu", algorithm="direct")
    for actual, right in zip(pullback(grad), by_definition, strict=False):
        np.testing.assert_allclose(actual, right, rtol=1e-12, atol=1e-12)
