"""`depthwise` of planes: images whose last spatial axis is innermost in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv_depthwise_common import Correlation, axes
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, HALF

_STRIP, _THREADS = 8, 128  # neighbouring outputs of a thread
_MOST_ROWS = 4  # of outputs of a thread
_MOST_WEIGHTS = 24 << 10  # bytes of shared memory
_SHAPES = {(1, 1): 5, (1, 2): 5, (4, 1): 4}  # blocks of a multiprocessor, by rows and strips of a thread


@frozen
class DepthwisePlaneConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_plane.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    stride: int
    vector: int
    shift: int
    rows: int
    parts: int
    threads: int
    blocks: int


def _vector(c: Correlation) -> int:
    """Elements of the largest piece that all rows are made of."""
    distances = (s for spec in (c.x, c.y) for s in c.memory.strides(spec.shape)[:-1])
    return vector_length(c.x.dtype, c.aligned, c.g.space[2], c.g.out[2], *distances)


def _bytes_of_a_window(c: Correlation) -> int:
    return c.g.window[0] * c.g.window[1] * ((c.g.window[2] + 3) // 4 * 16)


def _parts(c: Correlation, rows: int) -> int:
    """Strips of a thread: with one row more loads are to be under way."""
    return 2 if rows == 1 and c.g.stride[2] == 1 and c.x.dtype in HALF else 1


def can_plane(c: Correlation) -> bool:
    """Whether planes can do it."""
    undilated = c.g.dilation[1] == 1 or c.g.window[1] == 1
    if not c.fast or not undilated or c.memory.last or c.x.dtype == FLOAT64 or _bytes_of_a_window(c) > _MOST_WEIGHTS:
        return False
    return all(c.memory.strides(s.shape)[4] == 1 for s in (c.x, c.y)) and _vector(c) > 1


def planes(c: Correlation, device: Device, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, vector = c.g, _vector(c)
    rows = _MOST_ROWS if g.window[1] > 1 else 1
    parts = _parts(c, rows)
    shift = -g.before[2] % vector
    strips, tall = -(-g.out[2] // _STRIP), -(-g.out[1] // rows)
    passes = -(-strips // (parts * _THREADS))
    across = -(-strips // (parts * passes))
    down = min(_THREADS // across, tall)
    together = max(1, min(_THREADS // (across * down), _MOST_WEIGHTS // _bytes_of_a_window(c)))
    count = g.n * c.channels
    blocks = passes * -(-tall // down) * g.out[0] * -(-count // together)
    settings = (g.window[2], g.stride[2], vector, shift, rows, parts, _THREADS, _SHAPES[rows, parts])
    config = DepthwisePlaneConfig(TYPES[c.x.dtype], c.added, c.relu, *settings)
    name = f"conv_depthwise_plane_{SHORT[c.x.dtype]}x{vector}{'_added' * c.added}{'_relu' * c.relu}"
    name += f"_s{g.window[2]}_by_{g.stride[2]}_from{shift}_r{rows}x{parts}"
    xs, ys = (c.memory.strides(s.shape)[:-1] for s in (c.x, c.y))
    numbers = (count, c.channels, g.k, int(c.flip), across, down, together, *xs, *ys, *axes(g, g.out, g.space))
    kernel = Kernel("conv/depthwise_plane.cu", name, config)
    return Plan(kernel, (blocks, 1, 1), _THREADS, (*pointers, *numbers), together * _bytes_of_a_window(c))
