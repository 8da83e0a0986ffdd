"""Gradients of the networks of `tests.interop.networks`, and their errors against float64."""

import torch

from tests.interop.networks import NETWORKS


def network(name, dtype, form=None, seed=0):
    make, draw, loss, operators = NETWORKS[name]
    torch.manual_seed(seed)
    net = make().to(torch.float64).to(dtype)
    x = draw(dtype)
    if form is not None and x.dim() == 4:
        net, x = net.to(memory_format=form), x.contiguous(memory_format=form)
    return net, x, loss, [f"aten::{name}" for name in operators.split()]


def gradients(name, dtype, form=None, seed=0, prepare=None):
    """Loss, output, the gradients by all parameters and by the input, and the buffers afterwards; `prepare` gives what
    is called in the place of the network.
    """
    net, x, loss, _ = network(name, dtype, form, seed)
    x.requires_grad_(x.is_floating_point())
    output = (net if prepare is None else prepare(net))(x)
    value = loss(output)
    value.backward()
    leaves = [*net.parameters(), *([x] if x.requires_grad else [])]
    return [value, output, *(p.grad for p in leaves), *net.buffers()]


def errors(found, exact):
    """The relative error of each tensor in the root mean square; where the exact numbers are next to nothing, relative
    to those of the other tensors.
    """
    sizes = [e.detach().double().square().mean().sqrt() for e in exact]
    least = 1e-3 * max(sizes)
    return [
        ((f.detach().double() - e.detach()).square().mean().sqrt() / max(s, least)).item()
        for f, e, s in zip(found, exact, sizes, strict=True)
    ]


def mean(errors):
    """The root mean square of several errors: roundings are random, so that one tensor of one draw says little."""
    return (sum(e * e for e in errors) / len(errors)) ** 0.5
