"""Attention on the ordinary arithmetic units: plans. Right for every option, dtype and width."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cuda.attention_common import (
    NOTHING,
    Arrays,
    Place,
    arithmetic_of,
    arrays_of,
    extra_arguments,
    given_options,
    lse_strides,
    page_arguments,
    rule_arguments,
)
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

_THREADS = 256
_SIDE = 16


@frozen
class TiledConfig(Config):
    """Compile-time settings of ``kernels/attention/tiled.cu``."""

    element: str
    output: str
    paged: bool
    given: str
    patch: int
    depth: int
    values: int
    vector: int


def patch_of(dtype: np.dtype) -> int:
    """Rows and columns of a thread."""
    return 2 if dtype == FLOAT64 else 4


def values_of(dtype: np.dtype, width: int) -> int:
    """Features of the result that a block computes."""
    return 64 if width <= 64 or dtype == FLOAT64 else 128


def shared_bytes(dtype: np.dtype, patch: int, depth: int, values: int) -> int:
    tile = patch * _SIDE
    return (2 * depth * (tile + 4) + tile * (tile + 4) + depth * values) * arithmetic_of(dtype).itemsize


def vector_of(places: tuple[Place, ...], aligned: bool) -> int:
    """Features that a thread loads at once from all these arrays."""
    spec = places[0].spec
    assert spec is not None
    length = 16 // spec.dtype.itemsize
    return length if aligned and all(p.vector(length) for p in places if p.given) else 1


def forward_plan(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Any, output: np.dtype, aligned: bool) -> Plan:
    """One launch that writes `y`, in the dtype `output`, and lse where its pointer is given."""
    q, k, v = (arrays[name] for name in "qkv")
    assert q.spec is not None
    dtype, sizes = q.spec.dtype, problem.sizes
    patch, depth, values = patch_of(dtype), 32, values_of(dtype, sizes.value_width)
    vector, paged = vector_of((q, k, v), aligned), "block_table" in arrays.places
    given, words = given_options(problem, arrays)
    config = TiledConfig(TYPES[dtype], TYPES[output], paged, given, patch, depth, values, vector)
    name = f"attention_tiled_{SHORT[dtype]}x{vector}_{values}{'_paged' * paged}{words}{'_wide' * (output != dtype)}"
    tiles, slices = -(-sizes.queries // (patch * _SIDE)), max(-(-sizes.value_width // values), 1)
    arguments = (
        *(p.pointer for p in (q, k, v, y)), lse, tiles, slices, sizes.width, sizes.value_width, *lse_strides(problem),
        *q.strides, *k.strides, *v.strides, *y.strides, *page_arguments(arrays), *extra_arguments(arrays), *rule_arguments(problem, arrays),
    )  # fmt: skip
    blocks = sizes.batch * sizes.heads * tiles * slices
    kernel = Kernel("attention/tiled.cu", name, config, ("attention",))
    return Plan(kernel, (blocks, 1, 1), _THREADS, arguments, shared_bytes(dtype, patch, depth, values))


def forward(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    arrays = arrays_of(problem)
    y, lse = arrays.results
    assert y.spec is not None
    if not problem.sizes.batch * problem.sizes.heads * problem.sizes.queries:
        return Program(())
    return Program((forward_plan(problem, arrays, y, lse.pointer if lse.given else NOTHING, y.spec.dtype, aligned),), arrays.orders)


def share_of_card(problem: AttentionProblem, device: Device, queries: int) -> float:
    """How much of the card works when each block has this many queries of one head: rows that are filled, blocks for all multiprocessors."""
    sizes = problem.sizes
    tiles = -(-sizes.queries // queries)
    blocks = sizes.batch * sizes.heads * tiles
    return min(1.0, blocks / device.units) * sizes.queries / (tiles * queries) if blocks else 1.0


def cost(problem: AttentionProblem, device: Device) -> Cost:
    """The ordinary units at half their rate, as far as there is work for all."""
    q = arrays_of(problem)["q"].spec
    dtype = q.dtype if q is not None else FLOAT64
    queries = patch_of(dtype) * _SIDE
    return Cost(problem.flops, problem.bytes, 0.5 * share_of_card(problem, device, queries), unit=arithmetic_of(dtype).name)
