"""One or two typical sizes of every family, forward and backward, float32 on the CPU engine."""

import numpy as np

import dnnarray as dnn


def _normal(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


# name -> (operation, arrays, options); small enough for a laptop
_CALLS = {
    "conv_3x3_64_56": ("conv", lambda: (_normal(8, 64, 56, 56), _normal(64, 64, 3, 3)), {"padding": 1}),
    "conv_1x1_64_256_56": ("conv", lambda: (_normal(8, 64, 56, 56), _normal(256, 64, 1, 1)), {}),
    "conv_7x7_3_64_224": ("conv", lambda: (_normal(4, 3, 224, 224), _normal(64, 3, 7, 7)), {"padding": 3, "stride": 2}),
    "conv_depthwise_3x3_96_56": (
        "conv",
        lambda: (_normal(8, 96, 56, 56), _normal(96, 1, 3, 3)),
        {"padding": 1, "groups": 96},
    ),
    "conv_1d": ("conv", lambda: (_normal(4, 64, 4000), _normal(64, 64, 3)), {"padding": 1}),
    "conv_3d": ("conv", lambda: (_normal(1, 16, 16, 32, 32), _normal(16, 16, 3, 3, 3)), {"padding": 1}),
    "linear": ("linear", lambda: (_normal(512, 512), _normal(512, 512), _normal(512)), {}),
    "max_pool_3x3": ("max_pool", lambda: (_normal(8, 64, 112, 112),), {"kernel_size": 3, "stride": 2, "padding": 1}),
    "avg_pool_2x2": ("avg_pool", lambda: (_normal(8, 64, 56, 56),), {"kernel_size": 2}),
    "batch_norm_train": ("batch_norm_train", lambda: (_normal(8, 64, 56, 56), _normal(64), _normal(64)), {}),
    "layer_norm": ("layer_norm", lambda: (_normal(2048, 768), _normal(768), _normal(768)), {}),
    "group_norm": ("group_norm", lambda: (_normal(8, 64, 28, 28),), {"num_groups": 32}),
    "gelu": ("gelu", lambda: (_normal(512, 1024),), {}),
    "silu": ("silu", lambda: (_normal(512, 1024),), {}),
    "softmax": ("softmax", lambda: (_normal(4096, 1024),), {}),
    "dropout": ("dropout", lambda: (_normal(512, 1024),), {"seed": 1}),
    "attention_causal": ("attention", lambda: (_normal(1, 8, 1024, 64),) * 3, {"causal": True}),
    "cross_entropy": ("cross_entropy", lambda: (_normal(1024, 1000), np.arange(1024) % 1000), {}),
    "interpolate": ("interpolate", lambda: (_normal(4, 16, 64, 64),), {"scale": 2.0, "mode": "linear"}),
}


class Forward:
    params = list(_CALLS)
    param_names = ("call",)

    def setup(self, call):
        operation, arrays, options = _CALLS[call]
        self.function, self.arrays, self.options = getattr(dnn, operation), arrays(), options
        self.time_forward(call)

    def time_forward(self, call):
        self.function(*self.arrays, **self.options)


class Backward:
    params = list(_CALLS)
    param_names = ("call",)

    def setup(self, call):
        operation, arrays, options = _CALLS[call]
        output, self.pullback = dnn.vjp(operation, *arrays(), **options)
        head = output[0] if isinstance(output, tuple) else output
        self.grad = np.ones_like(head)
        self.time_backward(call)

    def time_backward(self, call):
        self.pullback(self.grad)


class Recurrent:
    params = ["lstm", "gru", "rnn"]
    param_names = ("cell",)

    def setup(self, cell):
        gates, hidden = {"lstm": 4, "gru": 3, "rnn": 1}[cell], 256
        self.x = _normal(100, 16, hidden)
        layer = dnn.RNNWeights(_normal(gates * hidden, hidden) / 16, _normal(gates * hidden, hidden) / 16)
        self.function, self.weights = getattr(dnn, cell), [layer]
        self.time_sequence(cell)

    def time_sequence(self, cell):
        self.function(self.x, self.weights)
