"""Attention on tensor cores: plans for half types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dnnarray._cuda import attention_backward, attention_tiled
from dnnarray._cuda.attention_backward import Saved, Scratch, bias_plans, delta_plan, saved_of, sink_plans
from dnnarray._cuda.attention_common import (
    NOTHING,
    Arrays,
    Place,
    arrays_of,
    extra_arguments,
    given_options,
    lse_strides,
    page_arguments,
    rarer_options,
    rule_arguments,
)
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF, name_of

_THREADS = 128
_WIDEST = 256
_CHUNK = 8  # features that are moved at once
_OLDEST = (8, 0)
WIDEST_BACKWARD = 128
_WGMMA_QUERIES = 128  # of a block


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


@frozen
class WgmmaBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/wgmma_backward.cu``."""

    element: str
    key_rows: bool
    given: str
    width: int
    groups: int
    columns: int


@frozen
class MmaBackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/mma_backward.cu``."""

    element: str
    key_rows: bool
    given: str
    width: int
    warps: int
    columns: int


def panel_width(problem: AttentionProblem) -> int:
    """Features of the panels in shared memory."""
    widest = max(problem.sizes.width, problem.sizes.value_width)
    return 64 if widest <= 64 else 128 if widest <= 128 else _WIDEST


def has_extras(problem: AttentionProblem, arrays: Arrays) -> bool:
    """Whether more than the scale and the band changes the scores."""
    found = rarer_options(problem, arrays)
    return found["changed"] or found["dropped"]


def _given(problem: AttentionProblem, arrays: Arrays) -> tuple[str, str]:
    """As `given_options`. Kernels for what changes scores take all of it: they are at the limit of their registers, and with less of it some spill."""
    return ("dnnarray::Given<true, true, true>", "_extras") if has_extras(problem, arrays) else given_options(problem, arrays)


def fits(problem: AttentionProblem, places: tuple[Place, ...]) -> bool:
    """Whether the rows of all these arrays are whole chunks."""
    return all(p.vector(_CHUNK) for p in places if p.given)


def rejects(problem: AttentionProblem, device: Device) -> str | None:
    """Half types in rows of whole chunks, not too wide."""
    arrays, sizes = arrays_of(problem), problem.sizes
    q = arrays["q"].spec
    assert q is not None
    if q.dtype not in HALF:
        return "its weights are rounded to a half type, and the arrays are not of one"
    if device.capability is not None and device.capability < _OLDEST:
        return "it needs compute capability 8.0"
    widest = WIDEST_BACKWARD if problem.op.endswith("_backward") else _WIDEST
    if max(sizes.width, sizes.value_width) > widest:
        return f"rows of more than {widest} features do not fit its registers"
    if problem.rule.scale <= 0:
        return "it needs a positive scale"
    names = ("q", "k", "v", "grad_y", "output")
    places = (*(arrays.places[n] for n in names if n in arrays.places), *arrays.results[: 3 if "grad_y" in arrays.places else 1])
    return None if fits(problem, places) else f"features do not come in aligned groups of {_CHUNK}"


def tile_of(width: int, queries: int, extras: bool) -> tuple[int, int]:
    """Blocks of 16 queries for a warp, and keys of a panel."""
    if width == _WIDEST:
        return 1, 16 if extras else 32
    return (2 if width == 64 and queries > 64 and not extras else 1), 64


def _arguments(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Any, tiles: int, extras: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The arguments of both forward kernels."""
    q, k, v = (arrays[name] for name in "qkv")
    return (
        *(p.pointer for p in (q, k, v, y)), lse, tiles, problem.sizes.width, problem.sizes.value_width, *lse_strides(problem), *q.strides,
        *k.strides, *v.strides, *y.strides, *page_arguments(arrays), *extras, *rule_arguments(problem, arrays),
    )  # fmt: skip


def _words(problem: AttentionProblem, arrays: Arrays, output: np.dtype) -> str:
    q = arrays["q"].spec
    assert q is not None
    return f"{'_paged' * ('block_table' in arrays.places)}{_given(problem, arrays)[1]}{'_wide' * (output != q.dtype)}"


def mma_plan(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Any, output: np.dtype) -> Plan:
    """One launch that writes `y`, in the dtype `output`, and lse where its pointer is given."""
    q, sizes, width = arrays["q"].spec, problem.sizes, panel_width(problem)
    assert q is not None
    extras, paged = has_extras(problem, arrays), "block_table" in arrays.places
    row_tiles, keys = tile_of(width, sizes.queries, extras)
    config = MmaConfig(TYPES[q.dtype], TYPES[output], _given(problem, arrays)[0], paged, width, row_tiles, keys)
    name = f"attention_mma_{SHORT[q.dtype]}_{width}x{row_tiles}x{keys}{_words(problem, arrays, output)}"
    tiles = -(-sizes.queries // (64 * row_tiles))
    arguments = _arguments(problem, arrays, y, lse, tiles, extra_arguments(arrays))
    shared = (64 * row_tiles + 4 * keys) * width * 2
    kernel = Kernel("attention/mma.cu", name, config, ("attention",))
    return Plan(kernel, (sizes.batch * sizes.heads * tiles, 1, 1), _THREADS, arguments, shared)


def wgmma_plan(problem: AttentionProblem, arrays: Arrays, y: Place, lse: Any, output: np.dtype) -> Plan:
    """The same by the instructions of Hopper."""
    q, sizes, width = arrays["q"].spec, problem.sizes, panel_width(problem)
    assert q is not None
    keys, groups = wgmma_tile(width)
    paged, (given, _) = "block_table" in arrays.places, given_options(problem, arrays)
    config = WgmmaConfig(TYPES[q.dtype], TYPES[output], paged, given, width, keys, groups)
    name = f"attention_wgmma_{SHORT[q.dtype]}_{width}x{keys}x{groups}{_words(problem, arrays, output)}"
    tiles = -(-sizes.queries // (64 * groups))
    arguments = _arguments(problem, arrays, y, lse, tiles)
    shared = (64 * groups + 4 * keys) * width * 2 + 128 * groups * 4
    kernel = Kernel("attention/wgmma.cu", name, config, ("attention",))
    return Plan(kernel, (sizes.batch * sizes.heads * tiles, 1, 1), 128 * groups, arguments, shared)


def wgmma_tile(width: int) -> tuple[int, int]:
    """Keys of a panel, and warpgroups of a block: what registers and shared memory hold."""
    return (64 if width == _WIDEST else 128), 2


def wgmma_rejects(problem: AttentionProblem, device: Device) -> str | None:
    """What `rejects` says, and nothing that changes single scores."""
    if device.capability is None or device.capability[0] != 9:
        return "it needs the matrix instructions of compute capability 9.0"
    if has_extras(problem, arrays_of(problem)):
        return "softcap, ALiBi, bias, mask and dropout are not in it"
    return rejects(problem, device)


def _forward(plan: Callable[..., Plan], problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    """One launch; where the memory is not aligned, the tiles of the ordinary units."""
    if not aligned:
        return attention_tiled.forward(problem, device, aligned)
    arrays = arrays_of(problem)
    y, lse = arrays.results
    assert y.spec is not None
    if not problem.sizes.batch * problem.sizes.heads * problem.sizes.queries:
        return Program(())
    return Program((plan(problem, arrays, y, lse.pointer if lse.given else NOTHING, y.spec.dtype),), arrays.orders)


forward = partial(_forward, mma_plan)
wgmma_forward = partial(_forward, wgmma_plan)


def _cost(efficiency: float, queries: int, problem: AttentionProblem, device: Device) -> Cost:
    """Tensor cores at a share of their rate, with `queries` of a head in a block; where a launch takes longest, exact weights are preferred."""
    q = arrays_of(problem)["q"].spec
    assert q is not None
    share = attention_tiled.share_of_card(problem, device, queries)
    return Cost(problem.flops, problem.bytes, efficiency * share, launches=2, unit=f"{name_of(q.dtype)}_mma")


cost = partial(_cost, 0.4, 64)
wgmma_cost = partial(_cost, 0.7, _WGMMA_QUERIES)


# --- backward ---------------------------------------------------------------------------------------------------------


def backward_tile(width: int, key_rows: bool) -> tuple[int, int]:
    """Warps of a block, and columns of a panel."""
    return (4, 64) if width == 128 and not key_rows else (4, 32)


def mma_gradient(problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool) -> Plan:
    """The launch for the gradients of k and v, or for that of q."""
    q, width, (given, words) = arrays["q"].spec, panel_width(problem), _given(problem, arrays)
    assert q is not None
    warps, columns = backward_tile(width, key_rows)
    config = MmaBackwardConfig(TYPES[q.dtype], key_rows, given, width, warps, columns)
    name = f"attention_mma_backward_{'kv' if key_rows else 'q'}_{SHORT[q.dtype]}_{width}x{warps}x{columns}{words}"
    kernel = Kernel("attention/mma_backward.cu", name, config, ("attention",))
    return _gradient(problem, arrays, saved, key_rows, kernel, 16 * warps, columns, 32 * warps, extra_arguments(arrays))


def wgmma_gradient(problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool) -> Plan:
    """The same by the instructions of Hopper."""
    q, width, (given, words) = arrays["q"].spec, panel_width(problem), given_options(problem, arrays)
    assert q is not None
    groups, columns = wgmma_backward_tile(width, key_rows)
    config = WgmmaBackwardConfig(TYPES[q.dtype], key_rows, given, width, groups, columns)
    name = f"attention_wgmma_backward_{'kv' if key_rows else 'q'}_{SHORT[q.dtype]}_{width}x{groups}x{columns}{words}"
    kernel = Kernel("attention/wgmma_backward.cu", name, config, ("attention",))
    return _gradient(problem, arrays, saved, key_rows, kernel, 64 * groups, columns, 128 * groups, ())


def wgmma_backward_tile(width: int, key_rows: bool) -> tuple[int, int]:
    """Warpgroups of a block, and columns of a panel: what registers hold."""
    return 2, 64 if key_rows and width > 64 else 128


def _gradient(
    problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool, kernel: Kernel, rows: int, columns: int, threads: int,
    extras: tuple[Any, ...],
) -> Plan:  # fmt: skip
    """A launch of either kernel, `rows` of keys or queries to a block."""
    q, k, v, grad = (arrays[name] for name in ("q", "k", "v", "grad_y"))
    sizes, width = problem.sizes, panel_width(problem)
    out = arrays.results[1 if key_rows else 0]
    value_out = arrays.results[2] if key_rows else Place(NOTHING, None)
    tiles = -(-(sizes.keys if key_rows else sizes.queries) // rows)
    arguments = (
        *(p.pointer for p in (q, k, v, grad)), saved.lse, saved.delta, out.pointer, value_out.pointer, tiles, sizes.width, sizes.value_width,
        *lse_strides(problem), *q.strides, *k.strides, *v.strides, *grad.strides, *out.strides, *value_out.strides, *extras,
        *rule_arguments(problem, arrays),
    )  # fmt: skip
    shared = 2 * (rows + 2 * columns) * width * 2 + 4 * 4 * max(rows, columns)
    blocks = sizes.batch * (sizes.kv_heads if key_rows else sizes.heads) * tiles
    return Plan(kernel, (blocks, 1, 1), threads, arguments, shared)


def _backward(
    again: Callable[..., Plan], gradient: Callable[..., Plan], problem: AttentionProblem, device: Device, aligned: bool
) -> Program:
    """What the forward did not leave, delta, then the gradients; where the memory is not aligned, by the tiles of the ordinary units."""
    if not aligned or not all(spec.size for spec in problem.inputs[1:4]):
        return attention_backward.backward(problem, device, aligned)
    arrays = arrays_of(problem)
    saved = saved_of(problem, arrays)
    plans = [again(problem, arrays, saved.y, saved.lse, saved.result)] if Scratch.of(problem).again else []
    return Program((*plans, *gradient_plans(gradient, problem, arrays, saved, aligned)), arrays.orders)


def gradient_plans(gradient: Callable[..., Plan], problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    """All launches but that of the forward. One is for the gradients of k and v: of these the one that is not wanted is not stored."""
    q, k, v, *_ = problem.wanted
    first = [delta_plan(problem, arrays, saved, aligned)] if problem.wanted.deltas else []
    first += [gradient(problem, arrays, saved, rows) for rows, wanted in ((False, q), (True, k or v)) if wanted]
    return [*first, *bias_plans(problem, arrays, saved, aligned), *sink_plans(problem, arrays, saved)]


backward = partial(_backward, mma_plan, mma_gradient)
wgmma_backward = partial(_backward, wgmma_plan, wgmma_gradient)
