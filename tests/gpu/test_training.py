"""Differentiation and optimizers on CuPy arrays beside NumPy's, and PyTorch's door on CUDA tensors."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.autodiff.test_rules import BINARY, OPERATORS, SHAPES, UNARY, values

cupy = pytest.importorskip("cupy")
torch = pytest.importorskip("torch")


def on_card(tree):
    if isinstance(tree, dict):
        return {n: on_card(t) for n, t in tree.items()}
    return cupy.asarray(tree)


def network(p, x, target):
    x = dnn.conv(x, p["conv"], padding=1)
    x = dnn.batch_norm_train(x, p["scale"], p["shift"], activation="relu").y
    x = dnn.max_pool(x, 2)
    return dnn.cross_entropy(dnn.linear(x.reshape(x.shape[0], -1), p["linear"]), target)


def drawn():
    rng = np.random.default_rng(0)
    p = {
        "conv": rng.standard_normal((6, 3, 3, 3)),
        "scale": np.ones(6),
        "shift": np.zeros(6),
        "linear": rng.standard_normal((5, 96)) / 10,
    }
    return p, rng.standard_normal((4, 3, 8, 8)), np.array([0, 3, 4, 1])


def test_a_network_has_the_gradients_of_the_cpu_engine():
    p, x, target = drawn()
    value, gradients = dnn.value_and_grad(network)(p, x, target)
    found, card = dnn.value_and_grad(network)(on_card(p), cupy.asarray(x), cupy.asarray(target))
    np.testing.assert_allclose(found.get(), value, rtol=1e-10)
    for name, gradient in gradients.items():
        assert type(card[name]) is cupy.ndarray
        np.testing.assert_allclose(card[name].get(), gradient, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_rules_of_the_array_api(name):
    x, y = values(3, 4, low=0.3, high=0.9), values(4, low=0.4, high=0.8, seed=1)
    low = 1.1 if name == "acosh" else 0.0

    def f(x, y):
        xp = x.__array_namespace__()
        return ((getattr(xp, name)(x + low) if name in UNARY else getattr(xp, name)(x, y)) ** 2).sum()

    for have, want in zip(
        dnn.grad(f, (0, 1))(cupy.asarray(x), cupy.asarray(y)), dnn.grad(f, (0, 1))(x, y), strict=True
    ):
        np.testing.assert_allclose(have.get(), want, rtol=1e-10)


# Those that need no second array, which would be one of NumPy.
_WITH_ARRAYS = {"array on the left", "x @ y", "y @ x", "flip", "roll", "sort", "repeat", "take", "take_along_axis"}
_ON_BOTH = {n: f for n, f in (SHAPES | OPERATORS).items() if n not in _WITH_ARRAYS} | {
    "flip": lambda x: x.__array_namespace__().flip(x, axis=1)[:, 1:] ** 2,
    "roll": lambda x: x.__array_namespace__().roll(x, 1, axis=1)[:, 1:] ** 2,
    "sort": lambda x: x.__array_namespace__().sort(x, axis=1)[:, 1:] ** 2,
}


@pytest.mark.parametrize("name", _ON_BOTH)
def test_shapes_and_operators(name):
    f = (SHAPES | OPERATORS)[name]
    x = values(3, 4, low=0.3, high=1.8)
    given = f
    if name in ("repeat", "take", "take_along_axis"):
        pytest.skip("the case indexes with arrays of NumPy")

    def total(x):
        return given(x).sum()

    weights = np.arange(4.0)
    if name in ("flip", "roll", "sort"):
        ways = {
            "flip": lambda x, xp: xp.flip(x, axis=1),
            "roll": lambda x, xp: xp.roll(x, 1, axis=1),
            "sort": lambda x, xp: xp.sort(x, axis=1),
        }

        def total(x):
            ours = cupy.asarray(weights) if "cupy" in x.__array_namespace__().__name__ else weights
            return (ways[name](x, x.__array_namespace__()) ** 2 * ours).sum()

    np.testing.assert_allclose(dnn.grad(total)(cupy.asarray(x)).get(), dnn.grad(total)(x), rtol=1e-10)


def test_indexing_with_repeated_positions():
    x, index = values(3, 4), np.array([0, 2, 0, 0])
    have = dnn.grad(lambda x: (x[cupy.asarray(index)] ** 2).sum())(cupy.asarray(x))
    np.testing.assert_allclose(have.get(), dnn.grad(lambda x: (x[index] ** 2).sum())(x), rtol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lion"])
def test_optimizers(name):
    step, options = getattr(dnn, name), {"momentum": 0.9} if name == "sgd" else {}
    p, g = {"a": values(3, 4)}, {"a": values(3, 4, seed=1)}
    host, card, host_state, card_state = p, on_card(p), None, None
    for _ in range(3):
        host, host_state = step(host, g, host_state, lr=0.1, **options)
        card, card_state = step(card, on_card(g), card_state, lr=0.1, **options)
    np.testing.assert_allclose(card["a"].get(), host["a"], rtol=1e-12)
    clipped, norm = dnn.clip_by_global_norm(on_card(g), 0.5)
    expected, expected_norm = dnn.clip_by_global_norm(g, 0.5)
    np.testing.assert_allclose(norm.get(), expected_norm)
    np.testing.assert_allclose(clipped["a"].get(), expected["a"])


def test_torch_tensors_through_their_own_autograd():
    door = pytest.importorskip("dnnarray.interop.torch")
    x, w, scale = (torch.randn(s, device="cuda", requires_grad=True) for s in ((2, 3, 8, 8), (4, 3, 3, 3), (4,)))

    def ours(x, w, scale):
        return door.layer_norm(door.max_pool(door.conv(x, w, padding=1, activation="relu"), 2), scale, axis=-1).sum()

    def theirs(x, w, scale):
        functional = torch.nn.functional
        y = functional.max_pool2d(torch.relu(functional.conv2d(x, w, padding=1)), 2)
        return functional.layer_norm(y, (4,), scale).sum()

    expected = torch.autograd.grad(theirs(x, w, scale), (x, w, scale))
    for f in (ours, torch.compile(ours, fullgraph=True, backend="aot_eager")):
        for have, want in zip(torch.autograd.grad(f(x, w, scale), (x, w, scale)), expected, strict=True):
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)
