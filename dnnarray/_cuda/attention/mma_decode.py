"""The algorithm ``mma_decode``: attention of few queries on tensor cores, the keys split over enough blocks to fill the
card."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.attention import mma_combine
from dnnarray._cuda.attention.arguments import ForwardArguments, forward_arguments
from dnnarray._cuda.attention.shared import arrays_of
from dnnarray._cuda.attention.tensor_cores import misaligned, no_extras, panel_width, reason
from dnnarray._cuda.core.arguments import Extent, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of, round_up
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 128
_ROWS = 16  # of a block
_KEYS = 64  # of a panel
_STAGES = 3
_FEW = 64  # rows of a key head up to which the keys are read no more than four times
_SHORTEST = 128  # keys of a part
_MOST_SPLITS = 64
_MOST_BLOCKS = 1024  # the scratch memory is for no more, on any card
_RESIDENT = 2  # blocks of a multiprocessor
_ENOUGH = 0.85  # of the best share of the card that a number of parts reaches
_LINE = 256


@frozen
class MmaDecodeConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_decode.cu``."""

    element: str
    paged: bool
    width: int
    stages: int


@frozen(kw_only=True)
class MmaDecodeArguments(ForwardArguments):
    """What ``kernels/attention/mma_decode.cu`` is called with; the shares are absent where there is one part."""

    y: Out
    shares: OutArithmetic
    lse_shares: OutArithmetic
    splits: Extent


def _group(problem: AttentionProblem) -> int:
    sizes = problem.sizes
    return max(sizes.heads // max(sizes.kv_heads, 1), 1)


def _tiles(problem: AttentionProblem) -> int:
    """Blocks of one part and one key head."""
    return blocks_of(problem.sizes.queries * _group(problem), _ROWS)


def _blocks(problem: AttentionProblem) -> int:
    """Blocks of one part."""
    return problem.sizes.batch * problem.sizes.kv_heads * _tiles(problem)


def _most_splits(problem: AttentionProblem) -> int:
    blocks = max(_blocks(problem), 1)
    return max(min(_MOST_SPLITS, problem.sizes.keys // _SHORTEST, _MOST_BLOCKS // blocks), 1)


def _splits(problem: AttentionProblem, device: Device) -> int:
    """The smallest number of parts that fills the card nearly as well as the best."""
    blocks, places = _blocks(problem), _RESIDENT * device.units
    filled = {n: blocks * n / places / math.ceil(blocks * n / places) for n in range(1, _most_splits(problem) + 1)}
    best = max(filled.values())
    return next(n for n, share in filled.items() if share >= _ENOUGH * best)


def _rows(problem: AttentionProblem) -> int:
    return problem.sizes.batch * problem.sizes.heads * problem.sizes.queries


def _share_bytes(problem: AttentionProblem) -> int:
    return round_up(_most_splits(problem) * _rows(problem) * problem.sizes.value_width * 4, _LINE)


def workspace(problem: AttentionProblem) -> int:
    """Scratch for the shares of all parts."""
    splits = _most_splits(problem)
    return _share_bytes(problem) + splits * _rows(problem) * 4 if splits > 1 else 0


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    """As the other algorithms on tensor cores, and few queries."""
    if problem.sizes.queries * _group(problem) > _FEW:
        return f"it is for at most {_FEW} rows of queries that share a key head"
    if panel_width(problem) > 128:
        return "rows of more than 128 features do not fit its panels"
    return no_extras(problem) or reason(problem, device) or misaligned(device)


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    """One launch, and one that puts the parts together."""
    if not _rows(problem):
        return Program(())
    arrays, splits, width = arrays_of(problem), _splits(problem, device), panel_width(problem)
    y, lse = arrays.results
    dtype, paged = arrays.spec("q").dtype, "block_table" in arrays.places
    parts: dict[str, Any] = {"shares": None, "lse_shares": None}
    if splits > 1:
        parts = {"shares": Array(arrays.scratch), "lse_shares": Array(arrays.scratch, _share_bytes(problem))}
    config = MmaDecodeConfig(TYPES[dtype], paged, width, _STAGES)
    kernel = Kernel(
        "attention/mma_decode.cu",
        f"attention_mma_decode_{SHORT[dtype]}_{width}{'_paged' * paged}",
        config,
        ("attention/rule",),
    )
    given = forward_arguments(problem, arrays, y, lse.pointer, _tiles(problem))
    arguments = MmaDecodeArguments(**given, **parts, splits=splits)
    shared = _STAGES * 2 * _KEYS * width * 2
    plans = [planned(kernel, (_blocks(problem) * splits, 1, 1), _THREADS, arguments, shared_memory=shared)]
    if splits > 1:
        plans.append(mma_combine.launch(given, parts, _rows(problem), splits, dtype))
    return Program(tuple(plans), arrays.orders)


def cost(problem: AttentionProblem, device: Device) -> Cost:
    """The bytes; where a launch takes longest, exact weights are preferred."""
    return Cost(problem.flops, problem.bytes, 0.1, launches=2, unit=f"{arrays_of(problem).spec('q').dtype.name}_mma")
