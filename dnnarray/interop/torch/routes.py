"""How a call of an operator of PyTorch goes to dnnarray's implementation or to PyTorch's own kernel, and the counts of
both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from dnnarray._errors import (
    ArrayTypeError,
    DeviceError,
    DTypeError,
    OptionError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from dnnarray._options import CURRENT, DEFAULT, Options, changed_options

_BY_SIGNATURE = (
    UnsupportedError,
    DTypeError,
    ShapeError,
)  # declines that a call of the same shapes, dtypes and options meets again
DECLINES = (*_BY_SIGNATURE, OptionError, ArrayTypeError, WorkspaceError, DeviceError)
_MOST_SIGNATURES = 1024  # of calls that are known to be declined
_MOST_REASONS = 64
_deterministic = torch._C._get_deterministic_algorithms


@dataclass
class Count:
    """What became of the calls of one operator.

    Attributes
    ----------
    taken : int
        Calls that dnnarray computed.
    declined : Counter
        Calls that PyTorch's own kernel computed, by the reason.
    """

    taken: int = 0
    declined: Counter[str] = field(default_factory=Counter)

    def decline(self, reason: str) -> None:
        """Count a call that PyTorch computed. Reasons name shapes, so there can be any number of them."""
        known = reason in self.declined or len(self.declined) < _MOST_REASONS
        self.declined[reason if known else "other reasons"] += 1


class Settings:
    """The options of dnnarray for threads that have set none, such as those of autograd: the last ones that a call in
    another thread had.
    """

    def __init__(self) -> None:
        self.last: Options = DEFAULT


@lru_cache(maxsize=64)
def _made_deterministic(options: Options) -> Options:
    return changed_options(options, {"deterministic": True})


def _wanted(settings: Settings) -> Options:
    """The options that a call runs under."""
    options = CURRENT.get(None)
    if options is None:
        options = settings.last
    else:
        settings.last = options
    return _made_deterministic(options) if _deterministic() else options


def signature(value: Any) -> Any:
    """What decides whether a call is declined, for `_BY_SIGNATURE`."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.stride() if value.layout is torch.strided else None
    if isinstance(value, (list, tuple)):
        return tuple(map(signature, value))
    return value


def _call(options: Options, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    return options, signature(arguments), *((name, signature(value)) for name, value in named.items())


def route(
    run: Callable[..., Any], otherwise: Callable[..., Any], count: Count, settings: Settings
) -> Callable[..., Any]:
    """The function to register for an operator: ``run(*arguments)`` of dnnarray, or where dnnarray declines
    ``otherwise(keys, *arguments)`` of PyTorch, which is also given the dispatch keys of the call.

    Errors of dnnarray that say what a function does not do hand the call on; any other error is raised.
    """
    declined: dict[Any, str] = {}

    def hand_on(reason: str, keys: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        count.decline(reason)
        return otherwise(keys, *arguments, **named)

    def routed(keys: Any, *arguments: Any, **named: Any) -> Any:
        wanted = _wanted(settings)
        if declined and (reason := declined.get(_call(wanted, arguments, named))):
            return hand_on(reason, keys, arguments, named)
        token = None if CURRENT.get(DEFAULT) is wanted else CURRENT.set(wanted)
        try:
            result = run(*arguments, **named)
        except DECLINES as error:
            reason = str(error).partition("\n")[0]
            if isinstance(error, _BY_SIGNATURE) and len(declined) < _MOST_SIGNATURES:
                declined[_call(wanted, arguments, named)] = reason
        else:
            count.taken += 1
            return result
        finally:
            if token is not None:
                CURRENT.reset(token)
        return hand_on(reason, keys, arguments, named)

    return routed


def without_grad(run: Callable[..., Any]) -> Callable[..., Any]:
    """Below autograd nothing is recorded, but grad mode is as the user has it, and dnnarray refuses tensors that would
    lose their gradient.
    """
    graded, set_graded = torch.is_grad_enabled, torch._C._set_grad_enabled

    def below(*arguments: Any, **named: Any) -> Any:
        if not graded():
            return run(*arguments, **named)
        set_graded(False)
        try:
            return run(*arguments, **named)
        finally:
            set_graded(True)

    return below
