"""Attention over whole arrays: blocks of queries and keys with an online softmax, by the matrix micro-kernel. Imports Numba.

Scores stand transposed, with a tile of queries in the vector lanes and keys one below the other: the softmax of a query runs down a
lane, and no sum across a vector is ever taken. Keys and values are read where they lie. One query alone (decoding) has no use
for that: there each key's score is a sum along the row, and one pass reads keys and values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.attention_blocks import Reach
from dnnarray._cpu.attention_dense import bhsd
from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In4, Integers1, Integers2, Out2, Out3, Out4, device, driver, kernel
from dnnarray._cpu.compiled.lanes import multiply, raise_top, settle, weigh
from dnnarray._cpu.compiled.memory import address, aligned
from dnnarray._cpu.compiled.scalar import exp
from dnnarray._cpu.compiled.tile import BYTES, ROWS, VECTORS, apart, copy_vector, lanes, read, routine, tile, write, write_word
from dnnarray._problems.attention import AttentionProblem

_KEYS = 128  # of a block: its scores and values stay in the first two caches
_WORK = 16  # multiply-adds of a light operation

# Where the kernels find their numbers.
_BATCH, _HEADS, _GROUP, _QUERIES, _KEY_COUNT, _D, _DV, _WIDTH, _ITEM, _PARTS = range(10)
# Byte strides over batch, head and row; elements of a row lie side by side.
_Q, _K, _V, _Y, _G = range(0, 15, 3)


# --- pieces of both passes --------------------------------------------------------------------------------------------


@device
def _transpose(like, source, step, rows, columns, target, width, item, scale):
    """Rows of a few queries, side by side in the lanes: target[column][query]; 0 in the lanes left over."""
    for d in range(columns):
        for j in range(width):
            write(like, target + (d * width + j) * item, read(like, source + j * step + d * item) * scale if j < rows else like)


@device
def _product(like, rows, a, a_row, a_step, b, steps, count, c, add):
    """c = a b in tiles, both b and c a tile wide; the rows of b stand where the table `steps` says."""
    columns = VECTORS * BYTES
    for row in range(0, rows, ROWS):
        tile(like, min(ROWS, rows - row), a + row * a_row, a_row, a_step, b, steps, count, c + row * columns, columns, add)


@device
def _steps_table(table, count, step):
    for i in range(count):
        write_word(table + i * 8, i * step)


@device
def _hide(scores, key, first, last):
    """-infinity where a query (in a lane) does not see a key (a row, the first one is `key`)."""
    nothing = scores.dtype.type(-np.inf)
    for j in range(len(first)):
        for i in range(min(len(scores), max(first[j] - key, 0))):
            scores[i, j] = nothing
        for i in range(max(last[j] + 1 - key, 0), len(scores)):
            scores[i, j] = nothing


@device
def _limits(reach_first, reach_last, b, i, count, keys, first, last):
    """What the queries of a tile see; lanes without a query see nothing. Gives the range of keys that any of them sees and whether all see all of it."""
    low, high, common_low, common_high = keys, 0, 0, keys
    for j in range(len(first)):
        first[j], last[j] = 0, -1
        if j < count:
            first[j], last[j] = 0, keys - 1
            if len(reach_first):
                row = min(b, len(reach_first) - 1)
                first[j], last[j] = reach_first[row, i + j], reach_last[row, i + j]
            low, high = min(low, first[j]), max(high, last[j] + 1)
            common_low, common_high = max(common_low, first[j]), min(common_high, last[j] + 1)
    return low, max(high, low), common_low, common_high


# --- forward ----------------------------------------------------------------------------------------------------------


@routine
def _softmax_step(like, scores, keys, columns, top, ground, shrink, total):
    """Scores to weights exp(score - ground), added up in each lane, with the running maximum of each lane.

    `ground` is that maximum (0 where a lane has seen nothing), `shrink` what earlier sums are multiplied with; `total` is shrunk already.
    """
    apart()
    for at in range(0, columns, BYTES):
        copy_vector(like, top + at, shrink + at)
        raise_top(like, scores + at, columns, keys, top + at)
        settle(like, top + at, ground + at, shrink + at, total + at)
        weigh(like, scores + at, columns, keys, ground + at, total + at)


@device
def _scale_rows(like, rows, count, columns, factor):
    for i in range(count):
        for at in range(0, columns, BYTES):
            multiply(like, rows + i * columns + at, factor + at)


@kernel
def _forward(
    start: int, stop: int, q: int, k: int, v: int, y: int, lse: Out3, strides: Integers1, sizes: Integers1, reach_first: Integers2,
    reach_last: Integers2, scale: float, memory: Out2, place: int, table: int,
) -> None:  # fmt: skip
    item, width, d, dv = sizes[_ITEM], sizes[_WIDTH], sizes[_D], sizes[_DV]
    zero = memory.dtype.type(0)
    factor = memory.dtype.type(scale)
    blocks = (sizes[_QUERIES] + width - 1) // width
    columns = width * item
    first, last = np.empty(width, np.int64), np.empty(width, np.int64)
    for part in range(start, stop):
        own, base = memory[part], place + part * memory.shape[1] * item
        scores = own[: _KEYS * width].reshape((_KEYS, width))
        sums = own[_KEYS * width : (_KEYS + dv) * width].reshape((dv, width))
        queries = base + (_KEYS + dv) * width * item
        rest = own[(_KEYS + dv + d) * width :]
        top, total = rest[:width], rest[3 * width : 4 * width]
        lane = queries + d * columns
        steps = table + part * max(_KEYS, d) * 8
        _steps_table(steps, max(_KEYS, d), columns)
        for task in range(part, sizes[_BATCH] * sizes[_HEADS] * blocks, sizes[_PARTS]):
            at, b = task % blocks * width, task // blocks // sizes[_HEADS]
            h = task // blocks % sizes[_HEADS]
            kv = h // sizes[_GROUP]
            count = min(width, sizes[_QUERIES] - at)
            source = q + b * strides[_Q] + h * strides[_Q + 1] + at * strides[_Q + 2]
            _transpose(zero, source, strides[_Q + 2], count, d, queries, width, item, factor)
            low, high, common_low, common_high = _limits(reach_first, reach_last, b, at, count, sizes[_KEY_COUNT], first, last)
            sums[:] = zero
            top[:] = -np.inf
            total[:] = zero
            for j in range(low, high, _KEYS):
                keys = min(_KEYS, high - j)
                some = scores[:keys]
                rows = k + b * strides[_K] + kv * strides[_K + 1] + j * strides[_K + 2]
                values = v + b * strides[_V] + kv * strides[_V + 1] + j * strides[_V + 2]
                _product(zero, keys, rows, strides[_K + 2], item, queries, steps, d, base, False)
                if j < common_low or j + keys > common_high:
                    _hide(some, j, first, last)
                _softmax_step(zero, base, keys, columns, lane, lane + columns, lane + 2 * columns, lane + 3 * columns)
                _scale_rows(zero, base + _KEYS * columns, dv, columns, lane + 2 * columns)
                _product(zero, dv, values, item, strides[_V + 2], base, steps, keys, base + _KEYS * columns, True)
            target = y + b * strides[_Y] + h * strides[_Y + 1] + at * strides[_Y + 2]
            for j in range(count):
                divisor = total[j] if total[j] != zero else memory.dtype.type(1)
                for i in range(dv):
                    write(zero, target + j * strides[_Y + 2] + i * item, sums[i, j] / divisor)
                if lse.size:
                    lse[b, h, at + j] = top[j] + math.log(total[j]) if total[j] > zero or total[j] != total[j] else -np.inf


# --- one query --------------------------------------------------------------------------------------------------------


@device(sums=True)
def _dot(a, b):
    total = a.dtype.type(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@device
def _add_scaled(total, row, factor):
    for i in range(len(total)):
        total[i] += row[i] * factor


@device(sums=True)
def _weights(scores, ground):
    """Scores to weights; gives their sum."""
    total = scores.dtype.type(0)
    for i in range(len(scores)):
        weight = exp(scores[i] - ground)
        scores[i] = weight
        total += weight
    return total


@kernel
def _few_queries(
    start: int, stop: int, q: In4, k: In4, v: In4, y: Out4, lse: Out3, sizes: Integers1, reach_first: Integers2, reach_last: Integers2,
    scale: float, memory: Out2,
) -> None:  # fmt: skip
    factor = memory.dtype.type(scale)
    for part in range(start, stop):
        own, row = memory[part, : sizes[_KEY_COUNT]], memory[part, sizes[_KEY_COUNT] :]
        for task in range(part, sizes[_BATCH] * sizes[_HEADS] * sizes[_QUERIES], sizes[_PARTS]):
            i, b, h = task % sizes[_QUERIES], task // sizes[_QUERIES] // sizes[_HEADS], task // sizes[_QUERIES] % sizes[_HEADS]
            kv = h // sizes[_GROUP]
            low, high = 0, sizes[_KEY_COUNT]
            if len(reach_first):
                at = min(b, len(reach_first) - 1)
                low, high = reach_first[at, i], max(reach_last[at, i] + 1, reach_first[at, i])
            scores, keys, values, out = own[: high - low], k[b, kv, low:high], v[b, kv, low:high], y[b, h, i]
            query, scaled = q[b, h, i], row[: sizes[_D]]
            for d in range(len(scaled)):
                scaled[d] = query[d] * factor
            top = memory.dtype.type(-np.inf)
            for j in range(len(scores)):
                score = _dot(scaled, keys[j])
                scores[j] = score
                top = top if top > score else score
            ground = top if top != memory.dtype.type(-np.inf) else memory.dtype.type(0)
            total = _weights(scores, ground)
            out[:] = memory.dtype.type(0)
            for j in range(len(scores)):
                _add_scaled(out, values[j], scores[j])
            divisor = total if total != memory.dtype.type(0) else memory.dtype.type(1)
            for d in range(len(out)):
                out[d] /= divisor
            if lse.size:
                lse[b, h, i] = ground + math.log(total) if total != memory.dtype.type(0) else -np.inf


# --- drivers ----------------------------------------------------------------------------------------------------------


def _sizes(problem: AttentionProblem, itemsize: int, parts: int) -> np.ndarray:
    s = problem.sizes
    group = s.heads // s.kv_heads if s.kv_heads else 1
    width = VECTORS * lanes(itemsize)
    return np.array([s.batch, s.heads, group, s.queries, s.keys, s.width, s.value_width, width, itemsize, parts])


def _reach(problem: AttentionProblem, offset: Any) -> tuple[np.ndarray, np.ndarray]:
    """First and last key of each query, one row for all sequences or one for each; empty where every query sees every key."""
    s = problem.sizes
    reach = Reach.of(problem.rule, s.queries, s.keys, offset)
    if reach.first is None or reach.last is None:
        return _NOTHING, _NOTHING
    return np.ascontiguousarray(reach.first), np.ascontiguousarray(reach.last)


_NOTHING = np.empty((0, 0), np.int64)


def _rows(array: np.ndarray) -> np.ndarray:
    """The array itself where the elements of a row lie side by side, else a copy."""
    return array if array.flags.aligned and (array.strides[-1] == array.itemsize or array.shape[-1] == 1) else np.array(array, order="C")


def _log_sums(problem: AttentionProblem, lse: Any, dtype: np.dtype) -> np.ndarray:
    if lse is None:
        return np.empty((0, 0, 0), dtype)
    return lse if lse.flags.carray else np.empty(lse.shape, dtype)


@driver(_forward, _few_queries)
def attention(problem: AttentionProblem, outputs: Any, scratch: Any, *arrays: Any, seed: Any, offset: Any) -> None:
    s, y = problem.sizes, bhsd(outputs[0], problem.layout)
    q, k, v = (bhsd(a, problem.layout) for a in arrays[:3])
    if not y.size:
        if outputs[1] is not None:
            outputs[1][...] = -np.inf
        return
    lse, reach = _log_sums(problem, outputs[1], y.dtype), _reach(problem, arrays[5])
    work = s.batch * s.heads * s.queries * s.keys * (s.width + s.value_width) // _WORK
    if s.queries <= _FEW:
        _decode(problem, q, k, v, y, lse, reach, work)
    else:
        _attend(problem, q, k, v, y, lse, reach, work)
    if outputs[1] is not None and lse is not outputs[1]:
        outputs[1][...] = lse


_FEW = 2  # queries that would leave most lanes empty


def _decode(problem: AttentionProblem, q: Any, k: Any, v: Any, y: Any, lse: np.ndarray, reach: Any, work: int) -> None:
    s, parts = problem.sizes, threads.cores()
    memory = np.empty((parts, s.keys + s.width), y.dtype)
    with Written((y,)) as (result,):
        _few_queries(
            parts,
            taken(q),
            taken(k),
            taken(v),
            result,
            lse,
            _sizes(problem, y.itemsize, parts),
            *reach,
            problem.rule.scale,
            memory,
            work=work,
        )


def _attend(problem: AttentionProblem, q: Any, k: Any, v: Any, y: Any, lse: np.ndarray, reach: Any, work: int) -> None:
    s, parts = problem.sizes, threads.cores()
    q, k, v = map(_rows, (q, k, v))
    sizes = _sizes(problem, y.itemsize, parts)
    memory = aligned(parts, (_KEYS + s.width + s.value_width + 4) * int(sizes[_WIDTH]), y.dtype)
    table = np.empty(parts * max(_KEYS, s.width), np.int64)
    strides = np.array([n for a in (q, k, v, y) for n in a.strides[:3]], np.int64)
    addresses = [address(a) for a in (q, k, v, y)]
    _forward(parts, *addresses, lse, strides, sizes, *reach, problem.rule.scale, memory, address(memory), address(table), work=work)
