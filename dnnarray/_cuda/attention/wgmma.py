"""The algorithm ``wgmma``: attention of half types by the asynchronous matrix instructions of Hopper."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.attention.arguments import ForwardArguments, forward_arguments
from dnnarray._cuda.attention.shared import Argument, Arrays, Place, forward, given_options
from dnnarray._cuda.attention.tensor_cores import cost_at, hopper_reason, misaligned, panel_width
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_GROUPS = 2  # warpgroups of a block: what registers and shared memory hold
_QUERIES = 64 * _GROUPS  # of a block


@frozen
class WgmmaConfig(Config):
    """Compile-time settings of ``kernels/attention/wgmma.cu``."""

    element: str
    output: str
    paged: bool
    given: str
    width: int
    keys: int
    groups: int


@frozen(kw_only=True)
class WgmmaArguments(ForwardArguments):
    """What ``kernels/attention/wgmma.cu`` is called with."""


def launch(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Argument, output: np.dtype, aligned: bool) -> Plan:
    """One launch that writes `y`, in the dtype `output`, and lse where its pointer is given."""
    dtype, sizes, width = arrays.spec("q").dtype, problem.sizes, panel_width(problem)
    keys = 64 if width == 256 else 128
    paged, (given, words) = "block_table" in arrays.places, given_options(problem, arrays)
    config = WgmmaConfig(TYPES[dtype], TYPES[output], paged, given, width, keys, _GROUPS)
    name = (
        f"attention_wgmma_{SHORT[dtype]}_{width}x{keys}x{_GROUPS}{'_paged' * paged}{words}{'_wide' * (output != dtype)}"
    )
    tiles, threads = blocks_of(sizes.queries, _QUERIES), 128 * _GROUPS
    arguments = WgmmaArguments(**forward_arguments(problem, arrays, y, lse, tiles))
    shared = (_QUERIES + 4 * keys) * width * 2 + threads * 4
    kernel = Kernel("attention/wgmma.cu", name, config, ("attention/rule",))
    return planned(kernel, (sizes.batch * sizes.heads * tiles, 1, 1), threads, arguments, shared_memory=shared)


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    return hopper_reason(problem, device) or misaligned(device)


def cost(problem: AttentionProblem, device: Device) -> Cost:
    return cost_at(problem, device, 0.7, _QUERIES)


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, aligned, launch)
