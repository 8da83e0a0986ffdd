"""Counters of calls by operation: latencies, algorithms, copies, scratch memory. `dnnarray.telemetry` shows them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

_KEPT_LATENCIES = 4096


class _Record:
    """What is counted of one operation."""

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.latencies: deque[float] = deque(maxlen=_KEPT_LATENCIES)
        self.algorithms: Counter[str] = Counter()
        self.switched = 0
        self.layout_copies = 0
        self.workspace_bytes = 0
        self.workspace_failures = 0
        self.last_choice: dict[Any, str] = {}


_lock = threading.Lock()
_records: dict[str, _Record] = defaultdict(_Record)
_active = threading.local()


def timed(op: str, call: Callable[[], Any]) -> Any:
    """Run `call` and count it, its time and its errors under the name of the operation."""
    outer, _active.op = getattr(_active, "op", None), op
    start = time.perf_counter()
    try:
        result = call()
    except BaseException as error:
        with _lock:
            _records[op].errors += 1
            _records[op].workspace_failures += isinstance(error, MemoryError)
        raise
    finally:
        _active.op = outer
    with _lock:
        record = _records[op]
        record.calls += 1
        record.latencies.append(time.perf_counter() - start)
    return result


def note_algorithm(problem: Any, name: str, workspace: int) -> None:
    """The engine tells which algorithm runs; counted only inside an observed call."""
    op = getattr(_active, "op", None)
    if op is None:
        return
    key = (problem.op, problem.inputs)
    with _lock:
        record = _records[op]
        record.algorithms[name] += 1
        record.switched += record.last_choice.get(key, name) != name
        record.last_choice[key] = name
        record.workspace_bytes = max(record.workspace_bytes, workspace)


def note_layout_copy() -> None:
    """The engine had to copy an array because of its strides or its address."""
    op = getattr(_active, "op", None)
    if op is not None:
        with _lock:
            _records[op].layout_copies += 1


def snapshot() -> dict[str, dict[str, Any]]:
    """The counts by operation, as plain numbers; see `dnnarray.telemetry.snapshot`."""
    with _lock:
        return {name: _summary(record) for name, record in sorted(_records.items())}


def _summary(record: _Record) -> dict[str, Any]:
    times = sorted(record.latencies)
    quantiles = (
        {f"p{q}": times[min(len(times) - 1, len(times) * q // 100)] * 1e3 for q in (50, 90, 99)} if times else {}
    )
    return {
        "calls": record.calls,
        "errors": record.errors,
        "latency_ms": quantiles,
        "algorithms": dict(record.algorithms),
        "switched": record.switched,
        "layout_copies": record.layout_copies,
        "workspace_bytes": record.workspace_bytes,
        "workspace_failures": record.workspace_failures,
    }


def reset() -> None:
    """Forget all counts."""
    with _lock:
        _records.clear()
