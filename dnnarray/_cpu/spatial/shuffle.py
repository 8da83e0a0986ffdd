"""Shuffles on NumPy arrays: one strided copy between two views."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._select import Method


def _move(problem: ShuffleProblem, outputs: tuple[np.ndarray, ...], scratch: Any, *arrays: np.ndarray) -> None:
    """Axes are only split, which a view can always do; ``copy=False`` holds NumPy to it."""
    move = problem.move
    target = outputs[0].reshape(move.target, copy=False)
    target[...] = arrays[0].reshape(move.source, copy=False).transpose(move.permutation)


_STRIDED_COPY = (Method("strided_copy", _move, "one copy between two strided views", native=True),)

ALGORITHMS = {
    name + ending: _STRIDED_COPY
    for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
    for ending in ("", "_backward")
}
