"""Attention backward on the ordinary arithmetic units: plans. One launch for each gradient, from what the forward left or computed again."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.attention_common import (
    NOTHING,
    Argument,
    Arrays,
    Place,
    Strides,
    arithmetic_of,
    arrays_of,
    extra_arguments,
    given_options,
    lse_strides,
    rule_arguments,
    scores_of,
)
from dnnarray._cuda.attention_rotary import sum_parts
from dnnarray._cuda.attention_tiled import forward_plan, patch_of, shared_bytes, values_of, vector_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_THREADS = 256
_ROW_THREADS = 128
_WARP = 32
_SIDE = 16
_DEPTH = 32
_LINE = 256  # bytes that parts of the scratch memory start at multiples of
_BIAS_BLOCKS = 1024  # into which the gradient of a bias is cut at the most
_TARGETS = ("q", "k", "v")


@frozen
class BackwardConfig(Config):
    """Compile-time settings of ``kernels/attention/tiled_backward.cu``."""

    element: str
    target: int
    given: str
    patch: int
    depth: int
    values: int
    vector: int


@frozen
class BiasConfig(Config):
    """Compile-time settings of ``kernels/attention/tiled_bias.cu``."""

    element: str
    output: str
    given: str
    patch: int
    depth: int
    values: int
    vector: int


@frozen
class DeltaConfig(Config):
    """Compile-time settings of ``kernels/attention/delta.cu``."""

    element: str
    result: str
    vector: int
    threads: int


@frozen
class SinkConfig(Config):
    """Compile-time settings of ``kernels/attention/sink_backward.cu``."""

    element: str
    sink: str
    threads: int


def _up(n: int) -> int:
    return -(-n // _LINE) * _LINE


@frozen
class Scratch:
    """Where in the scratch memory what lies, in bytes."""

    again: bool  # y and lse are computed again
    y: int
    lse: int
    delta: int
    bias: int
    end: int

    @classmethod
    def of(cls, problem: AttentionProblem) -> Scratch:
        q, output, lse = problem.inputs[1], problem.inputs[-2], problem.inputs[-1]
        item = arithmetic_of(q.dtype).itemsize
        rows = math.prod(q.shape[:-1])
        again = lse is None or (output is None and problem.wanted.deltas)
        at_lse = _up(rows * problem.sizes.value_width * item) if again else 0
        at_delta = at_lse + (_up(rows * item) if again else 0)
        at_bias = at_delta + _up(rows * item)
        return cls(again, 0, at_lse, at_delta, at_bias, max(at_bias + _bias_bytes(problem), _LINE))


def workspace(problem: AttentionProblem) -> int:
    """Bytes of scratch memory: delta, and what the forward did not leave."""
    return Scratch.of(problem).end


@frozen
class Saved:
    """y, lse and delta of a call: pointers, and how y lies."""

    y: Place
    result: np.dtype
    lse: Argument
    delta: Argument


def _packed(problem: AttentionProblem) -> bool:
    return problem.op.startswith("attention_varlen")


def _again(problem: AttentionProblem, dtype: np.dtype) -> Spec:
    """The result of the forward in the dtype of the arithmetic, in C order."""
    q = problem.inputs[1]
    return Spec((*q.shape[:-1], problem.sizes.value_width), dtype)


def _c_strides(spec: Spec, layout: str) -> Strides:
    steps = spec.c_strides
    if spec.ndim == 3:
        return 0, steps[1], steps[0], steps[2]
    return (steps[0], steps[1], steps[2], steps[3]) if layout == "BHSD" else (steps[0], steps[2], steps[1], steps[3])


def saved_of(problem: AttentionProblem, arrays: Arrays) -> Saved:
    """Where y, lse and delta are found."""
    scratch, base, shift = Scratch.of(problem), arrays.scratch, arrays.shift
    delta = Array(base, shift + scratch.delta)
    if not scratch.again:
        output, q = arrays["output"], arrays["q"].spec
        assert q is not None
        return Saved(output, q.dtype, arrays["lse"].pointer, delta)
    q = problem.inputs[1]
    dtype = arithmetic_of(q.dtype)
    spec = _again(problem, dtype)
    y = Place(Array(base, shift + scratch.y), spec, _c_strides(spec, problem.layout))
    return Saved(y, dtype, Array(base, shift + scratch.lse), delta)


def delta_plan(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> Plan:
    """The launch that writes delta."""
    sizes, q = problem.sizes, arrays["q"].spec
    assert q is not None
    grad, lengths = arrays["grad_y"], arrays.places.get("q_lengths", Place(NOTHING, None))
    batch, queries = (1, q.shape[0]) if _packed(problem) else (sizes.batch, sizes.queries)
    vector = vector_of((grad,), aligned) if grad.given else 1
    config = DeltaConfig(TYPES[q.dtype], TYPES[saved.result], vector, _ROW_THREADS)
    name = f"attention_delta_{SHORT[q.dtype]}x{vector}{'_wide' * (saved.result != q.dtype)}"
    rows = batch * sizes.heads * queries
    kind = 0 if lengths.spec is None else lengths.spec.dtype.itemsize + 16 * (lengths.spec.dtype.kind == "u")
    arguments = (
        grad.pointer, saved.y.pointer, arrays["grad_lse"].pointer, saved.delta, rows, queries, sizes.heads, sizes.value_width,
        lengths.pointer, kind, *lse_strides(problem), *grad.strides, *saved.y.strides,
    )  # fmt: skip
    blocks = -(-rows // (_ROW_THREADS // _WARP))
    return Plan(Kernel("attention/delta.cu", name, config), (blocks, 1, 1), _ROW_THREADS, arguments)


def _common(problem: AttentionProblem, arrays: Arrays, saved: Saved, out: Place, own: tuple[int, ...]) -> tuple[Argument, ...]:
    """The arguments that the kernels of all gradients share; `own` are those of this one."""
    q, k, v, grad, sizes = arrays["q"], arrays["k"], arrays["v"], arrays["grad_y"], problem.sizes
    return (
        *(p.pointer for p in (q, k, v, grad)), saved.lse, saved.delta, out.pointer, *own, sizes.width, sizes.value_width,
        *lse_strides(problem), *q.strides, *k.strides, *v.strides, *grad.strides, *out.strides, *extra_arguments(arrays),
        *rule_arguments(problem, arrays),
    )  # fmt: skip


def gradient_plan(problem: AttentionProblem, arrays: Arrays, saved: Saved, target: int, aligned: bool) -> Plan:
    """The launch for the gradient of q (0), k (1) or v (2)."""
    places, sizes = tuple(arrays[name] for name in ("q", "k", "v", "grad_y")), problem.sizes
    q = places[0].spec
    assert q is not None
    dtype, width = q.dtype, sizes.value_width if target == 2 else sizes.width
    patch, values, vector = patch_of(dtype), values_of(dtype, width), vector_of(places, aligned)
    tiles = -(-(sizes.queries if target == 0 else sizes.keys) // (patch * _SIDE))
    slices = max(-(-width // values), 1)
    given, words = given_options(problem, arrays)
    config = BackwardConfig(TYPES[dtype], target, given, patch, _DEPTH, values, vector)
    name = f"attention_tiled_backward_{_TARGETS[target]}_{SHORT[dtype]}x{vector}_{values}{words}"
    blocks = sizes.batch * (sizes.heads if target == 0 else sizes.kv_heads) * tiles * slices
    arguments = _common(problem, arrays, saved, arrays.results[target], (tiles, slices))
    shared = shared_bytes(dtype, patch, _DEPTH, values)
    kernel = Kernel("attention/tiled_backward.cu", name, config, ("attention",))
    return Plan(kernel, (blocks, 1, 1), _THREADS, arguments, shared)


# --- bias and sink ----------------------------------------------------------------------------------------------------


@frozen
class _BiasWork:
    """How the gradient of a bias is cut: tiles of the bias, and parts of what meets in each."""

    own: tuple[int, int, int, int]
    tiles: int
    chunk: int
    parts: int

    @classmethod
    def of(cls, problem: AttentionProblem, bias: Spec) -> _BiasWork:
        tile = patch_of(bias.dtype) * _SIDE
        shape = (*(1,) * (4 - bias.ndim), *bias.shape)
        counts = [n if axis < 2 else -(-n // tile) for axis, n in enumerate(problem.sizes.scores)]
        tiles = math.prod(count for count, n in zip(counts, shape, strict=True) if n != 1)
        meeting = math.prod(count for count, n in zip(counts, shape, strict=True) if n == 1)
        parts = max(min(meeting, _BIAS_BLOCKS // max(tiles, 1)), 1)
        chunk = max(-(-meeting // parts), 1)
        batch, heads, queries, keys = shape
        return cls((batch, heads, queries, keys), tiles, chunk, max(-(-meeting // chunk), 1))


def _bias_of(problem: AttentionProblem) -> Spec | None:
    return problem.outputs[3] if len(problem.outputs) == 5 else None


def _bias_bytes(problem: AttentionProblem) -> int:
    bias = _bias_of(problem)
    if bias is None or not bias.size:
        return 0
    work = _BiasWork.of(problem, bias)
    return _up(work.parts * bias.size * arithmetic_of(bias.dtype).itemsize) if work.parts > 1 else 0


def bias_plans(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    """The gradient of the bias, with the second stage of its sums where it is cut."""
    bias = _bias_of(problem)
    if bias is None or not bias.size:
        return []
    work, dtype, target = _BiasWork.of(problem, bias), bias.dtype, arrays.results[3]
    wide = arithmetic_of(dtype) if work.parts > 1 else dtype
    steps = scores_of(bias)
    out = Place(Array(arrays.scratch, arrays.shift + Scratch.of(problem).bias) if work.parts > 1 else target.pointer, bias, steps)
    patch, vector = patch_of(dtype), vector_of(tuple(arrays[name] for name in ("q", "k", "v", "grad_y")), aligned)
    given, words = given_options(problem, arrays)
    config = BiasConfig(TYPES[dtype], TYPES[wide], given, patch, _DEPTH, 64, vector)
    name = f"attention_tiled_bias_{SHORT[dtype]}x{vector}{words}{'_parts' * (work.parts > 1)}"
    own = (problem.sizes.batch, *work.own, work.chunk, work.parts, bias.size)
    arguments = _common(problem, arrays, saved, out, own)
    kernel = Kernel("attention/tiled_bias.cu", name, config, ("attention",))
    plans = [Plan(kernel, (work.tiles * work.parts, 1, 1), _THREADS, arguments, shared_bytes(dtype, patch, _DEPTH, 64))]
    if work.parts > 1:
        plans.append(sum_parts([(out.pointer, target.pointer)], bias.size, work.parts, dtype, wide))
    return plans


def sink_plans(problem: AttentionProblem, arrays: Arrays, saved: Saved) -> list[Plan]:
    """The gradient of the sinks."""
    sink, out = arrays["sink"], arrays.results[-1]
    if out.spec is None or sink.spec is None or not sink.spec.size:
        return []
    sizes, q = problem.sizes, arrays["q"].spec
    assert q is not None
    batch, queries = (1, q.shape[0]) if _packed(problem) else (sizes.batch, sizes.queries)
    config = SinkConfig(TYPES[q.dtype], TYPES[sink.spec.dtype], _THREADS)
    name = f"attention_sink_backward_{SHORT[q.dtype]}{'_wide' * (sink.spec.dtype != q.dtype)}"
    arguments = (sink.pointer, saved.lse, saved.delta, out.pointer, batch * queries, max(queries, 1), *lse_strides(problem))
    return [Plan(Kernel("attention/sink_backward.cu", name, config), (sizes.heads, 1, 1), _THREADS, arguments, 256)]


# --- the whole --------------------------------------------------------------------------------------------------------


def backward(problem: AttentionProblem, device: Device, aligned: bool) -> Program:
    """What the forward did not leave, delta, then each gradient that is wanted."""
    arrays = arrays_of(problem)
    return Program(tuple(backward_plans(problem, arrays, saved_of(problem, arrays), aligned)), arrays.orders)


def backward_plans(problem: AttentionProblem, arrays: Arrays, saved: Saved, aligned: bool) -> list[Plan]:
    """All launches."""
    sizes = problem.sizes
    q = arrays["q"].spec
    assert q is not None
    plans: list[Plan] = []
    if q.size or math.prod(q.shape[:-1]):
        if Scratch.of(problem).again:
            plans.append(forward_plan(problem, arrays, saved.y, saved.lse, saved.result, aligned))
        if problem.wanted.deltas:
            plans.append(delta_plan(problem, arrays, saved, aligned))
    for target in (0, 1, 2):
        out = arrays.results[target].spec
        if out is not None and out.size and sizes.batch:
            plans.append(gradient_plan(problem, arrays, saved, target, aligned))
    return [*plans, *bias_plans(problem, arrays, saved, aligned), *sink_plans(problem, arrays, saved)]
