"""Dropout, alone and fused."""

from __future__ import annotations

from tests.fuzz.drawer import Drawer, Drawn


def _p(d: Drawer) -> float:
    return float(d.choice((0.0, 0.1, 0.25, 0.5, 0.9, 1.0, 1 / 3)))


def _dropout(d: Drawer) -> Drawn:
    d.budget = min(d.budget, 250)  # the oracle draws number by number
    options = {"seed": d.seed(), **d.some(p=lambda: _p(d), offset=d.offset)}
    return Drawn("dropout", (d.floats(*d.shape(d.integer(0, 4))),), options)


def _bias_dropout_add(d: Drawer) -> Drawn:
    d.budget = min(d.budget, 250)
    shape = d.shape(d.integer(1, 4))
    options = {"seed": d.seed(), "p": _p(d), **d.some(offset=d.offset)}
    return Drawn(
        "bias_dropout_add", (d.floats(*shape), d.floats(shape[-1]), d.floats(*shape)), options, reduction=d.budget
    )


DRAWERS = {"dropout": _dropout, "bias_dropout_add": _bias_dropout_add}
