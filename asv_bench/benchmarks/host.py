"""What a call costs beside its arithmetic: import, small arrays, choosing an algorithm."""

import subprocess
import sys
import time

import numpy as np

import dnnarray as dnn
from dnnarray import _operation


class Small:
    """Warm calls on arrays so small that only the host's cost is left."""

    def setup(self):
        self.x = np.linspace(-1, 1, 16, dtype=np.float32)
        self.out = np.empty_like(self.x)
        self.image = np.ones((1, 8, 8, 8), np.float32)
        self.weight = np.ones((8, 8, 3, 3), np.float32)
        for call in (self.time_relu_16, self.time_relu_16_out, self.time_conv_1x8x8x8, self.time_layer_norm_16):
            call()  # imports the family and decides on the algorithm

    def time_relu_16(self):
        dnn.relu(self.x)

    def time_relu_16_out(self):
        dnn.relu(self.x, out=self.out)

    def time_conv_1x8x8x8(self):
        dnn.conv(self.image, self.weight, padding=1)

    def time_layer_norm_16(self):
        dnn.layer_norm(self.x)


class Choosing:
    """The first call of a new shape: building the problem and ranking the algorithms."""

    def setup(self):
        self.x, self.w = dnn.Spec((8, 64, 56, 56), "float32"), dnn.Spec((64, 64, 3, 3), "float32")
        _operation.forget()
        self.time_algorithms_conv()  # imports the family

    def time_algorithms_conv(self):
        dnn.algorithms("conv", self.x, self.w, padding=1)


def track_import_ms():
    """Milliseconds that `import dnnarray` adds to `import numpy`, the best of five fresh processes."""
    code = "import numpy, time; t = time.perf_counter(); import dnnarray; print(time.perf_counter() - t)"
    return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(5)) * 1e3


track_import_ms.unit = "ms"


def track_telemetry_cost_us():
    """Microseconds that telemetry adds to a call when it is on."""
    x = np.ones(16, np.float32)

    def best(repeats=2000):
        start = time.perf_counter()
        for _ in range(repeats):
            dnn.relu(x)
        return (time.perf_counter() - start) / repeats * 1e6

    off = min(best() for _ in range(5))
    with dnn.options(telemetry=True):
        return min(best() for _ in range(5)) - off


track_telemetry_cost_us.unit = "us"
