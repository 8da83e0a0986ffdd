"""What a call costs beside its arithmetic: import, small arrays, choosing an algorithm.

`python -m asv_bench.benchmarks.host` prints the table of new shapes by itself.
"""

import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from itertools import count

import numpy as np

import dnnarray as dnn
from dnnarray._call import dispatch as _dispatch
from dnnarray._call import operation as _operation
from dnnarray._options import DEFAULT
from dnnarray._select import Device, choose

_RATES = {"float32": 50e12, "float64": 30e12, "tf32_mma": 393e12, "bfloat16_mma": 788e12, "float16_mma": 788e12}
_H200 = Device("made-up H200", "cuda", 132, _RATES, 4.2e12, 4e-6, (9, 0), 232_448, 141 << 30)


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
    """Ranking all algorithms of the CPU engine, as a report does."""

    def setup(self):
        self.x, self.w = dnn.Spec((8, 64, 56, 56), "float32"), dnn.Spec((64, 64, 3, 3), "float32")
        _dispatch.forget()
        self.time_algorithms_conv()  # imports the family

    def time_algorithms_conv(self):
        dnn.algorithms("conv", self.x, self.w, padding=1)


def _lying_last(*shape):
    strides = dnn.Spec((shape[0], *shape[2:], shape[1]), "bfloat16").c_strides
    return dnn.Spec(shape, "bfloat16", (strides[0], strides[-1], *strides[1:-1]))


_WINDOW, _THIN = _lying_last(64, 64, 3, 3), _lying_last(64, 2, 3, 3)


def _image(n):
    return _lying_last(n, 64, 56, 56)


def _heads(n):
    return dnn.Spec((n, 8, 512, 64), "bfloat16")


def _rows(n):
    return dnn.Spec((16 * n, 1024), "bfloat16")


_NEW_SHAPES = {  # operation, arrays and options of a batch
    "conv": ("conv", lambda n: (_image(n), _WINDOW), lambda n: {"padding": 1}),
    "conv in groups": ("conv", lambda n: (_image(n), _THIN), lambda n: {"padding": 1, "groups": 32}),
    "depthwise conv": ("conv", lambda n: (_image(n), _lying_last(64, 1, 3, 3)), lambda n: {"padding": 1, "groups": 64}),
    "gradient of the input, stride 2": (
        "conv_backward_input",
        lambda n: (_lying_last(n, 64, 28, 28), _WINDOW),
        lambda n: {"padding": 1, "stride": 2, "input_shape": (n, 64, 56, 56)},
    ),
    "gradient of the weight": (
        "conv_backward_weight",
        lambda n: (_image(n), _image(n)),
        lambda n: {"padding": 1, "weight_shape": _WINDOW.shape},
    ),
    "the same in groups": (
        "conv_backward_weight",
        lambda n: (_image(n), _image(n)),
        lambda n: {"padding": 1, "groups": 32, "weight_shape": _THIN.shape},
    ),
    "max_pool": ("max_pool", lambda n: (_image(n),), lambda n: {"kernel_size": 3, "stride": 2, "padding": 1}),
    "layer_norm": ("layer_norm", lambda n: (_rows(n),), lambda n: {}),
    "gradients of layer_norm": ("layer_norm_backward", lambda n: (_rows(n), _rows(n)), lambda n: {}),
    "attention": ("attention", lambda n: (_heads(n),) * 3, lambda n: {}),
}
_BATCHES = count(3)


class NewShape:
    """What the first call of a shape costs the host on the CUDA engine, for a made-up H200; no GPU is needed, but CuPy.

    Each sample takes a batch that nobody has asked for: a problem remembers what was found out about it, and tiles are
    kept by extents."""

    params = list(_NEW_SHAPES)
    param_names = ("call",)
    number, warmup_time, repeat = 1, 0, (20, 100, 5.0)

    def setup(self, call):
        if not find_spec("cupy"):
            raise NotImplementedError("CuPy is not installed")
        operation, self.arrays, self.options = _NEW_SHAPES[call]
        self.op = _operation.find(operation)
        self.table = import_module(f"dnnarray._cuda.{self.op.family}").ALGORITHMS[self.op.base]
        self.bound = self.bind()
        self.problem = self.make()
        self.time_choosing_and_planning(call)
        self.bound = self.bind()
        self.problem = self.make()

    def bind(self):
        n = next(_BATCHES)
        specs, chosen = self.op.bind(self.arrays(n), self.options(n))
        return specs, {name: v for name, v in chosen.items() if name in self.op.static}

    def make(self):
        return self.op.problem(*self.bound)

    def time_checking(self, call):
        self.make()

    def time_choosing(self, call):
        choose(self.problem, _H200, DEFAULT, self.table)

    def time_choosing_and_planning(self, call):
        choose(self.problem, _H200, DEFAULT, self.table).run(self.problem, _H200, True)


def main():
    """The new shapes as a table, without asv: medians, and the least."""
    for call in _NEW_SHAPES:
        found = {}
        for part in ("checking", "choosing", "choosing_and_planning"):
            times = []
            for _ in range(100):
                case = NewShape()
                case.setup(call)
                start = time.perf_counter()
                getattr(case, f"time_{part}")(call)
                times.append(time.perf_counter() - start)
            found[part] = sorted(times)[len(times) // 2] * 1e6, min(times) * 1e6
        print(
            f"{call:34}",
            "  ".join(f"{part.replace('_', ' ')} {us:4.0f} us ({least:.0f})" for part, (us, least) in found.items()),
        )


def track_import_ms():
    """Milliseconds that `import dnnarray` adds to `import numpy`, the best of five fresh processes."""
    code = "import numpy, time; t = time.perf_counter(); import dnnarray; print(time.perf_counter() - t)"
    return (
        min(
            float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
            for _ in range(5)
        )
        * 1e3
    )


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


_X, _SQUARE, _STEPS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8), np.eye(8, dtype=np.float32), 20


def _chain_of_relu():
    """A chain of calls under `value_and_grad`, and the same by hand."""

    def f(x):
        for _ in range(_STEPS):
            x = dnn.relu(x)
        return x.sum()

    def by_hand():
        inputs = [_X]
        for _ in range(_STEPS):
            inputs.append(dnn.relu(inputs[-1]))
        grad = np.broadcast_to(inputs[-1].sum() * 0 + 1, _X.shape)
        for x in inputs[-2::-1]:
            grad = dnn.relu_backward(grad, x)

    differentiated = dnn.value_and_grad(f)
    return lambda: differentiated(_X), by_hand


def _chain_of_linear():
    def f(x, w):
        for _ in range(_STEPS):
            x = dnn.linear(x, w)
        return x.sum()

    def by_hand():
        inputs, total = [_X], 0
        for _ in range(_STEPS):
            inputs.append(dnn.linear(inputs[-1], _SQUARE))
        grad = np.broadcast_to(inputs[-1].sum() * 0 + 1, _X.shape)
        for x in inputs[-2::-1]:
            grad, weight, _ = dnn.linear_backward(grad, x, _SQUARE)
            total = total + weight

    differentiated = dnn.value_and_grad(f, (0, 1))
    return lambda: differentiated(_X, _SQUARE), by_hand


_CHAINS = {"relu": _chain_of_relu, "linear": _chain_of_linear}


def track_recording_us(chain):
    """Microseconds that recording adds to a call of dnnarray and to the call of its gradient."""
    recorded, by_hand = _CHAINS[chain]()
    least = [float("inf"), float("inf")]
    for _ in range(300):
        for place, run in enumerate(
            (recorded, by_hand)
        ):  # by turns, in runs so short that other programs leave some alone
            start = time.perf_counter()
            run()
            least[place] = min(least[place], time.perf_counter() - start)
    return (least[0] - least[1]) / _STEPS * 1e6


track_recording_us.unit = "us"
track_recording_us.params = list(_CHAINS)
track_recording_us.param_names = ("chain",)


if __name__ == "__main__":
    main()
