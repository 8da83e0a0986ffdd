"""`autotune`: measure the candidates of a problem and remember the times."""

from __future__ import annotations

from typing import Any

from dnnarray._call.dispatch import forget
from dnnarray._call.introspect import question
from dnnarray._options import current
from dnnarray._select import Algorithm, rank, tuning


def autotune(op: Any, *arrays: Any, **options: Any) -> list[Algorithm]:
    """Measure every algorithm that may run a call, and remember the times on disk for this and later processes.

    The measured order replaces the predicted one from the next call on. Algorithms outside of what the options in force
    allow are never measured. Within 2% the simpler algorithm, the one listed first in the family's table, wins.

    Parameters
    ----------
    op : callable or str
        A public function of dnnarray, or its name.
    *arrays : array, Spec or option
        The arrays of the call in signature order, None where omitted, and options in the places where `vjp` takes them.
        For a `Spec`, data is drawn.
    **options
        Everything else, by name.

    Returns
    -------
    list of Algorithm
        As `algorithms` gives it, with ``measured_ms`` filled in, fastest first.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As the call itself would.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> [a.name for a in dnn.autotune("glu", np.zeros(4, np.float32))]
    ['elementwise']
    """
    asked = question(op, arrays, options)
    asked.engine.make_ready(asked.operation, asked.problem)
    device, table = asked.engine.device(), asked.engine.methods(asked.operation)
    usable = [j for j in rank(asked.problem, device, current(), table) if j.reason is None]
    times = asked.engine.measure(
        asked.operation, asked.problem, asked.arrays, asked.runtime, [j.method for j in usable]
    )
    tuning.remember(device, tuning.key_of(asked.problem, device, current()), times)
    forget()
    return [j.algorithm for j in rank(asked.problem, device, current(), table, times) if j.reason is None]
