"""What calls of shapes that nobody has asked for cost the host on the CUDA engine, and what they leave in memory. Needs CuPy and pytest, but no GPU.

    python -m asv_bench.new_shapes [--only WORD] [--shapes N]

The calls are whole ones, from the public function to the launch; the device is made up (`tests.made_up_device`), so that neither kernels nor the driver take
part. For each call the table has the microseconds of the first, the second and the third call of a shape: median, and the least in brackets. With
``--shapes`` so many shapes of relu are called instead, each of them twice, and the memory of the process is printed now and then.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ml_dtypes import bfloat16

import dnnarray as dnn
from tests.made_up_device import MadeUp, made_up_device

_WARMING, _SHAPES = 8, 60
_SPACE = 56


class Arrays(NamedTuple):
    """Arrays of the device for a size `n`, by what they are."""

    device: MadeUp
    n: int

    def array(self, *shape: int, dtype: Any = bfloat16) -> Any:
        return self.device.array(np.broadcast_to(np.zeros((), dtype), shape))

    def last(self, *shape: int) -> Any:
        """With the channels last in memory."""
        return self.array(shape[0], *shape[2:], shape[1]).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))

    def image(self, channels: int = 64, space: int = _SPACE) -> Any:
        return self.last(self.n, channels, space, space)

    def rows(self) -> Any:
        return self.array(16 * self.n, 1024)

    def heads(self, dtype: Any = bfloat16) -> Any:
        return self.array(self.n, 8, 512, 64, dtype=dtype)

    def window(self, inner: int = 64, size: int = 3) -> Any:
        return self.last(64, inner, size, size)

    def channels(self, dtype: Any = np.float32) -> Any:
        return self.array(64, dtype=dtype)


_CALLS: dict[str, Callable[[Arrays], Any]] = {
    "relu": lambda a: partial(dnn.relu, a.rows()),
    "gelu_backward": lambda a: partial(dnn.gelu_backward, a.rows(), a.rows()),
    "bias_activation": lambda a: partial(dnn.bias_activation, a.rows(), a.array(1024), activation="relu"),
    "dropout": lambda a: partial(dnn.dropout, a.rows(), p=0.5, seed=1),
    "layer_norm": lambda a: partial(dnn.layer_norm, a.rows(), a.array(1024), a.array(1024)),
    "layer_norm_backward": lambda a: partial(dnn.layer_norm_backward, a.rows(), a.rows(), a.array(1024), a.array(1024)),
    "rms_norm": lambda a: partial(dnn.rms_norm, a.rows(), a.array(1024)),
    "batch_norm": lambda a: partial(dnn.batch_norm, a.image(), *(a.channels() for _ in range(4))),
    "batch_norm_train": lambda a: partial(dnn.batch_norm_train, a.image(), a.channels(), a.channels()),
    "batch_norm_backward": lambda a: partial(dnn.batch_norm_backward, a.image(), a.image(), a.channels(), a.channels()),
    "group_norm": lambda a: partial(dnn.group_norm, a.image(), 8, a.channels(bfloat16), a.channels(bfloat16)),
    "softmax": lambda a: partial(dnn.softmax, a.rows()),
    "softmax_backward": lambda a: partial(dnn.softmax_backward, a.rows(), a.rows()),
    "max_pool": lambda a: partial(dnn.max_pool, a.image(), 3, stride=2, padding=1),
    "max_pool_backward": lambda a: partial(dnn.max_pool_backward, a.image(space=28), a.image(), 3, stride=2, padding=1),
    "avg_pool": lambda a: partial(dnn.avg_pool, a.image(), 2),
    "adaptive_avg_pool": lambda a: partial(dnn.adaptive_avg_pool, a.image(), 1),
    "attention": lambda a: partial(dnn.attention, a.heads(), a.heads(), a.heads()),
    "attention float32": lambda a: partial(dnn.attention, *(a.heads(np.float32) for _ in range(3))),
    "attention_backward": lambda a: partial(dnn.attention_backward, *(a.heads() for _ in range(4))),
    "conv": lambda a: partial(dnn.conv, a.image(), a.window(), padding=1),
    "conv 1x1": lambda a: partial(dnn.conv, a.image(), a.window(size=1)),
    "conv in groups": lambda a: partial(dnn.conv, a.image(), a.window(2), padding=1, groups=32),
    "depthwise conv": lambda a: partial(dnn.conv, a.image(), a.window(1), padding=1, groups=64),
    "conv_backward_input": lambda a: partial(
        dnn.conv_backward_input, a.image(space=28), a.window(), padding=1, stride=2, input_shape=(a.n, 64, _SPACE, _SPACE)
    ),
    "conv_backward_weight": lambda a: partial(dnn.conv_backward_weight, a.image(), a.image(), padding=1, weight_shape=(64, 64, 3, 3)),
    "conv_backward": lambda a: partial(dnn.conv_backward, a.image(), a.image(), a.window(), padding=1),
    "linear": lambda a: partial(dnn.linear, a.rows(), a.array(512, 1024), a.array(512)),
    "cross_entropy": lambda a: partial(dnn.cross_entropy, a.array(16 * a.n, 1000), a.array(16 * a.n, dtype=np.int64)),
    "interpolate": lambda a: partial(dnn.interpolate, a.image(), size=(112, 112), mode="linear"),
    "embedding": lambda a: partial(dnn.embedding, a.array(16 * a.n, dtype=np.int64), a.array(1000, 64)),
}


def times_of(make: Callable[[Arrays], Callable[[], Any]], device: MadeUp) -> list[list[float]]:
    """Microseconds of the first, the second and the third call, shape by shape."""
    found: list[list[float]] = [[], [], []]
    for n in range(3, 3 + _WARMING + _SHAPES):
        call = make(Arrays(device, n))
        gc.disable()
        for times in found:
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        gc.enable()
        device.launched.clear()
    return [times[_WARMING:] for times in found]


def grow(device: MadeUp, shapes: int) -> None:
    """Print the memory of the process while new shapes arrive."""
    memory = device.array(np.zeros(1, np.float32)).data
    for n in range(1, shapes + 1):
        x = type(device.array(np.zeros(1)))((n, 3), np.float32, memory)
        for _ in range(2):
            dnn.relu(x)
        device.launched.clear()
        device.general.clear()
        if n % max(shapes // 10, 1) == 0:
            gc.collect()
            print(f"{n:8} shapes: {_resident_mb():7.1f} MB", flush=True)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="calls whose name holds this")
    parser.add_argument("--shapes", type=int, help="how many shapes to watch the memory over")
    chosen = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch, made_up_device(patch) as device:
        if chosen.shapes:
            return grow(device, chosen.shapes)
        for name, make in _CALLS.items():
            if chosen.only in name:
                found = times_of(make, device)
                print(f"{name:24}", *(f"{statistics.median(times):7.0f} ({min(times):5.0f})" for times in found), flush=True)


if __name__ == "__main__":
    main()
