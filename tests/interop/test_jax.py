"""`dnnarray.interop.jax` beside JAX's own functions, its errors, and what goes on around its calls."""

import inspect
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import operations

jax = pytest.importorskip("jax")
jnp = jax.numpy
door = pytest.importorskip("dnnarray.interop.jax")
target = pytest.importorskip("dnnarray.interop.jax.target")
run = pytest.importorskip("dnnarray.interop.jax.run")
pytestmark = pytest.mark.usefixtures("x64")


def _layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _max_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _conv(x, w):
    return jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (1, 1)))


def _cross_entropy(logits, target):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], 1).mean()


_IN_JAX = {
    "conv": (lambda x, w: door.conv(x, w, stride=2, padding=1), _conv, ((2, 3, 9, 8), (4, 3, 3, 3))),
    "max_pool": (lambda x: door.max_pool(x, 2), _max_pool, ((2, 3, 8, 6),)),
    "softmax": (door.softmax, jax.nn.softmax, ((4, 7),)),
    "layer_norm": (lambda x, w, b: door.layer_norm(x, w, b), _layer_norm, ((3, 5, 8), (8,), (8,))),
    "linear": (door.linear, lambda x, w: x @ w.T, ((3, 5), (4, 5))),
    "gelu": (door.gelu, lambda x: jax.nn.gelu(x, approximate=False), ((3, 5),)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", _IN_JAX)
def test_results_and_gradients_are_those_of_jax(name, dtype):
    ours, theirs, shapes = _IN_JAX[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    weight = rng.standard_normal(np.shape(theirs(*arrays))).astype(dtype)

    def value_and_gradients(function):
        return jax.jit(
            jax.value_and_grad(lambda *given: (function(*given) * weight).sum(), argnums=tuple(range(len(arrays))))
        )(*arrays)

    error = 1e-11 if dtype == "float64" else 2e-5
    for a, b in zip(
        jax.tree.leaves(value_and_gradients(ours)), jax.tree.leaves(value_and_gradients(theirs)), strict=True
    ):
        assert a.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=error, atol=error * float(jnp.abs(b).max()))


def _their_loss(params, images, labels):
    x = _max_pool(jax.nn.relu(_conv(images, params["conv"])))
    return _cross_entropy(x.reshape(len(x), -1) @ params["linear"], labels)


def _our_loss(params, images, labels):
    x = door.max_pool(door.conv(images, params["conv"], stride=2, padding=1, activation="relu"), 2)
    return door.cross_entropy(door.linear(x.reshape(len(x), -1), params["linear"].T), labels)


def test_a_training_step_agrees_with_jax():
    rng = np.random.default_rng(0)
    params = {"conv": rng.standard_normal((8, 3, 3, 3)) / 5, "linear": rng.standard_normal((128, 10)) / 12}
    params = {n: jnp.asarray(p, jnp.float32) for n, p in params.items()}
    images, labels = rng.standard_normal((16, 3, 16, 16)).astype(np.float32), rng.integers(0, 10, 16)

    def trained(loss):
        @jax.jit
        def step(params):
            value, grads = jax.value_and_grad(loss)(params, images, labels)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        now, values = params, []
        for _ in range(5):
            now, value = step(now)
            values.append(value)
        return now, values

    (ours, values), (theirs, expected) = trained(_our_loss), trained(_their_loss)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert values[-1] < values[0]
    for name in params:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_xla_s_own_memory_is_read_and_written(monkeypatch):
    seen = []
    monkeypatch.setattr(
        run, "compute", lambda call, given, out, own=run.compute: seen.append((given, out)) or own(call, given, out)
    )
    x, w = jnp.ones((4, 6)), jnp.ones((3, 6))
    y = jax.block_until_ready(jax.jit(door.linear)(x, w))
    ((given, out),) = seen
    assert [a.ctypes.data for a in (*given, *out)] == [a.unsafe_buffer_pointer() for a in (x, w, y)]


def test_without_64_bits_indices_are_int32():
    jax.config.update("jax_enable_x64", False)
    x = jnp.arange(32.0).reshape(1, 2, 4, 4)
    y, indices = jax.jit(lambda x: door.max_pool_with_indices(x, 2))(x)
    assert (y.dtype, indices.dtype) == ("float32", "int32")
    np.testing.assert_array_equal(indices[0, 0], [[5, 7], [13, 15]])
    grad = jax.jit(jax.grad(lambda x: door.max_pool(x, 2).sum()))(x)
    np.testing.assert_array_equal(grad[0, 0], np.array([[0, 0, 0, 0], [0, 1, 0, 1]] * 2))


@pytest.mark.parametrize("form", [int, np.uint32, jnp.int32])
def test_a_seed_is_static_or_traced(form):
    x = jnp.ones((4, 50))
    expected = dnn.dropout(np.ones((4, 50)), p=0.3, seed=7, offset=2)
    np.testing.assert_array_equal(door.dropout(x, p=0.3, seed=form(7), offset=2), expected)
    traced = jax.jit(lambda x, seed: door.dropout(x, p=0.3, seed=seed, offset=2))
    np.testing.assert_array_equal(traced(x, form(7)), expected)
    grad = jax.jit(jax.grad(lambda x, seed: door.dropout(x, p=0.3, seed=seed, offset=2).sum()))(x, form(7))
    np.testing.assert_array_equal(grad, expected)
    seeds = jnp.arange(6, 9)
    np.testing.assert_array_equal(jax.vmap(traced, in_axes=(None, 0))(x, seeds)[1], expected)


def test_settings_in_force_at_the_trace_hold():
    with dnn.options(float32_precision="medium", deterministic=True):
        function = jax.jit(door.relu)
        text = str(function.lower(jnp.ones(3)).as_text())
    assert "medium" in text
    assert "deterministic" in text
    np.testing.assert_array_equal(function(jnp.ones(3)), np.ones(3))


def test_telemetry_counts_what_xla_runs():
    with dnn.options(telemetry=True):
        function = jax.jit(door.relu).lower(jnp.ones(4)).compile()
    dnn.telemetry.reset()
    for _ in range(3):
        jax.block_until_ready(function(jnp.ones(4)))
    assert dnn.telemetry.snapshot()["relu"]["calls"] == 3


# --- errors -----------------------------------------------------------------------------------------------------------

_X = np.ones((2, 3, 8, 8))
_WRONG = [
    (lambda x: door.conv(x, jnp.ones((4, 5, 3, 3))), dnn.ShapeError, "conv: weight"),
    (lambda x: door.relu(x.astype(int)), dnn.DTypeError, "relu: x"),
    (lambda x: door.relu(x, out=x), dnn.OptionError, "never change"),
    (lambda x: door.layer_norm(x, eps=x[0, 0, 0, 0]), dnn.OptionError, "eps is an array of JAX"),
    (lambda x: door.dropout(x, seed=x), dnn.OptionError, "dropout: seed"),
    (lambda x: door.dropout(x, seed=-1), dnn.OptionError, "dropout: seed is -1"),
    (lambda x: door.attention(x, x, x, dropout=0.5), dnn.OptionError, "attention: seed"),
    (lambda x: door.linear(x, [1.0]), dnn.ArrayTypeError, "linear: weight is a list"),
    (lambda x: door.conv(x), TypeError, "missing 1 required positional argument: 'weight'"),
    (lambda x: door.conv(x, x, strid=2), TypeError, "Did you mean 'stride'"),
    (lambda x: door.conv(x, jnp.ones((4, 3, 3, 3)), algorithm="none"), dnn.OptionError, "conv: algorithm"),
    (lambda x: door.batch_norm_train(x, group=object()), dnn.UnsupportedError, "an option is"),
    (jax.grad(lambda x: door.relu_backward(x, x).sum()), dnn.UnsupportedError, "relu_backward: has no gradient"),
    (jax.grad(lambda x: door.layer_norm(x, return_stats=True)[1].sum()), dnn.UnsupportedError, "only the first result"),
    (
        jax.grad(lambda x: door.cross_entropy(_X[:, :, 0, 0], jnp.array([0, 1]), weight=x[0, :, 0, 0])),
        dnn.UnsupportedError,
        "stop_gradient",
    ),
    (lambda x: dnn.relu(x), dnn.ArrayTypeError, "dnnarray.interop.jax"),
]


@pytest.mark.parametrize("wrong, error, words", _WRONG, ids=range(len(_WRONG)))
def test_a_wrong_call_raises_when_it_is_traced(wrong, error, words):
    with pytest.raises(error, match=words):
        jax.jit(wrong).lower(jnp.asarray(_X))


def test_what_only_the_data_can_tell_is_an_error_of_xla():
    loss = jax.jit(lambda logits, target: door.nll_loss(logits, target))
    with pytest.raises(jax.errors.JaxRuntimeError, match="OptionError: nll_loss: target is 7"):
        jax.block_until_ready(loss(jnp.zeros((2, 3)), jnp.array([0, 7])))
    assert loss(jnp.zeros((2, 3)), jnp.array([0, 1])) == 0  # the process goes on


@pytest.mark.parametrize(
    "raised", [MemoryError("no more"), KeyboardInterrupt(), dnn.UnsupportedError("not this")], ids=repr
)
def test_any_exception_becomes_an_error_of_xla(raised, monkeypatch):
    def fail(*_):
        raise raised

    monkeypatch.setattr(run, "compute", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match=type(raised).__name__):
        jax.block_until_ready(jax.jit(door.relu)(jnp.ones(5)))


def test_a_custom_call_that_does_not_describe_a_call():
    assert target.registered()
    wrong = jax.ffi.ffi_call(target.NAME, jax.ShapeDtypeStruct((3,), "float64"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="description of a call"):
        jax.block_until_ready(wrong(jnp.ones(3), call=np.int64(3)))
    text = '["relu", ["float64[4]"], {}, {}, {}]'
    with pytest.raises(jax.errors.JaxRuntimeError, match="XLA gives 1 arrays"):
        jax.block_until_ready(wrong(jnp.ones(3), call=text))


# --- around the calls -------------------------------------------------------------------------------------------------


def test_threads_run_calls_at_once():
    w = jnp.asarray(np.random.default_rng(0).standard_normal((32, 64)))
    step = jax.jit(lambda x: door.layer_norm(door.linear(x, w)) + door.gelu(x[:, :32]))
    inputs = [jnp.full((16, 64), float(i)) + jnp.arange(64) / 7 for i in range(8)]
    expected, found = [np.asarray(step(x)) for x in inputs], {}

    def work(i):
        for _ in range(20):
            found[i] = np.asarray(step(inputs[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(expected):
        np.testing.assert_array_equal(found[i], want)


def test_control_flow_remat_and_scan():
    w = jnp.asarray(np.random.default_rng(0).standard_normal((6, 6)) / 3)

    def deep(linear, relu):
        def f(x):
            layer = jax.checkpoint(lambda x, _: (relu(linear(x, w)), None))
            return jax.lax.scan(layer, x, None, length=4)[0].sum()

        return f

    x = jnp.ones((2, 6))
    ours, theirs = (
        jax.jit(jax.value_and_grad(deep(*fs)))(x)
        for fs in ((door.linear, door.relu), (lambda x, w: x @ w.T, jax.nn.relu))
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-12)


def test_without_the_ffi_calls_go_through_pure_callback(monkeypatch, caplog):
    monkeypatch.setattr(jax, "ffi", None)
    target.registered.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "dnnarray"):
            x, w = jnp.arange(12.0).reshape(3, 4), jnp.ones((2, 4))
            found = jax.jit(jax.grad(lambda w: (door.linear(x, w) ** 2).sum()))(w)
            np.testing.assert_allclose(found, 2 * (x @ w.T).T @ x)
            np.testing.assert_allclose(jax.vmap(door.linear, in_axes=(0, None))(x[:, None], w)[:, 0], x @ w.T)
    finally:
        target.registered.cache_clear()
    assert [r.message for r in caplog.records if "pure_callback" in r.message] == [caplog.records[0].message]


_SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
jax.config.update("jax_enable_x64", True)
from dnnarray.interop.jax import conv, cross_entropy, layer_norm
rng = np.random.default_rng(0)
w, s, x = rng.standard_normal((4, 3, 3, 3)), np.ones(4), rng.standard_normal((8, 3, 6, 6))
labels = rng.integers(0, 4, 8)
def loss(w, s, x, labels):
    y = layer_norm(jnp.moveaxis(conv(x, w, padding=1, activation="relu"), 1, -1), s)
    return cross_entropy(y.mean((1, 2)), labels, reduction="sum")
mesh, specs = Mesh(np.array(jax.devices()), ("d",)), (P(), P(), P("d"), P("d"))
assert len(jax.devices()) == 4
spread = jax.shard_map(lambda *a: jax.lax.psum(loss(*a), "d"), mesh=mesh, in_specs=specs, out_specs=P())
want = jax.value_and_grad(loss, argnums=(0, 1))(w, s, x, labels)
have = jax.jit(jax.value_and_grad(spread, argnums=(0, 1)))(w, s, x, labels)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), have, want)
rows = jax.shard_map(lambda x: conv(x, w, padding=1), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
np.testing.assert_allclose(jax.jit(rows)(x), conv(x, w, padding=1), rtol=1e-12)
print("agrees")
"""


@pytest.mark.skipif(
    not hasattr(jax, "shard_map"), reason="this version of JAX has it elsewhere, and knows no custom calls in it"
)
def test_shard_map_over_several_devices():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-c", _SHARDED], capture_output=True, text=True, env=environment, check=False
    )
    assert result.stdout.strip() == "agrees", result.stderr


def test_an_executable_of_another_process_runs():
    """The text of a call says everything: nothing that this process alone knows enters XLA's program."""
    pytest.importorskip("flatbuffers")
    export = pytest.importorskip("jax.export")
    exported = export.export(
        jax.jit(lambda x: door.softmax(door.linear(x, jnp.ones((3, 4))))),
        disabled_checks=[export.DisabledSafetyCheck.custom_call(target.NAME)],
    )(jnp.ones((2, 4)))
    code = (
        "import sys, jax.export, dnnarray.interop.jax; jax.config.update('jax_enable_x64', True)\n"
        "f = jax.export.deserialize(sys.stdin.buffer.read())\n"
        "print(round(float(f.call(jax.numpy.ones((2, 4))).sum()), 6))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input=bytes(exported.serialize()), capture_output=True, check=False
    )
    assert result.stdout.decode().strip() == "2.0", result.stderr.decode()


def test_every_function_is_there_with_its_signature():
    assert set(door.__all__) == set(operations())
    assert "out" not in inspect.signature(door.conv).parameters
    assert "`dnnarray.conv` as a function of JAX arrays" in door.conv.__doc__


def test_running_statistics_move_on_beside_gradients():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 4, 3, 3)), jnp.ones(4)

    @jax.jit
    def loss(w, statistics):
        result = door.batch_norm_train(x, w, None, *statistics)
        return (result.y**3).sum(), (result.running_mean, result.running_var)

    @jax.jit
    def trained(w, statistics):
        def step(carry, _):
            w, statistics = carry
            grad, statistics = jax.grad(loss, has_aux=True)(w, statistics)
            return (w - 0.001 * grad, statistics), None

        return jax.lax.scan(step, (w, statistics), None, length=3)[0]

    w, (mean, _) = trained(w, (jnp.zeros(4), jnp.ones(4)))
    expected, old = np.ones(4), np.zeros(4)
    for _ in range(3):
        result, pullback = dnn.vjp("batch_norm_train", x, expected, None, old, np.ones(4))
        grads = pullback((3 * result.y**2, *(None,) * (len(result) - 1)))
        expected, old = expected - 0.001 * grads[1], result.running_mean
    np.testing.assert_allclose(w, expected, rtol=1e-10)
    np.testing.assert_allclose(mean, old, rtol=1e-10)
