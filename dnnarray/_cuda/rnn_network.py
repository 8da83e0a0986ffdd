"""A recurrent problem as plans see it: where its arrays and its scratch memory lie, and the launches that all algorithms share."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Config, Kernel, MatMul, Matrix, Plan
from dnnarray._problems.base import tree_map
from dnnarray._problems.rnn import GATES, RecurrentProblem, RNNWeights
from dnnarray._records import frozen
from dnnarray._spec import BFLOAT16, Spec

THREADS = 128
NOTHING = 0
COUNTER = 32
"""Words between the counters of two groups of blocks; there are as many as if each took 8 sequences."""

MOST_BLOCKS, MOST_BATCH = 160, 32
"""Blocks of a persistent kernel, and sequences of a block, at most."""

_ALIGNMENT = 256
_DESCRIPTION = 36  # words that kernels/rnn/describe.cu writes
_INT32 = np.dtype(np.int32)
_SUM_ROWS, _MOST_PARTS = 64, 128  # rows that a thread of column_sums adds up at least, and parts at most
Launches = list[Plan | MatMul]


@frozen
class CastConfig(Config):
    """Compile-time settings of ``kernels/rnn/cast.cu`` and ``kernels/rnn/column_sums.cu``."""

    source: str
    target: str
    threads: int


@frozen
class SplitConfig(Config):
    """Compile-time settings of ``kernels/rnn/split.cu``."""

    source: str
    vector: int
    threads: int


@frozen
class LengthsConfig(Config):
    """Compile-time settings of ``kernels/rnn/lengths.cu``."""

    source: str
    threads: int


@frozen
class Block:
    """Numbers of one dtype in memory, from an `Array` on."""

    array: Array
    dtype: np.dtype

    def at(self, elements: int) -> Block:
        """The same memory some elements further on."""
        return replace(self, array=Array(self.array.index, self.array.offset + elements * self.dtype.itemsize))

    def matrix(self, row: int, batch: int = 0, *, transposed: bool = False) -> Matrix:
        return Matrix(self.array, row, batch, transposed)


@frozen
class Given:
    """An input or an output of the problem: its memory and its axes."""

    block: Block
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """Whether the last axis runs fastest, and so on."""
        return self.strides == c_strides(self.shape)


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _strides(spec: Spec) -> tuple[int, ...]:
    """Of an output, which is dense in some order."""
    order = spec.axis_order() or tuple(range(spec.ndim))
    steps = dict(zip(order, c_strides(tuple(spec.shape[i] for i in order)), strict=True))
    return tuple(steps[i] for i in range(spec.ndim))


class Network:
    """The problem with its pointers; `backward` says whether it is the gradient that is wanted.

    With `halves` what goes into a layer stays in half types: x as it is, and the output of a layer as two parts that add up to it, the
    second part of a row behind the first; and so do the weights.
    """

    def __init__(self, problem: RecurrentProblem, backward: bool, halves: bool = False) -> None:
        self.problem, self.backward = problem, backward
        self.halves = halves
        self.sequence = problem.x.ndim == 3
        self.gates = GATES[problem.cell.kind]
        self.dtype = problem.dtype
        self.kept = backward
        count = itertools.count()
        inputs = [tree_map(lambda spec: self._input(spec, next(count)), branch) for branch in problem.inputs]
        grad, *arrays = inputs if backward else [None, *inputs]
        self.x, weights, *rest = arrays
        if backward and self.sequence:
            rest.pop()  # a tape, which no algorithm takes
        self.weights = [RNNWeights(*w) for w in (weights if self.sequence else [weights])]
        self.lengths = rest.pop() if self.sequence else None
        self.states = rest
        outputs = [None if s is None else Given(Block(Array(next(count)), s.dtype), s.shape, _strides(s)) for s in problem.outputs]
        self._sort_outputs(outputs, grad)
        self.scratch = next(count)
        self.memory, self.size = self._carve()

    def _input(self, spec: Spec, index: int) -> Given:
        return Given(Block(Array(index), spec.dtype), spec.shape, c_strides(spec.shape))

    def _sort_outputs(self, outputs: list[Given | None], grad: Any) -> None:
        """Name the results and the gradients that come in."""
        kinds = 1 + self.problem.has_cell_state
        nothing: list[Any] = [None] * kinds
        self.y, self.finals, self.d_y, self.d_finals = None, nothing, None, nothing
        self.d_x: Any = None
        if not self.backward:
            self.y, self.finals = (outputs[0], outputs[1:]) if self.sequence else (None, outputs)
            return
        incoming = list(grad) if isinstance(grad, tuple) else [grad]
        incoming += [None] * (kinds + self.sequence - len(incoming))
        self.d_y, self.d_finals = (incoming[0], incoming[1:]) if self.sequence else (None, incoming)
        fields = len(RNNWeights._fields)
        self.d_x, flat = outputs[0], outputs[1:]
        self.d_weights = [RNNWeights(*flat[k * fields : (k + 1) * fields]) for k in range(len(self.weights))]
        self.d_states = flat[len(self.weights) * fields :]

    # --- extents ---

    @property
    def rows(self) -> int:
        """Steps times sequences."""
        return self.problem.steps * self.problem.batch

    @property
    def gate_rows(self) -> int:
        return self.gates * self.problem.hidden

    @property
    def slabs(self) -> int:
        """States of a direction that are in memory."""
        return self.problem.steps + 1 if self.kept else 2

    def entries(self, number: int) -> range:
        """The entries of the weights of layer `number`."""
        return range(number * self.problem.directions, (number + 1) * self.problem.directions)

    def features(self, number: int) -> int:
        return self.problem.features if number == 0 else self.problem.width

    def reversed(self, direction: int) -> bool:
        return self.problem.reverse or direction == 1

    def time(self, direction: int, step: int) -> int:
        """The time step that a direction takes as number `step`."""
        return self.problem.steps - 1 - step if self.reversed(direction) else step

    def slab(self, direction: int, step: int) -> int:
        """Where the state stands after `step` steps."""
        if not self.kept:
            return step % 2
        return self.problem.steps - step if self.reversed(direction) else step

    # --- scratch memory ---

    @property
    def converted(self) -> bool:
        """Whether the arrays must be widened to the dtype of the arithmetic."""
        return self.x.block.dtype != self.dtype and not self.halves

    @property
    def moved(self) -> bool:
        """Whether x must be copied to be rows of (steps, batch, features) without what stands past the ends."""
        return self.converted or self.problem.batch_first or self.problem.packed

    def _carve(self) -> tuple[dict[str, Block], int]:
        """Blocks of scratch memory by name, and their size in bytes."""
        blocks, at = {}, 0
        for name, (elements, dtype) in self._needs().items():
            blocks[name] = Block(Array(self.scratch, at), dtype)
            at += -(-elements * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return blocks, at

    def _needs(self) -> dict[str, tuple[int, np.dtype]]:
        p, A = self.problem, self.dtype
        D, N, H, P = p.directions, p.batch, p.hidden, p.state
        needs: dict[str, tuple[int, np.dtype]] = {"layer": (_DESCRIPTION, np.dtype(np.int64))}
        if p.packed:
            needs["lengths"] = N, _INT32
        if self.moved:
            needs["x"] = self.rows * p.features, self.x.block.dtype if self.halves else A
        for number in range(p.layers):
            needs |= self._layer_needs(number)
        extent = {"rnn": 1, "gru": self.gate_rows, "lstm": max(P, H)}[p.cell.kind]
        needs["product"] = D * N * extent, A
        needs["counters"] = D * (-(-N // 8) + 1) * COUNTER, A
        if p.projected:
            needs["before"] = D * N * H * (p.steps if self.kept else 1), A
        return needs | (self._backward_needs() if self.backward else {})

    def _layer_needs(self, number: int) -> dict[str, tuple[int, np.dtype]]:
        """What one layer needs; without the gradient all layers share the same memory, but for two outputs."""
        p, A = self.problem, self.dtype
        D, N, H, P = p.directions, p.batch, p.hidden, p.state
        name, needs = self.names(number), {}
        if self.converted or (D > 1 and not self.halves):
            needs[f"w_hh{number}"] = D * self.gate_rows * P, A
            if p.projected:
                needs[f"w_hr{number}"] = D * P * H, A
        if self.converted:
            needs[f"w_ih{number}"] = D * self.gate_rows * self.features(number), A
        needs[f"gates{name}"] = D * self.rows * self.gate_rows, A
        needs[f"state{name}"] = D * self.slabs * N * P, A
        if p.has_cell_state:
            needs[f"cell{name}"] = D * self.slabs * N * H, A
        if p.cell.kind == "gru":
            needs[f"extra{name}"] = D * N * H * (p.steps if self.kept else 1), A
        if number < p.layers - 1:
            needs[self.output_name(number)] = (2 * self.rows * p.width, self.x.block.dtype) if self.halves else (self.rows * p.width, A)
        return needs

    def names(self, number: int) -> str:
        return str(number) if self.kept else ""

    def output_name(self, number: int) -> str:
        return f"y{number if self.kept else number % 2}"

    def _backward_needs(self) -> dict[str, tuple[int, np.dtype]]:
        p, A = self.problem, self.dtype
        D, N, H, P = p.directions, p.batch, p.hidden, p.state
        needs = {"d_state": (D * N * P, A)}
        if p.has_cell_state:
            needs["d_cell"] = D * N * H, A
        if p.projected:
            needs["projected"] = D * self.rows * P, A
        blocks_of_units = D * -(-H // 16)
        needs["exchange"] = 2 * H * min(MOST_BLOCKS * MOST_BATCH, blocks_of_units * (N + MOST_BATCH)), A
        needs |= self._parts_needs() if self.halves else {}
        for number in range(min(p.layers - 1, 2)):
            needs[f"dy{number}"] = self.rows * p.width, A
        if self.d_x is not None and not self.direct(self.d_x):
            needs["dx"] = self.rows * p.features, A
        if p.of_weights:
            needs["partial"] = _MOST_PARTS * max(self.gate_rows, 3 * H), A
            needs["dw"] = max(self.gate_rows * max(p.features, p.width, P), P * H if p.projected else 0), A
        return needs

    def _parts_needs(self) -> dict[str, tuple[int, np.dtype]]:
        """The factors of a layer's gradients as two bfloat16 parts each."""
        p = self.problem
        features = max(self.features(number) for number in range(p.layers))
        sizes = {"gates": p.directions * self.rows * self.gate_rows, "w_ih": self.gate_rows * features}
        if p.of_weights:
            sizes |= {"extra": p.directions * self.rows * p.hidden, "x": self.rows * features, "state": self.rows * p.state}
        return {f"{name}_parts": (2 * size, BFLOAT16) for name, size in sizes.items()}

    def direct(self, out: Given | None) -> bool:
        """Whether a result can be written where it is wanted."""
        order = out is not None and out.dense and not (out is self.d_x and self.problem.batch_first)
        return order and out is not None and out.block.dtype == self.dtype


# --- launches that all algorithms share -------------------------------------------------------------------------------


def blocks(elements: int) -> tuple[int, int, int]:
    return -(-elements // THREADS), 1, 1


def cast(
    source: Block | None,
    target: Block,
    extents: tuple[int, ...],
    strides: tuple[int, ...],
    out: tuple[int, ...],
    lengths: Any = NOTHING,
) -> Launches:
    """Elements of `source` (zeros where it is None) in the type and order of `target`: three axes with their strides."""
    n = math.prod(extents)
    if n == 0:
        return []
    kind = target.dtype if source is None else source.dtype
    config = CastConfig(TYPES[kind], TYPES[target.dtype], THREADS)
    kernel = Kernel("rnn/cast.cu", f"rnn_cast_{SHORT[kind]}_{SHORT[target.dtype]}", config)
    pointer = NOTHING if source is None else source.array
    return [Plan(kernel, blocks(n), THREADS, (pointer, target.array, lengths, n, *extents[1:], *strides, *out))]


def zeros(target: Block, n: int) -> Launches:
    return cast(None, target, (1, 1, n), (0, 0, 1), (0, 0, 1))


def flat_cast(source: Block, target: Block, n: int) -> Launches:
    return cast(source, target, (1, 1, n), (0, 0, 1), (0, 0, 1))


def product(
    a: Matrix,
    b: Matrix,
    c: Block,
    extents: tuple[int, int, int],
    row: int,
    *,
    batch: int = 1,
    step: int = 0,
    add: bool = False,
    precision: str,
    dtype: np.dtype | None = None,
) -> Launches:
    """c (m, n) = a (m, k) b (k, n), or added to c; `step` lies between the results of a batch, `row` between the rows of one.

    `dtype` is of a and b, that of c where it is None.
    """
    m, n, k = extents
    if not m * n * batch:
        return []
    if k == 0:
        return [] if add else cast(None, c, (batch, m, n), (0, 0, 0), (step, row, 1))
    beta = 1.0 if add else 0.0
    matrix = c.matrix(row, step)
    return [MatMul(a, b, matrix, m, n, k, dtype or c.dtype, c.dtype, batch, 1.0, beta, precision)]


def split(source: Block, rows: int, columns: int, row: int, target: Block, low: int = 0) -> Launches:
    """A matrix as two bfloat16 parts (rows, 2, columns); `low` is where the second part of the source stands behind the first, 0 if none."""
    if not rows * columns:
        return []
    scratch = source.array.index == target.array.index  # what lies there is aligned
    vector = 4 if scratch and not any(n % 4 for n in (columns, row, low, source.array.offset // source.dtype.itemsize)) else 1
    name = f"rnn_split_{SHORT[source.dtype]}x{vector}"
    kernel = Kernel("rnn/split.cu", name, SplitConfig(TYPES[source.dtype], vector, THREADS))
    grid = blocks(rows * columns // vector)
    return [Plan(kernel, grid, THREADS, (source.array, target.array, rows, columns, row, low))]


def column_sums(
    x: Block, x_row: int, rows: int, columns: int, partial: Block, outs: list[Block], y: Block | None = None, y_row: int = 0
) -> Launches:
    """Sums over the rows of x, or of the products of x and y, into each of `outs`."""
    if not columns or not outs:
        return []
    part = max(_SUM_ROWS, -(-rows // _MOST_PARTS))
    parts = max(1, -(-rows // part))

    def launch(source: Block, other: Any, out: Block, count: int, splits: int, length: int, row: int, other_row: int) -> Plan:
        config = CastConfig(TYPES[source.dtype], TYPES[out.dtype], THREADS)
        kernel = Kernel("rnn/column_sums.cu", f"rnn_column_sums_{SHORT[source.dtype]}_{SHORT[out.dtype]}", config)
        arguments = (source.array, other, out.array, count, columns, row, other_row, length)
        return Plan(kernel, (-(-columns // THREADS), splits, 1), THREADS, arguments)

    first = launch(x, NOTHING if y is None else y.array, partial, rows, parts, part, x_row, y_row)
    return [first, *(launch(partial, NOTHING, out, parts, 1, parts, columns, 0) for out in outs)]


def take_lengths(network: Network) -> Launches:
    """The lengths as the kernels read them."""
    given = network.lengths
    if given is None or not network.problem.batch:
        return []
    name = given.block.dtype.name
    kernel = Kernel("rnn/lengths.cu", f"rnn_lengths_{name}", LengthsConfig(INTEGERS[given.block.dtype], THREADS))
    arguments = (given.block.array, network.memory["lengths"].array, network.problem.batch, network.problem.steps)
    return [Plan(kernel, blocks(network.problem.batch), THREADS, arguments)]


def take_x(network: Network) -> tuple[Launches, Block]:
    """x as rows (steps, batch, features) of the arithmetic's dtype."""
    p, x = network.problem, network.x
    if not network.moved:
        return [], x.block
    extents = p.steps, p.batch, p.features
    strides = (p.features, p.steps * p.features, 1) if p.batch_first else (p.batch * p.features, p.features, 1)
    lengths = network.memory["lengths"].array if p.packed else NOTHING
    return cast(x.block, network.memory["x"], extents, strides, (p.batch * p.features, p.features, 1), lengths), network.memory["x"]


def description(network: Network, number: int, **fields: Any) -> Plan:
    """The launch that describes a layer; `fields` are words of ``Layer`` in rnn.cuh that are not the same for all."""
    p, memory, name = network.problem, network.memory, network.names(number)

    def pointers(field: str) -> list[Any]:
        found = [getattr(network.weights[k], field) for k in network.entries(number)]
        return [NOTHING if g is None else g.block.array for g in [*found, None][:2]]

    def scratch(name: str) -> Any:
        return memory[name].array if name in memory else NOTHING

    words = [*pointers("b_ih"), *pointers("b_hh"), *pointers("peephole")]
    words += [scratch(f"{field}{name}") for field in ("gates", "state", "cell", "extra")]
    words += [scratch(field) for field in ("product", "before", "projected", "d_state", "d_cell")]
    words += [fields["output"], *fields["strides"], scratch("lengths")]
    mask = sum(1 << d for d in range(p.directions) if network.reversed(d))
    words += [p.steps, p.batch, p.hidden, p.state, p.directions, mask, int(network.kept), math.inf if p.cell.clip is None else p.cell.clip]
    words += fields["dropout"]
    words += [0] * (_DESCRIPTION - len(words))
    kernel = Kernel("rnn/describe.cu", "rnn_describe", Config())
    return Plan(kernel, (1, 1, 1), 1, (memory["layer"].array, *words))
