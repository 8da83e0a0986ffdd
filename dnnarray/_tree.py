"""Nested containers of arrays: flattening a structure to its leaves and building the same structure from new leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dnnarray._errors import OptionError


def leaves(tree: Any) -> Iterator[Any]:
    """All leaves in order: whatever is no dict, list or tuple. A dict gives its values in the order of its own keys."""
    if isinstance(tree, dict):
        for branch in tree.values():
            yield from leaves(branch)
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def tree_map(function: Callable[..., Any], tree: Any, *others: Any, where: str = "tree_map") -> Any:
    """`function` over the leaves of one or several structures of the same form; the result has the form of the first.

    Raises
    ------
    OptionError
        The structures differ; the message names the path at which they do. `where` names the public function for it.
    """
    return _mapped(function, tree, others, "", where)


def _mapped(function: Callable[..., Any], tree: Any, others: tuple[Any, ...], path: str, where: str) -> Any:
    if isinstance(tree, dict):
        _check_same(tree, others, path, where)
        return type(tree)(
            (key, _mapped(function, branch, tuple(o[key] for o in others), f"{path}[{key!r}]", where))
            for key, branch in tree.items()
        )
    if isinstance(tree, (list, tuple)):
        _check_same(tree, others, path, where)
        branches = [
            _mapped(function, b, tuple(o[i] for o in others), f"{path}[{i}]", where) for i, b in enumerate(tree)
        ]
        return type(tree)(*branches) if hasattr(tree, "_fields") else type(tree)(branches)
    return function(tree, *others)


def _check_same(tree: Any, others: tuple[Any, ...], path: str, where: str) -> None:
    for other in others:
        if isinstance(tree, dict):
            same = isinstance(other, dict) and tree.keys() == other.keys()
        else:
            same = isinstance(other, (list, tuple)) and len(tree) == len(other)
        if not same:
            raise OptionError(
                f"{where}: the structures differ at {path or 'the top'}: {_form(tree)} beside {_form(other)}."
            )


def _form(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"a dict with the keys {list(tree)}"
    return f"a {type(tree).__name__} of {len(tree)}" if isinstance(tree, (list, tuple)) else f"a {type(tree).__name__}"
