"""Convolution whose windows TMA gathers (sm_90a): maps of images and weights, and what the engine does
not take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv import layout, tiling, tma_tiling
from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, ResultOut, conv_axes, pixel_strides
from dnnarray._cuda.conv.implicit import ImplicitMaps
from dnnarray._cuda.conv.implicit_gemm_sm90 import ImplicitConfig
from dnnarray._cuda.conv.implicit_tma_halo_sm90 import ImplicitTmaHaloSm90Arguments
from dnnarray._cuda.conv.implicit_tma_held_sm90 import ImplicitTmaHeldSm90Arguments
from dnnarray._cuda.conv.raster import Corners, Raster, axes_of, corners, within
from dnnarray._cuda.conv.tiling import BLOCK, ROW
from dnnarray._cuda.core.arguments import Arguments, Box, Double, Extent, In, Int
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Kernel, Plan, TensorMap, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed, frozen
from dnnarray._select import Device
from dnnarray._spec import HALF

_OFFSETS = {2: 256, 3: 32}  # by axes of space: what taps must stay below
_LONGEST_STEP = 8  # of a window


@frozen
class TmaConfig(ImplicitConfig):
    """Compile-time settings of ``kernels/conv/implicit_tma_sm90.cu``, ``implicit_tma_halo_sm90.cu`` and
    ``implicit_tma_held_sm90.cu``."""

    axes: int
    sets: int  # of panels
    first: (
        int  # neighbouring pixels of a channel that are written at once to channels-first memory, 0 for channels-last
    )


@frozen
class ImplicitTmaSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_tma_sm90.cu`` is called with; `backwards` has a bit for each axis along which the
    weight is walked from its end."""

    x: Box
    weight: Box
    y_map: Box
    residual_map: Box
    bias: In
    residual: In
    y: ResultOut
    rows: Extent
    blocks: Int
    channels: Int
    backwards: Int
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    outs: Int
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double


_RECORDS: dict[str, Callable[..., Arguments]] = {
    "implicit_tma_sm90": ImplicitTmaSm90Arguments,
    "implicit_tma_halo_sm90": ImplicitTmaHaloSm90Arguments,
    "implicit_tma_held_sm90": ImplicitTmaHeldSm90Arguments,
}


class TmaMaps(ImplicitMaps):
    """The maps with windows from TMA."""

    def turns(self, e: Epilogue) -> bool:
        return e.residual is None

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        f, axes = formula(e.activation, x.dtype), axes_of(g)
        more = (e.residual is not None, y.strides[1] != 1, y.dtype not in HALF)
        chosen = tma_tiling.choose(
            as_wide(g, x.dtype), self._units, *(more if any(more) else ())
        )  # otherwise as the cost has asked
        r, tile, stem = chosen.raster, chosen.tile, chosen.kernel
        first = 0 if y.strides[1] == 1 else vector_length(y.dtype, True, g.pixels)
        given = TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, e.residual is not None
        words = [f"conv_{stem}", SHORT[x.dtype], "to", SHORT[y.dtype], tile.name, e.name, f"{axes}d"] + [
            "transposed"
        ] * transposed
        words += [f"first{first}"] * (first > 0) + [f"{chosen.sets}sets"] * (chosen.sets > 1)
        config = TmaConfig(*given, *tile.settings, transposed, axes, chosen.sets, first)
        kernel = Kernel(f"conv/{stem}.cu", "_".join(words), config, ("core/activation", "ptx/tma", "conv/geometry"))
        weight, backwards = weight_map(g, w, transposed, tile.n)
        tiles = tiling.counts(g, tma_tiling.places(g, r), replace(tile, m=chosen.rows))
        places = corners(g, axes) if r is None else r.corners(g, axes)
        images = windows_map(g, x, places, chosen.rows + (0 if r is None else r.reach))
        arguments = _RECORDS[stem](
            x=images,
            weight=weight,
            **_result_maps(g, y, e, axes, r),
            bias=e.bias,
            residual=e.residual,
            y=y.array,
            **(_numbers_of_windows(g, x.dtype) if r is None else _raster_numbers(g, r)),
            channels=g.c,
            backwards=backwards,
            tiles_m=tiles[0],
            tiles_n=tiles[1],
            groups=tiles[2],
            outs=g.k,
            y_strides=pixel_strides(y.strides),
            axes=conv_axes(g),
            p=f.p,
            q=f.q,
        )
        grid = (chosen.blocks(tiles, self._units), 1, 1)
        return planned(kernel, grid, chosen.threads, arguments, shared_memory=chosen.shared_memory, early=True)


def as_wide(g: Geometry, dtype: np.dtype) -> Geometry:
    """The convolution of half types whose stages are as many and take as long: 64 channels of those are 32 of float32,
    at half the rate."""
    return g if dtype in HALF else changed(g, c=g.c * dtype.itemsize // 2)


def windows_map(g: Geometry, x: Operand, corners: Corners, pixels: int) -> TensorMap:
    """The boxes of 64 channels, of float32 32, of the windows of neighbouring pixels."""
    axes, (n, _, *space) = len(corners[0]), (s * x.dtype.itemsize for s in x.strides)
    shape = (g.groups * g.c, *g.space[::-1][:axes], g.n)
    return TensorMap(
        x.array,
        x.dtype,
        shape,
        (*space[::-1][:axes], n),
        (ROW // x.dtype.itemsize, pixels),
        (1, *g.stride[::-1][:axes], 1),
        corners,
    )


def gradient_map(g: Geometry, y: Operand, corners: Corners) -> TensorMap:
    """The boxes of 64 channels of neighbouring pixels of the result."""
    axes, (n, _, *space) = len(corners[0]), (s * y.dtype.itemsize for s in y.strides)
    shape = (g.groups * g.k, *g.out[::-1][:axes], g.n)
    return TensorMap(y.array, y.dtype, shape, (*space[::-1][:axes], n), (BLOCK, BLOCK), (1,) * len(shape), corners)


def _numbers_of_windows(g: Geometry, dtype: np.dtype) -> dict[str, int]:
    """Rows of the product, and stages of a tile."""
    return {"rows": g.n * g.pixels, "blocks": g.taps * -(-g.c * dtype.itemsize // ROW)}


def _raster_numbers(g: Geometry, r: Raster) -> dict[str, int]:
    """What a kernel is told of its rasters, each extent that places are divided by with what a `Divisor` takes."""
    return {
        "images": g.n,
        "pitch": r.pitch,
        "by_pitch": divisor(r.pitch),
        "height": r.height,
        "by_height": divisor(r.height),
        "by_plane": divisor(g.out[0]),
        "reach": r.reach,
    }


def _result_maps(g: Geometry, y: Operand, e: Epilogue, axes: int, r: Raster | None) -> dict[str, TensorMap | None]:
    """Panels of the result and of the residual; of a raster, the residual alone. None where there is nothing to be
    moved.

    The result's corners stand at the ends of the array: TMA stores nowhere else.
    """
    n, _, *space = (s * y.dtype.itemsize for s in y.strides)
    shape, strides = (g.groups * g.k, *g.out[::-1][:axes], g.n), (*space[::-1][:axes], n)
    places = ((0,) * axes, (0,) * axes) if r is None else r.result_corners(g, axes)
    result = (
        None
        if y.dtype not in HALF or y.strides[1] != 1
        else TensorMap(y.array, y.dtype, shape, strides, (BLOCK, BLOCK), (), places)
    )
    residual = replace(result, array=e.residual) if result and e.residual else None
    return {"residual_map": residual} | ({"y_map": result} if r is None else {})


def weight_map(g: Geometry, w: Operand, transposed: bool, rows: int) -> tuple[TensorMap, int]:
    """The weight's boxes, of `rows` channels of the result, and a bit for each axis of the window, the last one first,
    that memory has the other way round."""
    itemsize, taps = w.dtype.itemsize, g.window[::-1]
    row, _, *window = w.strides
    steps, backwards, first = window[::-1], 0, 0
    for i, (step, count) in enumerate(zip(steps, taps, strict=True)):
        if step < 0 and count > 1:
            backwards |= 1 << i
            first += (count - 1) * step
    strides = (*(abs(s) * itemsize if n > 1 else 16 for s, n in zip(steps, taps, strict=True)), row * itemsize)
    dense, last, box = (g.k, g.groups * g.c, BLOCK) if transposed else (g.c, g.groups * g.k, rows)
    return TensorMap(w.at(first), w.dtype, (dense, *taps, last), strides, (ROW // itemsize, 1, 1, 1, box)), backwards


# --- judgement --------------------------------------------------------------------------------------------------------


def misfit(g: Geometry) -> str | None:
    """Why TMA does not take a correlation, or None."""
    axes = axes_of(g)
    if not within(axes, *corners(g, axes)):
        return "windows that begin too far from an image's end"
    (w0, w1, w2), (d0, d1, d2) = g.window, g.dilation
    offset = max((w0 - 1) * d0, (w1 - 1) * d1, (w2 - 1) * d2)
    if offset >= _OFFSETS[axes]:
        return f"a window over {offset + 1} pixels; it takes {_OFFSETS[axes]}"
    if max(g.stride) > _LONGEST_STEP:
        return f"a stride of {max(g.stride)}; it takes {_LONGEST_STEP}"
    if g.groups > 1 and (g.c % BLOCK or g.k % BLOCK):
        return f"several groups of {g.c} and {g.k} channels, not multiples of {BLOCK}"
    return None


def _correlations(op: str, g: Geometry) -> list[Geometry]:
    """What an operation asks of `TmaMaps.launch`."""
    if op in ("conv", "conv_backward_weight"):
        return [g]
    spread = [phase.geometry for phase in g.phases]
    return [g, *spread] if op in ("conv_backward", "conv_transpose_backward") else spread


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    """What `implicit_gemm_sm90` refuses, and what TMA does."""
    if reason := layout.rejects(op, problem, device):
        return reason
    return next(filter(None, map(misfit, _correlations(op, layout.filled(problem.geometry)))), None)
