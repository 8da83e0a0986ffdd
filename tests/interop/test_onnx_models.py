"""`dnnarray.interop.onnx`: whole models beside ONNX's reference in float64, and what ONNX's own tests leave out."""

import math
import warnings

import numpy as np
import pytest

import dnnarray as dnn

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from dnnarray.interop import onnx as door  # noqa: E402

FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


class Builder:
    """Collects nodes and weights of a model in float64."""

    def __init__(self, seed=0):
        self.rng, self.nodes, self.weights = np.random.default_rng(seed), [], []

    def hold(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape):
        return self.hold(self.rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:]))))

    def add(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def model(self, inputs, outputs, opset=23):
        infos = [helper.make_tensor_value_info(n, code, shape) for n, code, shape in inputs]
        results = [helper.make_tensor_value_info(*o, *[None] * (3 - len(o))) for o in outputs]
        graph = helper.make_graph(self.nodes, "model", infos, results, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)  # which gives the outputs their shapes


def _beside_the_reference(model, inputs, tolerance=1e-10):
    found = door.prepare(model).run(inputs)
    expected = ReferenceEvaluator(model).run(None, inputs)
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)
    return found


def _block(b, x, inputs, channels, stride):
    def normed(x, features):
        statistics = (
            b.weight(features),
            b.weight(features),
            b.weight(features),
            b.hold(b.rng.uniform(0.5, 2, features)),
        )
        return b.add("BatchNormalization", x, *statistics)

    y = b.add("Conv", x, b.weight(channels, inputs, 3, 3), strides=[stride] * 2, pads=[1, 1, 1, 1])
    y = b.add("Relu", normed(y, channels))
    y = normed(b.add("Conv", y, b.weight(channels, channels, 3, 3), pads=[1, 1, 1, 1]), channels)
    if stride > 1 or inputs != channels:
        x = normed(b.add("Conv", x, b.weight(channels, inputs, 1, 1), strides=[stride] * 2), channels)
    return b.add("Relu", b.add("Add", x, y))


def _resnet():
    b = Builder()
    x = b.add("Relu", b.add("Conv", "x", b.weight(8, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]))
    x = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for inputs, channels, stride in ((8, 8, 1), (8, 12, 2), (12, 12, 1)):
        x = _block(b, x, inputs, channels, stride)
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    y = b.add("Softmax", b.add("Gemm", x, b.weight(10, 12), b.weight(10), transB=1), axis=-1)
    return b.model([("x", DOUBLE, ["N", 3, 32, 32])], [(y, DOUBLE)])


def test_a_residual_network():
    _beside_the_reference(_resnet(), {"x": np.random.default_rng(1).standard_normal((2, 3, 32, 32))})


def _tagger():
    """An embedding, an LSTM, and a layer on each step; batch and steps are read from the shape as exporters do."""
    b = Builder()
    x = b.add("Gather", b.weight(20, 6), "tokens")
    x = b.add("Transpose", x, perm=[1, 0, 2])
    y, h, c = b.add("LSTM", x, b.weight(1, 20, 6), b.weight(1, 20, 5), b.weight(1, 40), outputs=3, hidden_size=5)
    shape = b.add("Shape", y)
    steps = b.add("Slice", shape, b.hold(np.array([0])), b.hold(np.array([1])))
    y = b.add("Reshape", y, b.add("Concat", steps, b.hold(np.array([-1, 5])), axis=0))
    scores = b.add("Add", b.add("MatMul", y, b.weight(5, 4)), b.weight(4))
    return b.model([("tokens", INT64, ["N", "T"])], [(b.add("LogSoftmax", scores), DOUBLE), (h, DOUBLE), (c, DOUBLE)])


def test_a_tagger():
    model = _tagger()
    for shape in ((3, 7), (1, 2)):
        _beside_the_reference(model, {"tokens": np.random.default_rng(2).integers(0, 20, shape)})


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers_in_every_direction_with_lengths(op, direction):
    """The reference has no lengths: sequences one by one, each of its own length, are the oracle."""
    gates, directions = {"RNN": 1, "GRU": 3, "LSTM": 4}[op], 2 if direction == "bidirectional" else 1
    b = Builder()
    weights = (
        b.weight(directions, gates * 4, 3),
        b.weight(directions, gates * 4, 4),
        b.weight(directions, 2 * gates * 4),
    )
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    y, h = b.add(op, "x", *weights, "lengths", outputs=2, hidden_size=4, direction=direction, **more)
    prepared = door.prepare(
        b.model([("x", DOUBLE, ["T", "N", 3]), ("lengths", TensorProto.INT32, ["N"])], [(y, DOUBLE), (h, DOUBLE)])
    )
    x, lengths = np.random.default_rng(3).standard_normal((5, 3, 3)), np.array([5, 2, 4], np.int32)
    y, h = prepared.run([x, lengths])
    for i, n in enumerate(lengths):
        alone = prepared.run([x[:n, i : i + 1], np.array([n], np.int32)])
        np.testing.assert_allclose(y[:n, :, i : i + 1], alone[0], rtol=1e-12)
        np.testing.assert_array_equal(y[n:, :, i], 0)
        np.testing.assert_allclose(h[:, i : i + 1], alone[1], rtol=1e-12)


def _transformer(heads=4, width=16):
    b = Builder()
    normed = b.add("LayerNormalization", "x", b.weight(width), b.weight(width))
    q, k, v = (b.add("Add", b.add("MatMul", normed, b.weight(width, width)), b.weight(width)) for _ in range(3))
    y = b.add("Attention", q, k, v, q_num_heads=heads, kv_num_heads=heads, is_causal=1)
    x = b.add("Add", "x", b.add("MatMul", y, b.weight(width, width)))
    normed = b.add("RMSNormalization", x, b.weight(width))
    hidden = b.add("Gelu", b.add("MatMul", normed, b.weight(width, 3 * width)), approximate="tanh")
    return b.model(
        [("x", DOUBLE, ["N", "S", width])],
        [(b.add("Add", x, b.add("MatMul", hidden, b.weight(3 * width, width))), DOUBLE)],
    )


def test_a_transformer_block():
    """The reference normalizes in float32, the default of `stash_type`; dnnarray in the dtype of the array."""
    _beside_the_reference(_transformer(), {"x": np.random.default_rng(4).standard_normal((2, 9, 16))}, tolerance=2e-6)


def _old_transformer(heads=2, width=8):
    """As exporters before opset 20 write it: attention by MatMul and Softmax, the activation by Erf."""
    b = Builder(5)
    parts = []
    for _ in range(3):
        y = b.add("MatMul", "x", b.weight(width, width))
        y = b.add("Reshape", y, b.hold(np.array([0, 0, heads, width // heads])))
        parts.append(b.add("Transpose", y, perm=[0, 2, 1, 3]))
    scores = b.add("MatMul", parts[0], b.add("Transpose", parts[1], perm=[0, 1, 3, 2]))
    scores = b.add("Softmax", b.add("Div", scores, b.hold(np.sqrt(width / heads))), axis=-1)
    y = b.add("Transpose", b.add("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
    y = b.add("Reshape", y, b.hold(np.array([0, 0, width])))
    erf = b.add("Erf", b.add("Div", y, b.hold(np.sqrt(2.0))))
    z = b.add("Mul", b.add("Mul", y, b.add("Add", erf, b.hold(1.0))), b.hold(0.5))
    return b.model([("x", DOUBLE, ["N", "S", width])], [(y, DOUBLE), (z, DOUBLE)], opset=13)


def test_a_transformer_block_of_an_old_operator_set():
    """The reference's Erf has seven digits, so that of the standard library is the oracle."""
    model, inputs = _old_transformer(), {"x": np.random.default_rng(6).standard_normal((2, 5, 8))}
    y, z = door.run(model, inputs)
    np.testing.assert_allclose(y, ReferenceEvaluator(model).run(None, inputs)[0], rtol=1e-12)
    np.testing.assert_allclose(z, y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2, rtol=1e-12)


def test_the_error_function_has_all_its_digits():
    x = np.concatenate([np.linspace(-4, 4, 81), [1e-300, -1e-9, 0.4999, 0.5001, 0.0, np.inf, -np.inf]])
    b = Builder()
    (found,) = door.run(b.model([("x", DOUBLE, ["N"])], [(b.add("Erf", "x"), DOUBLE)]), [x])
    np.testing.assert_allclose(found, [math.erf(v) for v in x], rtol=4e-15)
    assert np.isnan(door.run(b.model([("x", DOUBLE, ["N"])], [("v0_0", DOUBLE)]), [np.array([np.nan])])[0])


def test_a_loop_that_sees_values_around_it():
    """y = x * 2**n by doubling, with every step's sum beside it; n decides how many turns there are."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["y_in", "two"], ["y_out"]),
            helper.make_node("ReduceSum", ["y_out"], ["total"], keepdims=0),
            helper.make_node("Identity", ["go_in"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info(n, c, s)
            for n, c, s in (("i", INT64, []), ("go_in", TensorProto.BOOL, []), ("y_in", DOUBLE, [3]))
        ],
        [
            helper.make_tensor_value_info(n, c, s)
            for n, c, s in (("go_out", TensorProto.BOOL, []), ("y_out", DOUBLE, [3]), ("total", DOUBLE, []))
        ],
    )
    b = Builder()
    b.weights.append(numpy_helper.from_array(np.array(2.0), "two"))
    y, totals = b.add("Loop", "n", "", "x", outputs=2, body=body)
    prepared = door.prepare(
        b.model([("n", INT64, []), ("x", DOUBLE, [3])], [(y, DOUBLE, [3]), (totals, DOUBLE, ["n"])])
    )
    x = np.array([1.0, 2.0, 3.0])
    for n in (0, 1, 4):
        y, totals = prepared.run([np.array(n), x])
        np.testing.assert_array_equal(y, x * 2**n)
        np.testing.assert_array_equal(totals, [6 * 2.0**k for k in range(1, n + 1)])
        assert totals.dtype == np.float64


def test_a_loop_over_an_optional_sequence_that_is_empty():
    """ONNX's test_loop16_seq_none, which its runner cannot compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        case = next(c for c in collect_testcases("Loop") if c.name == "test_loop16_seq_none")
    inputs, (expected,) = case.data_sets[0]
    (found,) = door.prepare(case.model).run(list(inputs))
    for have, want in zip(found, expected[0] if isinstance(expected[0], list) else expected, strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_function_of_the_model():
    """Attributes of the call reach the nodes of the function; what the function does not define stays outside."""
    nodes = [helper.make_node("LeakyRelu", ["a"], ["t"]), helper.make_node("Add", ["t", "b"], ["c"])]
    nodes[0].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function("local", "Bent", ["a", "b"], ["c"], nodes, [helper.make_opsetid("", 20)], ["slope"])
    call = helper.make_node("Bent", ["x", "x"], ["y"], domain="local", slope=0.5)
    infos = [helper.make_tensor_value_info(n, DOUBLE, ["N"]) for n in "xy"]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    graph = helper.make_graph([call], "graph", infos[:1], infos[1:])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
    np.testing.assert_array_equal(door.run(model, {"x": np.array([-2.0, 3.0])})[0], [-3.0, 6.0])


def test_bernoulli_and_dropout_draw_what_they_say():
    b = Builder()
    drawn = b.add("Bernoulli", "x", seed=1.0)
    y, mask = b.add("Dropout", "x", b.hold(np.float64(0.25)), b.hold(np.array(True)), outputs=2, seed=3)
    prepared = door.prepare(b.model([("x", DOUBLE, [20000])], [(drawn, DOUBLE), (y, DOUBLE), (mask, TensorProto.BOOL)]))
    x = np.full(20000, 0.3)
    drawn, y, mask = prepared.run([x])
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert abs(drawn.mean() - 0.3) < 0.015  # four times the standard deviation
    assert abs(mask.mean() - 0.75) < 0.013
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0))
    for again, first in zip(prepared.run([x]), (drawn, y, mask), strict=True):
        np.testing.assert_array_equal(again, first)


def test_batch_normalization_in_training_moves_its_statistics():
    b = Builder()
    names = [b.hold(np.ones(3)), b.hold(np.zeros(3)), b.hold(np.zeros(3)), b.hold(np.ones(3))]
    outputs = b.add("BatchNormalization", "x", *names, outputs=3, training_mode=1, momentum=0.8)
    x = np.random.default_rng(7).standard_normal((4, 3, 5, 5)) + 2
    _, mean, variance = _beside_the_reference(
        b.model([("x", DOUBLE, ["N", 3, "H", "W"])], [(n, DOUBLE) for n in outputs], opset=15), {"x": x}
    )
    np.testing.assert_allclose(mean, 0.2 * x.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(variance, 0.8 + 0.2 * x.var(axis=(0, 2, 3)))


@pytest.mark.parametrize("size", [3, 4, 5])
def test_local_response_normalization(size):
    """ONNX has the odd channel of an even size behind."""
    b = Builder()
    model = b.model([("x", DOUBLE, ["N", "C", "W"])], [(b.add("LRN", "x", size=size, alpha=0.25, bias=1.5), DOUBLE)])
    x = np.random.default_rng(8).standard_normal((2, 7, 3))
    expected = np.empty_like(x)
    for c in range(7):
        near = x[:, max(0, c - (size - 1) // 2) : c + math.ceil((size - 1) / 2) + 1]
        expected[:, c] = x[:, c] / (1.5 + 0.25 / size * (near**2).sum(axis=1)) ** 0.75
    np.testing.assert_allclose(door.run(model, {"x": x})[0], expected, rtol=1e-12)


_VERSIONS = [
    ("Clip", 6, {"min": -0.5, "max": 0.5}, [], lambda x: np.clip(x, -0.5, 0.5)),
    ("Clip", 13, {}, [np.float64(-0.5), np.float64(0.5)], lambda x: np.clip(x, -0.5, 0.5)),
    ("ReduceSum", 11, {"axes": [1], "keepdims": 0}, [], lambda x: x.sum(axis=1)),
    ("ReduceSum", 13, {"keepdims": 0}, [np.array([1])], lambda x: x.sum(axis=1)),
    ("Squeeze", 11, {"axes": [0]}, [], lambda x: x[0]),
    ("Squeeze", 13, {}, [np.array([0])], lambda x: x[0]),
    ("Unsqueeze", 11, {"axes": [-1]}, [], lambda x: x[..., None]),
    ("Unsqueeze", 13, {}, [np.array([-1])], lambda x: x[..., None]),
    ("Slice", 9, {"starts": [1], "ends": [9], "axes": [2]}, [], lambda x: x[:, :, 1:]),
    ("Slice", 13, {}, [np.array([-1]), np.array([-99]), np.array([2]), np.array([-2])], lambda x: x[:, :, ::-2]),
    (
        "Pad",
        2,
        {"pads": [0, 0, 1, 0, 0, 2], "value": 7.0},
        [],
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 2)], constant_values=7),
    ),
    (
        "Pad",
        18,
        {"mode": "reflect"},
        [np.array([1, 2]), "", np.array([2])],
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 2)], mode="reflect"),
    ),
    ("Softmax", 11, {"axis": 1}, [], lambda x: np.exp(x) / np.exp(x).sum(axis=(1, 2), keepdims=True)),
    ("Softmax", 13, {"axis": 1}, [], lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)),
    ("Split", 11, {"split": [4, 0], "axis": 2}, [], lambda x: x),
    ("TopK", 1, {"k": 2}, [], lambda x: -np.sort(-x, axis=-1)[..., :2]),
    ("Add", 6, {"broadcast": 1, "axis": 1}, [np.arange(3.0)], lambda x: x + np.arange(3.0)[:, None]),
]


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "inputs", "expected"), _VERSIONS, ids=lambda v: v if isinstance(v, (str, int)) else ""
)
def test_attributes_of_old_operator_sets_and_inputs_of_new_ones(op, opset, attributes, inputs, expected):
    b = Builder()
    names = [n if isinstance(n, str) else b.hold(n) for n in inputs]
    y = b.add(op, "x", *names, outputs=2 if op in ("Split", "TopK") else 1, **attributes)
    y = y if isinstance(y, str) else y[0]
    x = np.random.default_rng(9).standard_normal((1, 3, 4))
    (found,) = door.run(b.model([("x", DOUBLE, [1, 3, 4])], [(y, DOUBLE)], opset), [x])
    np.testing.assert_allclose(found, expected(x), rtol=1e-12)


def test_run_node():
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1])
    x, w = np.ones((1, 2, 5)), np.ones((3, 2, 3))
    np.testing.assert_array_equal(door.run_node(node, [x, w])["y"], dnn.conv(x, w, padding=1))


def test_outputs_come_back_in_the_namespace_of_the_inputs():
    torch = pytest.importorskip("torch")
    (found,) = door.run(_resnet(), [torch.ones((1, 3, 32, 32), dtype=torch.float64)])
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), door.run(_resnet(), [np.ones((1, 3, 32, 32))])[0])


def test_tensors_in_bfloat16():
    torch = pytest.importorskip("torch")
    x = torch.linspace(-2, 2, 9, dtype=torch.bfloat16)
    node = helper.make_node("Tanh", ["x"], ["y"])
    (found,) = door.run_node(node, [x])
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, torch.tanh(x))


def test_a_model_from_its_file_and_its_bytes(tmp_path):
    model, x = _resnet(), np.ones((1, 3, 32, 32))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model = _resnet()
    (expected,) = door.run(model, {"x": x})
    for form in (path, str(path), model.SerializeToString()):
        np.testing.assert_array_equal(door.run(form, {"x": x})[0], expected)


def test_what_a_model_holds_stays_as_it_is():
    b = Builder()
    name = b.hold(np.ones(3))
    prepared = door.prepare(b.model([], [(b.add("Identity", name), DOUBLE)]))
    (first,) = prepared.run([])
    with pytest.raises(ValueError, match="read-only"):
        first += 1
    np.testing.assert_array_equal(prepared.run([])[0], np.ones(3))


def test_an_input_may_replace_what_the_model_holds():
    b = Builder()
    b.weights.append(numpy_helper.from_array(np.array([2.0]), "scale"))
    y = b.add("Mul", "x", "scale")
    prepared = door.prepare(b.model([("x", DOUBLE, [1]), ("scale", DOUBLE, [1])], [(y, DOUBLE)]))
    assert prepared.input_names == ("x",)
    assert prepared.run({"x": np.array([3.0])})[0] == 6
    assert prepared.run({"x": np.array([3.0]), "scale": np.array([5.0])})[0] == 15
    assert prepared.run([np.array([3.0])])[y] == 6
