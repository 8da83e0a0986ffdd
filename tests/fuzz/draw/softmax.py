"""Softmax and its relatives."""

from __future__ import annotations

from functools import partial

from tests.fuzz.drawer import Drawer, Drawn


def _softmax(op: str, d: Drawer) -> Drawn:
    shape = d.shape(d.integer(0, 4))
    rank = max(len(shape), 1)
    options = d.some(axis=lambda: d.integer(-rank, rank - 1))
    return Drawn(op, (d.floats(*shape, scale=d.choice((1.0, 1.0, 5.0))),), options, reduction=max(shape, default=1))


DRAWERS = {op: partial(_softmax, op) for op in ("softmax", "log_softmax", "softmin")}
