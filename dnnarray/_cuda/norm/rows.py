"""Layer and RMS norm, alone and after an addition, over rows that fit the registers of a block."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.norm.shared import Arguments, discarded, memory_order, orders, short, type_of, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64, Spec

_LANES = (4, 8, 16, 32, 128, 256, 512, 1024)
_VECTORS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_THREADS = 128  # of a block whose rows take a warp or less
_UNITS = 132  # multiprocessors that the blocks of a gradient, which stay, are meant to fill
_FOLD_WIDE = 2048  # columns for each element of a vector, so that there are blocks enough
_FOLD_FEW = 16384  # columns from which there are blocks enough for few threads in each
_EARLY = 16  # values of a thread with which weight and bias of all of them are read first, as in kernels/norm/rows.cu


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


@frozen
class RowsBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/rows_backward.cu``."""

    element: str
    weight: str
    mean: str
    rstd: str
    centred: bool
    add: bool
    parameters: bool
    vector: int
    vectors: int
    lanes: int
    threads: int
    resident: int
    once: bool
    side: int
    behind: bool


@frozen
class FoldConfig(Config):
    """Compile-time settings of ``kernels/norm/fold.cu``."""

    element: str
    vector: int
    rows: int


class Operands(NamedTuple):
    """The arrays of a problem by what they are, as specs or as launch arguments."""

    x: Any
    grad: Any = None
    grad_sum: Any = None
    residual: Any = None
    weight: Any = None
    bias: Any = None
    mean: Any = None
    rstd: Any = None

    @property
    def of_gradient(self) -> tuple[Any, ...]:
        """In the order in which the gradients' kernels take them."""
        return self.grad, self.grad_sum, self.x, self.residual, self.weight, self.mean, self.rstd


def operands(problem: NormProblem, arrays: tuple[Any, ...], absent: Any) -> Operands:
    """`arrays` (as in ``problem.inputs``) sorted by what they are; `absent` stands for what the operation does not have."""
    name, found = problem.op, list(arrays)
    fields = dict.fromkeys(Operands._fields, absent)
    if name.endswith("_backward"):
        grad = found.pop(0)
        fields["grad"], fields["grad_sum"] = grad if isinstance(grad, tuple) else (grad, absent)
    fields["x"] = found.pop(0)
    if name.startswith("add_"):
        fields["residual"] = found.pop(0)
    for key in ("weight", "bias", "mean", "rstd") if problem.centred else ("weight", "rstd"):
        if found:
            fields[key] = found.pop(0)
    return Operands(**fields)


def extents(problem: NormProblem) -> tuple[int, int] | None:
    """(rows, columns) where the normalised axes are the fastest in memory and each group of axes stands in the order of x, else None."""
    x, axes = operands(problem, problem.inputs, None).x, problem.geometry.axes
    order = tuple(i for i in memory_order(x) if x.shape[i] != 1)
    along = tuple(i for i in sorted(axes) if x.shape[i] != 1)
    kept = tuple(i for i in range(x.ndim) if i not in axes and x.shape[i] != 1)
    if order != kept + along and x.size:
        return None
    return prod(x.shape[i] for i in kept), prod(x.shape[i] for i in along)


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


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the rows cannot be held in registers, or None."""
    found = extents(problem)
    if found is None:
        return "the normalised axes are not the fastest in memory"
    if any(spread_of(problem, found[1], aligned) is None for aligned in (True, False)):
        return f"rows of {found[1]} are more than a block holds in registers"
    return None


def spread_of(problem: NormProblem, columns: int, aligned: bool) -> Rows | None:
    specs = operands(problem, problem.inputs, None)
    vector = vector_length(specs.x.dtype, aligned, columns)
    return spread(columns, specs.x, problem.op.endswith("_backward"), vector, specs.residual is not None)


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    found = extents(problem)
    assert found is not None
    rows, columns = found
    if rows == 0:
        return Program(())
    how = spread_of(problem, columns, aligned)
    assert how is not None
    y, *rest = arguments.outputs
    total, mean, rstd = (rest[0], 0, 0) if specs.residual is not None else (0, *rest) if problem.centred else (0, 0, *rest)
    pointers = (given.x, given.weight, given.bias, y, mean, rstd)
    return Program((launch(problem, specs, pointers, how, (rows, columns), (given.residual, total)),), orders(problem, x))


def launch(
    problem: NormProblem,
    specs: Operands,
    pointers: tuple[Any, ...],
    how: Rows,
    extents: tuple[int, int],
    sums: tuple[Any, Any] = (0, 0),
    images: tuple[int, int, int] = (0, 1, 1),
) -> Plan:
    """The launch for rows of columns; `sums` are the residual and where its sum with x goes; `images` say how often a border of images falls into a
    vector (2: any number of them), after how many rows the parameters begin anew, and how many columns each is of.
    """
    (rows, columns), (borders, groups, space) = extents, images
    full = problem.centred and columns == how.columns
    curve, weight, bias = formula(problem.activation, specs.x.dtype), type_of(specs.weight, specs.x), type_of(specs.bias, specs.x)
    settings = (specs.residual is not None, borders, full, *how, how.threads)
    config = RowsConfig(TYPES[specs.x.dtype], weight, bias, curve.type, problem.centred, *settings)
    words = {curve.name: problem.activation is not None, "full": full, f"images{borders}": borders}
    name = f"{problem.op}_rows_{SHORT[specs.x.dtype]}{how.text}{''.join(f'_{w}' for w, on in words.items() if on)}"
    kernel = Kernel("norm/rows.cu", f"{name}_{short(specs.weight, specs.x)}_{short(specs.bias, specs.x)}", config, ("activation",))
    numbers = (rows, columns, 1.0 / max(columns, 1), problem.eps, *sums, curve.p, curve.q, groups, space, divisor(space))
    grid, ahead = (blocks_of(rows, how.per_block), 1, 1), how.vector * how.vectors <= _EARLY and not borders and specs.residual is None
    plan = Plan(kernel, grid, how.threads, (*pointers, *numbers))
    return ahead_if_small(plan) if ahead else plan


def _resident(how: Rows, problem: NormProblem) -> int:
    """Blocks of the gradient that are at work on a multiprocessor at once; the kernel gets its registers by it."""
    specs = operands(problem, problem.inputs, None)
    words = how.vector * how.vectors * statistics_dtype(specs.x).itemsize // 4
    more = 2 if specs.x.dtype == FLOAT64 else int(specs.residual is not None or (how.vector == 1 and words > 8))
    together = 768 if words <= 8 and how.lanes > 32 else 512  # rows within a warp wait for nobody
    return max((together - 128 * more) // how.threads, 1)


def _stay(how: Rows, problem: NormProblem, rows: int) -> int:
    """Blocks of the gradient, which stay."""
    return min(blocks_of(rows, how.per_block), _UNITS * _resident(how, problem))


def workspace(problem: NormProblem) -> int:
    """The blocks' shares of the gradients of weight and bias; the larger of what aligned and other memory need."""
    specs, found = operands(problem, problem.inputs, None), extents(problem)
    if found is None or not wants_parameters(problem):
        return 0
    parts = max((_stay(how, problem, found[0]) for how in (spread_of(problem, found[1], a) for a in (True, False)) if how), default=0)
    return parts * found[1] * statistics_dtype(specs.x).itemsize * sum(s is not None for s in of_parameters(problem))


def of_parameters(problem: NormProblem) -> tuple[Spec | None, ...]:
    """The outputs that are gradients of weight and bias."""
    return problem.outputs[2 if problem.op.startswith("add_") else 1 :]


def wants_parameters(problem: NormProblem) -> bool:
    """Whether sums make the gradients of weight or bias."""
    return operands(problem, problem.inputs, None).grad is not None and any(of_parameters(problem))


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x with each block's share of the gradients of the parameters, then the sum of the shares."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    x, found = specs.x, extents(problem)
    assert found is not None
    if specs.grad is None:
        return pass_on(problem, aligned)
    rows, columns = found
    how = spread_of(problem, columns, aligned)
    assert how is not None
    _, _, dweight, dbias = results(problem, arguments)
    blocks = _stay(how, problem, rows)
    share = blocks * columns * statistics_dtype(x).itemsize
    of_weight = arguments.scratch() if dweight and share else 0
    of_bias = arguments.scratch(share if dweight else 0) if dbias and share else 0
    plans = []
    if x.size:
        plans.append(gradient(problem, how, Blocks(blocks, _resident(how, problem)), (of_weight, of_bias)))
    if columns and (dweight or dbias):
        plans.append(fold(x, of_weight, of_bias, dweight, dbias, blocks if x.size else 0, columns, specs.weight, specs.bias, aligned))
    return Program(tuple(plans), orders(problem, x))


class Blocks(NamedTuple):
    """Those of a gradient: how many, at once on a multiprocessor; of those that are of columns, vectors beside each other, and whether there are no others."""

    number: int
    resident: int
    side: int = 0
    behind: bool = False


def gradient(problem: NormProblem, how: Rows, blocks: Blocks, parameters: tuple[Any, Any], found: tuple[Any, Any] = (0, 0)) -> Plan:
    """A launch; `parameters` take the shares of the gradients of the parameters, or with blocks of columns these gradients, `found` the statistics,
    which blocks of columns behind such a launch take from there.
    """
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x, side = operands(problem, arguments.inputs, 0), specs.x, blocks.side
    if blocks.behind:
        specs, given, found = specs._replace(mean=None, rstd=None), given._replace(mean=found[0], rstd=found[1]), (0, 0)
    dx, dresidual, _, _ = results(problem, arguments)
    sizes = extents(problem)
    assert sizes is not None
    add, shares = specs.residual is not None, bool(parameters[0] or parameters[1]) and not side
    alone = blocks.number * how.per_block >= sizes[0] and x.dtype != FLOAT64  # a weight in double is more than registers hold
    once = side > 0 or alone
    weight, mean, rstd = (type_of(s, x) for s in (specs.weight, specs.mean, specs.rstd))
    settings = (*how, how.threads, blocks.resident, once, side, blocks.behind)
    config = RowsBackwardConfig(TYPES[x.dtype], weight, mean, rstd, problem.centred, add, shares, *settings)
    words = {"parameters": shares, "once": once, f"columns{side}": side > 0, "behind": blocks.behind, "found": any(found)}
    name = f"{'add_' if add else ''}{'layer' if problem.centred else 'rms'}_norm_rows_backward_{SHORT[x.dtype]}{how.text}"
    name = "_".join([name, *(short(s, x) for s in (specs.weight, specs.mean, specs.rstd)), *(w for w, on in words.items() if on)])
    pointers = (*given.of_gradient, dx, dresidual, *parameters, *found)
    launch = (*pointers, *sizes, wide(specs.weight, x), wide(specs.bias, x), problem.eps)
    return Plan(Kernel("norm/rows_backward.cu", name, config), (blocks.number, 1, 1), how.threads, launch, early=blocks.behind)


def results(problem: NormProblem, arguments: Arguments) -> tuple[Any, Any, Any, Any]:
    """(dx, dresidual, dweight, dbias), 0 where there is none."""
    dx, *rest = arguments.outputs
    dresidual = rest.pop(0) if problem.op.startswith("add_") else 0
    dweight, dbias = (*rest, 0)[:2]
    return dx, dresidual, dweight, dbias


def fold(
    x: Spec, of_weight: Any, of_bias: Any, dweight: Any, dbias: Any, parts: int, columns: int, weight: Any, bias: Any, aligned: bool = False
) -> Plan:
    """The sum of `parts` shares of the gradients of weight and bias."""
    vector = next((n for n in (4, 2) if columns % n == 0 and columns >= n * _FOLD_WIDE and aligned and x.dtype != FLOAT64), 1)
    rows = 8 if columns >= _FOLD_FEW else 32
    kernel = Kernel("norm/fold.cu", f"norm_fold_{SHORT[x.dtype]}x{vector}x{rows}", FoldConfig(TYPES[x.dtype], vector, rows))
    arguments = (of_weight, of_bias, dweight, dbias, parts, columns, wide(weight, x), wide(bias, x))
    return Plan(kernel, (blocks_of(columns, 32 * vector), 2, 1), 32 * rows, arguments, early=True)


@frozen
class PassOnConfig(Config):
    """Compile-time settings of ``kernels/norm/pass_on.cu``."""

    element: str
    vector: int
    threads: int


def pass_on(problem: NormProblem, aligned: bool) -> Program:
    """Where only the sum has a gradient: that one for both terms, 0 for the parameters."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    dx, dresidual, dweight, dbias = results(problem, arguments)
    plans = []
    if x.size and not discarded(problem):
        vector = vector_length(x.dtype, aligned)
        config = PassOnConfig(TYPES[x.dtype], vector, _THREADS)
        kernel = Kernel("norm/pass_on.cu", f"norm_pass_on_{SHORT[x.dtype]}x{vector}", config)
        blocks = blocks_of(x.size, _THREADS * vector)
        plans.append(Plan(kernel, (blocks, 1, 1), _THREADS, (given.grad_sum, dx, dresidual, x.size)))
    columns = max((s.size for s in of_parameters(problem) if s is not None), default=0)
    if columns:
        plans.append(fold(x, 0, 0, dweight, dbias, 0, columns, specs.weight, specs.bias))
    return Program(tuple(plans), orders(problem, x))
