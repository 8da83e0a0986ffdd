"""`dnnarray.interop.torch`: operators of PyTorch held to PyTorch's own checks, and to dnnarray's pullbacks."""

import inspect

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._problems.base import leaves, tree_map
from tests.registry import CASES, FIRST
from tests.support import FLOAT32, FLOAT64

torch = pytest.importorskip("torch")
door = pytest.importorskip("dnnarray.interop.torch")
from dnnarray.interop.torch.operators import present  # noqa: E402 - where PyTorch is there


def _tensor(array, graded):
    """A tensor, or tensors nested as the arrays are."""
    if array is None or isinstance(array, (list, tuple)):
        return tree_map(lambda a: _tensor(a, graded), array)
    tensor = torch.from_numpy(np.array(array))
    return tensor.requires_grad_(graded and tensor.is_floating_point())


def _call(case, dtype, graded=True):
    """The function, its tensors in signature order, and a function of the tensors alone."""
    arrays = case.draw(dtype)
    operation = find(case.op)
    tensors = [_tensor(a, graded) for a in arrays]
    tensors += [None] * (len(operation.arrays) - len(tensors))
    function = getattr(door, case.op)
    parameters = inspect.signature(function).parameters
    names = operation.arrays

    def call(*given):
        positional = [
            t for n, t in zip(names, given, strict=True) if parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY
        ]
        rest = {
            n: t
            for n, t in zip(names, given, strict=True)
            if parameters[n].kind is not inspect.Parameter.POSITIONAL_ONLY
        }
        return function(*positional, **rest, **case.options)

    return call, tensors, arrays


_MET = [c for c in FIRST if c.op in door.__all__ and FLOAT64 in c.dtypes]
_ALL = [
    c
    for c in CASES
    if c.op in door.__all__
    and c.gradient
    and FLOAT64 in c.dtypes
    and not (find(c.op).nested and "return_tape" in c.options)
]


@pytest.mark.parametrize("case", _MET, ids=str)
def test_operators_pass_the_checks_of_torch_library(case):
    call, tensors, _ = _call(case, FLOAT32)
    seen = []
    with _recorded(seen):
        call(*tensors)
    operator, arguments = seen[0]
    torch.library.opcheck(
        operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )


@pytest.mark.parametrize("case", [c for c in _MET if c in _ALL], ids=str)
def test_gradients_by_finite_differences(case):
    """`torch.autograd.gradcheck` in float64, in a random direction."""
    call, tensors, _ = _call(case, FLOAT64)
    leaf = [t for t in leaves(tensors) if t.requires_grad]
    result = present(call(*tensors))[0]
    found = torch.autograd.grad(result.sum(), leaf, allow_unused=True) if result.requires_grad else ()
    for tensor, gradient in zip(leaf, found or [None] * len(leaf), strict=True):
        tensor.requires_grad_(gradient is not None)
    leaf = [t for t in leaf if t.requires_grad]
    if not leaf:
        pytest.skip("the case has no array with a gradient")

    def f(*given):
        found = iter(given)
        return present(call(*tree_map(lambda t: next(found) if t.requires_grad else t, tensors)))[0]

    assert torch.autograd.gradcheck(f, leaf, fast_mode=True, check_undefined_grad=False)


class _recorded(torch.utils._python_dispatch.TorchDispatchMode):  # noqa: N801
    """Collects the calls of dnnarray's operators with their arguments."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "dnnarray":
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("case", _ALL, ids=str)
def test_gradients_are_those_of_vjp(case):
    call, tensors, arrays = _call(case, FLOAT64)
    output = call(*tensors)
    head = output[0] if isinstance(output, tuple) else output
    expected, pullback = dnn.vjp(case.op, *arrays, **case.options)
    np.testing.assert_array_equal(head.detach().numpy(), expected[0] if isinstance(expected, tuple) else expected)
    if not head.is_floating_point() or not any(t.requires_grad for t in leaves(tensors)):
        return
    grad = np.random.default_rng(0).standard_normal(tuple(head.shape))
    head.backward(torch.from_numpy(grad))
    gradients = pullback((grad, *(None,) * (len(expected) - 1)) if isinstance(expected, tuple) else grad)
    for tensor, gradient in zip(tensors, gradients, strict=False):  # nested as the arguments are
        if gradient is not None:
            for found, wanted in zip(leaves(tensor), leaves(gradient), strict=True):
                np.testing.assert_allclose(found.grad.numpy(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_what_the_gradient_takes_the_result_for_is_not_saved(name, dtype):
    x, saved = torch.linspace(-3, 3, 33).to(dtype).requires_grad_(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = getattr(door, name)(x)
    kept = {t.data_ptr() for t in saved}
    assert kept == {(y if dtype == torch.float32 else x).data_ptr()}
    y.sum().backward()
    again = x.detach().double().requires_grad_()
    getattr(torch, name)(again).sum().backward()
    torch.testing.assert_close(x.grad, again.grad.to(dtype))


def test_a_compiled_function_is_one_graph():
    def f(x, w, scale):
        y = door.conv(x, w, padding=1, activation="relu")
        return door.layer_norm(door.max_pool(y, 2), scale, axis=-1).sum()

    x, w, scale = (torch.randn(s, requires_grad=True) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(f(x, w, scale), (x, w, scale))
    found = torch.autograd.grad(compiled(x, w, scale), (x, w, scale))
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want)


def test_an_error_is_the_named_one():
    with pytest.raises(dnn.ShapeError, match="conv: weight"):
        door.conv(torch.randn(1, 3, 8, 8), torch.randn(4, 5, 3, 3))


def test_a_network_trains():
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(3, 4) / 2)
    x, target = torch.randn(64, 4), torch.randint(0, 3, (64,))
    optimizer = torch.optim.SGD([w], lr=0.5)
    losses = []
    for _ in range(20):
        loss = door.cross_entropy(door.linear(x, w), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def _block(x, w, scale):
    y = door.conv(x, w, padding=1, activation="relu")
    return door.layer_norm(door.max_pool(y, 2), scale, axis=-1)


def test_vmap_is_a_loop_over_the_batch():
    x, w, scale = torch.randn(3, 2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    found = torch.vmap(_block, in_dims=(0, None, None))(x, w, scale)
    torch.testing.assert_close(found, torch.stack([_block(one, w, scale) for one in x]))
    found = torch.vmap(lambda x, w: door.linear(x, w), in_dims=(1, 0))(torch.randn(5, 3, 6), torch.randn(3, 4, 6))
    assert found.shape == (3, 5, 4)


def test_vmap_gives_the_gradients_of_each_entry():
    x, w = torch.randn(3, 2, 3, 6, 6), torch.randn(4, 3, 3, 3, requires_grad=True)
    torch.vmap(lambda one: door.conv(one, w).square().sum())(x).sum().backward()
    found, w.grad = w.grad, None
    for one in x:
        door.conv(one, w).square().sum().backward()
    torch.testing.assert_close(found, w.grad, rtol=1e-4, atol=1e-4)


def test_an_empty_batch_of_vmap_is_an_error():
    with pytest.raises(dnn.ShapeError, match=r"batch of .* is empty"):
        torch.vmap(door.relu)(torch.randn(0, 4))


def test_an_exported_network_has_one_node_for_each_function():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.scale = torch.nn.Parameter(torch.randn(4, 3, 3, 3)), torch.nn.Parameter(torch.randn(4))

        def forward(self, x):
            return _block(x, self.w, self.scale)

    network, x = Network(), torch.randn(2, 3, 8, 8)
    exported = torch.export.export(network, (x,))
    names = [str(node.target) for node in exported.graph.nodes if "dnnarray" in str(node.target)]
    assert names == ["dnnarray.conv.default", "dnnarray.max_pool.default", "dnnarray.layer_norm.default"]
    torch.testing.assert_close(exported.module()(x), network(x))


def test_a_sequence_length_may_be_an_integer():
    q, k = torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 5, 4)
    found = door.attention(q, k, k, causal=True, causal_offset=1)
    expected = dnn.attention(q.detach(), k, k, causal=True, causal_offset=1)
    torch.testing.assert_close(found.detach(), expected)
    found.sum().backward()
    assert q.grad.abs().sum() > 0
