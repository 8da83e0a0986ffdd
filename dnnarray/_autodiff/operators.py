"""Operators, methods and foreign functions on `Traced` arrays, all by way of the functions that are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnarray._autodiff import functions, rules
from dnnarray._autodiff.functions import DIFFERENTIABLE, Namespace, refuse
from dnnarray._autodiff.primitive import namespace
from dnnarray._autodiff.rules import BINARY, UNARY
from dnnarray._autodiff.traced import Traced, plain

_ARITHMETIC = {
    "add": BINARY["add"],
    "sub": BINARY["subtract"],
    "mul": BINARY["multiply"],
    "truediv": BINARY["divide"],
    "pow": BINARY["pow"],
    "mod": BINARY["remainder"],
    "matmul": rules.matmul,
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "floordiv", "rfloordiv")
# Names of NumPy for functions that the standard calls otherwise.
_OF_NUMPY = {
    "absolute": "abs",
    "true_divide": "divide",
    "power": "pow",
    "float_power": "pow",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "mod": "remainder",
    "amax": "max",
    "amin": "min",
    "concatenate": "concat",
    "cumsum": "cumulative_sum",
}
_namespaces: dict[int, Namespace] = {}


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: function(self)


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(self, other)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self)


def _compared(name: str) -> Callable[..., Any]:
    return lambda self, other: getattr(plain(self), name)(plain(other))


def _namespace_of(self: Traced, *, api_version: str | None = None) -> Namespace:
    xp = namespace(plain(self))
    return _namespaces.setdefault(id(xp), Namespace(xp))


def _ufunc(self: Traced, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's own functions on a traced array, and operators of a NumPy array with one on its right."""
    name = _OF_NUMPY.get(ufunc.__name__, ufunc.__name__)
    if name in functions.CONSTANT and not options:
        return getattr(ufunc, method)(*map(plain, inputs))
    if method != "__call__" or options or name not in DIFFERENTIABLE:
        refuse(f"numpy.{ufunc.__name__}{'' if method == '__call__' else '.' + method}")
    return DIFFERENTIABLE[name](*inputs)


def _function(self: Traced, function: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    name = _OF_NUMPY.get(function.__name__, function.__name__)
    if name in functions.CONSTANT:
        return function(*map(plain, arguments), **options)
    if name not in DIFFERENTIABLE:
        refuse(f"numpy.{function.__name__}")
    return DIFFERENTIABLE[name](*arguments, **options)


def _reshape(self: Traced, *shape: Any) -> Any:
    return functions.reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(self: Traced, *axes: Any) -> Any:
    if not axes or axes == (None,):
        axes = tuple(range(self.ndim))[::-1]
    return functions.permute_dims(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)


def _method(name: str) -> Callable[..., Any]:
    function = DIFFERENTIABLE[name]
    return lambda self, axis=None, **options: function(self, axis=axis, **options)


def _install() -> None:
    """Give `Traced` its operators. They cannot stand in the class: the rules, of which they are made, make `Traced`
    arrays themselves."""
    members: dict[str, Any] = {f"__{name}__": _forward(f) for name, f in _ARITHMETIC.items()}
    members |= {f"__r{name}__": _reflected(f) for name, f in _ARITHMETIC.items()}
    members |= {f"__{name}__": _compared(f"__{name}__") for name in _COMPARISONS}
    members |= {
        f"__{name}__": _alone(UNARY[function])
        for name, function in (("neg", "negative"), ("pos", "positive"), ("abs", "abs"))
    }
    members |= {
        "__getitem__": lambda self, index: rules.getitem(self, index=_plain_index(index)),
        "__iter__": lambda self: iter(functions.unstack(self)),
        "__array_namespace__": _namespace_of,
        "__array_ufunc__": _ufunc,
        "__array_function__": _function,
        "reshape": _reshape,
        "transpose": _transpose,
        "astype": lambda self, dtype, **options: functions.astype(self, dtype, **options),
        "flatten": lambda self: functions.reshape(self, -1),
        "ravel": lambda self: functions.reshape(self, -1),
        "squeeze": functions.squeeze,
        "T": property(_transpose),
        "mT": property(functions.matrix_transpose),
    }
    members |= {name: _method(name) for name in ("sum", "mean", "max", "min", "prod", "var", "std")}
    members |= {name: _constant_method(name) for name in ("argmax", "argmin", "any", "all")}
    for name, member in members.items():
        setattr(Traced, name, member)


def _plain_index(index: Any) -> Any:
    return tuple(map(plain, index)) if isinstance(index, tuple) else plain(index)


def _constant_method(name: str) -> Callable[..., Any]:
    return lambda self, axis=None, **options: getattr(namespace(plain(self)), name)(plain(self), axis=axis, **options)


_install()
