"""Host time of the functions of `dnnarray.interop.jax` on small arrays on the CPU, beside the same in jax.numpy and
jax.lax.

`python -m asv_bench.benchmarks.interop_jax` prints the table by itself.
"""

import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np

_STEPS = 20  # short enough that other programs leave some of the runs alone
_ROWS = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
_SQUARE = np.eye(8, dtype=np.float32)
_IMAGE = np.ones((1, 8, 8, 8), np.float32)
_WINDOW = np.full((8, 8, 3, 3), 1 / 72, np.float32)


def _by_dnnarray():
    door = import_module("dnnarray.interop.jax")
    return {
        "relu": door.relu,
        "linear": lambda x: door.linear(x, _SQUARE),
        "softmax": door.softmax,
        "layer_norm": door.layer_norm,
        "conv": lambda x: door.conv(x, _WINDOW, padding=1),
    }


def _layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / ((centred**2).mean(-1, keepdims=True) + 1e-5) ** 0.5


def _by_jax():
    jax = import_module("jax")
    return {
        "relu": jax.nn.relu,
        "linear": lambda x: x @ _SQUARE.T,
        "softmax": jax.nn.softmax,
        "layer_norm": _layer_norm,
        "conv": lambda x: jax.lax.conv_general_dilated(x, _WINDOW, (1, 1), "SAME"),
    }


_LIBRARIES = {"dnnarray": _by_dnnarray, "jax": _by_jax}
_CALLS = ("relu", "linear", "softmax", "layer_norm", "conv")


def _chained(function, x):
    for _ in range(_STEPS):
        x = function(x)
    return x


def track_call_us(call, library):
    """Microseconds of a call within a compiled chain: the least of many runs of the chain, divided by its length."""
    if not find_spec("jax"):
        raise NotImplementedError("JAX is not installed")
    jax = import_module("jax")
    x = jax.numpy.asarray(_IMAGE if call == "conv" else _ROWS)
    compiled = jax.jit(partial(_chained, _LIBRARIES[library]()[call]))
    jax.block_until_ready(compiled(x))
    least = float("inf")
    for _ in range(300):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x))
        least = min(least, time.perf_counter() - start)
    return least / _STEPS * 1e6


track_call_us.unit = "us"
track_call_us.params = [list(_CALLS), list(_LIBRARIES)]
track_call_us.param_names = ("call", "library")


if __name__ == "__main__":
    for call in _CALLS:
        print(f"{call:12}", "  ".join(f"{library} {track_call_us(call, library):6.1f} us" for library in _LIBRARIES))
