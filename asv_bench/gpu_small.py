"""Small tensors (under 1 MB): time on the device alone, by CUDA graphs, beside PyTorch eager and `torch.compile`; or
the host's time.

    python -m asv_bench.gpu_small [--host]

A graph holds many calls in a row and is replayed many times, so that neither the host nor one launch's latency counts.
The L2 is warm for both sides. With ``--host`` the time that the host takes to queue a call, in several forms, beside
PyTorch's eager call."""

from __future__ import annotations

import argparse
from functools import partial

import cupy
import torch
import torch.nn.functional as fn

import dnnarray as dnn
from asv_bench.gpu import host_us

CALLS, REPLAYS = 20, 20
# Columns of the host's table: a call, with `out=` as planned, with one in other memory (every second place), with
# scratch memory of the caller's, PyTorch's own call, and ours on its tensors without and with `out=`.
_HOST = ("host us", "out=", "spread", "own ws", "eager", "tensors", "t out=")
_QUEUED, _ROUNDS = 500, 3  # calls between two waits, fewer than a queue holds, and rounds of all calls in turns


def graph_us(call, stream) -> float:
    """Microseconds of one call among many in a CUDA graph: the best of five replays."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        kept = [call() for _ in range(CALLS)]
    graph.replay()
    best = float("inf")
    for _ in range(5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(stream)
        for _ in range(REPLAYS):
            graph.replay()
        end.record(stream)
        end.synchronize()
        best = min(best, start.elapsed_time(end))
    del kept
    return best / (CALLS * REPLAYS) * 1e3


def _problems(dtype):
    """(name, our forward, our backward or None, PyTorch's forward, tensors)."""

    def x(*shape):
        return torch.randn(shape, device="cuda").to(dtype)

    c = 64
    w, b = torch.rand(c, device="cuda").to(dtype), torch.rand(c, device="cuda").to(dtype)
    wide, image = x(128, 512), x(4, c, 14, 14)
    row_w, row_b = x(512), x(512)
    labels = torch.randint(512, (128,), device="cuda")
    grid = (torch.rand(2, 20, 20, 2, device="cuda") * 2 - 1).to(dtype)
    yield "relu", dnn.relu, dnn.relu_backward, fn.relu, (wide,), {}
    yield "gelu", dnn.gelu, dnn.gelu_backward, fn.gelu, (wide,), {}
    yield "softmax", dnn.softmax, None, lambda t: fn.softmax(t, -1), (wide,), {"axis": -1}
    yield "log_softmax", dnn.log_softmax, None, lambda t: fn.log_softmax(t, -1), (wide,), {"axis": -1}
    yield (
        "layer_norm",
        dnn.layer_norm,
        dnn.layer_norm_backward,
        lambda t, w, b: fn.layer_norm(t, (512,), w, b),
        (wide, row_w, row_b),
        {},
    )
    yield "rms_norm", dnn.rms_norm, dnn.rms_norm_backward, lambda t, w: fn.rms_norm(t, (512,), w), (wide, row_w), {}
    yield (
        "group_norm",
        lambda t, w, b, num_groups: dnn.group_norm(t, num_groups, w, b),
        dnn.group_norm_backward,
        lambda t, w, b: fn.group_norm(t, 8, w, b),
        (image, w, b),
        {"num_groups": 8},
    )
    yield ("batch_norm_train", dnn.batch_norm_train, dnn.batch_norm_train_backward,
           lambda t, w, b: fn.batch_norm(t, None, None, w, b, True), (image, w, b), {})  # fmt: skip
    yield (
        "max_pool",
        dnn.max_pool,
        dnn.max_pool_backward,
        lambda t: fn.max_pool2d(t, 3, 2, 1),
        (image,),
        {"kernel_size": 3, "stride": 2, "padding": 1},
    )
    yield "avg_pool", dnn.avg_pool, dnn.avg_pool_backward, lambda t: fn.avg_pool2d(t, 2), (image,), {"kernel_size": 2}
    yield (
        "adaptive_avg_pool",
        dnn.adaptive_avg_pool,
        dnn.adaptive_avg_pool_backward,
        lambda t: fn.adaptive_avg_pool2d(t, 1),
        (image,),
        {"output_size": 1},
    )
    yield (
        "interpolate",
        dnn.interpolate,
        dnn.interpolate_backward,
        (lambda t: fn.interpolate(t, size=(28, 28), mode="bilinear")),
        (image,),
        {"size": (28, 28), "mode": "linear"},
    )
    yield (
        "grid_sample",
        dnn.grid_sample,
        dnn.grid_sample_backward,
        lambda t, g: fn.grid_sample(t, g, align_corners=False),
        (x(2, 16, 20, 20), grid),
        {},
    )
    yield "cross_entropy", dnn.cross_entropy, dnn.cross_entropy_backward, fn.cross_entropy, (wide, labels), {}
    yield "prelu", dnn.prelu, dnn.prelu_backward, fn.prelu, (image, w), {}
    yield (
        "pixel_shuffle",
        lambda t, factor: dnn.pixel_shuffle(t, factor),
        None,
        lambda t: fn.pixel_shuffle(t, 2),
        (image,),
        {"factor": 2},
    )


def _saved(name, forward, arrays, options):
    """The statistics that a norm's forward saves, as PyTorch's does, as options of the gradient."""
    if name == "batch_norm_train":
        found = forward(*arrays, **options)
    elif name in ("layer_norm", "rms_norm"):
        found = forward(*arrays, return_stats=True, **options)
    else:
        return {}
    return {n: getattr(found, n) for n in ("mean", "rstd") if hasattr(found, n)}


def rows(stream):
    """(label, ours, eager, compiled or None) in microseconds."""
    for dtype in (torch.float32, torch.bfloat16):
        for name, forward, backward, reference, tensors, options in _problems(dtype):
            ours = [cupy.from_dlpack(t) for t in tensors]
            label = f"{name} {str(dtype)[6:]}"
            compiled = torch.compile(reference)
            yield (
                label,
                graph_us(lambda f=forward, a=ours, o=options: f(*a, **o), stream),
                graph_us(lambda f=reference, a=tensors: f(*a), stream),
                graph_us(lambda f=compiled, a=tensors: f(*a), stream),
            )
            if backward is None:
                continue
            leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
            y = reference(*leaves)
            g = torch.ones_like(y)
            ours_g = cupy.from_dlpack(g)
            wanted = [t for t in leaves if t.requires_grad]
            theirs = graph_us(lambda y=y, v=wanted, g=g: torch.autograd.grad(y, v, g, retain_graph=True), stream)
            saved = _saved(name, forward, ours, options)
            for given in ({}, saved) if saved else ({},):
                call = partial(backward, ours_g, *ours, **options, **given)
                yield f"{name}_backward {'saved ' * bool(given)}{str(dtype)[6:]}", graph_us(call, stream), theirs, None


def host_in_turns(*calls) -> list[float]:
    """Microseconds of the host to queue each of these calls: the best of rounds in turns, since a host's clock
    moves."""
    return [
        min(times) for times in zip(*([host_us(call, _QUEUED) for call in calls] for _ in range(_ROUNDS)), strict=True)
    ]


def _spread(array):
    """Memory for a result like this one, every second place along the last axis."""
    if isinstance(array, tuple):
        return tuple(None if a is None else _spread(a) for a in array)
    return (
        cupy.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)[..., ::2]
        if array.shape
        else cupy.empty_like(array)
    )


def host_rows():
    """(label, microseconds by column) of the host."""
    for name, forward, _, reference, tensors, options in _problems(torch.float32):
        arrays = [cupy.from_dlpack(t) for t in tensors]
        call, on_tensors = partial(forward, *arrays, **options), partial(forward, *tensors, **options)
        calls = {"host us": call, "eager": partial(reference, *tensors), "tensors": on_tensors}
        if hasattr(forward, "operation"):
            result = call()
            calls |= {"out=": partial(call, out=result), "spread": partial(call, out=_spread(result))}
            calls |= {
                "own ws": partial(call, workspace=cupy.empty(1 << 22, "uint8")),
                "t out=": partial(on_tensors, out=on_tensors()),
            }
        yield name, dict(zip(calls, host_in_turns(*calls.values()), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", action="store_true", help="the host's time of a call and nothing else")
    host = parser.parse_args().host
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        if host:
            print(f"{'row':34}" + "".join(f"{column:>9}" for column in (*_HOST, "ratio")))
            for label, us in host_rows():
                ratio = us["eager"] / us["host us"]
                print(
                    f"{label:34}" + "".join(f"{us.get(column, 0):9.2f}" for column in _HOST) + f"{ratio:9.2f}",
                    flush=True,
                )
            return
        print(f"{'row':34} {'us':>7} {'eager':>7} {'compiled':>8} {'ratio':>6}")
        for label, ours, eager, compiled in rows(stream):
            best = min(eager, compiled or eager)
            print(f"{label:34} {ours:7.2f} {eager:7.2f} {compiled or 0:8.2f} {best / ours:6.2f}", flush=True)


if __name__ == "__main__":
    main()
