"""Every case of every operation, every dtype, every algorithm, against the float64 oracle."""

import numpy as np
import pytest

from dnnarray._call.operation import find, operations
from tests.registry import CASES, FIRST, ORACLES
from tests.stage import new_candidates, new_cases
from tests.support import call, candidates, check_forward, flat

_FORWARD = [op for op in operations().values() if op.name == op.base and not op.name.endswith("_backward")]


@pytest.mark.parametrize("op", _FORWARD, ids=lambda op: op.name)
def test_every_operation_has_an_oracle_and_a_case(op):
    assert op.name in ORACLES
    assert any(case.op == op.name for case in CASES)


@pytest.mark.parametrize(("case", "dtype"), [(c, d) for c in new_cases(CASES) for d in c.dtypes], ids=str)
def test_forward_agrees_with_the_oracle(case, dtype):
    check_forward(case, dtype, ORACLES[find(case.op).base])


def _every_algorithm():
    """All algorithms of each case that has several, but for those that the stage before has had."""
    for case in new_cases(CASES):
        arrays = case.draw(case.dtypes[0])
        if len(candidates(case.op, arrays, case.options)) > 1:
            names = new_candidates(case.op, arrays, case.options)
            yield from ((case, dtype, name) for name in names for dtype in case.dtypes[:2])


@pytest.mark.parametrize(("case", "dtype", "algorithm"), list(_every_algorithm()), ids=str)
def test_every_algorithm_agrees_with_the_oracle(case, dtype, algorithm):
    if algorithm not in candidates(case.op, case.draw(dtype), case.options):
        pytest.skip(f"{algorithm} does not do {case} in {dtype}")
    check_forward(case, dtype, ORACLES[find(case.op).base], algorithm)


@pytest.mark.parametrize("case", new_cases(FIRST), ids=str)
def test_inputs_are_not_changed_and_repeats_give_the_same_bits(case):
    arrays = case.draw(case.dtypes[0])
    first = flat(call(case.op, arrays, case.options))
    second = flat(call(case.op, arrays, case.options))
    for a, b in zip(flat(arrays), flat(case.draw(case.dtypes[0])), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.view(np.uint8) if a.ndim else a, b.view(np.uint8) if b.ndim else b)
