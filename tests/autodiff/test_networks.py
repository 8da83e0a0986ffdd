"""Gradients of whole networks beside PyTorch's, in float64, with the same parameters."""

import numpy as np
import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch")
F = torch.nn.functional


def normal(rng, *shape):
    return rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[1:])))


def compare(loss, reference, params, *data, tolerance=1e-9):
    """Value and gradients of both, leaf by leaf."""
    value, gradients = dnn.value_and_grad(loss)(params, *data)
    tensors = {n: torch.tensor(p, requires_grad=True) for n, p in params.items()}
    expected = reference(tensors, *[torch.tensor(d) for d in data])
    expected.backward()
    np.testing.assert_allclose(value, expected.detach().numpy(), rtol=tolerance)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradients[name], tensor.grad.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def test_convolutional_network():
    rng = np.random.default_rng(0)
    params = {
        "conv0": normal(rng, 6, 3, 3, 3), "scale0": 1 + normal(rng, 6), "shift0": normal(rng, 6),
        "conv1": normal(rng, 6, 6, 3, 3), "scale1": 1 + normal(rng, 6), "shift1": normal(rng, 6),
        "linear": normal(rng, 5, 6 * 2 * 2), "bias": normal(rng, 5),
    }  # fmt: skip

    def loss(p, x, target):
        x = dnn.conv(x, p["conv0"], padding=1)
        x = dnn.batch_norm_train(x, p["scale0"], p["shift0"], activation="relu").y
        y = dnn.conv(x, p["conv1"], padding=1)
        y = dnn.batch_norm_train(y, p["scale1"], p["shift1"]).y
        x = dnn.max_pool(dnn.relu(x + y), 2)
        x = dnn.avg_pool(x, 2)
        return dnn.cross_entropy(dnn.linear(x.reshape(x.shape[0], -1), p["linear"], p["bias"]), target)

    def reference(p, x, target):
        x = F.conv2d(x, p["conv0"], padding=1)
        x = F.relu(F.batch_norm(x, None, None, p["scale0"], p["shift0"], training=True))
        y = F.conv2d(x, p["conv1"], padding=1)
        y = F.batch_norm(y, None, None, p["scale1"], p["shift1"], training=True)
        x = F.avg_pool2d(F.max_pool2d(F.relu(x + y), 2), 2)
        return F.cross_entropy(F.linear(x.flatten(1), p["linear"], p["bias"]), target)

    compare(loss, reference, params, rng.standard_normal((4, 3, 8, 8)), np.array([0, 3, 4, 1]))


def transformer_parameters(rng, vocabulary=11, width=8):
    return {
        "embedding": normal(rng, vocabulary, width),
        "norm": 1 + normal(rng, width),
        "qkv": normal(rng, 3 * width, width),
        "out": normal(rng, width, width),
        "up": normal(rng, 4 * width, width),
        "down": normal(rng, width, 4 * width),
        "head": normal(rng, vocabulary, width),
    }


def transformer(p, tokens, target, heads=2):
    """One pre-norm block with causal attention and tied dimensions."""
    x = dnn.embedding(tokens, p["embedding"])
    n, s, width = x.shape
    q, k, v = (
        dnn.linear(dnn.rms_norm(x, p["norm"]), p["qkv"])
        .reshape(n, s, 3, heads, width // heads)
        .transpose(2, 0, 3, 1, 4)
    )
    y = dnn.attention(q, k, v, causal=True).transpose(0, 2, 1, 3).reshape(n, s, width)
    x = x + dnn.linear(y, p["out"])
    x = x + dnn.linear(dnn.gelu(dnn.linear(x, p["up"])), p["down"])
    return dnn.cross_entropy(dnn.linear(x, p["head"]).reshape(n * s, -1), target.reshape(-1))


def transformer_reference(p, tokens, target, heads=2):
    x = F.embedding(tokens, p["embedding"])
    n, s, width = x.shape
    h = F.rms_norm(x, (width,), p["norm"], eps=1e-6)
    q, k, v = F.linear(h, p["qkv"]).reshape(n, s, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, width)
    x = x + F.linear(y, p["out"])
    x = x + F.linear(F.gelu(F.linear(x, p["up"])), p["down"])
    return F.cross_entropy(F.linear(x, p["head"]).reshape(n * s, -1), target.reshape(-1))


def test_transformer():
    rng = np.random.default_rng(1)
    compare(
        transformer,
        transformer_reference,
        transformer_parameters(rng),
        rng.integers(0, 11, (2, 7)),
        rng.integers(0, 11, (2, 7)),
    )


def test_transformer_checkpointed():
    rng = np.random.default_rng(2)
    block = dnn.checkpoint(transformer)
    compare(
        block,
        transformer_reference,
        transformer_parameters(rng),
        rng.integers(0, 11, (2, 7)),
        rng.integers(0, 11, (2, 7)),
    )


def test_recurrent_network():
    rng = np.random.default_rng(3)
    params = {
        "w_ih": normal(rng, 20, 3),
        "w_hh": normal(rng, 20, 5),
        "b_ih": normal(rng, 20),
        "b_hh": normal(rng, 20),
        "out": normal(rng, 2, 5),
    }
    names = ("w_ih", "w_hh", "b_ih", "b_hh")

    def loss(p, x, target):
        output = dnn.lstm(x, [dnn.RNNWeights(*(p[n] for n in names))])
        return ((dnn.linear(output.y, p["out"]) - target) ** 2).mean() + (output.c * output.h).mean()

    def reference(p, x, target):
        zeros = torch.zeros(1, x.shape[1], 5, dtype=torch.float64)
        y, h, c = torch._VF.lstm(x, (zeros, zeros), [p[n] for n in names], True, 1, 0.0, True, False, False)
        return ((F.linear(y, p["out"]) - target) ** 2).mean() + (c * h).mean()

    compare(loss, reference, params, rng.standard_normal((6, 4, 3)), rng.standard_normal((6, 4, 2)))


def test_arrays_of_torch_are_differentiated_without_its_autograd():
    x, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    found = dnn.grad(lambda w: (dnn.gelu(dnn.linear(x, w)) ** 2).sum())(w)
    w.requires_grad_()
    (F.gelu(F.linear(x, w)) ** 2).sum().backward()
    torch.testing.assert_close(found, w.grad)
