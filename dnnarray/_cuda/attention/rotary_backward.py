"""The algorithm ``rotary_backward``: the gradients of the rotary embedding with those of its tables.

Some threads turn the same pairs of features in all heads, with their row of the tables in registers.
"""

from __future__ import annotations

from typing import Annotated, Any

from dnnarray._cuda.attention.pairs import LONG, copied, length, order_of, scattered, types
from dnnarray._cuda.attention.rotary import Cosines, Sines
from dnnarray._cuda.attention.sum_parts import sum_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, OutArithmetic, Pointer
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of, divisor, round_up
from dnnarray._cuda.core.plan import SHORT, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.attention_rotary import RotaryProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
# Blocks for a multiprocessor at least; three on other cards, and for parts of the sums: more would not have the
# registers for what is under way.
_BLOCKS = {(9, 0): 4}
_TOGETHER = 4  # threads that share a place in the tables, where it has as many heads
_CHUNK = 4  # heads that a part of the sums is of at least
_BATCH = 4  # heads of a thread with their loads in flight at once
_GOAL = 4  # blocks for each multiprocessor before the sums of the gradient are split no further
_MOST_PARTS = 512
_LINE = 256  # bytes that parts of the scratch memory start at multiples of


@frozen
class RotaryBackwardConfig(Config):
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


@frozen(kw_only=True)
class RotaryBackwardArguments(Arguments, restrict=("cosines", "sines", "y")):
    """What ``kernels/attention/rotary_backward.cu`` is called with: the gradients of the tables, or the parts of their
    sums."""

    cosines: Cosines
    sines: Sines
    y: Out
    grad: In
    x: In
    grad_cosines: Annotated[Array | None, Pointer("Config::Cosine", False)]
    grad_sines: Annotated[Array | None, Pointer("Config::Sine", False)]
    cosine_parts: OutArithmetic
    sine_parts: OutArithmetic
    table_rows: Extent
    pairs: Extent
    turning: Extent
    items: Extent
    by_items: Extent
    sequence: Extent
    by_sequence: Extent
    own_tables: Extent
    heads: Extent
    by_heads: Extent
    rows: Extent
    chunk: Extent
    batch_stride: Extent
    head_stride: Extent
    row_stride: Extent
    step: Extent
    heads_on: Extent


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
        return cls(
            heads,
            sequence,
            batch * sequence if own else sequence,
            heads if own else batch * heads,
            cos.shape[-1],
            x.shape[3],
        )

    @property
    def most_parts(self) -> int:
        """No more parts than this on any card."""
        return max(min(blocks_of(self.rows, _CHUNK), _MOST_PARTS), 1)

    @property
    def part_size(self) -> int:
        """Elements of the sums of one table for all parts."""
        return self.most_parts * self.table_rows * self.pairs

    def chunks(self, blocks: int, units: int) -> tuple[int, int]:
        """Rows of x for one thread of the gradient, and how many such parts there are: as few as still fill the
        card."""
        parts = max(min(_GOAL * units // blocks, blocks_of(self.rows, _CHUNK), _MOST_PARTS), 1)
        chunk = max(blocks_of(self.rows, parts), 1)
        return chunk, max(blocks_of(self.rows, chunk), 1)


def rejects(problem: RotaryProblem, device: Device) -> str | None:
    return None if any(problem.outputs[1:]) else "that of x alone, which is a rotation"


def _splits(problem: RotaryProblem) -> bool:
    """Whether there is scratch memory for parts of the sums."""
    work = _Work.of(problem)
    return any(problem.outputs[1:]) and work.most_parts > 1 and work.part_size > 0


def workspace(problem: RotaryProblem) -> int:
    """Scratch for partial sums of both tables, and for a result that is to be brought to another order."""
    x, work = problem.inputs[-3], _Work.of(problem)
    sums = 2 * round_up(work.part_size * arithmetic_of(x.dtype).itemsize, _LINE) if _splits(problem) else 0
    return sums + (x.nbytes if scattered(problem) and problem.outputs[0] is not None else 0)


def run(problem: RotaryProblem, device: Device, aligned: bool) -> Program:
    """One launch, and the second stage of its sums; where the result lies otherwise than it is written, one that
    reorders it."""
    x, cos, sin = problem.inputs[-3:]
    work, order, y = _Work.of(problem), order_of(x), problem.outputs[0]
    if work.table_rows * work.width == 0:
        return Program(())
    planner, arithmetic = Planner(problem, aligned), arithmetic_of(x.dtype)
    parts = [planner.take(arithmetic, work.part_size).array for _ in range(2)] if _splits(problem) else []
    target = planner.take(x.dtype, x.size).array if scattered(problem) and y is not None else planner.outputs[0]
    count = _turn(problem, device, planner, target, parts)
    size = work.table_rows * work.pairs
    if count > 1 and size:
        wanted = [s for s in zip(parts, planner.outputs[1:], (cos.dtype, sin.dtype), strict=True) if s[1] is not None]
        for dtype in dict.fromkeys(dtype for *_, dtype in wanted):
            sums = [(part, result) for part, result, own in wanted if own == dtype]
            planner.add(sum_parts(sums, size, count, dtype, arithmetic))
    if scattered(problem) and y is not None and y.size:
        planner.add(reorder(y, order, target, planner.outputs[0]))
    return planner.program((order, order, (0, 1, 2)[: cos.ndim], (0, 1, 2)[: sin.ndim]))


def _turn(problem: RotaryProblem, device: Device, planner: Planner, target: Array | None, places: list[Array]) -> int:
    """Plan the launch that turns, and come back with the number of parts that its sums have, in `places` where there
    are several."""
    work, (pairs, wide) = _Work.of(problem), length(problem, planner.aligned)
    items = work.pairs // pairs + (work.width - 2 * work.pairs) // copied(problem, planner.aligned)
    together = _TOGETHER if work.rows >= _TOGETHER else 1
    blocks = blocks_of(work.table_rows * items * together, _THREADS)
    chunk, parts = work.chunks(blocks, device.units)
    split, long = parts > 1, max(work.table_rows * items, work.rows) + _THREADS >= LONG
    (grad, x, cosines, sines), (_, grad_cosines, grad_sines) = planner.inputs, planner.outputs
    cosine_parts, sine_parts = places if split and places else (None, None)
    arguments = RotaryBackwardArguments(
        cosines=cosines,
        sines=sines,
        y=target,
        grad=grad,
        x=x,
        grad_cosines=grad_cosines,
        grad_sines=grad_sines,
        cosine_parts=cosine_parts,
        sine_parts=sine_parts,
        table_rows=work.table_rows,
        pairs=work.pairs,
        turning=work.pairs // pairs,
        rows=work.rows,
        chunk=chunk,
        own_tables=int(problem.own_tables),
        **_divisors(work, items, long),
        **_steps(problem, work, together),
    )
    kernel = _kernel(problem, device, pairs, wide, split, together, long)
    planner.launch(kernel, (blocks, parts, 1), _THREADS, arguments)
    return parts


def _divisors(work: _Work, items: int, long: bool) -> dict[str, int]:
    """What indices are divided by, each with what a Divisor takes."""
    found = {"items": items, "sequence": work.sequence, "heads": max(work.heads, 1)}
    return found | {f"by_{name}": 0 if long else divisor(n) for name, n in found.items()}


def _steps(problem: RotaryProblem, work: _Work, together: int) -> dict[str, int]:
    """Elements from one batch item, head and row to the next, and of so many heads together; how many heads these are
    within a batch item."""
    shape, order = problem.inputs[-3].shape, order_of(problem.inputs[-3])
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    batch, head, row = (strides[problem.layout.index(axis)] for axis in "BHS")
    items, heads = divmod(together, max(work.heads, 1))
    return {
        "batch_stride": batch,
        "head_stride": head,
        "row_stride": row,
        "step": items * batch + heads * head,
        "heads_on": heads,
    }


def _kernel(
    problem: RotaryProblem, device: Device, pairs: int, wide: bool, split: bool, together: int, long: bool
) -> Kernel:
    x, cos, sin = problem.inputs[-3:]
    blocks = 3 if split else _BLOCKS.get(device.capability or (0, 0), 3)
    turned = problem.outputs[0] is not None
    settings: tuple[Any, ...] = (
        problem.interleaved,
        wide,
        turned,
        split,
        long,
        pairs,
        _BATCH,
        together,
        _THREADS,
        blocks,
    )
    said = {
        "interleaved": problem.interleaved,
        "narrow": not wide,
        "parts": split,
        "long": long,
        "alone": together == 1,
        "tables": not turned,
    }
    tables = "".join(f"_{SHORT[t.dtype]}" for t in (cos, sin)) if {cos.dtype, sin.dtype} != {x.dtype} else ""
    name = f"{'_'.join(['rotary_backward', *(w for w, on in said.items() if on)])}_{SHORT[x.dtype]}x{pairs}{tables}"
    return Kernel("attention/rotary_backward.cu", name, RotaryBackwardConfig(*types(problem), *settings))
