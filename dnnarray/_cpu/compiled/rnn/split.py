"""The input's share of the gates of LSTM and GRU layers by the matrix unit. Imports Numba.

A layer's weights are split once, the rows of each block of steps by its products. All of it goes to the threads that
sleep when they have nothing to do, as the steps between the blocks do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import line_of
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.split_product import (
    COLUMNS_AT,
    DEPTH_AT,
    fits,
    multiply_images,
    pack_columns,
    product_numbers,
    split_plan,
)
from dnnarray._cpu.compiled.split_tile import TOLD

KERNELS = pack_columns, multiply_images  # compiled only where the matrix unit may be used
_SPLITTING = 8  # elements of a light operation that splitting a number is worth


class Split:
    """The input's weights of all directions of a layer in pieces, for products with `most` rows or fewer; `memory` has
    a row for each direction."""

    def __init__(self, weights: Sequence[np.ndarray], most: int, memory: np.ndarray) -> None:
        self._weights = [w if fits(w) else np.ascontiguousarray(w) for w in weights]
        self._plan = p = split_plan(most, *weights[0].shape)
        self._packed = [line_of(row.view(np.uint8)) for row in memory]
        self._told = np.zeros((len(weights), p.strips), np.int64)
        parts = [(d, *part) for d in range(len(weights)) for part in threads.split(p.strips, threads.count())]
        threads.each(self._pack, parts, work=_SPLITTING * len(weights) * weights[0].size)

    def _pack(self, d: int, start: int, stop: int) -> None:
        weight, packed = self._weights[d], self._packed[d]
        geo = np.zeros(COLUMNS_AT + 1, np.int64)
        geo[DEPTH_AT], geo[COLUMNS_AT] = weight.shape[1], weight.shape[0]
        pack_columns.run(
            start, stop, address(weight), *weight.strides, geo, False, packed, self._told[d], packed + self._plan.weight
        )

    def multiply(self, rows: Sequence[np.ndarray], out: Sequence[np.ndarray], work: int) -> list[bool]:
        """out = rows weight^T of each direction. Gives whether the pieces could hold its numbers; where not, `out`
        holds anything."""
        p, found = self._plan, [bool((told & TOLD).any()) for told in self._told]
        geo = [product_numbers(p, a[None], b[None]) for a, b in zip(rows, out, strict=True)]
        told = np.zeros((len(rows), p.parts), np.int64)

        def part(d: int, number: int) -> None:
            packed = self._packed[d]
            places = address(rows[d]), packed, address(out[d])
            multiply_images.run(
                number, number + 1, *places, geo[d], True, bool(self._told[d].any()), told[d], packed + p.weight
            )

        threads.each(
            part, [(d, number) for d in range(len(rows)) if not found[d] for number in range(p.parts)], work=work
        )
        return [not (lost or some.any()) for lost, some in zip(found, told, strict=True)]
