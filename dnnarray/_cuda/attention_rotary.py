"""The gradient of the rotary embedding: plans. Some threads turn the same pairs of features in all heads, with their row of the tables in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.positional import NOTHING, pointers
from dnnarray._problems.attention_rotary import RotaryProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64, Spec

_THREADS = 128
# Blocks for a multiprocessor at least; three on other cards, and for parts of the sums: more would not have the registers for what is under way.
_BLOCKS = {(9, 0): 4}
_TOGETHER = 4  # threads that share a place in the tables, where it has as many heads
_CHUNK = 4  # heads that a part of the sums is of at least
_BATCH = 4  # heads of a thread with their loads in flight at once
_GOAL = 4  # blocks for each multiprocessor before the sums of the gradient are split no further
_MOST_PARTS = 512
_LONG = 1 << 31  # columns or heads from which on an index is too large for a Divisor
_LINE = 256  # bytes that parts of the scratch memory start at multiples of


@frozen
class RotaryConfig(Config):
    """Compile-time settings of ``kernels/attention/rotary_backward.cu``."""

    element: str
    cosine: str
    sine: str
    interleaved: bool
    wide: bool
    turned: bool
    parts: bool
    long: bool
    pairs: int
    batch: int
    together: int
    threads: int
    blocks: int


@frozen
class SumPartsConfig(Config):
    """Compile-time settings of ``kernels/attention/sum_parts.cu``."""

    element: str
    part: str
    threads: int


def sum_parts(sums: Sequence[tuple[Array, Array]], size: int, count: int, result: np.dtype, arithmetic: np.dtype) -> Plan:
    """One or two sums (parts, result) over the first axis of `count` x `size` numbers, in the dtype of the result."""
    config = SumPartsConfig(TYPES[result], TYPES[arithmetic], _THREADS)
    kernel = Kernel("attention/sum_parts.cu", f"sum_parts_{SHORT[arithmetic]}_{SHORT[result]}", config)
    pointers = (*sums[0], *(sums[1] if len(sums) == 2 else (NOTHING, NOTHING)))
    return Plan(kernel, (-(-size // _THREADS), len(sums), 1), _THREADS, (*pointers, size, count), early=True)


def arithmetic_of(dtype: np.dtype) -> np.dtype:
    """The dtype that the kernels compute in."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


def order_of(spec: Spec) -> tuple[int, ...]:
    """The memory order of an array whose last axis runs fastest; C order, into which it is copied, for another."""
    order = spec.axis_order()
    return order if order and order[-1] == spec.ndim - 1 else tuple(range(spec.ndim))


def strides_in(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Elements between neighbours along each axis of a dense array with this order of axes."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


@frozen
class _Work:
    """How the rows of x are shared out."""

    heads: int
    sequence: int
    table_rows: int
    rows: int  # of x for each row of the tables
    pairs: int
    width: int

    @classmethod
    def of(cls, problem: RotaryProblem) -> _Work:
        x, cos, _ = problem.inputs[-3:]
        heads, sequence = x.shape[problem.layout.index("H")], x.shape[problem.layout.index("S")]
        batch, own = x.shape[0], problem.own_tables
        return cls(heads, sequence, batch * sequence if own else sequence, heads if own else batch * heads, cos.shape[-1], x.shape[3])


def length(problem: RotaryProblem, aligned: bool) -> tuple[int, bool]:
    """Pairs of a thread, and whether features side by side are moved as one vector."""
    x, cos, _ = problem.inputs[-3:]
    if not problem.interleaved:
        return vector_length(x.dtype, aligned, x.shape[3], cos.shape[-1]), True
    features = vector_length(x.dtype, aligned, x.shape[3], 2 * cos.shape[-1])
    return max(features // 2, 1), features > 1


def _chunks(work: _Work, blocks: int, units: int) -> tuple[int, int]:
    """Rows of x for one thread of the gradient, and how many such parts there are: as few as still fill the card."""
    parts = max(min(_GOAL * units // blocks, -(-work.rows // _CHUNK), _MOST_PARTS), 1)
    chunk = max(-(-work.rows // parts), 1)
    return chunk, max(-(-work.rows // chunk), 1)


def _most_parts(problem: RotaryProblem) -> int:
    """No more parts than this on any card."""
    return max(min(-(-_Work.of(problem).rows // _CHUNK), _MOST_PARTS), 1)


def _part_bytes(problem: RotaryProblem) -> int:
    """Of the sums of one table for all parts."""
    work = _Work.of(problem)
    size = _most_parts(problem) * work.table_rows * work.pairs * arithmetic_of(problem.inputs[-3].dtype).itemsize
    return -(-size // _LINE) * _LINE


def _sum_bytes(problem: RotaryProblem) -> int:
    """Of the partial sums of both tables."""
    return 2 * _part_bytes(problem) if _most_parts(problem) > 1 else 0


def scattered(problem: RotaryProblem) -> bool:
    """Whether the features of x, and so of the result, do not run fastest."""
    x = problem.inputs[-3]
    return x.axis_order() not in (None, order_of(x))


def workspace(problem: RotaryProblem) -> int:
    """Scratch for partial sums, and for a result that is to be brought to another order."""
    of_x, *tables = problem.outputs
    return (_sum_bytes(problem) if any(tables) else 0) + (problem.inputs[-3].nbytes if scattered(problem) and of_x is not None else 0)


def of_tables(problem: RotaryProblem, device: Device) -> str | None:
    """Why there are no sums, or None."""
    return None if any(problem.outputs[1:]) else "that of x alone, which is a rotation"


def rotary_backward(problem: RotaryProblem, device: Device, aligned: bool) -> Program:
    """One launch, and the second stage of its sums; where the result lies otherwise than it is written, one that reorders it. The tables constant, the
    gradient is a rotation: `attention_rotary_forward` does it.
    """
    x, cos, sin = problem.inputs[-3:]
    work, order = _Work.of(problem), order_of(x)
    orders = (order, order, (0, 1, 2)[: cos.ndim], (0, 1, 2)[: sin.ndim])
    if work.table_rows * work.width == 0:
        return Program(())
    pairs, wide = length(problem, aligned)
    items = work.pairs // pairs + (work.width - 2 * work.pairs) // (pairs if not problem.interleaved else 2 * pairs if wide else 1)
    together = _TOGETHER if work.rows >= _TOGETHER else 1
    blocks = -(-work.table_rows * items * together // _THREADS)
    chunk, parts = _chunks(work, blocks, device.units)
    split, long = parts > 1, max(work.table_rows * items, work.rows) + _THREADS >= _LONG
    numbers = (work.table_rows, work.pairs, work.pairs // pairs, *_divided(work, items, problem.own_tables, long), work.rows, chunk)
    kernel = _kernel(problem, device, pairs, wide, split, together, long)
    steps = _steps(problem, work, order, together)
    plans = [Plan(kernel, (blocks, parts, 1), _THREADS, (*_pointers(problem, split), *numbers, *steps))]
    size = work.table_rows * work.pairs
    if split and size:
        wanted = [s for s in zip(_part_places(problem), _results(problem)[1:], (cos.dtype, sin.dtype), strict=True) if s[1] != NOTHING]
        for dtype in dict.fromkeys(dtype for *_, dtype in wanted):
            sums = [(part, result) for part, result, own in wanted if own == dtype]
            plans.append(sum_parts(sums, size, parts, dtype, arithmetic_of(x.dtype)))
    y = problem.outputs[0]
    if scattered(problem) and y is not None and y.size:
        plans.append(reorder(y, order, _target(problem), _results(problem)[0]))
    return Program(tuple(plans), orders)


def _divided(work: _Work, items: int, own_tables: bool, long: bool) -> tuple[int, ...]:
    """What indices are divided by, each with what a Divisor takes, and whether batch items have tables of their own."""
    by_items, by_sequence, by_heads = ((n, 0 if long else divisor(n)) for n in (items, work.sequence, max(work.heads, 1)))
    return *by_items, *by_sequence, int(own_tables), *by_heads


def _steps(problem: RotaryProblem, work: _Work, order: tuple[int, ...], together: int) -> tuple[int, ...]:
    """Elements from one batch item, head and row to the next, and of so many heads together; how many heads these are within a batch item."""
    strides = strides_in(problem.inputs[-3].shape, order)
    batch, head, row = (strides[problem.layout.index(axis)] for axis in "BHS")
    items, heads = divmod(together, max(work.heads, 1))
    return batch, head, row, items * batch + heads * head, heads


def _kernel(problem: RotaryProblem, device: Device, pairs: int, wide: bool, split: bool, together: int, long: bool) -> Kernel:
    x, cos, sin = problem.inputs[-3:]
    element, cosine, sine = (TYPES[s.dtype] for s in (x, cos, sin))
    blocks = 3 if split else _BLOCKS.get(device.capability or (0, 0), 3)
    turned = problem.outputs[0] is not None
    config = RotaryConfig(element, cosine, sine, problem.interleaved, wide, turned, split, long, pairs, _BATCH, together, _THREADS, blocks)
    said = {
        "interleaved": problem.interleaved,
        "narrow": not wide,
        "parts": split,
        "long": long,
        "alone": together == 1,
        "tables": not turned,
    }
    tables = "".join(f"_{SHORT[t.dtype]}" for t in (cos, sin)) if {cos.dtype, sin.dtype} != {x.dtype} else ""
    return Kernel(
        "attention/rotary_backward.cu",
        f"{'_'.join(['rotary_backward', *(w for w, on in said.items() if on)])}_{SHORT[x.dtype]}x{pairs}{tables}",
        config,
    )


def _results(problem: RotaryProblem) -> list[Any]:
    """The gradients of x, cos and sin as launch arguments."""
    return pointers(problem)[1]


def _part_places(problem: RotaryProblem) -> tuple[Array, Array]:
    scratch = pointers(problem)[2]
    return Array(scratch), Array(scratch, _part_bytes(problem))


def _target(problem: RotaryProblem) -> Any:
    """Where the turned features are written."""
    of_x = _results(problem)[0]
    return Array(pointers(problem)[2], _sum_bytes(problem)) if scattered(problem) and of_x != NOTHING else of_x


def _pointers(problem: RotaryProblem, split: bool) -> tuple[Array | int, ...]:
    """What turns, x, the tables, the result, the gradients of the tables, and the parts of these."""
    parts = _part_places(problem) if split else (NOTHING, NOTHING)
    return *map(Array, range(4)), _target(problem), *_results(problem)[1:], *parts
