"""All cases and oracles of the project, gathered from ``tests/cases`` and ``tests/oracles`` by family."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import tests.cases
import tests.oracles
from tests.support import Case


def _gather(package: Any, attribute: str) -> list[Any]:
    modules = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    return [getattr(importlib.import_module(f"{package.__name__}.{name}"), attribute) for name in modules]


CASES: list[Case] = [case for table in _gather(tests.cases, "CASES") for case in table]
ORACLES: dict[str, Callable[..., Any]] = {
    op: oracle for table in _gather(tests.oracles, "ORACLES") for op, oracle in table.items()
}
FIRST: list[Case] = list({case.op: case for case in reversed(CASES)}.values())[::-1]
