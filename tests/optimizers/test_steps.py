"""The optimizers beside PyTorch's and beside the formulas of their papers, over structures of arrays."""

import math

import ml_dtypes
import numpy as np
import pytest

import dnnarray as dnn

OPTIMIZERS = {
    "sgd": (dnn.sgd, {}, "SGD", {}),
    "sgd decay": (dnn.sgd, {"weight_decay": 0.1}, "SGD", {"weight_decay": 0.1}),
    "sgd momentum": (dnn.sgd, {"momentum": 0.9, "dampening": 0.3}, "SGD", {"momentum": 0.9, "dampening": 0.3}),
    "sgd nesterov": (
        dnn.sgd,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        "SGD",
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "adam": (dnn.adam, {}, "Adam", {}),
    "adam options": (
        dnn.adam,
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
        "Adam",
        {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adamw": (dnn.adamw, {}, "AdamW", {}),
    "adamw decay": (dnn.adamw, {"weight_decay": 0.3}, "AdamW", {"weight_decay": 0.3}),
}


def drawn(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.standard_normal((3, 4)).astype(dtype),
        "b": [rng.standard_normal(5).astype(dtype), rng.standard_normal(()).astype(dtype)],
    }


def flat(tree):
    return [tree["a"], *tree["b"]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    step, options, theirs, their_options = OPTIMIZERS[name]
    params, state = drawn(), None
    tensors = [torch.tensor(p, requires_grad=True) for p in flat(params)]
    optimizer = getattr(torch.optim, theirs)(tensors, lr=0.1, **their_options)
    for i in range(5):
        grads = drawn(seed=i + 1)
        params, state = step(params, grads, state, lr=0.1, **options)
        for tensor, grad in zip(tensors, flat(grads), strict=True):
            tensor.grad = torch.tensor(grad)
        optimizer.step()
    assert state.step == 5
    for p, tensor in zip(flat(params), tensors, strict=True):
        np.testing.assert_allclose(p, tensor.detach().numpy(), rtol=1e-12)


def test_lion_follows_its_paper():
    p, g, m = np.array([1.0, -2.0]), np.array([0.5, 0.1]), np.zeros(2)
    params, state = [p], None
    for i in range(4):
        grad = g * (-1) ** i
        params, state = dnn.lion(params, [grad], state, lr=0.1, betas=(0.9, 0.99), weight_decay=0.2)
        c = 0.9 * m + 0.1 * grad
        p = p - 0.1 * (np.sign(c) + 0.2 * p)
        m = 0.99 * m + 0.01 * grad
        np.testing.assert_allclose(params[0], p, rtol=1e-14)
        np.testing.assert_allclose(state.momentum[0], m, rtol=1e-14)


@pytest.mark.parametrize("name", [*OPTIMIZERS, "lion"])
def test_out_writes_in_place_and_gives_the_same(name):
    step, options = (dnn.lion, {}) if name == "lion" else OPTIMIZERS[name][:2]
    params, state = step(drawn(), drawn(1), lr=0.1, **options)
    expected = step(params, drawn(2), state, lr=0.1, **options)
    before = [id(p) for p in flat(params)]
    found, new_state = step(params, drawn(2), state, lr=0.1, **options, out=(params, state))
    assert [id(p) for p in flat(found)] == before
    for have, want in zip(flat(found), flat(expected[0]), strict=True):
        np.testing.assert_array_equal(have, want)
    for slot, want in zip(new_state[1:], expected[1][1:], strict=True):
        if want is not None:
            for a, b in zip(flat(slot), flat(want), strict=True):
                np.testing.assert_array_equal(a, b)


def test_inputs_are_not_changed():
    params, grads = drawn(), drawn(1)
    copies = [a.copy() for a in (*flat(params), *flat(grads))]
    dnn.adam(params, grads, lr=0.1)
    for a, b in zip((*flat(params), *flat(grads)), copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_leaves_without_a_gradient_stay():
    params = {"w": np.ones(2), "index": np.array([1, 2]), "steps": 3, "none": None}
    grads = {"w": np.ones(2), "index": None, "steps": None, "none": None}
    new, state = dnn.adam(params, grads, lr=0.5)
    assert new["index"] is params["index"]
    assert new["steps"] == 3
    assert state.mean["index"] is None
    again, _ = dnn.adam(new, grads, state, lr=0.5)
    assert again["none"] is None


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_types_compute_in_float32(dtype):
    params, grads = [np.full(3, 1.0, dtype)], [np.full(3, 1e-4, dtype)]
    state = None
    exact, exact_state = [np.full(3, 1.0, np.float32)], None
    for _ in range(3):
        params, state = dnn.adam(params, grads, state, lr=0.01)
        exact, exact_state = dnn.adam(exact, [grads[0].astype(np.float32)], exact_state, lr=0.01)
    assert params[0].dtype == dtype
    assert state.square[0].dtype == np.float32
    np.testing.assert_array_equal(state.square[0], exact_state.square[0])
    np.testing.assert_allclose(params[0].astype(float), exact[0], rtol=3 * float(ml_dtypes.finfo(dtype).eps))


def test_a_step_trains():
    x, target = np.random.default_rng(0).standard_normal((64, 4)), np.arange(64) % 3
    params, state = {"w": np.zeros((3, 4))}, None
    step = dnn.value_and_grad(lambda p: dnn.cross_entropy(dnn.linear(x, p["w"]), target))
    losses = []
    for _ in range(30):
        value, grads = step(params)
        grads, _ = dnn.clip_by_global_norm(grads, 1.0)
        params, state = dnn.adamw(params, grads, state, lr=0.05)
        losses.append(float(value))
    assert losses[-1] < losses[0] - 0.05


def test_clipping_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    for limit in (0.5, 100.0, math.inf):
        grads = drawn(3, np.float32)
        tensors = [torch.zeros(g.shape, requires_grad=True) for g in flat(grads)]
        for t, g in zip(tensors, flat(grads), strict=True):
            t.grad = torch.tensor(g)
        expected = torch.nn.utils.clip_grad_norm_(tensors, limit)
        found, norm = dnn.clip_by_global_norm(grads, limit)
        assert norm.dtype == np.float32
        np.testing.assert_allclose(norm, expected, rtol=1e-6)
        for have, t in zip(flat(found), tensors, strict=True):
            np.testing.assert_allclose(have, t.grad.numpy(), rtol=1e-6)


def test_a_norm_beyond_float32_squares_is_right():
    _, norm = dnn.clip_by_global_norm([np.full(4, 1e30, np.float32)], 1.0)
    np.testing.assert_allclose(norm, 2e30, rtol=1e-6)


ERRORS = {
    "rate": (lambda: dnn.sgd([np.ones(1)], [np.ones(1)], lr=-1), dnn.OptionError, "sgd: lr is -1"),
    "betas": (lambda: dnn.adam([np.ones(1)], [np.ones(1)], lr=1, betas=(0.9, 1.0)), dnn.OptionError, "adam: betas is"),
    "nesterov": (lambda: dnn.sgd([np.ones(1)], [np.ones(1)], lr=1, nesterov=True), dnn.OptionError, "nesterov"),
    "structures": (
        lambda: dnn.sgd({"a": np.ones(1)}, {"b": np.ones(1)}, lr=1),
        dnn.OptionError,
        "sgd: the structures differ at the top",
    ),
    "shape": (lambda: dnn.lion([np.ones(2)], [np.ones(3)], lr=1), dnn.ShapeError, r"lion: grads is of shape \(3,\)"),
    "dtype": (lambda: dnn.sgd([np.ones(2)], [np.ones(2, np.float32)], lr=1), dnn.DTypeError, "sgd: grads is float32"),
    "no array": (lambda: dnn.sgd([1.0], [1.0], lr=1), dnn.ArrayTypeError, "sgd: params"),
    "integers": (lambda: dnn.sgd([np.ones(2, int)], [np.ones(2, int)], lr=1), dnn.DTypeError, "a floating dtype"),
    "state": (
        lambda: dnn.adam([np.ones(1)], [np.ones(1)], dnn.SGDState(1, None), lr=1),
        dnn.OptionError,
        "expected a AdamState",
    ),
    "another state": (
        lambda: dnn.sgd([np.ones(1)], [np.ones(1)], dnn.SGDState(1, None), lr=1, momentum=0.9),
        dnn.OptionError,
        "Begin anew with state=None",
    ),
    "out": (lambda: dnn.sgd([np.ones(1)], [np.ones(1)], lr=1, out=[np.ones(1)]), dnn.OptionError, "sgd: out is a list"),
    "nothing to clip": (lambda: dnn.clip_by_global_norm([], 1.0), dnn.ArrayTypeError, "at least one gradient"),
    "limit": (lambda: dnn.clip_by_global_norm([np.ones(1)], float("nan")), dnn.OptionError, "max_norm"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call()


def test_schedules():
    rate = dnn.warmup_schedule(1.0, 4, start=0.2)
    np.testing.assert_allclose([rate(s) for s in range(6)], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert dnn.warmup_schedule(1.0, 0)(0) == 1.0
    rate = dnn.cosine_schedule(1.0, 12, warmup_steps=2, final_lr=0.1)
    np.testing.assert_allclose([rate(s) for s in (0, 1, 2, 7, 12, 99)], [0.0, 0.5, 1.0, 0.55, 0.1, 0.1])
    with pytest.raises(dnn.OptionError, match="steps is 2"):
        dnn.cosine_schedule(1.0, 2, warmup_steps=2)
