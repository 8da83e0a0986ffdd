"""The algorithm ``channel_slab``: batch, group and instance norm whose statistics fit on chip: a block holds whole
channels in shared memory and reads them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_view import MIXED, Inputs, View, operands, shares, specs_of, view, view_of
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Arrays, Flag, orders, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

_RESERVED = 8 << 10  # bytes of shared memory for the system and the sums of warps
_ALONE = 48  # and where latency is all that counts
_STATIC = 48 << 10  # bytes that a block gets without asking; to what it asks for, the sums of warps are added
_ROW = 128  # bytes that a row of channels should have, channels last
_LINE = 16  # bytes of the widest load
_SMALL = 8 << 10  # bytes of shared memory below which a block is given more channels
_SECTORS = 32, 64  # bytes of a row below which reading it costs more: forward, gradient
_ALONE_ON_ONE = 1.5  # times that a multiprocessor with one block takes
_WORK = (
    (1.3, 2.3),
    (1.7, 2.6),
)  # times that the arithmetic of channels last takes: forward and gradient of float32 (and wider), of half types
_GROUPED = 1.75  # times longer still that half types take where the statistics are of several channels of a batch index
_PER_THREAD = (
    200  # bytes of shared memory: so many hide the latency of memory when registers leave room for 1024 threads
)


@frozen
class ChannelSlabConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_slab.cu`` and ``channel_slab_backward.cu``."""

    element: str
    activation: str
    last: bool
    vector: int
    copy: int
    side: int
    threads: int


@frozen(kw_only=True)
class ChannelSlabArguments(Arguments, restrict=("x", "residual", "y")):
    """What ``kernels/norm/channel_slab.cu`` is called with."""

    x: In
    residual: In
    y: Out
    weight: AnyType
    bias: AnyType
    running_mean: AnyType
    running_var: AnyType
    mean_of: OutArithmetic
    rstd_of: OutArithmetic
    next_mean: AnyTypeOut
    next_var: AnyTypeOut
    wide_weight: Flag
    wide_bias: Flag
    wide_running_mean: Flag
    wide_running_var: Flag
    per_batch: Flag
    outer: Extent
    channels: Extent
    inner: Extent
    tile: Extent
    tiles: Extent
    members: Extent
    groups: Extent
    count: Double
    share: Double
    momentum: Double
    eps: Double
    p: Double
    q: Double


class Tile(NamedTuple):
    """The channels of a block, and the bytes of shared memory they take."""

    channels: int
    memory: int


def _arrays(problem: NormProblem, specs: Inputs) -> int:
    """The arrays that a block holds."""
    backward = specs.grad is not None
    residual = specs.residual is not None and (not backward or problem.activation is not None)
    return 1 + backward + residual


def _rows(v: View) -> int:
    """Elements of a channel in a block."""
    return v.inner if v.last or v.per_batch else v.outer * v.inner


def _memory(problem: NormProblem, v: View, specs: Inputs, channels: int) -> int:
    """Bytes of shared memory for so many channels."""
    x = specs.x
    slab = blocks_of(channels * _rows(v), 8) * 8 * x.dtype.itemsize
    numbers = 4 if specs.grad is None else 8
    return _arrays(problem, specs) * slab + channels * (16 + numbers * statistics_dtype(x).itemsize)


def tile(problem: NormProblem, v: View, device: Device) -> Tile | None:
    """As few channels as give whole groups and, if they fit, the widest loads and long rows; more where a block would
    have little to do."""
    specs = specs_of(problem)
    itemsize, members, limit = specs.x.dtype.itemsize, v.channels // v.groups, device.shared_memory - _RESERVED
    run = 1 if v.last else v.inner

    def fits(groups: int) -> bool:
        return _memory(problem, v, specs, groups * members) <= limit

    def blocks(groups: int) -> int:
        return blocks_of(v.groups, groups) * v.batch

    def short(groups: int, row: int) -> bool:
        return groups * members * itemsize < row

    def unfinished(groups: int) -> bool:
        if not v.last:
            return groups * members * run * itemsize % _LINE != 0
        if short(groups, _LINE) and _memory(problem, v, specs, groups * members) > _SMALL:
            return True
        return short(groups, _ROW) and 4 * blocks(2 * groups) >= 3 * device.units

    groups = 1
    while groups < v.groups and unfinished(groups) and fits(2 * groups):
        groups *= 2
    groups = min(groups, v.groups)
    if not fits(groups):
        return None
    if v.last and groups < v.groups and short(groups, _ROW) and blocks(groups) > 2 * device.units:
        return None  # the sectors of a row would be fetched by blocks that do not run at the same time
    while groups < v.groups and blocks(2 * groups) >= 8 * device.units:
        if _memory(problem, v, specs, 2 * groups * members) > _SMALL:
            break
        groups *= 2
    channels = min(groups * members, v.channels)
    return Tile(channels, _memory(problem, v, specs, channels))


def rejects(problem: NormProblem, device: Device) -> str | None:
    v = view(problem)
    if v is None:
        return MIXED
    if v.size == 0:
        return "there is nothing to hold"
    held = tile(problem, v, device)
    if held is None:
        return (
            f"the {_rows(v):,} values of each channel, with as many channels as make a group and rows that are "
            "worth reading, "
            f"do not fit in {device.shared_memory:,} bytes of shared memory"
        )
    blocks = blocks_of(v.channels, held.channels) * v.batch
    return f"{blocks:,} blocks are more than a grid has" if blocks >= 1 << 31 else None


def workspace(problem: NormProblem) -> int:
    """The shares of dweight and dbias where statistics belong to a batch index."""
    v = view(problem)
    if v is None or not v.per_batch:
        return 0
    return 2 * v.instances * statistics_dtype(specs_of(problem).x).itemsize


def _slower(v: View, held: Tile, itemsize: int, gradient: bool, device: Device) -> float:
    """How many times longer than memory alone a slab takes, channels last: fitted to 96 measurements
    (docs/development/findings/norm/slab-or-three-passes.md).

    Rows shorter than the sectors that they are read by, multiprocessors without a block, and one block whose phases
    nothing else overlaps."""
    if not v.last:
        return 1.0
    blocks = blocks_of(v.channels, held.channels) * v.batch
    narrow = max(_SECTORS[gradient] / (held.channels * itemsize), 1.0)
    idle = max(device.units / blocks, 1.0)
    alone = _ALONE_ON_ONE if 2 * held.memory > device.shared_memory - _RESERVED else 1.0
    grouped = _GROUPED if itemsize == 2 and v.per_batch and v.groups < v.channels and not gradient else 1.0
    return narrow * idle * alone * grouped * _WORK[gradient][itemsize == 2]


def cost(problem: NormProblem, device: Device) -> Cost:
    """Everything once, as slowly as short rows, few blocks and arithmetic make it."""
    v, x = view(problem), specs_of(problem).x
    assert v is not None
    held, gradient = tile(problem, v, device), problem.op.endswith("_backward")
    times = _slower(v, held, x.dtype.itemsize, gradient, device) if held is not None else 1.0
    return Cost(problem.flops, int(problem.bytes * times), launches=2 if gradient and v.per_batch else 1)


class Launch:
    """The plan of one problem."""

    def __init__(self, problem: NormProblem, device: Device, aligned: bool) -> None:
        self.problem, self.specs, self.arrays = problem, specs_of(problem), Arrays(problem)
        self.given, self.x = operands(problem, self.arrays.inputs), self.specs.x
        found = view_of(problem)
        held = tile(problem, found, device)
        assert held is not None
        self.view, self.tile, self.aligned, self.units = found, held, aligned, device.units
        self.formula = formula(problem.activation, self.x.dtype)

    def _threads(self) -> int:
        threads, most = 64, 256 if self.x.dtype == FLOAT64 else 512
        # a multiprocessor for every block
        alone = blocks_of(self.view.channels, self.tile.channels) * self.view.batch <= self.units
        while threads < most and threads * (_ALONE if alone else _PER_THREAD) * 1.5 < self.tile.memory:
            threads *= 2
        return threads

    def plan(self, stem: str, record: Callable[..., Arguments], arrays: dict[str, Any]) -> Plan:
        """The launch of a kernel; `arrays` are the fields of its record that the kernels do not have in common."""
        v, x, held = self.view, self.x, self.tile.channels
        if v.last:
            copy = vector = vector_length(x.dtype, self.aligned, held, v.channels)
        else:
            vector = vector_length(x.dtype, self.aligned, v.inner)
            copy = vector_length(x.dtype, self.aligned, held * v.inner, v.channels * v.inner)
        threads = self._threads()
        units = held // vector if v.last else held
        side = 1
        while side < units and side < (32 if v.last else threads // 2):
            side *= 2
        config = ChannelSlabConfig(TYPES[x.dtype], self.formula.type, v.last, vector, copy, side, threads)
        name = (
            f"{stem}_{'last' if v.last else 'first'}{side}_{SHORT[x.dtype]}x{vector}x{copy}_{threads}"
            f"_{self.formula.name}"
        )
        kernel = Kernel(f"norm/{stem}.cu", f"norm_{name}", config, ("core/activation",))
        tiles, (count, share) = blocks_of(v.channels, held), shares(self.problem)
        arguments = record(
            **arrays,
            wide_weight=wide(self.specs.weight, x),
            wide_bias=wide(self.specs.bias, x),
            per_batch=int(v.per_batch),
            outer=v.outer,
            channels=v.channels,
            inner=v.inner,
            tile=held,
            tiles=tiles,
            members=v.channels // v.groups,
            groups=v.groups,
            count=count,
            share=share,
            eps=float(self.problem.eps),
            p=self.formula.p,
            q=self.formula.q,
        )
        memory = self.tile.memory if self.tile.memory + _RESERVED <= _STATIC else max(self.tile.memory, _STATIC + 1)
        return planned(kernel, (tiles * v.batch, 1, 1), threads, arguments, shared_memory=memory)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    launch = Launch(problem, device, aligned)
    g, specs, x = launch.given, launch.specs, launch.x
    y, mean, rstd, next_mean, next_var = (*launch.arrays.outputs, None, None, None, None)[:5]
    arrays = {
        "x": g.x, "residual": g.residual, "y": y, "weight": g.weight, "bias": g.bias, "running_mean": g.running_mean,
        "running_var": g.running_var, "mean_of": mean, "rstd_of": rstd, "next_mean": next_mean, "next_var": next_var,
        "wide_running_mean": wide(specs.running_mean, x), "wide_running_var": wide(specs.running_var, x),
        "momentum": float(problem.momentum),
    }  # fmt: skip
    return Program((launch.plan("channel_slab", ChannelSlabArguments, arrays),), orders(problem, x))
