"""Learning-rate schedules: functions from the number of a step to its rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnnarray._problems import checks


def warmup_schedule(lr: float, warmup_steps: int, *, start: float = 0.0) -> Callable[[int], float]:
    """Raise the rate linearly, then keep it.

    Parameters
    ----------
    lr : float
        The rate from step `warmup_steps` on, at least 0.
    warmup_steps : int
        How many steps the rise takes; 0 for none.
    start : float, default 0.0
        The rate of step 0, at least 0.

    Returns
    -------
    callable
        ``schedule(step)`` is the rate of the step with this number, counted from 0:
        ``start + (lr - start) * min(step / warmup_steps, 1)``.

    Raises
    ------
    OptionError
        A rate is negative or not finite, or `warmup_steps` is no integer of 0 or more.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> rate = dnn.warmup_schedule(0.1, 4)
    >>> [round(rate(step), 3) for step in (0, 2, 4, 100)]
    [0.0, 0.05, 0.1, 0.1]
    """
    lr = checks.number("warmup_schedule", "lr", lr, 0)
    start = checks.number("warmup_schedule", "start", start, 0)
    steps = checks.integer("warmup_schedule", "warmup_steps", warmup_steps, 0)

    def schedule(step: int) -> float:
        return lr if step >= steps else start + (lr - start) * step / steps

    return schedule


def cosine_schedule(lr: float, steps: int, *, warmup_steps: int = 0, final_lr: float = 0.0) -> Callable[[int], float]:
    """Raise the rate linearly, then lower it along half a cosine [1]_.

    Parameters
    ----------
    lr : float
        The largest rate, reached at step `warmup_steps`; at least 0.
    steps : int
        The number of all steps, more than `warmup_steps`; from there on the rate is `final_lr`.
    warmup_steps : int, default 0
        How many steps the rise from 0 takes.
    final_lr : float, default 0.0
        The last rate, at least 0.

    Returns
    -------
    callable
        ``schedule(step)`` is the rate of the step with this number, counted from 0:
        ``final_lr + (lr - final_lr) * (1 + cos(pi * t)) / 2`` behind the warm-up, where t goes from 0 to 1.

    Raises
    ------
    OptionError
        A rate is negative or not finite, or `steps` is not larger than `warmup_steps`.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> rate = dnn.cosine_schedule(0.1, 100, warmup_steps=10)
    >>> [round(rate(step), 3) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.05, 0.1, 0.05, 0.0]
    """
    rise = warmup_schedule(lr, warmup_steps)
    final_lr = checks.number("cosine_schedule", "final_lr", final_lr, 0)
    steps = checks.integer("cosine_schedule", "steps", steps, warmup_steps + 1)

    def schedule(step: int) -> float:
        if step < warmup_steps:
            return rise(step)
        t = min((step - warmup_steps) / (steps - warmup_steps), 1.0)
        return final_lr + (lr - final_lr) * (1 + math.cos(math.pi * t)) / 2

    return schedule
