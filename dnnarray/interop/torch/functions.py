"""The public functions of `dnnarray.interop.torch`: the signature of dnnarray's own function, and one call of its
operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from dnnarray import _source
from dnnarray._call.operation import Operation, operations
from dnnarray.interop.torch.operators import Differentiable, signed, text_of
from dnnarray.interop.torch.recurrent import Recurrent, fields, flat

_LEFT_OUT = ("out", "workspace")
_NOTE = """{first}

This is `dnnarray.{name}` as a differentiable operator of PyTorch: it takes and gives tensors, and their gradients go
through autograd.

{rest}"""


def functions() -> dict[str, Callable[..., Any]]:
    """A function for every operation with a gradient, by name."""
    registered = operations()
    made: dict[str, Differentiable | Recurrent] = {}
    found = {}
    for name, operation in registered.items():
        backward = registered.get(f"{operation.base}_backward")
        # The gradient of the first result is what autograd gives on, so it does not matter that a backward can take
        # those of others.
        of_sequences = operation.nested and "tape" in backward.arrays if backward else False
        if backward is None or ((operation.nested or backward.nested - {"grad"}) and not of_sequences):
            continue
        if operation.base not in made:
            kind = Recurrent if of_sequences else Differentiable
            made[operation.base] = kind(registered[operation.base], backward)
        found[name] = _function(operation, made[operation.base])
    return found


def _function(operation: Operation, operators: Differentiable | Recurrent) -> Callable[..., Any]:
    """Written as text, so that its parameters are bound by Python itself and the tracer of `torch.compile` reads a
    plain function."""
    signature = inspect.signature(operation.function)
    left_out = (*_LEFT_OUT, "return_tape") if operation.nested else _LEFT_OUT  # autograd keeps the tape
    kept = [p for n, p in signature.parameters.items() if n not in left_out]
    defaults = {f"_default_{operation.name}_{p.name}": p.default for p in kept if p.default is not p.empty}
    header = inspect.Signature(
        [
            p.replace(
                annotation=p.empty,
                default=p.empty if p.default is p.empty else _Bare(f"_default_{operation.name}_{p.name}"),
            )
            for p in kept
        ]
    )
    arrays = ", ".join(f"_flat({n})" if n in operation.nested else n for n in operation.arrays)
    graded = ", ".join(f"*_flat({n})" if n in operation.nested else n for n in operation.arrays)
    drawn = "".join(f"_signed({n}), " for n in operation.runtime)
    forced = ("algorithm",) if "algorithm" in signature.parameters else ()
    options = [f"{n!r}, {n}" for n in (*operation.static, *forced) if n not in left_out]
    pairs = ", ".join([*options, *(f"'fields', _fields({n})" for n in operation.nested)])
    numbers = "".join(
        f"    {n} = _as_tensor({n}, {operation.arrays[0]})\n" for n in operation.arrays if n in operation.numbers
    )
    text = (
        f"def {operation.name}{header}:\n{numbers}"
        f"    _keep = _graded() and _any_graded({graded})\n"
        f"    _text = _text_of('keep', _keep, {pairs})\n"
        f"    return _result_{operation.name}({arrays}, _call_{operation.name}({arrays}, {drawn}_text), _text)\n"
    )
    # The tracer of torch.compile looks globals up by the name of their module: they must really be there, each under a
    # name of its own.
    scope = {
        f"_call_{operation.name}": operators.forward.call,
        "_text_of": text_of,
        "_signed": signed,
        "_as_tensor": as_tensor,
        "_graded": torch.is_grad_enabled,
        "_any_graded": any_graded,
        "_flat": flat,
        "_fields": fields,
        f"_result_{operation.name}": operators.result,
        **defaults,
    }
    globals().update(scope)
    function = _source.function(operation.name, text, scope, __name__)
    function.__signature__ = signature.replace(parameters=kept)
    first, _, rest = inspect.cleandoc(operation.function.__doc__ or "").partition("\n\n")
    function.__doc__ = _NOTE.format(first=first, name=operation.name, rest=rest)
    return function


def as_tensor(number: Any, beside: torch.Tensor) -> Any:
    """An integer as a tensor without axes on the device of another, anything else as it is."""
    return torch.tensor(number, device=beside.device) if isinstance(number, int) else number


def any_graded(*tensors: Any) -> bool:
    """Whether autograd wants a gradient of one of these."""
    return any(t is not None and t.requires_grad for t in tensors)


class _Bare:
    """Prints as a name, so that a signature refers to its defaults by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name
