"""`split_tiled`: attention with both of its products on the matrix unit. Imports Numba.

The pieces of a head's keys and values are made once for all queries of all heads that share them. Scores stand
transposed as in `tiled`, 64 queries in the lanes and 64 or 128 keys at a time, in a pipeline of three steps: while the
unit multiplies queries by the keys of the next block and weights by the values of the one before, the vectors make the
weights of this one (`split_weigh`). The unit adds up the products with the values of a few blocks; they are added to
the sums by vectors, before these grow long, and where sums must shrink because the maximum has risen.

Numbers from 2^50 on or, 0 aside, below 2^-51 are told and the whole call goes by the kernels of `tiled`. Of all others
no sum of products can overflow, and what the unit takes for 0, below 2^-126, is nothing beside a score's or a value's
own size. What is hidden becomes -infinity after the product and is none of these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.attention.dense import bhsd
from dnnarray._cpu.compiled.attention import tiled as attention
from dnnarray._cpu.compiled.attention.packing import (
    BESIDE_AT,
    BLOCKS,
    FACTOR_AT,
    HELD,
    ITEM,
    KEY_BLOCKS,
    MORE_AT,
    NUMBERS_AT,
    PART,
    QUERIES_AT,
    ROWS_AT,
    SCORES_AT,
    SHARES,
    SPAN,
    STRIPS,
    SUMS_AT,
    VALUES_AT,
    WEIGHTS_AT,
    pack_head,
    pack_heads,
    pack_queries,
)
from dnnarray._cpu.compiled.attention.pieces import (
    BATCH,
    DV,
    GROUP,
    HEADS,
    KEY_COUNT,
    PARTS,
    QUERIES,
    D,
    dense_rows,
    hide,
    limits,
    reach_of,
    sizes_of,
)
from dnnarray._cpu.compiled.attention.split_weights import (
    GROUPS,
    divide,
    exponentials_of_tiles,
    fold,
    multiply_and_exponentials,
    raise_tops,
    settle_late,
)
from dnnarray._cpu.compiled.attention.tiled import Q, Y, attend, log_sum, log_sums_of
from dnnarray._cpu.compiled.conv.copies import copy, line_of
from dnnarray._cpu.compiled.kernel import Integers1, Integers2, Out2, Out3, OutIntegers1, device, driver, kernel
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.split_tile import BLOCK, DEPTH, LINE, SIDE, TILE, configure, release
from dnnarray._cpu.compiled.tile import apart, routine, turn_square
from dnnarray._problems.attention import AttentionProblem

LANES = GROUPS * SIDE  # queries of a block
# of a block, or twice as many where there are `_MANY`: longer products start less often, but waste more behind the last
# key
KEYS = 64
_MANY = 2048
_TOGETHER = (
    4  # blocks whose products with values the unit adds up before they are added to the sums: long sums round less
)
_PAIR = 2 * SIDE  # both sides of a product come in pairs of strips
_WORK = 16  # multiply-adds of a light operation

# Rows of a number for each query; two of `shrink`.
_TOP, _HEIGHT, _GROUND, _TOTAL, _BLOCK_TOTAL, _SHRINK = range(0, 6 * LANES * ITEM, LANES * ITEM)


# --- a block of queries -----------------------------------------------------------------------------------------------


@device
def _scores_at(sizes, base, turn):
    """Where the scores of a block of keys lie: they stay while the next ones are made."""
    return base + sizes[SCORES_AT] + turn % 2 * LANES * sizes[SPAN] * ITEM


@device
def _weights_at(sizes, base, turn):
    return base + sizes[WEIGHTS_AT] + turn % 2 * GROUPS * (sizes[SPAN] // DEPTH) * BLOCK


@device
def _strips(sizes, keys):
    """Of a block of keys, in pairs."""
    return (min(sizes[SPAN], keys) + DEPTH - 1) // DEPTH * 2


@routine
def _multiply_keys(sizes, base, held, key, strips, now, turn, folded):
    """Scores of the block of keys from `key` on, and beside them weights of the block before, of `now` strips, as many
    as fit; between them the products with values so far are added to the sums and shrink, where they are to be
    `folded`. Gives the tiles of weights that are made. `turn` is the number of the block."""
    apart()
    units, unit, deep, added = GROUPS * now, 0, sizes[BLOCKS] * BLOCK, 0 if folded else GROUPS
    scores, weights = _scores_at(sizes, base, turn - 1), _weights_at(sizes, base, turn - 1)
    ground, total = base + sizes[ROWS_AT] + _GROUND, base + sizes[ROWS_AT] + _BLOCK_TOTAL
    for strip in range(0, strips, 2):
        left, right = held + (key // SIDE + strip) * deep, base + sizes[QUERIES_AT]
        for group in range(0, GROUPS, 2):
            into = _scores_at(sizes, base, turn) + (group * strips + strip) * TILE
            unit = multiply_and_exponentials(
                left, deep, right + group * deep, deep, sizes[BLOCKS], into, TILE, strips * TILE, False,
                unit, units, now, scores, weights, ground, total,
            )  # fmt: skip
            if added < GROUPS:
                _fold(sizes, base, added, turn)
                added += 1
    for group in range(added, GROUPS):
        _fold(sizes, base, group, turn)
    return unit


@routine
def _multiply_values(sizes, base, held, key, blocks, unit, now, turn, strips, add):
    """The product of the weights of the block of keys from `key` on (so many blocks of a depth) with its values, and
    beside it the rest of the weights of the block behind it, of `now` strips; between them the maximum rises by the
    scores of the one behind that, of so many strips. `turn` is that one's number."""
    apart()
    units, across, raised = GROUPS * now, sizes[KEY_BLOCKS] * BLOCK, 0
    scores, weights = _scores_at(sizes, base, turn - 1), _weights_at(sizes, base, turn - 1)
    ground, total = base + sizes[ROWS_AT] + _GROUND, base + sizes[ROWS_AT] + _BLOCK_TOTAL
    right, step = _weights_at(sizes, base, turn), blocks * BLOCK
    for strip in range(0, sizes[STRIPS] if blocks else 0, 2):
        left = held + sizes[VALUES_AT] + strip * across + key // DEPTH * BLOCK
        for group in range(0, GROUPS, 2):
            into = base + sizes[MORE_AT] + (group * sizes[STRIPS] + strip) * TILE
            unit = multiply_and_exponentials(
                left, across, right + group * step, step, blocks, into, TILE, sizes[STRIPS] * TILE, add,
                unit, units, now, scores, weights, ground, total,
            )  # fmt: skip
            if raised < strips:
                _raise(sizes, base, strips, raised, raised + 1, turn)
                raised += 1
    exponentials_of_tiles(unit, units, now, scores, weights, ground, total)
    _raise(sizes, base, strips, raised, strips, turn)


@device
def _raise(sizes, base, strips, strip, stop, turn):
    """The maximum of each lane by the scores of some strips."""
    scores = _scores_at(sizes, base, turn)
    raise_tops(scores + strip * TILE, strips * TILE, (stop - strip) * SIDE, base + sizes[ROWS_AT] + _TOP)


@device
def _fold(sizes, base, group, turn):
    """The products with values so far to the sums of a lane group, shrunk for the second block before."""
    at = base + sizes[ROWS_AT] + _SHRINK + turn % 2 * LANES * ITEM + group * LINE
    place = group * sizes[STRIPS] * TILE
    fold(base + sizes[SUMS_AT] + place, base + sizes[MORE_AT] + place, at, sizes[STRIPS] * SIDE)


@routine
def _settle(sizes, base, turn):
    """What the risen maximum of each lane makes of the sums before; gives 0 if nothing."""
    apart()
    rows = base + sizes[ROWS_AT]
    shrink = rows + _SHRINK + turn % 2 * LANES * ITEM
    return settle_late(rows + _TOP, rows + _HEIGHT, rows + _GROUND, shrink, rows + _TOTAL, rows + _BLOCK_TOTAL)


@device
def _attend(sizes, own, base, held, low, high, common_low, common_high, first, last):
    """The sums of a block of queries over the keys from `low` to `high`. Each turn makes the scores of a block, weighs
    the one before and multiplies the one before that."""
    span, rows, sums = sizes[SPAN], sizes[ROWS_AT] // ITEM, sizes[SUMS_AT] // ITEM
    own[rows : rows + 2 * LANES] = own.dtype.type(-np.inf)
    own[rows + _TOTAL // ITEM : rows + _TOTAL // ITEM + 2 * LANES] = own.dtype.type(0)
    own[sums : sums + 2 * sizes[STRIPS] * SIDE * LANES] = own.dtype.type(0)
    grown, newly, together, start = 0, 0, 0, low // span * span
    turns = (max(high - start, 0) + span - 1) // span
    for turn in range(turns + 2 if turns else 0):
        key = start + turn * span
        ahead = _strips(sizes, high - key) if turn < turns else 0
        now = _strips(sizes, high - key + span) if 0 < turn <= turns else 0
        before = _strips(sizes, high - key + 2 * span) // 2 if turn > 1 else 0
        folded = turn > 2 and (grown != 0 or together == _TOGETHER)
        together = 1 if folded or turn <= 2 else together + 1
        unit = _multiply_keys(sizes, base, held, key, ahead, now, turn, folded)
        if ahead and (key < common_low or key + ahead * SIDE > common_high):
            at = _scores_at(sizes, 0, turn) // ITEM
            some = own[at : at + LANES * ahead * SIDE].reshape((GROUPS, ahead * SIDE, SIDE))
            for group in range(GROUPS):
                lanes = slice(group * SIDE, (group + 1) * SIDE)
                hide(some[group], key, first[lanes], last[lanes])
        _multiply_values(sizes, base, held, key - 2 * span, before, unit, now, turn, ahead, turn > 2 and not folded)
        grown, newly = newly, _settle(sizes, base, turn)


@routine
def _write(sizes, base, count, target, step):
    """Sums over totals to rows of the result."""
    apart()
    like, dv, square = np.float32(0), sizes[DV], base + sizes[BESIDE_AT]
    for group in range((count + SIDE - 1) // SIDE):
        sums, rows = base + sizes[SUMS_AT] + group * sizes[STRIPS] * TILE, min(SIDE, count - group * SIDE)
        more, total = (
            base + sizes[MORE_AT] + group * sizes[STRIPS] * TILE,
            base + sizes[ROWS_AT] + _TOTAL + group * LINE,
        )
        divide(sums, more, total, sizes[STRIPS] * SIDE)
        for column in range(0, dv, SIDE):
            into = target + group * SIDE * step + column * ITEM
            if rows == SIDE and column + SIDE <= dv:
                turn_square(like, sums + column * LINE, LINE, into, step)
            else:
                turn_square(like, sums + column * LINE, LINE, square, LINE)
                for row in range(rows):
                    copy(like, square + row * LINE, ITEM, into + row * step, ITEM, min(SIDE, dv - column), ITEM, SIDE)


@kernel
def split_forward(
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
    told: OutIntegers1,
    memory: Out2,
    place: int,
) -> None:
    """Tasks are shares of the blocks of queries of a head of the keys."""
    blocks = (sizes[QUERIES] + LANES - 1) // LANES
    kv_heads = sizes[HEADS] // sizes[GROUP]
    first, last = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for part in range(start, stop):
        own, base, outside = memory[part], place + part * sizes[PART], 0
        numbers, beside, factor = base + sizes[NUMBERS_AT], base + sizes[BESIDE_AT], base + sizes[FACTOR_AT]
        own[sizes[FACTOR_AT] // ITEM : sizes[FACTOR_AT] // ITEM + SIDE] = own.dtype.type(scale)
        configure()
        for task in range(part, sizes[BATCH] * kv_heads * sizes[SHARES], sizes[PARTS]):
            share, unit = task % sizes[SHARES], task // sizes[SHARES]
            b, kv = unit // kv_heads, unit % kv_heads
            held = place + sizes[PARTS] * sizes[PART] + (unit if sizes[SHARES] > 1 else part) * sizes[HELD]
            if sizes[SHARES] == 1:
                outside |= pack_head(sizes, strides, k, v, unit, 0, sizes[KEY_BLOCKS], held, base)
            for index in range(share, sizes[GROUP] * blocks, sizes[SHARES]):
                h, at = kv * sizes[GROUP] + index // blocks, index % blocks * LANES
                count = min(LANES, sizes[QUERIES] - at)
                source = q + b * strides[Q] + h * strides[Q + 1] + at * strides[Q + 2]
                outside |= pack_queries(
                    source,
                    strides[Q + 2],
                    count,
                    sizes[D],
                    sizes[BLOCKS],
                    factor,
                    base + sizes[QUERIES_AT],
                    numbers,
                    beside,
                )
                if outside:
                    break
                low, high, common_low, common_high = limits(
                    reach_first, reach_last, b, at, count, sizes[KEY_COUNT], first, last
                )
                _attend(sizes, own, base, held, low, high, common_low, common_high, first, last)
                _write(
                    sizes, base, count, y + b * strides[Y] + h * strides[Y + 1] + at * strides[Y + 2], strides[Y + 2]
                )
                for i in range(count if lse.size else 0):
                    rows = sizes[ROWS_AT] // ITEM
                    lse[b, h, at + i] = log_sum(own[rows + _HEIGHT // ITEM + i], own[rows + _TOTAL // ITEM + i])
        release()
        told[part] = outside


# --- driver -----------------------------------------------------------------------------------------------------------


def _shares(heads: int, blocks: int) -> int:
    """Tasks of a head: more than one where heads are few and do not come out even. All heads' pieces are made first,
    then; else each task makes its own."""
    cores = threads.cores()
    return 1 if heads >= 4 * cores else max(min(cores // math.gcd(heads, cores), blocks), 1)


def _numbers(problem: AttentionProblem) -> tuple[np.ndarray, int]:
    """The numbers of the kernels, and the bytes of all memory."""
    s = problem.sizes
    heads, group = s.batch * s.kv_heads, s.heads // s.kv_heads
    shares = _shares(heads, group * -(-s.queries // LANES))
    strips, blocks = -(-s.value_width // _PAIR) * 2, -(-s.width // DEPTH)
    span = 2 * KEYS if s.keys >= _MANY else KEYS
    key_blocks, sums = -(-s.keys // span) * (span // DEPTH), GROUPS * strips * TILE
    keys, values, parts = (
        2 * key_blocks * blocks * BLOCK,
        strips * key_blocks * BLOCK,
        min(threads.cores(), heads * shares),
    )
    room = (
        GROUPS * blocks * BLOCK,
        2 * LANES * span * ITEM,
        2 * GROUPS * span // DEPTH * BLOCK,
        sums,
        sums,
        _SHRINK + 2 * LANES * ITEM,
        LINE,
        SIDE * blocks * DEPTH * ITEM,
        BLOCK,
    )
    *places, part = np.cumsum((0, *room))
    numbers = [shares, strips, blocks, key_blocks, span, part, keys + values, keys, *places]
    total = parts * part + (heads if shares > 1 else parts) * (keys + values)
    return np.concatenate((sizes_of(problem, ITEM, parts), numbers)), int(total)


def workspace(problem: AttentionProblem) -> int:
    """Bytes of scratch."""
    return _numbers(problem)[1] + LINE


@driver(pack_heads, split_forward, *attention.attention.kernels)
def split_attention(
    problem: AttentionProblem, outputs: Any, scratch: Any, *arrays: Any, seed: Any, offset: Any
) -> None:
    q, k, v = (bhsd(a, problem.layout) for a in arrays[:3])
    y, log_sums = bhsd(outputs[0], problem.layout), outputs[1]
    if not _split(problem, q, k, v, y, log_sums, reach_of(problem, arrays[5]), scratch):
        attend(problem, q, k, v, y, log_sums, arrays[5])


def _split(
    problem: AttentionProblem, q: Any, k: Any, v: Any, y: Any, log_sums: Any, reach: Any, scratch: np.ndarray
) -> bool:
    """Whether the pieces could hold all numbers."""
    sizes, lse = _numbers(problem)[0], log_sums_of(problem, log_sums, y.dtype)
    q, k, v, result = map(dense_rows, (q, k, v, y))
    parts, part, place = int(sizes[PARTS]), int(sizes[PART]), line_of(scratch)
    memory = scratch[place - address(scratch) :][: parts * part].view(np.float32).reshape(parts, part // ITEM)
    told, strides = np.zeros(parts, np.int64), np.array([n for a in (q, k, v, result) for n in a.strides[:3]], np.int64)
    s = problem.sizes
    work = s.batch * s.heads * s.queries * s.keys * (s.width + s.value_width) // _WORK
    addresses = [address(a) for a in (q, k, v, result)]
    if sizes[SHARES] > 1:
        pack_heads(parts, *addresses[1:3], strides, sizes, told, place, work=8 * (k.size + v.size))
        if told.any():
            return False
    split_forward(parts, *addresses, lse, strides, sizes, *reach, problem.rule.scale, told, memory, place, work=work)
    if told.any():
        return False
    if result is not y:
        y[...] = result
    if log_sums is not None and lse is not log_sums:
        log_sums[...] = lse
    return True
