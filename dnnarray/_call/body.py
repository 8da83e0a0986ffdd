"""The body of a public function, as source text: the look-up of a call met before, and `dispatch` for all others.

Written as `dataclasses` and `namedtuple` write theirs: a generic ``*args, **kwargs`` wrapper costs a microsecond a
call, and a way through `dispatch` two more. The text knows the kinds of arrays that have arrived by now, and is written
again when another one does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnarray import _source
from dnnarray._call.untraced import untraced
from dnnarray._engine.kinds import Kind
from dnnarray._options import CURRENT, DEFAULT
from dnnarray._problems.base import leaves

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation

PLAIN = ("out", "workspace", "algorithm")
_MOST_STRIDES = 64  # that are told apart under one key
_calls: list[dict[tuple[Any, ...], Any]] = []  # of all operations


class _Missing:
    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()  # stands for a required argument that a call leaves out


# By name; that of CuPy joins when its first array arrives, that of torch with its first tensor on a CUDA device.
KINDS = {
    "numpy": Kind(
        "numpy", frozenset((np.ndarray,)), "'cpu'", "{n}.shape, {n}.dtype, {n}.strides", {}, lambda array: False
    )
}


def public(
    op: Operation, template: Any, signature: inspect.Signature, names: dict[str, Any], doc: str | None = None
) -> Any:
    """The callable for an operation, whose text speaks of `names` too.

    Its body is compiled at the first call: that takes half a millisecond, a family has up to 40 functions, and a
    program calls few of them."""
    module = template.__module__
    _calls.append(op.calls)
    scope = {
        "_op": op,
        "_required": MISSING,
        "_options": CURRENT.get,
        "_default_options": DEFAULT,
        "_known": op.calls.get,
        **names,
    }
    code = _source.stand_in(op.name, module, partial(_text, op, signature), _FIRST_CALL)
    function: Any = FunctionType(code, _source.globals_of(module) | scope, op.name)
    function.__globals__["_written"] = partial(write, op, function, signature)
    function.__doc__ = doc or template.__doc__
    function.__qualname__ = op.name
    function.__signature__ = signature
    return untraced(function)


_written: Callable[[], Callable[..., Any]]  # in the scope of each public function
_FIRST_CALL = (lambda *arguments, **options: _written()(*arguments, **options)).__code__  # noqa: F821


@untraced
def write(op: Operation, function: Any, signature: inspect.Signature) -> Any:
    """Give the function its body, for the kinds of arrays known by now."""
    kinds = tuple(KINDS.values())
    defaults = {f"_default_{n}": p.default for n, p in signature.parameters.items() if p.default is not p.empty}
    body = _source.function(
        op.name, _text(op, signature, kinds), {"_required": MISSING, **defaults}, function.__module__
    )
    for kind in kinds:
        function.__globals__.update(kind.names)
    function.__globals__["_kinds"] = kinds
    function.__defaults__, function.__kwdefaults__ = (
        body.__defaults__,
        body.__kwdefaults__,
    )  # first: another thread may be calling
    function.__code__ = body.__code__
    return function


def _text(op: Operation, signature: inspect.Signature, kinds: tuple[Kind, ...] = ()) -> str:
    """The function as source text, for these kinds of arrays or for those known by now.

    It takes any call: Python's own words for a call that does not fit name nothing that the caller may have meant.
    """
    header = [
        p.replace(annotation=p.empty, default=_Name("_required" if p.default is p.empty else f"_default_{n}"))
        for n, p in signature.parameters.items()
    ]
    header.append(inspect.Parameter("_unknown", inspect.Parameter.VAR_KEYWORD))
    plain = ", ".join(n if n in signature.parameters else "None" for n in PLAIN)
    return "\n".join((
        f"def {op.name}{signature.replace(parameters=header, return_annotation=signature.empty)}:",
        "    if _unknown: _refuse(_op, _unknown)",
        *(f"    {line}" for line in _look_up(op, kinds or tuple(KINDS.values()), frozenset(signature.parameters))),
        *(f"    {line}" for line in _hand_over(op, frozenset(signature.parameters))),
        f"    return _dispatch(_op, {_tuple(op.arrays)}, {_tuple(op.static)}, {_tuple(op.runtime)}, {plain}, _key)\n",
    ))  # fmt: skip


def renew(op: Operation) -> bool:
    """Write the text again where kinds of arrays have joined or changed since; says whether."""
    function, kinds = op.function, tuple(KINDS.values())
    if function.__globals__.get("_kinds") == kinds:
        return False
    write(op, function, inspect.signature(function))
    return True


def remember(
    op: Operation, key: tuple[Any, ...], call: Callable[..., Any], problem: Any, arrays: tuple[Any, ...]
) -> None:
    """Let the text find the call for arrays like these from now on, by the key that it made of them."""
    vague = {t: kind.vague for kind in KINDS.values() for t in kind.types}
    if any(vague[type(a)](a) for a in leaves(arrays)):
        earlier = op.calls.get(key)
        by_strides = (earlier[0] if op.runtime else earlier) if earlier else _ByStrides()
        call = by_strides.with_call(arrays, call)
    op.calls[key] = (call, problem) if op.runtime else call


def forget() -> None:
    """No text finds a call by itself until it has been made anew."""
    for calls in _calls:
        calls.clear()


class _ByStrides:
    """A call on arrays whose kind is `vague` about how they lie."""

    def __init__(self) -> None:
        self._calls: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def with_call(self, arrays: tuple[Any, ...], call: Callable[..., Any]) -> _ByStrides:
        if len(self._calls) >= _MOST_STRIDES:
            self._calls.clear()
        self._calls[_strides(arrays)] = call
        return self

    def __call__(self, runtime: tuple[Any, ...], out: Any, workspace: Any, *arrays: Any) -> Any:
        call = self._calls.get(_strides(arrays))
        return None if call is None else call(runtime, out, workspace, *arrays)


def _strides(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple([None if array is None else array.strides for array in arrays])
    except AttributeError:  # among them is a nested argument
        return tuple([array.strides for array in leaves(arrays)])


def _look_up(op: Operation, kinds: tuple[Kind, ...], parameters: frozenset[str]) -> list[str]:
    """What is on the way of every call. ``_key`` is None where there is nothing to look up by."""
    plain = ", ".join(n if n in parameters else "None" for n in ("out", "workspace"))
    call, runtime = (
        ("_call[0]", f"_checked_runtime(_op, _call[1], {_tuple(op.runtime)})") if op.runtime else ("_call", "()")
    )
    branches = [("if", kind) for kind in kinds[-1:]] + [
        ("elif", kind) for kind in kinds[-2::-1]
    ]  # the latest is the likeliest
    return [
        "_key = None",
        "try:",
        *(f"    {line}" for word, kind in branches for line in _key_for(word, kind, op, parameters)),
        "    _call = _known(_key)",
        "except (TypeError, RuntimeError):",  # a list or an array among the options; a sparse tensor has no strides
        "    _key = _call = None",
        "if _call is not None:",
        f"    _result = {call}({runtime}, {plain}, {', '.join(op.arrays)})",
        "    if _result is not None:",
        "        return _result",
    ]


def _hand_over(op: Operation, parameters: frozenset[str]) -> list[str]:
    """What `dispatch` does for an array whose type takes calls over, in the place of the first: the arrays that
    `value_and_grad` records are of such a type, and a call of `dispatch` is a third of what recording may cost."""
    first = next(n for n in op.arrays if n not in op.nested)
    plain = ", ".join(n if n in parameters else "None" for n in ("out", "workspace"))
    complete = "".join(f" and {n} is not _required" for n in (*op.required, *op.static, *op.runtime) if n != first)
    return [
        "if _key is None:",
        f"    _taker = getattr(type({first}), '__dnnarray_function__', None)",
        f"    if _taker is not None{complete}:",
        f"        _named = {{{', '.join(f'{n!r}: {n}' for n in (*op.static, *op.runtime))}}}",
        *(["        if algorithm is not None: _named['algorithm'] = algorithm"] if "algorithm" in parameters else []),
        f"        return _taker(_op, {_tuple(op.arrays)}, _named, {plain})",
    ]


def _key_for(word: str, kind: Kind, op: Operation, parameters: frozenset[str]) -> list[str]:
    """The key for arrays of one kind: what the plan of a call depends on. The types of the options keep True from being
    taken for 1."""
    single = [n for n in op.arrays if n not in op.nested]
    first = single[0]
    usual = [kind.holds(n) if n in op.required or n == first else f"({n} is None or {kind.holds(n)})" for n in single]
    algorithm = ["algorithm"] if "algorithm" in parameters else []
    key = [kind.place, "_options(_default_options)", *algorithm, *op.static, *(f"type({n})" for n in op.static)]
    for n in op.arrays:
        entries = kind.signature.format(n=n)
        if n in op.nested:
            key.append(f"_{kind.name}_tree({n})")
        else:
            key.append(entries if n in op.required or n == first else f"None if {n} is None else ({entries})")
    return [f"{word} {' and '.join(usual)}:", f"    _key = ({', '.join(key)})"]


class _Name:
    """Prints as a bare name, so that a signature can refer to its defaults by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _tuple(names: tuple[str, ...]) -> str:
    return "(" + "".join(f"{n}, " for n in names) + ")"
