"""The public contract: every promised name exists and is exported, every docstring is complete."""

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

import dnnarray as dnn
from dnnarray._call.operation import operations
from dnnarray._names import FAMILIES

_CONTRACT = """
conv conv1d conv2d conv3d conv_backward_input conv_backward_weight conv_backward conv_transpose conv_transpose1d
conv_transpose2d
conv_transpose3d linear unfold fold
max_pool max_pool1d max_pool2d max_pool3d max_pool_with_indices avg_pool avg_pool1d avg_pool2d avg_pool3d lp_pool
lp_pool1d lp_pool2d
lp_pool3d adaptive_avg_pool adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool
adaptive_max_pool1d
adaptive_max_pool2d adaptive_max_pool3d max_unpool
batch_norm batch_norm_train layer_norm rms_norm add_layer_norm add_rms_norm group_norm instance_norm local_response_norm
relu relu6 clipped_relu leaky_relu prelu elu selu celu sigmoid hard_sigmoid log_sigmoid tanh hard_tanh softplus softsign
gelu silu
hard_swish mish threshold glu swiglu geglu softmax log_softmax softmin dropout bias_activation bias_dropout_add
RNNWeights rnn gru lstm lstm_cell gru_cell rnn_cell
attention attention_varlen paged_attention multi_head_attention rotary_embedding
cross_entropy nll_loss linear_cross_entropy ctc_loss
grid_sample affine_grid interpolate roi_align pixel_shuffle pixel_unshuffle channel_shuffle embedding one_hot
options set_options vjp infer Spec algorithms autotune explain Algorithm telemetry show_versions check
ShapeError DTypeError ArrayTypeError OptionError UnsupportedError WorkspaceError DeviceError
""".split()

# Counts or looks things up without a derivative, or (paged attention) serves inference alone.
_WITHOUT_GRADIENT = {"one_hot", "paged_attention"}
_DOCUMENTED = sorted(n for n in dnn.__all__ if inspect.isfunction(getattr(dnn, n)))


@pytest.mark.parametrize("name", _CONTRACT)
def test_every_promised_name_exists(name):
    assert name in dnn.__all__
    assert hasattr(dnn, name)


def test_exported_names_are_unique_and_there():
    assert len(dnn.__all__) == len(set(dnn.__all__))
    assert all(hasattr(dnn, name) for name in dnn.__all__)


def test_the_names_of_each_family_are_those_of_its_module():
    for family, names in FAMILIES.items():
        assert sorted(import_module(f"dnnarray.{family}").__all__) == sorted(names)


def test_importing_a_family_module_leaves_its_name_to_the_function():
    code = (
        "import dnnarray, dnnarray.conv; from dnnarray.softmax import softmax; import dnnarray as d; "
        "print(callable(d.conv), d.softmax is softmax)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
        "True",
        "True",
    ]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'conv4d'"):
        _ = dnn.conv4d


def test_every_operation_is_exported():
    assert set(operations()) <= set(dnn.__all__)


@pytest.mark.parametrize(
    "name", [op.name for op in operations().values() if op.name == op.base and "_backward" not in op.name]
)
def test_every_operation_has_a_gradient(name):
    assert name in _WITHOUT_GRADIENT or f"{name}_backward" in operations()


@pytest.mark.parametrize("op", operations().values(), ids=lambda op: op.name)
def test_signatures_have_the_contract_form(op):
    parameters = list(inspect.signature(op.function).parameters.values())
    arrays = [p for p in parameters if p.name in op.arrays]
    assert arrays[0].kind is inspect.Parameter.POSITIONAL_ONLY
    assert [p.name for p in parameters][-2:] in (["out", "workspace"], ["workspace", "algorithm"])
    for p in parameters:
        optional_positional = p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in op.arrays
        assert not optional_positional or p.default is p.empty, f"{p.name} is an option and must be keyword-only"


@pytest.mark.parametrize(
    "name", sorted(n for n, op in operations().items() if n.endswith("_backward") and f"{op.base[:-9]}" in operations())
)
def test_gradients_take_the_arrays_in_the_order_of_the_forward(name):
    """All positional arrays, then everything else by name."""
    backward, forward = operations()[name], operations()[name.removesuffix("_backward")]
    positional = [p.name for p in _positional(backward)]
    arrays = [p.name for p in _positional(forward) if p.name in forward.arrays]
    assert positional[1 : 1 + len(arrays)] == arrays


def _positional(op):
    return [p for p in inspect.signature(op.function).parameters.values() if p.kind is not p.KEYWORD_ONLY]


@pytest.mark.parametrize("name", _DOCUMENTED)
def test_docstrings_are_complete(name):
    text = inspect.getdoc(getattr(dnn, name)) or ""
    assert len(text.splitlines()[0]) > 10
    signature = inspect.signature(getattr(dnn, name))
    if signature.parameters:
        assert "Parameters\n---" in text
    if name in operations():
        for section in ("Returns", "Raises", "Examples"):
            assert f"{section}\n---" in text, f"no section {section}"
        for parameter in signature.parameters:
            assert re.search(rf"\b{parameter}\b", text), f"{parameter} is not described"
    assert ">>> " in text
