"""The algorithm ``mma_backward``: gradients of attention of half types on tensor cores, a launch for q and one for k
and v."""

from __future__ import annotations

from dnnarray._cuda.attention import gradients, mma
from dnnarray._cuda.attention.arguments import Extra, extra_of
from dnnarray._cuda.attention.shared import Arrays, Saved
from dnnarray._cuda.attention.tensor_cores import (
    PairArguments,
    Tile,
    given,
    launches_of,
    misaligned,
    nothing_there,
    panel_width,
    reason,
)
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_WARPS = 4  # of a block
cost = mma.cost
workspace = gradients.workspace


@frozen
class MmaBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_backward.cu``."""

    element: str
    key_rows: bool
    given: str
    width: int
    warps: int
    columns: int


@frozen(kw_only=True)
class MmaBackwardArguments(PairArguments):
    """What ``kernels/attention/mma_backward.cu`` is called with."""

    extra: Extra


def _launch(problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool) -> Plan:
    """The launch for the gradients of k and v (`key_rows`), or for that of q."""
    dtype, width, (options, words) = arrays.spec("q").dtype, panel_width(problem), given(problem, arrays)
    columns = 64 if width == 128 and not key_rows else 32
    config = MmaBackwardConfig(TYPES[dtype], key_rows, options, width, _WARPS, columns)
    name = f"attention_mma_backward_{'kv' if key_rows else 'q'}_{SHORT[dtype]}_{width}x{_WARPS}x{columns}{words}"
    kernel = Kernel("attention/mma_backward.cu", name, config, ("attention/rule",))
    tile = Tile(16 * _WARPS, columns, 32 * _WARPS)
    return tile.launch(
        problem,
        kernel,
        key_rows,
        MmaBackwardArguments(**tile.arguments(problem, arrays, saved, key_rows), extra=extra_of(arrays)),
    )


def launches(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    return launches_of(problem, arrays, saved, _launch)


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    return reason(problem, device) or nothing_there(problem) or misaligned(device)


def run(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    return gradients.backward(problem, aligned, mma.launch, launches)
