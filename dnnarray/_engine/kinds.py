"""Array types whose warm calls the body of a public function looks up by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dnnarray import _source
from dnnarray._records import frozen


@frozen
class Kind:
    """Arrays whose warm calls are looked up by the text itself.

    Attributes
    ----------
    name : prefix of the names that stand for `types` in the generated text
    types : the array types of this kind; a warm call takes arrays of one kind only
    place : text for what a plan depends on beside the arrays, such as the current device; differs between kinds
    signature : text for all that a plan depends on in the array ``{n}``, entries of a tuple
    scope : what the two texts speak of
    vague : ``vague(array)`` says whether `signature` leaves open how the array lies in memory; its strides are looked
        at beside the key then
    """

    name: str
    types: frozenset[type]
    place: str
    signature: str
    scope: dict[str, Any]
    vague: Callable[[Any], bool] = lambda array: False

    def holds(self, name: str) -> str:
        """Text for whether an argument is of this kind."""
        return f"type({name}) {'is' if len(self.types) == 1 else 'in'} _{self.name}"

    @property
    def names(self) -> dict[str, Any]:
        """Everything that the text speaks of."""
        types = next(iter(self.types)) if len(self.types) == 1 else self.types
        return {
            f"_{self.name}": types,
            f"_{self.name}_tree": partial(_tree_of, self.types, self._entries()),
            **self.scope,
        }

    def _entries(self) -> Callable[[Any], Any]:
        text = f"def entries(array): return ({self.signature.format(n='array')})\n"
        return _source.function("entries", text, self.scope, __name__)


def _tree_of(types: frozenset[type], entries: Callable[[Any], Any], tree: Any) -> Any:
    """The signatures in a nested argument. TypeError, as for what cannot be looked up by, where it holds anything
    else."""
    if type(tree) in types:
        return entries(tree)
    if tree is None:
        return None
    if not isinstance(tree, (tuple, list)):
        raise TypeError
    return tuple([_tree_of(types, entries, branch) for branch in tree])
