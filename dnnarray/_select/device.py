"""`Device`: the facts of a processor that selection and the roofline need."""

from __future__ import annotations

from dnnarray._records import frozen


@frozen
class Device:
    """A processor as the cost model sees it.

    Attributes
    ----------
    name : what a report prints
    kind : ``"cpu"`` or ``"cuda"``
    units : cores of a CPU, multiprocessors of a GPU
    peak : arithmetic operations per second by dtype name (``"float32"``) or, on tensor cores, by mode (``"tf32"``,
        ``"bfloat16_mma"``)
    bandwidth : bytes per second between memory and the units
    launch : seconds that starting one kernel (or one NumPy call) costs
    capability : (major, minor) of a CUDA device
    shared_memory, memory : bytes of on-chip memory a block may take, and of device memory
    aligned : all arrays of the call begin at multiples of 16 bytes, the most that a thread of a GPU moves at once. A
        fact about the call rather than the processor: an engine that meets other addresses asks for a choice on a
        device which says so
    """

    name: str
    kind: str
    units: int
    peak: dict[str, float]
    bandwidth: float
    launch: float
    capability: tuple[int, int] | None = None
    shared_memory: int = 0
    memory: int = 0
    aligned: bool = True

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.units, self.capability))
