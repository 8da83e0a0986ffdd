"""The launches that a rotary embedding is planned for; needs no GPU."""

import pytest

from dnnarray._call.operation import find
from dnnarray._cuda.attention import rotary, rotary_backward
from dnnarray._spec import Spec
from tests.test_kernels import _DEVICES


def _launches(op, batch, table, layout):
    x = Spec((batch, 3, 5, 8) if layout == "BHSD" else (batch, 5, 3, 8), "float32")
    cos = Spec(table, "float32")
    arrays = (x, x, cos, cos) if op.endswith("_backward") else (x, cos, cos)
    plan = rotary_backward if op.endswith("_backward") else rotary
    return plan.run(find(op).problem(arrays, {"interleaved": False, "layout": layout}), _DEVICES["sm_90a"], True).plans


@pytest.mark.parametrize("op", ["rotary_embedding", "rotary_embedding_backward"])
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_a_table_that_the_batch_shares_may_have_a_batch_axis(op, layout):
    shared = _launches(op, 6, (5, 4), layout)
    assert _launches(op, 6, (1, 5, 4), layout) == shared
    assert _launches(op, 6, (6, 5, 4), layout) != shared
