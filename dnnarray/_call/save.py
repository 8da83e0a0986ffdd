"""What a forward keeps for its gradient, for the ``save=`` of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dnnarray._call.operation import find
from dnnarray._spec import HALF, as_dtype


def result_of(name: str, **instead: Any) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """Keep the result as ``y``, unless its rounding to a half type would spoil the gradient; `instead` is what other
    arrays are replaced by then."""

    def save(x: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        y = find(name).function(x, **options)
        return y, {} if as_dtype(x.dtype) in HALF else {"y": y, **instead}

    return save
