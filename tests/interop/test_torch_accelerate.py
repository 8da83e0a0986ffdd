"""`accelerate`: whole networks held to PyTorch in float64, what the report says, and how the registrations come and
go."""

import gc
import threading

import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch")
door = pytest.importorskip("dnnarray.interop.torch")
from dnnarray.interop.torch import routes, switch  # noqa: E402 - where PyTorch is there
from dnnarray.interop.torch.aten import KERNELS  # noqa: E402
from dnnarray.interop.torch.aten import attention as attention_kernels  # noqa: E402
from dnnarray.interop.torch.aten import norm as norm_kernels  # noqa: E402
from tests.interop.networks import NETWORKS  # noqa: E402
from tests.interop.precision import errors, gradients, mean, network  # noqa: E402

F = torch.nn.functional
ON_CPU = {"devices": ("cpu",)}


@pytest.fixture(autouse=True)
def _fresh_report():
    door.report(reset=True)
    yield
    assert not switch.SWITCH._libraries, "registrations that were left behind"


@pytest.mark.parametrize("form", [None, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_networks_are_as_exact_as_those_of_pytorch(name, form):
    ours, theirs = [], []
    for seed in range(3):
        exact = gradients(name, torch.float64, seed=seed)
        theirs += errors(gradients(name, torch.float32, form, seed), exact)
        with door.accelerate(**ON_CPU):
            ours += errors(gradients(name, torch.float32, form, seed), exact)
    assert mean(ours) <= 1.5 * mean(theirs)
    assert max(ours) < 1e-4
    report = door.report()
    assert [n for n in network(name, torch.float32)[3] if n not in report or not report[n].taken] == []


@pytest.mark.parametrize("name", ["resnet", "vit", "unet", "gru"])
def test_training_gives_the_losses_of_pytorch(name):
    def train():
        net, x, loss, _ = network(name, torch.float32)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for _ in range(12):
            optimizer.zero_grad()
            value = loss(net(x))
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    theirs = train()
    with door.accelerate(**ON_CPU):
        ours = train()
    assert ours[-1] < ours[0]
    assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("name", ["resnet", "convnext", "vit"])
def test_autocast_gives_what_pytorch_gives(name):
    def run():
        net, x, loss, _ = network(name, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(net(x))
        value.backward()
        return [value, *(p.grad for p in net.parameters())]

    exact = gradients(name, torch.float64)
    exact = [exact[0], *exact[2 : 1 + len(run())]]
    theirs = run()
    with door.accelerate(**ON_CPU):
        ours = run()
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    assert mean(errors(ours, exact)) <= 1.5 * mean(errors(theirs, exact))


def test_the_report_counts_what_is_taken_and_why_the_rest_is_not():
    x = torch.randn(2, 3, 8, 8)
    with door.accelerate(**ON_CPU):
        F.conv2d(x, torch.randn(4, 3, 3, 3))
        for _ in range(3):
            F.avg_pool2d(x, 2, divisor_override=3)
        torch.relu(torch.arange(-2, 3))
    report = door.report()
    assert (report["aten::convolution"].taken, report["aten::convolution"].declined.total()) == (1, 0)
    assert dict(report["aten::avg_pool2d"].declined) == {"avg_pool: divisor_override": 3}
    assert "aten::relu" in report
    assert "relu: x is int64" in str(report)
    assert (report.taken, report.declined, list(report)) == (1, 4, sorted(report))
    assert "3 times: avg_pool: divisor_override" in str(report)


def test_a_call_that_is_declined_gives_what_pytorch_gives():
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = F.avg_pool2d(x, 2, divisor_override=3)
    with door.accelerate(**ON_CPU):
        found = [F.avg_pool2d(x, 2, divisor_override=3) for _ in range(2)]
        found[0].sum().backward()
        integers = torch.relu(torch.tensor([-1, 2]))
    assert all(torch.equal(f, expected) for f in found)
    assert torch.equal(x.grad, torch.full_like(x, 1 / 3))
    assert integers.tolist() == [0, 2]


def test_errors_of_users_are_those_of_pytorch():
    with door.accelerate(**ON_CPU):
        with pytest.raises(RuntimeError, match="expected input"):
            F.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 5, 3, 3))
        with pytest.raises(IndexError, match="Target 7 is out of bounds"):
            F.nll_loss(torch.randn(2, 3), torch.tensor([0, 7]))
        with pytest.raises(IndexError, match="index out of range"):
            F.embedding(torch.tensor([9]), torch.randn(4, 2))
        with pytest.raises(RuntimeError, match="pad should be at most half"):
            F.max_pool2d(torch.randn(1, 1, 8, 8), 3, padding=2)


def test_an_error_that_is_no_decline_is_raised(monkeypatch):
    def fails(x):
        raise ZeroDivisionError("of the implementation")

    kernel = KERNELS["aten::relu"]
    broken = type(kernel)(kernel.name, kernel.family, fails)
    monkeypatch.setitem(KERNELS, "aten::relu", broken)
    with pytest.raises(ZeroDivisionError, match="of the implementation"), door.accelerate(**ON_CPU):
        torch.relu(torch.ones(2))
    assert torch.relu(torch.ones(2)).tolist() == [1, 1]


def _taken(name="aten::relu"):
    report = door.report(reset=True)
    return report[name].taken if name in report else 0


def test_blocks_may_be_nested():
    x = torch.ones(2)
    with door.accelerate(**ON_CPU):
        with door.accelerate(devices=("cpu",), families=("softmax",)):
            torch.relu(x)
        torch.relu(x)
        assert _taken() == 2
    torch.relu(x)
    assert _taken() == 0


def test_an_exception_ends_the_block():
    with pytest.raises(KeyError), door.accelerate(**ON_CPU):
        raise KeyError
    torch.relu(torch.ones(2))
    assert _taken() == 0


def test_a_switch_goes_on_until_it_is_taken_back():
    x = torch.ones(2)
    begun = door.accelerate(True, **ON_CPU)
    torch.relu(x)
    assert _taken() == 1
    begun.restore()
    begun.restore()  # once is enough, twice is no error
    torch.relu(x)
    assert _taken() == 0
    door.accelerate(True, **ON_CPU)
    with door.accelerate(**ON_CPU):
        door.accelerate(False)
        torch.relu(x)
        assert _taken() == 1
    torch.relu(x)
    assert _taken() == 0


def test_families_choose_operators():
    x = torch.randn(2, 3)
    with door.accelerate(devices=("cpu",), families=("softmax",)):
        torch.relu(torch.softmax(x, -1))
    assert list(door.report()) == ["aten::_softmax"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": ("gpu",)}, "devices is 'gpu'; expected names among cuda, cpu"),
        ({"devices": "cpu"}, r"Write devices=\('cpu',\)"),
        ({"families": ("norms",)}, "Did you mean 'norm'"),
        ({"enabled": 1}, "enabled is 1; expected True, False, or nothing"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(dnn.OptionError, match=words):
        door.accelerate(**arguments)
    with pytest.raises(dnn.OptionError, match="reset is 'all'"):
        door.report(reset="all")


def test_threads_share_the_registrations():
    x, failures = torch.randn(4, 3, 8, 8), []
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), weight)

    def work():
        for _ in range(5):
            (found,) = torch.autograd.grad(F.conv2d(x, weight).square().sum(), weight)
            if not torch.allclose(found, expected, rtol=1e-4):
                failures.append(found)

    with door.accelerate(**ON_CPU):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    report = door.report()
    assert (report["aten::convolution"].taken, report["aten::convolution_backward"].taken) == (20, 20)


def test_threads_without_options_take_those_of_the_call_before(monkeypatch):
    seen = []
    kernel = KERNELS["aten::relu"]

    def looks(x):
        seen.append(routes.CURRENT.get(routes.DEFAULT))
        return x.clone()

    monkeypatch.setitem(KERNELS, "aten::relu", type(kernel)(kernel.name, kernel.family, looks))
    x = torch.ones(2)
    with door.accelerate(**ON_CPU), dnn.options(workspace_limit=1000):
        torch.relu(x)
        thread = threading.Thread(
            target=torch.relu, args=(x,)
        )  # a thread begins without options, as those of autograd do
        thread.start()
        thread.join()
    assert [options.workspace_limit for options in seen] == [1000, 1000]


def test_deterministic_algorithms_of_pytorch_are_those_of_dnnarray(monkeypatch):
    seen = []
    kernel = KERNELS["aten::relu"]
    watched = type(kernel)(kernel.name, kernel.family, lambda x: seen.append(dnn.options().__enter__()) or x.clone())
    monkeypatch.setitem(KERNELS, "aten::relu", watched)
    with door.accelerate(**ON_CPU):
        torch.use_deterministic_algorithms(True)
        try:
            torch.relu(torch.ones(2))
        finally:
            torch.use_deterministic_algorithms(False)
        torch.relu(torch.ones(2))
    assert [options.deterministic for options in seen] == [True, False]


def test_a_backward_after_the_block_is_that_of_pytorch():
    exact = gradients("resnet", torch.float64)
    net, x, loss, _ = network("resnet", torch.float32)
    with door.accelerate(**ON_CPU):
        value = loss(net(x))
    value.backward()
    found = [p.grad for p in net.parameters()]
    assert max(errors(found, exact[2 : 2 + len(found)])) < 1e-4


def test_inference_mode_and_no_grad_are_taken():
    x, weight = torch.randn(1, 3, 8, 8), torch.nn.Parameter(torch.randn(4, 3, 3, 3))
    expected = F.conv2d(x, weight)
    with door.accelerate(**ON_CPU):
        with torch.inference_mode():
            inside = F.conv2d(torch.randn(1, 3, 8, 8), weight)
        with torch.no_grad():
            outside = F.conv2d(x, weight)
    assert inside.is_inference()
    torch.testing.assert_close(outside, expected, rtol=1e-5, atol=1e-5)
    assert _taken("aten::convolution") == 2


def test_results_are_memory_of_pytorch():
    x = torch.randn(2, 3, 8, 8)
    with door.accelerate(**ON_CPU):
        y = F.relu(F.conv2d(x, torch.randn(4, 3, 3, 3)))
    assert y.is_contiguous()
    y.resize_(1)  # refused for memory that PyTorch does not own
    del x
    gc.collect()
    y.fill_(2.0)


def test_running_statistics_move_in_place_and_evaluation_leaves_them():
    x = torch.randn(8, 3, 4, 4)
    mine, other = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    addresses = [b.data_ptr() for b in mine.buffers()]
    for _ in range(3):
        other(x)
        with door.accelerate(**ON_CPU):
            mine(x)
    for a, b in zip(mine.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    assert [b.data_ptr() for b in mine.buffers()] == addresses
    with door.accelerate(**ON_CPU):
        torch.testing.assert_close(mine.eval()(x), other.eval()(x))


# --- operators that PyTorch has on CUDA devices alone: their implementations on tensors of the processor -------------


def test_cudnn_batch_norm_keeps_what_its_gradient_takes():
    x, weight, bias = torch.randn(4, 3, 5, 5), torch.rand(3) + 0.5, torch.randn(3)
    mean, variance = torch.zeros(3), torch.ones(3)
    y, saved_mean, saved_rstd, reserve = norm_kernels.cudnn_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x, weight, bias, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5)
    for found, wanted in zip((y, saved_mean, saved_rstd), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    assert (reserve.dtype, reserve.numel()) == (torch.uint8, 0)
    grad = torch.randn_like(x)
    found = norm_kernels.cudnn_batch_norm_backward(
        x, grad, weight, mean, variance, saved_mean, saved_rstd, 1e-5, reserve
    )
    arguments = (grad, x, weight, None, None, saved_mean, saved_rstd, True, 1e-5, [True] * 3)
    instead = KERNELS["aten::cudnn_batch_norm_backward"].instead(
        x, grad, weight, mean, variance, saved_mean, saved_rstd, 1e-5, reserve
    )
    for mine, declined, other in zip(
        found, instead, torch.ops.aten.native_batch_norm_backward(*arguments), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(declined, other)


def _attention_arguments():
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8) for n in (5, 7, 7, 5)]  # q, k, v and the gradient


def _attention_expected(q, k, v, grad, **options):
    wanted = [t.clone().requires_grad_() for t in (q, k, v)]
    output = F.scaled_dot_product_attention(*wanted, **options)
    scores = q @ k.transpose(-1, -2) / 8**0.5 + (
        options.get("attn_mask") if options.get("attn_mask") is not None else 0
    )
    return output.detach(), torch.autograd.grad(output, wanted, grad), torch.logsumexp(scores, -1)


def test_flash_attention_returns_what_its_gradient_takes():
    q, k, v, grad = _attention_arguments()
    output, gradients, lse = _attention_expected(q, k, v, grad)
    found = attention_kernels.flash(q, k, v)
    assert found[4:6] == (5, 7)
    torch.testing.assert_close(found[0], output)
    torch.testing.assert_close(found[1], lse)
    pulled = attention_kernels.flash_backward(grad, q, k, v, found[0], found[1], *found[2:6], 0.0, False, *found[6:8])
    torch.testing.assert_close(pulled, gradients, rtol=1e-4, atol=1e-5)


def test_memory_efficient_attention_pads_the_log_sum_exp():
    q, k, v, grad = _attention_arguments()
    bias = torch.randn(2, 3, 5, 7)
    output, gradients, lse = _attention_expected(q, k, v, grad, attn_mask=bias)
    found = attention_kernels.efficient(q, k, v, bias, True)
    torch.testing.assert_close(found[0], output)
    assert found[1].shape == (2, 3, 32)
    torch.testing.assert_close(found[1][:, :, :5], lse)
    pulled = attention_kernels.efficient_backward(
        grad, q, k, v, bias, found[0], found[1], *found[2:], 0.0, [True, True, True, False]
    )
    torch.testing.assert_close(pulled[:3], gradients, rtol=1e-4, atol=1e-5)
    assert pulled[3] is None
    assert attention_kernels.efficient(q, k, v, bias, False)[1].shape == (2, 3, 0)


def test_cudnn_attention_returns_what_its_gradient_takes():
    q, k, v, grad = _attention_arguments()
    output, gradients, lse = _attention_expected(q, k, v, grad)
    found = attention_kernels.cudnn(q, k, v, None, True)
    torch.testing.assert_close(found[0], output)
    torch.testing.assert_close(found[1], lse.unsqueeze(-1))
    pulled = attention_kernels.cudnn_backward(
        grad, q, k, v, found[0], found[1], *found[6:8], None, None, None, 5, 7, 0.0, False
    )
    torch.testing.assert_close(pulled, gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("run", [attention_kernels.flash, attention_kernels.on_cpu])
def test_attention_with_dropout_is_declined(run):
    q, k, v, _ = _attention_arguments()
    with pytest.raises(dnn.UnsupportedError, match="dropout"):
        run(q, k, v, 0.5)
