"""What a warm call on small tensors of the processor costs: PyTorch's own operators, the same under `accelerate`, and
the functions of `interop.torch`."""

from importlib.util import find_spec

import numpy as np


class TorchCalls:
    """Calls so small that only the host's cost is left, without and with a backward."""

    param_names = ("way", "call")
    params = (("torch", "accelerate", "interop"), ("relu", "conv", "layer_norm"))

    def setup(self, way, call):
        if not find_spec("torch"):
            raise NotImplementedError("PyTorch is not installed")
        import torch

        from dnnarray.interop import torch as door

        tensors = {"relu": ((16,),), "conv": ((1, 8, 8, 8), (8, 8, 3, 3)), "layer_norm": ((16,), (16,))}[call]
        self.plain = [torch.from_numpy(np.ones(shape, np.float32)) for shape in tensors]
        self.graded = [tensor.clone().requires_grad_() for tensor in self.plain]
        named = door if way == "interop" else torch.nn.functional
        self.call = {
            "relu": lambda x: named.relu(x),
            "conv": lambda x, w: door.conv(x, w, padding=1) if way == "interop" else named.conv2d(x, w, padding=1),
            "layer_norm": lambda x, w: door.layer_norm(x, w) if way == "interop" else named.layer_norm(x, (16,), w),
        }[call]
        self.switch = door.accelerate(True, devices=("cpu",)) if way == "accelerate" else None
        for _ in range(3):  # decides on the algorithm and remembers the call
            self.time_forward(way, call)
            self.time_forward_and_backward(way, call)

    def teardown(self, way, call):
        if self.switch is not None:
            self.switch.restore()

    def time_forward(self, way, call):
        self.call(*self.plain)

    def time_forward_and_backward(self, way, call):
        y = self.call(*self.graded)
        y.backward(y.detach())
