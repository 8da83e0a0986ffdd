"""The recurrence in one launch for all time steps of a layer, its weights resident in shared memory: tiles and
plans."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Extent, In
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.cast import zeros
from dnnarray._cuda.rnn.layers import Layer, Recurrence, backward, forward
from dnnarray._cuda.rnn.network import COUNTER, MOST_BATCH, MOST_BLOCKS, Counters, Described, Launches, Network
from dnnarray._cuda.rnn.persistent_backward import PersistentBackwardArguments
from dnnarray._cuda.rnn.shared import EFFICIENCY, UNITS, halves_of, itemsize, refuses
from dnnarray._cuda.rnn.steps import KINDS, NAMES, kind_of
from dnnarray._problems.base import leaves
from dnnarray._problems.rnn import GATES, RecurrentProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, FLOAT64

_OLDEST = (8, 0)
_THREADS = 256
_WARPS = _THREADS // 32
_TILE = 16  # units and columns of a tile of weights
_SUMS = 64  # partial sums that a thread has registers for
_RESERVED = 1 << 10  # bytes of shared memory that the system takes of each block
_BARRIER = 2e-6  # seconds
_FROM_L2, _FROM_SHARED = 60e9, 200e9  # bytes per second of one multiprocessor
_PRODUCTS = {2: 1100e9, 4: 360e9}  # products per second of one multiprocessor on tensor cores, by bytes of a weight
_FLOAT_PRODUCTS = 90e9  # and without them


@frozen
class PersistentConfig(Config):
    """Compile-time settings of ``kernels/rnn/persistent.cu`` and ``kernels/rnn/persistent_backward.cu``."""

    element: str
    output: str
    kind: int
    units: int
    batch: int
    tensor: bool
    threads: int


@frozen(kw_only=True)
class PersistentArguments(Arguments, restrict=True):
    """What ``kernels/rnn/persistent.cu`` is called with; `weights_reversed` are those of the second direction."""

    description: Described
    weights: In
    weights_reversed: In
    counters: Counters
    first_batch: Extent


@frozen
class Tile:
    """Hidden units and sequences of a block, and how the blocks fill the device."""

    units: int
    batch: int
    shared: int
    across: int  # blocks for all units
    groups: int  # groups of sequences that run at once
    seconds: float  # of a step


@frozen
class _Block:
    """A block that is thought of: its units and sequences, the bytes of a weight, and how it multiplies."""

    gates: int
    hidden: int
    units: int
    batch: int
    itemsize: int
    back: bool
    tensor: bool

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the weights, and the numbers that the warps give each other."""
        if self.back and self.tensor:
            numbers = self.gates * self.batch * (self.units + (16 if self.units % 32 == 0 else 0)) + _WARPS
        elif self.back:
            numbers = self.gates * self.units * (self.batch + 4)
        else:
            slices = _WARPS * _TILE // self.units if self.tensor else _WARPS
            numbers = slices * self.gates * self.batch * (self.units + 4)
            numbers = numbers if self.tensor else max(numbers, self.hidden * (self.batch + 4))
        return self.gates * self.units * self.hidden * self.itemsize + numbers * 4

    @property
    def sums(self) -> int:
        """Partial sums that a thread holds."""
        if self.tensor:
            return self.batch if self.back else self.gates * self.batch // 2
        return (64 if self.back else self.gates * self.units) * self.batch // 32

    @property
    def possible(self) -> bool:
        """Whether it has work for all threads, and registers for it."""
        enough = self.tensor or self.gates * self.units >= 32
        return enough and self.units * self.batch >= _THREADS and self.sums <= _SUMS

    @property
    def seconds(self) -> float:
        """Of a step."""
        products = self.gates * self.units * self.hidden
        rate = _PRODUCTS[self.itemsize] if self.tensor else _FLOAT_PRODUCTS
        moved = (1 + self.back) * self.batch * self.hidden * 4
        return _BARRIER + moved / _FROM_L2 + products * (self.itemsize / _FROM_SHARED + self.batch / rate)


def _tile(problem: RecurrentProblem, device: Device, block: _Block) -> Tile | None:
    limit = device.shared_memory - _RESERVED
    across = -(-block.hidden // block.units)
    groups = min(min(device.units, MOST_BLOCKS) // (across * problem.directions), -(-problem.batch // block.batch))
    if not block.possible or block.shared > limit or groups == 0:
        return None
    rounds = -(-problem.batch // (block.batch * groups))
    return Tile(block.units, block.batch, block.shared, across, groups, rounds * block.seconds)


def best_tile(problem: RecurrentProblem, device: Device, back: bool, precision: str = "highest") -> Tile | None:
    """The fastest tile by estimate, None where the weights fit no way."""
    itemsize = problem.x.dtype.itemsize
    tensor, gates = on_tensor_cores(itemsize, precision), GATES[problem.cell.kind]
    tiles = [
        _tile(problem, device, _Block(gates, problem.hidden, units, batch, itemsize, back, tensor))
        for units in (16, 32, 64)
        for batch in (8, 16, MOST_BATCH)
    ]
    return min((t for t in tiles if t is not None), key=lambda t: t.seconds, default=None)


def on_tensor_cores(itemsize: int, precision: str) -> bool:
    """float32 weights are split into two parts for them, which costs 40% more error than sums in float32: not by
    default."""
    return itemsize == 2 or precision == "high"


def _does_not_fit(problem: RecurrentProblem, device: Device, precision: str) -> str | None:
    """Why the recurrence cannot run in one launch."""
    p = problem
    entry = leaves(p.inputs)[0]
    if entry.dtype == FLOAT64:
        return "it is not for float64"
    if device.capability is not None and device.capability < _OLDEST:
        return f"it needs compute capability {_OLDEST[0]}.{_OLDEST[1]}"
    if p.projected or any(w is not None and w.shape == (3, p.hidden) and p.cell.kind == "lstm" for w in _peepholes(p)):
        return "it has no projections and no peepholes"
    if not p.cell.linear_before_reset:
        return "it has no GRU whose reset gate acts on the state"
    if p.hidden % _TILE or not p.hidden:
        return f"the hidden units must be a multiple of {_TILE}"
    if not p.steps or not p.batch or not p.features:
        return "an extent is 0"
    if any(best_tile(p, device, back, precision) is None for back in (False, True)[: 1 + bool(p.gradients)]):
        return "the recurrent weights do not fit the shared memory of all multiprocessors"
    return None


def _peepholes(problem: RecurrentProblem) -> list:
    weights = problem.inputs[1 + bool(problem.gradients)]  # behind x, of the backward behind the gradient and x
    return [w[5] for w in weights if len(w) > 5]


def _launches(layer: Layer, tile: Tile, kernel: Kernel, exchange: Array | None = None) -> Launches:
    """As many launches as the sequences need, one after the other, each with its own counters."""
    n, p = layer.network, layer.network.problem
    weights = [n.weights[k].w_hh.block.array for k in n.entries(layer.number)]
    total, counters = -(-p.batch // tile.batch), n.memory["counters"]
    words = p.directions * COUNTER
    launches = zeros(counters, total * words)
    for first in range(0, total, tile.groups):
        groups = min(tile.groups, total - first)
        here = counters.at(first * words)
        common: dict[str, Any] = {
            "description": n.memory["layer"].array,
            "weights": weights[0],
            "weights_reversed": [*weights, None][1],
        }
        common |= {"counters": here.array, "first_batch": first * tile.batch}
        arguments = (
            PersistentArguments(**common)
            if exchange is None
            else PersistentBackwardArguments(**common, exchange=exchange)
        )
        grid = tile.across, groups, p.directions
        launches.append(planned(kernel, grid, _THREADS, arguments, shared_memory=tile.shared, cooperative=True))
    return launches


def _kernel(layer: Layer, tile: Tile, output: str, source: str) -> Kernel:
    dtype, kind = layer.network.x.block.dtype, kind_of(layer)
    tensor = on_tensor_cores(dtype.itemsize, layer.precision)
    config = PersistentConfig(TYPES[dtype], output, KINDS[kind], tile.units, tile.batch, tensor, _THREADS)
    parts = "_split" if tensor and dtype == FLOAT32 else ""
    name = f"rnn_{source}_{kind}_{SHORT[dtype]}{parts}_{NAMES[output]}_{tile.units}x{tile.batch}"
    return Kernel(f"rnn/{source}.cu", name, config, ("core/math", "rnn/rnn"))


def _forward(device: Device, layer: Layer, output: str) -> Launches:
    tile = best_tile(layer.network.problem, device, False, layer.precision)
    assert tile is not None
    return _launches(layer, tile, _kernel(layer, tile, output, "persistent"))


def _backward(device: Device, layer: Layer, output: str) -> Launches:
    tile = best_tile(layer.network.problem, device, True, layer.precision)
    assert tile is not None
    return _launches(
        layer, tile, _kernel(layer, tile, output, "persistent_backward"), layer.network.memory["exchange"].array
    )


def persistent(device: Device) -> Recurrence:
    """The recurrence on this device."""
    return Recurrence(
        lambda layer, output: _forward(device, layer, output), lambda layer, output: _backward(device, layer, output)
    )


def run(back: bool, precision: str, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    network = Network(problem, back, halves_of(problem))
    return Program(tuple((backward if back else forward)(network, persistent(device), precision)))


def rejects(precision: str, problem: RecurrentProblem, device: Device) -> str | None:
    return refuses(precision, problem) or _does_not_fit(problem, device, precision)


def cost(back: bool, precision: str, problem: RecurrentProblem, device: Device) -> Cost:
    tiles = [best_tile(problem, device, direction, precision) for direction in (False, True)[: 1 + back]]
    seconds = sum(math.inf if t is None else t.seconds * problem.steps * problem.layers for t in tiles)
    return Cost(
        problem.flops,
        problem.bytes,
        EFFICIENCY,
        math.ceil(seconds / device.launch),
        UNITS[precision].get(itemsize(problem)),
    )
