"""The algorithms ``multi_head_*``: matrix products by cuBLAS around the launches of an attention, over parts of the
scratch memory.

Half types are widened to float32 first and the results rounded last, as all arithmetic of the family is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from dnnarray._cuda.attention import (
    gradients,
    mma,
    mma_backward,
    place_rows,
    tiled,
    tiled_backward,
    wgmma,
    wgmma_backward,
)
from dnnarray._cuda.attention.arguments import integer_kind
from dnnarray._cuda.attention.gradients import Launches, after_forward, saved_of
from dnnarray._cuda.attention.place_rows import PlaceRowsArguments
from dnnarray._cuda.attention.shared import ABSENT, Argument, Arrays, Launch, Place, rows_of, scores_of
from dnnarray._cuda.attention.tensor_cores import WIDEST_BACKWARD, hopper_reason, panel_width, reason
from dnnarray._cuda.core.extents import arithmetic_of, order_of, round_up
from dnnarray._cuda.core.plan import Array, MatMul, Matrix, Plan, Program
from dnnarray._problems.attention import ARRAYS, AttentionProblem
from dnnarray._problems.attention_projected import MultiHeadProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, HALF, Spec

_LINE = 256  # bytes that parts of the scratch memory start at multiples of


class _Attention(NamedTuple):
    """How the attention in the middle is planned: its forward launch and those of its gradients, and whether its arrays
    keep the dtype of the operation."""

    forward: Launch
    backward: Launches
    keeps: bool

    def dtype(self, dtype: np.dtype) -> np.dtype:
        """The dtype in which its arrays lie."""
        return dtype if self.keeps else arithmetic_of(dtype)


_TILED = _Attention(tiled.launch, tiled_backward.launches, False)
_MMA = _Attention(mma.launch, mma_backward.launches, True)
_WGMMA = _Attention(wgmma.launch, wgmma_backward.launches, True)


@dataclass
class _Builder:
    """Plans and the scratch memory they use, part by part."""

    problem: MultiHeadProblem
    pointers: dict[str, Array]
    specs: dict[str, Spec | None]
    dtype: np.dtype  # of the arithmetic, or of what lies between the products on tensor cores
    precision: str
    attention: _Attention
    base: int  # where the scratch memory stands in the list of arrays
    used: int = 0
    plans: list[Plan | MatMul] = field(default_factory=list)

    def take(self, size: int, dtype: np.dtype | None = None) -> Array:
        """A part of the scratch memory."""
        part = Array(self.base, self.used)
        self.used += round_up(size * (dtype or self.dtype).itemsize, _LINE)
        return part

    def place(self, source: Argument, kind: np.dtype, target: Array, result: np.dtype, rows: int, width: int, step: int,
              constant: float = 0.0, lengths: str = "", sequence: int = 1) -> None:  # fmt: skip
        """A launch of ``place_rows``; `lengths` names the lengths of the sequences where rows past their ends are
        zeros."""
        if not rows * width:
            return
        of_lengths = Place(self.pointers.get(lengths), self.specs.get(lengths))
        arguments = PlaceRowsArguments(
            x=source,
            y=target,
            size=rows * width,
            width=width,
            step=step,
            constant=float(constant),
            lengths=of_lengths.pointer,
            lengths_kind=integer_kind(of_lengths),
            sequence=max(sequence, 1),
        )
        self.plans.append(place_rows.launch(kind, result, arguments))

    def wide(self, name: str) -> Argument:
        """An input in the dtype of the arithmetic; None where it is absent."""
        spec = self.specs[name]
        if spec is None:
            return None
        if spec.dtype == self.dtype or spec.dtype not in HALF:
            return self.pointers[name]
        target = self.take(spec.size)
        self.place(self.pointers[name], spec.dtype, target, self.dtype, 1, spec.size, spec.size)
        return target

    def rows(self, name: str, lengths: str) -> Argument:
        """x (B, S, E) in the dtype of the arithmetic, zeros past the end of each sequence: what padding holds, even
        NaN, counts as 0."""
        spec = self.specs[name]
        assert spec is not None
        if self.specs.get(lengths) is None:
            return self.wide(name)
        target = self.take(spec.size)
        batch, sequence, width = spec.shape
        self.place(
            self.pointers[name], spec.dtype, target, self.dtype, batch * sequence, width, width, 0.0, lengths, sequence
        )
        return target

    def multiply(
        self,
        a: Argument,
        b: Argument,
        c: Array,
        m: int,
        n: int,
        k: int,
        a_t: bool = False,
        b_t: bool = False,
        beta: float = 0.0,
    ) -> None:
        """c (m, n) = a (m, k) @ b (k, n) + beta c, each dense, `_t` where it is stored the other way round."""
        if not m * n:
            return
        if not k:
            if not beta:
                self.place(None, self.dtype, c, self.dtype, m, n, 0)
            return
        assert a is not None
        assert b is not None
        of_a, of_b = Matrix(a, m if a_t else k, 0, a_t), Matrix(b, k if b_t else n, 0, b_t)
        self.plans.append(
            MatMul(of_a, of_b, Matrix(c, n), m, n, k, self.dtype, self.dtype, beta=beta, precision=self.precision)
        )

    def project(self, x: Argument, weight: Argument, bias: Argument, y: Array, rows: int, out: int, width: int) -> None:
        """y = x @ weight.T + bias."""
        if bias is not None:
            self.place(bias, self.dtype, y, self.dtype, rows, out, 0)
        self.multiply(x, weight, y, rows, out, width, b_t=True, beta=float(bias is not None))

    def store(self, source: Array, result: int) -> None:
        """A result, rounded to its own dtype."""
        spec = self.problem.outputs[result]
        assert spec is not None
        self.place(source, self.dtype, self.target(result), spec.dtype, 1, spec.size, spec.size)

    def target(self, result: int) -> Array:
        """The pointer of a result."""
        return Array(self.base - sum(s is not None for s in self.problem.outputs[result:]))

    def aim(self, result: int) -> Array:
        """Where a result is written in the dtype of the arithmetic: its own memory, or a part of the scratch memory for
        `settle`."""
        spec = self.problem.outputs[result]
        assert spec is not None
        return self.target(result) if spec.dtype == self.dtype else self.take(spec.size)

    def settle(self, aimed: Array, result: int) -> None:
        """Round what `aim` put into the scratch memory."""
        if aimed != self.target(result):
            self.store(aimed, result)


@frozen
class _Layer:
    """One projection: its input, weight and bias, and the result."""

    x: Argument
    w: Argument
    b: Argument
    y: Argument
    rows: int
    out: int
    width: int


def _builder(problem: MultiHeadProblem, precision: str, attention: _Attention) -> _Builder:
    specs = dict(zip(problem.arrays, problem.inputs, strict=True))
    names = [name for name, spec in specs.items() if spec is not None]
    pointers = {name: Array(i) for i, name in enumerate(names)}
    x = specs["x_q"]
    assert x is not None
    base = len(names) + sum(s is not None for s in problem.outputs)
    return _Builder(problem, pointers, specs, attention.dtype(x.dtype), precision, attention, base)


def _layers(make: _Builder, live: bool) -> list[_Layer]:
    """The projections of q, k and v, planned."""
    layers = []
    for letter, lengths in zip("qkv", ("q_lengths", "kv_lengths", "kv_lengths"), strict=True):
        x, w = make.specs[f"x_{letter}"], make.specs[f"w_{letter}"]
        assert x is not None
        assert w is not None
        rows, (out, width) = x.shape[0] * x.shape[1], w.shape
        source = make.rows(f"x_{letter}", lengths) if live else make.wide(f"x_{letter}")
        weight, bias, y = make.wide(f"w_{letter}"), make.wide(f"b_{letter}"), make.take(rows * out)
        make.project(source, weight, bias, y, rows, out, width)
        layers.append(_Layer(source, weight, bias, y, rows, out, width))
    return layers


def _core(make: _Builder, layers: list[_Layer]) -> tuple[AttentionProblem, dict[str, Place]]:
    """The attention in the middle, in the dtype of the arithmetic, and where its inputs lie."""
    problem = make.problem.core
    inputs, places = [], {}
    for name, spec, layer in zip("qkv", problem.inputs[:3], layers, strict=True):
        wide = Spec(spec.shape, make.dtype)
        inputs.append(wide)
        places[name] = Place(layer.y, wide, rows_of(wide, "BSHD"))
    for name, spec in zip(ARRAYS[3:], problem.inputs[3:], strict=True):
        pointer = make.wide(name) if spec is not None else None
        wide = spec if spec is None or spec.dtype not in HALF else Spec(spec.shape, make.dtype, spec.strides)
        inputs.append(wide)
        places[name] = Place(
            pointer, wide, scores_of(wide) if wide is not None and name in ("bias", "mask") else (0, 0, 0, 0)
        )
    s = problem.sizes
    y = Spec((s.batch, s.queries, s.heads, s.value_width), make.dtype)
    lse = Spec((s.batch, s.heads, s.queries), arithmetic_of(make.dtype))
    return replace(problem, op="attention", inputs=tuple(inputs), outputs=(y, lse)), places


def _orders(make: _Builder) -> tuple[tuple[int, ...], ...]:
    return tuple(
        order_of(spec) if name in ("bias", "mask") else tuple(range(spec.ndim))
        for name, spec in make.specs.items()
        if spec is not None
    )


def _attend(make: _Builder, core: AttentionProblem, places: dict[str, Place], aligned: bool) -> tuple[Place, Array]:
    """y and lse of the core, planned into the scratch memory."""
    y, lse = core.outputs
    assert y is not None
    assert lse is not None
    place, of_lse = Place(make.take(y.size), y, rows_of(y, "BSHD")), make.take(lse.size, lse.dtype)
    if y.size:
        arrays = Arrays(places, (), 0, (), make.base)
        make.plans.append(make.attention.forward(core, arrays, place, of_lse, make.dtype, aligned))
    return place, of_lse


def _forward(problem: MultiHeadProblem, precision: str, attention: _Attention, aligned: bool) -> _Builder:
    make = _builder(problem, precision, attention)
    core, places = _core(make, _layers(make, live=False))
    y, _ = _attend(make, core, places, aligned)
    s, w = problem.sizes, make.specs["w_o"]
    assert w is not None
    out = make.aim(0)
    make.project(y.pointer, make.wide("w_o"), make.wide("b_o"), out, s.batch * s.queries, w.shape[0], w.shape[1])
    make.settle(out, 0)
    return make


# --- backward ---------------------------------------------------------------------------------------------------------


def _layer_gradients(
    make: _Builder, grad: Argument, layer: _Layer, grad_x: Array | None, weight: int, bias: int, ones: Array | None
) -> None:
    """The gradients of one projection: of x to `grad_x`, of the weight and of the bias to these results; of those that
    are wanted."""
    if grad_x is not None:
        make.multiply(grad, layer.w, grad_x, layer.rows, layer.width, layer.out)
    if make.problem.outputs[weight] is not None:
        of_weight = make.aim(weight)
        make.multiply(grad, layer.x, of_weight, layer.out, layer.width, layer.rows, a_t=True)
        make.settle(of_weight, weight)
    if make.problem.outputs[bias] is not None:
        of_bias = make.aim(bias)
        make.multiply(ones, grad, of_bias, 1, layer.out, layer.rows)
        make.settle(of_bias, bias)


def _backward(problem: MultiHeadProblem, precision: str, attention: _Attention, aligned: bool) -> _Builder:
    make = _builder(problem, precision, attention)
    layers = _layers(make, live=True)
    core, places = _core(make, layers)
    y, lse = _attend(make, core, places, aligned)
    s, w = problem.sizes, make.specs["w_o"]
    assert w is not None
    rows, ones = s.batch * s.queries, None
    if any(problem.outputs[7:11]):
        ones = make.take(max(layer.rows for layer in layers))
        make.place(None, make.dtype, ones, make.dtype, 1, max(layer.rows for layer in layers), 0, 1.0)
    y_spec = core.outputs[0]
    assert y_spec is not None
    last = _Layer(y.pointer, make.wide("w_o"), None, y.pointer, rows, *w.shape)
    of_y = make.take(y_spec.size) if problem.attends_back else None
    _layer_gradients(make, make.wide("grad"), last, of_y, 6, 10, ones)
    if of_y is None:
        return make
    grad_y = Place(of_y, y_spec, rows_of(y_spec, "BSHD"))
    heads = _core_gradients(make, core, places | {"grad": grad_y, "output": y}, lse, aligned)
    for n, (layer, grad) in enumerate(zip(layers, heads, strict=True)):
        if grad is not None:
            grad_x = make.aim(n) if problem.outputs[n] is not None else None
            _layer_gradients(make, grad, layer, grad_x, 3 + n, 7 + n, ones)
            if grad_x is not None:
                make.settle(grad_x, n)
    return make


def _core_gradients(
    make: _Builder, core: AttentionProblem, places: dict[str, Place], lse: Array, aligned: bool
) -> list[Array | None]:
    """The gradients of the core, planned: those of q, k and v that are needed in the scratch memory, those of bias and
    sink where they belong."""
    y, of_lse = core.outputs
    inputs = core.inputs
    needed = [spec if n in make.problem.heads else None for n, spec in zip("qkv", inputs, strict=False)]
    heads = [ABSENT if spec is None else Place(make.take(spec.size), spec, rows_of(spec, "BSHD")) for spec in needed]
    aims = {n: make.aim(n) for n in (11, 12) if make.problem.outputs[n] is not None}
    others = [Place(aims[n], spec) if n in aims else ABSENT for n, spec in ((11, inputs[3]), (12, inputs[7]))]
    outputs = (*needed, *(place.spec for place in others))
    problem = replace(core, op="attention_backward", inputs=(y, *inputs, y, of_lse), outputs=outputs)
    rest = {"grad_lse": ABSENT, "lse": Place(lse, of_lse)}
    arrays = Arrays(places | rest, (), 0, (*heads, *others), make.base, make.used)
    make.used += round_up(gradients.workspace(problem), _LINE)
    make.plans += after_forward(problem, arrays, saved_of(problem, arrays), aligned, make.attention.backward)
    for n, at in aims.items():
        make.settle(at, n)
    return [place.pointer if place.given else None for place in heads]


# --- methods ----------------------------------------------------------------------------------------------------------


def _build(problem: MultiHeadProblem, precision: str, attention: _Attention, aligned: bool) -> _Builder:
    return (_backward if problem.op.endswith("_backward") else _forward)(problem, precision, attention, aligned)


def _run(precision: str, attention: _Attention, problem: MultiHeadProblem, device: Device, aligned: bool) -> Program:
    """For float32 products of this precision around this attention, whose rows lie in scratch memory, aligned."""
    make = _build(problem, precision, attention, aligned)
    return Program(tuple(make.plans), _orders(make))


def _workspace(attention: _Attention, problem: MultiHeadProblem) -> int:
    return _build(problem, "highest", attention, True).used


def _cost(
    core_cost: Callable[[AttentionProblem, Device], Cost],
    efficiency: float | None,
    problem: MultiHeadProblem,
    device: Device,
) -> Cost:
    """As of the attention in the middle, with the launches around it. On tensor cores (`efficiency` None), where the
    launches take longest, exact numbers between them are preferred."""
    launches = len(_build(problem, "highest", _TILED, True).plans)
    core = core_cost(_core_problem(problem), device)
    if efficiency is None:
        return replace(core, flops=problem.flops, bytes=problem.bytes, launches=launches + 1)
    return replace(core, flops=problem.flops, bytes=problem.bytes, launches=launches, efficiency=efficiency)


def _core_problem(problem: MultiHeadProblem) -> AttentionProblem:
    return replace(problem.core, op="attention")


def _rejects(
    core_reason: Callable[[AttentionProblem, Device], str | None], problem: MultiHeadProblem, device: Device
) -> str | None:
    """What the attention in the middle says, on the way back too, and nothing to do for an empty array."""
    core = _core_problem(problem)
    if not all(spec.size for spec in core.inputs[:3]):
        return "an array is empty"
    if problem.op.endswith("_backward") and panel_width(core) > WIDEST_BACKWARD:
        return f"rows of more than {WIDEST_BACKWARD} features do not fit the registers of its gradients"
    return core_reason(core, device)


def only_float32(problem: MultiHeadProblem, device: Device) -> str | None:
    """Half types are not rounded a second time on the way."""
    return None if problem.inputs[0].dtype == FLOAT32 else "it rounds float32 operands, and these are not"


run_tiled, run_tiled_tf32 = partial(_run, "highest", _TILED), partial(_run, "high", _TILED)
run_mma, run_wgmma = partial(_run, "highest", _MMA), partial(_run, "highest", _WGMMA)
workspace_tiled, workspace_mma, workspace_wgmma = (
    partial(_workspace, attention) for attention in (_TILED, _MMA, _WGMMA)
)
cost_tiled, cost_tiled_tf32 = partial(_cost, tiled.cost, 0.5), partial(_cost, tiled.cost, 0.6)
cost_mma, cost_wgmma = partial(_cost, mma.cost, None), partial(_cost, wgmma.cost, None)
rejects_mma, rejects_wgmma = partial(_rejects, reason), partial(_rejects, hopper_reason)
