"""The script that holds torchvision's and timm's networks to float64, with the small networks of these tests."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("dnnarray.interop.torch")
from tests.interop import zoo  # noqa: E402 - where PyTorch is there
from tests.interop.networks import NETWORKS  # noqa: E402


def _build(name):
    make, draw, loss, _ = NETWORKS[name]
    return make(), lambda dtype, device: draw(dtype).to(device), loss


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(zoo, "build", lambda name, size, batch: _build(name))


@pytest.mark.usefixtures("small")
def test_the_table_has_a_line_for_each_network(capsys):
    assert zoo.main(["resnet", "vit", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["network", "resnet", "vit", "2"]
    assert all(0 < float(line.split()[3]) <= zoo.LIMIT for line in lines[1:3])


@pytest.mark.usefixtures("small")
def test_a_network_that_fails_is_named(capsys):
    assert zoo.main(["nothing", "speech"]) == 1
    output = capsys.readouterr().out
    assert "KeyError: 'nothing'" in output
    assert "2 networks, 1 beyond" in output


def test_errors_that_are_too_large_are_found(monkeypatch, capsys):
    monkeypatch.setattr(zoo, "measure", lambda *_: (1e-7, 1e-6))
    assert zoo.main(["torchvision/resnet18"]) == 1
    assert "1 networks, 1 beyond" in capsys.readouterr().out


def test_nothing_is_drawn_at_random():
    net = zoo.without_randomness(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 2)))
    x = torch.ones(3, 2)
    assert torch.equal(net[0](x), x)


def test_there_are_forty_networks():
    assert len(set(zoo.NAMES)) >= 40


def test_networks_of_torchvision():
    pytest.importorskip("torchvision")
    assert zoo.main(["torchvision/resnet18", "--batch", "2", "--seeds", "1"]) == 0
