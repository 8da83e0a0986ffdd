"""Clusters of thread blocks that keep a row, or columns, in their shared memory: how many blocks and threads share
it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

COPIES_FROM = (8, 0)  # the compute capability that copies to shared memory asynchronously (cp.async)
_CLUSTERS_FROM = (9, 0)
_LARGEST = 8  # blocks of the largest cluster that every device which has clusters can place
_THREADS = 512
_RESERVED = 1024  # bytes of shared memory that the system takes of each block
_STATIC = 1024  # bytes of shared memory that the kernels of rows need for their variables


class RowShare(NamedTuple):
    """How a row is shared by the blocks of a cluster and their threads."""

    blocks: int
    threads: int

    def count(self, vectors: int) -> int:
        """Vectors of 16 bytes for a thread."""
        return blocks_of(vectors, self.blocks * self.threads)

    def memory(self, vectors: int, arrays: int) -> int:
        """Bytes of shared memory of a block."""
        return self.threads * 16 * self.count(vectors) * arrays


def unfit(dtype: np.dtype, device: Device) -> str | None:
    """Why no kernel keeps arrays of this dtype in the shared memory of a cluster on this device, or None."""
    if dtype == FLOAT64:
        return "its kernel computes in float32"
    if (device.capability or (0, 0)) < COPIES_FROM:
        return "it copies asynchronously (cp.async), which compute capability 8.0 is the first to do"
    if not device.aligned:
        return "it copies vectors of 16 bytes, and an array begins at an address that is no multiple of 16"
    return None


def largest(device: Device) -> int:
    """Blocks of the largest cluster; 1 where a device has none."""
    return _LARGEST if (device.capability or (0, 0)) >= _CLUSTERS_FROM else 1


def room(device: Device, blocks: int, static: int) -> int:
    """Bytes of shared memory that a block may ask for beside its own variables if so many blocks are to fit a
    multiprocessor."""
    return (device.shared_memory + _RESERVED) // blocks - _RESERVED - static


def smallest_share(vectors: int, arrays: int, device: Device) -> RowShare | None:
    """The smallest cluster of which two blocks fit a multiprocessor; None where the largest does not hold the row."""
    share = RowShare(1, _THREADS)
    while share.blocks < largest(device) and share.memory(vectors, arrays) > room(device, 2, _STATIC):
        share = share._replace(blocks=2 * share.blocks)
    return share if share.memory(vectors, arrays) <= room(device, 1, 2 * _STATIC) else None
