"""Copies between images of any strides and the dense blocks that kernels work on. Imports Numba."""

from __future__ import annotations

import numpy as np

from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import apart, copy_vector, pick_vector, read, routine, spread_vector, turn_square, write


@routine
def copy(like, source, source_step, target, target_step, count, item, width):
    """`count` elements from addresses `source_step` apart to addresses `target_step` apart."""
    apart()
    last = count - width  # the last vector overlaps the one before it
    if last >= 0 and source_step == item and target_step == item:
        for at in range(0, last, width):
            copy_vector(like, source + at * item, target + at * item)
        copy_vector(like, source + last * item, target + last * item)
        return
    if last >= 0 and source_step == 2 * item and target_step == item:
        for at in range(0, last, width):
            pick_vector(like, source + at * source_step, target + at * item)
        pick_vector(like, source + last * source_step, target + last * item)
        return
    if last >= 0 and source_step == item and target_step == 2 * item:
        for at in range(0, last, width):
            spread_vector(like, source + at * item, target + at * target_step)
        spread_vector(like, source + last * item, target + last * target_step)
        return
    for j in range(count):
        write(like, target + j * target_step, read(like, source + j * source_step))


@device
def clear(like, target, count, item):
    for j in range(count):
        write(like, target + j * item, like)


@routine
def turn_rows(like, source, row_step, target, step, rows, count, item, width):
    """Rows of `count` elements, `row_step` bytes apart, to as many columns, `step` bytes apart."""
    apart()
    whole = rows // width * width if count >= width else 0
    for c in range(0, whole, width):
        for w in range(0, count, width):
            at = min(w, count - width)
            turn_square(like, source + c * row_step + at * item, row_step, target + at * step + c * item, step)
    for c in range(whole, rows):
        for w in range(count):
            write(like, target + w * step + c * item, read(like, source + c * row_step + w * item))


def line_of(memory: np.ndarray) -> int:
    """The first cache line in memory that is a line longer than needed."""
    return -(-address(memory) // ALIGNMENT) * ALIGNMENT


def aligned_array(array: np.ndarray) -> np.ndarray:
    return array if array.flags.aligned else array.copy()
