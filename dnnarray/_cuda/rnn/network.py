"""A recurrent problem as plans see it: where its arrays and its scratch memory lie."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from dnnarray._cuda.core.arguments import Pointer
from dnnarray._cuda.core.plan import Array, MatMul, Matrix, Plan
from dnnarray._problems.base import tree_map
from dnnarray._problems.rnn import GATES, RecurrentProblem, RNNWeights
from dnnarray._records import frozen
from dnnarray._spec import BFLOAT16, Spec

THREADS = 128
COUNTER = 32
"""Words between the counters of two groups of blocks; there are as many as if each took 8 sequences."""

MOST_BLOCKS, MOST_BATCH = 160, 32
"""Blocks of a persistent kernel, and sequences of a block, at most."""

_ALIGNMENT = 256
_DESCRIPTION = 34  # words that kernels/rnn/describe.cu writes
_INT32 = np.dtype(np.int32)
MOST_PARTS = 128  # of the sums over rows
Launches = list[Plan | MatMul]
Described = Annotated[Array, Pointer("dnnarray::Layer<Config::Element, dnnarray::arithmetic_t<Config::Element>>", True)]
Source = Annotated[Array | None, Pointer("Config::Source", True)]
Target = Annotated[Array, Pointer("Config::Target", False)]
Counters = Annotated[Array, Pointer("unsigned", False)]
Lengths = Annotated[Array | None, Pointer("int", True)]


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

    With `halves` what goes into a layer stays in half types: x as it is, and the output of a layer as two parts that
    add up to it, the second part of a row behind the first; and so do the weights."""

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
        outputs = [
            None if s is None else Given(Block(Array(next(count)), s.dtype), s.shape, _strides(s))
            for s in problem.outputs
        ]
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
            needs[self.output_name(number)] = (
                (2 * self.rows * p.width, self.x.block.dtype) if self.halves else (self.rows * p.width, A)
            )
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
            needs["partial"] = MOST_PARTS * max(self.gate_rows, 3 * H), A
            needs["dw"] = max(self.gate_rows * max(p.features, p.width, P), P * H if p.projected else 0), A
        return needs

    def _parts_needs(self) -> dict[str, tuple[int, np.dtype]]:
        """The factors of a layer's gradients as two bfloat16 parts each."""
        p = self.problem
        features = max(self.features(number) for number in range(p.layers))
        sizes = {"gates": p.directions * self.rows * self.gate_rows, "w_ih": self.gate_rows * features}
        if p.of_weights:
            sizes |= {
                "extra": p.directions * self.rows * p.hidden,
                "x": self.rows * features,
                "state": self.rows * p.state,
            }
        return {f"{name}_parts": (2 * size, BFLOAT16) for name, size in sizes.items()}

    def direct(self, out: Given | None) -> bool:
        """Whether a result can be written where it is wanted."""
        order = out is not None and out.dense and not (out is self.d_x and self.problem.batch_first)
        return order and out is not None and out.block.dtype == self.dtype


def blocks(elements: int) -> tuple[int, int, int]:
    return -(-elements // THREADS), 1, 1
