"""Attention of few queries on tensor cores: plans. The keys are split over enough blocks to fill the card."""

from __future__ import annotations

import math

from dnnarray._cuda import attention_tiled
from dnnarray._cuda.attention_common import NOTHING, arrays_of, lse_strides, page_arguments, rule_arguments
from dnnarray._cuda.attention_mma import has_extras, panel_width, rejects
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 128
_WARP = 32
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
class DecodeConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_decode.cu``."""

    element: str
    paged: bool
    width: int
    stages: int


@frozen
class CombineConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_combine.cu``."""

    element: str
    threads: int


def _group(problem: AttentionProblem) -> int:
    sizes = problem.sizes
    return max(sizes.heads // max(sizes.kv_heads, 1), 1)


def _blocks(problem: AttentionProblem) -> int:
    """Blocks of one part."""
    sizes = problem.sizes
    return sizes.batch * sizes.kv_heads * -(-sizes.queries * _group(problem) // _ROWS)


def _most_splits(problem: AttentionProblem) -> int:
    blocks = max(_blocks(problem), 1)
    return max(min(_MOST_SPLITS, problem.sizes.keys // _SHORTEST, _MOST_BLOCKS // blocks), 1)


def splits_of(problem: AttentionProblem, device: Device) -> int:
    """The smallest number of parts that fills the card nearly as well as the best."""
    blocks, places = _blocks(problem), _RESIDENT * device.units
    filled = {n: blocks * n / places / math.ceil(blocks * n / places) for n in range(1, _most_splits(problem) + 1)}
    best = max(filled.values())
    return next(n for n, share in filled.items() if share >= _ENOUGH * best)


def _rows(problem: AttentionProblem) -> int:
    return problem.sizes.batch * problem.sizes.heads * problem.sizes.queries


def _share_bytes(problem: AttentionProblem) -> int:
    size = _most_splits(problem) * _rows(problem) * problem.sizes.value_width * 4
    return -(-size // _LINE) * _LINE


def workspace(problem: AttentionProblem) -> int:
    """Scratch for the shares of all parts."""
    splits = _most_splits(problem)
    return _share_bytes(problem) + splits * _rows(problem) * 4 if splits > 1 else 0


def decode_rejects(problem: AttentionProblem, device: Device) -> str | None:
    """As the other algorithms on tensor cores, and few queries."""
    if problem.sizes.queries * _group(problem) > _FEW:
        return f"it is for at most {_FEW} rows of queries that share a key head"
    if panel_width(problem) > 128:
        return "rows of more than 128 features do not fit its panels"
    if has_extras(problem, arrays_of(problem)):
        return "softcap, ALiBi, bias, mask and dropout are not in it"
    return rejects(problem, device)


def decode(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    """One launch, and one that puts the parts together."""
    if not aligned:
        return attention_tiled.forward(problem, device, aligned)
    if not _rows(problem):
        return Program(())
    arrays, sizes, splits = arrays_of(problem), problem.sizes, splits_of(problem, device)
    (q, k, v), (y, lse) = (arrays[name] for name in "qkv"), arrays.results
    assert q.spec is not None
    dtype, width = q.spec.dtype, panel_width(problem)
    shares, lse_shares = Array(arrays.scratch), Array(arrays.scratch, _share_bytes(problem))
    scratch = (shares, lse_shares) if splits > 1 else (NOTHING, NOTHING)
    config = DecodeConfig(TYPES[dtype], "block_table" in arrays.places, width, _STAGES)
    name = f"attention_mma_decode_{SHORT[dtype]}_{width}{'_paged' * config.paged}"
    tiles = -(-sizes.queries * _group(problem) // _ROWS)
    of_lse = lse.pointer if lse.given else NOTHING
    rule = rule_arguments(problem, arrays)
    arguments = (
        *(p.pointer for p in (q, k, v, y)), of_lse, *scratch, tiles, splits, sizes.width, sizes.value_width, *lse_strides(problem),
        *q.strides, *k.strides, *v.strides, *y.strides, *page_arguments(arrays), *rule,
    )  # fmt: skip
    kernel = Kernel("attention/mma_decode.cu", name, config)
    plans = [Plan(kernel, (_blocks(problem) * splits, 1, 1), _THREADS, arguments, _STAGES * 2 * _KEYS * width * 2)]
    if splits > 1:
        combine = Kernel("attention/mma_combine.cu", f"attention_mma_combine_{SHORT[dtype]}", CombineConfig(TYPES[dtype], _THREADS))
        blocks = -(-_rows(problem) // (_THREADS // _WARP))
        arguments = (*scratch, y.pointer, of_lse, _rows(problem), splits, sizes.value_width, *lse_strides(problem), *y.strides, *rule)
        plans.append(Plan(combine, (blocks, 1, 1), _THREADS, arguments))
    return Program(tuple(plans), arrays.orders)


def cost(problem: AttentionProblem, device: Device) -> Cost:
    """The bytes; where a launch takes longest, exact weights are preferred."""
    q = arrays_of(problem)["q"].spec
    assert q is not None
    return Cost(problem.flops, problem.bytes, 0.1, launches=2, unit=f"{q.dtype.name}_mma")
