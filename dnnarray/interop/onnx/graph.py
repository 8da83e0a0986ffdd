"""`Program`: a graph of a model as a list of steps, prepared once and run for any inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from dnnarray._errors import UnsupportedError
from dnnarray._records import frozen
from dnnarray.interop.onnx.registry import Node, Operator, find
from dnnarray.interop.onnx.values import Place, array_of, dtype_of, is_array

_WAY = (
    "Replace the operator when the model is exported (onnx.version_converter, onnx.inliner or "
    "torch.onnx.export(dynamo=True) may do it), define it as a function of the model, or compute this part outside."
)


@frozen(eq=False)
class Setting:
    """What is the same for all graphs of a model.

    Attributes
    ----------
    opsets : the version of the operator set of each domain
    functions : the functions that the model defines, by domain and name
    place : where the model runs
    """

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], FunctionProto]
    place: Place

    @classmethod
    def of(cls, model: ModelProto, place: Place) -> Setting:
        functions = {(_domain(f.domain), f.name): f for f in model.functions}
        return cls(_opsets(model.opset_import), functions, place)

    def within(self, function: FunctionProto) -> Setting:
        """The setting of a function's own nodes."""
        return Setting({**self.opsets, **_opsets(function.opset_import)}, self.functions, self.place)


@frozen(eq=False)
class Step:
    """A node with its implementation, and the values that nothing needs after it."""

    node: Node
    operator: Operator
    drops: tuple[str, ...]


class Program:
    """The steps of a graph.

    Parameters
    ----------
    inputs, outputs : names of the values that come in and go out
    constants : values that the graph holds
    steps : the nodes in order
    place : where it runs
    types : the dtype and the shape of each output as the graph declares them, None where it does not
    """

    def __init__(
        self,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        constants: dict[str, Any],
        steps: list[tuple[Node, Operator]],
        place: Place,
        types: tuple[Any, ...] = (),
    ) -> None:
        self.types = types
        self.inputs, self.outputs, self.constants, self.place = inputs, outputs, constants, place
        self.free = _free(inputs, outputs, constants, steps)
        kept = {*outputs, *self.free}
        self.steps = []
        for node, found in reversed(steps):
            used = {n for n in (*node.inputs, *_captured(node), *node.outputs) if n}
            drops = tuple(used - kept)
            kept |= used
            self.steps.append(Step(node, found, drops))
        self.steps.reverse()

    def __call__(self, scope: Mapping[str, Any], *inputs: Any) -> list[Any]:
        """The outputs for these inputs; `scope` holds the values around the graph."""
        values: dict[str, Any] = {n: scope[n] for n in self.free} | self.constants
        values.update(zip(self.inputs, inputs, strict=False))
        for step in self.steps:
            self._run(step, values)
        return [values[n] for n in self.outputs]

    def _run(self, step: Step, values: dict[str, Any]) -> None:
        node, found = step.node, step.operator
        given = [values[n] if n else None for n in node.inputs]
        if self.place.cuda and not found.scoped and any(is_array(v) and not isinstance(v, np.ndarray) for v in given):
            given = [v if i in found.host else self.place.taken(v) for i, v in enumerate(given)]
        try:
            results = found.run(node, values, *given) if found.scoped else found.run(node, *given)
        except Exception as error:
            error.add_note(f"onnx: while computing {node}")
            raise
        results = results if isinstance(results, tuple) else (results,)
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                values[name] = np.asarray(value) if isinstance(value, np.generic) else value
        for name in step.drops:
            values.pop(name, None)


def _free(
    inputs: tuple[str, ...], outputs: tuple[str, ...], constants: Mapping[str, Any], steps: list[tuple[Node, Operator]]
) -> frozenset[str]:
    """The values that a graph takes from around it."""
    known, free = {*inputs, *constants}, set[str]()
    for node, _ in steps:
        free |= {n for n in (*node.inputs, *_captured(node)) if n and n not in known}
        known |= set(node.outputs)
    return frozenset(free | (set(outputs) - known))


def _captured(node: Node) -> Iterator[str]:
    """The values that the graphs among a node's attributes take from around it."""
    for value in node.attributes.values():
        for graph in value if isinstance(value, list) else [value]:
            if isinstance(graph, Program):
                yield from graph.free


def program_of(graph: GraphProto, setting: Setting) -> Program:
    """The program of a graph.

    Raises
    ------
    UnsupportedError
        Nothing here computes a node of it.
    """
    constants = {t.name: setting.place.constant(array_of(t)) for t in graph.initializer}
    constants |= {t.values.name: setting.place.constant(array_of(t)) for t in graph.sparse_initializer}
    steps = [_step(node, setting) for node in graph.node]
    inputs, outputs = (tuple(v.name for v in values) for values in (graph.input, graph.output))
    return Program(inputs, outputs, constants, steps, setting.place, tuple(map(_type_of, graph.output)))


def _type_of(value: ValueInfoProto) -> tuple[np.dtype | None, tuple[int, ...] | None]:
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type) if tensor.elem_type else None
    dims = tensor.shape.dim
    known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return dtype, tuple(d.dim_value for d in dims) if known else None


def _step(proto: NodeProto, setting: Setting) -> tuple[Node, Operator]:
    domain = _domain(proto.domain)
    node = Node(
        proto.op_type,
        domain,
        proto.name,
        setting.opsets.get(domain, 1),
        {a.name: _attribute(a, setting) for a in proto.attribute},
        tuple(proto.input),
        tuple(proto.output),
        setting.place,
    )
    function = setting.functions.get((domain, proto.op_type))
    if function is None:
        if found := find(domain, proto.op_type):
            if found.refuses:
                found.refuses(node)
            return node, found
        function = _defined(node)
    if function is None:
        raise node.unsupported("nothing in dnnarray computes this operator", _WAY)
    return node, _called(proto, function, setting)


def _defined(node: Node) -> FunctionProto | None:
    """The function by which ONNX itself defines an operator, if it does, with the defaults of its attributes."""
    try:
        schema = onnx.defs.get_schema(node.op, node.opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    if not schema.has_function:  # type: ignore[attr-defined]
        return None
    function = FunctionProto()
    function.CopyFrom(schema.function_body)
    known = {a.name for a in function.attribute_proto}
    defaults = [a.default_value for n, a in schema.attributes.items() if n not in known and a.default_value.type]
    function.attribute_proto.extend(defaults)
    return function


def _called(proto: NodeProto, function: FunctionProto, setting: Setting) -> Operator:
    """A function as an implementation: its nodes, with the attributes of the node that calls it."""
    given = {a.name: a for a in function.attribute_proto} | {a.name: a for a in proto.attribute}
    inner = setting.within(function)
    steps = [_step(_with_attributes(node, given), inner) for node in function.node]
    program = Program(tuple(function.input), tuple(function.output), {}, steps, setting.place)

    def run(node: Node, *inputs: Any) -> Any:
        missing = [None] * (len(program.inputs) - len(inputs))
        return tuple(program({}, *inputs, *missing))

    return Operator(run)


def _with_attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """A copy of a function's node whose references to the function's attributes are resolved, or left out."""
    copy = NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                copy.attribute.add().CopyFrom(given[attribute.ref_attr_name])
                copy.attribute[-1].name = attribute.name
        else:
            copied = copy.attribute.add()
            copied.CopyFrom(attribute)
            for graph in (
                (copied.g, *copied.graphs) if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) else ()
            ):
                for i, inner in enumerate(graph.node):
                    graph.node[i].CopyFrom(_with_attributes(inner, given))
    return copy


def _attribute(attribute: AttributeProto, setting: Setting) -> Any:
    kind = attribute.type
    if kind == AttributeProto.GRAPH:
        return program_of(attribute.g, setting)
    if kind in (AttributeProto.TENSOR, AttributeProto.SPARSE_TENSOR):
        return array_of(helper.get_attribute_value(attribute))
    value = helper.get_attribute_value(attribute)
    if kind == AttributeProto.STRING:
        return value.decode()
    if kind == AttributeProto.STRINGS:
        return [v.decode() for v in value]
    if kind in (AttributeProto.GRAPHS, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSORS):
        raise UnsupportedError(
            f"onnx: the attribute {attribute.name!r} is a list of graphs or tensors; no operator of ONNX takes one."
        )
    return list(value) if kind in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _opsets(imports: Any) -> dict[str, int]:
    return {_domain(o.domain): o.version for o in imports}
