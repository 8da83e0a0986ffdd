"""``torch.compile(backend="dnnarray")``: which nodes of a graph are replaced, and that the results stay PyTorch's."""

import shutil

import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch")
door = pytest.importorskip("dnnarray.interop.torch")
from torch import nn  # noqa: E402 - where PyTorch is there

from dnnarray.interop.torch.inductor import fused, rewrite  # noqa: E402
from dnnarray.interop.torch.inductor.operators import MIRRORS  # noqa: E402
from tests.interop.networks import NETWORKS  # noqa: E402
from tests.interop.precision import errors, gradients, mean, network  # noqa: E402

F = nn.functional
_INDUCTOR = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
# Inductor and its compiler give warnings of their own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


_BROKEN = ("lstm", "gru")  # dynamo breaks its graphs at recurrent layers, and the parts hold nothing for dnnarray


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    door.report(reset=True)
    yield
    torch._dynamo.reset()


@pytest.fixture
def interpreted(monkeypatch):
    """Graphs run node by node in the place of Inductor's code, which takes long to build; the strides that Inductor's
    code relies on are checked.
    """
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import compile_fx

    monkeypatch.setattr(
        compile_fx, "compile_fx_inner", lambda graph, inputs, **named: make_boxed_func(_Checked(graph).run)
    )


class _Checked(torch.fx.Interpreter):
    def run_node(self, node):
        result = super().run_node(node)
        if getattr(node.target, "namespace", "").startswith("dnnarray"):
            for found, known in zip(_leaves(result), _leaves(node.meta["val"]), strict=True):
                fixed = all(isinstance(n, int) for n in (*known.shape, *known.stride()))
                assert not fixed or _order(found) == _order(known), f"{node.target}: {found.stride()}, {known.stride()}"
        return result


def _leaves(results):
    return [t for t in torch.utils._pytree.tree_leaves(results) if t is not None]


def _order(tensor):
    """The strides that matter."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1] if tensor.numel() else []


def _compiled(model, **options):
    return torch.compile(model, backend="dnnarray", **options)


def _replaced():
    return dict(door.report(reset=True).replaced)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("form", [None, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_as_exact_as_those_of_pytorch(name, form):
    ours, theirs = [], []
    for seed in range(2):
        exact = gradients(name, torch.float64, seed=seed)
        theirs += errors(gradients(name, torch.float32, form, seed), exact)
        ours += errors(gradients(name, torch.float32, form, seed, _compiled), exact)
    assert mean(ours) <= 1.5 * mean(theirs)
    report = door.report()
    assert report.replaced.total() > 0 or name in _BROKEN
    assert report.declined == 0, str(report)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", NETWORKS)
def test_inference_is_as_exact_as_that_of_pytorch(name):
    def output(dtype, prepare):
        net, x, loss, _ = network(name, dtype)
        loss(net(x))  # moves the running statistics
        with torch.no_grad():
            return prepare(net.eval())(x)

    exact = output(torch.float64, lambda net: net)
    theirs = errors([output(torch.float32, lambda net: net)], [exact])
    ours = errors([output(torch.float32, _compiled)], [exact])
    assert mean(ours) <= max(1.5 * mean(theirs), 2e-7)
    assert door.report().declined == 0


_IMAGE, _ROWS = (2, 8, 6, 6), (4, 5, 8)


class _Residual(nn.Module):
    def __init__(self, *layers, activation=F.relu):
        super().__init__()
        self.layers, self.activation = nn.Sequential(*layers), activation

    def forward(self, x):
        return self.activation(x + self.layers(x))


def _form(name, make, shape, expected):
    return pytest.param(make, shape, expected, id=name)


_INFERENCE = [
    _form(
        "conv-activation",
        lambda: nn.Sequential(nn.Conv2d(8, 4, 3), nn.ReLU(inplace=True)),
        _IMAGE,
        {"convolution + relu": 1},
    ),
    _form(
        "conv-norm-residual-activation",
        lambda: _Residual(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)),
        _IMAGE,
        {"convolution + batch_norm + residual + relu": 1},
    ),
    _form(
        "conv-norm-without-bias",
        lambda: nn.Sequential(nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False), nn.SiLU()),
        _IMAGE,
        {"convolution + batch_norm + silu": 1},
    ),
    _form(
        "transposed-conv",
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.BatchNorm2d(4), nn.Hardtanh(0.0, 6.0)),
        _IMAGE,
        {"batch_norm + relu6": 1, "aten.convolution": 1},
    ),
    _form(
        "activation-with-other-options",
        lambda: nn.Sequential(nn.Conv2d(8, 4, 3), nn.LeakyReLU(0.3)),
        _IMAGE,
        {"aten.convolution": 1},
    ),
    _form("norm", lambda: _Residual(nn.BatchNorm2d(8), activation=F.gelu), _IMAGE, {"batch_norm + residual + gelu": 1}),
    _form("group-norm", lambda: nn.Sequential(nn.GroupNorm(2, 8), nn.SiLU()), _IMAGE, {"group_norm + silu": 1}),
    _form(
        "layer-norm",
        lambda: nn.Sequential(_Residual(nn.Linear(8, 8), activation=lambda x: x), nn.LayerNorm(8)),
        _ROWS,
        {"residual + layer_norm": 1},
    ),
    _form("linear", lambda: nn.Sequential(nn.Linear(8, 6), nn.GELU()), _ROWS, {"linear + bias + gelu": 1}),
    _form("linear-2d", lambda: nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU()), (4, 8), {"linear + relu": 1}),
    _form("rms-norm", lambda: nn.RMSNorm(8), _ROWS, {"rms_norm": 1}),
]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("make", "shape", "expected"), _INFERENCE)
def test_forms_of_inference(make, shape, expected, dtype):
    torch.manual_seed(0)
    model = make().to(dtype)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
    x = torch.randn(shape).to(dtype)
    with torch.no_grad():
        found, wanted = _compiled(model.eval())(x), model.eval()(x)
    # bfloat16: PyTorch rounds between the parts of a form, at most twice more often
    tolerance = 1e-10 if dtype is torch.float64 else 4 * torch.finfo(dtype).eps * wanted.abs().max().item()
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert found.stride() == wanted.stride()
    report = door.report()
    assert dict(report.replaced) == expected
    assert report.declined == 0, str(report)


class _Loss(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = nn.Linear(8, 12), options

    def forward(self, x, target):
        return F.cross_entropy(self.layer(x).reshape(-1, 12), target.reshape(-1), **self.options)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "sum"}, {"ignore_index": 3}], ids=str)
def test_the_scores_of_a_linear_layer_are_not_kept(options):
    model = _Loss(**options).double()
    x, target = torch.randn(4, 5, 8, dtype=torch.float64, requires_grad=True), torch.randint(0, 12, (4, 5))
    leaves = (x, *model.parameters())
    wanted = torch.autograd.grad(model(x, target), leaves)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        loss = _compiled(model)(x, target)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), wanted, rtol=1e-10, atol=1e-12)
    assert 4 * 5 * 12 not in sizes
    assert _replaced() == {"linear + cross_entropy": 1}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, t: (x.sum(), F.cross_entropy(F.linear(x, x), t)), {"linear + cross_entropy": 1}),
        (lambda x, t: [(y := F.linear(x, x)).sum(), F.cross_entropy(y, t)], {"cross_entropy": 1}),
        (lambda x, t: F.cross_entropy(x[0], t[0]), {"aten.nll_loss_forward": 1}),
        (lambda x, t: F.cross_entropy(x, x.softmax(1)), {"cross_entropy": 1}),
        (lambda x, t: F.nll_loss(x, t), {"aten.nll_loss_forward": 1}),
    ],
)
def test_losses_that_are_replaced(function, expected):
    x, target = torch.randn(6, 6, dtype=torch.float64), torch.randint(0, 6, (6,))
    torch.testing.assert_close(_compiled(function)(x, target), function(x, target), rtol=1e-10, atol=1e-12)
    assert _replaced() == expected


@pytest.mark.usefixtures("interpreted")
def test_training_fuses_what_the_gradient_does_not_read():
    net, x, loss, _ = network("resnet", torch.float32)
    loss(_compiled(net)(x)).backward()
    found = _replaced()
    assert {"batch_norm_train + relu": 2, "batch_norm_train + residual + relu": 1}.items() <= found.items()
    assert (found["aten.convolution"], found["aten.convolution_backward"]) == (4, 4)
    assert found["aten.native_batch_norm_backward"] == 4


@pytest.mark.usefixtures("interpreted")
def test_running_statistics_move_as_those_of_pytorch():
    torch.manual_seed(0)
    mine, other = (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()) for _ in range(2))
    compiled, x = _compiled(mine), torch.randn(8, 3, 4, 4)
    for _ in range(3):
        other(x)
        compiled(x)
    for a, b in zip(mine.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert _replaced() == {"batch_norm_train + relu": 1}


@pytest.mark.usefixtures("interpreted")
def test_what_dnnarray_does_not_compute_stays_with_inductor():
    x = torch.arange(-8, 8).reshape(1, 1, 4, 4)

    def f(x):
        return F.relu(x) + F.conv2d(x, torch.ones(1, 1, 3, 3, dtype=torch.int64), padding=1)

    torch.testing.assert_close(_compiled(f)(x), f(x))
    assert _replaced() == {}


@pytest.mark.usefixtures("interpreted")
def test_open_shapes_stay_open():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    compiled = _compiled(model.eval(), dynamic=True, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (2, 5, 3):
            x = torch.randn(batch, 3, 6, 6)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert _replaced() == {"convolution + batch_norm + relu": 1, "aten.convolution": 1}


@pytest.mark.usefixtures("interpreted")
def test_families_are_those_of_the_options():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2))
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    compiled = _compiled(model, options={"families": ("norm", "pool")})
    torch.testing.assert_close(compiled(x), model(x))
    assert _replaced() == {"aten.native_group_norm": 1, "aten.max_pool2d_with_indices": 1}


def test_a_family_that_there_is_not_is_an_error():
    x = torch.randn(3)
    with pytest.raises(Exception, match=r"'norms'; expected names among .*Did you mean 'norm'") as error:
        _compiled(torch.relu, options={"families": ("norms",)})(x)
    assert isinstance(error.value.__cause__ or error.value, (dnn.OptionError, torch._dynamo.exc.BackendCompilerFailed))


_IMAGES = [torch.contiguous_format, torch.channels_last]
_CONV = [[2, 1], [1, 0], [1, 1], False, [0, 0], 2]


def _drawn(*shape, form=None):
    x = torch.randn(shape)
    return x if form is None else x.contiguous(memory_format=form)


def _calls(form):
    x, r, c = _drawn(2, 4, 5, 6, form=form), _drawn(2, 6, 3, 4, form=form), torch.rand(4) + 0.5
    yield fused.CONV, (x, _drawn(6, 2, 3, 3), _drawn(6), *_CONV, r, "relu")
    yield fused.CONV, (x, _drawn(6, 2, 3, 3), None, *_CONV, None, "gelu")
    yield fused.BATCH_NORM, (x, c, c, c, c, 1e-5, x + 1, "silu")
    yield fused.BATCH_NORM_TRAIN, (x, c, None, c, c, 0.1, 1e-5, None, "relu")
    yield fused.GROUP_NORM, (x, c, c, 2, 4, 30, 2, 1e-5, "relu")
    yield fused.ADD_LAYER_NORM, (x, x + 1, [6], torch.rand(6), None, 1e-5)
    yield fused.LINEAR, (_drawn(6, 3).T, _drawn(5, 6), None, "tanh")


@pytest.mark.parametrize("form", _IMAGES, ids=str)
def test_fused_operators_pass_the_checks_of_torch_library(form):
    for operator, arguments in _calls(form):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("form", _IMAGES, ids=str)
def test_fused_operators_compute_what_they_mean(form):
    torch.manual_seed(0)
    for operator, arguments in _calls(form):
        plain = getattr(fused, f"_{operator._schema.name.partition('::')[2]}_plain")
        exact = plain(*[a.double() if isinstance(a, torch.Tensor) else a for a in arguments])
        found = operator(*arguments)
        torch.testing.assert_close(found, exact, check_dtype=False, rtol=1e-4, atol=1e-5)


def test_operators_of_every_family_are_there():
    assert {"attention", "convolution", "loss", "norm"} <= MIRRORS.keys()
    assert set(rewrite.kept(("norm",), training=True)) < set(rewrite.kept(("norm",), training=False))


@_INDUCTOR
def test_inductor_trains_the_network():
    exact = gradients("resnet", torch.float64)
    theirs = errors(gradients("resnet", torch.float32, torch.channels_last), exact)
    ours = errors(gradients("resnet", torch.float32, torch.channels_last, prepare=_compiled), exact)
    assert mean(ours) <= 1.5 * mean(theirs)
    report = door.report()
    assert report["dnnarray::batch_norm_train"].taken == 4
    assert (report["aten::convolution_backward"].taken, report.declined) == (4, 0)
    assert "batch_norm_train + residual + relu" in str(report)


@_INDUCTOR
def test_inductor_gives_memory_of_pytorch():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        wanted = model.eval()(x)
        found = _compiled(model, mode="max-autotune-no-cudagraphs", fullgraph=True)(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.stride() == wanted.stride()
    found.resize_(1)  # refused for memory that PyTorch does not own
    report = door.report()
    assert (report["dnnarray::conv"].taken, report.taken) == (1, 1)


@_INDUCTOR
def test_inductor_under_autocast():
    net, x, loss, _ = network("vit", torch.float32)

    def run(model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(model(x))
        value.backward()
        found = [value.detach(), *(p.grad for p in net.parameters())]
        net.zero_grad(set_to_none=True)
        return found

    exact = gradients("vit", torch.float64)
    exact = [exact[0], *exact[2 : 2 + len(list(net.parameters()))]]
    theirs, ours = errors(run(net), exact), errors(run(_compiled(net)), exact)
    assert mean(ours) <= 1.5 * mean(theirs)
    assert door.report().taken > 0
