"""Looking at calls from outside: `telemetry`, `check_finite` and `record`. With all off a call does not come through
here at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnarray._call import arrays as _arrays
from dnnarray._call import written as _calls
from dnnarray._engine.counters import timed
from dnnarray._errors import ArrayTypeError, DeviceError
from dnnarray._options import Options
from dnnarray._problems.base import leaves
from dnnarray._spec import FLOATING

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation


def observed(
    config: Options, op: Operation, arrays: tuple[Any, ...], options: tuple[Any, ...], call: Callable[[], Any]
) -> Any:
    """Run `call`; count and time it, write it down, and check its arrays for NaN and infinity, as the options ask."""
    if config.check_finite:
        for name, array in zip(op.arrays, arrays, strict=True):
            _require_finite(op.name, f"the input {name}", array)
    result = timed(op.name, call) if config.telemetry else call()
    if config.record is not None:
        _calls.record(config.record, op, arrays, options)
    if config.check_finite:
        _require_finite(op.name, "the output", result)
    return result


def _require_finite(op: str, what: str, tree: Any) -> None:
    for leaf in leaves(tree):
        try:
            borrowed = _arrays.borrow(op, (what,), (leaf,))
        except (ArrayTypeError, DeviceError):  # no array, or none that a call would take: the call says so
            continue
        (array,) = borrowed.arrays
        with borrowed.in_place():
            if array.dtype in FLOATING and not np.isfinite(array).all():
                raise FloatingPointError(f"{op}: {what} holds NaN or infinity (check_finite=True).")
