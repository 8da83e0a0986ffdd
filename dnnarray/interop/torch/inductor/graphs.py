"""Changes of the graphs of `torch.fx` that Inductor compiles, with the fake tensors that it reads from their nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree


def value(node: Any) -> Any:
    """The fake tensor that stands for the result of a node; anything else as it is."""
    return node.meta["val"] if isinstance(node, Node) else node


def same_kind(first: Any, second: Any) -> bool:
    """Whether two nodes are tensors of one shape, dtype and device."""
    a, b = value(first), value(second)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device


def only_user(node: Node) -> Node | None:
    """The one node that reads the result, None where there are several or none."""
    users = tuple(node.users)
    return users[0] if len(users) == 1 else None


def items(node: Node) -> dict[int, Node]:
    """The results of a node with several of them, by their number, as far as they are read."""
    return {user.args[1]: user for user in node.users if user.target is operator.getitem}  # type: ignore[misc]


def insert(before: Node, target: Any, arguments: Sequence[Any], like: Node) -> Node:
    """A call of an operator in front of a node, with the value that the operator gives; `like` says where in the
    user's program it belongs.
    """
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, tuple(arguments))
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    given = pytree.tree_map(value, tuple(arguments))
    node.meta["val"] = target(*given)
    if target is not operator.getitem:
        keep_strides(node)
    return node


def keep_strides(node: Node) -> None:
    """Let Inductor hand the arguments over with the strides that they have in the graph: by those of its arguments an
    operator chooses those of its results.
    """
    node.meta["eager_input_vals"] = pytree.tree_map(value, (node.args, node.kwargs))


def retarget(node: Node, target: Any) -> None:
    """Let a node call another operator with the same arguments."""
    node.target = target
    args, kwargs = pytree.tree_map(value, (node.args, dict(node.kwargs)))
    node.meta["val"] = target(*args, **kwargs)
    for number, item in items(node).items():
        item.meta["val"] = node.meta["val"][number]
    keep_strides(node)


def insert_items(before: Node, node: Node) -> list[Node]:
    """All results of a node with several of them."""
    return [insert(before, operator.getitem, (node, i), node) for i in range(len(node.meta["val"]))]


def inline(before: Node, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Insert what `function` computes of nodes and numbers, by the operators that Inductor knows; give its results."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves, spec = pytree.tree_flatten(tuple(arguments))
    nodes = [leaf for leaf in leaves if isinstance(leaf, Node)]

    def of_tensors(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return function(*pytree.tree_unflatten([next(given) if isinstance(a, Node) else a for a in leaves], spec))

    traced = make_fx(of_tensors, select_decomp_table())(*map(value, nodes)).graph
    return _copied(traced, nodes, before)


def _copied(traced: Graph, nodes: Sequence[Node], before: Node) -> Any:
    """The nodes of a graph in front of a node of another one, and what stands there for the graph's results."""
    found: dict[Node, Node] = {}
    given = iter(nodes)
    with before.graph.inserting_before(before):
        for node in traced.nodes:
            if node.op == "placeholder":
                found[node] = next(given)
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], found.__getitem__)
            elif node.op == "call_function":
                found[node] = before.graph.node_copy(node, found.__getitem__)
            else:
                raise AssertionError(f"a node {node.op} in a decomposition")
    raise AssertionError("a graph without output")


def decompose(node: Node) -> None:
    """Put the operators that Inductor knows in the place of one that it does not."""
    names = tuple(node.kwargs)

    def call(*arguments: Any) -> Any:
        plain = arguments[: len(node.args)]
        return node.target(*plain, **dict(zip(names, arguments[len(plain) :], strict=True)))  # type: ignore[operator]

    result = inline(node, call, (*node.args, *node.kwargs.values()))
    replace(node, result)


def replace(node: Node, result: Any) -> None:
    """Let the users of a node read `result`: a node, or one for each of the node's results."""
    if isinstance(result, Node):
        node.replace_all_uses_with(result)
    else:
        for number, item in items(node).items():
            item.replace_all_uses_with(result[number])
            node.graph.erase_node(item)
    _erase(node)


def _erase(node: Node) -> None:
    """Take a node that nobody reads out of the graph, and what has been there for it alone."""
    read = node.all_input_nodes
    node.graph.erase_node(node)
    for before in read:
        if exists(before) and before.op == "call_function" and not before.users and not before.is_impure():
            _erase(before)


def exists(node: Node) -> bool:
    """Whether a node of a list that was made before is still in its graph."""
    return not node._erased
