"""Convolution: which algorithms do which operation."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda.conv import (
    depthwise,
    direct,
    fft,
    gemm,
    grouped_maps,
    grouped_tma,
    implicit_gemm,
    implicit_tma_sm90,
    layout,
    parts,
    small_channels,
    tf32,
    unfold,
    wgrad_tma,
    winograd,
)
from dnnarray._cuda.conv.kinds import AMPERE_BOTH, AMPERE_SINGLE, HOPPER_HALF, HOPPER_SINGLE, SINGLE
from dnnarray._cuda.conv.shared import DEFINITION, OPERATIONS, methods
from dnnarray._select import Method


def _direct() -> Method:
    return methods(DEFINITION, direct.DirectMaps, "the definition", direct.rejects, direct.cost, floor=direct.floor)


def _gemm(name: str, precision: str) -> Method:
    rejects, cost = partial(gemm.rejects, precision=precision), partial(gemm.cost, precision=precision)
    floor = partial(gemm.floor, precision=precision)
    kind = None if precision == "highest" else SINGLE
    return methods(name, gemm.GemmMaps, "windows gathered into columns, cuBLAS", rejects, cost, precision, floor, kind)


def _implicit() -> Method:
    summary = "windows gathered into shared memory, products by wgmma"
    rejects, cost, floor = layout.rejects, layout.cost, layout.floor
    return methods("implicit_gemm_sm90", layout.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _grouped() -> Method:
    summary = "several thin groups as one product of mma.sync"
    rejects, cost, floor = grouped_maps.rejects, grouped_maps.cost, grouped_maps.floor
    return methods("grouped", grouped_maps.maps, summary, rejects, cost, floor=floor, kind=AMPERE_BOTH)


def _grouped_tma() -> Method:
    summary = "groups of 8, 16 or 32 channels gathered by TMA, a product of each by wgmma"
    return methods(
        "grouped_tma_sm90", grouped_tma.maps, summary, grouped_tma.rejects, grouped_tma.cost, kind=HOPPER_HALF
    )


def _grouped_tf32() -> Method:
    summary = "groups of 4 to 32 channels gathered and rounded by TMA, a TF32 product of each by wgmma"
    rejects, cost = grouped_tma.rejects_single, grouped_tma.cost
    return methods("grouped_tma_tf32", grouped_tma.maps, summary, rejects, cost, "high", kind=HOPPER_SINGLE)


def _tma() -> Method:
    summary = "windows gathered by TMA, products by wgmma"
    rejects, cost, floor = implicit_tma_sm90.rejects, wgrad_tma.cost, wgrad_tma.floor
    return methods("implicit_tma_sm90", wgrad_tma.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _tf32() -> Method:
    """The weight's gradient would ask for operands that run along K."""
    return methods(tf32.NAME, tf32.maps, tf32.SUMMARY, tf32.rejects, tf32.cost, "high", kind=HOPPER_SINGLE)


def _portable(name: str, precision: str) -> Method:
    rejects, cost = (
        partial(implicit_gemm.rejects, precision=precision),
        partial(implicit_gemm.cost, precision=precision),
    )
    floor = partial(implicit_gemm.floor, precision=precision)
    summary, kind = "windows gathered into shared memory, products by mma.sync", implicit_gemm.KINDS[precision]
    return methods(name, implicit_gemm.maps, summary, rejects, cost, precision, floor, kind)


def _fft(name: str, tiled: bool) -> Method:
    rejects, cost = partial(fft.rejects, tiled=tiled), partial(fft.cost, tiled=tiled)
    summary = (
        "product of the spectra of "
        f"{'overlapping tiles (overlap-save)' if tiled else 'whole images and windows'}, cuFFT"
    )
    return methods(name, partial(fft.maps, tiled=tiled), summary, rejects, cost, kind=SINGLE)


def _parts() -> tuple[Method, ...]:
    return tuple(
        methods(name, parts.maps, parts.SUMMARY, parts.rejects, partial(parts.cost, precision=precision), precision,
                kind=HOPPER_SINGLE)
        for precision, name in parts.NAMES.items()
    )  # fmt: skip


def _few() -> tuple[Method, ...]:
    return tuple(
        methods(name, small_channels.maps, small_channels.SUMMARY, partial(small_channels.rejects, precision=precision),
                partial(small_channels.cost, precision=precision), precision, kind=AMPERE_SINGLE)
        for precision, name in small_channels.NAMES.items()
    )  # fmt: skip


def _winograd() -> Method:
    """Images only: sums over all tiles, as the gradient of the weight has them, are better left to products."""
    summary = "F(2x2, 3x3): 16 products for four outputs instead of 36, cuBLAS"
    return methods("winograd", winograd.WinogradMaps, summary, winograd.rejects, winograd.cost, kind=SINGLE)


def _methods(op: str) -> tuple[Method, ...]:
    # some algorithms do nothing else; of a backward, where it is asked for those alone
    images = op != "conv_backward_weight"
    return (
        *depthwise.METHODS.get(op, ()),
        _direct(),
        _grouped(),
        _grouped_tma(),
        _tma(),
        _implicit(),
        *_parts(),
        *((_tf32(), _grouped_tf32()) if images else ()),
        *_few(),
        *((_winograd(),) if images else ()),
        _portable("implicit_gemm", "highest"),
        _portable("implicit_gemm_tf32", "high"),
        _gemm("gemm", "highest"),
        _gemm("gemm_tf32", "high"),
        _gemm("gemm_bf16", "medium"),
        _fft("fft", False),
        _fft("fft_tiled", True),
    )


ALGORITHMS: dict[str, tuple[Method, ...]] = {op: _methods(op) for op in OPERATIONS}
for _name, _run in (("unfold", unfold.to_columns), ("fold", unfold.to_image)):
    ALGORITHMS[_name] = (Method("gather", _run, "each element of the result gathers its terms", unfold.rejects),)
    _back = unfold.to_image if _name == "unfold" else unfold.to_columns
    ALGORITHMS[f"{_name}_backward"] = (
        Method("gather", _back, "each element of the result gathers its terms", unfold.rejects),
    )
