"""Graphs within graphs: branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace, number


@operator("If", scoped=True)
def branch(node: Node, scope: Mapping[str, Any], condition: Any) -> Any:
    return tuple(node.get("then_branch" if number(condition) else "else_branch")(scope))


@operator("Loop", scoped=True)
def loop(node: Node, scope: Mapping[str, Any], most: Any, condition: Any, *carried: Any) -> Any:
    """Outputs are the carried values, and the other results of each turn, stacked."""
    body = node.get("body")
    count = None if most is None else int(number(most))
    going, values, turn = condition is None or bool(number(condition)), list(carried), 0
    rows: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    while going and (count is None or turn < count):
        results = body(scope, np.asarray(turn, np.int64), np.asarray(going), *values)
        going, values = bool(number(results[0])), results[1 : 1 + len(carried)]
        for row, result in zip(rows, results[1 + len(carried) :], strict=True):
            row.append(result)
        turn += 1
    return (*values, *[_stacked(node, body, row, 1 + len(carried) + i, 0) for i, row in enumerate(rows)])


@operator("Scan", scoped=True)
def scan(node: Node, scope: Mapping[str, Any], *inputs: Any) -> Any:
    """In opset 8 the first axis of everything is the batch, and the first input is the lengths."""
    if node.opset >= 9:
        return tuple(_scan(node, scope, inputs))
    if inputs[0] is not None:
        raise node.unsupported(
            "sequence lengths of Scan-8 are not supported", "Convert the model to opset 9 with onnx.version_converter."
        )
    batch = [_scan(node, scope, tuple(x[i] for x in inputs[1:])) for i in range(inputs[1].shape[0])]
    return tuple(namespace(*column).stack(column) for column in zip(*batch, strict=True))


def _scan(node: Node, scope: Mapping[str, Any], inputs: tuple[Any, ...]) -> list[Any]:
    body, scanned = node.get("body"), node.get("num_scan_inputs")
    state, sequences = list(inputs[: len(inputs) - scanned]), inputs[len(inputs) - scanned :]
    rows: list[list[Any]] = [[] for _ in range(len(body.outputs) - len(state))]
    axes = node.get("scan_input_axes", [0] * scanned)
    backwards = node.get("scan_input_directions", node.get("directions", [0] * scanned))
    for turn in range(sequences[0].shape[axes[0]]):
        slices = []
        for x, axis, reverse in zip(sequences, axes, backwards, strict=True):
            axis = axis % x.ndim
            slices.append(x[(slice(None),) * axis + (x.shape[axis] - 1 - turn if reverse else turn,)])
        results = body(scope, *state, *slices)
        state = results[: len(state)]
        for row, result in zip(rows, results[len(state) :], strict=True):
            row.append(result)
    out_axes = node.get("scan_output_axes", [0] * len(rows))
    for row, reverse in zip(rows, node.get("scan_output_directions", [0] * len(rows)), strict=True):
        if reverse:
            row.reverse()
    return [*state, *[_stacked(node, body, row, len(state) + i, out_axes[i]) for i, row in enumerate(rows)]]


def _stacked(node: Node, body: Any, row: list[Any], place: int, axis: int) -> Any:
    """The results of all turns along a new axis; where there was no turn, as the type that the body declares says."""
    if row:
        return namespace(*row).stack(row, axis=axis)
    dtype, shape = body.types[place]
    if dtype is None or shape is None:
        why = f"the loop had no turn, and its body does not declare the shape of {body.outputs[place]!r}"
        raise node.unsupported(why, "Give the output of the body a type with a shape.")
    return node.place.taken(np.empty((*shape[:axis], 0, *shape[axis:]), dtype))
