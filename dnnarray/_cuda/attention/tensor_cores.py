"""What the algorithms of attention on tensor cores share: preconditions, the width of panels, and costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnarray._cuda.attention.arguments import GradientArguments, Strides, gradient_arguments
from dnnarray._cuda.attention.shared import ABSENT, Arrays, Place, Saved, arrays_of, given_options, has_extras
from dnnarray._cuda.attention.tiled import share_of_card
from dnnarray._cuda.core.arguments import Extent, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF, name_of

_WIDEST = 256
_CHUNK = 8  # features that are moved at once
_OLDEST = (8, 0)
WIDEST_BACKWARD = 128


def panel_width(problem: AttentionProblem) -> int:
    """Features of the panels in shared memory."""
    widest = max(problem.sizes.width, problem.sizes.value_width)
    return 64 if widest <= 64 else 128 if widest <= 128 else _WIDEST


def given(problem: AttentionProblem, arrays: Arrays) -> tuple[str, str]:
    """As `given_options`. Kernels for what changes scores take all of it: they are at the limit of their registers, and
    with less of it some spill."""
    return (
        ("dnnarray::Given<true, true, true>", "_extras")
        if has_extras(problem, arrays)
        else given_options(problem, arrays)
    )


def _fits(places: tuple[Place, ...]) -> bool:
    """Whether the rows of all these arrays are whole chunks."""
    return all(p.vector(_CHUNK) for p in places if p.given)


def reason(problem: AttentionProblem, device: Device) -> str | None:
    """Why tensor cores do not do a problem whose arrays are aligned, or None: they take half types in rows of whole
    chunks, not too wide."""
    arrays, sizes = arrays_of(problem), problem.sizes
    if arrays.spec("q").dtype not in HALF:
        return "its weights are rounded to a half type, and the arrays are not of one"
    if device.capability is not None and device.capability < _OLDEST:
        return "it needs compute capability 8.0"
    widest = WIDEST_BACKWARD if problem.op.endswith("_backward") else _WIDEST
    if max(sizes.width, sizes.value_width) > widest:
        return f"rows of more than {widest} features do not fit its registers"
    if problem.rule.scale <= 0:
        return "it needs a positive scale"
    names = ("q", "k", "v", "grad", "output")
    places = (
        *(arrays.places[n] for n in names if n in arrays.places),
        *arrays.results[: 3 if "grad" in arrays.places else 1],
    )
    return None if _fits(places) else f"features do not come in aligned groups of {_CHUNK}"


def hopper_reason(problem: AttentionProblem, device: Device) -> str | None:
    """As `reason`, of the instructions of Hopper: nothing may change single scores."""
    if device.capability is None or device.capability[0] != 9:
        return "it needs the matrix instructions of compute capability 9.0"
    return no_extras(problem) or reason(problem, device)


def no_extras(problem: AttentionProblem) -> str | None:
    """Why a kernel for the scale and the band alone does not do a problem, or None."""
    return "softcap, ALiBi, bias, mask and dropout are not in it" if has_extras(problem, arrays_of(problem)) else None


def misaligned(device: Device) -> str | None:
    """Why a kernel that moves 16 bytes at once does not do a problem, or None."""
    return None if device.aligned else "arrays do not begin at multiples of 16 bytes"


def nothing_there(problem: AttentionProblem) -> str | None:
    """Why the gradients on tensor cores do not do a problem, or None."""
    return None if all(spec.size for spec in problem.inputs[1:4]) else "an array is empty"


def cost_at(problem: AttentionProblem, device: Device, efficiency: float, queries: int) -> Cost:
    """Tensor cores at a share of their rate, with `queries` of a head in a block; where a launch takes longest, exact
    weights are preferred."""
    share = share_of_card(problem, device, queries)
    unit = f"{name_of(arrays_of(problem).spec('q').dtype)}_mma"
    return Cost(problem.flops, problem.bytes, efficiency * share, launches=2, unit=unit)


# --- gradients --------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class PairArguments(GradientArguments, restrict=("q", "k", "v", "grad", "lse", "delta")):
    """What the kernels of the gradients have in common: `out` is the gradient of q or k, `value_out` that of v; absent
    where it is not wanted."""

    tiles: Extent
    value_out: Out
    value_out_strides: Strides


class Tile(NamedTuple):
    """What a block of the gradients works on: rows (queries, or keys), columns of a panel, and threads."""

    rows: int
    columns: int
    threads: int

    def tiles(self, problem: AttentionProblem, key_rows: bool) -> int:
        """Blocks of one head."""
        return blocks_of(problem.sizes.keys if key_rows else problem.sizes.queries, self.rows)

    def arguments(self, problem: AttentionProblem, arrays: Arrays, saved: Saved, key_rows: bool) -> dict[str, Any]:
        """The values of the fields of `PairArguments`."""
        out, value_out = (arrays.results[1], arrays.results[2]) if key_rows else (arrays.results[0], ABSENT)
        own = {
            "tiles": self.tiles(problem, key_rows),
            "value_out": value_out.pointer,
            "value_out_strides": value_out.strides,
        }
        return gradient_arguments(problem, arrays, saved, out) | own

    def launch(self, problem: AttentionProblem, kernel: Kernel, key_rows: bool, arguments: PairArguments) -> Plan:
        """A launch of either kernel."""
        sizes, width = problem.sizes, panel_width(problem)
        shared = 2 * (self.rows + 2 * self.columns) * width * 2 + 4 * 4 * max(self.rows, self.columns)
        blocks = sizes.batch * (sizes.kv_heads if key_rows else sizes.heads) * self.tiles(problem, key_rows)
        return planned(kernel, (blocks, 1, 1), self.threads, arguments, shared_memory=shared)


def launches_of(
    problem: AttentionProblem,
    arrays: Arrays,
    saved: Saved,
    launch: Callable[[AttentionProblem, Arrays, Saved, bool], Plan],
) -> list[Plan]:
    """The launches that are wanted. One is for the gradients of k and v: of these the one that is not wanted is not
    stored."""
    q, k, v, *_ = problem.wanted
    return [launch(problem, arrays, saved, key_rows) for key_rows, wanted in ((False, q), (True, k or v)) if wanted]
