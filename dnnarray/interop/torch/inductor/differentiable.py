"""Puts dnnarray's differentiable functions into the graph that autograd is still to come upon: what PyTorch takes apart
before autograd, and the loss of a linear layer, whose scores are never in memory at once.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from dnnarray.interop.torch.aten import KERNELS
from dnnarray.interop.torch.aten.kernels import decline, differentiable
from dnnarray.interop.torch.inductor.graphs import only_user
from dnnarray.interop.torch.routes import DECLINES

_LINEAR = (F.linear, torch._C._nn.linear)
_VIEWS = ("view", "reshape", "flatten")


def _loss_options(
    scores: Tensor, target: Tensor, size_average: Any, reduce: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The options of dnnarray's losses, declined where PyTorch's function means something else."""
    if size_average is not None or reduce is not None:
        raise decline("cross_entropy: size_average or reduce")
    if scores.dim() < 2:
        raise decline("cross_entropy: scores without a batch axis")
    if options["weight"] is not None and target.is_floating_point():
        raise decline("cross_entropy: weights of classes beside probabilities")
    return options


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` by dnnarray."""
    options = {
        "weight": weight,
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }
    options = _loss_options(input, target, size_average, reduce, options)
    loss: Tensor = differentiable("cross_entropy")(input, target, **options)
    return loss


def linear_cross_entropy(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy` of the scores of a linear layer, one row of them for each target."""
    if target.is_floating_point():
        raise decline("linear_cross_entropy: probabilities")
    options = {
        "weight": weight,
        "ignore_index": ignore_index,
        "reduction": reduction,
        "label_smoothing": label_smoothing,
    }
    options = _loss_options(w, target, size_average, reduce, options)
    loss: Tensor = differentiable("linear_cross_entropy")(x.reshape(-1, x.shape[-1]), w, target, bias, **options)
    return loss


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """`torch.nn.functional.ctc_loss` by dnnarray."""
    number = ("none", "mean", "sum").index(reduction)
    run = KERNELS["aten::ctc_loss.IntList"].run
    loss: Tensor = run(log_probs, targets, input_lengths, target_lengths, blank, number, zero_infinity)
    return loss


def rms_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """`torch.nn.functional.rms_norm` by dnnarray."""
    y: Tensor = KERNELS["aten::rms_norm"].run(input, list(normalized_shape), weight, eps)
    return y


_FUNCTIONS: dict[Any, tuple[str, Callable[..., Any]]] = {
    F.cross_entropy: ("loss", cross_entropy),
    F.ctc_loss: ("loss", ctc_loss),
    F.rms_norm: ("norm", rms_norm),
    torch.rms_norm: ("norm", rms_norm),
}


def rewrite(graph: Graph, families: Collection[str]) -> Counter[str]:
    """Change a graph that dynamo made, and give what was replaced how often."""
    found: Counter[str] = Counter()
    for node in list(graph.nodes):
        family, function = _FUNCTIONS.get(node.target, (None, None)) if node.op == "call_function" else (None, None)
        if family not in families or function is None or not _concrete(node):
            continue
        if function is cross_entropy and "linear" in families and _with_linear(node):
            found["linear + cross_entropy"] += 1
        elif _does(function, node.args, node.kwargs):
            node.target = function
            found[function.__name__] += 1
    return found


def _value(node: Any) -> Any:
    return node.meta.get("example_value") if isinstance(node, Node) else node


def _empty(node: Node) -> Tensor:
    """A tensor as the one that a node stands for."""
    known = _value(node)
    return torch.empty_strided(known.shape, known.stride(), dtype=known.dtype, device=known.device)


def _concrete(node: Node) -> bool:
    """Whether all shapes are numbers: functions of dnnarray would fix those that `torch.compile` keeps open."""
    tensors = [_value(n) for n in node.all_input_nodes]
    return all(isinstance(t, Tensor) and all(isinstance(n, int) for n in (*t.shape, *t.stride())) for t in tensors)


def _does(function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether dnnarray takes a call: it is made on fake tensors."""
    with FakeTensorMode():  # one of its own: the graph's values can be of several
        given, named = torch.fx.map_arg((args, dict(kwargs)), _empty)
        try:
            function(*given, **named)
        except DECLINES:
            return False
    return True


def _with_linear(node: Node) -> bool:
    """Fuse a loss with the linear layer that gives the scores, where nobody else reads these."""
    given = inspect.signature(cross_entropy).bind(*node.args, **node.kwargs).arguments
    scores, target = given.pop("input"), given.pop("target")
    if _value(scores).dim() != 2:
        return False
    layer: Any = scores
    between = []
    while layer.op == "call_method" and layer.target in _VIEWS and only_user(layer):
        between.append(layer)
        layer = layer.args[0]
    if layer.op != "call_function" or layer.target not in _LINEAR or not only_user(layer):
        return False
    if _value(layer).shape[-1] != _value(scores).shape[1] or scores.kwargs:
        return False
    given_layer = (*layer.args, *layer.kwargs.values(), None)  # None for a bias that is left out
    arguments = (*given_layer[:3], target)
    if not _does(linear_cross_entropy, arguments, given):
        return False
    with node.graph.inserting_before(node):
        loss = node.graph.call_function(linear_cross_entropy, arguments, given)
    loss.meta.update(node.meta)
    node.replace_all_uses_with(loss)
    # One by one: what has no user in a graph before autograd may still write to memory.
    for dead in (node, *between, layer):
        node.graph.erase_node(dead)
    return True
