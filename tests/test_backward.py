"""Every gradient against a central finite difference of its forward, and its form in every dtype."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import operations
from tests.registry import CASES
from tests.stage import new_cases
from tests.support import FLOAT64, as_float64, assert_close, check_gradient, flat

_DIFFERENTIABLE = [c for c in CASES if c.gradient and FLOAT64 in c.dtypes]
_BACKWARD = [op.name for op in operations().values() if op.name.endswith("_backward") and op.name == op.base]


@pytest.mark.parametrize("name", _BACKWARD)
def test_every_backward_is_covered_by_a_case(name):
    assert any(operations()[c.op].base == name.removesuffix("_backward") for c in _DIFFERENTIABLE)


@pytest.mark.parametrize("case", new_cases(_DIFFERENTIABLE), ids=str)
def test_gradient_agrees_with_finite_differences(case):
    check_gradient(case)


@pytest.mark.parametrize(
    ("case", "dtype"), [(c, d) for c in new_cases(_DIFFERENTIABLE) for d in c.dtypes if d != FLOAT64], ids=str
)
def test_gradient_agrees_with_float64(case, dtype):
    """The float64 gradient is held to finite differences above; the other dtypes are held to it, on the same rounded
    inputs."""
    arrays = case.draw(dtype)
    output, pullback = dnn.vjp(case.op, *arrays, **case.options)
    _, exact_pullback = dnn.vjp(case.op, *as_float64(arrays), **case.options)
    rng = np.random.default_rng(3)
    head = output[0] if isinstance(output, tuple) else output
    grad = rng.standard_normal(head.shape).astype(head.dtype)
    absent = (None,) * (len(output) - 1) if isinstance(output, tuple) else None
    gradients = pullback((grad, *absent) if absent is not None else grad)
    wide = grad.astype(np.float64)
    expected = exact_pullback((wide, *absent) if absent is not None else wide)
    for actual, exact in zip(flat(gradients), flat(expected), strict=True):
        assert_close(actual, exact, max(case.reduction, exact.size), case.condition, f"{case}")
