"""CUDA arrays of other libraries in and out; threads; the host's side of a launch."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dnnarray as dnn

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_X = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_tensors_in_and_out(dtype):
    torch = pytest.importorskip("torch")
    x = torch.tensor(_X, device="cuda").to(getattr(torch, dtype))
    y = dnn.relu(x)
    assert type(y) is torch.Tensor
    assert (y.dtype, y.device) == (x.dtype, x.device)
    assert torch.equal(y, torch.relu(x))
    for _ in range(2):  # the second call goes by addresses
        out = torch.empty_like(x)
        assert dnn.relu(x, out=out) is out
        assert torch.equal(out, y)
        assert dnn.relu(out.copy_(x), out=out) is out
        assert torch.equal(out, y)


def test_torch_results_in_memory_other_than_planned():
    torch = pytest.importorskip("torch")
    x, weight = torch.randn(6, 8, device="cuda"), torch.nn.Parameter(torch.rand(8, device="cuda"))
    with torch.no_grad():
        expected = dnn.layer_norm(x, weight, return_stats=True)
        workspace = torch.empty(1 << 16, dtype=torch.uint8, device="cuda")
        for _ in range(3):  # the first call of a form goes the general way
            whole = (
                torch.full((6, 2, 8), 7.0, device="cuda"),
                *(torch.full((4, *r.shape), 7.0, device="cuda") for r in expected[1:]),
            )
            out = whole[0][:, 1], *(memory[2] for memory in whole[1:])
            result = dnn.layer_norm(x, weight, return_stats=True, out=out, workspace=workspace)
            for given, got, right in zip(out, result, expected, strict=True):
                assert got is given
                assert torch.equal(given, right)
            assert bool((whole[0][:, 0] == 7).all())
            odd = torch.empty(49, device="cuda")[1:].view(6, 8)
            assert dnn.relu(x, out=odd) is odd
            assert torch.equal(odd, torch.relu(x))


def test_strided_and_offset_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.tensor(_X, device="cuda")
    for view in (x[1:, ::2], x.permute(2, 0, 1), x[:, :, 1], x[:0], x[0, 0, 0]):
        assert torch.equal(dnn.relu(view), torch.relu(view))


def test_torch_results_with_several_parts_and_channels_last_memory():
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 8, 6, 6, device="cuda").to(memory_format=torch.channels_last)
    y, indices = dnn.max_pool_with_indices(x, 2)
    expected, places = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(y, expected)
    assert torch.equal(indices, places)
    assert y.is_contiguous(memory_format=torch.channels_last)
    grads = dnn.layer_norm_backward(x, x, axis=-1)
    assert torch.is_tensor(grads[0])
    assert grads[1] is None


def test_work_is_queued_on_the_stream_that_torch_has_set():
    torch = pytest.importorskip("torch")
    x = torch.zeros(1 << 24, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a kernel on another stream would read the zeros
        x.fill_(-3)
        y = dnn.leaky_relu(x, negative_slope=0.5)
    stream.synchronize()
    assert float(y.max()) == -1.5


def test_torch_tensors_that_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.zeros(3, device="cuda")
    with pytest.raises(dnn.ArrayTypeError, match="requires grad"):
        dnn.relu(x.clone().requires_grad_())
    with pytest.raises(dnn.ArrayTypeError, match="complex64"):
        dnn.relu(x.to(torch.complex64))
    with pytest.raises(dnn.ArrayTypeError, match="to_dense"):
        dnn.relu(x.to_sparse())
    with pytest.raises(dnn.ArrayTypeError, match="cupy"):
        dnn.relu_backward(x, cupy.zeros(3))
    with pytest.raises(dnn.ArrayTypeError, match="torch"):
        dnn.relu_backward(x, x.cpu())
    with pytest.raises(dnn.OptionError, match="memory shared"):
        dnn.relu(x[:-1], out=x[1:])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_arrays_in_and_out(dtype):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    x = jax.numpy.asarray(_X, dtype)
    y = dnn.relu(x)
    assert isinstance(y, jax.Array)
    assert y.dtype == x.dtype
    assert bool((y == jax.nn.relu(x)).all())


def test_jax_arrays_are_held_until_the_device_is_done():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    from dnnarray._cuda import engine

    wait = cupy.RawKernel(
        'extern "C" __global__ void wait() { for (long long t = clock64(); clock64() - t < 200000000;); }', "wait"
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        wait((1,), (1,), ())
        y = dnn.relu(jax.numpy.asarray(_X))  # nobody else keeps the argument
        held = len(engine._held)
    assert held >= 1
    stream.synchronize()
    dnn.relu(jax.numpy.asarray(_X))
    cupy.cuda.Device().synchronize()
    dnn.relu(jax.numpy.asarray(_X))
    assert len(engine._held) == 1
    np.testing.assert_array_equal(np.asarray(y), np.maximum(_X, 0))


def test_a_new_thread_may_make_the_first_call():
    x, y = cupy.asarray(_X), cupy.empty(_X.shape, np.float32)
    dnn.relu(x, out=y)
    y.fill(7)
    cupy.cuda.Device().synchronize()
    thread = threading.Thread(target=dnn.relu, args=(x,), kwargs={"out": y})
    thread.start()
    thread.join()
    np.testing.assert_array_equal(cupy.asnumpy(y), np.maximum(_X, 0))


def test_many_threads_share_one_plan():
    arrays = [cupy.full((257,), float(i), np.float32) for i in range(64)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            for i, y in enumerate(pool.map(dnn.relu, arrays)):
                assert float(y.sum()) == 257.0 * i


def test_out_of_memory_is_tried_again_and_then_named():
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    x = cupy.zeros(3 << 24, np.float16)
    y = dnn.relu(x)
    limit, used = pool.get_limit(), pool.used_bytes()
    del y
    kept = [cupy.empty(1 << 20, np.uint8) for _ in range(64)]
    try:
        pool.set_limit(used + (32 << 20))
        del kept  # free, but in blocks that are too small for the result
        assert dnn.relu(x).shape == x.shape
    finally:
        pool.set_limit(limit)
    big = cupy.cuda.UnownedMemory(x.data.ptr, 1 << 50, x)
    huge = cupy.ndarray((1 << 45,), np.float32, cupy.cuda.MemoryPointer(big, 0))
    with pytest.raises(dnn.WorkspaceError, match="no memory for the result"):
        dnn.relu(huge)


@pytest.mark.skipif(cupy.cuda.is_available() and cupy.cuda.runtime.getDeviceCount() < 2, reason="one device here")
def test_each_call_runs_on_the_device_of_its_arrays():
    with cupy.cuda.Device(1):
        x = cupy.asarray(_X)
    y = dnn.relu(x)
    assert y.device.id == 1
    np.testing.assert_array_equal(cupy.asnumpy(y), np.maximum(_X, 0))
    with pytest.raises(dnn.ArrayTypeError, match="devices"):
        dnn.relu_backward(cupy.asarray(_X), x)


def test_torch_tensors_whose_memory_holds_negated_values():
    torch = pytest.importorskip("torch")
    x = torch._neg_view(torch.tensor(_X, device="cuda"))
    for _ in range(3):
        assert torch.equal(dnn.relu(x), torch.relu(-torch.tensor(_X, device="cuda")))


def test_numbers_are_made_on_the_stream_that_torch_has_set():
    torch = pytest.importorskip("torch")
    q = torch.randn(1, 2, 5, 16, device="cuda")
    expected = dnn.attention(q, q, q, causal=True, causal_offset=1)
    torch.cuda.synchronize()
    cupy.full(1 << 28, 7, np.int64)  # keeps CuPy's own stream busy
    with torch.cuda.stream(torch.cuda.Stream()):
        actual = dnn.attention(q, q, q, causal=True, causal_offset=1)
    torch.cuda.synchronize()
    assert torch.equal(actual, expected)


@pytest.mark.skipif(cupy.cuda.is_available() and cupy.cuda.runtime.getDeviceCount() < 2, reason="one device here")
def test_torch_tensors_on_another_device_than_the_current_one():
    torch = pytest.importorskip("torch")
    x = torch.tensor(_X, device="cuda:1")
    stream = torch.cuda.Stream("cuda:1")
    stream.wait_stream(torch.cuda.current_stream("cuda:1"))
    for _ in range(2):
        with torch.cuda.stream(stream), torch.cuda.device(0):
            y = dnn.relu(x)
        stream.synchronize()
        assert y.device == x.device
        assert torch.equal(y, torch.relu(x))
    here = torch.tensor(_X, device="cuda:0")
    dnn.relu_backward(here, here)
    for _ in range(2):
        with pytest.raises(dnn.ArrayTypeError, match="devices"):
            dnn.relu_backward(here, x)


def test_torch_tensors_can_be_measured_and_checked(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    x = torch.tensor(_X, device="cuda")
    assert all(a.measured_ms > 0 for a in dnn.autotune("softmax", x, axis=-1))
    assert all(a.measured_ms > 0 for a in dnn.autotune("relu_backward", x, dnn.Spec(_X.shape, "float32", (36, 6, 1))))
    large = torch.full((1 << 26,), torch.inf, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), dnn.options(check_finite=True):
        torch.cuda._sleep(50_000_000)  # a look from another stream would see the infinities
        large.fill_(1)
        assert float(dnn.relu(large).max()) == 1.0


def test_without_memory_for_the_scratch_a_smaller_algorithm_takes_over(monkeypatch):
    from dnnarray._cuda import engine

    x, w = cupy.asarray(np.random.default_rng(1).standard_normal((2, 8, 9, 9))), cupy.ones((4, 8, 3, 3))
    needs = {a.name: a.workspace for a in dnn.algorithms("conv", x, w)}
    largest = max(needs, key=lambda name: needs[name])
    assert needs[largest] > 0
    assert 0 in needs.values()
    expected = dnn.conv(x, w, algorithm=min(needs, key=lambda name: needs[name]))
    asked = []

    def none(self, workspace, needed):
        asked.append(self.method.name)
        raise dnn.WorkspaceError("no memory")

    monkeypatch.setattr(engine.Prepared, "_scratch", none)
    np.testing.assert_allclose(
        cupy.asnumpy(dnn.conv(x, w, algorithm=largest)), cupy.asnumpy(expected), rtol=1e-12, atol=1e-12
    )
    assert asked[0] == largest
