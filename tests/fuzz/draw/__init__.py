"""A drawer for each operation that is no gradient: a function of a `Drawer` that gives a `Drawn`, in a table for each
family."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.draw import activation, attention, conv, dropout, linear, loss, norm, pool, rnn, softmax, spatial
from tests.fuzz.drawer import Drawer, Drawn

_FAMILIES = (activation, attention, conv, dropout, linear, loss, norm, pool, rnn, softmax, spatial)
DRAWERS: dict[str, Callable[[Drawer], Drawn]] = {
    op: drawer for family in _FAMILIES for op, drawer in family.DRAWERS.items()
}
