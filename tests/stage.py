"""What a stage of the tests adds to the one before: NumPy alone is the first, ``--compiled`` the second.

The second stage leaves out the small calls that run the same code in both: those that name one of NumPy's algorithms,
and cases of operations that have no compiled algorithm. NumPy's algorithms over the threads of compiled kernels stay
in ``test_threads.py``, ``test_accuracy.py`` and ``test_long_sums.py``, whose arrays are large enough for threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from dnnarray._call.operation import find, operations
from dnnarray._cpu import engine
from dnnarray._cpu.compiled import Compiled
from dnnarray._select import Method
from tests import compiled_first
from tests.support import Case, candidates


def adds(method: Method) -> bool:
    """Whether the stage is the first one with an algorithm of the CPU engine."""
    return isinstance(method.run, Compiled) or not compiled_first.active()


def new_candidates(op: str, arrays: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    """Those `candidates` that the stage is the first one with."""
    new = {method.name for method in engine.methods(find(op)) if adds(method)}
    return [name for name in candidates(op, arrays, options) if name in new]


@cache
def _is_new(op: str) -> bool:
    """Whether the stage adds an algorithm of the operation or of its gradient."""
    pair = (op, f"{find(op).base}_backward")
    return any(adds(method) for name in pair if name in operations() for method in engine.methods(find(name)))


def new_cases(cases: Iterable[Case]) -> list[Case]:
    """The cases that the stage is the first one to run, or runs by other algorithms."""
    return [case for case in cases if _is_new(case.op)]
