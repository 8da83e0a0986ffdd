"""What the rules of second derivatives are given, and the calls that they are made of."""

from __future__ import annotations

from typing import Any

from dnnarray._autodiff.primitive import namespace
from dnnarray._autodiff.traced import plain
from dnnarray._call.operation import Operation, find
from dnnarray._records import frozen


@frozen
class Given:
    """One call of ``<op>_backward`` whose result is differentiated.

    Attributes
    ----------
    forward, backward : the two operations
    arrays : the arrays of the call by name, None where omitted: ``grad``, those of the forward, saved ones
    options : the options of the call by name
    fields : the arrays that ``<op>_backward`` computes a gradient of, in the order of its results
    """

    forward: Operation
    backward: Operation
    arrays: dict[str, Any]
    options: dict[str, Any]
    fields: tuple[str, ...]

    def call_forward(self, **instead: Any) -> Any:
        """The forward with some of its arrays and options replaced."""
        arrays = tuple([instead.pop(n, self.arrays.get(n)) for n in self.forward.arrays])
        options = {n: v for n, v in self.options.items() if n in self.forward.defaults}
        return self.forward.call(arrays, options | instead)

    def call_backward(self, **instead: Any) -> Any:
        """The backward with some of its arrays and options replaced."""
        arrays = tuple([instead.pop(n, self.arrays.get(n)) for n in self.backward.arrays])
        return self.backward.call(arrays, self.options | instead)

    def gradient(self, name: str, **instead: Any) -> Any:
        """The gradient of one array alone, of an operation that has gradients of several."""
        return getattr(self.call_backward(**instead, needs=(name,)), name)


def public(name: str) -> Any:
    """A public function of dnnarray, whose family is imported when a rule asks for it."""
    return find(name).function


def activated(z: Any, name: str | None) -> Any:
    """An activation with its default parameters, as fused operations apply it."""
    return z if name is None else public(name)(z)


def zeros_like(array: Any) -> Any:
    """Zeros of the shape and dtype of an array, which may be recorded."""
    array = plain(array)
    return namespace(array).zeros_like(array)


def channel_axis(x: Any, layout: str) -> int:
    """The axis of the channels."""
    return 1 if layout == "channels_first" else len(x.shape) - 1


def spatial_axes(x: Any, layout: str) -> tuple[int, ...]:
    """The axes of space."""
    return tuple(a for a in range(1, len(x.shape)) if a != channel_axis(x, layout))
