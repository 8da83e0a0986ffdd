"""Scattered sums as gathers: contributions sorted by target, so that each target adds up its own list in a fixed
order."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cuda.core.extents import round_up
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.list_entries import ListEntriesArguments, ListEntriesConfig
from dnnarray._cuda.spatial.list_gather import ListGatherArguments, ListGatherConfig
from dnnarray._cuda.spatial.list_gather_planes import ListGatherPlanesArguments, ListGatherPlanesConfig
from dnnarray._cuda.spatial.shared import THREADS, grid_1d
from dnnarray._cuda.spatial.sort import Sort
from dnnarray._records import frozen
from dnnarray._select import Device

_TOGETHER = 4  # channels of a thread where they lie apart
_LARGE = 100 << 10  # bytes of shared memory that leave room for one block, which then has all threads


def _up(n: int) -> int:
    return round_up(n, 16)


def planes_that_fit(device: Device, itemsize: int, size: int, channels: int, images: int) -> int:
    """Channels that a block may hold in shared memory with `size` elements each: few enough to leave no multiprocessor
    idle; 0 for none."""
    limit = max(device.shared_memory, 48 << 10) - 1024
    fits = [
        n for n in (8, 4, 2, 1) if n * itemsize <= 16 and n * itemsize * (size + 1) <= limit and n <= max(channels, 1)
    ]
    return next((n for n in fits if images * -(-channels // n) >= device.units), fits[-1] if fits else 0)


def planes_threads(shared: int) -> int:
    """Threads of a block with this much shared memory."""
    return 1024 if shared > _LARGE else 512


@frozen
class Lists:
    """`segments` times `sources` sources with `taps` contributions each to `targets` targets, in the scratch memory
    from 0 on.

    A kernel writes `targets_of` and `weights` (segments, sources, taps); `plans` makes lists of them. `images` is the
    number of images that the targets belong to: as many as segments, or more where one segment has the targets and
    sources of all; `group` of the sources are a plane of g."""

    segments: int
    sources: int
    taps: int
    targets: int
    computed: np.dtype
    scratch: int
    images: int
    group: int

    @property
    def _one(self) -> bool:
        """Whether one segment has the targets of several images, or the sources of several planes."""
        return self.segments != self.images or self.group != self.sources

    @property
    def _length(self) -> int:
        return self.sources * self.taps

    @property
    def _all(self) -> int:
        return self.segments * self._length

    @property
    def targets_of(self) -> Array:
        """Where the kernel writes the target of each contribution, unsigned; `targets` for none."""
        return Array(self.scratch)

    @property
    def weights(self) -> Array:
        """Where the kernel writes the weights."""
        return Array(self.scratch, _up(4 * self._all))

    @property
    def _entries(self) -> int:
        return _up(4 * self._all) + _up(self.computed.itemsize * self._all)

    @property
    def _sort(self) -> Sort:
        return Sort(
            self.segments,
            self._length,
            self.targets,
            self.scratch,
            self._entries + 2 * self.computed.itemsize * self._all,
        )

    @property
    def end(self) -> int:
        """Where the scratch memory ends."""
        return self._sort.end

    def plans(self, last: bool) -> list[Plan]:
        """The launches that sort; `last`: for a gather with the channels last in memory."""
        sliced, padded = not last, -(-self.targets // 32) * 32
        name = f"list_entries_{SHORT[self.computed]}{'_sliced' * sliced}"
        kernel = Kernel("spatial/list_entries.cu", name, ListEntriesConfig(TYPES[self.computed], sliced, THREADS))
        arguments = ListEntriesArguments(
            places=self._sort.places,
            weights=self.weights,
            starts=self._sort.starts,
            entries=Array(self.scratch, self._entries),
            segments=self.segments,
            length=self._length,
            targets=self.targets,
            padded=padded,
            taps=self.taps,
        )
        threads = self.segments * padded if sliced else self._all
        return [
            *self._sort.plans(self.targets_of, "unsigned", "next"),
            planned(kernel, grid_1d(threads), THREADS, arguments),
        ]

    def gather(
        self, device: Device, aligned: bool, dtype: np.dtype, channels: int, last: bool, g: Array, dx: Array
    ) -> Plan:
        """The launch that adds up the lists; g and dx in C order, or with the channels last in memory."""
        planes = (
            0 if last or self._one else planes_that_fit(device, dtype.itemsize, self.sources, channels, self.images)
        )
        if planes:
            return self._gather_planes(planes, aligned, dtype, channels, g, dx)
        vector = vector_length(dtype, aligned, channels) if last else _TOGETHER
        name = f"list_gather_{SHORT[dtype]}x{vector}{'_last' * last}{'_one' * self._one}"
        kernel = Kernel(
            "spatial/list_gather.cu", name, ListGatherConfig(TYPES[dtype], last, self._one, vector, THREADS)
        )
        targets = self.targets if last else -(-self.targets // 32) * 32
        arguments = ListGatherArguments(
            **self._arrays(g, dx),
            batch=self.images,
            channels=channels,
            pixels=self._pixels,
            group=self.group,
            length=self._length,
        )
        return planned(kernel, grid_1d(self.segments * targets * -(-channels // vector)), THREADS, arguments)

    @property
    def _pixels(self) -> int:
        """Targets of an image."""
        return self.targets * self.segments // self.images

    def _arrays(self, g: Array, dx: Array) -> dict[str, Any]:
        return {"grad": g, "entries": Array(self.scratch, self._entries), "starts": self._sort.starts, "dx": dx}

    def _gather_planes(self, planes: int, aligned: bool, dtype: np.dtype, channels: int, g: Array, dx: Array) -> Plan:
        vector = vector_length(dtype, aligned, self.sources)
        shared = planes * dtype.itemsize * (self.sources + 1)
        threads = planes_threads(shared)
        name = f"list_gather_planes_{SHORT[dtype]}_{planes}x{vector}_{threads}"
        kernel = Kernel(
            "spatial/list_gather_planes.cu", name, ListGatherPlanesConfig(TYPES[dtype], planes, vector, threads)
        )
        blocks = self.images * -(-channels // planes)
        arguments = ListGatherPlanesArguments(
            **self._arrays(g, dx), channels=channels, pixels=self._pixels, sources=self.group, length=self._length
        )
        return planned(kernel, (blocks, 1, 1), threads, arguments, shared_memory=_up(shared))
