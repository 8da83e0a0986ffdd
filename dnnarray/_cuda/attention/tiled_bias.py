"""The launches that write the gradient of the bias of attention, summed over all axes along which the bias is
repeated."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.attention.arguments import Extra, GradientArguments, Result, extra_of, gradient_arguments
from dnnarray._cuda.attention.shared import Arrays, Place, Saved, given_options, scores_of
from dnnarray._cuda.attention.sum_parts import sum_parts
from dnnarray._cuda.attention.tiled import DEPTH, SIDE, THREADS, patch_of, shared_bytes, vector_of
from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

_BLOCKS = 1024  # into which the gradient of a bias is cut at the most
_VALUES = 64


@frozen
class TiledBiasConfig(Config):
    """Compile-time settings of ``kernels/attention/tiled_bias.cu``."""

    element: str
    output: str
    given: str
    patch: int
    depth: int
    values: int
    vector: int


@frozen(kw_only=True)
class TiledBiasArguments(GradientArguments):
    """What ``kernels/attention/tiled_bias.cu`` is called with; `own_*` are the extents of the bias, 1 where it is
    repeated."""

    out: Result
    extra: Extra
    batches: Extent
    own_batches: Extent
    own_heads: Extent
    own_queries: Extent
    own_keys: Extent
    chunk: Extent
    parts: Extent
    part_step: Extent


@frozen
class _Work:
    """How the gradient of a bias is cut: tiles of the bias, and parts of what meets in each."""

    own: dict[str, Any]
    tiles: int
    chunk: int
    parts: int

    @classmethod
    def of(cls, problem: AttentionProblem, bias: Spec) -> _Work:
        tile = patch_of(bias.dtype) * SIDE
        shape = (*(1,) * (4 - bias.ndim), *bias.shape)
        counts = [n if axis < 2 else blocks_of(n, tile) for axis, n in enumerate(problem.sizes.scores)]
        tiles = math.prod(count for count, n in zip(counts, shape, strict=True) if n != 1)
        meeting = math.prod(count for count, n in zip(counts, shape, strict=True) if n == 1)
        parts = max(min(meeting, _BLOCKS // max(tiles, 1)), 1)
        chunk = max(blocks_of(meeting, parts), 1)
        own: dict[str, Any] = dict(zip(("own_batches", "own_heads", "own_queries", "own_keys"), shape, strict=True))
        return cls(own, tiles, chunk, max(blocks_of(meeting, chunk), 1))


def _bias_of(problem: AttentionProblem) -> Spec | None:
    """The gradient of the bias, None where it is not wanted or empty."""
    bias = problem.outputs[3] if len(problem.outputs) == 5 else None
    return bias if bias is not None and bias.size else None


def scratch_bytes(problem: AttentionProblem) -> int:
    """Bytes of scratch memory for the parts of the sums."""
    bias = _bias_of(problem)
    parts = 0 if bias is None else _Work.of(problem, bias).parts
    return parts * bias.size * arithmetic_of(bias.dtype).itemsize if bias is not None and parts > 1 else 0


def launches(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    """The gradient of the bias, with the second stage of its sums where it is cut."""
    bias = _bias_of(problem)
    if bias is None:
        return []
    work, dtype, target = _Work.of(problem, bias), bias.dtype, arrays.results[3].pointer
    assert target is not None
    cut = work.parts > 1
    wide, out = (arithmetic_of(dtype), saved.bias_parts) if cut else (dtype, target)
    patch, vector = patch_of(dtype), vector_of(tuple(arrays[name] for name in ("q", "k", "v", "grad")), aligned)
    given, words = given_options(problem, arrays)
    config = TiledBiasConfig(TYPES[dtype], TYPES[wide], given, patch, DEPTH, _VALUES, vector)
    name = f"attention_tiled_bias_{SHORT[dtype]}x{vector}{words}{'_parts' * cut}"
    arguments = TiledBiasArguments(
        **gradient_arguments(problem, arrays, saved, Place(out, bias, scores_of(bias))),
        extra=extra_of(arrays),
        batches=problem.sizes.batch,
        **work.own,
        chunk=work.chunk,
        parts=work.parts,
        part_step=bias.size,
    )
    kernel = Kernel("attention/tiled_bias.cu", name, config, ("attention/rule",))
    shared = shared_bytes(dtype, patch, _VALUES)
    plans = [planned(kernel, (work.tiles * work.parts, 1, 1), THREADS, arguments, shared_memory=shared)]
    return [*plans, sum_parts([(out, target)], bias.size, work.parts, dtype, wide)] if cut else plans
