"""PyTorch's own operators under `accelerate` over PyTorch's own samples of their arguments: what they return, its
memory order, and its gradients.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # the samples import it
door = pytest.importorskip("dnnarray.interop.torch")
samples = pytest.importorskip("torch.testing._internal.common_methods_invocations")

_FUNCTIONS = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold batch_norm instance_norm layer_norm
    group_norm rms_norm local_response_norm max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d relu relu6 hardswish leaky_relu elu celu selu glu prelu silu hardsigmoid logsigmoid mish
    threshold hardtanh gelu softplus softmin scaled_dot_product_attention cross_entropy nll_loss ctc_loss interpolate
    grid_sample embedding pixel_shuffle pixel_unshuffle channel_shuffle multi_head_attention_forward
""".split()
_NAMES = {f"nn.functional.{name}" for name in _FUNCTIONS}
_NAMES |= {"softmax", "log_softmax", "sigmoid", "tanh", "native_layer_norm", "native_batch_norm"}
_KINDS = ((torch.float64, None), (torch.float32, torch.channels_last), (torch.bfloat16, None))
_INFOS = [op for op in samples.op_db if op.name in _NAMES]
_CALLS = [(op, *kind) for op in _INFOS for kind in _KINDS if kind[0] in op.supported_dtypes("cpu")]
# PyTorch's gradient of this one has a constant that is rounded to float32.
_ROUNDED = {"nn.functional.hardsigmoid": 1e-7}
_MOST = 12  # samples of a function
# PyTorch's gradient differs by a term that vanishes behind log_softmax.
_ANOTHER_GRADIENT = {"nn.functional.ctc_loss"}


def _tensors(*trees):
    return [t for t in torch.utils._pytree.tree_leaves(trees) if isinstance(t, torch.Tensor)]


def _map(function, tree):
    return torch.utils._pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree)


def _fresh(sample, form, dtype):
    def copy(tensor):
        own = tensor.detach().clone()
        if dtype is not None and own.is_floating_point():
            own = own.to(dtype)
        if form is not None and own.dim() == 4:
            own = own.contiguous(memory_format=form)
        return own.requires_grad_(tensor.requires_grad)

    return _map(copy, sample.input), _map(copy, sample.args), _map(copy, sample.kwargs)


def _run(op, sample, form=None, dtype=None):
    """The results of a call, its gradients, and its arguments afterwards, which may be running statistics that it moved
    on.
    """
    given, args, kwargs = _fresh(sample, form, dtype)
    torch.manual_seed(0)
    results = _tensors(op.op(given, *args, **kwargs))
    wanted = [t for t in _tensors(given, args, kwargs) if t.requires_grad]
    graded = [r for r in results if r.requires_grad]
    gradients = ()
    if wanted and graded:
        heads = [(torch.arange(r.numel()) % 5 - 2).to(r.dtype).reshape(r.shape) for r in graded]
        gradients = torch.autograd.grad(graded, wanted, heads, allow_unused=True)
    return results, gradients, _tensors(given, args, kwargs)


def _order(tensor):
    """The strides that matter: those of axes with more than one place."""
    return (
        [stride for stride, extent in zip(tensor.stride(), tensor.shape, strict=True) if extent > 1]
        if tensor.numel()
        else []
    )


def _compare(op, ours, theirs, exact):
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert _order(mine) == _order(other), f"strides {mine.stride()}, of PyTorch {other.stride()}"
    skipped = 1 if op.name in _ANOTHER_GRADIENT else 3
    for mine, other, best in zip(ours, theirs, exact[:skipped], strict=False):
        for found, wanted, true in zip(mine, other, best, strict=True):
            assert (found is None) == (wanted is None)
            if found is not None:
                _compare_numbers(found, wanted, true, _ROUNDED.get(op.name, 0.0))


def _compare_numbers(found, wanted, true, rounded):
    """As near to what PyTorch computes in float64 as what PyTorch computes in the same dtype, or nearly exact."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if not found.is_floating_point():
        assert torch.equal(found, wanted)
        return
    finite = torch.isfinite(true)
    torch.testing.assert_close(found[~finite], wanted[~finite], equal_nan=True)
    if not finite.any():
        return
    true = true[finite]
    size = true.abs().max().clamp(min=1.0)  # the arguments are of the order of 1, and sums of them may cancel
    rounding = max(16 * torch.finfo(found.dtype).eps, 1e-11)  # what is called true is rounded to float64 itself
    allowed = max((wanted[finite].double() - true).abs().max() * 1.5, max(rounding, rounded) * size)
    assert (found[finite].double() - true).abs().max() <= allowed


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(("op", "dtype", "form"), _CALLS, ids=lambda v: getattr(v, "formatted_name", str(v)))
def test_samples_give_what_pytorch_gives(op, dtype, form):
    door.report(reset=True)
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=differentiable)):
        if number >= _MOST or sample.kwargs.get("dropout_p"):
            continue
        try:
            theirs = _run(op, sample, form)
        except RuntimeError:
            if form is None:
                raise
            continue  # PyTorch does not do it in this memory order
        exact = _run(op, sample, None, torch.float64)
        with door.accelerate(devices=("cpu",)):
            ours = _run(op, sample, form)
        try:
            _compare(op, ours, theirs, exact)
        except AssertionError as error:
            raise AssertionError(f"sample {number}: {sample.summary()}\n{error}") from None
    assert door.report().taken > 0, str(door.report())
