"""Resampling along axes: tables of taps in scratch memory, or what they are computed from; of the gradient the tables
are transposed."""

from __future__ import annotations

import math
from typing import Annotated, Any

from dnnarray._cuda.core.arguments import Arguments, Pointer
from dnnarray._cuda.core.extents import arithmetic_of, round_up
from dnnarray._cuda.core.plan import Array
from dnnarray._cuda.spatial.shared import RESIZE_MODES
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize
from dnnarray._records import frozen
from dnnarray._select import Device

_SMOOTH = {"linear": 5, "cubic": 6}


Firsts = Annotated[Array | None, Pointer("int", True)]
Weights = Annotated[Array | None, Pointer("dnnarray::arithmetic_t<Config::Element>", True)]


@frozen(kw_only=True)
class TableArguments(Arguments):
    """The tables of three axes: the first tap of each element, how many there are, and their weights. Those of missing
    axes are absent."""

    first_o: Firsts
    count_o: Firsts
    weight_o: Weights
    first_p: Firsts
    count_p: Firsts
    weight_p: Weights
    first_q: Firsts
    count_q: Firsts
    weight_q: Weights


@frozen
class Table:
    """The taps of an axis: where its parts start in the scratch memory, and how many weights each element has."""

    resize: Resize
    elements: int
    most: int
    start: int
    itemsize: int

    @property
    def counts(self) -> int:
        return self.start + line(4 * self.elements)

    @property
    def weights(self) -> int:
        return self.counts + line(4 * self.elements)

    @property
    def end(self) -> int:
        return self.weights + line(self.itemsize * self.elements * self.most)


def line(n: int) -> int:
    """Bytes rounded up to what 16-byte loads may begin at."""
    return round_up(n, 16)


def step_of(resize: Resize) -> float:
    """Source elements per target element."""
    if resize.align_corners:
        return (resize.source - 1) / (resize.target - 1) if resize.target > 1 else 0.0
    return resize.source / resize.target if resize.scale is None else 1 / resize.scale


def copied(resize: Resize) -> bool:
    """Whether the axis stays as it is, whatever its scale."""
    return resize.source == resize.target and (resize.mode == "linear" or resize.antialias)


def most_taps(resize: Resize, transposed: bool) -> int:
    """No element has more taps than this."""
    step = step_of(resize)
    if copied(resize):
        return 1
    if resize.antialias:
        forward = int(2 * (1 if resize.mode == "linear" else 2) * max(step, 1.0)) + 2
    else:
        forward = {"nearest": 1, "nearest_exact": 1, "linear": 2, "cubic": 4}.get(resize.mode) or -(
            -resize.source // resize.target
        ) + 1
    if not transposed:
        return forward if resize.mode in ("nearest", "nearest_exact") else max(2, min(forward, resize.source))
    if step * resize.target <= forward + 1:
        return resize.target
    return min(resize.target, math.ceil((forward + 1) / step) + 2)


def tables_of(problem: InterpolateProblem, fixed: int) -> list[Table]:
    itemsize, start, found = arithmetic_of(problem.inputs[0].dtype).itemsize, 0, []
    for resize in problem.resizes:
        elements = resize.source if problem.transposed else resize.target
        found.append(Table(resize, elements, fixed or most_taps(resize, problem.transposed), start, itemsize))
        start = found[-1].end
    return found


def mode_of(resize: Resize) -> tuple[int, bool]:
    """The number of the mode in ``resize.cuh``, and whether the step is exactly source / target."""
    mode = 0 if copied(resize) else _SMOOTH[resize.mode] if resize.antialias else RESIZE_MODES[resize.mode]
    return mode, copied(resize) or resize.scale is None


def tables(found: list[Table], scratch: int) -> dict[str, Any]:
    """The fields of `TableArguments`."""
    given = [{"first": t.start, "count": t.counts, "weight": t.weights} for t in found]
    arrays = {f"{what}_{axis}": None for axis in "opq" for what in ("first", "count", "weight")}
    places = {
        f"{what}_{axis}": Array(scratch, at)
        for axis, table in zip("opq"[3 - len(given) :], given, strict=True)
        for what, at in table.items()
    }
    return arrays | places


def extents(problem: InterpolateProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The spatial extents of what is read and of what is written."""
    read, written = tuple(r.source for r in problem.resizes), tuple(r.target for r in problem.resizes)
    return (written, read) if problem.transposed else (read, written)


def steps(problem: InterpolateProblem) -> dict[str, Any]:
    """How three axes are resampled: modes and flags, and source elements per target element; missing axes are not
    looked at."""
    missing = 3 - len(problem.resizes)
    modes = ((*mode_of(r), r.align_corners) for r in problem.resizes)
    options = [mode + 16 * corners + 32 * whole for mode, whole, corners in modes]
    return {"options": [0] * missing + options, "steps": [0.0] * missing + [step_of(r) for r in problem.resizes]}


def too_long(problem: InterpolateProblem, device: Device) -> str | None:
    """Why the extents are too large for the kernels, or None."""
    longest = max(max(r.source, r.target) for r in problem.resizes)
    return "spatial extents from 2**30 on" if longest >= 2**30 else None
