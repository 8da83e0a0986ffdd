"""What keeps `torch.compile` out: calls of dnnarray break its graph, and none of the library's own frames is traced.

PyTorch's tracer asks a function that it meets for the attributes set here. It would otherwise follow the call into the
engine, where arrays have left PyTorch already. torch is never imported for this."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_GENERATED = "<dnnarray "  # what the file names of `_source` begin with
_WHY = "dnnarray runs kernels of its own, which the tracer of torch.compile cannot look into"


class _Asked:
    """True. Who asks is the tracer, before anything of the library has run under it: the moment to name the files that
    it shall leave alone."""

    def __bool__(self) -> bool:
        rules: Any = sys.modules.get("torch._dynamo.trace_rules")
        with suppress(AttributeError):  # no tracer, or one of another version
            if _GENERATED not in rules.SKIP_DIRS:
                rules.SKIP_DIRS.append(_GENERATED)
                rules.add("dnnarray")
        return True


_ASKED = _Asked()


def untraced(function: F) -> F:
    """Mark a function whose calls PyTorch's tracer is to run as they stand."""
    marked: Any = function
    marked._torchdynamo_disable, marked._torchdynamo_disable_msg = _ASKED, _WHY
    return function
