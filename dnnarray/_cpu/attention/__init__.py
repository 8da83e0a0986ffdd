"""Attention and what belongs to it: the algorithms of each operation."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from dnnarray._cpu import compiled, matrix_unit
from dnnarray._cpu.attention import dense as attention_dense
from dnnarray._cpu.attention import packed as attention_packed
from dnnarray._cpu.attention import projected as attention_projected
from dnnarray._cpu.attention import rotary as attention_rotary
from dnnarray._problems.attention import AttentionProblem
from dnnarray._select import Cost, Device, Method
from dnnarray._select.method import plain_cost

_BLOCKS = "blocks of queries and keys with an online softmax"
_AGAIN = "blocks of queries and keys, the weights computed again from lse"


def _blocked_cost(problem: AttentionProblem, device: Device) -> Cost:
    """Matrix products on all cores, and between them passes over the scores on one: 2 ns for each, 200 operations of a
    core."""
    s = problem.sizes
    scores = s.batch * s.heads * s.queries * s.keys
    return Cost(problem.flops / 0.8 + 200 * device.units * scores, problem.bytes, launches=60)


def _blocked(run: Callable[..., Any], summary: str, cost: Callable[..., Cost] = plain_cost) -> tuple[Method, ...]:
    """The half types are widened by blocks, not by whole arrays."""
    return (Method("blocked", run, summary, cost=cost, native=True),)


def _rotation(run: Callable[..., Any], summary: str) -> tuple[Method, ...]:
    return (Method("elementwise", run, summary),)


_NAMES = (
    "bias",
    "mask",
    "alibi_slopes",
    "sink",
    "q_lengths",
    "kv_lengths",
)  # arrays that the compiled kernels do not read
_POSITIONS = (3, 4, 6, 7, 8, 9)  # of these among the inputs of the forward
_TILED = "scores transposed, queries in the lanes of vectors, an online softmax down each lane"

_TILED_BACKWARD = (
    "scores transposed as in the forward, computed again from lse; keys' and values' gradients summed "
    "up over blocks of queries"
)


def _accepts(problem: AttentionProblem, device: Device) -> str | None:
    """What the compiled kernels leave to NumPy."""
    first = 1 if problem.op.endswith("_backward") else 0  # the gradient
    given = [name for name, i in zip(_NAMES, _POSITIONS, strict=True) if problem.inputs[first + i] is not None]
    if given:
        return f"it has no {given[0]}"
    if problem.rule.softcap is not None or problem.rule.dropout:
        return "it has neither softcap nor dropout"
    if not (problem.sizes.width and problem.sizes.value_width):
        return "it takes a width of 1 or more"
    return None


def _tiled_cost(problem: AttentionProblem, device: Device) -> Cost:
    return Cost(problem.flops, problem.bytes, efficiency=0.6, launches=20)


def _refuses_split(problem: AttentionProblem, device: Device) -> str | None:
    s = problem.sizes
    if not (s.batch and s.heads and s.queries and s.keys):
        return "there is nothing to multiply"
    return _accepts(problem, device) or matrix_unit.refuses(compiled.arithmetic(problem))


def _split_workspace(problem: AttentionProblem) -> int:
    """Asked for only where Numba has compiled it."""
    return import_module("dnnarray._cpu.compiled.attention.split_tiled").workspace(problem)


def _split_cost(problem: AttentionProblem, device: Device) -> Cost:
    """Twice as fast as vectors where all is whole: 64 queries by 32 keys by 32 columns; beside it keys and values are
    split."""
    s = problem.sizes
    queries, keys, width, value_width = (
        -(-n // side) * side for n, side in ((s.queries, 64), (s.keys, 32), (s.width, 32), (s.value_width, 32))
    )
    flops = 2 * s.batch * s.heads * queries * keys * (width + value_width) / 1.2
    return Cost(flops + 40 * s.batch * s.kv_heads * keys * (width + value_width), problem.bytes, launches=30)


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "attention": (
        *_blocked(attention_dense.attention, _BLOCKS, _blocked_cost),
        compiled.method("tiled", "attention.tiled", "attention", _TILED, accepts=_accepts, cost=_tiled_cost),
        compiled.method(
            "split_tiled",
            "attention.split_tiled",
            "split_attention",
            f"{_TILED}; {matrix_unit.SUMMARY}",
            accepts=_refuses_split,
            cost=_split_cost,
            workspace=_split_workspace,
            target=matrix_unit.refuses,
            precision=matrix_unit.PRECISION,
        ),
    ),
    "attention_backward": (
        *_blocked(attention_dense.attention_backward, _AGAIN, _blocked_cost),
        compiled.method(
            "tiled",
            "attention.tiled_backward",
            "attention_backward",
            _TILED_BACKWARD,
            accepts=_accepts,
            cost=_tiled_cost,
        ),
    ),
    "attention_varlen": _blocked(attention_packed.varlen, f"{_BLOCKS}, one sequence after another"),
    "attention_varlen_backward": _blocked(attention_packed.varlen_backward, f"{_AGAIN}, one sequence after another"),
    "paged_attention": _blocked(
        attention_packed.paged, f"{_BLOCKS}, over the gathered blocks of one sequence after another"
    ),
    "multi_head_attention": _blocked(attention_projected.multi_head, f"matrix products around {_BLOCKS}"),
    "multi_head_attention_backward": _blocked(
        attention_projected.multi_head_backward, f"matrix products around {_AGAIN}"
    ),
    "rotary_embedding": _rotation(attention_rotary.rotary, "each pair of features turned"),
    "rotary_embedding_backward": _rotation(
        attention_rotary.rotary_backward, "each pair turned back, tables by sums over heads"
    ),
}
