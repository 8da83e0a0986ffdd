"""dnnarray: deep-learning primitives as functions over any array that follows the Array API standard."""

import sys as _sys
import typing as _typing
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from dnnarray import telemetry
from dnnarray._autodiff import checkpoint, grad, stop_gradient, value_and_grad
from dnnarray._call.autotune import autotune
from dnnarray._errors import (
    ArrayTypeError,
    DeviceError,
    DTypeError,
    OptionError,
    ShapeError,
    UnsupportedError,
    WorkspaceError,
)
from dnnarray._errors import closest as _closest
from dnnarray._call.introspect import Explanation, Inference, algorithms, explain, infer
from dnnarray._module import Importable as _Importable
from dnnarray._names import FAMILIES as _FAMILIES
from dnnarray._names import FAMILY_OF as _FAMILY_OF
from dnnarray._optimizers import (
    AdamState,
    LionState,
    SGDState,
    adam,
    adamw,
    clip_by_global_norm,
    cosine_schedule,
    lion,
    sgd,
    warmup_schedule,
)
from dnnarray._options import Options, options, set_options
from dnnarray._select import Algorithm
from dnnarray._spec import Spec
from dnnarray._version import __version__
from dnnarray._versions import check, show_versions
from dnnarray._vjp import vjp
from dnnarray._call.warmup import warmup

if _typing.TYPE_CHECKING:
    from dnnarray.activation import *
    from dnnarray.attention import *
    from dnnarray.conv import *
    from dnnarray.dropout import *
    from dnnarray.linear import *
    from dnnarray.loss import *
    from dnnarray.norm import *
    from dnnarray.pool import *
    from dnnarray.rnn import *
    from dnnarray.softmax import *
    from dnnarray.spatial import *

__all__ = [
    "AdamState",
    "Algorithm",
    "ArrayTypeError",
    "DTypeError",
    "DeviceError",
    "Explanation",
    "Inference",
    "LionState",
    "OptionError",
    "Options",
    "SGDState",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "WorkspaceError",
    "__version__",
    "adam",
    "adamw",
    "algorithms",
    "autotune",
    "check",
    "checkpoint",
    "clip_by_global_norm",
    "cosine_schedule",
    "explain",
    "grad",
    "infer",
    "lion",
    "options",
    "set_options",
    "sgd",
    "show_versions",
    "stop_gradient",
    "telemetry",
    "value_and_grad",
    "vjp",
    "warmup",
    "warmup_schedule",
    *_FAMILY_OF,
]


if (
    not _typing.TYPE_CHECKING
):  # a type checker takes the names from the imports above, so that it reports a misspelt one

    def __getattr__(name: str) -> _typing.Any:
        """Import a family when one of its names is used for the first time."""
        if name not in _FAMILY_OF:
            hint = None if name.startswith("_") else _closest(name, __all__, 3)
            raise AttributeError(f"module 'dnnarray' has no attribute {name!r}{f'. {hint}' if hint else ''}")
        module = _import_module(f"dnnarray.{_FAMILY_OF[name]}")
        globals().update({n: getattr(module, n) for n in _FAMILIES[_FAMILY_OF[name]]})
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(_Importable):
    def __setattr__(self, name: str, value: object) -> None:
        # The import system stores the module dnnarray.conv under the name "conv"; that name belongs to the function in
        # it.
        super().__setattr__(
            name, getattr(value, name) if isinstance(value, _ModuleType) and name in _FAMILY_OF else value
        )


_sys.modules[__name__].__class__ = _Package
