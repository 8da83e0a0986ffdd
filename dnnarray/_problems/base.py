"""`Problem`: what an operation has to compute, without the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

from dnnarray._records import frozen
from dnnarray._spec import Spec

F = TypeVar("F", bound=Callable[..., Any])


def remembered(function: F) -> F:
    """Keep what a function makes of a frozen object, its first argument, in that object, for each set of the other
    arguments.

    The candidates for a problem ask the same things of it. A cache that had to hash the problem would take as long as
    most of the answers."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def found(subject: Any, *others: Any) -> Any:
        memory, key = subject.__dict__.setdefault("_remembered", {}), (name, *others)
        try:
            return memory[key]
        except KeyError:
            memory[key] = result = function(subject, *others)
            return result

    return cast(F, found)


@frozen(kw_only=True)
class Problem:
    """Base of all problems.

    Attributes
    ----------
    op : name of the public function, for messages and reports
    inputs : a `Spec` per array in signature order, None where omitted (nested where the function takes a list of
        weights)
    outputs : a `Spec` per result, None for a result that is absent
    returns : builds what the user gets from the outputs (a NamedTuple class, usually); None gives the first output
        itself
    shapes : the inputs, by their place, that an operation is given for their shape and dtype alone
    """

    op: str
    inputs: tuple[Any, ...]
    outputs: tuple[Spec | None, ...]
    returns: Callable[..., Any] | None = field(
        default=None, repr=False
    )  # the tuning table is keyed by the repr, functions show addresses
    shapes: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def fields(self) -> tuple[str, ...]:
        """The field of the result that each output belongs to, by name; none where the result is a single array."""
        return getattr(self.returns, "_fields", ())

    @property
    def unread(self) -> frozenset[int]:
        """The inputs, by their place, of which no value enters the outputs: `shapes`, and what is asked for may read
        fewer still."""
        return self.shapes

    @cached_property
    def reads(self) -> tuple[bool, ...]:
        """Whether the values of an array enter the outputs, for all arrays given, those in nested inputs too."""
        unread = self.unread
        return tuple(i not in unread for i, spec in enumerate(self.inputs) for _ in leaves(spec))

    def __getstate__(self) -> dict[str, Any]:
        """Copies go without what was `remembered` of the original."""
        return {f.name: self.__dict__[f.name] for f in fields(self)}

    @cached_property
    def bytes(self) -> int:
        """Bytes that must move: each input that is read once, each output written once."""
        given = zip(leaves(self.inputs), self.reads, strict=True)
        return sum(s.nbytes for s, read in given if read) + sum(s.nbytes for s in self.outputs if s is not None)

    @property
    def flops(self) -> int:
        """Arithmetic operations of the definition; families whose work is not proportional to their size override
        it."""
        return sum(s.size for s in self.outputs if s is not None)

    @property
    def needs_seed(self) -> bool:
        """Whether random numbers are drawn although the operation itself does not require a seed (dropout that is 0 by
        default)."""
        return False

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Which input may be the caller's array for which output: their places in `inputs` and `outputs`. The result is
        then written over the input."""
        return ()

    @property
    def result(self) -> Spec:
        """The first result, of an operation that always has one."""
        first = self.outputs[0]
        assert first is not None, self.op
        return first

    def legend(self) -> str:
        """The problem in one line, for reports."""
        return ", ".join(str(s) for s in leaves(self.inputs))


@frozen(kw_only=True)
class Overwriting(Problem):
    """A problem whose results may be written over the inputs of their shape and dtype."""

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        given = [(i, spec) for i, spec in enumerate(self.inputs) if isinstance(spec, Spec)]
        results = [(j, spec) for j, spec in enumerate(self.outputs) if spec is not None]
        return tuple((i, j) for i, a in given for j, b in results if (a.shape, a.dtype) == (b.shape, b.dtype))


def leaves(tree: Any) -> list[Any]:
    """All entries of nested tuples and lists that are not None, in order."""
    if tree is None:
        return []
    if isinstance(tree, (tuple, list)):
        return [leaf for branch in tree for leaf in leaves(branch)]
    return [tree]


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` over every leaf of nested tuples, lists and named tuples; None stays None. Lists become tuples."""
    if tree is None:
        return None
    if isinstance(tree, (tuple, list)):
        branches = [tree_map(function, branch) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    return function(tree)
