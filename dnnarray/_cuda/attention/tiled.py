"""The algorithm ``tiled``: tiles of scores on the ordinary arithmetic units, with an online softmax. Right for every
option, dtype and width."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.attention.arguments import Extra, ForwardArguments, extra_of, forward_arguments
from dnnarray._cuda.attention.shared import Argument, Arrays, Place, arrays_of, forward, given_options
from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

THREADS = 256
SIDE = 16  # threads along either side of a tile
DEPTH = 32  # terms of a product that are staged at once


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


@frozen(kw_only=True)
class TiledArguments(ForwardArguments):
    """What ``kernels/attention/tiled.cu`` is called with."""

    slices: Extent
    extra: Extra


def patch_of(dtype: np.dtype) -> int:
    """Rows and columns of a thread."""
    return 2 if dtype == FLOAT64 else 4


def values_of(dtype: np.dtype, width: int) -> int:
    """Features of the result that a block computes."""
    return 64 if width <= 64 or dtype == FLOAT64 else 128


def shared_bytes(dtype: np.dtype, patch: int, values: int) -> int:
    """Bytes of shared memory of a block: two staged operands, the weights, and the staged rows of the second
    product."""
    tile = patch * SIDE
    return (2 * DEPTH * (tile + 4) + tile * (tile + 4) + DEPTH * values) * arithmetic_of(dtype).itemsize


def vector_of(places: tuple[Place, ...], aligned: bool) -> int:
    """Features that a thread loads at once from all these arrays."""
    spec = places[0].spec
    assert spec is not None
    length = 16 // spec.dtype.itemsize
    return length if aligned and all(p.vector(length) for p in places if p.given) else 1


def launch(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Argument, output: np.dtype, aligned: bool) -> Plan:
    """One launch that writes `y`, in the dtype `output`, and lse where its pointer is given."""
    dtype, sizes = arrays.spec("q").dtype, problem.sizes
    patch, values = patch_of(dtype), values_of(dtype, sizes.value_width)
    vector, paged = vector_of((arrays["q"], arrays["k"], arrays["v"]), aligned), "block_table" in arrays.places
    given, words = given_options(problem, arrays)
    config = TiledConfig(TYPES[dtype], TYPES[output], paged, given, patch, DEPTH, values, vector)
    name = f"attention_tiled_{SHORT[dtype]}x{vector}_{values}{'_paged' * paged}{words}{'_wide' * (output != dtype)}"
    tiles, slices = blocks_of(sizes.queries, patch * SIDE), max(blocks_of(sizes.value_width, values), 1)
    arguments = TiledArguments(
        **forward_arguments(problem, arrays, y, lse, tiles), slices=slices, extra=extra_of(arrays)
    )
    grid = (sizes.batch * sizes.heads * tiles * slices, 1, 1)
    kernel = Kernel("attention/tiled.cu", name, config, ("attention/rule",))
    return planned(kernel, grid, THREADS, arguments, shared_memory=shared_bytes(dtype, patch, values))


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, aligned, launch)


def share_of_card(problem: AttentionProblem, device: Device, queries: int) -> float:
    """How much of the card works when each block has this many queries of one head: rows that are filled, blocks for
    all multiprocessors."""
    sizes = problem.sizes
    tiles = blocks_of(sizes.queries, queries)
    blocks = sizes.batch * sizes.heads * tiles
    return min(1.0, blocks / device.units) * sizes.queries / (tiles * queries) if blocks else 1.0


def cost(problem: AttentionProblem, device: Device) -> Cost:
    """The ordinary units at half their rate, as far as there is work for all."""
    dtype = arrays_of(problem).spec("q").dtype
    queries = patch_of(dtype) * SIDE
    return Cost(
        problem.flops, problem.bytes, 0.5 * share_of_card(problem, device, queries), unit=arithmetic_of(dtype).name
    )
