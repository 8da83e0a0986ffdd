"""Convolution by the tensor cores of every card from sm_80 on: plans for the kernel with `mma.sync`."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, ResultOut, conv_axes, pixel_strides
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.implicit import ImplicitMaps, misfit
from dnnarray._cuda.conv.kinds import AMPERE_HALF, AMPERE_SINGLE
from dnnarray._cuda.conv.shared import Setting, lying
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, HALF

KINDS = {"highest": AMPERE_HALF, "high": AMPERE_SINGLE}  # by precision
_ROW = 128  # bytes of a tile's row in shared memory
_CHANNELS = 8  # that the kernel moves at once
_NARROW, _WIDE = (
    (128, 64, 4, 32, 2),
    (128, 128, 3, 64, 2),
)  # a tile, its stages, channels of a warp, blocks on a multiprocessor


@frozen
class ImplicitGemmConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_gemm.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    warp_n: int
    blocks: int


@frozen
class ImplicitGemmArguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_gemm.cu`` is called with; channels, columns and the strides of x are counted in
    chunks."""

    x: In
    weight: In
    bias: In
    residual: In
    y: ResultOut
    rows: Extent
    channels: Int
    total: Int
    tiles_m: Int
    tiles_n: Int
    outs: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double


class ImplicitGemmMaps(ImplicitMaps):
    """The maps by the kernel that takes dense weights only; the weight gradient goes through `GemmMaps`."""

    walks = False

    def _takes(self, dtype: np.dtype) -> bool:
        return dtype in HALF if self._setting.precision == "highest" else dtype == FLOAT32

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        self._gemm.wgrad(small, large, weight)

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        chunk = 16 // x.dtype.itemsize
        settings = tile_m, tile_n, stages, warp_n, _ = _NARROW if g.k <= _NARROW[1] else _WIDE
        f, residual = formula(e.activation, x.dtype), e.residual is not None
        config = ImplicitGemmConfig(TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, residual, *settings)
        words = [
            "conv_implicit_gemm",
            SHORT[x.dtype],
            "to",
            SHORT[y.dtype],
            f"{tile_m}x{tile_n}x{stages}",
            f"w{warp_n}",
            e.name,
        ]
        kernel = Kernel("conv/implicit_gemm.cu", "_".join(words), config, ("core/activation", "conv/geometry"))
        rows = g.n * g.pixels
        tiles_m, tiles_n = -(-rows // tile_m), -(-g.k // tile_n)
        arguments = ImplicitGemmArguments(
            x.array,
            w.array,
            e.bias,
            e.residual,
            y.array,
            rows=rows,
            channels=g.c // chunk,
            total=g.taps * g.c // chunk,
            tiles_m=tiles_m,
            tiles_n=tiles_n,
            outs=g.k,
            x_strides=[s // chunk for s in pixel_strides(x.strides)],
            y_strides=pixel_strides(y.strides),
            axes=conv_axes(g),
            p=f.p,
            q=f.q,
        )
        grid, block = (tiles_m * tiles_n * g.groups, 1, 1), tile_m // 64 * tile_n // warp_n * 32
        return planned(kernel, grid, block, arguments, shared_memory=_ROW * (1 + stages * (tile_m + tile_n)))


def maps(setting: Setting) -> ImplicitGemmMaps | DirectMaps:
    """The kernel needs 16-byte addresses; elsewhere the definition does it."""
    return ImplicitGemmMaps(setting) if setting.steps.aligned else DirectMaps(setting)


def rejects(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> str | None:
    if reason := KINDS[precision].refuses(problem.inputs[0].dtype, device):
        return reason
    if op == "conv_backward_weight":
        return "the gradient of the weight"
    g = problem.geometry
    if g.c % _CHANNELS or g.k % _CHANNELS:
        return f"{g.c} and {g.k} channels of a group; it takes multiples of {_CHANNELS}"
    if not lying(problem).last:
        return "memory that is not channels-last"
    return misfit(op, problem, g)


def _share(g: Geometry, device: Device) -> float:
    """Of the peak, that the products reach."""
    tile_m, tile_n, *_ = _NARROW if g.k <= _NARROW[1] else _WIDE
    filled = g.k / (-(-g.k // tile_n) * tile_n) * (0.8 if tile_n == _NARROW[1] else 1.0)
    tiles = -(-g.n * g.pixels // tile_m) * -(-g.k // tile_n) * g.groups
    waves = tiles / (-(-tiles // (2 * device.units)) * 2 * device.units)  # two blocks of a multiprocessor
    blocks = g.taps * g.c / 64
    large = 0.4 if device.capability and device.capability >= (9, 0) else 0.65
    return large * blocks / (blocks + 8) * filled * waves  # eight for a tile's beginning and end


def _launches(op: str, problem: ConvProblem) -> int:
    return 2 * problem.maps * (len(problem.geometry.phases) if op in ("conv_backward_input", "conv_transpose") else 1)


def floor(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> float:
    """Seconds of the products and of the launches."""
    if not problem.flops:
        return 0.0
    peak = device.peak.get(unit(problem.inputs[0].dtype, precision) or "") or device.peak["float32"]
    return problem.flops / (_share(problem.geometry, device) * peak) + _launches(op, problem) * device.launch


def cost(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> Cost:
    share, of_peak = _share(problem.geometry, device), unit(problem.inputs[0].dtype, precision)
    return Cost(problem.flops, problem.bytes, share, _launches(op, problem), of_peak)
