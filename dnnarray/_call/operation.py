"""`Operation` and `@operation`: what a public function is made of, and the registry of all of them.

A public function is a signature and a docstring. `@operation(problem)` gives it its body (`_body`), which looks up
calls met before and hands all others to `dispatch` (`_dispatch`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, replace
from importlib import import_module
from typing import Any, TypeVar

from dnnarray._call import body as _body
from dnnarray._call.binding import binding_of
from dnnarray._call.dispatch import checked_runtime, dispatch, refuse
from dnnarray._errors import ArrayTypeError, OptionError, closest, fail
from dnnarray._names import FAMILIES, FAMILY_OF
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._problems.needs import NEEDS, needed
from dnnarray._records import frozen

_registry: dict[str, Operation] = {}
F = TypeVar("F", bound=Callable[..., Any])


@frozen(eq=False)
class Operation:
    """One public operation: what its arguments are and who checks, runs and differentiates it.

    Attributes
    ----------
    name, base : the public name; for a rank-checked alias (``conv2d``) `base` is the general operation's
    family : stem of the modules ``_problems.<family>``, ``_cpu.<family>``, ``_cuda.<family>``
    build : ``build(op_name, *specs, **options)`` gives the `Problem` or raises
    arrays : names of all array arguments in signature order
    defaults : option name to default, `inspect.Parameter.empty` where required
    runtime : options that change from call to call and not the plan (``seed``, ``offset``); `run` gets them by name
    nested : array arguments that are lists of weights or tuples of gradients
    numbers : array arguments for which a Python integer is taken too
    required : array arguments that must not be None
    values : ``values(problem, *arrays)`` checks what only the data can tell (labels, lengths); the CPU engine calls it
    gradients : the arrays that the backward returns a gradient for, in order
    save : ``save(*arrays, **options)`` gives ``(result, saved)`` for `vjp`; `saved` goes to the backward by name
    calls : what a call met before comes to, by the key that the function's own text makes of it
    by_place : how many of the arrays the function takes by position alone; they are the first
    """

    name: str
    base: str
    family: str
    function: Callable[..., Any]
    build: Callable[..., Problem]
    arrays: tuple[str, ...]
    defaults: dict[str, Any]
    calls: dict[tuple[Any, ...], Any] = field(repr=False)
    runtime: tuple[str, ...] = ()
    nested: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    values: Callable[..., None] | None = None
    gradients: tuple[str, ...] = ()
    save: Callable[..., tuple[Any, dict[str, Any]]] | None = None
    static: tuple[str, ...] = field(default=())
    ndim: int | None = None
    by_place: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, those of other processes too, are the one object of this name."""
        return find, (self.name,)

    def problem(self, specs: tuple[Any, ...], options: dict[str, Any]) -> Problem:
        """The checked problem for these specs and the options that are not run-time ones."""
        for name, spec in zip(self.arrays, specs, strict=True):
            if spec is None and name in self.required:
                fail(ArrayTypeError, self.name, name, "None", "an array")
        self.check_rank(specs[0])
        chosen = dict(options)
        wanted = chosen.pop(NEEDS, None)
        return needed(self.build(self.name, *specs, **chosen), wanted)

    def check_rank(self, spec: Any) -> None:
        """What an alias such as ``conv2d`` asks beyond its general operation."""
        if self.ndim is not None:
            checks.rank(self.name, self.arrays[0], spec, self.ndim, f"batch, channels and {self.ndim - 2} spatial axes")

    def bind(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arrays in signature order and all options by name, from what `vjp` and `infer` are given, made
        complete."""
        bound, chosen = binding_of(self, values, named).bound(values, named)
        return bound, self.defaults | chosen

    def call(self, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The public function on all arrays in signature order and everything else by name."""
        by_place = self.by_place
        return self.function(
            *arrays[:by_place], **dict(zip(self.arrays[by_place:], arrays[by_place:], strict=True)), **options
        )


def operation(
    build: Callable[..., Problem],
    *,
    arrays: tuple[str, ...] = (),
    runtime: tuple[str, ...] = (),
    nested: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    nullable: tuple[str, ...] = (),
    values: Callable[..., None] | None = None,
    gradients: tuple[str, ...] | None = None,
    save: Callable[..., tuple[Any, dict[str, Any]]] | None = None,
) -> Callable[[F], F]:
    """Make a signature with a docstring into a public operation; the arguments are the attributes of `Operation`.

    Positional-only parameters are arrays; `arrays` names the others that are (optional and keyword-only ones). Those
    without a default are required, but for the ones that `nullable` names, for which None may be passed."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        parameters = signature.parameters
        array_names = tuple(n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY or n in arrays)
        defaults = {n: p.default for n, p in parameters.items() if n not in array_names and n not in _body.PLAIN}
        op = Operation(
            name=function.__name__,
            base=function.__name__,
            family=function.__module__.rpartition(".")[2],
            function=function,
            build=build,
            arrays=array_names,
            defaults=defaults,
            calls={},
            runtime=runtime,
            nested=frozenset(nested),
            numbers=frozenset(numbers),
            required=tuple(
                n for n in array_names if parameters[n].default is inspect.Parameter.empty and n not in nullable
            ),
            values=values,
            gradients=array_names[:1] if gradients is None else gradients,
            save=save,
            static=tuple(n for n in defaults if n not in runtime),
            by_place=sum(p.kind is p.POSITIONAL_ONLY for p in parameters.values()),
        )
        return _public(op, function, signature)

    return decorate


def ranked(name: str, general: F, spatial: int) -> F:
    """The same operation under another name, with the number of spatial axes of its first array checked."""
    op: Operation = general.operation  # type: ignore[attr-defined]
    text = (
        f"`{op.name}` with {spatial} spatial {'axis' if spatial == 1 else 'axes'}; any other rank is a "
        "`ShapeError`.\n\n"
    )
    alias = replace(op, name=name, ndim=spatial + 2, calls={})
    return _public(alias, general, inspect.signature(general), text + inspect.cleandoc(general.__doc__ or ""))


def _public(op: Operation, template: Any, signature: inspect.Signature, doc: str | None = None) -> Any:
    """The callable: native argument binding of `template`'s signature, then a look-up or one call of `dispatch`."""
    names = {"_dispatch": dispatch, "_checked_runtime": checked_runtime, "_refuse": refuse}
    function = _body.public(op, template, signature, names, doc)
    object.__setattr__(op, "function", function)
    function.operation = op
    _registry[op.name] = op
    return function


def lookup(name: str) -> Operation | None:
    """The operation of this name, its family imported if need be; None if there is none."""
    if name not in _registry and name in FAMILY_OF:
        import_module(f"dnnarray.{FAMILY_OF[name]}")
    return _registry.get(name)


def find(op: Any) -> Operation:
    """The operation for a public function or its name."""
    if isinstance(op, str):
        if (found := lookup(op)) is None:
            fail(OptionError, "dnnarray", "op", repr(op), "the name of a public operation", alike(op))
        return found
    if not isinstance(getattr(op, "operation", None), Operation):
        fail(OptionError, "dnnarray", "op", repr(op), "a public function of dnnarray or its name")
    return op.operation


def alike(name: str) -> str:
    """What to say of a name that no operation has: those that look like it."""
    return closest(name, [n for n in FAMILY_OF if n.islower()], 3) or "dir(dnnarray) lists them."


def operations() -> dict[str, Operation]:
    """All operations by name, with every family imported."""
    for family in FAMILIES:
        import_module(f"dnnarray.{family}")
    return dict(_registry)
