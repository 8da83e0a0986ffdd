"""`dispatch`: the way of a call from a public function to an engine.

It finds the engine, builds the problem (every user error is raised there), lets the selection choose, and runs. What
was decided is kept per signature of the call, so that a warm call costs a look-up."""

from __future__ import annotations

import inspect
import operator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from dnnarray._call import arrays as _arrays
from dnnarray._call import body as _body
from dnnarray._call import observe as _observe
from dnnarray._call.body import MISSING
from dnnarray._call.untraced import untraced
from dnnarray._engine.protocol import Engine
from dnnarray._errors import ArrayTypeError, OptionError, closest, fail
from dnnarray._options import CURRENT, DEFAULT, Options
from dnnarray._problems import checks
from dnnarray._problems.base import Problem, leaves, tree_map
from dnnarray._select import rank, tuning
from dnnarray._spec import Spec

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation

_CACHE_SIZE = 4096
_prepared: dict[tuple, Any] = {}


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

    Warm calls do not come here: the body of the public function looks them up itself, by `key` from the second time on.
    What comes is observed, made for the first time, or on arrays that no key is made of."""
    _check_complete(op, arrays, options, runtime)
    for leaf in leaves(arrays) if op.nested else arrays:
        if taker := getattr(type(leaf), "__dnnarray_function__", None):
            return taker(op, arrays, _named(op, options, runtime, algorithm), out, workspace)
    config = CURRENT.get(DEFAULT)
    if config.observed:
        return _observe.observed(
            config,
            op,
            arrays,
            options,
            lambda: _run(config, op, arrays, options, runtime, out, workspace, algorithm, None),
        )
    return _run(config, op, arrays, options, runtime, out, workspace, algorithm, key)


def refuse(op: Operation, unknown: dict[str, Any]) -> NoReturn:
    """Say what is wrong with names that the function does not take, or not as names."""
    parameters = op.function.__signature__.parameters  # type: ignore[attr-defined]
    name = next(iter(unknown))
    if name in parameters:
        raise TypeError(
            f"{op.name}() got some positional-only arguments passed as keyword arguments: {name!r}; give it without "
            "its name."
        )
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
        runtime = checked_runtime(op, prepared.problem, runtime)
    if borrowed and not borrowed.door.native:
        result = _foreign(borrowed, prepared, arrays, runtime, out, workspace)
    else:
        result = _packed(prepared, prepared.call(arrays, runtime, out, workspace))
    # Not before the call went well, on the current device and without a change of the byte order: the text does not
    # look for these.
    if _body.renew(op):
        return result  # the key is of another form than those that the text makes from now on
    if (
        text_key is not None
        and engine.current_place() == place
        and all(map(operator.is_, leaves(arrays), leaves(taken)))
    ):
        _remember(op, text_key, prepared, borrowed, given)
    return result


def _remember(
    op: Operation, key: tuple[Any, ...], prepared: Any, borrowed: _arrays.Borrowed | None, arrays: tuple[Any, ...]
) -> None:
    """Let the body of the public function find the call by itself from now on."""
    if borrowed is None:
        call = prepared.warm
    elif borrowed.door.direct:
        call = prepared.by_addresses(borrowed.door.direct)
    elif borrowed.door.views:
        call = prepared.by_views(borrowed.door.views)
    else:
        return
    if call is not None:
        _body.remember(op, key, call, prepared.problem, arrays)


def _key_of(
    config: Options, op: Operation, algorithm: str | None, options: tuple[Any, ...], arrays: tuple[Any, ...], place: Any
) -> tuple:
    """What the plan of a call depends on. The types of the options keep True from being taken for 1."""
    return (place, op, config, algorithm, *options, *map(type, options), *map(_signature, arrays))


def _look_up(key: tuple) -> tuple[tuple | None, Any]:
    """The key and what is remembered under it, None if nothing; no key where an option is no value to look up by (a
    list, an array)."""
    try:
        return key, _prepared.get(key)
    except TypeError:
        return None, None


def prepare(
    engine: Engine,
    config: Options,
    op: Operation,
    algorithm: str | None,
    options: tuple[Any, ...],
    arrays: tuple[Any, ...],
) -> Any:
    """Problem and chosen algorithm for arrays of the engine's own; remembered, the oldest half forgotten when there are
    many."""
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
        _body.forget()
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


def _tune(engine: Engine, config: Options, op: Operation, problem: Problem, arrays: tuple[Any, ...]) -> None:
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
    _body.forget()


def _signature(array: Any) -> Any:
    """What the plan depends on in an array; nested arguments become nested tuples."""
    if array is None or type(array) is Spec:
        return array
    if isinstance(array, (tuple, list)):
        return tuple(map(_signature, array))
    return array.shape, array.dtype, array.strides


def freeze(value: Any) -> Any:
    """Lists and arrays among the options as tuples, and arrays without axes as numbers, so that they can be
    remembered."""
    if isinstance(value, (tuple, list)):
        frozen = [freeze(v) for v in value]
        return type(value)(*frozen) if hasattr(value, "_fields") else tuple(frozen)
    if isinstance(value, np.ndarray):
        return freeze(value.tolist())
    return value


def _first_native(op: Operation, arrays: tuple[Any, ...]) -> Any:
    """The first of all arrays, those in nested arguments too, where all are of one type that an engine owns; else
    None."""
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
    borrowed = _arrays.borrow(
        op.name, op.arrays, tuple(None if n else a for n, a in zip(numbers, arrays, strict=True)), op.nested
    )
    if not any(numbers):
        return borrowed
    number = borrowed.engine.number
    with borrowed.in_place():
        return replace(
            borrowed,
            arrays=tuple(number(a) if n else b for n, a, b in zip(numbers, arrays, borrowed.arrays, strict=True)),
        )


def with_numbers(op: Operation, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arrays with a 0-d array for each Python integer that stands where the operation takes one."""
    return tuple(
        np.asarray(a) if type(a) is int and name in op.numbers else a for name, a in zip(op.arrays, arrays, strict=True)
    )


def checked_runtime(op: Operation, problem: Problem, values: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Run-time options are non-negative 64-bit integers; None stays None where it is the default, unless the problem
    draws numbers."""
    for value in values:
        if type(value) is not int or not 0 <= value < 2**64:
            break
    else:  # nearly every call ends here
        return values
    _check_complete(op, (None,) * len(op.arrays), (None,) * len(op.static), values)
    if problem.needs_seed and values[op.runtime.index("seed")] is None:
        fail(
            OptionError,
            op.name,
            "seed",
            "None",
            "an integer where dropout is above 0",
            "The same seed drops the same elements.",
        )
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
        elif out is None and door.views:
            out = tuple(prepared.made([door.views.maker(output, ()) for output in prepared.outputs], ()))

        def take(name: str, array: Any) -> Any:
            return _arrays.take_beside(prepared.problem.op, name, door, array)

        taken = prepared.call(
            arrays, runtime, tree_map(partial(take, "out"), out), tree_map(partial(take, "workspace"), workspace)
        )
        if door.holds:
            borrowed.device_engine.hold(arrays)
        if out is None:
            return _packed(prepared, [None if r is None else door.give(r) for r in taken])
    users = iter(leaves(out))
    return _packed(prepared, [None if r is None else next(users) for r in taken])


def _packed(prepared: Any, results: list[Any]) -> Any:
    return results[0] if prepared.pack is None else prepared.pack(*results)
