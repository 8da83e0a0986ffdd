"""dnnarray's functions for PyTorch tensors that require grad: custom operators with autograd, fake, vmap and autocast
rules.

Every differentiable function of dnnarray is here under its own name, with its own signature (without ``out=`` and
``workspace=``, which have no meaning under autograd). The functions are operators of ``torch.ops.dnnarray``, so that
``torch.compile(fullgraph=True)`` and ``torch.export`` see each of them as one node of the graph. `accelerate` puts
dnnarray's kernels under PyTorch's own operators, so that a model stays as it is, and `report` says which calls they
took.

>>> import torch
>>> from dnnarray.interop.torch import conv
>>> x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
>>> conv(x, w, padding=1, activation="relu").sum().backward()
>>> w.grad.shape
torch.Size([4, 3, 3, 3])
"""

from dnnarray.interop.torch.functions import functions as _functions
from dnnarray.interop.torch.inductor.backend import backend as _backend
from dnnarray.interop.torch.inductor.backend import register as _register
from dnnarray.interop.torch.switch import accelerate as accelerate
from dnnarray.interop.torch.switch import report as report
from dnnarray.interop.torch.switch import restore as restore

_FUNCTIONS = _functions()
__all__ = sorted((*_FUNCTIONS, "accelerate", "report", "restore"))
globals().update(_FUNCTIONS)
_register("dnnarray", _backend)
