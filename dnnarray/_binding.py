"""What the arguments of `vjp`, `infer` and their like stand for: found once for all calls of one form."""

from __future__ import annotations

from typing import Any

from dnnarray._records import frozen


@frozen(eq=False)
class Binding:
    """What the arguments of calls of one form stand for.

    Attributes
    ----------
    places : the parameters that the values given by position are for, in their order
    arrays : all array parameters of the operation in signature order
    defaults : the options that may be left out
    missing : those that may not, and are; what the function takes to tell that
    passed : the arrays that are given, those by position first
    """

    places: tuple[str, ...]
    arrays: tuple[str, ...]
    defaults: dict[str, Any]
    missing: dict[str, Any]
    passed: tuple[str, ...]

    def bound(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arrays in signature order, None where left out, and everything else by name; without what is required and missing."""
        options = self.defaults | dict(zip(self.places, values, strict=True)) | named
        return tuple([options.pop(n, None) for n in self.arrays]), options
