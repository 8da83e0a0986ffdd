"""What is shipped of measurements: by how much calls take longer on a card than the model says, for each class of
calls.

One JSON file per card in ``cards/``, read when a device of that name first chooses. The selection multiplies its
predictions by these factors; times that were measured for the very problem overrule both (`tuning`). A file that is
corrupted, or of another schema, version or card, is reported once and ignored."""

from __future__ import annotations

import json
import re
import statistics
import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dnnarray._problems.base import Problem, leaves
from dnnarray._records import frozen
from dnnarray._select.device import Device
from dnnarray._select.tuning import slug
from dnnarray._spec import name_of
from dnnarray._version import __version__

SCHEMA = 1
FOLDER = Path(__file__).parent / "cards"
FEWEST = 3  # samples of a class
_MOST = 4.0  # times that a prediction is corrected by, either way
_RANKED = re.compile(r"[123]d$")


@frozen
class Sample:
    """One measured call: its class, the model's milliseconds and the card's."""

    kind: str
    predicted_ms: float
    measured_ms: float


def class_of(problem: Problem, algorithm: str) -> str:
    """Operation, algorithm and dtype; ``conv2d`` is ``conv``."""
    specs = leaves(problem.inputs)
    return f"{_RANKED.sub('', problem.op)} {algorithm} {name_of(specs[0].dtype) if specs else 'float32'}"


def factor(problem: Problem, device: Device, algorithm: str) -> float | None:
    """What to multiply a prediction by, None where nothing was measured of its class."""
    found = factors(device.name)
    return found.get(class_of(problem, algorithm)) if found else None


@lru_cache(maxsize=64)
def factors(card: str) -> dict[str, float]:
    """The factors of a card by class, empty for a card that was not measured."""
    path = FOLDER / f"{slug(card)}.json"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return _ignored(path, f"cannot be read ({type(error).__name__})")
    reason = wrong(content, card)
    return _ignored(path, reason) if reason else content["factors"]


def wrong(content: Any, card: str) -> str | None:
    """What makes a file no table of this card, or None."""
    expected = {"schema": SCHEMA, "card": card, "version": __version__}
    for name, value in expected.items():
        found = content.get(name) if isinstance(content, dict) else None
        if found != value:
            return f"is of {name} {found!r}, not {value!r}"
    rows = content.get("factors")
    if not isinstance(rows, dict) or not all(
        type(f) in (int, float) and 1 / _MOST <= f <= _MOST for f in rows.values()
    ):
        return f"has factors that are no numbers from {1 / _MOST} to {_MOST}"
    return None


def _ignored(path: Path, what: str) -> dict[str, float]:
    warnings.warn(f"dnnarray: the shipped times {path} {what}; predictions are not corrected.", stacklevel=2)
    return {}


def bare(device: Device) -> Device:
    """The device as one whose predictions are not corrected: what samples are taken with."""
    return replace(device, name=f"{device.name}, not corrected")


def write(path: Path, device: Device, samples: Iterable[Sample]) -> dict[str, float]:
    """The medians of measured over predicted times as the file of a card."""
    found: dict[str, list[float]] = {}
    for s in samples:
        found.setdefault(s.kind, []).append(s.measured_ms / s.predicted_ms)
    rows = {k: round(min(max(statistics.median(v), 1 / _MOST), _MOST), 3) for k, v in found.items() if len(v) >= FEWEST}
    content = {"schema": SCHEMA, "card": device.name, "version": __version__, "factors": rows}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return rows
