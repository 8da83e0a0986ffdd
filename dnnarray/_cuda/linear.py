"""Linear layers: matrix products by cuBLAS with the bias, the residual and the activation in one pass behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dnnarray._cuda import linear_conv
from dnnarray._cuda.common.channel_sums import add_channel_sums
from dnnarray._cuda.common.channels import View, lies
from dnnarray._cuda.common.epilogue import Epilogue, apply
from dnnarray._cuda.common.epilogue_backward import slope
from dnnarray._cuda.common.rearrange import rearrange
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import MatMul, Matrix, Plan, Program
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems.base import leaves
from dnnarray._problems.linear import LinearProblem
from dnnarray._select import Cost, Device, Method, share_of_peak
from dnnarray._spec import FLOAT32, HALF, Spec

_SCRATCH = 256 << 20  # bytes of float32 results that wait for their epilogue, at most


def _matrix(operand: Operand, row: int, transposed: bool = False) -> Matrix:
    return Matrix(operand.array, max(row, 1), 0, transposed)


class _Layer:
    """The steps of one problem: x (rows, features), weight (outs, features) in its own memory order."""

    def __init__(self, problem: LinearProblem, aligned: bool, precision: str) -> None:
        self.problem, self.steps, self.precision = problem, Planner(problem, aligned), precision
        self.rows, self.features, self.outs = problem.rows, problem.features, problem.outs
        self.dtype = problem.inputs[0].dtype

    def multiply(self, a: Matrix, b: Matrix, c: Operand, m: int, n: int, k: int, dtype: np.dtype) -> None:
        """c = a b, c dense; a product over nothing is 0."""
        if m * n == 0:
            return
        if k == 0:
            self.steps.add(zero(c.array, m * n * c.dtype.itemsize, self.steps.aligned))
            return
        self.steps.add(MatMul(a, b, Matrix(c.array, n), m, n, k, dtype, c.dtype, precision=self.precision))

    def weight(self, weight: Operand, spec: Spec, for_input: bool) -> Matrix:
        """The weight as the right-hand side of the forward (features x outs) or of the input's gradient (outs x
        features)."""
        turned = not lies(spec, (0, 1))
        return _matrix(weight, self.outs if turned else self.features, turned == for_input)

    def product(self, x: Operand, weight: Operand, z: Operand, first: int, rows: int) -> None:
        """`rows` rows of x weight^T from row `first` on."""
        a = _matrix(x.part(first * self.features), self.features)
        b = self.weight(weight, self.problem.inputs[-3], False)
        self.multiply(a, b, z, rows, self.outs, self.features, x.dtype)

    def blocks(self) -> list[tuple[int, int]]:
        """(first, count) of rows whose float32 results fit into the scratch memory."""
        each = max(_SCRATCH // max(4 * self.outs, 1), 1)
        return [(i, min(each, self.rows - i)) for i in range(0, self.rows, each)]


def _forward(problem: LinearProblem, aligned: bool, precision: str) -> Planner:
    layer = _Layer(problem, aligned, precision)
    steps, dtype, outs = layer.steps, layer.dtype, layer.outs
    x, weight, bias, residual = steps.inputs
    y, e = Operand(steps.outputs[0], dtype), Epilogue(bias, residual, problem.activation)
    wide = not e.empty and dtype in HALF
    for first, count in layer.blocks() if wide else [(0, layer.rows)]:
        part = y.part(first * outs)
        with steps.borrowed():
            z = steps.take(FLOAT32, count * outs) if wide else part
            layer.product(Operand(x, dtype), Operand(weight, dtype), z, first, count)
            if not e.empty:
                steps.add(apply(e, z, part, View(count, outs, 1), aligned, first * outs))
    return steps


def _backward(problem: LinearProblem, aligned: bool, precision: str) -> Planner:
    layer = _Layer(problem, aligned, precision)
    steps, dtype, rows, outs = layer.steps, layer.dtype, layer.rows, layer.outs
    grad, x, weight = (Operand(a, dtype) for a in steps.inputs[:3])
    dx, dweight, dbias, *rest = steps.outputs
    e = Epilogue(steps.inputs[3], steps.inputs[4], problem.activation)
    dz = grad
    if problem.activation is not None and rows * outs:
        z = steps.take(arithmetic_of(dtype), rows * outs)
        layer.product(x, weight, z, 0, rows)
        dz = (
            steps.take(FLOAT32, rows * outs)
            if e.rounds_slope(dtype)
            else z
            if z.dtype == dtype
            else steps.take(dtype, rows * outs)
        )
        steps.add(slope(e, grad, z, dz, View(rows, outs, 1), aligned))
    if dx is not None:
        _input_gradient(layer, dz, _alike(steps, weight, problem.inputs[2], dz.dtype))
    if dweight is not None:
        _weight_gradient(layer, dz, _alike(steps, x, problem.inputs[1], dz.dtype))
    if dbias is not None:
        add_channel_sums(steps, dz, View(rows, outs, 1), Operand(dbias, dtype))
    if rest and rest[0] is not None:
        line = (rows * outs,)
        steps.add(rearrange(Operand(dz.array, dz.dtype, (1,)), Operand(rest[0], dtype, (1,)), line))
    return steps


def _alike(steps: Planner, operand: Operand, spec: Spec, dtype: np.dtype) -> Operand:
    """The same array in this dtype."""
    if operand.dtype == dtype:
        return operand
    target = steps.take(dtype, spec.size)
    steps.add(rearrange(Operand(operand.array, operand.dtype, (1,)), Operand(target.array, dtype, (1,)), (spec.size,)))
    return target


def _input_gradient(layer: _Layer, dz: Operand, weight: Operand) -> None:
    """dx = dz weight, through scratch memory where its dtype or its order is another one."""
    steps, spec, size = layer.steps, layer.problem.outputs[0], layer.rows * layer.features
    assert spec is not None
    direct = lies(spec, range(spec.ndim)) and dz.dtype == spec.dtype
    target = Operand(steps.outputs[0], spec.dtype, _strides(spec))
    with steps.borrowed():
        result = target if direct else steps.take(dz.dtype, size)
        b = layer.weight(weight, layer.problem.inputs[2], True)
        layer.multiply(_matrix(dz, layer.outs), b, result, layer.rows, layer.features, layer.outs, dz.dtype)
        if not direct:
            steps.add(_to_memory(Operand(result.array, result.dtype, spec.c_strides), target, spec))


def _to_memory(source: Operand, target: Operand, spec: Spec) -> Plan | None:
    """A copy into the memory order of `spec`; leading axes that lie as in C order count as one."""
    shape, s, t = list(spec.shape), list(source.strides), list(target.strides)
    for i in reversed(range(len(shape) - 1)):
        if s[i] == shape[i + 1] * s[i + 1] and t[i] == shape[i + 1] * t[i + 1]:
            shape[i : i + 2], s[i : i + 2], t[i : i + 2] = [shape[i] * shape[i + 1]], [s[i + 1]], [t[i + 1]]
    return rearrange(
        Operand(source.array, source.dtype, tuple(s)), Operand(target.array, target.dtype, tuple(t)), shape
    )


def _strides(spec: Spec) -> tuple[int, ...]:
    return spec.strides or spec.c_strides


def _weight_gradient(layer: _Layer, dz: Operand, x: Operand) -> None:
    """dweight = dz^T x, or its transpose where the weight lies so."""
    steps, spec = layer.steps, layer.problem.outputs[1]
    assert spec is not None
    rows, features, outs = layer.rows, layer.features, layer.outs
    target = Operand(steps.outputs[1], spec.dtype)
    turned = not lies(spec, (0, 1))
    with steps.borrowed():
        result = target if dz.dtype == spec.dtype else steps.take(dz.dtype, spec.size)
        if turned:
            layer.multiply(_matrix(x, features, True), _matrix(dz, outs), result, features, outs, rows, dz.dtype)
        else:
            layer.multiply(_matrix(dz, outs, True), _matrix(x, features), result, outs, features, rows, dz.dtype)
        if result is not target:
            line = (spec.size,)
            steps.add(
                rearrange(Operand(result.array, result.dtype, (1,)), Operand(target.array, target.dtype, (1,)), line)
            )


# --- the table --------------------------------------------------------------------------------------------------------


def _orders(problem: LinearProblem) -> tuple[tuple[int, ...], ...]:
    """The weight as it lies, if that is dense, everything else in C order."""
    weight = problem.inputs[-3]
    return tuple((s.axis_order() if s is weight else None) or tuple(range(s.ndim)) for s in leaves(problem.inputs))


_Planner = Callable[[LinearProblem, bool, str], Planner]


def _run(plan: _Planner, precision: str, problem: LinearProblem, device: Device, aligned: bool) -> Program:
    return Program(tuple(plan(problem, aligned, precision).plans), _orders(problem))


def _workspace(plan: _Planner, problem: LinearProblem) -> int:
    return plan(problem, True, "highest").workspace


def _rejects(precision: str, problem: LinearProblem, device: Device) -> str | None:
    dtype = problem.inputs[0].dtype
    if precision != "highest" and dtype != FLOAT32:
        return f"{dtype.name} arrays; it rounds float32 operands"
    if max(problem.rows, problem.features, problem.outs) >= 1 << 31:
        return "an extent of 2^31 or more"
    if any(
        s is not None and len([n for n in s.shape if n != 1]) > 5 and s.axis_order() not in (None, tuple(range(s.ndim)))
        for s in problem.outputs
    ):
        return "an array of more than five axes in a mixed memory order"
    return None


_LIBRARY, _LIBRARY_HALF = 0.8, 0.99  # shares of the peak rate that cuBLAS reaches


def _cost(precision: str, launches: int, problem: LinearProblem, device: Device) -> Cost:
    """The products, and behind them the pass over float32 sums that wait for their bias, residual or activation."""
    dtype = problem.inputs[0].dtype
    passes = problem.activation is not None or (
        not problem.backward and any(s is not None for s in problem.inputs[-2:])
    )
    waits = 2 * 4 * problem.rows * problem.outs * passes
    of_peak = unit(dtype, precision)
    peak = device.peak.get(of_peak or "") or device.peak["float32"]
    seconds = problem.flops / (peak * (_LIBRARY_HALF if dtype in HALF else _LIBRARY)) + waits / device.bandwidth
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), launches, of_peak)


def _methods(plan: _Planner, launches: int) -> tuple[Method, ...]:
    names = {"highest": "gemm", "high": "gemm_tf32", "medium": "gemm_bf16"}
    return tuple(
        Method(
            name,
            partial(_run, plan, p),
            "cuBLAS, then bias, residual and activation in one pass",
            partial(_rejects, p),
            partial(_workspace, plan),
            partial(_cost, p, launches),
            precision=p,
        )
        for p, name in names.items()
    )


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "linear": (*_methods(_forward, 2), *linear_conv.methods(_orders, _forward)),
    "linear_backward": (*_methods(_backward, 4), *linear_conv.methods(_orders, _backward)),
}
