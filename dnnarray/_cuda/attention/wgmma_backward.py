"""The algorithm ``wgmma_backward``: gradients of attention of half types by Hopper's instructions, a launch for q and
one for k and v."""

from __future__ import annotations

from dnnarray._cuda.attention import gradients, wgmma
from dnnarray._cuda.attention.shared import Arrays, Saved, given_options
from dnnarray._cuda.attention.tensor_cores import (
    PairArguments,
    Tile,
    hopper_reason,
    launches_of,
    misaligned,
    nothing_there,
    panel_width,
)
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_GROUPS = 2  # warpgroups of a block: what registers hold
cost = wgmma.cost
workspace = gradients.workspace


@frozen
class WgmmaBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/wgmma_backward.cu``."""

    element: str
    key_rows: bool
    given: str
    width: int
    groups: int
    columns: int


@frozen(kw_only=True)
class WgmmaBackwardArguments(PairArguments):
    """What ``kernels/attention/wgmma_backward.cu`` is called with."""


def _launch(problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool) -> Plan:
    """The launch for the gradients of k and v (`key_rows`), or for that of q."""
    dtype, width, (given, words) = arrays.spec("q").dtype, panel_width(problem), given_options(problem, arrays)
    columns = 64 if key_rows and width > 64 else 128  # what registers hold
    config = WgmmaBackwardConfig(TYPES[dtype], key_rows, given, width, _GROUPS, columns)
    name = f"attention_wgmma_backward_{'kv' if key_rows else 'q'}_{SHORT[dtype]}_{width}x{_GROUPS}x{columns}{words}"
    kernel = Kernel("attention/wgmma_backward.cu", name, config, ("attention/rule",))
    tile = Tile(64 * _GROUPS, columns, 128 * _GROUPS)
    return tile.launch(
        problem, kernel, key_rows, WgmmaBackwardArguments(**tile.arguments(problem, arrays, saved, key_rows))
    )


def launches(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    return launches_of(problem, arrays, saved, _launch)


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    return hopper_reason(problem, device) or nothing_there(problem) or misaligned(device)


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return gradients.backward(problem, aligned, wgmma.launch, launches)
