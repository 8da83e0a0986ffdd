"""Sums of scattered contributions: the launches around the one that scatters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import Array, Plan
from dnnarray._cuda.spatial.scatter_finish import scatter_finish
from dnnarray._cuda.spatial.scatter_largest import scatter_largest
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import HALF, Spec


def float_bytes(target: Spec) -> int:
    """Scratch for floating sums: half types are summed up in float32, others where they shall be."""
    return round_up(target.size * 4, 16) if target.dtype in HALF else 0


def fixed_bytes(target: Spec) -> int:
    """Scratch for the largest gradient, 64-bit sums and a byte of flags for each."""
    return 16 + round_up(target.size * 8, 16) + round_up(target.size, 16)


def scattered(
    target: Spec,
    out: Array,
    scratch: int,
    fixed: bool,
    grad: Spec,
    incoming: Array,
    terms: int,
    aligned: bool,
    plan: Callable[..., Plan],
) -> list[Plan]:
    """The launches around a scattering one, ``plan(sums, flags, largest, bits)``: zeros before, rounding after.

    No more than `terms` contributions, none larger than the largest of `grad`, meet in an element.
    """
    size, bits = target.size, max(terms, 1).bit_length()
    largest: Array | None = None
    flags: Array | None = None
    if fixed:
        largest, sums = Array(scratch), Array(scratch, 16)
        flags = Array(scratch, 16 + round_up(size * 8, 16))
        before = [zero(largest, fixed_bytes(target), aligned), scatter_largest(grad, incoming, largest)]
    elif target.dtype in HALF:
        sums = Array(scratch)
        before = [zero(sums, float_bytes(target), aligned)]
    else:
        return [zero(out, target.nbytes, aligned), plan(out, None, None, 0)]
    after = scatter_finish(target, fixed, sums, flags, largest, out, bits)
    return [*before, plan(sums, flags, largest, bits), after]


def scattering(
    stem: str,
    run: Callable[..., Any],
    image_cost: Callable[[int, Any, Device], Cost],
    rejects: Callable[[Any, Device], str | None],
) -> tuple[Method, Method]:
    """The methods `stem`, with floating sums and with 64-bit integers, whose ``run(fixed, problem, device, aligned)``
    scatters sums into the image that is its first output; ``image_cost(bytes, problem, device)`` knows the scratch
    memory."""

    def method(name: str, fixed: bool, summary: str, size: Callable[[Spec], int]) -> Method:
        def scratch(problem: Any) -> int:
            return 0 if problem.outputs[0] is None else size(problem.outputs[0])

        return Method(
            name,
            partial(run, fixed),
            summary,
            rejects=rejects,
            workspace=scratch,
            cost=lambda problem, device: image_cost(scratch(problem), problem, device),
            deterministic=fixed,
        )

    return (
        method(f"{stem}_atomic", False, "scattered sums of floating numbers", float_bytes),
        method(f"{stem}_fixed_point", True, "scattered sums of 64-bit integers, which have no order", fixed_bytes),
    )
