"""Attention over whole arrays: blocks of queries and keys with an online softmax, by the matrix micro-kernel. Imports
Numba.

Scores stand transposed, with a tile of queries in the vector lanes and keys one below the other: the softmax of a query
runs down a lane, and no sum across a vector is ever taken. Keys and values are read where they lie. One query alone
(decoding) has no use for that: there each key's score is a sum along the row, and one pass reads keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.attention.dense import bhsd
from dnnarray._cpu.compiled.attention.pieces import (
    BATCH,
    DV,
    GROUP,
    HEADS,
    ITEM,
    KEY_COUNT,
    PARTS,
    QUERIES,
    WIDTH,
    D,
    dense_rows,
    hide,
    limits,
    product,
    reach_of,
    sizes_of,
    steps_table,
    transpose,
)
from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import (
    In4,
    Integers1,
    Integers2,
    Out2,
    Out3,
    Out4,
    OutDoubles2,
    device,
    driver,
    kernel,
    wide,
)
from dnnarray._cpu.compiled.lanes import exponentials, multiply, raise_top, settle
from dnnarray._cpu.compiled.memory import address, aligned
from dnnarray._cpu.compiled.scalar import exp, fma
from dnnarray._cpu.compiled.tile import BYTES, apart, copy_vector, routine, write
from dnnarray._problems.attention import AttentionProblem

KEYS = 128  # of a block: its scores and values stay in the first two caches
_WORK = 16  # multiply-adds of a light operation
_RUN = 1024  # weights of a sum in the dtype, in the lanes of vectors
_CARRIED = 32 * KEYS  # keys whose sums are float64 from then on
_CHAIN = 64  # rows of keys or values that a single query adds up in a row

# Byte strides over batch, head and row; elements of a row lie side by side.
Q, K, V, Y = range(0, 12, 3)


# --- forward ----------------------------------------------------------------------------------------------------------


@device
def log_sum(ground, total):
    """The logarithm of exp(ground) total, rounded once: all weights of a query are off by what it is off by."""
    return ground + math.log(np.float64(total)) if total != total or total > 0 else -np.inf


@routine
def _softmax_step(like, scores, keys, columns, top, ground, shrink, total):
    """Scores to weights exp(score - ground), added up in each lane, with the running maximum of each lane.

    `ground` is that maximum (0 where a lane has seen nothing), `shrink` what earlier sums are multiplied with; `total`
    is shrunk already."""
    apart()
    for at in range(0, columns, BYTES):
        copy_vector(like, top + at, shrink + at)
        raise_top(like, scores + at, columns, keys, top + at)
        settle(like, top + at, ground + at, shrink + at, total + at)
        exponentials(like, scores + at, columns, keys, ground + at, total + at)


@device
def _carry(sums, total, top, whole, ground):
    """The sums of some keys, relative to the maximum so far, go to those of all keys before, in float64; `ground` is
    the maximum that these are relative to.

    The last row of `whole` is that of the totals.
    """
    for j in range(len(top)):
        now = np.float64(top[j])
        shrink = math.exp(ground[j] - now) if ground[j] != -np.inf else 0.0
        for i in range(len(sums)):
            whole[i, j] = whole[i, j] * shrink + sums[i, j]
        whole[-1, j] = whole[-1, j] * shrink + total[j]
        ground[j] = now
    sums[:] = 0
    total[:] = 0


@device
def _scale_rows(like, rows, count, columns, factor):
    for i in range(count):
        for at in range(0, columns, BYTES):
            multiply(like, rows + i * columns + at, factor + at)


@kernel
def _forward(
    start: int,
    stop: int,
    q: int,
    k: int,
    v: int,
    y: int,
    lse: Out3,
    strides: Integers1,
    sizes: Integers1,
    reach_first: Integers2,
    reach_last: Integers2,
    scale: float,
    memory: Out2,
    place: int,
    table: int,
) -> None:
    item, width, d, dv = sizes[ITEM], sizes[WIDTH], sizes[D], sizes[DV]
    zero = memory.dtype.type(0)
    factor = memory.dtype.type(scale)
    blocks = (sizes[QUERIES] + width - 1) // width
    columns = width * item
    first, last = np.empty(width, np.int64), np.empty(width, np.int64)
    whole, ground = np.empty((dv + 1, width)), np.empty(width)
    for part in range(start, stop):
        own, base = memory[part], place + part * memory.shape[1] * item
        scores = own[: KEYS * width].reshape((KEYS, width))
        sums = own[KEYS * width : (KEYS + dv) * width].reshape((dv, width))
        queries = base + (KEYS + dv) * width * item
        rest = own[(KEYS + dv + d) * width :]
        top, total = rest[:width], rest[3 * width : 4 * width]
        lane = queries + d * columns
        steps = table + part * max(KEYS, d) * 8
        steps_table(steps, max(KEYS, d), columns)
        for task in range(part, sizes[BATCH] * sizes[HEADS] * blocks, sizes[PARTS]):
            at, b = task % blocks * width, task // blocks // sizes[HEADS]
            h = task // blocks % sizes[HEADS]
            kv = h // sizes[GROUP]
            count = min(width, sizes[QUERIES] - at)
            source = q + b * strides[Q] + h * strides[Q + 1] + at * strides[Q + 2]
            transpose(zero, source, strides[Q + 2], count, d, queries, width, item, factor)
            low, high, common_low, common_high = limits(
                reach_first, reach_last, b, at, count, sizes[KEY_COUNT], first, last
            )
            sums[:] = zero
            top[:] = -np.inf
            total[:] = zero
            whole[:] = 0
            ground[:] = -np.inf
            for j in range(low, high, KEYS):
                if (j - low) % _CARRIED == 0:
                    _carry(sums, total, top, whole, ground)
                keys = min(KEYS, high - j)
                some = scores[:keys]
                rows = k + b * strides[K] + kv * strides[K + 1] + j * strides[K + 2]
                values = v + b * strides[V] + kv * strides[V + 1] + j * strides[V + 2]
                product(zero, keys, rows, strides[K + 2], item, queries, steps, d, base, False)
                if j < common_low or j + keys > common_high:
                    hide(some, j, first, last)
                _softmax_step(zero, base, keys, columns, lane, lane + columns, lane + 2 * columns, lane + 3 * columns)
                _scale_rows(zero, base + KEYS * columns, dv, columns, lane + 2 * columns)
                product(zero, dv, values, item, strides[V + 2], base, steps, keys, base + KEYS * columns, True)
            _carry(sums, total, top, whole, ground)
            target = y + b * strides[Y] + h * strides[Y + 1] + at * strides[Y + 2]
            for j in range(count):
                divisor = whole[dv, j] if whole[dv, j] != 0.0 else 1.0
                for i in range(dv):
                    write(zero, target + j * strides[Y + 2] + i * item, memory.dtype.type(whole[i, j] / divisor))
                if lse.size:
                    lse[b, h, at + j] = log_sum(top[j], whole[dv, j])


# --- one query --------------------------------------------------------------------------------------------------------


@device(sums=True)
def dot(a, b):
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@device
def add_scaled(total, row, factor):
    for i in range(len(total)):
        total[i] = fma(row[i], factor, total[i])


@device(counted=False)
def add_four(total, rows, weights):
    """`add_scaled` of four rows one after the other, while the sums are in registers."""
    a, b, c, d = rows[0], rows[1], rows[2], rows[3]
    p, q, r, s = weights[0], weights[1], weights[2], weights[3]
    for i in range(len(total)):
        total[i] = fma(d[i], s, fma(c[i], r, fma(b[i], q, fma(a[i], p, total[i]))))


@device(counted=False)
def weighted_sum(rows, weights, part, total):
    """The sum of all rows times their weights in `total`, which is float64, `_CHAIN` of them added up by themselves in
    `part`."""
    total[:] = 0.0
    for first in range(0, len(rows), _CHAIN):
        part[:] = part.dtype.type(0)
        last = min(first + _CHAIN, len(rows))
        fours = last - (last - first) % 4
        for j in range(first, fours, 4):
            add_four(part, rows[j : j + 4], weights[j : j + 4])
        for j in range(fours, last):
            add_scaled(part, rows[j], weights[j])
        for i in range(len(total)):
            total[i] += part[i]


@device
def scores_of(query, factor, keys, scaled, scores):
    """Scores of all keys, with the query times `factor` in `scaled`; gives the largest, or 0 where there is none."""
    nothing = scores.dtype.type(-np.inf)
    for d in range(len(scaled)):
        scaled[d] = query[d] * factor
    top = nothing
    for j in range(len(scores)):
        score = dot(scaled, keys[j])
        scores[j] = score
        top = top if top > score else score
    return top if top != nothing else scores.dtype.type(0)


@device(sums=True, counted=False)
def exponentials_of_row(scores, ground):
    """Scores to weights; gives their sum, as `sums.row_sum` does."""
    total = 0.0
    for first in range(0, len(scores), _RUN):
        run = scores[first : first + _RUN]
        part = scores.dtype.type(0)
        for i in range(len(run)):
            weight = exp(run[i] - ground)
            run[i] = weight
            part += weight
        total += part
    return total


@kernel(counted=False)
def _few_queries(
    start: int,
    stop: int,
    q: In4,
    k: In4,
    v: In4,
    y: Out4,
    lse: Out3,
    sizes: Integers1,
    reach_first: Integers2,
    reach_last: Integers2,
    scale: float,
    memory: Out2,
    doubles: OutDoubles2,
) -> None:
    wide()
    factor = memory.dtype.type(scale)
    for part in range(start, stop):
        own, row = memory[part, : sizes[KEY_COUNT]], memory[part, sizes[KEY_COUNT] :]
        for task in range(part, sizes[BATCH] * sizes[HEADS] * sizes[QUERIES], sizes[PARTS]):
            i, b, h = (
                task % sizes[QUERIES],
                task // sizes[QUERIES] // sizes[HEADS],
                task // sizes[QUERIES] % sizes[HEADS],
            )
            kv = h // sizes[GROUP]
            low, high = 0, sizes[KEY_COUNT]
            if len(reach_first):
                at = min(b, len(reach_first) - 1)
                low, high = reach_first[at, i], max(reach_last[at, i] + 1, reach_first[at, i])
            scores, keys, values, out = own[: high - low], k[b, kv, low:high], v[b, kv, low:high], y[b, h, i]
            scaled, part_sum = row[: sizes[D]], row[sizes[D] :]
            ground = scores_of(q[b, h, i], factor, keys, scaled, scores)
            total = exponentials_of_row(scores, ground)
            sums = doubles[part]
            weighted_sum(values, scores, part_sum, sums)
            divisor = total if total != 0.0 else 1.0
            for d in range(len(out)):
                out[d] = sums[d] / divisor
            if lse.size:
                lse[b, h, i] = log_sum(ground, total)


# --- drivers ----------------------------------------------------------------------------------------------------------


def log_sums_of(problem: AttentionProblem, lse: Any, dtype: np.dtype) -> np.ndarray:
    """Where kernels put them: `lse` itself, memory beside it, or nothing."""
    if lse is None:
        return np.empty((0, 0, 0), dtype)
    return lse if lse.flags.carray else np.empty(lse.shape, dtype)


@driver(_forward, _few_queries)
def attention(problem: AttentionProblem, outputs: Any, scratch: Any, *arrays: Any, seed: Any, offset: Any) -> None:
    q, k, v = (bhsd(a, problem.layout) for a in arrays[:3])
    attend(problem, q, k, v, bhsd(outputs[0], problem.layout), outputs[1], arrays[5])


def attend(problem: AttentionProblem, q: Any, k: Any, v: Any, y: Any, log_sums: Any, causal_offset: Any) -> None:
    """Write y and, unless it is None, the log-sum-exp of each query; all arrays with the heads before the sequence."""
    s = problem.sizes
    if not y.size:
        if log_sums is not None:
            log_sums[...] = -np.inf
        return
    lse, reach = log_sums_of(problem, log_sums, y.dtype), reach_of(problem, causal_offset)
    if s.queries <= FEW:
        with Written((y,)) as (result,):
            _of_few(problem, reach, y.dtype)(*map(taken, (q, k, v)), result, lse)
    else:
        _tiles(problem, q, k, v, y, lse, reach, _work_of(problem))
    if log_sums is not None and lse is not log_sums:
        log_sums[...] = lse


FEW = 2  # queries that would leave most lanes empty


def _work_of(problem: AttentionProblem) -> int:
    s = problem.sizes
    return s.batch * s.heads * s.queries * s.keys * (s.width + s.value_width) // _WORK


def _of_few(problem: AttentionProblem, reach: Any, dtype: np.dtype) -> Callable[..., None]:
    """``run(q, k, v, y, lse)`` for one query or two, on contiguous arrays."""
    s, parts, work = problem.sizes, threads.cores(), _work_of(problem)
    sizes = sizes_of(problem, dtype.itemsize, parts)

    def run(q: Any, k: Any, v: Any, y: Any, lse: Any) -> None:
        memory, doubles = np.empty((parts, s.keys + s.width + s.value_width), dtype), np.empty((parts, s.value_width))
        _few_queries(parts, q, k, v, y, lse, sizes, *reach, problem.rule.scale, memory, doubles, work=work)

    return run


def _direct(problem: AttentionProblem) -> Callable[..., None] | None:
    """As that of `planned`: one query waits for Python's steps a fifth as long as for its keys and values. None where
    there are more, or arrays lie in other ways."""
    arrays = (*problem.inputs[:3], problem.result)
    lies = problem.layout == "BHSD" and all(spec is not None and spec.strides is None for spec in arrays)
    if problem.sizes.queries > FEW or problem.inputs[5] is not None or not lies or not problem.result.size:
        return None
    dtype = problem.result.dtype
    few, nothing = _of_few(problem, reach_of(problem, None), dtype), log_sums_of(problem, None, dtype)

    def run(q: Any, k: Any, v: Any, *others: Any) -> None:
        y, log_sums = others[-2:]
        few(q, k, v, y, nothing if log_sums is None else log_sums)

    return run


attention.direct = _direct


def _tiles(problem: AttentionProblem, q: Any, k: Any, v: Any, y: Any, lse: np.ndarray, reach: Any, work: int) -> None:
    s, parts = problem.sizes, threads.cores()
    q, k, v, result = map(dense_rows, (q, k, v, y))
    sizes = sizes_of(problem, y.itemsize, parts)
    memory = aligned(parts, (KEYS + s.width + s.value_width + 4) * int(sizes[WIDTH]), y.dtype)
    table = np.empty(parts * max(KEYS, s.width), np.int64)
    strides = np.array([n for a in (q, k, v, result) for n in a.strides[:3]], np.int64)
    addresses = [address(a) for a in (q, k, v, result)]
    _forward(
        parts,
        *addresses,
        lse,
        strides,
        sizes,
        *reach,
        problem.rule.scale,
        memory,
        address(memory),
        address(table),
        work=work,
    )
    if result is not y:  # the rows of y are not dense
        y[...] = result
