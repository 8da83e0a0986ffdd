"""The algorithm ``tiled_backward``: tiles of scores computed again on the ordinary arithmetic units, a launch for each
gradient."""

from __future__ import annotations

from dnnarray._cuda.attention import gradients, tiled
from dnnarray._cuda.attention.arguments import Extra, GradientArguments, extra_of, gradient_arguments
from dnnarray._cuda.attention.shared import Arrays, Saved, given_options
from dnnarray._cuda.attention.tiled import DEPTH, SIDE, THREADS, patch_of, shared_bytes, values_of, vector_of
from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_TARGETS = ("q", "k", "v")
cost = tiled.cost
workspace = gradients.workspace


@frozen
class TiledBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/tiled_backward.cu``."""

    element: str
    target: int
    given: str
    patch: int
    depth: int
    values: int
    vector: int


@frozen(kw_only=True)
class TiledBackwardArguments(GradientArguments):
    """What ``kernels/attention/tiled_backward.cu`` is called with."""

    extra: Extra
    tiles: Extent
    slices: Extent


def _launch(problem: AttentionProblem, arrays: Arrays, saved: Saved, target: int, aligned: bool) -> Plan:
    """The launch for the gradient of q (0), k (1) or v (2)."""
    sizes, dtype = problem.sizes, arrays.spec("q").dtype
    width = sizes.value_width if target == 2 else sizes.width
    patch, values = patch_of(dtype), values_of(dtype, width)
    vector = vector_of(tuple(arrays[name] for name in ("q", "k", "v", "grad")), aligned)
    tiles = blocks_of(sizes.queries if target == 0 else sizes.keys, patch * SIDE)
    slices = max(blocks_of(width, values), 1)
    given, words = given_options(problem, arrays)
    config = TiledBackwardConfig(TYPES[dtype], target, given, patch, DEPTH, values, vector)
    name = f"attention_tiled_backward_{_TARGETS[target]}_{SHORT[dtype]}x{vector}_{values}{words}"
    blocks = sizes.batch * (sizes.heads if target == 0 else sizes.kv_heads) * tiles * slices
    shared_by_all = gradient_arguments(problem, arrays, saved, arrays.results[target])
    arguments = TiledBackwardArguments(**shared_by_all, extra=extra_of(arrays), tiles=tiles, slices=slices)
    kernel = Kernel("attention/tiled_backward.cu", name, config, ("attention/rule",))
    return planned(kernel, (blocks, 1, 1), THREADS, arguments, shared_memory=shared_bytes(dtype, patch, values))


def launches(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    """A launch for each gradient of q, k and v that is wanted."""
    outs = [arrays.results[target].spec for target in range(len(_TARGETS))]
    wanted = [target for target, out in enumerate(outs) if out is not None and out.size and problem.sizes.batch]
    return [_launch(problem, arrays, saved, target, aligned) for target in wanted]


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return gradients.backward(problem, aligned, tiled.launch, launches)
