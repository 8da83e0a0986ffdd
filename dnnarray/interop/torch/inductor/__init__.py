"""The backend of `torch.compile` that gives Inductor dnnarray's operators."""

from dnnarray.interop.torch.inductor.backend import backend as backend
