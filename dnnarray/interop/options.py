"""Options of a call as text in JSON: the form in which operators of other libraries carry what is no array."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._errors import UnsupportedError


def write(options: Any) -> str:
    """Options as text. Options that are equal and of the same types give the same text.

    Raises
    ------
    UnsupportedError
        An option is neither a number, a text nor a tuple of such, so that no text can stand for it.
    """
    return json.dumps(options, default=_plain)


@lru_cache(maxsize=4096)
def read(text: str) -> dict[str, Any]:
    """The options that `write` wrote; the caller must not change them."""
    return {name: frozen(value) for name, value in json.loads(text).items()}


def frozen(value: Any) -> Any:
    """A value of JSON with tuples in the place of lists."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """The Python form of a number or an array of NumPy."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    try:
        return value.__index__()
    except AttributeError:
        raise UnsupportedError(
            f"an option is {value!r}, a {type(value).__name__}; the operators of another library take numbers, "
            "texts and tuples of these "
            f"as options. Call dnnarray's own function on arrays outside of that library's transformations."
        ) from None
