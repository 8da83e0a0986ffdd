"""Models of ONNX on a card: ONNX's own tests of backends, and models whose values stay on the device."""

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from dnnarray.interop import onnx as door  # noqa: E402
from tests.interop.onnx_official import run_official  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not door.supports_device("CUDA"), reason="needs a card")]


@pytest.mark.filterwarnings("ignore")
def test_the_official_tests_of_backends_pass(tmp_path, monkeypatch):
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    passed, wrong = run_official("CUDA")
    assert not wrong
    assert sum(passed.values()) > 1500, passed


def _model():
    """A convolution, whose result is reshaped by its own shape, and a layer."""
    rng = np.random.default_rng(0)
    held = {
        "w": rng.standard_normal((4, 3, 3, 3)),
        "m": rng.standard_normal((4, 5)),
        "last": np.array([4, -1]),
        "one": np.array([1]),
        "zero": np.array([0]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["n"]),
        helper.make_node("Concat", ["n", "last"], ["to"], axis=0),
        helper.make_node("Reshape", ["c", "to"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "m"], ["y"]),
    ]
    weights = [numpy_helper.from_array(a if a.dtype.kind == "i" else a.astype(np.float32), n) for n, a in held.items()]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 3, 8, 8]), ("y", ["N", 64, 5]))
    )
    return helper.make_model(
        helper.make_graph(nodes, "graph", [x], [y], weights), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )


def test_results_stay_on_the_device_and_agree_with_the_processor():
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = door.run(_model(), [x])
    prepared = door.prepare(_model(), "CUDA")
    (found,) = prepared.run([cupy.asarray(x)])
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=1e-4, atol=1e-5)
    (back,) = prepared.run([x])
    assert isinstance(back, np.ndarray)
    np.testing.assert_array_equal(back, cupy.asnumpy(found))
    assert isinstance(door.run(_model(), [cupy.asarray(x)])[0], cupy.ndarray)
