"""The algorithm ``rows``: each row in the registers of a warp or a block, read once; of group norm, the values of a
group."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm import channel_view
from dnnarray._cuda.norm.layer import NO_ROWS, Operands, extents, operands, results, rows_of, specs_of
from dnnarray._cuda.norm.shared import NOTHING, Arrays, Bias, Pointer, Weight, orders, short, type_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64, Spec

_LANES = (4, 8, 16, 32, 128, 256, 512, 1024)
_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_THREADS = 128  # of a block whose rows take a warp or less
_EARLY = 16  # values of a thread with which weight and bias of all of them are read first, as in kernels/norm/rows.cu
_GROUP_VECTOR = (
    4  # elements: as large as a vector has to be for a block that holds channels in shared memory to walk them as fast
)
_GROUP_LANES = 256  # threads of a group up to which one waits for its sums no longer than several groups together do


@frozen
class RowsConfig(Config):
    """Compile-time settings of ``kernels/norm/rows.cu``."""

    element: str
    weight: str
    bias: str
    activation: str
    centred: bool
    add: bool
    images: int
    full: bool
    vector: int
    vectors: int
    lanes: int
    threads: int


@frozen(kw_only=True)
class RowsArguments(Arguments, restrict=("x", "weight", "bias", "y", "residual", "sum")):
    """What ``kernels/norm/rows.cu`` is called with; `mean_of` and `rstd_of_row` are absent where the statistics are not
    wanted, `share` is 1 / `columns`."""

    x: In
    weight: Weight
    bias: Bias
    y: Out
    residual: In
    sum: Out
    mean_of: OutArithmetic
    rstd_of_row: OutArithmetic
    rows: Extent
    columns: Extent
    share: Double
    eps: Double
    p: Double
    q: Double
    groups: Extent
    space: Extent
    space_divisor: Extent


class Rows(NamedTuple):
    """How a row is spread over threads."""

    vector: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Of a row that leaves no thread without a value."""
        return self.vector * self.vectors * self.lanes

    @property
    def threads(self) -> int:
        return max(self.lanes, _THREADS)

    @property
    def per_block(self) -> int:
        return self.threads // self.lanes

    @property
    def text(self) -> str:
        return f"x{self.vector}x{self.vectors}x{self.lanes}"


def spread(columns: int, x: Spec, gradient: bool, vector: int, add: bool = False) -> Rows | None:
    """As few threads as hold the row in their registers; None where 1024 (512 for a gradient) do not."""
    values = (16 if gradient else 32) // (2 if x.dtype == FLOAT64 else 1)
    few = (128, 1024) if x.dtype == FLOAT32 and not gradient and not add else (1024,)
    for lanes in _LANES[: -1 if gradient else None]:
        most = 2 if lanes < 8 else (values // 2 if lanes < 32 or lanes in few else values) // vector
        needed = max(blocks_of(columns, lanes * vector), 1)
        if needed <= min(most, _VECTORS[-1]):
            return Rows(vector, next(v for v in _VECTORS if v >= needed), lanes)
    return None


def rejects(problem: NormProblem, device: Device) -> str | None:
    found = extents(problem)
    if found is None:
        return NO_ROWS
    if any(spread_of(problem, found[1], aligned) is None for aligned in (True, False)):
        return f"rows of {found[1]} are more than a block holds in registers"
    return None


def spread_of(problem: NormProblem, columns: int, aligned: bool) -> Rows | None:
    specs = specs_of(problem)
    vector = vector_length(specs.x.dtype, aligned, columns)
    return spread(columns, specs.x, problem.op.endswith("_backward"), vector, specs.residual is not None)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    (rows, columns), specs, arrays = rows_of(problem), specs_of(problem), Arrays(problem)
    if rows == 0:
        return NOTHING
    how, given = spread_of(problem, columns, aligned), operands(problem, arrays.inputs)
    assert how is not None
    plan = _launch(problem, specs, given, results(problem, arrays), how, Images(rows, columns))
    return Program((plan,), orders(problem, specs.x))


class Images(NamedTuple):
    """The rows of a launch, and how images lie in them: how often a border of images falls into a vector (2: any number
    of times), after how many rows the parameters begin anew, and how many columns an image has. Rows of layer norm are
    no images."""

    rows: int
    columns: int
    borders: int = 0
    groups: int = 1
    space: int = 1


def _launch(
    problem: NormProblem, specs: Operands, given: Operands, outputs: tuple[Pointer, ...], how: Rows, images: Images
) -> Plan:
    """The launch; `outputs` are (y, sum, mean, rstd)."""
    rows, columns, borders, groups, space = images
    full = problem.centred and columns == how.columns
    curve, weight, bias = (
        formula(problem.activation, specs.x.dtype),
        type_of(specs.weight, specs.x),
        type_of(specs.bias, specs.x),
    )
    settings = (specs.residual is not None, borders, full, *how, how.threads)
    config = RowsConfig(TYPES[specs.x.dtype], weight, bias, curve.type, problem.centred, *settings)
    words = {curve.name: problem.activation is not None, "full": full, f"images{borders}": borders}
    name = f"{problem.op}_rows_{SHORT[specs.x.dtype]}{how.text}{''.join(f'_{w}' for w, on in words.items() if on)}"
    kernel = Kernel(
        "norm/rows.cu",
        f"{name}_{short(specs.weight, specs.x)}_{short(specs.bias, specs.x)}",
        config,
        ("core/activation",),
    )
    y, total, mean, rstd = outputs
    arguments = RowsArguments(
        x=given.x,
        weight=given.weight,
        bias=given.bias,
        y=y,
        residual=given.residual,
        sum=total,
        mean_of=mean,
        rstd_of_row=rstd,
        rows=rows,
        columns=columns,
        share=1.0 / max(columns, 1),
        eps=float(problem.eps),
        p=curve.p,
        q=curve.q,
        groups=groups,
        space=space,
        space_divisor=divisor(space),
    )
    plan = planned(kernel, (blocks_of(rows, how.per_block), 1, 1), how.threads, arguments)
    ahead = how.vector * how.vectors <= _EARLY and not borders and specs.residual is None
    return ahead_if_small(plan) if ahead else plan


# --- group norm, channels first: the values behind a statistic lie one after the other --------------------------------


def _group_rows(problem: NormProblem, v: channel_view.View, aligned: bool) -> Rows | None:
    x, columns = channel_view.specs_of(problem).x, v.channels // v.groups * v.inner
    return spread(columns, x, False, vector_length(x.dtype, aligned, columns))


def rejects_groups(problem: NormProblem, device: Device) -> str | None:
    v, x = channel_view.view(problem), channel_view.specs_of(problem).x
    if v is None or v.last or v.size == 0 or x.dtype == FLOAT64:
        return "only float and half types with batch, channels and space in this order in memory, and not nothing"
    if v.inner % _GROUP_VECTOR == 0 or v.channels // v.groups * v.inner % _GROUP_VECTOR:
        return "only groups that are whole vectors, of images that are not"
    how = [_group_rows(problem, v, aligned) for aligned in (True, False)]
    if any(h is None or h.lanes > _GROUP_LANES for h in how) or v.instances >= 1 << 31:
        return (
            f"the {v.channels // v.groups * v.inner:,} values of a group are more than {_GROUP_LANES} threads "
            "hold in registers"
        )
    return None


def run_groups(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    v, specs, arrays = channel_view.view_of(problem), channel_view.specs_of(problem), Arrays(problem)
    how, given = _group_rows(problem, v, aligned), channel_view.operands(problem, arrays.inputs)
    assert how is not None
    images = Images(
        v.statistics, v.channels // v.groups * v.inner, 1 if v.inner >= how.vector else 2, v.groups, v.inner
    )
    y, mean, rstd = (*arrays.outputs, None, None)[:3]
    pointers = Operands(x=given.x, weight=given.weight, bias=given.bias)
    parameters = Operands(x=specs.x, weight=specs.weight, bias=specs.bias)
    return Program(
        (_launch(problem, parameters, pointers, (y, None, mean, rstd), how, images),), orders(problem, specs.x)
    )
