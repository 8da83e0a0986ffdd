"""`@operation` and `dispatch`: the one way from a public function to an engine.

A public function is a signature and a docstring. `@operation(problem)` gives it its body (`_body`): hand the arrays and the options to
`dispatch`, which finds the engine, builds the problem (every user error is raised there), lets the selection choose, and runs.
What was decided is kept per signature of the call, so that a warm call costs a look-up.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import numpy as np

from dnnarray import _arrays, _body, _observe
from dnnarray._binding import Binding
from dnnarray._body import MISSING
from dnnarray._errors import ArrayTypeError, OptionError, closest, fail
from dnnarray._names import FAMILIES, FAMILY_OF
from dnnarray._options import CURRENT, DEFAULT, Options
from dnnarray._problems import checks
from dnnarray._problems.base import Problem, leaves, tree_map
from dnnarray._problems.needs import NEEDS, needed
from dnnarray._records import frozen
from dnnarray._select import rank, tuning
from dnnarray._spec import Spec
from dnnarray._untraced import untraced

_CACHE_SIZE = 4096
_registry: dict[str, Operation] = {}
_prepared: dict[tuple, Any] = {}
_bindings: dict[tuple, Binding] = {}
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
        """The arrays in signature order and all options by name, from what `vjp` and `infer` are given (`place`), made complete."""
        bound, chosen = self.binding(values, named).bound(values, named)
        return bound, self.defaults | chosen

    def binding(self, values: tuple[Any, ...], named: dict[str, Any]) -> Binding:
        """What the arguments of a call stand for. It is looked at once for all calls that have values of the same types and the same names."""
        key = (self, *map(type, values), *named)
        found = _bindings.get(key)
        if found is None:
            if len(_bindings) >= _CACHE_SIZE:
                _bindings.clear()
            found = _bindings[key] = self._bind(values, named)
        return found

    def _bind(self, values: tuple[Any, ...], named: dict[str, Any]) -> Binding:
        placed = self.place(values, named)
        known = (*self.arrays, *self.defaults)
        for name in named:
            if name in placed or name not in known:
                hint = f" {fix}" if name not in known and (fix := closest(name, known)) else ""
                raise TypeError(f"{self.name}: unknown or repeated argument {name!r}; it takes {', '.join(known)}.{hint}")
        given = (*placed, *named)
        missing = [n for n in self.static if n not in given and self.defaults[n] is inspect.Parameter.empty]
        if missing:
            raise TypeError(f"{self.name}: missing {', '.join(missing)}; give {'it' if len(missing) == 1 else 'them'} by name.")
        defaults = {n: d for n, d in self.defaults.items() if d is not inspect.Parameter.empty}
        passed = tuple(n for names in (placed, named) for n in self.arrays if n in names)
        required = dict.fromkeys((n for n in self.runtime if n not in given and n not in defaults), MISSING)
        return Binding(tuple(placed), self.arrays, defaults, required, passed)

    def place(self, values: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The parameters that values given by position are for: all arrays in signature order, and the options that stand among them.

        Such an option may be left to its name: an array (or None, for one that is omitted) in its place is the next array. What is no array, behind
        all arrays, is the next option.
        """
        parameters = self.function.__signature__.parameters  # type: ignore[attr-defined]
        positional = [n for n in self.defaults if parameters[n].kind is not inspect.Parameter.KEYWORD_ONLY]
        open_ = [n for n in parameters if n in self.arrays or (n in positional and n not in named)]
        behind = [n for n in self.static if n not in positional and n not in named]
        given: dict[str, Any] = {}
        for value in values:
            array = value is None or _arrays.like_array(value)
            while array and open_ and open_[0] in positional and any(n in self.arrays for n in open_):
                open_.pop(0)
            names = open_ or ([] if array else behind)
            if not names:
                raise TypeError(f"{self.name}: takes {len(self.arrays)} arrays ({', '.join(self.arrays)}), got {len(values)}.")
            given[names.pop(0)] = value
        return given

    def call(self, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The public function on all arrays in signature order and everything else by name."""
        by_place = self.by_place
        return self.function(*arrays[:by_place], **dict(zip(self.arrays[by_place:], arrays[by_place:], strict=True)), **options)


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

    Positional-only parameters are arrays; `arrays` names the others that are (optional and keyword-only ones). Those without a default
    are required, but for the ones that `nullable` names, for which None may be passed.
    """

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
            required=tuple(n for n in array_names if parameters[n].default is inspect.Parameter.empty and n not in nullable),
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
    text = f"`{op.name}` with {spatial} spatial {'axis' if spatial == 1 else 'axes'}; any other rank is a `ShapeError`.\n\n"
    alias = replace(op, name=name, ndim=spatial + 2, calls={})
    return _public(alias, general, inspect.signature(general), text + inspect.cleandoc(general.__doc__ or ""))


def _public(op: Operation, template: Any, signature: inspect.Signature, doc: str | None = None) -> Any:
    """The callable: native argument binding of `template`'s signature, then a look-up or one call of `dispatch`."""
    names = {"_dispatch": dispatch, "_checked_runtime": _checked_runtime, "_refuse": refuse}
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


@untraced
def dispatch(
    op: Operation,
    arrays: tuple[Any, ...],
    options: tuple[Any, ...],
    runtime: tuple[Any, ...],
    out: Any,
    workspace: Any,
    algorithm: str | None,
    key: tuple[Any, ...] | None = None,
) -> Any:
    """Run `op`: `options` and `runtime` are values in the order of ``op.static`` and ``op.runtime``.

    Warm calls do not come here: the body of the public function looks them up itself, by `key` from the second time on. What comes is observed, made
    for the first time, or on arrays that no key is made of.
    """
    for leaf in leaves(arrays) if op.nested else arrays:
        if taker := getattr(type(leaf), "__dnnarray_function__", None):
            return taker(op, arrays, _named(op, options, runtime, algorithm), out, workspace)
    config = CURRENT.get(DEFAULT)
    _check_complete(op, arrays, options, runtime)
    if config.observed:
        return _observe.observed(
            config, op, arrays, options, lambda: _run(config, op, arrays, options, runtime, out, workspace, algorithm, None)
        )
    return _run(config, op, arrays, options, runtime, out, workspace, algorithm, key)


def refuse(op: Operation, unknown: dict[str, Any]) -> NoReturn:
    """Say what is wrong with names that the function does not take, or not as names."""
    parameters = op.function.__signature__.parameters  # type: ignore[attr-defined]
    name = next(iter(unknown))
    if name in parameters:
        raise TypeError(f"{op.name}() got some positional-only arguments passed as keyword arguments: {name!r}; give it without its name.")
    hint = closest(name, [n for n, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY])
    raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}{f'. {hint}' if hint else ''}")


def _check_complete(op: Operation, arrays: tuple[Any, ...], options: tuple[Any, ...], runtime: tuple[Any, ...]) -> None:
    """Raise where a required argument was left out, in Python's own words."""
    for value in (*arrays, *options, *runtime):
        if value is MISSING:
            break
    else:  # nearly every call ends here
        return
    names = (*op.arrays, *op.static, *op.runtime)
    missing = [name for name, value in zip(names, (*arrays, *options, *runtime), strict=True) if value is MISSING]
    by_name = op.function.__signature__.parameters[missing[0]].kind is inspect.Parameter.KEYWORD_ONLY  # type: ignore[attr-defined]
    kind = f"{'keyword-only' if by_name else 'positional'} argument{'s' * (len(missing) > 1)}"
    raise TypeError(f"{op.name}() missing {len(missing)} required {kind}: {', '.join(map(repr, missing))}")


def _named(op: Operation, options: tuple[Any, ...], runtime: tuple[Any, ...], algorithm: str | None) -> dict[str, Any]:
    """All that is no array, by name."""
    named = dict(zip((*op.static, *op.runtime), (*options, *runtime), strict=True))
    return named if algorithm is None else named | {"algorithm": algorithm}


def _run(
    config: Options,
    op: Operation,
    given: tuple[Any, ...],
    options: tuple[Any, ...],
    runtime: tuple[Any, ...],
    out: Any,
    workspace: Any,
    algorithm: str | None,
    text_key: tuple[Any, ...] | None,
) -> Any:
    native = _first_native(op, given)
    borrowed = _borrow(op, given) if native is None else None
    taken = borrowed.arrays if borrowed else given
    engine = borrowed.engine if borrowed else _arrays.engine_of((native,))
    arrays = _arrays.native_byte_order(taken)
    place = engine.place(_first_array(arrays))
    key, prepared = _look_up(_key_of(config, op, algorithm, options, arrays, place))
    if key is None:  # a list or an array among the options: the call as it would be with tuples
        options = tuple(map(freeze, options))
        key, prepared = _look_up(_key_of(config, op, algorithm, options, arrays, place))
    if prepared is None:
        prepared = prepare(engine, config, op, algorithm, tuple(map(freeze, options)), arrays)
        if key:  # where freezing changed an option (a torch.Size), the call as it was made is remembered too
            _prepared[key] = prepared
    if any(type(leaf) is Spec for leaf in leaves(arrays) if borrowed):
        arrays = prepared.with_stand_ins(arrays)
    if op.runtime:
        runtime = _checked_runtime(op, prepared.problem, runtime)
    if borrowed and not borrowed.door.native:
        result = _foreign(borrowed, prepared, arrays, runtime, out, workspace)
    else:
        result = _packed(prepared, prepared.call(arrays, runtime, out, workspace))
    # Not before the call went well, on the current device and without a change of the byte order: the text does not look for these.
    if text_key is not None and engine.current_place() == place and all(map(operator.is_, leaves(arrays), leaves(taken))):
        _remember(op, text_key, prepared, borrowed, given)
    elif text_key is None:
        _body.renew(op)
    return result


def _remember(op: Operation, key: tuple[Any, ...], prepared: Any, borrowed: _arrays.Borrowed | None, arrays: tuple[Any, ...]) -> None:
    """Let the body of the public function find the call by itself from now on."""
    way = borrowed.door.direct if borrowed else None
    if borrowed and way is None:
        return
    call = prepared.by_addresses(way) if way else prepared.warm
    if call is not None:
        _body.remember(op, key, call, prepared.problem, arrays)


def _key_of(config: Options, op: Operation, algorithm: str | None, options: tuple[Any, ...], arrays: tuple[Any, ...], place: Any) -> tuple:
    """What the plan of a call depends on. The types of the options keep True from being taken for 1."""
    return (place, op, config, algorithm, *options, *map(type, options), *map(_signature, arrays))


def _look_up(key: tuple) -> tuple[tuple | None, Any]:
    """The key and what is remembered under it, None if nothing; no key where an option is no value to look up by (a list, an array)."""
    try:
        return key, _prepared.get(key)
    except TypeError:
        return None, None


def prepare(engine: Any, config: Options, op: Operation, algorithm: str | None, options: tuple[Any, ...], arrays: tuple[Any, ...]) -> Any:
    """Problem and chosen algorithm for arrays of the engine's own; remembered, the oldest half forgotten when there are many."""
    specs = tuple(tree_map(_arrays.spec_of, a) for a in arrays)
    problem = op.problem(specs, dict(zip(op.static, options, strict=True)))
    _check_read(op, problem, arrays)
    place = engine.place(_first_array(arrays))
    with engine.at(place):
        if config.autotune and algorithm is None:
            _tune(engine, config, op, problem, arrays)
        prepared = engine.prepare(op, problem, config, algorithm)
    if len(_prepared) >= _CACHE_SIZE:
        for old in list(_prepared)[: _CACHE_SIZE // 2]:
            _prepared.pop(old, None)
        _forget_calls()
    key, _ = _look_up(_key_of(config, op, algorithm, options, arrays, place))
    if key is not None:
        _prepared[key] = prepared
    return prepared


def _first_array(arrays: tuple[Any, ...]) -> Any:
    """The first that is there, and no `Spec`."""
    return next(leaf for leaf in leaves(arrays) if type(leaf) is not Spec)


def _check_read(op: Operation, problem: Problem, arrays: tuple[Any, ...]) -> None:
    """A `Spec` stands for an array only where no value of that is read."""
    for i, (name, array) in enumerate(zip(op.arrays, arrays, strict=True)):
        if i not in problem.unread and any(type(leaf) is Spec for leaf in leaves(array)):
            fail(ArrayTypeError, op.name, name, f"a Spec, {array}", "an array, since its values are read")


def _tune(engine: Any, config: Options, op: Operation, problem: Problem, arrays: tuple[Any, ...]) -> None:
    """Measure the candidates of a problem met for the first time and remember the times."""
    device, key = engine.device(), tuning.key_of(problem, engine.device(), config)
    if tuning.lookup(device, key) is not None:
        return
    engine.make_ready(op, problem)
    usable = [j.method for j in rank(problem, device, config, engine.methods(op)) if j.reason is None]
    if len(usable) > 1:
        tuning.remember(device, key, engine.measure(op, problem, arrays, (0,) * len(op.runtime), usable))


def forget() -> None:
    """Drop all that was decided, so that the next call of each kind chooses anew (after tuning, for example)."""
    _prepared.clear()
    _forget_calls()


def _forget_calls() -> None:
    for op in _registry.values():
        op.calls.clear()


def _signature(array: Any) -> Any:
    """What the plan depends on in an array; nested arguments become nested tuples."""
    if array is None or type(array) is Spec:
        return array
    if isinstance(array, (tuple, list)):
        return tuple(map(_signature, array))
    return array.shape, array.dtype, array.strides


def freeze(value: Any) -> Any:
    """Lists and arrays among the options as tuples, and arrays without axes as numbers, so that they can be remembered."""
    if isinstance(value, (tuple, list)):
        frozen = [freeze(v) for v in value]
        return type(value)(*frozen) if hasattr(value, "_fields") else tuple(frozen)
    if isinstance(value, np.ndarray):
        return freeze(value.tolist())
    return value


def _first_native(op: Operation, arrays: tuple[Any, ...]) -> Any:
    """The first of all arrays, those in nested arguments too, where all are of one type that an engine owns; else None."""
    first = None
    for name, array in zip(op.arrays, arrays, strict=True):
        for leaf in leaves(array) if name in op.nested else (array,):
            if first is None:
                first = leaf
            elif type(leaf) is not type(first) and leaf is not None:
                return None
    return first if type(first) in _arrays.NATIVE else None


def _borrow(op: Operation, arrays: tuple[Any, ...]) -> _arrays.Borrowed:
    """Borrow the arrays; a Python integer where the operation takes one becomes a 0-d array."""
    numbers = [type(a) is int and name in op.numbers for name, a in zip(op.arrays, arrays, strict=True)]
    borrowed = _arrays.borrow(op.name, op.arrays, tuple(None if n else a for n, a in zip(numbers, arrays, strict=True)), op.nested)
    if not any(numbers):
        return borrowed
    number = borrowed.engine.number
    with borrowed.in_place():
        return replace(borrowed, arrays=tuple(number(a) if n else b for n, a, b in zip(numbers, arrays, borrowed.arrays, strict=True)))


def with_numbers(op: Operation, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays with a 0-d array for each Python integer that stands where the operation takes one."""
    return tuple(np.asarray(a) if type(a) is int and name in op.numbers else a for name, a in zip(op.arrays, arrays, strict=True))


def _checked_runtime(op: Operation, problem: Problem, values: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Run-time options are non-negative 64-bit integers; None stays None where it is the default, unless the problem draws numbers."""
    for value in values:
        if type(value) is not int or not 0 <= value < 2**64:
            break
    else:  # nearly every call ends here
        return values
    _check_complete(op, (None,) * len(op.arrays), (None,) * len(op.static), values)
    if problem.needs_seed and values[op.runtime.index("seed")] is None:
        fail(OptionError, op.name, "seed", "None", "an integer where dropout is above 0", "The same seed drops the same elements.")
    return tuple(
        None if value is None and op.defaults[name] is None else checks.integer(op.name, name, value, 0, 2**64 - 1)
        for name, value in zip(op.runtime, values, strict=True)
    )


def _foreign(
    borrowed: _arrays.Borrowed,
    prepared: Any,
    arrays: tuple[Any, ...],
    runtime: tuple[Any, ...],
    out: Any,
    workspace: Any,
) -> Any:
    """Run on borrowed arrays and hand the results back in the caller's namespace."""
    door = borrowed.door
    place = borrowed.engine.place(next(iter(leaves(arrays))))
    with borrowed.in_place():
        if out is None and door.direct:
            out = tuple([door.direct.maker(output, place)() for output in prepared.outputs])

        def take(name: str, array: Any) -> Any:
            return _arrays.take_beside(prepared.problem.op, name, door, array)

        taken = prepared.call(arrays, runtime, tree_map(partial(take, "out"), out), tree_map(partial(take, "workspace"), workspace))
        if door.holds:
            borrowed.engine.hold(arrays)
        if out is None:
            return _packed(prepared, [None if r is None else door.give(r) for r in taken])
    users = iter(leaves(out))
    return _packed(prepared, [None if r is None else next(users) for r in taken])


def _packed(prepared: Any, results: list[Any]) -> Any:
    return results[0] if prepared.pack is None else prepared.pack(*results)
