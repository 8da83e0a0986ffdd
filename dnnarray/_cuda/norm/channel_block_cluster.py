"""The algorithm ``channel_block_cluster``: as ``channel_block``, with the rows of neighbouring channels shared out to a
cluster of blocks."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.norm.blocks import cost, rejects_of, workspace
from dnnarray._cuda.norm.channel_block import ChannelBlockArguments, launch
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["cost", "rejects", "run", "workspace"]


@frozen(kw_only=True)
class ChannelBlockClusterArguments(ChannelBlockArguments):
    """What ``kernels/norm/channel_block_cluster.cu`` is called with."""


def rejects(problem: NormProblem, device: Device) -> str | None:
    return rejects_of(problem, device, cluster=True)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    return launch(problem, device, aligned, "channel_block_cluster", ChannelBlockClusterArguments)
