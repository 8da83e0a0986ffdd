"""Batch, group and instance norm: sums per channel, coefficients per channel, one pass that applies them; in both memory layouts.

Forward: sums of x, `finish`, `apply`. Gradient: the same statistics where they were not saved, sums of the gradient, `finish_backward`,
`apply`. Given statistics (batch norm at inference) leave the first sums out.
"""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.norm.channel_view import View, exact_gradient, inputs, shares, view
from dnnarray._cuda.norm.shared import Arguments, Pointer, discarded, orders, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_SUM_BLOCKS = 132 * 8, 132 * 16  # blocks that a pass of sums is split into: of x, of the gradient (smaller ones, two rounds of them)
_LAST_BLOCKS = 132 * 4, 132 * 5  # and channels last, where they are all to be at work at once; with statistics per batch index
_PART = 8192  # elements that are worth a block
_SHARES = 16  # bytes of the result of a part
_FINISH, _TASKS, _FEW = 128, 2048, 8  # threads of a block; tasks that are enough for the card with a warp each, or with so few threads
_SUMS, _APPLY = 256, 128  # threads of a block; half of the former where sums are many or parts small
_SIDE, _APPLY_SIDE = 32, 128  # threads beside each other along the channels, at the most; in the last pass rows as long as they can be
_APPLY_BLOCKS = 132 * 128, 132 * 64, 132 * 32  # blocks of `apply`, channels last: of float and wider; of half types, and of their gradients
_ROWS = 32  # bytes of a column for whose rows a thread of `apply` keeps its coefficients, at the most
_BATCH, _WIDE_BATCH = 3, 4  # vectors of each array that a thread of `apply` has under way, channels last: of half types, of others
_COEFFICIENTS = 4  # mean, scale, shift, rstd; weight, average, slope and one unused


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_sums.cu``."""

    element: str
    activation: str
    gradient: bool
    both: bool
    residual: bool
    more: bool
    last: bool
    vector: int
    side: int
    threads: int


@frozen
class ApplyConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_apply.cu``."""

    element: str
    activation: str
    gradient: bool
    last: bool
    given: bool
    fixed: bool
    residual: bool
    more: bool
    settled: bool
    plain: bool
    straddle: int
    wide: bool
    vector: int
    side: int
    batch: int
    threads: int


@frozen
class FinishConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_finish.cu``."""

    element: str
    lanes: int


@frozen
class FinishBackwardConfig(FinishConfig):
    """Compile-time settings of ``kernels/norm/channel_finish_backward.cu``."""

    over: int


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the memory of x cannot be seen as batch, channels and space, or has too many of them, or None."""
    v = view(problem)
    if v is None:
        return "in the memory of x the axes of batch, channels and space are interleaved; copy x to C order"
    specs = inputs(problem, problem.inputs, None)
    blocks = split(v, specs.x, specs.grad is not None).parts * (1 if v.last else v.channels)  # of the sums, at the least
    return f"{blocks:,} blocks are more than a grid has" if blocks >= 1 << 31 else None


class Split(NamedTuple):
    """The parts of the sums: `outer_step` outer indices by `inner_step` inner ones."""

    outer_step: int
    inner_step: int
    outer_parts: int
    inner_parts: int

    @property
    def parts(self) -> int:
        return self.outer_parts * self.inner_parts


def split(v: View, x: Spec, gradient: bool) -> Split:
    """Parts large enough to be worth a block, and blocks enough to fill the card; the same for any alignment."""
    vector = vector_length(x.dtype, True, v.channels)
    alone = v.per_batch or v.last  # an outer index a part
    columns = blocks_of(v.channels, 32 * vector) if v.last else v.channels
    wanted = _LAST_BLOCKS[v.per_batch] // max(columns, 1) if v.last else blocks_of(_SUM_BLOCKS[gradient], max(columns, 1))
    wanted = max(min(wanted, blocks_of(v.outer * v.inner * (min(v.channels, 32 * vector) if v.last else 1), _PART)), 1)
    outer_step = 1 if alone else blocks_of(v.outer, min(wanted, max(v.outer, 1)))
    outer_parts = blocks_of(v.outer, max(outer_step, 1))
    inner_parts = wanted // max(outer_parts, 1) if v.last else blocks_of(wanted, max(outer_parts, 1))
    inner_step = blocks_of(blocks_of(v.inner, max(inner_parts, 1)), 32) * 32
    if v.inner <= inner_step:
        inner_step = v.inner
    return Split(max(outer_step, 1), max(inner_step, 1), outer_parts, blocks_of(v.inner, max(inner_step, 1)))


def _lanes(terms: int, tasks: int) -> int:
    """Threads for each of so many sums of so many terms."""
    if tasks >= _TASKS:
        return _FEW if terms <= 2 * _FEW else 32
    return 32 if terms <= 256 else _FINISH


def _side(v: View, vector: int, most: int) -> int:
    """Threads beside each other along the channels."""
    side = 1
    while side * vector < v.channels and side < most:
        side *= 2
    return side


class Launches:
    """The plans of one problem."""

    def __init__(self, problem: NormProblem, aligned: bool) -> None:
        self.problem, self.specs = problem, inputs(problem, problem.inputs, None)
        self.arguments = Arguments(problem, beside=passes(problem))
        self.given = inputs(problem, self.arguments.inputs, 0)
        found = view(problem)
        assert found is not None
        self.x = self.specs.x
        self.view, self.split = found, split(found, self.x, self.specs.grad is not None)
        self.aligned = aligned
        self.formula = formula(problem.activation, self.x.dtype)
        self.item = statistics_dtype(self.x).itemsize

    @property
    def count(self) -> tuple[float, float]:
        """Values behind a statistic, and their share."""
        return shares(self.problem)

    @property
    def direct(self) -> bool:
        """Whether the sums of the gradient take the means as they were saved, and nobody need write coefficients before."""
        v, specs = self.view, self.specs
        saved = specs.rstd is not None and wide(specs.mean, self.x) and not v.per_batch
        return bool(saved) and self.problem.activation is None and v.size > 0

    @property
    def settles(self) -> bool:
        """Whether the sums write the gradient of the residual, which the last pass then reads in place of grad and residual: one pass of bytes
        less. It must be what would have been found anew, not its rounding.
        """
        return settles(self.problem)

    @property
    def _partial_bytes(self) -> int:
        return self.split.parts * self.view.channels * _SHARES

    @property
    def partial(self) -> Array:
        return self.arguments.scratch()

    @property
    def partial_gradient(self) -> Array:
        return self.arguments.scratch(self._partial_bytes)

    @property
    def coefficients(self) -> Array:
        return self.arguments.scratch(2 * self._partial_bytes)

    @property
    def slopes(self) -> Array:
        return self.arguments.scratch(2 * self._partial_bytes + _COEFFICIENTS * self.view.instances * self.item)

    def sums(self, gradient: bool, both: bool = False, more: Pointer = 0) -> Plan:
        """Sums of x, or of the gradient, or of both; `more` takes the gradient before the activation."""
        v, s = self.view, self.split
        vector = vector_length(self.x.dtype, self.aligned, v.channels if v.last else v.inner)
        part = s.inner_step if v.last else s.outer_step * s.inner_step
        threads = _SUMS // 2 if gradient or v.per_batch else _SUMS
        while threads > 32 and not v.last and part // vector < threads:
            threads //= 2
        side = _side(v, vector, min(_SIDE, threads)) if v.last else 1
        activation = self.formula if gradient else formula(None, self.x.dtype)
        residual = self.given.residual if gradient and self.problem.activation else 0
        config = SumsConfig(TYPES[self.x.dtype], activation.type, gradient, both, bool(residual), bool(more), v.last, vector, side, threads)
        words = {"both": both, "backward": gradient and not both, "residual": residual, "more": more}
        name = f"{''.join(f'{w}_' for w, on in words.items() if on)}{_layout(v, side)}_{SHORT[self.x.dtype]}x{vector}_{threads}_{activation.name}"
        kernel = Kernel("norm/channel_sums.cu", f"norm_channel_sums_{name}", config, ("activation",))
        tiles = blocks_of(v.channels // vector, side) if v.last else v.channels
        means = self.given.mean if self.direct else self.coefficients
        pointers = (self.given.x, self.given.grad if gradient else 0, residual, means if gradient else 0)
        sizes = (v.outer, v.channels, v.inner, s.outer_step, s.inner_step, s.inner_parts, v.channels // v.groups, int(v.per_batch))
        numbers = (*sizes, 1 if self.direct else _COEFFICIENTS)
        launch = (*pointers, more, self.partial, self.partial_gradient, *numbers, self.formula.p, self.formula.q)
        return Plan(kernel, (s.parts * tiles, 1, 1), threads, launch, early=gradient)

    def _parts(self) -> int:
        """Parts of one instance."""
        return self.split.inner_parts if self.view.per_batch else self.split.parts

    def finish(self, found: bool, mean: Pointer = 0, rstd: Pointer = 0, next_mean: Pointer = 0, next_var: Pointer = 0) -> Plan:
        """Coefficients; `found` says that the parts of x were summed."""
        v, g, specs, x = self.view, self.given, self.specs, self.x
        members = v.channels // v.groups
        lanes = _lanes(self._parts() * members if found else 1, v.statistics)
        kernel = Kernel("norm/channel_finish.cu", f"norm_channel_finish_{SHORT[x.dtype]}_{lanes}", FinishConfig(TYPES[x.dtype], lanes))
        pointers = (g.x, self.partial if found else 0, g.weight, g.bias, g.mean, g.rstd, g.variance, g.running_mean, g.running_var)
        results = (self.coefficients, mean, rstd, next_mean, next_var)
        typed = (specs.weight, specs.bias, specs.mean, specs.rstd, specs.variance, specs.running_mean, specs.running_var)
        numbers = (v.statistics, self._parts(), v.channels, members, v.channels * v.inner, 1 if v.last else v.inner, int(v.last))
        values = (*self.count, float(self.problem.momentum), float(self.problem.eps))
        launch = (*pointers, *results, *(wide(s, x) for s in typed), *numbers, *values)
        return Plan(kernel, (blocks_of(v.statistics, _FINISH // lanes), 1, 1), _FINISH, launch, early=True)

    def finish_backward(self, dweight: Pointer, dbias: Pointer, dmean: Pointer = 0, dvariance: Pointer = 0, both: bool = False) -> Plan:
        """Coefficients of the gradient of x, and the gradients of the parameters that are wanted; `both` says what the sums are around."""
        v, specs, x = self.view, self.specs, self.x
        fixed = specs.variance is not None
        flags = (wide(s, x) for s in (specs.weight, specs.bias, specs.mean, specs.rstd, specs.variance))
        saved = (self.given.mean, self.given.rstd) if self.direct else (0, 0)
        known = (self.given.weight, self.coefficients, self.slopes, *saved)
        pointers = (self.given.x if both else 0, self.partial_gradient, *known, dweight, dbias, dmean, dvariance)
        parts, members = self._parts() if v.size else 0, v.channels // v.groups
        lanes, over = _lanes(parts * members, v.statistics), _lanes(parts * v.batch, v.channels)
        config = FinishBackwardConfig(TYPES[x.dtype], lanes, over)
        name = f"norm_channel_finish_backward_{SHORT[x.dtype]}_{lanes}_{over}"
        kernel = Kernel("norm/channel_finish_backward.cu", name, config)
        blocks = blocks_of(v.statistics, _FINISH // lanes)
        pitches = (v.channels * v.inner, 1 if v.last else v.inner)
        numbers = (v.statistics, parts, v.channels, members, *pitches, self.count[1], int(fixed), int(v.last), blocks)
        wanted = dweight or dbias or dmean or dvariance
        grid = (blocks + (blocks_of(v.channels, _FINISH // over) if wanted else 0), 1, 1)
        return Plan(kernel, grid, _FINISH, (*pointers, *flags, *numbers), early=True)

    def _apply_kernel(self, gradient: bool, residual: bool, more: bool, given: bool, settled: bool) -> tuple[Kernel, ApplyConfig]:
        v, specs, x = self.view, self.specs, self.x
        activation = formula(None, x.dtype) if settled else self.formula
        vector = vector_length(x.dtype, self.aligned, *(v.channels,) * v.last)
        config = ApplyConfig(
            TYPES[x.dtype],
            activation.type,
            gradient,
            v.last,
            given,
            gradient and specs.variance is not None,
            residual,
            more,
            settled,
            plain=not given or all(s is None or wide(s, x) for s in (specs.mean, specs.variance, specs.weight, specs.bias)),
            straddle=0 if v.last or v.inner % vector == 0 else 1 if v.inner >= vector else 2,
            wide=x.size >= 1 << 31 and not v.last,
            vector=vector,
            side=_side(v, vector, _APPLY_SIDE) if v.last else 1,
            batch=1 if not v.last else _BATCH - (gradient and residual) if x.dtype.itemsize == 2 else _WIDE_BATCH,
            threads=_APPLY,
        )
        words = {
            "backward": gradient,
            "given": given,
            "fixed": config.fixed,
            "residual": residual,
            "more": more,
            "settled": settled,
            "mixed": not config.plain,
            "wide": config.wide,
        }
        words[f"straddle{config.straddle}"] = config.straddle > 0
        name = "_".join([*(w for w, on in words.items() if on), _layout(v, config.side)])
        symbol = f"norm_channel_apply_{name}_{SHORT[x.dtype]}x{vector}_{activation.name}"
        return Kernel("norm/channel_apply.cu", symbol, config, ("activation",)), config

    def apply(self, gradient: bool, out: Pointer, more: Pointer = 0, given: bool = False, settled: Pointer = 0) -> Plan:
        """The last pass; with `given` straight from the statistics among the inputs, with `settled`, the gradient before the activation, from that."""
        v, g, specs, x = self.view, self.given, self.specs, self.x
        residual = g.residual if not gradient or (self.problem.activation and not settled) else 0
        kernel, config = self._apply_kernel(gradient, bool(residual), bool(more), given, bool(settled))
        steps, tiles = _APPLY // config.side, blocks_of(v.channels // config.vector, config.side)
        wanted = _APPLY_BLOCKS[0 if x.dtype.itemsize > 2 else 1 + gradient]
        each = min(max(blocks_of(v.inner * v.batch * tiles, steps * wanted), config.batch), _ROWS * (4 // x.dtype.itemsize or 1))
        rows = each * steps
        blocks = tiles * blocks_of(v.inner, rows) * v.batch if v.last else blocks_of(v.size, _APPLY * config.vector)
        known = (0, 0, g.mean, g.variance, g.weight, g.bias) if given else (self.coefficients, self.slopes, 0, 0, 0, 0)
        widths = (wide(s, x) for s in (specs.mean, specs.variance, specs.weight, specs.bias))
        sizes = (v.size, v.batch, v.channels, v.inner, rows, blocks_of(v.inner, rows), divisor(v.inner), divisor(v.instances))
        numbers = (*sizes, float(self.problem.eps), self.formula.p, self.formula.q)
        launch = (g.x, settled or g.grad, residual, *known, out, more, *widths, *numbers)
        return Plan(kernel, (blocks, 1, 1), _APPLY, launch, early=not given)

    def program(self, *plans: Plan) -> Program:
        return Program(plans, orders(self.problem, self.x))


def settles(problem: NormProblem) -> bool:
    """`Launches.settles`."""
    specs = inputs(problem, problem.inputs, None)
    wanted = specs.residual is not None and specs.grad is not None and problem.outputs[-1] is not None
    return wanted and problem.activation is not None and exact_gradient(problem) and sums_up(problem)


def sums_up(problem: NormProblem) -> bool:
    """Whether a gradient takes sums: that of x does not, where the statistics do not depend on it."""
    fixed = inputs(problem, problem.inputs, None).variance is not None
    return any(problem.outputs[1 : 5 if fixed else 3]) or not (fixed or problem.outputs[0] is None)


def passes(problem: NormProblem) -> bool:
    """Whether a gradient is written by the last pass: that of x, or that of a residual which the sums leave to it."""
    residual = inputs(problem, problem.inputs, None).residual is not None and problem.outputs[-1] is not None
    return problem.outputs[0] is not None or (residual and not settles(problem))


def _layout(v: View, side: int) -> str:
    return f"last{side}" if v.last else "first"


def workspace(problem: NormProblem) -> int:
    """The results of the parts and the coefficients."""
    v = view(problem)
    if v is None or v.channels == 0:
        return 0
    specs = inputs(problem, problem.inputs, None)
    partial, x = split(v, specs.x, specs.grad is not None).parts * v.channels * _SHARES, specs.x
    unwanted = discarded(problem) if specs.grad is not None and passes(problem) else 0
    return unwanted + max(2 * partial + 2 * _COEFFICIENTS * v.instances * statistics_dtype(x).itemsize, 16)


def cost(problem: NormProblem, device: Device) -> Cost:
    """x is read twice (in the gradient, grad too, where sums are followed by a pass)."""
    x: Spec = inputs(problem, problem.inputs, None).x
    if not problem.op.endswith("_backward"):
        return Cost(problem.flops, problem.bytes + x.nbytes, launches=3)
    again = sums_up(problem) and passes(problem)
    return Cost(problem.flops, problem.bytes + (2 * x.nbytes if again else 0), launches=5 if again else 4)


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Sums unless the statistics are given, coefficients, result."""
    launches = Launches(problem, aligned)
    v = launches.view
    y, *results = launches.arguments.outputs
    if v.channels == 0 or (v.size == 0 and not any(results)):
        return Program(())
    if launches.specs.variance is not None:
        return launches.program(launches.apply(False, y, given=True))
    found = v.size > 0
    plans = [launches.sums(False)] if found else []
    if v.statistics:
        plans.append(launches.finish(found, *results))
    if v.size:
        plans.append(launches.apply(False, y))
    return launches.program(*plans)


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The forward's statistics, sums of the gradient, coefficients, gradients; of these what is wanted takes."""
    launches = Launches(problem, aligned)
    v, specs = launches.view, launches.specs
    if v.channels == 0:
        return Program(())
    dx, *results = launches.arguments.outputs
    fixed = specs.variance is not None
    dmean, dvariance = (results.pop(0), results.pop(0)) if fixed else (0, 0)
    dweight, dbias, dresidual = (*results, 0)[:3]
    if not v.size:
        first = [launches.finish(False)] if v.statistics else []
        return launches.program(*first, launches.finish_backward(dweight, dbias, dmean, dvariance))
    found = not fixed and (specs.mean is None or specs.rstd is None)
    both = found and problem.activation is None
    plans = [launches.sums(both, both)] if found else []
    plans += [] if launches.direct else [launches.finish(found)]
    settled, more = (dresidual, 0) if launches.settles else (0, dresidual)
    plans += [] if both or not sums_up(problem) else [launches.sums(True, more=settled)]
    plans += [launches.finish_backward(dweight, dbias, dmean, dvariance, both)]
    plans += [launches.apply(True, dx, more, settled=settled)] if passes(problem) else []
    return launches.program(*plans)
