"""Activations, alone and fused: plans for the elementwise kernels and for the sums in their gradients."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.common.channels import THREADS, View, channel_mode, lies, partial_bytes, sums, too_scattered, view, whole_lines
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.loss_sums import NOTHING, pointers
from dnnarray._problems.activation import (
    PARAMETERS,
    Activation,
    BiasActivationProblem,
    ElementwiseProblem,
    GatedProblem,
    PReLUProblem,
)
from dnnarray._problems.base import leaves
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import HALF, Spec

_CURVED = ("elu", "selu", "celu", "sigmoid", "log_sigmoid", "tanh", "softplus", "softsign", "gelu", "gelu_tanh", "silu", "mish")


def struct_name(activation: str, dtype: np.dtype | None = None) -> str:
    """The C++ name of an activation: ``hard_swish`` is ``dnnarray::HardSwish``. For half types the curved ones have a faster form."""
    prefix = "Half" if dtype in HALF and activation in _CURVED else ""
    return f"dnnarray::{prefix}" + "".join(part.capitalize() for part in activation.split("_"))


@frozen
class Formula:
    """An activation as kernels take it: its name in symbols, the C++ type, the two parameters."""

    name: str
    type: str
    p: float = 0.0
    q: float = 0.0


def formula(activation: Activation | None, dtype: np.dtype) -> Formula:
    """What a kernel needs to know of an activation; None is the identity."""
    name = "identity" if activation is None else activation.name
    if activation is not None and "tanh" in activation.parameters:
        name = f"{name}_tanh"
    numbers = () if activation is None else tuple(v for v in activation.parameters if not isinstance(v, str))
    return Formula(name, struct_name(name, dtype), *map(float, numbers))


def _spec(problem: ElementwiseProblem | GatedProblem | PReLUProblem | BiasActivationProblem, index: int = 0) -> Spec:
    """A result, or what it would be where it is not wanted: the gradient of one of the arrays behind the incoming one."""
    found: Spec = problem.outputs[index] or problem.inputs[index + 1].like()
    return found


# --- one array --------------------------------------------------------------------------------------------------------


@frozen
class ElementwiseConfig(Config):
    """Compile-time settings of ``kernels/activation/elementwise.cu``."""

    element: str
    activation: str
    gradient: bool
    vector: int
    threads: int


def elementwise(problem: ElementwiseProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of the arrays."""
    spec, gradient = _spec(problem), len(problem.inputs) == 2
    if spec.size == 0:
        return Program(())
    f, dtype = formula(problem.activation, spec.dtype), spec.dtype
    vector = vector_length(dtype, aligned)
    config = ElementwiseConfig(TYPES[dtype], f.type, gradient, vector, THREADS)
    direction = "backward" if gradient else "forward"
    kernel = Kernel("activation/elementwise.cu", f"{f.name}_elementwise_{direction}_{SHORT[dtype]}x{vector}", config, ("activation",))
    pointers = (Array(0), Array(1), Array(2)) if gradient else (Array(0), Array(0), Array(1))
    plan = Plan(kernel, (-(-spec.size // (THREADS * vector)), 1, 1), THREADS, (*pointers, spec.size, f.p, f.q))
    return Program((ahead_if_small(plan),), (order_of(spec),) * len(problem.inputs))


# --- gated units ------------------------------------------------------------------------------------------------------


@frozen
class GatedConfig(Config):
    """Compile-time settings of ``kernels/activation/gated.cu``."""

    element: str
    activation: str
    of_gate: bool
    of_x: bool
    rows: bool
    vector: int
    threads: int


def _gated_plan(
    problem: GatedProblem, aligned: bool, n: int, row: int, pitch: int, pointers: tuple[Array | int, ...], gradients: str = ""
) -> Plan:
    """A launch; `gradients` is empty for the forward, and else names those that are wanted."""
    dtype = problem.inputs[0].dtype
    f = formula(problem.activation, dtype)
    vector, rows = vector_length(dtype, aligned, row), pitch != row
    name = f"{f.name}_gated_{gradients or 'forward'}_{'rows_' if rows else ''}{SHORT[dtype]}x{vector}"
    wanted = (gradients in ("backward", "backward_gate"), gradients in ("backward", "backward_x"))
    kernel = Kernel("activation/gated.cu", name, GatedConfig(TYPES[dtype], f.type, *wanted, rows, vector, THREADS), ("activation",))
    return Plan(kernel, (-(-n // (THREADS * vector)), 1, 1), THREADS, (*pointers, n, row, pitch))


def glu(problem: GatedProblem, device: Device, aligned: bool) -> Program:
    """The gate and x are the halves of one array: two rows side by side for each index of the slower axes."""
    x = leaves(problem.inputs)[-1]
    order, axis = order_of(x), problem.axis
    if x.size == 0 or axis is None:
        return Program(())
    row = math.prod(x.shape[a] for a in order[order.index(axis) :]) // 2
    half = row * x.dtype.itemsize
    if problem.op.endswith("_backward"):
        pointers, gradients = (Array(0), Array(1, half), Array(1), Array(2), Array(2, half), Array(2)), "backward"
    else:
        pointers, gradients = (Array(0), Array(0, half), Array(0), Array(1), Array(1), Array(1)), ""
    plan = _gated_plan(problem, aligned, x.size // 2, row, 2 * row, pointers, gradients)
    return Program((plan,), (order,) * len(problem.inputs))


def gated(problem: GatedProblem, device: Device, aligned: bool) -> Program:
    """``f(gate) * x`` over flat memory."""
    x = _spec(problem)
    if x.size == 0:
        return Program(())
    order = order_of(x)
    return Program((_gated_plan(problem, aligned, x.size, x.size, x.size, tuple(map(Array, (0, 0, 1, 2, 2, 2)))),), (order,) * 2)


def gated_backward(problem: GatedProblem, device: Device, aligned: bool) -> Program:
    """The gradients over flat memory in the order of x; that of the gate is brought to its own order where it has another."""
    gate, x = _spec(problem, 0), _spec(problem, 1)
    if x.size == 0:
        return Program(())
    order, (given, (dgate, dx), scratch) = order_of(x), pointers(problem)
    target, plans = dgate, []
    if dgate != NOTHING and not lies(gate, order):
        target = Array(scratch)
        plans = [reorder(gate, order, target, dgate)]
    gradients = "backward_x" if dgate == NOTHING else "backward_gate" if dx == NOTHING else "backward"
    arrays = (*given, target, target, dx)
    return Program((_gated_plan(problem, aligned, x.size, x.size, x.size, arrays, gradients), *plans), (order,) * 3)


def _gated_workspace(problem: GatedProblem) -> int:
    gate, x = _spec(problem, 0), _spec(problem, 1)
    return 0 if problem.outputs[0] is None or lies(gate, order_of(x)) else whole_lines(gate.nbytes)


def _gated_rejects(problem: GatedProblem, device: Device) -> str | None:
    gate, x = _spec(problem, 0), _spec(problem, 1)
    return None if problem.outputs[0] is None else too_scattered(x.shape, order_of(gate), order_of(x))


# --- bias, residual, activation ---------------------------------------------------------------------------------------


@frozen
class BiasConfig(Config):
    """Compile-time settings of ``kernels/activation/bias.cu``."""

    element: str
    activation: str
    residual: bool
    channel: int
    vector: int
    threads: int


@frozen
class BiasBackwardConfig(Config):
    """Compile-time settings of ``kernels/activation/bias_backward.cu``."""

    element: str
    activation: str
    residual: bool
    columns: int
    vector: int
    threads: int


def _bias_view(problem: BiasActivationProblem) -> View:
    """Of x; the gradient of the residual alone is in the memory order of x too, until it is brought to its own."""
    x = _spec(problem)
    v = view(x.shape, order_of(x), [a for a in range(x.ndim) if a not in problem.others])
    assert v is not None
    return v


def bias_activation(problem: BiasActivationProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x."""
    x, v = _spec(problem), _bias_view(problem)
    if x.size == 0:
        return Program(())
    residual = problem.inputs[2] is not None
    f, dtype, vector = formula(problem.activation, x.dtype), x.dtype, vector_length(x.dtype, aligned)
    mode = channel_mode(v, vector)
    name = f"bias_{f.name}{'_residual' if residual else ''}_{SHORT[dtype]}x{vector}_channel{mode}"
    kernel = Kernel("activation/bias.cu", name, BiasConfig(TYPES[dtype], f.type, residual, mode, vector, THREADS), ("activation",))
    pointers = (Array(0), Array(1), Array(2), Array(3)) if residual else (Array(0), Array(1), Array(0), Array(2))
    arguments = (*pointers, *v.sizes, f.p, f.q)
    plan = Plan(kernel, (-(-x.size // (THREADS * vector)), 1, 1), THREADS, arguments)
    order = order_of(x)
    return Program((plan,), (order, (0,), order) if residual else (order, (0,)))


def bias_activation_backward(problem: BiasActivationProblem, device: Device, aligned: bool) -> Program:
    """The gradients in one pass, then the second stage of the sums for the bias."""
    x, bias, residual = _spec(problem), _spec(problem, 1), problem.outputs[2]
    if bias.size == 0:
        return Program(())
    f, dtype, order, read = formula(problem.activation, x.dtype), x.dtype, order_of(x), problem.inputs[3] is not None
    s = sums(_bias_view(problem), dtype, aligned)
    name = f"bias_{f.name}{'_residual' if read else ''}_backward_{SHORT[dtype]}x{s.vector}_{s.name}"
    config = BiasBackwardConfig(TYPES[dtype], f.type, read, s.columns, s.vector, THREADS)
    kernel = Kernel("activation/bias_backward.cu", name, config, ("activation",))
    (g, *given), (dx, dbias, dresidual), last = pointers(problem)
    partial, after = Array(last), []
    if residual is not None and not lies(residual, order):  # dx is brought to the order of the residual afterwards
        dx = Array(last, partial_bytes(_bias_view(problem), dtype)) if dx == NOTHING else dx
        after, dresidual = [reorder(residual, order, dx, dresidual)], NOTHING
    arguments = (g, *given[:2], given[2] if read else given[0], dx, dresidual, partial, *s.sizes, f.p, f.q)
    first = Plan(kernel, (s.blocks, 1, 1), THREADS, arguments)
    orders = (order, order, (0,), order)[: len(leaves(problem.inputs))]
    return Program((first, *([] if dbias == NOTHING else [add_parts(partial, dbias, dtype, s.view.channels, s.parts)]), *after), orders)


def _bias_workspace(problem: BiasActivationProblem) -> int:
    x, _, residual = problem.outputs
    beside = x is None and residual is not None and not lies(residual, order_of(_spec(problem)))
    return partial_bytes(_bias_view(problem), _spec(problem).dtype) + (whole_lines(_spec(problem).nbytes) if beside else 0)


def _bias_rejects(problem: BiasActivationProblem, device: Device) -> str | None:
    x, residual = _spec(problem), problem.outputs[2]
    return None if residual is None else too_scattered(x.shape, order_of(residual), order_of(x))


# --- a slope per channel ----------------------------------------------------------------------------------------------


@frozen
class PReLUConfig(Config):
    """Compile-time settings of ``kernels/activation/prelu.cu``."""

    element: str
    channel: int
    vector: int
    threads: int


@frozen
class PReLUBackwardConfig(Config):
    """Compile-time settings of ``kernels/activation/prelu_backward.cu``."""

    element: str
    columns: int
    vector: int
    threads: int


def _prelu_view(problem: PReLUProblem) -> View | None:
    x = _spec(problem)
    return view(x.shape, order_of(x), [a for a in range(x.ndim) if a not in problem.shared])


def _slope_order(problem: PReLUProblem) -> tuple[int, ...]:
    """The axes of the weight in the order in which the axes of x that they belong to lie in memory."""
    x, weight = _spec(problem), problem.inputs[-1]
    if weight.ndim <= 1:
        return tuple(range(weight.ndim))
    first, order = x.ndim - weight.ndim, order_of(x)
    return tuple(a - first for a in order if a >= first) if first >= 0 else tuple(range(weight.ndim))


def _prelu_rejects(problem: PReLUProblem, device: Device) -> str | None:
    if _prelu_view(problem) is None:
        return f"the weight repeats along an axis of x between two along which it does not, {problem.slope_shape} in memory"
    weight = problem.inputs[-1]
    return too_scattered(weight.shape, order_of(weight), _slope_order(problem))


def prelu(problem: PReLUProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x."""
    x, v = _spec(problem), _prelu_view(problem)
    assert v is not None
    if x.size == 0:
        return Program(())
    dtype, vector = x.dtype, vector_length(x.dtype, aligned)
    mode = channel_mode(v, vector)
    config = PReLUConfig(TYPES[dtype], mode, vector, THREADS)
    kernel = Kernel("activation/prelu.cu", f"prelu_{SHORT[dtype]}x{vector}_channel{mode}", config, ("activation",))
    arguments = (Array(0), Array(1), Array(2), *v.sizes)
    plan = Plan(kernel, (-(-x.size // (THREADS * vector)), 1, 1), THREADS, arguments)
    return Program((ahead_if_small(plan),), (order_of(x), _slope_order(problem)))


def prelu_backward(problem: PReLUProblem, device: Device, aligned: bool) -> Program:
    """The gradients in one pass, then the second stage of the sums for the weight."""
    x, weight, v = _spec(problem), _spec(problem, 1), _prelu_view(problem)
    assert v is not None
    if weight.size == 0:
        return Program(())
    dtype, order, slope = x.dtype, order_of(x), _slope_order(problem)
    s = sums(v, dtype, aligned)
    config = PReLUBackwardConfig(TYPES[dtype], s.columns, s.vector, THREADS)
    kernel = Kernel("activation/prelu_backward.cu", f"prelu_backward_{SHORT[dtype]}x{s.vector}_{s.name}", config, ("activation",))
    given, (dx, dweight), last = pointers(problem)
    partial, target, plans = Array(last), dweight, []
    if dweight != NOTHING:
        if not lies(weight, slope):
            target = Array(last, partial_bytes(v, dtype))
            plans = [reorder(weight, slope, target, dweight)]
        plans.insert(0, add_parts(partial, target, dtype, s.view.channels, s.parts))
    first = Plan(kernel, (s.blocks, 1, 1), THREADS, (*given, dx, partial, *s.sizes))
    return Program((first, *plans), (order, order, slope))


def _prelu_workspace(problem: PReLUProblem) -> int:
    x, weight, v = _spec(problem), _spec(problem, 1), _prelu_view(problem)
    assert v is not None
    turned = problem.outputs[1] is not None and not lies(weight, _slope_order(problem))
    return partial_bytes(v, x.dtype) + (whole_lines(weight.nbytes) if turned else 0)


_METHOD = Method("elementwise", elementwise, "the formula over each element", in_place=True)
_TWO_STAGES = "one pass for all gradients, sums in two stages"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys(PARAMETERS, (_METHOD,)),
    **{f"{name}_backward": (_METHOD,) for name in PARAMETERS},
    "prelu": (Method("elementwise", prelu, "the slope of the channel over each element", _prelu_rejects),),
    "prelu_backward": (Method("two_stage", prelu_backward, _TWO_STAGES, _prelu_rejects, _prelu_workspace),),
    "glu": (Method("elementwise", glu, "both halves in one pass"),),
    "glu_backward": (Method("elementwise", glu, "both halves in one pass"),),
    **{name: (Method("elementwise", gated, "one pass"),) for name in ("swiglu", "geglu")},
    **{
        f"{name}_backward": (Method("elementwise", gated_backward, "both gradients in one pass", _gated_rejects, _gated_workspace),)
        for name in ("swiglu", "geglu")
    },
    "bias_activation": (Method("elementwise", bias_activation, "sum and formula in one pass"),),
    "bias_activation_backward": (Method("two_stage", bias_activation_backward, _TWO_STAGES, _bias_rejects, _bias_workspace),),
}
