"""Puts dnnarray's operators into a graph that autograd has made: the fused forms first, then the single operators, and
what is left of the operators that Inductor does not know is taken apart for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, Node

from dnnarray.interop.torch.inductor import fused, graphs
from dnnarray.interop.torch.inductor.graphs import insert, insert_items, items, only_user, same_kind, value
from dnnarray.interop.torch.inductor.operators import MIRRORS

_ATEN = torch.ops.aten
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda")
_TRAINING = _ATEN._native_batch_norm_legit_functional.default
_INFERENCE = _ATEN._native_batch_norm_legit_no_training.default


def kept(families: Collection[str], training: bool) -> set[Any]:
    """The operators that must reach `rewrite` as they are. Where autograd is at work the activations do not: their
    gradients read what they are applied to, so that it has to be in memory anyway.
    """
    found = set(_singles(families))
    if "norm" in families:
        found |= {_TRAINING, _INFERENCE}
    return found if training else found | set(fused.ACTIVATIONS)


def rewrite(graph: Graph, families: Collection[str], unknown: Collection[Any]) -> Counter[str]:
    """Change a graph, and give what was replaced how often; `unknown` are the operators that Inductor does not know."""
    found: Counter[str] = Counter()
    for node in list(graph.nodes):
        form = _FORMS.get(node.target) if graphs.exists(node) else None
        if form is not None and form[0] in families and _computes(node) and (name := form[1](node)):
            found[name] += 1
    singles = _singles(families)
    for node in list(graph.nodes):
        if node.target in singles and _computes(node):
            found[str(node.target).removesuffix(".default")] += 1
            graphs.retarget(node, singles[node.target])
        elif node.target in unknown:
            graphs.decompose(node)
    graph.eliminate_dead_code()
    return found


def _singles(families: Collection[str]) -> dict[Any, Any]:
    """The operators of some families, and that of a compiled graph for each."""
    return {target: mirror for family in families for target, mirror in MIRRORS.get(family, {}).items()}


def _computes(node: Node) -> bool:
    """Whether dnnarray has the device and the dtype of what a node computes."""
    result = value(node)
    first = result[0] if isinstance(result, (tuple, list)) else result
    if first is None:  # a gradient that nobody wants
        first = value(node.args[0])
    return isinstance(first, torch.Tensor) and first.dtype in _DTYPES and first.device.type in _DEVICES


class _Tail:
    """What follows a result that nobody else reads: a residual that is added, and an activation.

    Attributes
    ----------
    last : the node with the end of what follows
    residual, activation : a node and a name, None where they do not follow
    """

    def __init__(self, node: Node, residual: bool = True) -> None:
        self.last, self.residual, self.activation = node, None, None
        follower = only_user(node)
        if residual and follower is not None and (other := _added(follower, node)):
            self.last, self.residual = follower, other
            follower = only_user(follower)
        if follower is not None and (name := activation(follower)):
            self.last, self.activation = follower, name

    def name(self, *before: str) -> str:
        """What was fused, as the report calls it."""
        residual = () if self.residual is None else ("residual",)
        return " + ".join((*before, *residual, *filter(None, (self.activation,))))

    def __bool__(self) -> bool:
        return self.residual is not None or self.activation is not None


def activation(node: Node) -> str | None:
    """The name of the activation that a node is, where dnnarray's fused operations have it."""
    table = fused.ACTIVATIONS.get(node.target)
    if table is None:
        return None
    options = (*node.args[1:], *node.kwargs.values())
    return table.get(options)


def _added(node: Node, to: Node) -> Node | None:
    """What a node adds to another one, elements of one array to those of the other."""
    if node.target is not _ATEN.add.Tensor or len(node.args) != 2 or node.kwargs.get("alpha", 1) != 1:
        return None
    first, second = node.args
    other = second if first is to else first
    return other if isinstance(other, Node) and other is not to and same_kind(other, to) else None


def _convolution(node: Node) -> str | None:
    """Convolution, batch normalization of inference folded into it, residual, activation."""
    x, weight, bias, *options = node.args
    last, names = node, ["convolution"]
    norm = only_user(node)
    folds = not options[3] and norm is not None and norm.target is _INFERENCE and norm.args[0] is node
    if folds and norm is not None and tuple(items(norm)) == (0,):
        last, names = items(norm)[0], ["convolution", "batch_norm"]
    tail = _Tail(last, residual=not options[3])
    if last is node and not tail:
        return None
    end = tail.last
    if last is not node and norm is not None:
        scale, shift, mean, var, _, eps = norm.args[1:]
        weight, bias = graphs.inline(end, fused.folded, (weight, bias, scale, shift, mean, var, eps))
    arguments = (x, weight, bias, *options, tail.residual, tail.activation)
    graphs.replace(end, insert(end, fused.CONV, arguments, node))
    return tail.name(*names)


def _batch_norm(node: Node) -> str | None:
    """Batch normalization of inference, residual, activation."""
    results = items(node)
    if tuple(results) != (0,):
        return None
    x, weight, bias, mean, var, _, eps = node.args
    tail = _Tail(results[0])
    arguments = (x, weight, bias, mean, var, eps, tail.residual, tail.activation)
    graphs.replace(tail.last, insert(tail.last, fused.BATCH_NORM, arguments, node))
    return tail.name("batch_norm")


def _batch_norm_train(node: Node) -> str | None:
    """Batch normalization of training, residual, activation."""
    if not node.args[5]:
        return None
    x, weight, bias, mean, var, _, momentum, eps = node.args
    tail = _tail_of_several(node)
    arguments = (x, weight, bias, mean, var, momentum, eps, *_ends(tail))
    name = "batch_norm_train" if tail is None else tail.name("batch_norm_train")
    _replace_several(node, tail, fused.BATCH_NORM_TRAIN, arguments)
    return name


def _group_norm(node: Node) -> str | None:
    """Group normalization, activation."""
    tail = _tail_of_several(node, residual=False)
    if tail is None or not tail:
        return None
    _replace_several(node, tail, fused.GROUP_NORM, (*node.args, tail.activation))
    return tail.name("group_norm")


def _ends(tail: _Tail | None) -> tuple[Any, Any]:
    return (None, None) if tail is None else (tail.residual, tail.activation)


def _tail_of_several(node: Node, residual: bool = True) -> _Tail | None:
    """What follows the first result, unless another result is read before the end of it."""
    results = items(node)
    if 0 not in results:
        return None
    tail = _Tail(results.pop(0), residual)
    places = {n: i for i, n in enumerate(node.graph.nodes)}
    early = any(places[user] < places[tail.last] for item in results.values() for user in item.users)
    return None if early else tail


def _replace_several(node: Node, tail: _Tail | None, target: Any, arguments: tuple[Any, ...]) -> None:
    """Put an operator in the place of a node with several results, the first of which goes on to the tail's end."""
    end = node if tail is None else tail.last
    results = insert_items(end, insert(end, target, arguments, node))
    if tail is not None and tail:
        graphs.replace(end, results[0])
    if graphs.exists(node):
        graphs.replace(node, results)


def _layer_norm(node: Node) -> str | None:
    """A sum and the layer normalization of it, where no gradient wants the statistics."""
    x, shape, weight, bias, eps = node.args
    if tuple(items(node)) != (0,) or not isinstance(x, Node) or x.target is not _ATEN.add.Tensor:
        return None
    first, second = x.args[:2]
    if not (isinstance(first, Node) and first is not second and same_kind(first, x) and _added(x, first)):
        return None
    # The sum comes first, so that whoever reads it finds it.
    y, total = insert_items(x, insert(x, fused.ADD_LAYER_NORM, (first, second, shape, weight, bias, eps), node))
    graphs.replace(items(node)[0], y)
    if graphs.exists(x):
        graphs.replace(x, total)
    return "residual + layer_norm"


def _linear(node: Node) -> str | None:
    """Linear layer, activation. PyTorch's graph has a product with a transposed weight, and changes of the shape."""
    *bias, x, turned = node.args
    if not (isinstance(turned, Node) and turned.target is _ATEN.permute.default and turned.args[1] == [1, 0]):
        return None
    if node.kwargs or (bias and value(bias[0]).shape != value(node).shape[1:]):
        return None
    shaped = only_user(node)
    view = shaped if shaped is not None and shaped.target is _ATEN.view.default else None
    tail = _Tail(node if view is None else view, residual=False)
    if not tail:
        return None
    arguments = (x, turned.args[0], bias[0] if bias else None, tail.activation)
    result = insert(tail.last, fused.LINEAR, arguments, node)
    if view is not None:
        result = insert(tail.last, _ATEN.view.default, (result, view.args[1]), tail.last)
    graphs.replace(tail.last, result)
    return tail.name("linear", *(["bias"] if bias else []))


_FORMS = {
    _ATEN.convolution.default: ("convolution", _convolution),
    _INFERENCE: ("norm", _batch_norm),
    _TRAINING: ("norm", _batch_norm_train),
    _ATEN.native_group_norm.default: ("norm", _group_norm),
    _ATEN.native_layer_norm.default: ("norm", _layer_norm),
    _ATEN.addmm.default: ("linear", _linear),
    _ATEN.mm.default: ("linear", _linear),
}
"""By the first operator of a form: its family, and what replaces the form and gives a name where there is one."""
