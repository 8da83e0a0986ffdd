"""Linear layers."""

from __future__ import annotations

from tests.fuzz.draw.activation import activation
from tests.fuzz.drawer import Drawer, Drawn


def _linear(d: Drawer) -> Drawn:
    leading, (outs, features) = d.shape(d.integer(0, 3)), d.shape(2)
    if d.maybe(0.1):
        leading, outs, features = (d.choice((5, 33, 64)),), d.choice((16, 48, 65)), d.choice((32, 64, 100))
    x, weight = d.floats(*leading, features), d.floats(outs, features)
    bias, residual = d.floats(outs) if d.maybe() else None, d.floats(*leading, outs) if d.maybe(0.3) else None
    return Drawn("linear", (x, weight, bias, residual), d.some(activation=lambda: activation(d)), features + 2)


DRAWERS = {"linear": _linear}
