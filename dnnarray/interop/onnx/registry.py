"""`operator`: how the implementation of an operator of ONNX is declared, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnnarray._errors import UnsupportedError
from dnnarray._records import frozen


@dataclass(eq=False)
class Node:
    """A node of a model, as implementations see it.

    Attributes
    ----------
    op, domain, name : what the model calls it
    opset : the version of the domain's operator set that the model imports
    attributes : the attributes that are there, as values of Python and arrays; graphs are callables
        ``graph(scope, *inputs) -> list``
    inputs, outputs : names of values, "" for what is left out
    place : where the model runs
    """

    op: str
    domain: str
    name: str
    opset: int
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: Any = None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where the node has none of that name."""
        return self.attributes.get(name, default)

    def wants(self, index: int) -> bool:
        """Whether the output of this index has a name."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def __str__(self) -> str:
        name = f"{self.name!r}" if self.name else f"that computes {', '.join(repr(n) for n in self.outputs if n)}"
        return f"{self.op} of the domain {self.domain or 'ai.onnx'!r}, opset {self.opset} (the node {name})"

    def unsupported(self, why: str, way: str) -> UnsupportedError:
        """The error that says why this node does not run, and what to do instead."""
        return UnsupportedError(f"onnx: {self}: {why}. {way}")


@frozen(eq=False)
class Operator:
    """The implementation of an operator.

    Attributes
    ----------
    run : ``run(node, *inputs)`` gives the output, or a tuple of several; None for an input that is left out
    host : places of the inputs that are read in the memory of the processor; they are not brought to the device
    scoped : whether `run` takes the values around the node too, behind it, for the graphs among its attributes
    refuses : ``refuses(node)`` raises where the node asks for what the implementation does not have; called before
        anything runs
    """

    run: Callable[..., Any]
    host: frozenset[int] = frozenset()
    scoped: bool = False
    refuses: Callable[[Node], None] | None = None


OPERATORS: dict[tuple[str, str], Operator] = {}


def operator(
    *names: str,
    host: tuple[int, ...] = (),
    scoped: bool = False,
    refuses: Callable[[Node], None] | None = None,
    domain: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function the implementation of the operators `names`; the arguments are the attributes of `Operator`."""

    def decorate(run: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            OPERATORS[domain, name] = Operator(run, frozenset(host), scoped, refuses)
        return run

    return decorate


def find(domain: str, name: str) -> Operator | None:
    """The implementation of an operator; None where there is none."""
    return OPERATORS.get(("" if domain == "ai.onnx" else domain, name))
