"""The description of a layer in memory, which the kernels of its many steps read."""

from __future__ import annotations

import math
from typing import Annotated, Any

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Extents, Pointer, Seed
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Runtime
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.network import Network
from dnnarray._records import frozen

_WORDS = 2**32
Words = Annotated[Array, Pointer("long long", False)]
Memory = Annotated[Array | None, Pointer("void", False)]


@frozen(kw_only=True)
class DescribeArguments(Arguments, restrict=("out",)):
    """What ``kernels/rnn/describe.cu`` is called with: behind `out` the fields of ``struct Layer`` in ``rnn.cuh``, in
    their order."""

    out: Words
    b_ih: Memory
    b_ih_reversed: Memory
    b_hh: Memory
    b_hh_reversed: Memory
    peephole: Memory
    peephole_reversed: Memory
    gates: Memory
    state: Memory
    cell: Memory
    extra: Memory
    product: Memory
    before: Memory
    projected: Memory
    d_state: Memory
    d_cell: Memory
    output: Memory
    output_strides: Extents
    lengths: Memory
    steps: Extent
    batch: Extent
    hidden: Extent
    width: Extent
    directions: Extent
    reversed: Extent
    kept: Extent
    clip: Double
    dropped: Extent
    seed: Seed
    offset: Seed
    threshold: Extent
    scale: Double
    first: Extent


def _dropout(network: Network, number: int) -> dict[str, Any]:
    """The fields of the dropout behind a layer."""
    p = network.problem
    if not p.dropout or number == p.layers - 1:
        return {"dropped": 0, "seed": None, "offset": None, "threshold": 0, "scale": 0.0, "first": 0}
    scale = 1 / (1 - p.dropout) if p.dropout < 1 else 0.0
    threshold, first = min(math.floor(p.dropout * _WORDS), _WORDS - 1), number * network.rows * p.width
    return {
        "dropped": 1,
        "seed": Runtime(0),
        "offset": Runtime(1),
        "threshold": threshold,
        "scale": scale,
        "first": first,
    }


def description(network: Network, number: int, output: Array | None, strides: tuple[int, int, int]) -> Plan:
    """The launch that describes a layer."""
    p, memory, name = network.problem, network.memory, network.names(number)
    fields: dict[str, Any] = {}
    for field in ("b_ih", "b_hh", "peephole"):
        found = [getattr(network.weights[k], field) for k in network.entries(number)]
        fields[field], fields[f"{field}_reversed"] = (None if g is None else g.block.array for g in [*found, None][:2])
    for field in ("gates", "state", "cell", "extra"):
        fields[field] = memory[f"{field}{name}"].array if f"{field}{name}" in memory else None
    for field in ("product", "before", "projected", "d_state", "d_cell", "lengths"):
        fields[field] = memory[field].array if field in memory else None
    arguments = DescribeArguments(
        out=memory["layer"].array,
        output=output,
        output_strides=strides,
        steps=p.steps,
        batch=p.batch,
        hidden=p.hidden,
        width=p.state,
        directions=p.directions,
        reversed=sum(1 << d for d in range(p.directions) if network.reversed(d)),
        kept=int(network.kept),
        clip=math.inf if p.cell.clip is None else p.cell.clip,
        **fields,
        **_dropout(network, number),
    )
    return planned(Kernel("rnn/describe.cu", "rnn_describe", Config()), (1, 1, 1), 1, arguments)
