"""Local response norm: a thread per element, the window from the cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from dnnarray._cuda.norm_common import Arguments, blocks_of, memory_order, orders
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm import LocalResponseProblem
from dnnarray._select import Device

_THREADS = 256


@dataclass(frozen=True)
class LocalResponseConfig(Config):
    """Compile-time settings of ``kernels/norm/local_response.cu``."""

    element: str
    stage: int
    threads: int


def _plan(problem: LocalResponseProblem, stage: int, pointers: tuple[Any, ...]) -> Plan:
    x = problem.inputs[-1]
    order = memory_order(x)
    inner = prod(x.shape[i] for i in order[order.index(problem.axis) + 1 :])
    config = LocalResponseConfig(TYPES[x.dtype], stage, _THREADS)
    name = f"local_response_norm_{('forward', 'terms', 'backward')[stage]}_{SHORT[x.dtype]}"
    kernel = Kernel("norm/local_response.cu", name, config)
    numbers = (x.size, x.shape[problem.axis], inner, problem.before, problem.after)
    values = (float(problem.k), float(problem.alpha / problem.size), float(problem.beta))
    return Plan(kernel, (blocks_of(x.size, _THREADS), 1, 1), _THREADS, (*pointers, *numbers, *values))


def forward(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    arguments, (x,) = Arguments(problem), problem.inputs
    if x.size == 0:
        return Program(())
    return Program((_plan(problem, 0, (0, *arguments.inputs, *arguments.outputs, 0)),), orders(problem, x))


def workspace(problem: LocalResponseProblem) -> int:
    """The terms of the gradient's window."""
    x = problem.inputs[-1]
    return x.size * statistics_dtype(x).itemsize


def backward(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """The terms, then their sums."""
    arguments, x = Arguments(problem), problem.inputs[-1]
    if x.size == 0:
        return Program(())
    (dx,), terms = arguments.outputs, arguments.scratch()
    plans = (_plan(problem, 1, (*arguments.inputs, 0, terms)), _plan(problem, 2, (*arguments.inputs, dx, terms)))
    return Program(plans, orders(problem, x))
