"""Recurrent networks and their single steps."""

from __future__ import annotations

from functools import partial
from typing import Any

from dnnarray import RNNWeights
from tests.fuzz.drawer import Drawer, Drawn

_GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def _extent(d: Drawer) -> int:
    """Of features and of the hidden state."""
    return int(d.choice((1, 2, 3, 4, 5, 7, 8, 11, 16)) if d.maybe(0.93) else d.choice((17, 24, 32, 33)))


def _entry(d: Drawer, kind: str, features: int, hidden: int, projection: int | None, peephole: bool) -> RNNWeights:
    rows, state = _GATES[kind] * hidden, projection or hidden

    def bias() -> Any:
        return d.floats(rows, scale=0.5) if d.maybe(0.7) else None

    return RNNWeights(
        d.floats(rows, features, scale=0.5),
        d.floats(rows, state, scale=0.5),
        bias(),
        bias(),
        d.floats(projection, hidden, scale=0.5) if projection else None,
        d.floats(3, hidden, scale=0.5) if peephole else None,
    )


def _special(d: Drawer, kind: str) -> dict[str, Any]:
    """The options that this kind alone has."""
    if kind == "rnn":
        return d.some(activation=lambda: d.choice(("tanh", "relu")))
    if kind == "gru":
        return d.some(linear_before_reset=lambda: d.maybe())
    return {"cell_clip": d.choice((0.25, 1.0, 3.0))} if d.maybe(0.2) else {}


def _shape_of_state(d: Drawer, kind: str) -> tuple[int, int | None, bool]:
    """Hidden extent, projection, peepholes."""
    hidden, lstm = _extent(d), kind == "lstm"
    return hidden, d.integer(1, 9) if lstm and d.maybe(0.2) else None, lstm and d.maybe(0.2)


def _sequence(kind: str, d: Drawer) -> Drawn:
    t, n = (
        d.integer(1, 6) if d.maybe(0.95) else d.choice((0, 13)),
        d.integer(1, 4) if d.maybe(0.95) else d.choice((0, 9, 17)),
    )
    features, layers, directions = _extent(d), d.choice((1, 1, 1, 2, 3)), d.choice((1, 1, 2))
    hidden, projection, peephole = _shape_of_state(d, kind)
    width = directions * (projection or hidden)
    weights = tuple(
        _entry(d, kind, features if k < directions else width, hidden, projection, peephole)
        for k in range(layers * directions)
    )
    options = _special(d, kind) | ({"bidirectional": True} if directions == 2 else d.some(reverse=lambda: d.maybe()))
    options |= d.some(layout=lambda: d.choice(("TNC", "NTC")))
    if layers > 1 and d.maybe(0.3):
        options |= {"dropout": d.choice((0.0, 0.3, 0.5)), "seed": d.seed(), **d.some(offset=d.offset)}
    x = d.floats(*((n, t) if options.get("layout") == "NTC" else (t, n)), features)
    states: list[Any] = [d.floats(len(weights), n, projection or hidden) if d.maybe() else None]
    states += [d.floats(len(weights), n, hidden) if d.maybe() else None] if kind == "lstm" else []
    lengths = d.whole(d.rng.integers(0, t + 1, n)) if d.maybe(0.3) else None
    gates = (features + width) * max(t, 1)
    return Drawn(kind, (x, weights, *states, lengths), options, reduction=gates)


def _cell(kind: str, d: Drawer) -> Drawn:
    n, features = d.integer(1, 5) if d.maybe(0.95) else d.choice((0, 17)), _extent(d)
    hidden, projection, peephole = _shape_of_state(d, kind)
    states = [d.floats(n, projection or hidden)] + ([d.floats(n, hidden)] if kind == "lstm" else [])
    arrays = (d.floats(n, features), _entry(d, kind, features, hidden, projection, peephole), *states)
    return Drawn(f"{kind}_cell", arrays, _special(d, kind), reduction=features + hidden + 2)


DRAWERS = {kind: partial(_sequence, kind) for kind in _GATES} | {
    f"{kind}_cell": partial(_cell, kind) for kind in _GATES
}
