"""What the launches of the algorithm ``channels`` share: the parts of the sums, where results lie in the scratch
memory, and what is computed at all."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, vector_length
from dnnarray._cuda.norm.channel_view import View, exact_gradient, operands, shares, specs_of, view_of
from dnnarray._cuda.norm.shared import Arrays, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._spec import Spec

_SUM_BLOCKS = (
    132 * 8,
    132 * 16,
)  # blocks that a pass of sums is split into: of x, of the gradient (smaller ones, two rounds of them)
_LAST_BLOCKS = (
    132 * 4,
    132 * 5,
)  # and channels last, where they are all to be at work at once; with statistics per batch index
_PART = 8192  # elements that are worth a block
SHARES = 16  # bytes of the result of a part
FINISH, _TASKS, _FEW = (
    128,
    2048,
    8,
)  # threads of a block; tasks that are enough for the card with a warp each, or with so few threads
COEFFICIENTS = 4  # mean, scale, shift, rstd; weight, average, slope and one unused


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
    wanted = (
        _LAST_BLOCKS[v.per_batch] // max(columns, 1) if v.last else blocks_of(_SUM_BLOCKS[gradient], max(columns, 1))
    )
    wanted = max(min(wanted, blocks_of(v.outer * v.inner * (min(v.channels, 32 * vector) if v.last else 1), _PART)), 1)
    outer_step = 1 if alone else blocks_of(v.outer, min(wanted, max(v.outer, 1)))
    outer_parts = blocks_of(v.outer, max(outer_step, 1))
    inner_parts = wanted // max(outer_parts, 1) if v.last else blocks_of(wanted, max(outer_parts, 1))
    inner_step = blocks_of(blocks_of(v.inner, max(inner_parts, 1)), 32) * 32
    if v.inner <= inner_step:
        inner_step = v.inner
    return Split(max(outer_step, 1), max(inner_step, 1), outer_parts, blocks_of(v.inner, max(inner_step, 1)))


def lanes(terms: int, tasks: int) -> int:
    """Threads for each of so many sums of so many terms."""
    if tasks >= _TASKS:
        return _FEW if terms <= 2 * _FEW else 32
    return 32 if terms <= 256 else FINISH


def side_of(v: View, vector: int, most: int) -> int:
    """Threads beside each other along the channels."""
    side = 1
    while side * vector < v.channels and side < most:
        side *= 2
    return side


def layout(v: View, side: int) -> str:
    """The memory layout in a kernel's name."""
    return f"last{side}" if v.last else "first"


class Launches:
    """What the launches of one problem have in common."""

    def __init__(self, problem: NormProblem, aligned: bool) -> None:
        self.problem, self.specs = problem, specs_of(problem)
        self.arrays = Arrays(problem, beside=passes(problem))
        self.given = operands(problem, self.arrays.inputs)
        self.x, self.view, self.aligned = self.specs.x, view_of(problem), aligned
        self.split = split(self.view, self.x, self.specs.grad is not None)
        self.formula = formula(problem.activation, self.x.dtype)
        self.item = statistics_dtype(self.x).itemsize

    @property
    def count(self) -> tuple[float, float]:
        """Values behind a statistic, and 1 over their number."""
        return shares(self.problem)

    @property
    def direct(self) -> bool:
        """Whether the sums of the gradient take the means as they were saved, and nobody need write coefficients
        before."""
        v, specs = self.view, self.specs
        saved = specs.rstd is not None and wide(specs.mean, self.x) and not v.per_batch
        return bool(saved) and self.problem.activation is None and v.size > 0

    @property
    def parts(self) -> int:
        """Parts of one instance."""
        return self.split.inner_parts if self.view.per_batch else self.split.parts

    @property
    def _partial_bytes(self) -> int:
        return self.split.parts * self.view.channels * SHARES

    @property
    def partial(self) -> Array:
        return self.arrays.scratch()

    @property
    def partial_gradient(self) -> Array:
        return self.arrays.scratch(self._partial_bytes)

    @property
    def coefficients(self) -> Array:
        return self.arrays.scratch(2 * self._partial_bytes)

    @property
    def slopes(self) -> Array:
        return self.arrays.scratch(2 * self._partial_bytes + COEFFICIENTS * self.view.instances * self.item)


def settles(problem: NormProblem) -> bool:
    """Whether the sums write the gradient of the residual, which the last pass then reads in place of grad and
    residual: one pass of bytes less. It must be what would have been found anew, not its rounding."""
    specs = specs_of(problem)
    wanted = specs.residual is not None and specs.grad is not None and problem.outputs[-1] is not None
    return wanted and problem.activation is not None and exact_gradient(problem) and sums_up(problem)


def sums_up(problem: NormProblem) -> bool:
    """Whether a gradient takes sums: that of x does not, where the statistics do not depend on it."""
    fixed = specs_of(problem).variance is not None
    return any(problem.outputs[1 : 5 if fixed else 3]) or not (fixed or problem.outputs[0] is None)


def passes(problem: NormProblem) -> bool:
    """Whether a gradient is written by the last pass: that of x, or that of a residual which the sums leave to it."""
    residual = specs_of(problem).residual is not None and problem.outputs[-1] is not None
    return problem.outputs[0] is not None or (residual and not settles(problem))
