"""Dropout, alone and fused: plans."""

from __future__ import annotations

import math

from dnnarray._cuda.common.channels import NOWHERE, THREADS, View, channel_mode, lies, partial_bytes, strided, sums, too_scattered, view
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.extents import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, Runtime, vector_length
from dnnarray._cuda.loss_sums import NOTHING, pointers
from dnnarray._problems.base import leaves
from dnnarray._problems.dropout import DropoutProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_SEED, _OFFSET = Runtime(0), Runtime(1)
_WORDS = 2**32
_RESIDENT = 6  # blocks of the gradient's sums on a multiprocessor; what each begins and ends with costs as much as some rows


@frozen
class PhiloxConfig(Config):
    """Compile-time settings of ``kernels/dropout/philox.cu``."""

    element: str
    permuted: bool
    vector: int
    threads: int


@frozen
class BiasAddConfig(Config):
    """Compile-time settings of ``kernels/dropout/bias_add.cu``."""

    element: str
    permuted: bool
    channel: int
    vector: int
    threads: int


@frozen
class BiasAddBackwardConfig(Config):
    """Compile-time settings of ``kernels/dropout/bias_add_backward.cu``."""

    element: str
    permuted: bool
    residual: bool
    columns: int
    vector: int
    threads: int


def _x(problem: DropoutProblem) -> Spec:
    """The first result, or what it would be where it is not wanted."""
    found: Spec = problem.outputs[0] or problem.inputs[1].like()
    return found


def _permuted(spec: Spec) -> bool:
    """Whether the elements lie in another order than the one they are counted in."""
    return not lies(spec, range(spec.ndim))


def _numbers(problem: DropoutProblem) -> tuple[Runtime | int | float, ...]:
    """The arguments that say which elements are kept: seed, offset, threshold, scale, and the place in C order."""
    x = _x(problem)
    place = strided(x.shape, order_of(x), range(x.ndim)) if _permuted(x) else NOWHERE
    assert place is not None
    # With p = 1 the scale is 0, so that what one number in 2^32 says does not matter.
    return _SEED, _OFFSET, min(math.floor(problem.p * _WORDS), _WORDS - 1), problem.scale, *place


def _rejects(problem: DropoutProblem, device: Device) -> str | None:
    x = _x(problem)
    orders = [range(x.ndim), *(order_of(s) for s in problem.outputs[2:] if s is not None)]
    return next((reason for order in orders if (reason := too_scattered(x.shape, order_of(x), order))), None)


def dropout(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x, or of the gradient, which is brought to the order of x."""
    x = _x(problem)
    if x.size == 0:
        return Program(())
    permuted = _permuted(x)
    vector = vector_length(x.dtype, aligned and not permuted)
    name = f"dropout_philox_{SHORT[x.dtype]}x{vector}{'_permuted' if permuted else ''}"
    kernel = Kernel("dropout/philox.cu", name, PhiloxConfig(TYPES[x.dtype], permuted, vector, THREADS), ("philox",))
    target = Array(len(problem.inputs))
    plan = Plan(kernel, (-(-x.size // (THREADS * vector)), 1, 1), THREADS, (Array(0), target, x.size, *_numbers(problem)))
    return Program((plan,), (order_of(x),) * len(problem.inputs))


# --- with a bias and a residual ---------------------------------------------------------------------------------------


def _view(problem: DropoutProblem) -> View:
    x = _x(problem)
    v = view(x.shape, order_of(x), [x.ndim - 1])
    assert v is not None
    return v


def bias_dropout_add(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """One launch over the flat memory of x."""
    x, v, permuted = _x(problem), _view(problem), _permuted(_x(problem))
    if x.size == 0:
        return Program(())
    vector = vector_length(x.dtype, aligned and not permuted)
    mode = channel_mode(v, vector)
    name = f"bias_dropout_add_{SHORT[x.dtype]}x{vector}_channel{mode}{'_permuted' if permuted else ''}"
    kernel = Kernel("dropout/bias_add.cu", name, BiasAddConfig(TYPES[x.dtype], permuted, mode, vector, THREADS), ("philox",))
    arguments = (*map(Array, range(4)), *v.sizes, *_numbers(problem))
    plan = Plan(kernel, (-(-x.size // (THREADS * vector)), 1, 1), THREADS, arguments)
    return Program((plan,), (order_of(x), (0,), order_of(x)))


def bias_dropout_add_backward(problem: DropoutProblem, device: Device, aligned: bool) -> Program:
    """The gradients in one pass, then the second stage of the sums for the bias. Of the forward's arrays only the shapes are needed."""
    x, residual, given = _x(problem), problem.outputs[2], leaves(problem.inputs)
    if x.shape[-1] == 0:
        return Program(())
    dtype, order, permuted = x.dtype, order_of(x), _permuted(x)
    (g, _, bias, _), (dx, dbias, dresidual), last = pointers(problem)
    orders, same = (order, order, (0,), order_of(given[3])), residual is None or lies(residual, order)
    copied = [] if residual is None or same else [reorder(residual, order, g, dresidual)]
    if residual is not None and not problem.draws:
        return Program((reorder(residual, order, g, dresidual),), orders)
    s = sums(_view(problem), dtype, aligned and not permuted, _RESIDENT * device.units)
    name = f"bias_dropout_add_backward_{SHORT[dtype]}x{s.vector}_{s.name}{'_permuted' if permuted else ''}{'' if same else '_alone'}"
    config = BiasAddBackwardConfig(TYPES[dtype], permuted, same, s.columns, s.vector, THREADS)
    kernel = Kernel("dropout/bias_add_backward.cu", name, config, ("philox",))
    partial = Array(last)
    arguments = (g, bias, dx, dresidual, partial, *s.sizes, *_numbers(problem))
    first = Plan(kernel, (s.blocks, 1, 1), THREADS, arguments)
    added = [] if dbias == NOTHING else [add_parts(partial, dbias, dtype, s.view.channels, s.parts)]
    return Program((first, *added, *copied), orders)


def _workspace(problem: DropoutProblem) -> int:
    return partial_bytes(_view(problem), _x(problem).dtype) if problem.draws else 0


_SUMMARY = "the mask drawn where it is used"
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **{name: (Method("philox", dropout, _SUMMARY, _rejects, in_place=True),) for name in ("dropout", "dropout_backward")},
    "bias_dropout_add": (Method("philox", bias_dropout_add, _SUMMARY, _rejects),),
    "bias_dropout_add_backward": (Method("philox", bias_dropout_add_backward, _SUMMARY, _rejects, _workspace),),
}
