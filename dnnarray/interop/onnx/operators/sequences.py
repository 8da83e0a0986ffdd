"""Sequences, which are lists, and optional values, which may be None."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._errors import OptionError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace, number


@operator("SequenceConstruct")
def construct(node: Node, *inputs: Any) -> Any:
    return list(inputs)


@operator("SequenceEmpty")
def empty(node: Node) -> Any:
    return []


def _place(node: Node, sequence: list[Any], position: Any, last: int) -> int:
    place = int(number(position))
    if not -len(sequence) <= place <= last:
        raise OptionError(f"onnx: {node}: position is {place}; expected {-len(sequence)} to {last}.")
    return place


@operator("SequenceAt", host=(1,))
def at(node: Node, sequence: list[Any], position: Any) -> Any:
    return sequence[_place(node, sequence, position, len(sequence) - 1)]


@operator("SequenceInsert", host=(2,))
def insert(node: Node, sequence: list[Any], value: Any, position: Any = None) -> Any:
    result = list(sequence)
    result.insert(len(result) if position is None else _place(node, sequence, position, len(sequence)), value)
    return result


@operator("SequenceErase", host=(1,))
def erase(node: Node, sequence: list[Any], position: Any = None) -> Any:
    result = list(sequence)
    del result[-1 if position is None else _place(node, sequence, position, len(sequence) - 1)]
    return result


@operator("SequenceLength")
def length(node: Node, sequence: list[Any]) -> Any:
    return np.asarray(len(sequence), np.int64)


@operator("ConcatFromSequence")
def concat(node: Node, sequence: list[Any]) -> Any:
    xp, axis = namespace(*sequence), node.get("axis")
    return xp.stack(sequence, axis=axis) if node.get("new_axis", 0) else xp.concat(sequence, axis=axis)


@operator("SplitToSequence", host=(1,))
def split(node: Node, x: Any, sizes: Any = None) -> Any:
    """In slices of extent 1, in slices of one extent, or in slices of the extents given."""
    axis = node.get("axis", 0) % x.ndim
    before = (slice(None),) * axis
    if sizes is None:
        keepdims = node.get("keepdims", 1)
        return [x[(*before, slice(i, i + 1) if keepdims else i)] for i in range(x.shape[axis])]
    extents = integers(sizes)
    if not sizes.ndim:
        starts = list(range(0, x.shape[axis], extents[0]))
        return [x[(*before, slice(start, start + extents[0]))] for start in starts]
    ends = np.cumsum(extents).tolist()
    return [x[(*before, slice(end - n, end))] for n, end in zip(extents, ends, strict=True)]


@operator("SequenceMap", scoped=True)
def over(node: Node, scope: Any, sequence: list[Any], *others: Any) -> Any:
    """The body once for each entry; further inputs that are sequences are gone through beside it."""
    rows = [
        node.get("body")(scope, entry, *[other[i] if isinstance(other, list) else other for other in others])
        for i, entry in enumerate(sequence)
    ]
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else tuple([] for _ in node.outputs)


@operator("Optional")
def optional(node: Node, value: Any = None) -> Any:
    return value


@operator("OptionalHasElement")
def has_element(node: Node, value: Any = None) -> Any:
    return np.asarray(value is not None)


@operator("OptionalGetElement")
def get_element(node: Node, value: Any) -> Any:
    if value is None:
        raise OptionError(f"onnx: {node}: the optional value is empty; expected one with an element.")
    return value
