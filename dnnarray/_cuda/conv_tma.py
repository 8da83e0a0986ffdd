"""Convolution whose windows the copy engine gathers (TMA, sm_90a): maps of images and weights, tiles, and what the engine does not take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dnnarray._cuda import conv_layout
from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import Setting, extents
from dnnarray._cuda.conv_direct import DirectMaps
from dnnarray._cuda.conv_implicit import ImplicitConfig, ImplicitMaps, across, along
from dnnarray._cuda.conv_layout import LayoutMaps
from dnnarray._cuda.conv_tiles import BLOCK, ROW, SHARED, Raster, Tile, raster
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.plan import SHORT, TYPES, Kernel, Plan, TensorMap
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF

_CORNERS, _OFFSETS = {2: 128, 3: 16}, {2: 256, 3: 32}  # by axes of space: what corners of windows and their taps must stay below
_LONGEST_STEP = 8  # of a window
_GROUP = 128  # threads


@dataclass(frozen=True)
class TmaConfig(ImplicitConfig):
    """Compile-time settings of ``kernels/conv/implicit_tma_sm90.cu``."""

    axes: int


@dataclass(frozen=True)
class Choice:
    """A tile, what it runs on (None: windows fetched anew for each tap) and the seconds that it takes."""

    tile: Tile
    raster: Raster | None
    seconds: float

    @property
    def threads(self) -> int:
        """One warpgroup that asks, and those that multiply."""
        return _GROUP * (1 + _consumers(self.tile))

    @property
    def shared_memory(self) -> int:
        return SHARED if self.raster else self.tile.shared_memory + _staging(self.tile)


def _consumers(t: Tile) -> int:
    """Warpgroups that multiply: each 64 rows, or 128 of the tallest tile."""
    return t.m // (128 if t.m > 192 else 64)


def _staging(t: Tile) -> int:
    """Bytes of the panels that results leave by, two a warpgroup, and of their barriers."""
    return _consumers(t) * 2 * (BLOCK * ROW + 16)


_TILES = (Tile(128, 256, 4), Tile(256, 128, 4), Tile(192, 128, 4), Tile(128, 128, 6), Tile(256, 64, 4), Tile(128, 64, 8))
_L2 = 62e9  # bytes a second that a multiprocessor gets
_WAIT, _END = 60e-9, 1.6e-6  # seconds of a stage beside its products, of 128 rows of a tile's end
_TALLEST = 1024  # pixels of a box


def choose(g: Geometry, units: int) -> Choice:
    """What is done first."""
    r = raster(g)
    if r and not _within((*_raster_corners(g, r), _raster_ends(g, r)), 2):
        r = None
    found = []
    for t in _TILES:
        found.append(_timed(g, units, t, None))
        halo = r and with_halo(t, r)
        if halo:
            found.append(_timed(g, units, halo, r))
    return min(found, key=lambda c: c.seconds)


def with_halo(t: Tile, r: Raster) -> Tile | None:
    """The tile with as many stages as fit beside its halos."""
    fitting = (Tile(t.m, t.n, s) for s in (8, 6, 5, 4, 3))
    return next((f for f in fitting if r.shared_memory(f) + _staging(f) <= SHARED and t.m + r.reach <= _TALLEST), None)


def _timed(g: Geometry, units: int, t: Tile, r: Raster | None) -> Choice:
    """With the slower of products and second-level cache."""
    blocks, places = g.taps * -(-g.c // BLOCK), g.n * (g.pixels if r is None else r.height * r.pitch)
    rounds = -(-(-(-places // t.m) * -(-g.k // t.n) * g.groups) // units)
    moved = (t.n + (t.m if r is None else (t.m + r.reach) / g.taps)) * 128
    each = max(t.products + _WAIT, moved / _L2)
    return Choice(t, r, rounds * (blocks * each + _END * t.m / 128))


class TmaMaps(ImplicitMaps):
    """The maps with windows from the copy engine; where it does not take a correlation, `ImplicitMaps`."""

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        if misfit(g):
            return super().launch(g, x, w, y, e, transposed)
        chosen, f = choose(g, self._units), formula(e.activation, x.dtype)
        axes, r = _axes(g), chosen.raster
        settings = TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, e.residual is not None, *chosen.tile.settings, transposed
        stem = "implicit_tma_sm90" if r is None else "implicit_halo_tma_sm90"
        words = [f"conv_{stem}", SHORT[x.dtype], "to", SHORT[y.dtype], chosen.tile.name, e.name, f"{axes}d"]
        name = "_".join(words + ["transposed"] * transposed)
        kernel = Kernel(f"conv/{stem}.cu", name, TmaConfig(*settings, axes), ("activation",))
        weight, backwards = weight_map(g, w, transposed, chosen)
        places = g.n * (g.pixels if r is None else r.height * r.pitch)
        tiles = -(-places // chosen.tile.m), -(-g.k // chosen.tile.n), g.groups
        sizes: tuple[int, ...]
        if r is None:
            images, ends = windows_map(g, x, axes, _corners(g, axes), chosen.tile.m), (0,) * axes
            sizes = (places, g.taps * -(-g.c // BLOCK), g.c, backwards, *tiles, g.k, *along(y.strides), *extents(g))
        else:
            images, ends = windows_map(g, x, axes, _raster_corners(g, r), chosen.tile.m + r.reach), _raster_ends(g, r)
            sizes = (g.n, r.pitch, r.height, r.reach, g.c, backwards, *tiles, g.k, *across(y.strides), *extents(g)[3:])
        result = result_map(g, y, axes, ends) if y.dtype in HALF else images
        residual = replace(result, array=e.residual) if e.residual else result
        pointers = (images, weight, result, residual, e.bias or x.array, e.residual or x.array, y.array)
        grid = (min(math.prod(tiles), self._units), 1, 1)
        return Plan(kernel, grid, chosen.threads, (*pointers, *sizes, f.p, f.q), chosen.shared_memory)


def _axes(g: Geometry) -> int:
    """Of space, for the copy engine."""
    return 2 if (g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 0) else 3


def _corners(g: Geometry, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the first window begins, and the last one as seen from the image's last pixel; the fastest axis first."""
    ends = [((o - 1) * s - b, n) for o, s, b, n in zip(g.out, g.stride, g.before, g.space, strict=True)]
    lower, upper = [-b for b in g.before], [last - (n - 1) for last, n in ends]
    return tuple(lower[::-1][:axes]), tuple(upper[::-1][:axes])


def _raster_corners(g: Geometry, r: Raster) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same for a raster's places."""
    before, places = g.before[:0:-1], (r.pitch, r.height)
    return tuple(-b for b in before), tuple(p - b - n for p, b, n in zip(places, before, g.space[:0:-1], strict=True))


def _within(corners: tuple[tuple[int, ...], ...], axes: int) -> bool:
    """Whether a map can hold them."""
    return all(-_CORNERS[axes] <= n < _CORNERS[axes] for corner in corners for n in corner)


def _raster_ends(g: Geometry, r: Raster) -> tuple[int, ...]:
    """Places of a raster behind the ends of the result's axes."""
    return r.pitch - g.out[2], r.height - g.out[1]


def windows_map(g: Geometry, x: Operand, axes: int, corners: tuple[tuple[int, ...], tuple[int, ...]], pixels: int) -> TensorMap:
    """The boxes of 64 channels of the windows of neighbouring pixels."""
    n, _, *space = (s * x.dtype.itemsize for s in x.strides)
    shape = (g.groups * g.c, *g.space[::-1][:axes], g.n)
    steps = (1, *g.stride[::-1][:axes], 1)
    return TensorMap(x.array, x.dtype, shape, (*space[::-1][:axes], n), (BLOCK, pixels), steps, corners)


def result_map(g: Geometry, y: Operand, axes: int, ends: tuple[int, ...]) -> TensorMap:
    """Panels of the result, or of what lies as it does; places behind an end are not written."""
    n, _, *space = (s * y.dtype.itemsize for s in y.strides)
    shape = (g.groups * g.k, *g.out[::-1][:axes], g.n)
    return TensorMap(y.array, y.dtype, shape, (*space[::-1][:axes], n), (BLOCK, BLOCK), (), ((0,) * axes, ends))


def weight_map(g: Geometry, w: Operand, transposed: bool, chosen: Choice) -> tuple[TensorMap, int]:
    """The weight's boxes, and a bit for each axis of the window, the last one first, that memory has the other way round."""
    itemsize, taps = w.dtype.itemsize, g.window[::-1]
    row, _, *window = w.strides
    steps, backwards, first = window[::-1], 0, 0
    for i, (step, count) in enumerate(zip(steps, taps, strict=True)):
        if step < 0 and count > 1:
            backwards |= 1 << i
            first += (count - 1) * step
    strides = (*(abs(s) * itemsize if n > 1 else 16 for s, n in zip(steps, taps, strict=True)), row * itemsize)
    dense, rows, box = (g.k, g.groups * g.c, BLOCK) if transposed else (g.c, g.groups * g.k, chosen.tile.n)
    return TensorMap(w.at(first), w.dtype, (dense, *taps, rows), strides, (BLOCK, 1, 1, 1, box)), backwards


# --- judgement --------------------------------------------------------------------------------------------------------


def misfit(g: Geometry) -> str | None:
    """Why the copy engine does not take a correlation, or None."""
    axes = _axes(g)
    if not _within(_corners(g, axes), axes):
        return f"windows that begin more than {_CORNERS[axes] - 1} pixels from an image's end"
    offset = max((w - 1) * d for w, d in zip(g.window, g.dilation, strict=True))
    if offset >= _OFFSETS[axes]:
        return f"a window over {offset + 1} pixels; it takes {_OFFSETS[axes]}"
    if max(g.stride) > _LONGEST_STEP:
        return f"a stride of {max(g.stride)}; it takes {_LONGEST_STEP}"
    if g.groups > 1 and (g.c % BLOCK or g.k % BLOCK):
        return f"several groups of {g.c} and {g.k} channels, not multiples of {BLOCK}"
    return None


def _correlations(op: str, g: Geometry) -> list[Geometry]:
    """What an operation asks of `TmaMaps.launch`."""
    spread = [phase.geometry for phase in g.phases]
    return {"conv": [g], "conv_backward": [g, *spread], "conv_transpose_backward": [g, *spread]}.get(op, spread)


def maps(setting: Setting) -> ImplicitMaps | LayoutMaps | DirectMaps:
    return conv_layout.maps(setting, TmaMaps)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    """What `implicit_gemm_sm90` refuses, and what the copy engine does."""
    if reason := conv_layout.rejects(op, problem, device):
        return reason
    return next(filter(None, map(misfit, _correlations(op, conv_layout.filled(problem.geometry)))), None)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    return conv_layout.cost(op, problem, device, choose)
