"""What the plans of all convolutions share: how images and weights lie in memory, and the three maps that an operation
is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from dnnarray._cuda.common.channel_sums import add_channel_sums
from dnnarray._cuda.common.channels import View, lies
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.epilogue_backward import slope
from dnnarray._cuda.common.rearrange import rearrange
from dnnarray._cuda.conv.kinds import Kind
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import Array, Program
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems import checks
from dnnarray._problems.base import remembered
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

NO_EPILOGUE = Epilogue()
OF_IMAGES = ("conv", "conv_transpose", "conv_backward_input")  # operations with a single map, whose result is an image
DEFINITION = "direct"  # the algorithm that also does a problem without any map


# --- memory -----------------------------------------------------------------------------------------------------------


@cache
def axes_of(layout: str, rank: int) -> tuple[int, ...]:
    """The axes of an array in the order batch, channel, space (of a weight: K, C, window)."""
    channel = checks.channel_axis(layout, rank)
    return (0, channel, *(i for i in range(1, rank) if i != channel))


@cache
def first_order(layout: str, rank: int) -> tuple[int, ...]:
    """Channels-first memory: the axes from the slowest to the fastest."""
    return axes_of(layout, rank)


@cache
def last_order(layout: str, rank: int) -> tuple[int, ...]:
    """Channels-last memory."""
    batch, channel, *space = axes_of(layout, rank)
    return (batch, *space, channel)


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Steps in elements along each axis of a dense array whose axes lie in this order."""
    found, step = [0] * len(shape), 1
    for i in reversed(order):
        found[i] = step
        step *= max(shape[i], 1)
    return tuple(found)


def lifted(values: Sequence[int], layout: str, fill: int) -> tuple[int, ...]:
    """Values along the axes of an array as five along batch, channel and three spatial axes."""
    batch, channel, *space = axes_of(layout, len(values))
    return (values[batch], values[channel], *(fill,) * (3 - len(space)), *(values[i] for i in space))


def image(spec: Spec, layout: str, operand: Operand, order: Sequence[int]) -> Operand:
    """An operand with its five strides, its axes lying in this order."""
    return Operand(operand.array, operand.dtype, lifted(dense_strides(spec.shape, order), layout, 0))


def extents(g: Geometry) -> tuple[int, ...]:
    """The geometry as launch arguments: three pairs for each axis (`ConvAxis`)."""
    found: list[int] = []
    for i in range(3):
        found += [
            g.out[i] << 32 | g.space[i],
            g.window[i] << 32 | g.stride[i],
            g.dilation[i] << 32 | g.before[i] & 0xFFFFFFFF,
        ]
    return tuple(found)


@remembered
def too_large(g: Geometry) -> str | None:
    """Why kernels with 32-bit places cannot do it, or None."""
    (w0, w1, w2), (d0, d1, d2), (o0, o1, o2), (s0, s1, s2) = g.window, g.dilation, g.out, g.stride
    largest = max(g.groups * g.k, g.groups * g.c, g.taps, *g.space, o0, o1, o2, s0, s1, s2, w0 * d0, w1 * d1, w2 * d2)
    if largest >= 1 << 29 or max(g.before) >= 1 << 29 or min(g.before) <= -1 << 29:
        return "an extent of 2^29 or more"
    last = max((o0 - 1) * s0, (o1 - 1) * s1, (o2 - 1) * s2)
    return "a window that begins at 2^30 or further" if last >= 1 << 30 else None


# --- the three maps ---------------------------------------------------------------------------------------------------


class Maps(Protocol):
    """An algorithm: the maps of a geometry from `large` (its input) to `small` (its output), back, and of both to the
    weight.

    Operands have five strides; those of a weight are along K, C and the window.
    """

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None: ...

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None: ...

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None: ...


IMAGES = {  # indices of the inputs that are images, and of the outputs
    "conv": ((0, 3), (0,)),
    "conv_transpose": ((0,), (0,)),
    "conv_backward_input": ((0,), (0,)),
    "conv_backward_weight": ((0, 1), ()),
    "conv_backward": ((0, 1, 4), (0,)),
    "conv_transpose_backward": ((0, 1), (0,)),
}


def correlations(problem: ConvProblem) -> list[Geometry]:
    """The correlations that an operation runs, one for each residue of a stride where it is a dgrad."""
    g, runs = problem.geometry, problem.runs
    return [g] * runs.forward + ([p.geometry for p in g.phases] if runs.dgrad else [])


class Lying(NamedTuple):
    """How the images of a problem lie: `last` for channels-last, `mixed` where the results have an order of their
    own."""

    last: bool
    mixed: bool


@remembered
def lying(problem: ConvProblem) -> Lying:
    """The order in which most images lie, of those that all results have."""
    taken, made = IMAGES[problem.kind]
    given = [s for s in (problem.inputs[i] for i in taken if i not in problem.unread) if s is not None]
    results = [s for s in (problem.outputs[i] for i in made) if s is not None]
    found: dict[bool, int] = {}
    for last in (True, False):
        order = (last_order if last else first_order)(problem.layout, given[0].ndim)
        if all(lies(s, order) for s in results):
            found[last] = [lies(s, order) for s in given].count(True)
            if found[last] == len(given):
                break
    return Lying(max(found, key=lambda k: found[k]) if found else False, not found)


class Setting:
    """The arrays of a problem for an algorithm.

    All images lie channels-last (`last`) or channels-first when the launches begin, except that of a `mixed` problem
    the results have an order of their own."""

    def __init__(self, problem: ConvProblem, aligned: bool, precision: str = "highest", units: int = 1) -> None:
        self.problem, self.g, self.precision, self.units = problem, problem.geometry, precision, units
        self.steps = Planner(problem, aligned)
        self.last, self.mixed = lying(problem)

    def _order(self, rank: int, last: bool) -> tuple[int, ...]:
        return (last_order if last else first_order)(self.problem.layout, rank)

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """`Program.orders`: weights stay as they lie (in C order where they are not dense)."""
        images = IMAGES[self.problem.kind][0]
        specs = enumerate(self.problem.inputs)
        return tuple(self._order(s.ndim, self.last) if i in images else order_of(s) for i, s in specs if s is not None)

    def source(self, index: int) -> Operand:
        """The `index`-th input, an image."""
        spec = self.problem.inputs[index]
        operand = Operand(self.steps.inputs[index], spec.dtype)
        return image(spec, self.problem.layout, operand, self._order(spec.ndim, self.last))

    def target(self, index: int) -> Operand:
        """The `index`-th output, an image."""
        spec = self.problem.outputs[index]
        assert spec is not None
        order = order_of(spec) if self.mixed or index else self._order(spec.ndim, self.last)
        return image(spec, self.problem.layout, Operand(self.steps.outputs[index], spec.dtype), order)

    def weight(self, spec: Spec, array: Array) -> Operand:
        """A weight; a flipped one is walked backwards."""
        plain = image(spec, self.problem.layout, Operand(array, spec.dtype), order_of(spec))
        if not self.problem.flip:
            return plain
        k, c, *window = plain.strides
        start = sum((n - 1) * s for n, s in zip(self.g.window, window, strict=True))
        return Operand(plain.at(start), plain.dtype, (k, c, *(-s for s in window)))

    def shape(self, small: bool) -> tuple[int, ...]:
        """Batch, channels and space of the output (`small`) or the input of the geometry."""
        g = self.g
        return (g.n, g.groups * (g.k if small else g.c), *(g.out if small else g.space))

    def strides(self, small: bool) -> tuple[int, ...]:
        """How an image of that shape lies."""
        return dense_strides(self.shape(small), (0, 2, 3, 4, 1) if self.last else (0, 1, 2, 3, 4))

    def taken(self, small: bool, dtype: np.dtype) -> Operand:
        """Scratch memory for an image."""
        return Operand(self.steps.take(dtype, math.prod(self.shape(small))).array, dtype, self.strides(small))

    def view(self, small: bool, n: int | None = None) -> View:
        """`n` images, all by default, as outer x channels x inner in memory."""
        batch, channels, *space = self.shape(small)
        batch, pixels = batch if n is None else n, math.prod(space)
        return View(batch * pixels, channels, 1) if self.last else View(batch, channels, pixels)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.g.groups * self.g.k, self.g.c, *self.g.window)


# --- the operations ---------------------------------------------------------------------------------------------------


def _epilogue(setting: Setting, bias: int, residual: int | None) -> Epilogue:
    arrays = setting.steps.inputs
    return Epilogue(arrays[bias], None if residual is None else arrays[residual], setting.problem.activation)


def _given_weight(setting: Setting, index: int) -> Operand:
    return setting.weight(setting.problem.inputs[index], setting.steps.inputs[index])


def _weight_result(setting: Setting, index: int) -> Operand:
    spec = setting.problem.outputs[index]
    assert spec is not None
    return setting.weight(spec, setting.steps.outputs[index])


def forward(setting: Setting, maps: Maps) -> None:
    maps.forward(setting.source(0), _given_weight(setting, 1), setting.target(0), _epilogue(setting, 2, 3))


def transpose(setting: Setting, maps: Maps) -> None:
    maps.dgrad(setting.source(0), _given_weight(setting, 1), setting.target(0), _epilogue(setting, 2, None))


def input_gradient(setting: Setting, maps: Maps) -> None:
    maps.dgrad(setting.source(0), _given_weight(setting, 1), setting.target(0))


def weight_gradient(setting: Setting, maps: Maps) -> None:
    maps.wgrad(setting.source(0), setting.source(1), _weight_result(setting, 0))


def backward(setting: Setting, maps: Maps) -> None:
    """The gradient in front of the activation, then those that are wanted."""
    x, weight = setting.source(1), _given_weight(setting, 2)
    dz = _before_activation(setting, _epilogue(setting, 3, 4), True, lambda z: maps.forward(x, weight, z))
    if setting.problem.runs.dgrad:
        maps.dgrad(dz, weight, setting.target(0))
    if setting.problem.runs.wgrad:
        maps.wgrad(dz, x, _weight_result(setting, 1))
    _bias_gradient(setting, dz, True)
    if any(setting.problem.outputs[3:]):
        setting.steps.add(rearrange(dz, setting.target(3), setting.shape(True)))


def transpose_backward(setting: Setting, maps: Maps) -> None:
    """As `backward`, the maps having changed places."""
    x, weight = setting.source(1), _given_weight(setting, 2)
    dz = _before_activation(setting, _epilogue(setting, 3, None), False, lambda z: maps.dgrad(x, weight, z))
    if setting.problem.runs.forward:
        maps.forward(dz, weight, setting.target(0))
    if setting.problem.runs.wgrad:
        maps.wgrad(x, dz, _weight_result(setting, 1))
    _bias_gradient(setting, dz, False)


def _bias_gradient(setting: Setting, dz: Operand, small: bool) -> None:
    spec, array = setting.problem.outputs[2], setting.steps.outputs[2]
    if spec is not None:
        add_channel_sums(setting.steps, dz, setting.view(small), Operand(array, spec.dtype))


def _before_activation(setting: Setting, e: Epilogue, small: bool, product: Callable[[Operand], None]) -> Operand:
    """The gradient behind the activation times the slope there; where there is no activation, the gradient itself."""
    steps, grad = setting.steps, setting.source(0)
    if e.activation is None or math.prod(setting.shape(small)) == 0:
        return grad
    z = setting.taken(small, arithmetic_of(grad.dtype))
    product(z)
    dz = setting.taken(small, grad.dtype) if z.dtype != grad.dtype and not e.rounds_slope(grad.dtype) else z
    steps.add(slope(e, grad, z, dz, setting.view(small), steps.aligned))
    return dz


OPERATIONS: dict[str, Callable[[Setting, Maps], None]] = {
    "conv": forward,
    "conv_transpose": transpose,
    "conv_backward_input": input_gradient,
    "conv_backward_weight": weight_gradient,
    "conv_backward": backward,
    "conv_transpose_backward": transpose_backward,
}


def plan(
    algorithm: Callable[[Setting], Maps], problem: ConvProblem, aligned: bool, precision: str, units: int
) -> Setting:
    """All launches of an operation by one algorithm on a device with this many multiprocessors."""
    setting = Setting(problem, aligned, precision, units)
    OPERATIONS[problem.kind](setting, algorithm(setting))
    return setting


def methods(
    name: str,
    algorithm: Callable[[Setting], Maps],
    summary: str,
    rejects: Callable[..., str | None],
    cost: Callable[..., Cost],
    precision: str = "highest",
    floor: Callable[..., float] | None = None,
    kind: Kind | None = None,
) -> Method:
    """The table's entry of an algorithm. `rejects`, `cost` and `floor` are asked with the name of the operation first
    that runs the same maps as the problem. `rejects` looks at the `kind`, too."""

    def run(problem: ConvProblem, device: Device, aligned: bool) -> Program:
        setting = plan(algorithm, problem, aligned, precision, device.units)
        return Program(tuple(setting.steps.plans), setting.orders, setting.steps.workspace)

    def workspace(problem: ConvProblem) -> int:
        return plan(algorithm, problem, True, precision, 1).steps.workspace

    def refuses(problem: ConvProblem, device: Device) -> str | None:
        if not problem.maps and name != DEFINITION:
            return "there is nothing to multiply"
        return rejects(problem.alike, problem, device)

    least, unfit = None if floor is None else _asked(floor), None if kind is None else kind.refuses
    return Method(name, run, summary, refuses, workspace, _asked(cost), least, unfit, precision=precision)


def _asked(question: Callable[..., Any]) -> Callable[[ConvProblem, Device], Any]:
    """A question about an algorithm, without the name of an operation."""
    return lambda problem, device: question(problem.alike, problem, device)
