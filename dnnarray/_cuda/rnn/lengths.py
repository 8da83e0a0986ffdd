"""The lengths of the sequences as the kernels read them."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.plan import INTEGERS, Array, Config, Kernel
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.rnn.network import THREADS, Launches, Network, Source, blocks
from dnnarray._records import frozen

Integers = Annotated[Array, Pointer("int", False)]


@frozen
class LengthsConfig(Config):
    """Compile-time settings of ``kernels/rnn/lengths.cu``."""

    source: str
    threads: int


@frozen
class LengthsArguments(Arguments, restrict=True):
    """What ``kernels/rnn/lengths.cu`` is called with."""

    x: Source
    y: Integers
    size: Extent
    steps: Extent


def take_lengths(network: Network) -> Launches:
    """The lengths as the kernels read them."""
    given = network.lengths
    if given is None or not network.problem.batch:
        return []
    name = given.block.dtype.name
    kernel = Kernel("rnn/lengths.cu", f"rnn_lengths_{name}", LengthsConfig(INTEGERS[given.block.dtype], THREADS))
    batch, steps = network.problem.batch, network.problem.steps
    arguments = LengthsArguments(given.block.array, network.memory["lengths"].array, size=batch, steps=steps)
    return [planned(kernel, blocks(batch), THREADS, arguments)]
