"""Counts and times of calls, collected while ``dnnarray.options(telemetry=True)`` is in force; free while it is not."""

from __future__ import annotations

import sys
from typing import Any

from dnnarray._engine import counters
from dnnarray._module import Importable

__all__ = ["reset", "snapshot"]
sys.modules[__name__].__class__ = Importable


def snapshot() -> dict[str, dict[str, Any]]:
    """What was counted since the start or the last `reset`.

    Returns
    -------
    dict
        One entry per operation: ``calls``, ``errors``, ``latency_ms`` (quantiles p50, p90, p99 over the last 4096
        calls, host milliseconds), ``algorithms`` (name to number of calls), ``switched`` (how often a problem ran by
        another algorithm than the time before), ``layout_copies``, ``workspace_bytes`` (the largest scratch memory),
        ``workspace_failures``.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.telemetry.reset()
    >>> with dnn.options(telemetry=True):
    ...     y = dnn.relu(np.zeros(3))
    >>> dnn.telemetry.snapshot()["relu"]["calls"]
    1
    """
    return counters.snapshot()


def reset() -> None:
    """Forget everything counted so far.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.telemetry.reset()
    >>> dnn.telemetry.snapshot()
    {}
    """
    counters.reset()
