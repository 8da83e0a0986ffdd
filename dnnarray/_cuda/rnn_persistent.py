"""The recurrence in one launch for all time steps of a layer, its weights resident in shared memory: tiles and plans."""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.rnn_layers import Layer, Recurrence
from dnnarray._cuda.rnn_network import COUNTER, MOST_BATCH, MOST_BLOCKS, NOTHING, Launches, zeros
from dnnarray._cuda.rnn_steps import KINDS, NAMES, kind_of
from dnnarray._problems.base import leaves
from dnnarray._problems.rnn import GATES, RecurrentProblem
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_THREADS = 256
_WARPS = _THREADS // 32
_TILE = 16  # units and columns of a tile of weights
_SUMS = 64  # partial sums that a thread has registers for
_RESERVED = 1 << 10  # bytes of shared memory that the system takes of each block
_BARRIER = 2e-6  # seconds
_FROM_L2, _FROM_SHARED = 60e9, 200e9  # bytes per second of one multiprocessor
_PRODUCTS = 180e9  # float32 products per second of one multiprocessor


@dataclass(frozen=True)
class PersistentConfig(Config):
    """Compile-time settings of ``kernels/rnn/persistent.cu`` and ``kernels/rnn/persistent_backward.cu``."""

    element: str
    output: str
    kind: int
    units: int
    batch: int
    threads: int


@dataclass(frozen=True)
class Tile:
    """Hidden units and sequences of a block, and how the blocks fill the device."""

    units: int
    batch: int
    shared: int
    across: int  # blocks for all units
    groups: int  # groups of sequences that run at once
    seconds: float  # of a step


def _shared(gates: int, hidden: int, units: int, batch: int, itemsize: int, back: bool) -> int:
    """Bytes of shared memory of a block: its weights, and the numbers that its warps give each other."""
    if itemsize == 4:
        numbers = gates * units * (batch + 4) if back else max(hidden * (batch + 4), _WARPS * gates * batch * (units + 4))
    elif back:
        numbers = gates * batch * (units + (16 if units % 32 == 0 else 0)) + _WARPS
    else:
        numbers = _WARPS * _TILE // units * gates * batch * (units + 4)
    return gates * units * hidden * itemsize + numbers * 4


def _sums(gates: int, units: int, batch: int, itemsize: int, back: bool) -> int:
    """Partial sums that a thread holds."""
    if itemsize == 4:
        return (64 if back else gates * units) * batch // 32
    return 8 * (batch // 8) if back else gates * batch // 2


def _tile(problem: RecurrentProblem, device: Device, units: int, batch: int, back: bool) -> Tile | None:
    itemsize = problem.outputs[0].dtype.itemsize  # type: ignore[union-attr]
    gates, H = GATES[problem.cell.kind], problem.hidden
    shared = _shared(gates, H, units, batch, itemsize, back)
    across = -(-H // units)
    groups = min(min(device.units, MOST_BLOCKS) // (across * problem.directions), -(-problem.batch // batch))
    few = units * batch < _THREADS or (itemsize == 4 and gates * units < 32)
    if few or _sums(gates, units, batch, itemsize, back) > _SUMS or shared > device.shared_memory - _RESERVED or groups == 0:
        return None
    rounds = -(-problem.batch // (batch * groups))
    products = gates * units * H * (batch / _PRODUCTS if itemsize == 4 else itemsize / _FROM_SHARED)
    seconds = rounds * (_BARRIER + (1 + back) * batch * H * 4 / _FROM_L2 + products)
    return Tile(units, batch, shared, across, groups, seconds)


def best_tile(problem: RecurrentProblem, device: Device, back: bool) -> Tile | None:
    """The fastest tile by estimate, None where the weights fit no way."""
    tiles = [_tile(problem, device, units, batch, back) for units in (16, 32, 64) for batch in (8, 16, MOST_BATCH)]
    return min((t for t in tiles if t is not None), key=lambda t: t.seconds, default=None)


def rejects(problem: RecurrentProblem, device: Device) -> str | None:
    """Why the recurrence cannot run in one launch."""
    p = problem
    entry = leaves(p.inputs)[0]
    if entry.dtype == FLOAT64:
        return "it is not for float64"
    if p.projected or any(w is not None and w.shape == (3, p.hidden) and p.cell.kind == "lstm" for w in _peepholes(p)):
        return "it has no projections and no peepholes"
    if not p.cell.linear_before_reset:
        return "it has no GRU whose reset gate acts on the state"
    if p.hidden % _TILE or not p.hidden:
        return f"the hidden units must be a multiple of {_TILE}"
    if not p.steps or not p.batch or not p.features:
        return "an extent is 0"
    if best_tile(p, device, False) is None or (p.passes > 1 and best_tile(p, device, True) is None):
        return "the recurrent weights do not fit the shared memory of all multiprocessors"
    return None


def _peepholes(problem: RecurrentProblem) -> list:
    weights = problem.inputs[-3 - problem.has_cell_state]
    return [w[5] for w in weights if len(w) > 5]


def _launches(layer: Layer, tile: Tile, kernel: Kernel, exchange: tuple[Array, ...] = ()) -> Launches:
    """As many launches as the sequences need, one after the other, each with its own counters."""
    n, p = layer.network, layer.network.problem
    weights = [n.weights[k].w_hh.block.array for k in n.entries(layer.number)]
    total, counters = -(-p.batch // tile.batch), n.memory["counters"]
    launches = zeros(counters, p.directions * total * COUNTER)
    for first in range(0, total, tile.groups):
        groups = min(tile.groups, total - first)
        here = counters.at(p.directions * first * COUNTER)
        arguments = (n.memory["layer"].array, weights[0], [*weights, NOTHING][1], here.array, *exchange, first * tile.batch)
        launches.append(Plan(kernel, (tile.across, groups, p.directions), _THREADS, arguments, tile.shared))
    return launches


def _forward(device: Device, layer: Layer, output: str) -> Launches:
    tile = best_tile(layer.network.problem, device, False)
    assert tile is not None
    dtype, kind = layer.network.x.block.dtype, kind_of(layer)
    config = PersistentConfig(TYPES[dtype], output, KINDS[kind], tile.units, tile.batch, _THREADS)
    name = f"rnn_persistent_{kind}_{SHORT[dtype]}_{NAMES[output]}_{tile.units}x{tile.batch}"
    return _launches(layer, tile, Kernel("rnn/persistent.cu", name, config, ("math", "rnn")))


def _backward(device: Device, layer: Layer, output: str) -> Launches:
    n = layer.network
    tile = best_tile(n.problem, device, True)
    assert tile is not None
    dtype, kind = n.x.block.dtype, kind_of(layer)
    config = PersistentConfig(TYPES[dtype], output, KINDS[kind], tile.units, tile.batch, _THREADS)
    name = f"rnn_persistent_backward_{kind}_{SHORT[dtype]}_{NAMES[output]}_{tile.units}x{tile.batch}"
    kernel = Kernel("rnn/persistent_backward.cu", name, config, ("math", "rnn"))
    return _launches(layer, tile, kernel, (n.memory["exchange"].array,))


def persistent(device: Device) -> Recurrence:
    """The recurrence on this device."""
    return Recurrence(lambda layer, output: _forward(device, layer, output), lambda layer, output: _backward(device, layer, output))
