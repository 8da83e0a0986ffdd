"""Convolution: which algorithms do which operation."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda import (
    conv_depthwise,
    conv_direct,
    conv_few,
    conv_fft,
    conv_gemm,
    conv_grouped_maps,
    conv_grouped_tma,
    conv_layout,
    conv_parts,
    conv_portable,
    conv_tf32,
    conv_tma,
    conv_unfold,
    conv_weigh_tma,
    conv_winograd,
)
from dnnarray._cuda.conv_common import OPERATIONS, methods
from dnnarray._cuda.conv_kinds import AMPERE_BOTH, AMPERE_SINGLE, HOPPER_HALF, HOPPER_SINGLE, SINGLE
from dnnarray._select import Method


def _direct(op: str) -> Method:
    return methods("direct", op, conv_direct.DirectMaps, "the definition", conv_direct.rejects, conv_direct.cost, floor=conv_direct.floor)


def _gemm(op: str, name: str, precision: str) -> Method:
    rejects, cost = partial(conv_gemm.rejects, precision=precision), partial(conv_gemm.cost, precision=precision)
    floor = partial(conv_gemm.floor, precision=precision)
    kind = None if precision == "highest" else SINGLE
    return methods(name, op, conv_gemm.GemmMaps, "windows gathered into columns, cuBLAS", rejects, cost, precision, floor, kind)


def _implicit(op: str) -> Method:
    summary = "windows gathered into shared memory, products by wgmma"
    rejects, cost, floor = conv_layout.rejects, conv_layout.cost, conv_layout.floor
    return methods("implicit_gemm_sm90", op, conv_layout.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _grouped(op: str) -> Method:
    summary = "several thin groups as one product of mma.sync"
    rejects, cost, floor = conv_grouped_maps.rejects, conv_grouped_maps.cost, conv_grouped_maps.floor
    return methods("grouped", op, conv_grouped_maps.maps, summary, rejects, cost, floor=floor, kind=AMPERE_BOTH)


def _grouped_tma(op: str) -> Method:
    summary = "groups of 8, 16 or 32 channels gathered by the copy engine, a product of each by wgmma"
    return methods(
        "grouped_tma_sm90", op, conv_grouped_tma.maps, summary, conv_grouped_tma.rejects, conv_grouped_tma.cost, kind=HOPPER_HALF
    )


def _grouped_tf32(op: str) -> tuple[Method, ...]:
    if op not in conv_tf32.OPERATIONS:
        return ()
    summary = "groups of 4 to 32 channels gathered and rounded by the copy engine, a TF32 product of each by wgmma"
    rejects, cost = conv_grouped_tma.rejects_single, conv_grouped_tma.cost
    return (methods("grouped_tma_tf32", op, conv_grouped_tma.maps, summary, rejects, cost, "high", kind=HOPPER_SINGLE),)


def _tma(op: str) -> Method:
    summary = "windows gathered by the copy engine, products by wgmma"
    rejects, cost, floor = conv_tma.rejects, conv_weigh_tma.cost, conv_weigh_tma.floor
    return methods("implicit_tma_sm90", op, conv_weigh_tma.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _tf32(op: str) -> tuple[Method, ...]:
    if op not in conv_tf32.OPERATIONS:
        return ()
    return (methods(conv_tf32.NAME, op, conv_tf32.maps, conv_tf32.SUMMARY, conv_tf32.rejects, conv_tf32.cost, "high", kind=HOPPER_SINGLE),)


def _portable(op: str, name: str, precision: str) -> Method:
    rejects, cost = partial(conv_portable.rejects, precision=precision), partial(conv_portable.cost, precision=precision)
    floor = partial(conv_portable.floor, precision=precision)
    summary, kind = "windows gathered into shared memory, products by mma.sync", conv_portable.KINDS[precision]
    return methods(name, op, conv_portable.maps, summary, rejects, cost, precision, floor, kind)


def _fft(op: str, name: str, tiled: bool) -> Method:
    rejects, cost = partial(conv_fft.rejects, tiled=tiled), partial(conv_fft.cost, tiled=tiled)
    summary = f"product of the spectra of {'overlapping tiles (overlap-save)' if tiled else 'whole images and windows'}, cuFFT"
    return methods(name, op, partial(conv_fft.maps, tiled=tiled), summary, rejects, cost, kind=SINGLE)


def _parts(op: str) -> tuple[Method, ...]:
    return tuple(
        methods(name, op, conv_parts.maps, conv_parts.SUMMARY, conv_parts.rejects, partial(conv_parts.cost, precision=precision), precision,
                kind=HOPPER_SINGLE)
        for precision, name in conv_parts.NAMES.items()
    )  # fmt: skip


def _few(op: str) -> tuple[Method, ...]:
    return tuple(
        methods(name, op, conv_few.maps, conv_few.SUMMARY, partial(conv_few.rejects, precision=precision),
                partial(conv_few.cost, precision=precision), precision, kind=AMPERE_SINGLE)
        for precision, name in conv_few.NAMES.items()
    )  # fmt: skip


def _winograd(op: str) -> tuple[Method, ...]:
    """Images only: sums over all tiles, as the gradient of the weight has them, are better left to products."""
    if op not in ("conv", "conv_transpose", "conv_backward_input"):
        return ()
    summary = "F(2x2, 3x3): 16 products for four outputs instead of 36, cuBLAS"
    return (methods("winograd", op, conv_winograd.WinogradMaps, summary, conv_winograd.rejects, conv_winograd.cost, kind=SINGLE),)


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    op: (
        *conv_depthwise.METHODS.get(op, ()),
        _direct(op),
        _grouped(op),
        _grouped_tma(op),
        _tma(op),
        _implicit(op),
        *_parts(op),
        *_tf32(op),
        *_grouped_tf32(op),
        *_few(op),
        *_winograd(op),
        _portable(op, "implicit_gemm", "highest"),
        _portable(op, "implicit_gemm_tf32", "high"),
        _gemm(op, "gemm", "highest"),
        _gemm(op, "gemm_tf32", "high"),
        _gemm(op, "gemm_bf16", "medium"),
        _fft(op, "fft", False),
        _fft(op, "fft_tiled", True),
    )
    for op in OPERATIONS
}
for _name, _run in (("unfold", conv_unfold.to_columns), ("fold", conv_unfold.to_image)):
    ALGORITHMS[_name] = (Method("gather", _run, "each element of the result gathers its terms", conv_unfold.rejects),)
    _back = conv_unfold.to_image if _name == "unfold" else conv_unfold.to_columns
    ALGORITHMS[f"{_name}_backward"] = (Method("gather", _back, "each element of the result gathers its terms", conv_unfold.rejects),)
