"""A `Spec` in the place of an array of which no value is read, on a card."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.base import leaves
from tests.registry import CASES
from tests.support import BFLOAT16, FLOAT32
from tests.test_shapes import described, gradient_call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("kept", [False, True], ids=["by_hand", "kept"])
@pytest.mark.parametrize("case", [c for c in CASES if c.gradient], ids=str)
def test_a_spec_stands_for_what_is_not_read(case, kept, dtype):
    if dtype not in case.dtypes:
        return
    backward, arrays, options = gradient_call(case, dtype, kept, cupy.asarray)
    specs = described(backward, arrays, options)
    if not any(isinstance(leaf, dnn.Spec) for leaf in leaves(specs)):
        return
    with dnn.options(deterministic=True):
        expected, found = backward.call(arrays, options), backward.call(specs, options)
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(a), cupy.asnumpy(b))
        assert a.strides == b.strides
