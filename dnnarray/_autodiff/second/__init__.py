"""Second derivatives: how the operations that compute gradients are differentiated themselves."""

from dnnarray._autodiff.second.plan import gradient_plan

__all__ = ["gradient_plan"]
