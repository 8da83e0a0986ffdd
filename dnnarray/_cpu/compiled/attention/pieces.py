"""What both passes of compiled attention share. Imports Numba.

Scores stand transposed: a tile of queries in the vector lanes, keys one below the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.attention.blocks import Reach
from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.tile import BYTES, ROWS, VECTORS, lanes, read, tile, write, write_word
from dnnarray._problems.attention import AttentionProblem

# Where the kernels find their numbers.
BATCH, HEADS, GROUP, QUERIES, KEY_COUNT, D, DV, WIDTH, ITEM, PARTS = range(10)


@device
def transpose(like, source, step, rows, columns, target, width, item, scale):
    """Rows of a few queries, side by side in the lanes: target[column][query]; 0 in the lanes left over."""
    for d in range(columns):
        for j in range(width):
            write(
                like,
                target + (d * width + j) * item,
                read(like, source + j * step + d * item) * scale if j < rows else like,
            )


@device
def product(like, rows, a, a_row, a_step, b, steps, count, c, add):
    """c = a b in tiles, both b and c a tile wide; the rows of b stand where the table `steps` says."""
    columns = VECTORS * BYTES
    for row in range(0, rows, ROWS):
        tile(
            like,
            min(ROWS, rows - row),
            a + row * a_row,
            a_row,
            a_step,
            b,
            steps,
            count,
            c + row * columns,
            columns,
            add,
        )


@device
def steps_table(table, count, step):
    for i in range(count):
        write_word(table + i * 8, i * step)


@device
def hide(scores, key, first, last):
    """-infinity where a query (in a lane) does not see a key (a row, the first one is `key`)."""
    nothing = scores.dtype.type(-np.inf)
    for j in range(len(first)):
        for i in range(min(len(scores), max(first[j] - key, 0))):
            scores[i, j] = nothing
        for i in range(max(last[j] + 1 - key, 0), len(scores)):
            scores[i, j] = nothing


@device
def limits(reach_first, reach_last, b, i, count, keys, first, last):
    """What the queries of a tile see; lanes without a query see nothing. Gives the range of keys that any of them sees
    and whether all see all of it."""
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


# --- drivers ----------------------------------------------------------------------------------------------------------


def sizes_of(problem: AttentionProblem, itemsize: int, parts: int) -> np.ndarray:
    s = problem.sizes
    group = s.heads // s.kv_heads if s.kv_heads else 1
    width = VECTORS * lanes(itemsize)
    return np.array([s.batch, s.heads, group, s.queries, s.keys, s.width, s.value_width, width, itemsize, parts])


def reach_of(problem: AttentionProblem, offset: Any) -> tuple[np.ndarray, np.ndarray]:
    """First and last key of each query, one row for all sequences or one for each; empty where every query sees every
    key."""
    s = problem.sizes
    reach = Reach.of(problem.rule, s.queries, s.keys, offset)
    if reach.first is None or reach.last is None:
        return _NOTHING, _NOTHING
    return np.ascontiguousarray(reach.first), np.ascontiguousarray(reach.last)


_NOTHING = np.empty((0, 0), np.int64)


def dense_rows(array: np.ndarray) -> np.ndarray:
    """The array itself where the elements of a row lie side by side, else a copy."""
    return (
        array
        if array.flags.aligned and (array.strides[-1] == array.itemsize or array.shape[-1] == 1)
        else np.array(array, order="C")
    )
