"""The gradients of attention by the matrix micro-kernel, from the log-sum-exp of each row (FlashAttention-2, Dao,
2023). Imports Numba.

For a block of queries and a block of keys, with scores transposed as in the forward: weights p = exp(s - lse) and
slopes ds = p (dp - delta) take two products, the gradients of keys, values and queries three more. Those of keys and
values are summed up over all queries of a head in memory of the part's own, a vector's multiple wide; the micro-kernel
reads keys and values where they lie. A split takes every so many blocks of queries, where there are fewer heads than
cores, and `combine` adds the splits. Over many blocks of queries the keys are taken in bands, whose sums are float64.
One query alone goes row by row, as in the forward."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.attention.dense import bhsd
from dnnarray._cpu.attention.passes import Saved, share_of
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
    reach_of,
    sizes_of,
)
from dnnarray._cpu.compiled.attention.tiled import (
    FEW,
    add_scaled,
    attend,
    attention,
    dot,
    exponentials_of_row,
    scores_of,
    weighted_sum,
)
from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import (
    In3,
    In4,
    Integers1,
    Integers2,
    Out2,
    Out4,
    OutDoubles2,
    device,
    driver,
    kernel,
)
from dnnarray._cpu.compiled.lanes import score_gradients
from dnnarray._cpu.compiled.memory import ALIGNMENT, address, aligned
from dnnarray._cpu.compiled.tile import BYTES, ROWS, VECTORS, apart, lanes, narrow_tile, read, routine, write
from dnnarray._cpu.sums import total
from dnnarray._problems.attention import AttentionProblem

_KEYS = 96  # of a block: whole tiles of 6 and of 8 rows
_QUERIES = 64  # of a block, or the next multiple of a tile: the depth of the products for keys and values
# products that are added up in a row: scores are held against a log-sum-exp that may come from another algorithm and be
# more exact
_CHAIN = 32
_MANY = 64  # blocks, the sums over more of which are float64
_BANDS = 16  # of the keys at most, of one of which there are sums in float64 at a time
_WORK = 16  # multiply-adds of a light operation

# Behind the numbers of both passes; the last three say which gradients are wanted.
_BLOCK, _PITCH, _D_PITCH, _V_PITCH, _SPLITS, _BAND, _OF_Q, _OF_K, _OF_V = range(10, 19)
# Byte strides over batch, head and row; elements of a row lie side by side.
_Q, _K, _V, _Y, _G = range(0, 15, 3)


# --- pieces -----------------------------------------------------------------------------------------------------------


@routine
def _load_queries(like, source, step, rows, block, columns, pitch, rowwise, across, across_pitch, scale, item):
    """Rows of a block of queries, scaled: [query][column], and [column][query] with 0 in the lanes left over."""
    apart()
    for j in range(block):
        for d in range(columns):
            value = read(like, source + j * step + d * item) * scale if j < rows else like
            write(like, rowwise + (j * pitch + d) * item, value)
            write(like, across + (d * across_pitch + j) * item, value)


@routine
def _products(like, rows, a, a_row, a_step, b, columns, steps, depth, c, c_pitch, sizes, add):
    """c = a b, or added to c, `columns` wide, whole vectors: b's rows stand where the table `steps` says."""
    apart()
    for column in range(0, columns, sizes[WIDTH]):
        at, vectors = column * sizes[ITEM], min(VECTORS, (columns - column) * sizes[ITEM] // BYTES)
        for row in range(0, rows, ROWS):
            target = c + row * c_pitch + at
            narrow_tile(
                like,
                vectors,
                min(ROWS, rows - row),
                a + row * a_row,
                a_row,
                a_step,
                b + at,
                steps,
                depth,
                target,
                c_pitch,
                add,
            )


@device
def _by_chains(like, rows, a, a_row, a_step, b, columns, steps, depth, c, c_pitch, sizes, add):
    """`_products` by chains of `_CHAIN` terms."""
    for first in range(0, depth, _CHAIN):
        some, own = min(_CHAIN, depth - first), steps + first * 8
        _products(
            like, rows, a + first * a_step, a_row, a_step, b, columns, own, some, c, c_pitch, sizes, add or first > 0
        )


@device
def _statistics(lse, delta, count, share, ground, offsets, shares):
    """The log-sum-exp of each query as what to subtract from its scores, less the logarithm of a share where that
    rounds less (see `share_of`), and delta; what has seen nothing gets weights of 0."""
    infinity = lse.dtype.type(np.inf)
    for j in range(len(ground)):
        ground[j], offsets[j], shares[j] = infinity, lse.dtype.type(0), lse.dtype.type(1)
        if j < count:
            ground[j], lower = lse[j], np.float64(lse[j]) + math.log(share)
            if abs(lower) < abs(np.float64(lse[j])) / 2:
                ground[j], shares[j] = lower, share
            if lse[j] == -infinity:
                ground[j] = infinity
            elif lse[j] == infinity:
                ground[j] = lse.dtype.type(np.nan)
            offsets[j] = delta[j]


@device(counted=False)
def _write_sums(own, keys, d_pitch, v_pitch, dk, dv, add):
    """The gradients of a head's keys and values from a row of sums."""
    for target, source, pitch in ((dk, own, d_pitch), (dv, own[keys * d_pitch :], v_pitch)):
        for j in range(keys):
            into, values = target[j], source[j * pitch : j * pitch + target.shape[1]]
            for c in range(len(into)):
                into[c] = into[c] + values[c] if add else values[c]


@device
def _write_queries(across, factor, dq, add):
    """The gradient of a block of queries from its columns."""
    for i in range(dq.shape[0]):
        for c in range(dq.shape[1]):
            dq[i, c] = dq[i, c] + across[c, i] * factor if add else across[c, i] * factor


@device(counted=False)
def _carry(sums, whole):
    """whole += sums, which begin anew."""
    for i in range(len(sums)):
        whole[i] += sums[i]
        sums[i] = 0


@device(counted=False)
def _settle(sums, whole):
    """sums += whole, which begins anew."""
    for i in range(len(sums)):
        sums[i] = whole[i] + sums[i]
        whole[i] = 0


@routine
def _score_gradients(like, scores, slopes, row, keys, bytes_across, ground):
    """Weights and slopes of a block of keys in place of scores and of what the gradient makes of the values, a vector
    of queries after the other; what is subtracted from the scores is at `ground`, delta and the shares are one and two
    rows behind it."""
    apart()
    for lane in range(0, bytes_across, BYTES):
        score_gradients(
            like, scores + lane, slopes + lane, row, keys, ground + lane, ground + row + lane, ground + 2 * row + lane
        )


# --- kernels ----------------------------------------------------------------------------------------------------------


@kernel
def backward(
    start: int,
    stop: int,
    q: int,
    k: int,
    v: int,
    grad: int,
    strides: Integers1,
    lse: In3,
    delta: In3,
    dq: Out4,
    dk: Out4,
    dv: Out4,
    sizes: Integers1,
    reach_first: Integers2,
    reach_last: Integers2,
    scale: float,
    share: float,
    memory: Out2,
    place: int,
    sums: Out2,
    sums_at: int,
    whole: OutDoubles2,
    tables: Integers2,
    tables_at: int,
) -> None:
    """Tasks are splits of the queries of a head of the keys. `sums` holds the gradients of its keys and values: a row
    for each task, or, where a head is one task, a row for each part, from where they go to dk and dv. All queries of
    the head are multiplied with one band of the keys after the other; of many blocks of queries, the sums of a band go
    on in `whole`, which is empty for few."""
    item, d, d_value, block, pitch = sizes[ITEM], sizes[D], sizes[DV], sizes[_BLOCK], sizes[_PITCH]
    d_pitch, v_pitch, keys, vector = sizes[_D_PITCH], sizes[_V_PITCH], sizes[KEY_COUNT], BYTES // sizes[ITEM]
    zero, factor = memory.dtype.type(0), memory.dtype.type(scale)
    first, last = np.empty(block, np.int64), np.empty(block, np.int64)
    dq_whole = np.zeros(d * pitch if sizes[_BAND] > _MANY * _KEYS else 0)
    row = pitch * item
    along, d_steps, v_steps = tables_at, tables_at + tables.shape[1] * 8, tables_at + 2 * tables.shape[1] * 8
    kv_heads = sizes[HEADS] // sizes[GROUP]
    for part in range(start, stop):
        own, base = memory[part], place + part * memory.shape[1] * item
        scores_memory = own[: _KEYS * pitch].reshape((_KEYS, pitch))
        slopes = base + _KEYS * row
        q_across = slopes + _KEYS * row
        g_across = q_across + d * row
        dq_across = g_across + d_value * row
        dq_memory = own[(2 * _KEYS + d + d_value) * pitch : (2 * _KEYS + 2 * d + d_value) * pitch]
        rest = own[(2 * _KEYS + 2 * d + d_value) * pitch :]
        ground, offsets, shares = rest[:block], rest[pitch : pitch + block], rest[2 * pitch : 2 * pitch + block]
        ground_at = dq_across + d * row
        q_rows = ground_at + 3 * row
        g_rows = q_rows + block * d_pitch * item
        for task in range(part, sizes[BATCH] * kv_heads * sizes[_SPLITS], sizes[PARTS]):
            split, unit = task % sizes[_SPLITS], task // sizes[_SPLITS]
            b, kv = unit // kv_heads, unit % kv_heads
            slot, done = task if sizes[_SPLITS] > 1 else part, 0
            sums[slot, :] = zero
            dk_at = sums_at + slot * sums.shape[1] * item
            dv_at = dk_at + keys * d_pitch * item
            held = sums[slot]
            for step in range(-(-keys // sizes[_BAND]) * sizes[GROUP]):
                h, band = kv * sizes[GROUP] + step % sizes[GROUP], step // sizes[GROUP] * sizes[_BAND]
                band_end = min(band + sizes[_BAND], keys)
                of_keys = held[band * d_pitch : band_end * d_pitch]
                of_values = held[keys * d_pitch + band * v_pitch : keys * d_pitch + band_end * v_pitch]
                for at in range(split * block, sizes[QUERIES], sizes[_SPLITS] * block):
                    count = min(block, sizes[QUERIES] - at)
                    low, high, common_low, common_high = limits(
                        reach_first, reach_last, b, at, count, keys, first, last
                    )
                    low, high = max(low, band), min(high, band_end)
                    if low >= high and band:
                        continue
                    columns = (count + vector - 1) // vector * vector
                    source = q + b * strides[_Q] + h * strides[_Q + 1] + at * strides[_Q + 2]
                    _load_queries(
                        zero, source, strides[_Q + 2], count, block, d, d_pitch, q_rows, q_across, pitch, factor, item
                    )
                    source = grad + b * strides[_G] + h * strides[_G + 1] + at * strides[_G + 2]
                    _load_queries(
                        zero,
                        source,
                        strides[_G + 2],
                        count,
                        block,
                        d_value,
                        v_pitch,
                        g_rows,
                        g_across,
                        pitch,
                        memory.dtype.type(1),
                        item,
                    )
                    _statistics(
                        lse[b, h, at : at + count], delta[b, h, at : at + count], count, share, ground, offsets, shares
                    )
                    dq_memory[:] = zero
                    for j in range(low, high, _KEYS):
                        if dq_whole.size and (j - low) % (_MANY * _KEYS) == 0:
                            _carry(dq_memory, dq_whole)
                        some = min(_KEYS, high - j)
                        k_rows = k + b * strides[_K] + kv * strides[_K + 1] + j * strides[_K + 2]
                        v_rows = v + b * strides[_V] + kv * strides[_V + 1] + j * strides[_V + 2]
                        _by_chains(
                            zero,
                            some,
                            k_rows,
                            strides[_K + 2],
                            item,
                            q_across,
                            columns,
                            along,
                            d,
                            base,
                            row,
                            sizes,
                            False,
                        )
                        if sizes[_OF_Q] or sizes[_OF_K]:
                            value_step = strides[_V + 2]
                            _products(
                                zero,
                                some,
                                v_rows,
                                value_step,
                                item,
                                g_across,
                                columns,
                                along,
                                d_value,
                                slopes,
                                row,
                                sizes,
                                False,
                            )
                        if j < common_low or j + some > common_high:
                            hide(scores_memory[:some], j, first, last)
                        _score_gradients(zero, base, slopes, row, some, columns * item, ground_at)
                        if sizes[_OF_V]:
                            into = dv_at + j * v_pitch * item
                            _by_chains(
                                zero,
                                some,
                                base,
                                row,
                                item,
                                g_rows,
                                v_pitch,
                                v_steps,
                                count,
                                into,
                                v_pitch * item,
                                sizes,
                                True,
                            )
                        if sizes[_OF_K]:
                            into = dk_at + j * d_pitch * item
                            _by_chains(
                                zero,
                                some,
                                slopes,
                                row,
                                item,
                                q_rows,
                                d_pitch,
                                d_steps,
                                count,
                                into,
                                d_pitch * item,
                                sizes,
                                True,
                            )
                        if sizes[_OF_Q]:
                            _products(
                                zero,
                                d,
                                k_rows,
                                item,
                                strides[_K + 2],
                                slopes,
                                columns,
                                along,
                                some,
                                dq_across,
                                row,
                                sizes,
                                True,
                            )
                    if sizes[_OF_Q]:
                        if dq_whole.size:
                            _settle(dq_memory, dq_whole)
                        _write_queries(dq_memory.reshape((d, pitch)), factor, dq[b, h, at : at + count], band > 0)
                    done += 1
                    if whole.size and done % _MANY == 0:
                        _carry(of_keys, whole[slot, : len(of_keys)])
                        _carry(of_values, whole[slot, len(of_keys) : len(of_keys) + len(of_values)])
                if whole.size and (step + 1) % sizes[GROUP] == 0:
                    _settle(of_keys, whole[slot, : len(of_keys)])
                    _settle(of_values, whole[slot, len(of_keys) : len(of_keys) + len(of_values)])
            if sizes[_SPLITS] == 1 and (sizes[_OF_K] or sizes[_OF_V]):
                _write_sums(sums[slot], keys, d_pitch, v_pitch, dk[b, kv], dv[b, kv], False)


@kernel(counted=False)
def combine(start: int, stop: int, sums: Out2, sizes: Integers1, dk: Out4, dv: Out4) -> None:
    """The gradients of keys and values of the units from `start` to `stop` (heads of the keys): the sums of their
    splits."""
    kv_heads = sizes[HEADS] // sizes[GROUP]
    for unit in range(start, stop):
        b, kv = unit // kv_heads, unit % kv_heads
        for split in range(sizes[_SPLITS]):
            own = sums[unit * sizes[_SPLITS] + split]
            _write_sums(own, sizes[KEY_COUNT], sizes[_D_PITCH], sizes[_V_PITCH], dk[b, kv], dv[b, kv], split > 0)


# --- few queries ------------------------------------------------------------------------------------------------------


@device
def _share(total, ground, lse, exactness):
    """What exp(score - ground) is multiplied with: one over the sum of all where that is what the log-sum-exp says,
    which knows it to its last place alone."""
    if total == 0 or lse == -np.inf:
        return 0.0
    known = ground + math.log(np.float64(total))
    return 1.0 / total if abs(known - lse) <= exactness * max(abs(known), 1.0) else math.exp(ground - np.float64(lse))


@kernel(counted=False)
def few_backward(
    start: int,
    stop: int,
    q: In4,
    k: In4,
    v: In4,
    grad: In4,
    lse: In3,
    delta: In3,
    dq: Out4,
    dk: Out4,
    dv: Out4,
    sizes: Integers1,
    reach_first: Integers2,
    reach_last: Integers2,
    scale: float,
    exactness: float,
    memory: Out2,
    doubles: OutDoubles2,
) -> None:
    """Tasks are heads of the keys, whose queries add to the gradients of keys and values one after the other."""
    zero, factor = memory.dtype.type(0), memory.dtype.type(scale)
    kv_heads, count = sizes[HEADS] // sizes[GROUP], sizes[KEY_COUNT]
    for part in range(start, stop):
        own, row = memory[part, : 2 * count], memory[part, 2 * count :]
        scaled, part_sum = row[: sizes[D]], row[sizes[D] :]
        for unit in range(part, sizes[BATCH] * kv_heads, sizes[PARTS]):
            b, kv = unit // kv_heads, unit % kv_heads
            dk[b, kv, :, :] = zero
            dv[b, kv, :, :] = zero
            for member in range(sizes[GROUP] * sizes[QUERIES]):
                h, i = kv * sizes[GROUP] + member // sizes[QUERIES], member % sizes[QUERIES]
                low, high = 0, count
                if len(reach_first):
                    at = min(b, len(reach_first) - 1)
                    low, high = reach_first[at, i], max(reach_last[at, i] + 1, reach_first[at, i])
                keys, values, slope = k[b, kv, low:high], v[b, kv, low:high], grad[b, h, i]
                weights, slopes = own[: high - low], own[count : count + high - low]
                ground = scores_of(q[b, h, i], factor, keys, scaled, weights)
                share = memory.dtype.type(_share(exponentials_of_row(weights, ground), ground, lse[b, h, i], exactness))
                for j in range(len(weights)):
                    weight = weights[j] * share
                    slopes[j] = weight * (dot(slope, values[j]) - delta[b, h, i])
                    add_scaled(dv[b, kv, low + j], slope, weight)
                    add_scaled(dk[b, kv, low + j], scaled, slopes[j])
                sums = doubles[part]
                weighted_sum(keys, slopes, part_sum, sums)
                for d in range(sizes[D]):
                    dq[b, h, i, d] = sums[d] * factor


# --- driver -----------------------------------------------------------------------------------------------------------


def _odd_lines(elements: int, itemsize: int) -> int:
    """A row of an odd number of cache lines: rows then use all sets of the cache."""
    return (-(-elements * itemsize // ALIGNMENT) | 1) * ALIGNMENT // itemsize


def _is_long(problem: AttentionProblem, step: int) -> bool:
    """Whether the gradients of keys and values are sums over many blocks of queries, `step` queries apart."""
    s = problem.sizes
    return -(-s.queries // step) * (s.heads // s.kv_heads) > _MANY


def _numbers(problem: AttentionProblem, itemsize: int) -> np.ndarray:
    s = problem.sizes
    vector = lanes(itemsize)
    width = VECTORS * vector
    splits = -(-threads.cores() // max(s.batch * s.kv_heads, 1))
    block = -(-_QUERIES // width) * width
    splits = max(min(splits, -(-s.queries // block)), 1)
    parts = min(threads.cores(), s.batch * s.kv_heads * splits)
    band = -(-s.keys // (_BANDS * _KEYS)) * _KEYS if _is_long(problem, block * splits) else s.keys
    pitches = (_odd_lines(block, itemsize), -(-s.width // vector) * vector, -(-s.value_width // vector) * vector)
    return np.concatenate((sizes_of(problem, itemsize, parts), [block, *pitches, splits, band, *problem.wanted[:3]]))


def _again(problem: AttentionProblem, arrays: tuple[Any, ...], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Output (B, H, S, D), 0 where it is not needed, and log-sum-exp, computed once more unless both are given."""
    *inputs, y, lse = arrays
    if lse is not None and not problem.wanted.deltas:
        return np.broadcast_to(np.zeros((), dtype), (*lse.shape, problem.sizes.value_width)), taken(lse)
    if y is not None and lse is not None:
        return bhsd(y, problem.layout), taken(lse)
    s = problem.sizes
    y, lse = (
        np.empty((s.batch, s.heads, s.queries, s.value_width), dtype),
        np.empty((s.batch, s.heads, s.queries), dtype),
    )
    q, k, v = (bhsd(a, problem.layout) for a in inputs[:3])
    attend(problem, q, k, v, y, lse, inputs[5])
    return y, lse


@driver(*attention.kernels, backward, combine, few_backward)
def attention_backward(
    problem: AttentionProblem, outputs: Any, scratch: Any, grad: Any, *arrays: Any, seed: Any, offset: Any
) -> None:
    s, dtype = problem.sizes, next(out.dtype for out in outputs if out is not None)
    if not (s.batch and s.heads and s.queries and s.keys):
        for out in outputs[:3]:
            if out is not None:
                out[...] = 0
        return
    grad_y, grad_lse = Saved.pair(grad)
    y, lse = _again(problem, arrays, dtype)
    grad_y = np.zeros_like(y) if grad_y is None else bhsd(grad_y, problem.layout)
    delta = total(grad_y, (3,), y)[..., 0]
    if grad_lse is not None:
        delta -= grad_lse
    inputs = (*(bhsd(a, problem.layout) for a in arrays[:3]), grad_y)
    work = s.batch * s.heads * s.queries * s.keys * (s.width + s.value_width) * 5 // (2 * _WORK)
    with Written(tuple(None if a is None else bhsd(a, problem.layout) for a in outputs[:3])) as results:
        # What the kernels write beside what is wanted, if only by adding up nothing.
        targets = tuple(np.empty(a.shape, dtype) if r is None else r for r, a in zip(results, inputs, strict=False))
        (_few if s.queries <= FEW else _tiles)(
            problem, inputs, (lse, taken(delta)), targets, reach_of(problem, arrays[5]), work
        )


def _few(problem: AttentionProblem, inputs: Any, rows: Any, results: Any, reach: Any, work: int) -> None:
    s, dtype = problem.sizes, results[0].dtype
    parts = min(threads.cores(), s.batch * s.kv_heads)
    memory = np.empty((parts, 2 * s.keys + 2 * s.width), dtype)
    exactness = 4 * float(np.finfo(dtype).eps)
    few_backward(
        parts,
        *map(taken, inputs),
        *rows,
        *results,
        sizes_of(problem, dtype.itemsize, parts),
        *reach,
        problem.rule.scale,
        exactness,
        memory,
        np.empty((parts, s.width)),
        work=work,
    )


def _tiles(problem: AttentionProblem, inputs: Any, rows: Any, results: Any, reach: Any, work: int) -> None:
    s, dtype = problem.sizes, results[0].dtype
    q, k, v, grad_y = map(dense_rows, inputs)
    sizes = _numbers(problem, dtype.itemsize)
    block, pitch, d_pitch, v_pitch, splits, band = (int(n) for n in sizes[_BLOCK:_OF_Q])
    across = (2 * _KEYS + 2 * s.width + s.value_width + 3) * pitch
    memory = aligned(int(sizes[PARTS]), across + block * (d_pitch + v_pitch), dtype)
    memory[:, across:] = 0  # columns beyond the width are never written
    units = s.batch * s.kv_heads
    sums = aligned(units * splits if splits > 1 else int(sizes[PARTS]), s.keys * (d_pitch + v_pitch), dtype)
    whole = np.zeros((len(sums), band * (d_pitch + v_pitch)) if _is_long(problem, block * splits) else (0, 0))
    table = np.arange(max(_KEYS, s.width, s.value_width, block))
    tables = np.stack([table * (p * dtype.itemsize) for p in (pitch, d_pitch, v_pitch)])
    strides = np.array([n for a in (q, k, v, q, grad_y) for n in a.strides[:3]], np.int64)
    addresses = [address(a) for a in (q, k, v, grad_y)]
    backward(
        int(sizes[PARTS]),
        *addresses,
        strides,
        *rows,
        *results,
        sizes,
        *reach,
        problem.rule.scale,
        share_of(s.keys),
        memory,
        address(memory),
        sums,
        address(sums),
        whole,
        tables,
        address(tables),
        work=work,
    )
    if splits > 1 and (problem.wanted.k or problem.wanted.v):
        combine(units, sums, sizes, *results[1:], work=sums.size)
