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
from dnnarray._cuda.conv_common import DEFINITION, OPERATIONS, methods
from dnnarray._cuda.conv_kinds import AMPERE_BOTH, AMPERE_SINGLE, HOPPER_HALF, HOPPER_SINGLE, SINGLE
from dnnarray._select import Method


def _direct() -> Method:
    return methods(DEFINITION, conv_direct.DirectMaps, "the definition", conv_direct.rejects, conv_direct.cost, floor=conv_direct.floor)


def _gemm(name: str, precision: str) -> Method:
    rejects, cost = partial(conv_gemm.rejects, precision=precision), partial(conv_gemm.cost, precision=precision)
    floor = partial(conv_gemm.floor, precision=precision)
    kind = None if precision == "highest" else SINGLE
    return methods(name, conv_gemm.GemmMaps, "windows gathered into columns, cuBLAS", rejects, cost, precision, floor, kind)


def _implicit() -> Method:
    summary = "windows gathered into shared memory, products by wgmma"
    rejects, cost, floor = conv_layout.rejects, conv_layout.cost, conv_layout.floor
    return methods("implicit_gemm_sm90", conv_layout.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _grouped() -> Method:
    summary = "several thin groups as one product of mma.sync"
    rejects, cost, floor = conv_grouped_maps.rejects, conv_grouped_maps.cost, conv_grouped_maps.floor
    return methods("grouped", conv_grouped_maps.maps, summary, rejects, cost, floor=floor, kind=AMPERE_BOTH)


def _grouped_tma() -> Method:
    summary = "groups of 8, 16 or 32 channels gathered by the copy engine, a product of each by wgmma"
    return methods("grouped_tma_sm90", conv_grouped_tma.maps, summary, conv_grouped_tma.rejects, conv_grouped_tma.cost, kind=HOPPER_HALF)


def _grouped_tf32() -> Method:
    summary = "groups of 4 to 32 channels gathered and rounded by the copy engine, a TF32 product of each by wgmma"
    rejects, cost = conv_grouped_tma.rejects_single, conv_grouped_tma.cost
    return methods("grouped_tma_tf32", conv_grouped_tma.maps, summary, rejects, cost, "high", kind=HOPPER_SINGLE)


def _tma() -> Method:
    summary = "windows gathered by the copy engine, products by wgmma"
    rejects, cost, floor = conv_tma.rejects, conv_weigh_tma.cost, conv_weigh_tma.floor
    return methods("implicit_tma_sm90", conv_weigh_tma.maps, summary, rejects, cost, floor=floor, kind=HOPPER_HALF)


def _tf32() -> Method:
    """The weight's gradient would ask for operands that run along K."""
    return methods(conv_tf32.NAME, conv_tf32.maps, conv_tf32.SUMMARY, conv_tf32.rejects, conv_tf32.cost, "high", kind=HOPPER_SINGLE)


def _portable(name: str, precision: str) -> Method:
    rejects, cost = partial(conv_portable.rejects, precision=precision), partial(conv_portable.cost, precision=precision)
    floor = partial(conv_portable.floor, precision=precision)
    summary, kind = "windows gathered into shared memory, products by mma.sync", conv_portable.KINDS[precision]
    return methods(name, conv_portable.maps, summary, rejects, cost, precision, floor, kind)


def _fft(name: str, tiled: bool) -> Method:
    rejects, cost = partial(conv_fft.rejects, tiled=tiled), partial(conv_fft.cost, tiled=tiled)
    summary = f"product of the spectra of {'overlapping tiles (overlap-save)' if tiled else 'whole images and windows'}, cuFFT"
    return methods(name, partial(conv_fft.maps, tiled=tiled), summary, rejects, cost, kind=SINGLE)


def _parts() -> tuple[Method, ...]:
    return tuple(
        methods(name, conv_parts.maps, conv_parts.SUMMARY, conv_parts.rejects, partial(conv_parts.cost, precision=precision), precision,
                kind=HOPPER_SINGLE)
        for precision, name in conv_parts.NAMES.items()
    )  # fmt: skip


def _few() -> tuple[Method, ...]:
    return tuple(
        methods(name, conv_few.maps, conv_few.SUMMARY, partial(conv_few.rejects, precision=precision),
                partial(conv_few.cost, precision=precision), precision, kind=AMPERE_SINGLE)
        for precision, name in conv_few.NAMES.items()
    )  # fmt: skip


def _winograd() -> Method:
    """Images only: sums over all tiles, as the gradient of the weight has them, are better left to products."""
    summary = "F(2x2, 3x3): 16 products for four outputs instead of 36, cuBLAS"
    return methods("winograd", conv_winograd.WinogradMaps, summary, conv_winograd.rejects, conv_winograd.cost, kind=SINGLE)


def _methods(op: str) -> tuple[Method, ...]:
    images = op != "conv_backward_weight"  # some algorithms do nothing else; of a backward, where it is asked for those alone
    return (
        *conv_depthwise.METHODS.get(op, ()),
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
for _name, _run in (("unfold", conv_unfold.to_columns), ("fold", conv_unfold.to_image)):
    ALGORITHMS[_name] = (Method("gather", _run, "each element of the result gathers its terms", conv_unfold.rejects),)
    _back = conv_unfold.to_image if _name == "unfold" else conv_unfold.to_columns
    ALGORITHMS[f"{_name}_backward"] = (Method("gather", _back, "each element of the result gathers its terms", conv_unfold.rejects),)
