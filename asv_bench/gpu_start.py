"""Cold start: what the first call of an operation takes in a new process, beyond the start of CUDA and CuPy.

    python -m asv_bench.gpu_start

Prints for each operation the milliseconds from the call to the end of its kernels, with the kernels on disk and with an
empty cache (then they are compiled). What is imported for the operation counts; `import dnnarray`, the arrays and
CuPy's own first launch do not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

ROUNDS = 3
_CALLS = {
    "relu": "dnn.relu(x)",
    "softmax": "dnn.softmax(x)",
    "layer_norm": "dnn.layer_norm(x)",
    "layer_norm_backward": "dnn.layer_norm_backward(x, x)",
    "batch_norm_train": "dnn.batch_norm_train(image)",
    "max_pool": "dnn.max_pool(image, 2)",
    "conv": "dnn.conv(image, window, padding=1)",
    "conv bfloat16": "dnn.conv(image.astype(bfloat16), window.astype(bfloat16), padding=1)",
    "conv_backward_weight": "dnn.conv_backward_weight(image, image, weight_shape=window.shape, padding=1)",
    "attention": "dnn.attention(image, image, image)",
    "cross_entropy": "dnn.cross_entropy(x, labels)",
    "interpolate": "dnn.interpolate(image, size=(64, 64), mode='linear')",
}
_PROCESS = """
import time
import cupy, numpy as np
import dnnarray as dnn
from ml_dtypes import bfloat16
x, labels = cupy.zeros((128, 512), np.float32), cupy.zeros(128, np.int64)
image, window = cupy.zeros((4, 64, 32, 32), np.float32), cupy.zeros((64, 64, 3, 3), np.float32)
image.astype(bfloat16), window.astype(bfloat16)
cupy.add(x, x)
cupy.cuda.get_current_stream().synchronize()
start = time.perf_counter()
{call}
cupy.cuda.get_current_stream().synchronize()
print((time.perf_counter() - start) * 1e3)
"""


def first_call_ms(call: str, cache: str) -> float:
    """In a process of its own, with the kernels' cache in this folder. Python keeps its bytecode, as it does for what
    pip installed."""
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"} | {
        "DNNARRAY_CACHE_DIR": cache
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS.format(call=call)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    print(f"{'first call of':24} {'cached ms':>10} {'cold ms':>8}")
    for name, call in _CALLS.items():
        with tempfile.TemporaryDirectory() as cache:
            cold = first_call_ms(call, cache)
            cached = min(first_call_ms(call, cache) for _ in range(ROUNDS))
        print(f"{name:24} {cached:10.1f} {cold:8.1f}", flush=True)


if __name__ == "__main__":
    main()
