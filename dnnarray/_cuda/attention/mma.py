"""The algorithm ``mma``: attention of half types on tensor cores."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.attention.arguments import Extra, ForwardArguments, extra_of, forward_arguments
from dnnarray._cuda.attention.shared import Argument, Arrays, Place, forward, has_extras
from dnnarray._cuda.attention.tensor_cores import cost_at, given, misaligned, panel_width, reason
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 128
_QUERIES = 64  # of a block whose warps have a tile of rows each


@frozen
class MmaConfig(Config):
    """Compile-time settings of ``kernels/attention/mma.cu``."""

    element: str
    output: str
    given: str
    paged: bool
    width: int
    row_tiles: int
    keys: int


@frozen(kw_only=True)
class MmaArguments(ForwardArguments):
    """What ``kernels/attention/mma.cu`` is called with."""

    extra: Extra


def _tile(width: int, queries: int, extras: bool) -> tuple[int, int]:
    """Blocks of 16 queries for a warp, and keys of a panel."""
    if width == 256:
        return 1, 16 if extras else 32
    return (2 if width == 64 and queries > _QUERIES and not extras else 1), 64


def launch(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Argument, output: np.dtype, aligned: bool) -> Plan:
    """One launch that writes `y`, in the dtype `output`, and lse where its pointer is given."""
    dtype, sizes, width = arrays.spec("q").dtype, problem.sizes, panel_width(problem)
    (options, words), paged = given(problem, arrays), "block_table" in arrays.places
    row_tiles, keys = _tile(width, sizes.queries, has_extras(problem, arrays))
    config = MmaConfig(TYPES[dtype], TYPES[output], options, paged, width, row_tiles, keys)
    name = (
        f"attention_mma_{SHORT[dtype]}_{width}x{row_tiles}x{keys}{'_paged' * paged}{words}{'_wide' * (output != dtype)}"
    )
    tiles = blocks_of(sizes.queries, _QUERIES * row_tiles)
    arguments = MmaArguments(**forward_arguments(problem, arrays, y, lse, tiles), extra=extra_of(arrays))
    shared = (_QUERIES * row_tiles + 4 * keys) * width * 2
    kernel = Kernel("attention/mma.cu", name, config, ("attention/rule",))
    return planned(kernel, (sizes.batch * sizes.heads * tiles, 1, 1), _THREADS, arguments, shared_memory=shared)


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    return reason(problem, device) or misaligned(device)


def cost(problem: AttentionProblem, device: Device) -> Cost:
    return cost_at(problem, device, 0.4, _QUERIES)


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, aligned, launch)
