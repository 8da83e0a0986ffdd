"""What a call is, and how one is drawn from its ID."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from dnnarray._call.operation import find, lookup
from dnnarray._names import FAMILY_OF
from dnnarray._problems.base import tree_map
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from tests.fuzz.draw import DRAWERS
from tests.fuzz.drawer import Drawer, Drawn, Leaf
from tests.fuzz.mutate import mutated

ENGINES = ("numpy", "compiled", "cuda")
_DTYPES = (FLOAT32,) * 5 + (FLOAT64,) * 2 + (FLOAT16,) * 2 + (BFLOAT16,) * 2
# How often an operation is drawn: those with many algorithms and options more often than a curve.
_WEIGHTS = {
    "conv": 5.0,
    "conv_backward_input": 2.0,
    "conv_backward_weight": 2.0,
    "conv_transpose": 2.0,
    "linear": 2.0,
    "attention": 4.0,
    "attention_varlen": 1.5,
    "multi_head_attention": 1.5,
    "max_pool": 2.0,
    "avg_pool": 1.5,
    "interpolate": 2.5,
    "grid_sample": 1.5,
    "batch_norm_train": 2.0,
    "layer_norm": 2.0,
    "rms_norm": 1.5,
    "cross_entropy": 1.5,
    "softmax": 1.5,
    "log_softmax": 1.5,
}
_CURVE = 0.35


# Families and operations in which NaN and infinity reach what the oracle says and nothing else.
_EXACT = (
    "activation",
    "pool",
    "dropout",
    "linear",
    "batch_norm",
    "embedding",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
)


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes
    ----------
    id : ``seed:index``, which draws it again
    mode : "forward"; "vjp", which compares both the forward and the gradient; or "backward", the function of this name
    pick : of [0, 1) which of the algorithms is named; None for the one that is chosen
    context : the options in force
    out, workspace, repeat : whether these are given, and whether the call is made again on arrays at other addresses
    pages : "end" or "begin" where arrays lie beside a page that must not be touched, on a processor
    spoilt : what is wrong with ``out=`` or ``workspace=``, one of `mutate.SPOILT`
    change : what makes the call a wrong one, in words
    """

    id: str
    engine: str
    drawn: Drawn
    dtype: np.dtype
    style: str
    mode: str = "forward"
    pick: float | None = None
    context: dict[str, Any] = field(default_factory=dict)
    out: bool = False
    workspace: bool = False
    repeat: bool = False
    pages: str | None = None
    spoilt: str | None = None
    change: str | None = None

    @property
    def lenient(self) -> bool:
        """Whether numbers overflow on the way, or what is none spreads in ways that the oracle leaves open: nothing is
        compared then."""
        base = find(self.drawn.op).base
        return self.style == "extreme" or (
            self.style == "special" and FAMILY_OF[base] not in _EXACT and base not in _EXACT
        )

    @property
    def operation(self) -> Any:
        """The operation that is called by name."""
        forward = find(self.drawn.op)
        return find(f"{forward.base}_backward") if self.mode == "backward" else forward

    @property
    def late(self) -> np.random.Generator:
        """What draws that which depends on the shapes of the results: gradients, ``out=``, ``workspace=``."""
        return generator(self.id, 1)

    def drawer(self) -> Drawer:
        """A drawer for these, of the style of the call."""
        drawer = Drawer(self.late, self.dtype, self.engine)
        drawer.style = "normal"
        return drawer

    def with_arrays(self, arrays: tuple[Any, ...]) -> Call:
        return replace(self, drawn=replace(self.drawn, arrays=arrays))


def generator(id_: str, part: int) -> np.random.Generator:
    seed, index = (int(number) for number in id_.split(":"))
    return np.random.default_rng([seed, index, part])


@cache
def _shares() -> tuple[list[str], np.ndarray]:
    """The operations, and how much of [0, 1) is taken by each and those before it."""
    weights = [
        _WEIGHTS.get(op, 1.0 if len(find(op).arrays) > 1 or FAMILY_OF[op] != "activation" else _CURVE) for op in DRAWERS
    ]
    return list(DRAWERS), np.cumsum(weights) / sum(weights)


def draw(id_: str, engine: str, words: tuple[str, ...] = ()) -> Call | None:
    """The call of this ID; None where the name of its operation holds none of these words."""
    rng = generator(id_, 0)
    names, ends = _shares()
    op = names[int(np.searchsorted(ends, rng.random(), side="right"))]
    if words and not any(word in op for word in words):
        return None
    dtype = _DTYPES[int(rng.integers(len(_DTYPES)))]
    drawer = Drawer(rng, dtype, engine)
    drawn = DRAWERS[op](drawer)
    call = Call(
        id_,
        engine,
        drawn,
        dtype,
        drawer.style,
        _mode(drawer, drawn),
        drawer.number(0, 1) if drawer.maybe() else None,
        _context(drawer),
        drawer.maybe(0.25),
        drawer.maybe(0.2),
        drawer.maybe(0.4),
        drawer.choice(("end", "begin", None, None)) if engine != "cuda" else None,
    )
    return mutated(drawer, call) if drawer.maybe(0.04) else call


def _mode(d: Drawer, drawn: Drawn) -> str:
    chosen = d.choice(("forward",) * 5 + ("vjp",) * 2 + ("backward",) * 3)
    base = find(drawn.op).base
    return chosen if drawn.gradient and lookup(f"{base}_backward") is not None else "forward"


def _context(d: Drawer) -> dict[str, Any]:
    if d.maybe(0.7):
        return {}
    found: dict[str, Any] = {}
    if d.maybe(0.6):  # the bits of all others are not compared
        found["deterministic"] = True
    if d.maybe(0.3):
        found["float32_precision"] = d.choice(("high", "medium", "highest"))
    if d.maybe(0.3):
        found["workspace_limit"] = d.choice((0, 1000, "1MB"))
    if d.maybe(0.3) and d.engine != "cuda":
        found["threads"] = d.choice((1, 2, 3, 7))
    if d.maybe(0.1):
        found["telemetry"] = True
    return found


def float64_of(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Leaves as plain arrays for an oracle: floating ones in float64; numbers as they are."""

    def plain(leaf: Any) -> Any:
        if not isinstance(leaf, Leaf):
            return leaf
        return leaf.values if leaf.role == "fixed" else leaf.values.astype(np.float64)

    return tuple(tree_map(plain, a) for a in arrays)
